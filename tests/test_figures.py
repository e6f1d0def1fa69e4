"""Figures: each is drawn from recorded runs and says its conclusion, in every palette and width."""

import itertools
import re
import xml.etree.ElementTree as ElementTree
from functools import cache
from typing import Any

import numpy as np
import pytest
import snapshots
from changed_run import with_gpu
from make_run import make_run
from msgspec.structs import replace
from sections import some

from microbench.analysis.evidence import Evidence, evidence_by_device
from microbench.archive import store
from microbench.core.bench import discover
from microbench.core.model import Run
from microbench.model.fit import fit, missing
from microbench.model.model import WAYS
from microbench.report import document
from microbench.report.document import Bar, Bars, Cell, Column, Curve, Histogram, Lane, Line, Mark, Span, TimeLine
from microbench.report.figures import canvas as canvas_of
from microbench.report.figures import drawing
from microbench.report.figures import figure as figures_of
from microbench.report.figures.canvas import DARK, LIGHT, PAGE, Canvas, Dots, Palette, Rectangle, Stroke, Words
from microbench.report.figures.catalogue import KINDS
from microbench.report.figures.figure import Figure, Origin, figures, sources
from microbench.report.figures.labels import GAP, HEIGHT, Box, placed
from microbench.report.suites.graph import DRAWN

HOSTILE = "<script>alert(1)</script>\u202e\x07'\"&\ufffe" + "x" * (1 << 20)
SVG = "{http://www.w3.org/2000/svg}"


@cache
def recorded(name: str) -> Run:
    return store.read(store.bundled()[name])


@cache
def evidence(figure: str) -> Evidence:
    for name in sorted(store.bundled()):
        for one in evidence_by_device(recorded(name)):
            if drawn(figure, one) is not None:
                return one
    raise AssertionError(f"no bundled run has {figure}")


@cache
def figure(name: str) -> Figure:
    return some(drawn(name, evidence(name)))


def drawn(name: str, *evidences: Evidence) -> Figure | None:
    return figures_of.drawn(name, [Origin(one) for one in evidences])


@cache
def both(name: str, *others: str) -> Figure:
    """The figure of a bundled run and of the same rows under other GPUs' names."""
    return some(drawn(name, evidence(name), *(changed(evidence(name), name=other) for other in others)))


def labels(*origins: Origin) -> list[str]:
    return [one.label for one in sources(origins)]


@cache
def changed(one: Evidence, **gpu: str) -> Evidence:
    groups = evidence_by_device(with_gpu(one.run, lambda own: replace(own, **gpu)))
    return next(each for each in groups if each.device == one.device)


def words(one: Figure, palette: Palette = LIGHT) -> list[str]:
    """What is written in the figure's file, without halos and hints."""
    texts = ElementTree.fromstring(one.svg(palette)).iter(f"{SVG}text")
    return [text.text or "" for text in texts if text.get("aria-hidden") is None]


def test_the_benchmarks_of_a_figure_exist_and_the_step_has_those_of_the_model() -> None:
    assert {name for kind in KINDS.values() for name in kind.benchmarks} <= set(discover())
    (nothing,) = evidence_by_device(replace(make_run(), outcomes=()))
    assert set(missing(fit(nothing), DRAWN, WAYS)) == set(KINDS["step"].benchmarks)


def test_what_figures_say() -> None:
    """All that is written in them, and the tables of their data."""
    told = []
    for name in KINDS:
        one = figure(name)
        told += [f"== {name}: {one.conclusion} ({'; '.join(one.sources)})", *words(one)]
        for table in one.tables:
            told.append(f"{table.title}: {' | '.join(column.title for column in table.columns)}")
            told += [" | ".join(cell.text for cell in row) for row in table.rows]
    snapshots.same("figures", "\n".join(told))


@pytest.mark.parametrize("name", KINDS)
def test_a_figure_is_small_always_the_same_and_palettes_change_its_colours_only(name: str) -> None:
    light, dark = (figure(name).svg(palette).decode() for palette in (LIGHT, DARK))
    assert some(drawn(name, evidence(name))).svg(LIGHT).decode() == light
    assert len(light) < 60_000
    assert LIGHT["ground"] in light
    assert DARK["ground"] in dark
    colours = re.compile("|".join({*LIGHT.values(), *DARK.values()}), re.IGNORECASE)
    assert colours.sub("", light) == colours.sub("", dark)
    assert not re.search(r"#[0-9a-f]{6}", colours.sub("", light)), "every colour comes from the palette"
    canvas = Canvas(540)
    figure(name).draw(canvas)
    assert set(re.findall(r'(?:fill|stroke)="([^"]*)"', canvas.svg(PAGE))) <= {*PAGE.values(), "none"}


