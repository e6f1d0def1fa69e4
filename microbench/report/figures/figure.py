"""Makes the figures of one or several runs: overlaid pictures, conclusions, and the drawn data as tables."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, Finding, evidence_by_device
from microbench.core.model import Run
from microbench.core.units import about_size, as_time, percent, plain, quantity, three_digits, times
from microbench.explain import compute_products, compute_verdict, graph_rules, launch_rules, link_rules, memory_levels
from microbench.explain.link_facts import DIRECTIONS
from microbench.model import words
from microbench.model.fit import fit
from microbench.model.forecast import forecast
from microbench.report import document
from microbench.report.document import SERIES_TONES, Bar, Bars, Cell, Column, Curve, Line, Mark, Table, TimeLine, Tone
from microbench.report.figures import drawing
from microbench.report.figures.canvas import LARGE, SMALL, Canvas, Palette
from microbench.report.figures.catalogue import KINDS
from microbench.report.heading import head, mark_of
from microbench.report.suites import graph, launch, link, memory, roofline
from microbench.report.tables import NOTHING, bars_table, matrix

# One colour for each run; more runs are counted instead.
MOST_SOURCES = len(SERIES_TONES)
# How much of a run's name is shown.
LONGEST_LABEL = 80
# The width of a figure in a file, and the margin around it, in CSS pixels.
WIDTH, MARGIN = 640.0, 12.0
# A longer table of a curve keeps evenly spaced rows.
MOST_ROWS = 60
# Overlaid curves have ticks up to this factor above the highest value.
BEYOND = 1.15
# The height of each of several curves in a figure.
LOW_HEIGHT = 200.0


Words = Callable[[float], str]


class Panel(NamedTuple):
    """One picture of a figure, with words for the values at the axes of a curve."""

    picture: Curve | TimeLine | Bars
    x_words: Words = str
    y_words: Words = str


# What a figure shows of one GPU: panels, findings whose titles are its conclusion, and tables for the terminal.
Gathered = tuple[list[Panel], Sequence[Finding | None], Sequence[Table | None]]
# A panel of one of several runs, with the run's label and colour; the label of a single run is "".
Member = tuple[str, Tone, Panel]


def _panels(*pictures: Curve | TimeLine | Bars | None, words: tuple[Words, Words] = (str, str)) -> list[Panel]:
    return [Panel(picture, *words) for picture in pictures if picture is not None]


def _step(evidence: Evidence) -> Gathered:
    panels = _panels(graph.step(evidence))
    found = words.to_scale(evidence, forecast(graph.DRAWN, fit(evidence))) if panels else []
    return panels, found[:1], ()


BANDWIDTH, OPERATIONS = partial(quantity, unit="B/s"), partial(quantity, unit="FLOP/s")
GATHERED: dict[str, Callable[[Evidence], Gathered]] = {
    "ladder": lambda one: (_panels(launch.ladder(one), launch.one_op(one)), [launch_rules.same_kernel(one)], ()),
    "gain": lambda one: (
        _panels(graph.gain(one), words=(as_time, times)), [graph_rules.crossovers(one)], [graph.surface(one)],
    ),
    "link": lambda one: (
        _panels(*(link.rates(one, direction) for direction in DIRECTIONS), words=(about_size, BANDWIDTH)),
        [link_rules.copy_size(one)], [link.fits(one)],
    ),
    "memory": lambda one: (
        [
            *_panels(memory.hierarchy(one), words=(about_size, BANDWIDTH)),
            *_panels(memory.latencies(one), words=(about_size, as_time)),
        ],
        [memory_levels.levels(one)], (),
    ),
    "roofline": lambda one: (
        _panels(*roofline.rooflines(one), words=(lambda x: f"{three_digits(x)} operations per byte", OPERATIONS)),
        [compute_products.bounds(one)], (),
    ),
    "sustained": lambda one: (
        _panels(roofline.rates_over_time(one), roofline.state_over_time(one), words=(as_time, percent)),
        [compute_verdict.sustained(one)], (),
    ),
    "step": _step,
}  # fmt: skip


class Origin(NamedTuple):
    """One GPU of one run. ``label`` is the user's name for the run or ""; a ``reference`` is a bundled run."""

    evidence: Evidence
    label: str = ""
    reference: bool = False


