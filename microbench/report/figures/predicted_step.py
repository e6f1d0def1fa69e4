"""Step: a short step to scale as it is predicted, in a stream and as a graph: host, queue and GPU."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from microbench.core.units import as_time
from microbench.predict import timeline
from microbench.predict.fit import fit
from microbench.predict.forecast import forecast
from microbench.report.document import Cell, Column, Lane, Span, Table, TimeLine
from microbench.report.figures import theme
from microbench.report.figures.figure import Drawing, Source, first_title
from microbench.report.figures.theme import CHARACTER
from microbench.report.suites.graph import DRAWN, step

TITLE = "A short step, predicted"
TONES = ("first", "second", "third")
LANE, BAR = 26.0, 16.0
OPACITY = {"solid": 1.0, "shaded": 0.7, "pale": 0.25, "level": 0.45, "idle": 0.12, "distance": 0.0}


def draw(sources: Sequence[Source]) -> Drawing | None:
    """A view for each run that has the costs it takes."""
    found = [(one, line) for one in sources if (line := step(one.evidence)) is not None]
    if not found:
        return None
    end_s = max(line.end_s for _, line in found)
    views = [_view(one.label if len(found) > 1 else None, line, end_s) for one, line in found]
    told = [(one, _conclusion(one)) for one, _ in found]
    about = f"{found[0][1].title}; {found[0][1].about}"
    return Drawing(told, about, _table(found), alt.vconcat(*views) if len(views) > 1 else views[0])


def _conclusion(source: Source) -> str:
    evidence = source.evidence
    return first_title(timeline.findings(evidence, forecast(DRAWN, fit(evidence))))


def _view(label: str | None, line: TimeLine, end_s: float) -> alt.LayerChart:
    height = LANE * len(line.lanes)
    rows = [_row(place, lane, span) for place, lane in enumerate(line.lanes) for span in lane.spans]
    axis, scale = theme.axis(line.ticks), alt.Scale(domain=[0, end_s], nice=False)
    begin, end, centre = (alt.X(f"{field}:Q", scale=scale, axis=axis) for field in ("x", "x2", "centre"))
    base = alt.Chart().encode(x=begin, y=_y("y", height), tooltip=_tooltip())
    bars = base.encode(x2="x2:Q", y2="y2:Q", opacity=alt.Opacity("opacity:Q", scale=None))
    lengths = base.transform_filter("datum.kind === 'distance'").encode(y=_y("middle", height))
    layers = (
        bars.transform_filter("datum.series === ''").mark_rect(style="quiet-bar"),
        bars.transform_filter("datum.series !== ''").mark_rect(cornerRadius=1).encode(color=theme.colours(TONES)),
        lengths.encode(x2="x2:Q").mark_rule(style="length"),
        *(lengths.encode(x=at).mark_tick(style="length", size=9) for at in (begin, end)),
        *_words(base.encode(x=centre, y=_y("middle", height), text="text:N"), end_s),
        _names(line.lanes, height),
    )
    return theme.layered(layers, theme.view_width(theme.BESIDE_AXIS), height, rows, title=label)


def _y(field: str, height: float) -> alt.Y:
    """Pixels from the top."""
    return alt.Y(f"{field}:Q", scale=alt.Scale(domain=[0, height], reverse=True, nice=False), axis=None)


def _tooltip() -> list[alt.Tooltip]:
    titles = {"lane": " ", "text": " ", "from": "from", "takes": "takes"}
    return [alt.Tooltip(f"{field}:N", title=words) for field, words in titles.items()]


def _name(lane: Lane) -> str:
    """Terminals indent it."""
    return " ".join(lane.name.split())


def _row(place: int, lane: Lane, span: Span) -> theme.Row:
    """A span in pixels from the top: counts are as high as they say."""
    high = BAR * span.level
    bottom = LANE * place + (LANE + BAR) / 2
    return {
        "lane": _name(lane),
        "x": span.begin_s,
        "x2": span.end_s,
        "centre": (span.begin_s + span.end_s) / 2,
        "y": bottom - high,
        "y2": bottom,
        "middle": bottom - BAR / 2,
        "text": span.text,
        "kind": span.kind,
        "opacity": OPACITY[span.kind],
        theme.SERIES: span.tone if span.tone in TONES else "",
        "from": as_time(span.begin_s),
        "takes": as_time(span.end_s - span.begin_s),
    }


def _words(text: alt.Chart, end_s: float) -> list[alt.Chart]:
    """What a span says, where the page is wide enough for it: in its middle, on what is solid in the ground's colour;
    above a length."""
    wide = f"(datum.x2 - datum.x) / {end_s} * item.mark.group.width > {CHARACTER} * length(datum.text)"
    seen = alt.expr(f"{wide} ? 1 : 0")
    kinds = {"solid": "datum.kind === 'solid'", "length": "datum.kind === 'distance'"}
    other = f"!({' || '.join(kinds.values())})"
    return [
        text.transform_filter(kinds["solid"]).mark_text(style="on-bar", opacity=seen),
        text.transform_filter(kinds["length"]).mark_text(dy=-8, opacity=seen),
        text.transform_filter(other).mark_text(opacity=seen),
    ]


def _names(lanes: Sequence[Lane], height: float) -> alt.Chart:
    rows: list[theme.Row] = [{"y": LANE * (place + 0.5), "text": _name(lane)} for place, lane in enumerate(lanes)]
    chart = alt.Chart(theme.data(rows)).mark_text(style="muted", align="right", dx=-8)
    placed: alt.Chart = chart.encode(x=alt.value(0), y=_y("y", height), text="text:N")
    return placed


def _table(found: Sequence[tuple[Source, TimeLine]]) -> Table:
    """When each span begins and ends."""
    columns = (Column("run", "left"), Column("lane", "left"), Column("what", "left"), Column("begins"), Column("takes"))
    rows = tuple(
        (Cell(one.label), Cell(_name(lane)), Cell(span.text), Cell(as_time(span.begin_s)),
         Cell(as_time(span.end_s - span.begin_s)))
        for one, line in found
        for lane in line.lanes
        for span in lane.spans
        if span.text
    )  # fmt: skip
    return Table(TITLE, found[0][1].about, columns, rows)