@pytest.mark.parametrize("width", [340.0, 540.0, 860.0])
@pytest.mark.parametrize("name", KINDS)
def test_nothing_leaves_the_canvas(name: str, width: float) -> None:
    for one in (figure(name), both(name, "Another GPU")):
        canvas = Canvas(width)
        one.draw(canvas)
        for shape in canvas.shapes:
            left, right, top, bottom = extent(shape)
            assert min(left, top, width - right, canvas.height - bottom) >= -4, shape


def extent(shape: Stroke | Rectangle | Dots | Words) -> tuple[float, float, float, float]:
    if isinstance(shape, Rectangle):
        return shape.x, shape.x + shape.width, shape.y, shape.y + shape.height
    if isinstance(shape, Words):
        length = canvas_of.width_of(shape.text, shape.size, bold=shape.bold)
        left = shape.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor] * length
        return left, left + length, shape.y - shape.size / 2, shape.y + shape.size / 2
    xs, ys = zip(*shape.points, strict=True)
    return min(xs), max(xs), min(ys), max(ys)


@pytest.mark.parametrize("name", KINDS)
def test_the_data_of_a_figure_are_tables(name: str) -> None:
    for one in (figure(name), both(name, "Another GPU")):
        assert one.tables
        for table in one.tables:
            assert table.title
            assert len(table.rows) > 1
            assert {len(row) for row in table.rows} == {len({column.title for column in table.columns})}


def test_nothing_is_drawn_of_a_run_without_figures() -> None:
    run = replace(make_run(), outcomes=())
    assert figures([Origin(one) for one in evidence_by_device(run)]) == {}
    assert figures([]) == {}
    assert figures_of.sheet("gain", run) is None
    assert figures_of.available(run) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_several_runs_lie_over_each_other(name: str) -> None:
    found = both(name, "Another GPU")
    gpu = some(evidence(name).gpu)
    assert {gpu.name, "Another GPU"} <= set(words(found))
    assert len(found.conclusions) == len(found.sources) == 2
    assert all(text.startswith(label) for text, label in zip(found.conclusions, (gpu.name, "Another GPU"), strict=True))


@pytest.mark.slow
def test_more_runs_than_colours_are_counted() -> None:
    found = both("link", *(f"GPU of {letter}" for letter in "ABCDE"))
    assert sum(text.startswith("ceiling ") for text in words(found)) == 2, "runs share one ceiling in each direction"
    assert len(found.sources) == len(document.SERIES_TONES) == 4
    assert found.about.endswith("2 more not drawn")
    text = found.svg(LIGHT).decode()
    assert "GPU of C" in text
    assert "GPU of D" not in text


def test_a_run_without_the_rows_is_not_named() -> None:
    empty = evidence_by_device(replace(make_run(gpu_name="Nobody"), outcomes=()))
    found = some(drawn("gain", evidence("gain"), *empty))
    assert len(found.sources) == 1
    assert "Nobody" not in found.svg(LIGHT).decode()


def test_labels_tell_runs_apart() -> None:
    one = evidence("gain")
    name = some(one.gpu).name
    assert labels(Origin(one)) == [name]
    assert labels(Origin(one), Origin(changed(one, name="B"))) == [name, "B"]
    again = labels(Origin(one), Origin(one))
    assert len(set(again)) == 2
    assert all(name in label for label in again)
    assert labels(Origin(one, "before"), Origin(one, "after")) == ["before", "after"]
    sessions = tuple(replace(each, started_at="2031-02-03T04:05:06Z") for each in one.run.sessions)
    later = Evidence(replace(one.run, sessions=sessions), [], one.device)
    assert "2031-02-03 04:05" in labels(Origin(one), Origin(later))[1]