class Figure(NamedTuple):
    """Pictures of one or several runs with a conclusion for each run.

    ``name`` is what the user types. ``panels`` are drawn one below the other under a ``legend`` of runs. ``about`` says
    how to read a single panel; several panels have their own. ``tables`` hold the drawn data. ``pictures`` are the
    pictures of the runs' reports that the panels show whole; of bars of several runs they show one figure each.
    """

    name: str
    title: str
    conclusions: tuple[str, ...]
    about: str
    sources: tuple[str, ...]
    panels: tuple[Panel, ...]
    legend: tuple[tuple[str, Tone], ...]
    tables: tuple[Table, ...]
    pictures: tuple[document.Picture, ...]

    @property
    def conclusion(self) -> str:
        """All conclusions on one line, for readers who cannot see the picture."""
        return "; ".join(self.conclusions)

    def draw(self, canvas: Canvas, *, hints: bool = True) -> None:
        """Draw the panels; ``hints`` are words for a pointer on a dot."""
        if self.legend:
            drawing.legend(canvas, [(name, tone, "square") for name, tone in self.legend])
            canvas.height += drawing.GAP
        pictures = [panel.picture for panel in self.panels]
        bars = [bar for picture in pictures if isinstance(picture, Bars) for bar in picture.bars]
        most = max((max(bar.value, bar.beyond or 0.0) for bar in bars), default=None)
        end_s = max((picture.end_s for picture in pictures if isinstance(picture, TimeLine)), default=None)
        several = len(self.panels) > 1
        for place, (picture, x_words, y_words) in enumerate(self.panels):
            if several:
                canvas.height += 18.0 if place else 0.0
                drawing.paragraph(canvas, picture.title, bold=True)
                drawing.paragraph(canvas, picture.about, SMALL, "muted")
                canvas.height += 6.0
            if isinstance(picture, Curve):
                height = LOW_HEIGHT if several else drawing.CURVE_HEIGHT
                drawing.curve(canvas, picture, height=height, hints=(x_words, y_words) if hints else None)
            elif isinstance(picture, Bars):
                drawing.bars(canvas, picture, most=most)
            elif isinstance(picture, TimeLine):
                drawing.time_line(canvas, picture, end_s=end_s)

    def svg(self, palette: Palette) -> bytes:
        """The figure as an SVG file: the panels below their conclusions and sources. Its text stays text."""
        canvas = Canvas(WIDTH - 2 * MARGIN)
        alone = len(self.conclusions) == 1
        drawing.paragraph(canvas, self.conclusion if alone else self.title, LARGE, bold=True)
        for text in (*(() if alone else self.conclusions), self.about, *self.sources):
            drawing.paragraph(canvas, text, colour="muted")
        canvas.height += 14.0
        self.draw(canvas, hints=False)
        return canvas.svg(palette, margin=MARGIN, label=self.conclusion).encode()


def figures(origins: Sequence[Origin]) -> dict[str, Figure]:
    """Every figure that these GPUs have rows for, by name, in the order of KINDS; several runs are overlaid."""
    return {name: found for name in KINDS if (found := drawn(name, origins)) is not None}


def drawn(name: str, origins: Sequence[Origin]) -> Figure | None:
    """The figure of that name from KINDS; None if no origin has its rows."""
    shown = []
    for source in sources(origins):
        panels, findings, _ = GATHERED[name](source.evidence)
        if panels:
            shown.append((source, panels, ". ".join(finding.title for finding in findings if finding)))
    if not shown:
        return None
    left_out = [f"{len(shown) - MOST_SOURCES} more not drawn"] if len(shown) > MOST_SOURCES else []
    shown = shown[:MOST_SOURCES]
    several = len(shown) > 1
    groups = _groups([(source.label if several else "", panels) for source, panels, _ in shown])
    overlaid = [_overlaid(members) for members in groups]
    tones = zip((source.label for source, _, _ in shown), SERIES_TONES, strict=False)
    return Figure(
        name=name,
        title=KINDS[name].title,
        conclusions=tuple(f"{source.label}: {text}" if several else text for source, _, text in shown if text),
        about="; ".join([*([overlaid[0].picture.about] if len(overlaid) == 1 else []), *left_out]),
        sources=tuple(_source_words(source) for source, _, _ in shown),
        panels=tuple(overlaid),
        legend=tuple(tones) if any(len(members) > 1 for members in groups) else (),
        tables=tuple(map(_table, groups)),
        pictures=tuple(
            one.picture for _, panels, _ in shown for one in panels if not (several and isinstance(one.picture, Bars))
        ),
    )


