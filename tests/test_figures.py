"""Figures: each is drawn from recorded runs and says its conclusion; one spec serves both themes; runs overlay."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from make_run import make_run

from microbench.analysis.evidence import Evidence, evidence_by_device
from microbench.core.bench import discover
from microbench.core.model import Run
from microbench.core.units import as_time, quantity, times
from microbench.predict.fit import fit, missing
from microbench.predict.model import WAYS
from microbench.report.document import Curve, Line, Mark
from microbench.report.figures import pictures, theme
from microbench.report.figures.catalogue import KINDS, figures
from microbench.report.figures.catalogue import drawn as drawn_from
from microbench.report.figures.figure import Figure, Origin, sources
from microbench.report.suites.graph import DRAWN
from microbench.runs import store

HOSTILE = "<script>alert(1)</script>\u202e\x07'\"&" + "x" * (1 << 20)
SVG = "{http://www.w3.org/2000/svg}"


@cache
def recorded(name: str) -> Run:
    return store.read(store.bundled()[name])


@cache
def evidence(figure: str) -> Evidence:
    """The first GPU of a bundled run that has the figure."""
    for name in sorted(store.bundled()):
        for one in evidence_by_device(recorded(name)):
            if drawn(figure, [one]) is not None:
                return one
    raise AssertionError(f"no bundled run has {figure}")


@cache
def figure(name: str) -> Figure:
    found = drawn(name, [evidence(name)])
    assert found is not None
    return found


def drawn(name: str, evidences: Sequence[Evidence]) -> Figure | None:
    """The figure of GPUs of runs that nobody called anything."""
    return drawn_from(name, [Origin(one) for one in evidences])


def labels(*origins: Origin) -> list[str]:
    return [one.label for one in sources(origins)]


def changed(one: Evidence, **gpu: str) -> Evidence:
    """The same figures of another GPU."""
    sessions = tuple(
        msgspec.structs.replace(
            session,
            environment=msgspec.structs.replace(
                session.environment,
                gpus=tuple(msgspec.structs.replace(each, **gpu) for each in session.environment.gpus),
            ),
        )
        for session in one.run.sessions
    )
    (found,) = (
        each
        for each in evidence_by_device(msgspec.structs.replace(one.run, sessions=sessions))
        if each.device == one.device
    )
    return found


def svg(one: Figure, palette: theme.Palette = theme.LIGHT) -> str:
    from microbench.report.figures import rendering

    return rendering.svg(one, palette).decode()


def words(picture: str) -> list[str]:
    """What is written in an SVG, and heard: halos are not."""
    return list(_written(ElementTree.fromstring(picture)))


def _written(one: ElementTree.Element) -> Iterator[str]:
    if one.get("aria-hidden") == "true":
        return
    if one.tag == f"{SVG}text":
        yield " ".join(one.itertext())
    for each in one:
        yield from _written(each)


def views(spec: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec.get("vconcat", [spec])
    return found


def walked(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a spec."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walked(one)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)


# -- each figure --------------------------------------------------------------------------------------------------


def test_figures_pictures_and_drawings_have_the_same_names() -> None:
    assert list(KINDS) == list(pictures.PICTURES)
    for name in KINDS:
        assert figure(name).name == name


@pytest.mark.parametrize("name", KINDS)
def test_what_measures_a_figure_is_there_to_be_run(name: str) -> None:
    assert set(KINDS[name].benchmarks) <= set(discover())


def test_the_step_needs_what_the_model_does() -> None:
    (nothing,) = evidence_by_device(msgspec.structs.replace(make_run(), outcomes=()))
    assert set(missing(fit(nothing), DRAWN, WAYS)) == set(KINDS["step"].benchmarks)


@pytest.mark.parametrize("name", KINDS)
def test_a_figure_says_its_conclusion_and_whose_it_is(name: str) -> None:
    one, gpu = figure(name), evidence(name).gpu
    written = " ".join(words(svg(one))).replace("\N{NO-BREAK SPACE}", " ")
    assert gpu is not None
    assert re.search(r"\d", one.conclusion), "a conclusion has a figure of the run"
    assert one.conclusion in written
    assert gpu.name in written
    assert len(one.sources) == len(one.conclusions) == 1


@pytest.mark.parametrize("name", KINDS)
def test_a_spec_leaves_title_colours_and_width_to_the_page(name: str) -> None:
    spec = figure(name).spec
    assert not {"title", "config"} & set(spec) or name == "ladder"
    assert spec["description"] == figure(name).conclusion
    assert {view["width"] + spec["usermeta"]["beside"] for view in views(spec)} == {theme.WIDTH}
    assert not [text for text in texts(spec) if re.fullmatch(r"#[0-9a-fA-F]{3,8}|(rgb|hsl)a?\(.*\)", text)]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_spec_asks_nobody_and_is_small_and_always_the_same(name: str) -> None:
    encoded = json.dumps(figure(name).spec, allow_nan=False)
    again = drawn(name, [evidence(name)])
    assert again is not None
    assert json.dumps(again.spec) == encoded
    assert len(encoded) < 100_000
    assert set(re.findall(r"https?://[^\"]*", encoded)) == {figure(name).spec["$schema"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_one_spec_in_both_themes_differs_in_colours_only(name: str) -> None:
    light, dark = svg(figure(name)), svg(figure(name), theme.DARK)
    assert theme.LIGHT.ground in light
    assert theme.DARK.ground in dark
    assert light != dark
    colours = re.compile("|".join({*theme.LIGHT, *theme.DARK}), re.IGNORECASE)
    assert colours.sub("", light) == colours.sub("", dark)


def test_the_ladder_names_layers_with_their_figures() -> None:
    found = words(svg(figure("ladder")))
    rows = evidence("ladder").rows("launch_layers", "submit", family="same_kernel", arguments=0)
    assert len(rows) > 2
    loop = next(row for row in rows if row.params["layer"] == "loop")
    for row in rows:
        over = "" if row is loop else f"{times(row.value / loop.value)} · "
        assert f"{over}{as_time(row.value)}" in found


def test_the_gain_marks_its_crossovers_and_names_its_lines() -> None:
    found = words(svg(figure("gain")))
    assert {"compiled loop", "stream / graph", "kernel duration"} <= set(found)
    assert any(re.fullmatch(r"1\.5× at [0-9.]+ .s", text) for text in found)


def test_the_link_has_fit_and_dashed_ceiling_in_both_directions() -> None:
    picture = svg(figure("link"))
    found = words(picture)
    assert [found.count(name) for name in ("to the GPU", "from the GPU")] == [1, 1]
    assert found.count("fit") == found.count("pinned") == 2
    assert sum(text.startswith("ceiling ") for text in found) == 2
    assert picture.count('stroke-dasharray="6,4"') == 2
    assert any(text.startswith("half at ") for text in found)


def test_the_hierarchy_names_each_level_in_bandwidth_and_latency() -> None:
    found = words(svg(figure("memory")))
    for level in ("L1", "L2", "DRAM"):
        assert any(re.match(rf"{level} .*B/s", text) for text in found)
        assert any(re.match(rf"{level} .* ns, .* cycles", text) for text in found)


def test_the_roofline_has_roofs_and_named_products() -> None:
    one = figure("roofline")
    found = words(svg(one))
    assert any(text.startswith("memory_stream read") for text in found)
    assert {"bandwidth-bound", "compute-bound"} <= set(found)
    named = {row["name"] for rows in one.spec["datasets"].values() for row in rows if "name" in row}
    assert {cells[1].text for cells in one.table.rows} <= named


def test_sustained_shows_rate_clock_power_and_temperature() -> None:
    found = words(svg(figure("sustained")))
    for begin in ("rate, 100 % is", "SM clock, 100 % is", "power, 100 % is", "temperature, 100 % is"):
        assert any(text.startswith(begin) for text in found)


def test_a_step_is_drawn_both_ways() -> None:
    found = words(svg(figure("step")))
    assert {"stream host", "graph host", "synchronise"} <= set(found)
    assert found.count("8") >= 3


@pytest.mark.parametrize("name", KINDS)
def test_the_table_of_a_figure_has_its_figures_as_words(name: str) -> None:
    table = figure(name).table
    assert table.title
    assert len(table.rows) > 1
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert len({column.title for column in table.columns}) == len(table.columns)


def test_a_table_holds_what_was_measured() -> None:
    row = evidence("link").rows("link_copy", "bandwidth", direction="h2d", memory="pinned")[-1]
    cells = {cell.text for line in figure("link").table.rows for cell in line}
    assert quantity(row.value, "B/s") in cells


@pytest.mark.parametrize("name", KINDS)
def test_a_narrow_page_cuts_no_words(name: str) -> None:
    import vl_convert

    spec = {**figure(name).spec, "config": theme.config(theme.LIGHT)}
    for view in views(spec):
        view["width"] = 336 - spec["usermeta"]["beside"]
    scene = vl_convert.vegalite_to_svg(spec, vl_version="6.4")
    width = float(re.findall(r'width="([0-9.]+)"', scene)[0])
    assert width <= 336 + 8


def test_nothing_is_drawn_of_a_run_without_figures() -> None:
    empty = evidence_by_device(msgspec.structs.replace(make_run(), outcomes=()))
    assert figures([Origin(one) for one in empty]) == {}
    assert figures([]) == {}
    assert pictures.sheet("gain", msgspec.structs.replace(make_run(), outcomes=())) is None


# -- several runs, and whose ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_several_runs_lie_over_each_other(name: str) -> None:
    first = evidence(name)
    both = drawn(name, [first, changed(first, name="Another GPU")])
    assert both is not None
    found = words(svg(both))
    assert first.gpu is not None
    assert {first.gpu.name, "Another GPU"} <= set(found)
    assert len(both.conclusions) == len(both.sources) == 2
    assert all(
        text.startswith(label) for text, label in zip(both.conclusions, (first.gpu.name, "Another GPU"), strict=True)
    )


def test_of_more_runs_than_colours_the_others_are_counted() -> None:
    first = evidence("link")
    found = drawn("link", [first, *(changed(first, name=f"GPU of {letter}") for letter in "ABCDE")])
    assert found is not None
    assert len(found.sources) == len(theme.LIGHT.series) == 4
    assert found.about.endswith("2 more not drawn")
    assert "GPU of C" in svg(found)
    assert "GPU of D" not in svg(found)


@pytest.mark.parametrize("name", KINDS)
def test_nothing_in_a_spec_is_dropped(name: str) -> None:
    """Vega-Lite drops these with a warning on the console."""
    for spec in walked(figure(name).spec):
        if spec.get("type") == "log":
            assert "zero" not in spec
        if isinstance(spec.get("mark"), dict) and spec["mark"]["type"] == "tick":
            assert not {"x2", "y2"} & set(spec["encoding"])


def test_names_of_marks_and_the_title_of_an_axis_keep_apart() -> None:
    spec = views(figure("link").spec)[0]
    tops = [one["encoding"]["y"]["value"] for one in walked(spec) if "value" in one.get("encoding", {}).get("y", {})]
    axis = next(one for one in walked(spec) if "titleY" in one)
    assert len(tops) >= 4
    assert max(tops) + theme.USUAL / 2 < axis["titleY"] - 1.25 * theme.SMALL


def test_limits_that_runs_share_are_drawn_once() -> None:
    first = evidence("link")
    both = drawn("link", [first, changed(first, name="Another GPU")])
    assert both is not None
    assert sum(text.startswith("ceiling ") for text in words(svg(both))) == 2  # one a direction


def test_a_run_without_the_rows_is_not_named_among_them() -> None:
    empty = evidence_by_device(msgspec.structs.replace(make_run(gpu_name="Nobody"), outcomes=()))
    found = drawn("gain", [evidence("gain"), *empty])
    assert found is not None
    assert len(found.sources) == 1
    assert "Nobody" not in svg(found)


def test_labels_tell_runs_apart_by_what_it_takes() -> None:
    one = evidence("gain")
    assert one.gpu is not None
    name = one.gpu.name
    assert labels(Origin(one)) == [name]
    assert labels(Origin(one), Origin(changed(one, name="B"))) == [name, "B"]
    again = labels(Origin(one), Origin(one))
    assert len(set(again)) == 2
    assert all(name in label for label in again)
    assert labels(Origin(one, "before"), Origin(one, "after")) == ["before", "after"]
    later = Evidence(
        msgspec.structs.replace(
            one.run,
            sessions=tuple(
                msgspec.structs.replace(each, started_at="2031-02-03T04:05:06Z") for each in one.run.sessions
            ),
        ),
        [],
        one.device,
    )
    assert "2031-02-03 04:05" in labels(Origin(one), Origin(later))[1]


def test_simulated_figures_are_marked_wherever_they_go() -> None:
    (one,) = evidence_by_device(make_run(gpu_name="H200"))
    found = drawn("ladder", [one])
    assert found is not None
    assert "SIMULATED" in " ".join(words(svg(found)))
    both = drawn("ladder", [evidence("ladder"), one])
    assert both is not None
    assert "H200 · SIMULATED" in words(svg(both))
    simulated = Origin(one, "SIMULATED at home", reference=True)
    assert labels(simulated) == ["SIMULATED at home"]


def test_what_came_with_the_tool_is_marked_beside_what_was_measured() -> None:
    one = evidence("gain")
    own = changed(one, name="Another GPU")
    assert labels(Origin(one, reference=True), Origin(own, "mine")) == ["NVIDIA H200 · REFERENCE", "mine"]
    alone = drawn_from("gain", [Origin(one, reference=True)])
    assert alone is not None
    assert alone.sources[0].startswith("NVIDIA H200 · REFERENCE · driver")
    assert any("REFERENCE" in text for text in words(svg(alone)))
    assert not any("REFERENCE" in text for text in words(svg(figure("gain"))))


def test_hostile_names_are_words_with_an_end() -> None:
    first = evidence("gain")
    hostile = [changed(first, name=HOSTILE), changed(first, name=HOSTILE + "y")]
    for name in ("ladder", "gain", "link"):
        found = drawn_from(name, [Origin(hostile[0]), Origin(hostile[1], HOSTILE)])
        assert found is not None
        assert max(map(len, texts(found.spec))) < 5000
        picture = svg(found)
        assert "\x07" not in picture
        assert "\u202e" not in picture
        assert not list(ElementTree.fromstring(picture).iter(f"{SVG}script"))
        assert any(text.startswith("<script>alert(1)") for text in words(picture))
        assert len(set(labels(*map(Origin, hostile)))) == 2


# -- colours --------------------------------------------------------------------------------------------------------

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
# Distances in Oklab: 0.02 is just seen side by side. Blindness to blue has one in ten thousand.
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


@pytest.mark.parametrize("palette", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
def test_every_colour_is_seen_on_its_ground(palette: theme.Palette) -> None:
    for colour in (palette.ink, palette.muted, *palette.series):
        assert contrast(colour, palette.ground) >= 4.5
    assert contrast(palette.quiet, palette.ground) >= 3.0


@pytest.mark.parametrize("palette", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("seen", SEEN)
def test_series_differ_for_every_kind_of_colour_blindness(palette: theme.Palette, seen: str) -> None:
    for one, other in itertools.combinations(palette.series, 2):
        assert difference(one, other, seen) >= APART[seen], (one, other)


def test_colour_blindness_is_really_computed() -> None:
    assert difference("#ff0000", "#808000", "no red") < difference("#ff0000", "#808000", "all")
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


# -- drawing --------------------------------------------------------------------------------------------------------


def curve(*lines: Line, **more: Any) -> Curve:
    ticks = (Mark(1.0, "one"), Mark(10.0, "ten"))
    return Curve("t", "a", "x", lines, ticks, ticks, **more)


def test_flat_and_lonely_curves_are_drawn_too() -> None:
    from microbench.report.figures.curves import Series, View, view

    how = View(["a"], "y", str, str)
    flat = Line("a", ((1.0, 5.0), (10.0, 5.0)))
    lonely = Line("b", ((3.0, 0.0),))
    for y_log in (False, True):
        chart = view(
            curve(flat, lonely, y_log=y_log), [Series(flat, "measured", "a", "a"), Series(lonely, name="b")], how
        )
        domains = [one for one in _values(chart.to_dict(), "domain") if isinstance(one[0], float)]
        assert domains
        assert all(low < high for low, high in domains)


def _values(value: Any, key: str) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, one in value.items():
            if name == key:
                yield one
            yield from _values(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from _values(one, key)


def test_long_lines_are_thinned_to_what_the_eye_can_see() -> None:
    from microbench.report.figures.curves import COLUMN, NARROW, Series, View, view

    points = tuple((float(x), float(x % 7)) for x in range(1, 20_000))
    spike = (*points[:5000], (points[5000][0], 99.0), *points[5001:])
    line = Line("a", spike)
    chart = view(
        curve(line, x_log=False, y_log=False), [Series(line, "measured", "a", "a")], View(["a"], "y", str, str)
    )
    rows = max(chart.to_dict()["datasets"].values(), key=len)
    assert len(rows) <= 2 * (NARROW / COLUMN + 1)
    assert max(row["y"] for row in rows) == 99.0
    assert {"x": 1.0, "y": 1.0, "place": 0} in rows


def test_names_stand_beside_their_own_line_and_clear_of_each_other() -> None:
    from microbench.report.figures.theme import CHARACTER, HEIGHT, fits, places

    rising, falling = [(0.0, 20.0), (520.0, 280.0)], [(0.0, 300.0), (520.0, 150.0)]
    flat = [(0.0, 100.0), (520.0, 100.0)]
    names = ["the first line", "another one", "third"]
    found = places([rising, falling, flat], names, [], 520, 320)
    boxes = []
    for place, name in zip(found, names, strict=True):
        length = len(name) * CHARACTER
        left = place.x - {"left": 0, "center": length / 2, "right": length}[place.align]
        assert -1e-6 <= left <= 520 - length + 1e-6
        assert HEIGHT / 2 <= place.y <= 320 - HEIGHT / 2
        assert fits(place.x / 520, length, place.align)
        boxes.append((left, left + length, place.y - HEIGHT / 2, place.y + HEIGHT / 2))
    for one, other in itertools.combinations(boxes, 2):
        assert one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
    heights = {"third": 100.0}
    assert abs(found[2].y - heights["third"]) < HEIGHT + 4


def test_a_name_avoids_what_it_would_hide() -> None:
    from microbench.report.figures.theme import places

    line = [(0.0, 100.0), (520.0, 100.0)]
    dots = [(float(x), 110.0) for x in range(0, 520, 5)]
    (above,) = places([line], ["name"], [], 520, 320)
    (below,) = places([line], ["name"], dots, 520, 320)
    assert (above.y > 100) != (below.y > 100) or above.y < 100


def test_axes_carry_words_of_people() -> None:
    from microbench.report.figures.theme import axis

    made = axis((Mark(1e-6, "1 µs"), Mark(1e-5, "10 µs"))).to_dict()
    assert made["values"] == [1e-6, 1e-5]
    assert "1 \\u00b5s" in made["labelExpr"] or "1 µs" in made["labelExpr"]
    found = words(svg(figure("gain")))
    assert "10 µs" in found
    assert not [text for text in found if re.search(r"\de-?\d", text)]


def test_neither_the_names_nor_the_terminal_load_the_drawing_library() -> None:
    code = (
        "import sys; from microbench.report.figures import pictures;"
        " from microbench.report.figures.catalogue import KINDS, figures;"
        "print([name for name in ('altair', 'vl_convert') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("ending", [".svg", ".png", ".pdf"])
def test_a_character_that_is_no_xml_spoils_no_picture(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from microbench.report.figures import rendering

    drawn = '<rect aria-label="\0" width="9" height="9"/>'
    made = f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">{drawn}</svg>'
    monkeypatch.setattr(rendering.vl_convert, "vegalite_to_svg", lambda *rest, **options: made)
    monkeypatch.setattr(rendering, "spec", lambda figure, palette: {})
    found = rendering.RENDERERS[ending](None, theme.LIGHT)  # type: ignore[arg-type]
    assert found.startswith({".svg": b"<svg", ".png": b"\x89PNG", ".pdf": b"%PDF"}[ending])
    assert ending != ".svg" or b"\0" not in found