def test_simulated_and_bundled_runs_are_marked() -> None:
    (simulated,) = evidence_by_device(make_run(gpu_name="H200"))
    alone, overlaid = drawn("ladder", simulated), drawn("ladder", evidence("ladder"), simulated)
    assert "SIMULATED" in " ".join(words(some(alone)))
    assert "H200 · SIMULATED" in words(some(overlaid))
    assert labels(Origin(simulated, "SIMULATED at home", reference=True)) == ["SIMULATED at home"]
    own = changed(evidence("gain"), name="Another GPU")
    bundled = Origin(evidence("gain"), reference=True)
    assert labels(bundled, Origin(own, "mine")) == ["NVIDIA H200 · REFERENCE", "mine"]
    found = some(figures_of.drawn("gain", [bundled]))
    assert found.sources[0].startswith("NVIDIA H200 · REFERENCE · driver")
    assert not any("REFERENCE" in text for text in words(figure("gain")))


def test_hostile_names_are_words_with_an_end() -> None:
    first = evidence("gain")
    hostile = [changed(first, name=HOSTILE), changed(first, name=HOSTILE + "y")]
    assert len(set(labels(*map(Origin, hostile)))) == 2
    for name in ("ladder", "gain", "link"):
        found = some(figures_of.drawn(name, [Origin(hostile[0]), Origin(hostile[1], HOSTILE)]))
        assert any(text.startswith("<script>alert(1)") for text in words(found))
        assert len(found.svg(LIGHT)) < 60_000