def sources(origins: Sequence[Origin]) -> list[Origin]:
    """Origins with different labels: the user's label or the GPU's name and, if needed, the GPU's index, the date or
    the run's id. SIMULATED or REFERENCE follows if the run was not measured on this machine."""
    ways = ((), (_index,), (_started,), (_index, _started), (_index, lambda one: _short(one.run.run_id)))
    labels: list[str] = []
    for way in ways:
        labels = []
        for one in origins:
            name = _short(one.label) or _gpu_name(one.evidence)
            label = " · ".join((name, *(part(one.evidence) for part in way)))
            mark = mark_of(one.evidence.run, reference=one.reference)
            labels.append(label if mark in label else f"{label} · {mark}")
        if len(set(labels)) == len(labels):
            break
    else:
        labels = [f"{label} · {place}" for place, label in enumerate(labels, 1)]
    return [one._replace(label=label) for label, one in zip(labels, origins, strict=True)]


def _source_words(source: Origin) -> str:
    """The GPU, the driver, the date and the version of microbench behind the data."""
    label, evidence = source.label, source.evidence
    words = [label, *([] if _gpu_name(evidence) in label else [_gpu_name(evidence)])]
    for session in evidence.run.sessions[-1:]:
        driver = session.environment.driver_version
        words += [f"driver {_short(driver)}"] if driver else []
        words += [] if _started(evidence) in label else [_started(evidence)]
        words.append(f"microbench {_short(session.tool_version)}")
    return " · ".join(words)


def _short(text: str) -> str:
    return plain(text, LONGEST_LABEL)


def _gpu_name(evidence: Evidence) -> str:
    return _short(evidence.gpu.name) if evidence.gpu is not None else "no GPU"


def _index(evidence: Evidence) -> str:
    return f"GPU {evidence.gpu.index if evidence.gpu is not None else 0}"


def _started(evidence: Evidence) -> str:
    return _short(evidence.run.sessions[-1].started_at[:16].replace("T", " ")) if evidence.run.sessions else ""


def _groups(shown: Sequence[tuple[str, Sequence[Panel]]]) -> list[list[Member]]:
    """Panels by their title, in the order of the first run that has each; time lines by the label of their run."""
    groups: dict[str, list[Member]] = {}
    for (label, panels), tone in zip(shown, SERIES_TONES, strict=False):
        for panel in panels:
            key = label if isinstance(panel.picture, TimeLine) else panel.picture.title
            groups.setdefault(key, []).append((label, tone, panel))
    return list(groups.values())


def _overlaid(members: Sequence[Member]) -> Panel:
    label, _, first = members[0]
    if isinstance(first.picture, TimeLine) and label:
        return first._replace(picture=replace(first.picture, title=label))
    if len(members) == 1:
        return first
    curves = [(tone, panel.picture) for _, tone, panel in members if isinstance(panel.picture, Curve)]
    bars = [(tone, panel.picture) for _, tone, panel in members if isinstance(panel.picture, Bars)]
    if curves:
        picture: Curve | Bars = _overlaid_curves(curves)
    else:  # bars with the same label become neighbours
        by_label: dict[str, list[Bar]] = {}
        for tone, one in bars:
            for bar in one.bars:
                by_label.setdefault(bar.label, []).append(replace(bar, tone=tone))
        picture = replace(bars[0][1], bars=tuple(bar for group in by_label.values() for bar in group))
    if len({panel.picture.about for _, _, panel in members}) > 1:  # it names figures of one run
        picture = replace(picture, about="")
    return first._replace(picture=picture)


def _overlaid_curves(members: Sequence[tuple[Tone, Curve]]) -> Curve:
    """The main lines of several curves over common axes, without their marks."""
    lines = []
    for tone, curve in members:  # those without a name, or else the first series, limits and points
        nameless = [line for line in curve.lines if not line.name]
        named = [line for line in curve.lines if line.tone == "first" or line.kind in ("limit", "points")]
        lines += [replace(line, tone=tone) for line in nameless or named or curve.lines]
    own = [line for line in lines if line.kind != "limit"]
    if len({line.name for line in own}) == 1:  # the legend says which run it is
        own = [replace(line, name="") for line in own]
    by_name: dict[str, Line] = {}
    for line in (line for line in lines if line.kind == "limit"):
        # A limit that several runs share is drawn once, in no run's colour.
        other = by_name.get(line.name)
        longest = line if other is None or line.points[-1][0] > other.points[-1][0] else other
        by_name[line.name] = longest if other is None else replace(longest, tone="quiet")
    limits = list(by_name.values())
    highest = max(y for line in (*limits, *own) for _, y in line.points) * BEYOND
    first = members[0][1]
    y_ticks = _ticks([curve.y_ticks for _, curve in members], log=first.y_log)
    return replace(
        first,
        lines=(*own, *limits),
        x_ticks=_ticks([curve.x_ticks for _, curve in members], log=first.x_log),
        y_ticks=tuple(tick for tick in y_ticks if tick.at <= highest),
        marks=(),
    )


def _ticks(several: Sequence[tuple[Mark, ...]], *, log: bool) -> tuple[Mark, ...]:
    """All ticks of a logarithmic axis; of a linear axis those of the curve that reaches furthest."""
    if not log:
        return max(several, key=lambda ticks: max((tick.at for tick in ticks), default=0.0))
    every = {tick.at: tick for ticks in several for tick in ticks}
    return tuple(every[at] for at in sorted(every))


def _table(members: Sequence[Member]) -> Table:
    picture = members[0][2].picture
    if isinstance(picture, Bars):  # a row for each bar; of several runs the first figure of each
        if len(members) == 1:
            return bars_table(picture, "strong")
        pictures = [(label, panel.picture) for label, _, panel in members if isinstance(panel.picture, Bars)]
        cells = {(bar.label, label): bar.cells[0] for label, one in pictures for bar in one.bars}
        return matrix(picture.title, picture.about, {label: label for label, _ in pictures}, cells)
    if not isinstance(picture, TimeLine):
        return _point_table(members)
    rows = []  # when each named span begins and how long it takes
    for lane in picture.lanes:
        for span in lane.spans:
            words = (" ".join(lane.name.split()), span.text, as_time(span.begin_s), as_time(span.end_s - span.begin_s))
            rows += [tuple(map(Cell, words))] if span.text else []
    titles = document.columns("lane", "what", "begins", "takes", left=2)
    return Table(picture.title, picture.about, titles, tuple(rows))


def _point_table(members: Sequence[Member]) -> Table:
    """A row for each place on the axis, a column for each line."""
    first = members[0][2]
    lines = [
        (", ".join(filter(None, (label, line.name))) or "value", panel.y_words, dict(line.points))
        for label, _, panel in members
        if isinstance(panel.picture, Curve)
        for line in panel.picture.lines
        if line.kind in ("measured", "points")
    ]
    xs = sorted({x for _, _, points in lines for x in points})
    step = max(1, -(-len(xs) // MOST_ROWS))
    names = dict(enumerate(name for name, _, _ in lines))
    cells = {
        (x, index): Cell(words(points[x])) if x in points else NOTHING
        for x in xs[::step]
        for index, (_, words, points) in enumerate(lines)
    }
    picture = first.picture
    corner = Column(picture.x_title if isinstance(picture, Curve) else "", "left")
    return matrix(picture.title, picture.about, names, cells, first.x_words, corner)


def available(run: Run) -> list[str]:
    """The names of the figures that a run has rows for."""
    groups = evidence_by_device(run)
    return [name for name in KINDS if any(_pictures(name, one) for one in groups)]


def sheet(name: str, run: Run, *, reference: bool = False) -> document.Report | None:
    """A figure for the terminal, with a section for each GPU that has its rows; None if no GPU has them."""
    groups = evidence_by_device(run)
    sections = []
    for group in groups:
        title = f"{name}: {KINDS[name].title}"
        if len(groups) > 1 and group.gpu is not None:
            title += f" · GPU {group.gpu.index}, {group.gpu.name}"
        if pictures := _pictures(name, group):
            sections.append(document.Section(name, title, tuple(pictures), (), ()))
    return replace(head(run, reference=reference), sections=tuple(sections)) if sections else None


def _pictures(name: str, evidence: Evidence) -> list[document.Picture]:
    panels, _, tables = GATHERED[name](evidence)
    return [*(panel.picture for panel in panels), *(table for table in tables if table is not None)]