# What dichromats see of linear RGB: Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of
# color vision deficiency", IEEE TVCG 15 (2009), at severity 1.
SEEN = {
    "all": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# Linear RGB to Oklab: Ottosson, "A perceptual color space for image processing" (2020).
CONES = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
         [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
OKLAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
         [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip
# Distances in Oklab: side by side, 0.02 is just visible. One person in ten thousand is blind to blue.
APART = {"all": 0.15, "no red": 0.10, "no green": 0.10, "no blue": 0.06}


def linear(colour: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    value = np.array([int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's ratio."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def difference(one: str, other: str, seen: str) -> float:
    first, second = (
        np.array(OKLAB) @ np.cbrt(np.array(CONES) @ np.clip(np.array(SEEN[seen]) @ linear(colour), 0, 1))
        for colour in (one, other)
    )
    return float(np.linalg.norm(first - second))


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_every_colour_is_seen_on_its_ground(palette: Palette) -> None:
    for tone in ("ink", "muted", "good", "note", "problem", *document.SERIES_TONES):
        assert contrast(palette[tone], palette["ground"]) >= 4.5
    assert contrast(palette["quiet"], palette["ground"]) >= 3.0


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("seen", SEEN)
def test_series_differ_for_every_kind_of_colour_blindness(palette: Palette, seen: str) -> None:
    for one, other in itertools.combinations(map(palette.of, document.SERIES_TONES), 2):
        assert difference(one, other, seen) >= APART[seen], (one, other)


def test_colour_blindness_is_really_computed() -> None:
    assert difference("#ff0000", "#808000", "no red") < difference("#ff0000", "#808000", "all")
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


def curve(*lines: Line, **more: Any) -> Curve:
    ticks = (Mark(1.0, "one"), Mark(10.0, "ten"))
    return Curve("t", "a", "x", lines, ticks, ticks, **more)


def shapes_of(one: Curve, width: float = 540.0) -> list[Any]:
    canvas = Canvas(width)
    drawing.curve(canvas, one)
    return canvas.shapes


@pytest.mark.parametrize("y_log", [False, True])
def test_flat_and_lonely_curves_are_drawn_too(y_log: bool) -> None:
    flat, lonely = Line("a", ((1.0, 5.0), (10.0, 5.0))), Line("b", ((3.0, 0.0),))
    for lines in ((flat, lonely), (flat,), (lonely,)):
        found = shapes_of(curve(*lines, y_log=y_log))
        assert all(np.isfinite(extent(shape)).all() for shape in found)


def test_long_lines_are_thinned_to_what_the_eye_can_see() -> None:
    points = [(float(x), float(x % 7)) for x in range(1, 20_000)]
    points[5000] = (points[5000][0], 99.0)
    (stroke,) = (
        shape
        for shape in shapes_of(curve(Line("a", tuple(points)), x_log=False, y_log=False))
        if isinstance(shape, Stroke) and shape.colour == "first"
    )
    assert len(stroke.points) <= 2 * (540 / drawing.THINNED + 1)
    ys = [y for _, y in stroke.points]
    assert min(ys) < sorted(ys)[1] - 10, "the spike stays"


def test_kinds_of_lines_differ_in_ink() -> None:
    points = tuple((float(x), float(x)) for x in range(1, 5))
    kinds = ("measured", "computed", "limit", "points")
    found = shapes_of(curve(*(Line(kind, points, kind=kind) for kind in kinds)))
    coloured = [shape for shape in found if not isinstance(shape, Words) and shape.colour == "first"]
    strokes = [shape for shape in coloured if isinstance(shape, Stroke)]
    dots = [shape for shape in coloured if isinstance(shape, Dots) and len(shape.points) == 4]
    assert [bool(shape.dash) for shape in strokes] == [True, False, False]
    assert len(dots) == 2


def test_names_that_are_too_long_go_into_a_legend() -> None:
    name = "a name longer than a phone's plot is wide"
    line = Line(name, ((1.0, 1.0), (10.0, 10.0)))
    beside, below = ([one for one in shapes_of(curve(line), width) if isinstance(one, Words)] for width in (860, 340))
    assert [one.halo for one in beside if one.text == name] == [True]
    assert [one.halo for one in below if one.text == name] == [False]


def test_names_stand_beside_their_own_line_and_clear_of_each_other() -> None:
    rising, falling = [(0.0, 300.0), (520.0, 40.0)], [(0.0, 20.0), (520.0, 170.0)]
    flat = [(0.0, 220.0), (520.0, 220.0)]
    area = Box(0.0, 520.0, 0.0, 320.0)
    boxes = placed([("the first line", rising), ("another one", falling), ("third", flat), ("", flat)], [], area)
    assert boxes[3] is None
    found = [box for box in boxes if box is not None]
    for box in found:
        assert area.left <= box.left < box.right <= area.right
        assert area.top <= box.top < box.bottom <= area.bottom
    for one, other in itertools.combinations(found, 2):
        assert not one.overlaps(other)
    assert min(abs(found[2].top - 220), abs(found[2].bottom - 220)) <= GAP + HEIGHT


def test_a_name_avoids_what_it_would_hide() -> None:
    line, area = [(0.0, 100.0), (520.0, 100.0)], Box(0.0, 520.0, 0.0, 320.0)
    dots = [(float(x), 90.0) for x in range(0, 520, 5)]
    ((above,), (below,)) = (placed([("name", line)], hidden, area) for hidden in ([], dots))
    assert some(above).bottom < 100 < some(below).top


def test_a_time_line_writes_into_spans_and_beside_moments() -> None:
    spans = (Span(0.0, 6.0, "work"), Span(6.0, 6.1, "no room for this"), Span(7.0, 7.0, "begins", "second"))
    length = (Span(0.0, 10.0, "10 s", "plain", "distance"),)
    canvas = Canvas(540)
    drawing.time_line(canvas, TimeLine("", "", 10.0, (Mark(0.0, "0 s"),), (Lane("host", spans), Lane("", length))))
    written = [shape.text for shape in canvas.shapes if isinstance(shape, Words)]
    assert {"host", "work", "begins", "10 s", "0 s"} <= set(written)
    assert "no room for this" not in written
    hints = [shape.hint for shape in canvas.shapes if isinstance(shape, Rectangle)]
    assert "no room for this" in hints


def test_a_single_count_of_a_histogram_can_be_seen() -> None:
    canvas = Canvas(540)
    drawing.histogram(canvas, Histogram("", "", 1.0, 2.0, (10_000, 0, 1), (Mark(1.0, "least"), Mark(8.0, "most"))))
    high, low = (shape.height for shape in canvas.shapes if isinstance(shape, Rectangle))
    assert high > 90
    assert low == 2.0


def test_columns_beside_bars_are_dropped_to_make_room_for_labels() -> None:
    columns = (Column("one"), Column("two", drop=2), Column("three", drop=1))
    bar = Bar("a label of some length", 1.0, 2.0, tuple(Cell(text) for text in ("1.00 µs", "2.00 µs", "3.00 µs")))

    def titles(width: float) -> list[str]:
        canvas = Canvas(width)
        drawing.bars(canvas, Bars("", "", columns, (bar,)))
        return [shape.text for shape in canvas.shapes if isinstance(shape, Words) and shape.colour == "muted"]

    assert set(titles(540)) == {"one", "two", "three"}
    assert set(titles(300)) == {"one", "three"}
    assert titles(200) == ["one"]
