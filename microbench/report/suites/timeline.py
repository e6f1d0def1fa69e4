"""Draws a predicted step to scale: host, queue, GPU and copy engines, in a stream and below it as a graph."""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from microbench.analysis.evidence import sentence
from microbench.analysis.graph_steps import kernels_in_words
from microbench.core.units import as_time, percent
from microbench.model import words
from microbench.model.forecast import Forecast
from microbench.model.model import Act, Played, Work, acts
from microbench.model.model import Span as PlayedSpan
from microbench.model.workload import Workload
from microbench.report.curves import nice_step, short
from microbench.report.document import Lane, Mark, Span, TimeLine, Tone

HOST: Tone = "first"
GPU: Tone = "second"
LINK: Tone = "third"
OWN: Tone = "plain"


Shade = Literal["solid", "shaded", "pale"]


class Step(NamedTuple):
    """A step submitted one way ("stream" or "graph"): the host's acts, and when each of them ran."""

    name: str
    acts: tuple[Act, ...]
    played: Played


class Item(NamedTuple):
    """A kernel or copy: where and when it ran, its work, and when it reached the GPU."""

    lane: str
    begin_s: float
    end_s: float
    work: Work
    ready_s: float


def items(step: Step) -> list[Item]:
    """Kernels and copies in the order of their submission.

    Kernels of one stream never overlap. A profiler's duration may be longer than the period of a chain; the kernel then
    ends where the next one begins.
    """
    called = {span.act: span.end_s for span in step.played.host if span.lane == "host"}
    works = (work for act in step.acts for work in act.work if isinstance(work, Work))
    ran: list[Item] = []
    latest: dict[int, int] = {}  # the place of each stream's last kernel
    for span, work in zip(step.played.work, works, strict=True):
        act = step.acts[span.act]
        if span.lane == "gpu":
            stream = act.stream + work.branch
            if (place := latest.get(stream)) is not None:
                ran[place] = ran[place]._replace(end_s=min(ran[place].end_s, span.begin_s))
            latest[stream] = len(ran)
        ran.append(Item(span.lane, span.begin_s, span.end_s, work, called[span.act] - work.early_s + act.way_s))
    return ran


INDENT = " " * 7
ENGINES = ("h2d", "d2h")
# Up to MOST_ROWS concurrent kernels have a line each; of more, one line shows their number.
MOST_ROWS = 4
# More stretches than this cannot be told apart.
MOST_STRETCHES = 40
# A gap between kernels is drawn if it is longer than APART of the step, or longer than LEAST_APART of it and than
# UNUSUAL times the median gap.
APART, LEAST_APART, UNUSUAL = 0.03, 0.01, 3.0
# A GPU that is busy for more than this share of a stretch is drawn as busy throughout.
ALL = 0.995
# Rounding makes sums of the same seconds differ by less than this.
ROUNDING_S = 1e-12


def lanes_of(step: Step, *, merged: bool) -> list[Lane]:
    """Host, queue, GPU and copy engines: every call, kernel and copy by itself, or ``merged`` into stretches."""
    ran = items(step)
    kernels = [item for item in ran if item.lane == "gpu"]
    host = _host_merged(step) if merged else _host(step)
    gpu = _gpu_merged(step, kernels, ran) if merged else _gpu(step, kernels, ran)
    # How many kernels and copies have reached the GPU and wait for their turn.
    waiting = [(one.ready_s, one.begin_s) for one in ran if one.begin_s > one.ready_s + ROUNDING_S]
    copies = {way: [Span(one.begin_s, one.end_s, "copy", LINK) for one in ran if one.lane == way] for way in ENGINES}
    links = [Lane(f"{INDENT}{way}", tuple(spans)) for way, spans in copies.items() if spans]
    return [Lane(f"{step.name.ljust(6)} host", tuple(host)), _levels("queue", waiting, HOST), *gpu, *links]


def _host(step: Step) -> Iterator[Span]:
    """Every call, launches with their number; pale where the host waits."""
    number, before_s = 0, 0.0
    for span in step.played.host:
        act = step.acts[span.act]
        if span.begin_s > before_s:
            yield Span(before_s, span.begin_s, "queue full", HOST, "pale")
        number += act.kind == "launch"
        words, tone = {
            "launch": (str(number), HOST), "replay": ("replay", HOST), "sync": ("", HOST),
            "host": ("own work", OWN), "copy": ("copy", HOST) if act.work else ("pageable copy", LINK),
        }[act.kind] if span.lane != "wait" else (_wait_words(step), HOST)  # fmt: skip
        pale = span.lane == "wait" or act.kind == "sync"
        yield Span(span.begin_s, span.end_s, words, tone, "pale" if pale else "solid")
        before_s = span.end_s


def _wait_words(step: Step) -> str:
    kinds = [act.kind for act in step.acts]
    return "one replay, then synchronise" if kinds == ["replay", "sync"] else "synchronise"


def _host_merged(step: Step) -> list[Span]:
    """Calls without a wait between them as one stretch; the whole step as one if there are too many stretches."""
    doing: list[tuple[str, PlayedSpan]] = []
    before_s = 0.0
    for span in step.played.host:
        act = step.acts[span.act]
        what: str = act.kind
        if what not in ("sync", "host", "copy") or (what == "copy" and act.work):
            # Only a full queue separates a call from what the host did before.
            what = "held up" if span.begin_s > before_s else "calls"
        doing.append((what, span))
        before_s = span.end_s
    groups = [(what, [span for _, span in pairs]) for what, pairs in itertools.groupby(doing, key=lambda pair: pair[0])]
    if len(groups) > MOST_STRETCHES:
        calls = sum(what in ("calls", "held up") for what, _ in doing)
        waits = sum(span.lane == "wait" for _, span in doing)
        words = f"{calls} calls, {waits} synchronises" if waits else f"{calls} calls"
        return [Span(0.0, doing[-1][1].end_s, words, HOST, "shaded")]
    stretches, begin_s = [], 0.0
    for what, spans in groups:
        count = len(spans)
        words, tone = {
            "calls": (f"{count} calls" if count > 1 else "", HOST), "sync": (_wait_words(step), HOST),
            "held up": (f"{count} calls, each when the full queue has room", HOST),
            "copy": ("pageable copy", LINK), "host": ("own work", OWN),
        }[what]  # fmt: skip
        kind: Shade = "pale" if what == "sync" else "shaded" if what == "held up" else "solid"
        stretches.append(Span(begin_s, spans[-1].end_s, words, tone, kind))
        begin_s = spans[-1].end_s
    return stretches


def _gpu(step: Step, kernels: Sequence[Item], ran: Sequence[Item]) -> list[Lane]:
    """Kernels by number, each on the first line that is free when it begins; too many lines as one of their number."""
    idle = _idle(step, kernels, ran, 0.0)
    rows: list[list[Span]] = [[]]
    for number, one in sorted(enumerate(kernels, start=1), key=lambda pair: pair[1].begin_s):
        free = next((row for row in rows if not row or row[-1].end_s <= one.begin_s + ROUNDING_S), None)
        if free is None:
            rows.append(free := [])
        free.append(Span(one.begin_s, one.end_s, str(number) if one.end_s > one.begin_s else "", GPU))
    if len(rows) > MOST_ROWS:
        return [_levels("GPU", [(one.begin_s, one.end_s) for one in kernels], GPU, idle)]
    first, *others = rows
    return [Lane(f"{INDENT}GPU", (*idle, *first)), *(Lane("", tuple(row)) for row in others)]


def _gpu_merged(step: Step, kernels: Sequence[Item], ran: Sequence[Item]) -> list[Lane]:
    gaps = [later.begin_s - earlier.end_s for earlier, later in itertools.pairwise(kernels)]
    usual_s = UNUSUAL * statistics.median(gaps) if gaps else 0.0
    near_s = min(max(usual_s, step.played.end_s * LEAST_APART), step.played.end_s * APART)  # a longer gap is drawn
    busy = [_busy(stretch, kernels) for stretch in _stretches(kernels, near_s)]
    return [Lane(f"{INDENT}GPU", (*_idle(step, kernels, ran, near_s), *busy))]


def _levels(name: str, intervals: Sequence[tuple[float, float]], tone: Tone, behind: Sequence[Span] = ()) -> Lane:
    """A lane whose height is the number of intervals at a time; its name ends with the highest number."""
    counted = _counted(intervals)
    most = max((count for _, _, count in counted), default=0)
    spans = [Span(begin_s, end_s, "", tone, "level", count / most) for begin_s, end_s, count in counted]
    return Lane(f"{INDENT}{name} 0–{most}" if most else f"{INDENT}{name}", (*behind, *spans))


def _counted(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float, int]]:
    """Begin, end and number of intervals of each stretch of time that any interval covers."""
    changes: dict[float, int] = {}
    for begin_s, end_s in intervals:
        changes[begin_s] = changes.get(begin_s, 0) + 1
        changes[end_s] = changes.get(end_s, 0) - 1
    stretches, count = [], 0
    for begin_s, end_s in itertools.pairwise(sorted(changes)):
        count += changes[begin_s]
        if count:
            stretches.append((begin_s, end_s, count))
    return stretches


def _stretches(ran: Sequence[Item], near_s: float) -> list[list[Item]]:
    """Work in the order of its begin, split where nothing runs for longer than ``near_s``."""
    stretches: list[list[Item]] = []
    until_s = 0.0
    for item in sorted(ran, key=lambda item: item.begin_s):
        if stretches and item.begin_s - until_s <= near_s:
            stretches[-1].append(item)
        else:
            stretches.append([item])
        until_s = max(until_s, item.end_s)
    return stretches


def _busy(stretch: Sequence[Item], kernels: Sequence[Item]) -> Span:
    """Kernels as one stretch with their number; if these are all kernels, also the share of it with one running."""
    begin_s, end_s = stretch[0].begin_s, max(one.end_s for one in stretch)
    if len(stretch) == 1:
        return Span(begin_s, end_s, "", GPU)
    words, busy = f"{len(stretch)} kernels", 0.0
    if len(stretch) == len(kernels) and end_s > begin_s:
        counted = _counted([(one.begin_s, one.end_s) for one in stretch])
        most = max((count for _, _, count in counted), default=0)
        words += f", up to {most} at once" if most > 1 else ""
        busy = sum(end - begin for begin, end, _ in counted) / (end_s - begin_s)
        words += f", busy {percent(busy)} of this time" if busy < ALL else ""
    return Span(begin_s, end_s, words, GPU, "shaded" if busy < ALL else "solid")


def _idle(step: Step, kernels: Sequence[Item], ran: Sequence[Item], near_s: float) -> list[Span]:
    """When no kernel runs, and what the next kernel waits for."""
    gaps: list[Span] = []
    until_s = 0.0
    copies = [one.end_s for one in ran if one.lane != "gpu"]
    for stretch in _stretches(kernels, near_s):
        first = stretch[0]
        if first.begin_s > until_s:
            begun_s = first.begin_s - first.work.gap_s
            words = "waits for a copy" if any(abs(end_s - begun_s) < ROUNDING_S for end_s in copies) else ""
            words = "waits for the host" if first.begin_s <= first.ready_s + ROUNDING_S else words
            gaps.append(Span(until_s, first.begin_s, words, "quiet", "idle"))
        until_s = max(one.end_s for one in stretch)
    if until_s < step.played.end_s:
        gaps.append(Span(until_s, step.played.end_s, "", "quiet", "idle"))
    return gaps


# A step of at most MOST_DRAWN calls, kernels or copies (twelve kernels and a wait) is drawn whole. A longer one has two
# pictures: its first BEGINNING kernels, and all of it in stretches.
MOST_DRAWN = 13
BEGINNING = 8
# If the first kernel comes after LATE of the beginning, that picture begins shortly before the kernel.
LATE, BEFORE = 0.5, 0.1
ABOUT = "to scale; predicted, not a recording; queue: what waits before the GPU"
# Steps that differ by less than this share take equally long.
ALIKE = 0.001
# Behind each step; the last one is left out.
BLANK = Lane("", ())


def pictures(predicted: Forecast, what: str) -> list[TimeLine]:
    """The whole step; of a long one also its beginning, with each call and kernel. ``what`` names the step."""
    steps = [
        Step(way.way, tuple(acts(predicted.filled, predicted.fit.values, way.way)), way.played)
        for way in (predicted.stream, predicted.graph)
        if way is not None
    ]
    end_s = max(step.played.end_s for step in steps)
    about = "; ".join((ABOUT, *words.drawn_as(predicted)))
    if max(max(len(step.acts), len(step.played.work)) for step in steps) <= MOST_DRAWN:
        lanes = [lane for step in steps for lane in (*lanes_of(step, merged=False), _length(predicted, step), BLANK)]
        ways = "in a stream and as a graph" if len(steps) > 1 else "in a stream"
        return [TimeLine(f"{sentence(what)}, {ways}", about, end_s, time_ticks(end_s), tuple(lanes[:-1]))]
    # The stretch in which the first kernels run; of a step without kernels, the first copies.
    stream = steps[0].played
    ran = [span for span in stream.work if span.lane == "gpu"] or list(stream.work)
    from_s, until_s = 0.0, ran[:BEGINNING][-1].end_s if ran else stream.end_s
    if ran and ran[0].begin_s > LATE * until_s:
        from_s = ran[0].begin_s - BEFORE * (until_s - ran[0].begin_s)
    first = [lane for step in steps for lane in (*_cut(lanes_of(step, merged=False), from_s, until_s), BLANK)]
    whole = [lane for step in steps for lane in (*lanes_of(step, merged=True), _length(predicted, step), BLANK)]
    length_s, title = until_s - from_s, "The whole step, its calls and kernels in stretches"
    begins = f"{as_time(length_s)} of {what}, from its first kernel on"
    begins = begins if from_s else f"The first {as_time(length_s)} of {what}"
    return [
        TimeLine(begins, about, length_s, time_ticks(length_s, from_s), tuple(first[:-1])),
        TimeLine(title, about, end_s, time_ticks(end_s), tuple(whole[:-1])),
    ]


def in_words(workload: Workload) -> str:
    """The step in words for a title below one that names it."""
    step = words.alike(workload)
    return "the step" if step is None else f"a step of {kernels_in_words(step.count, step.durations_s[0])}"


def time_ticks(length_s: float, from_s: float = 0.0) -> tuple[Mark, ...]:
    """The ticks of an axis of time; the first says when it begins, if that is not at 0."""
    step_s = nice_step(length_s / 5) if length_s > 0 else math.inf
    sign = "+" if from_s else ""
    ticks = [Mark(0.0, as_time(from_s) if from_s else short(0.0, "s"))]
    for index in range(1, int(length_s / step_s) + 1):
        ticks.append(Mark(index * step_s, sign + short(index * step_s, "s")))
    return tuple(ticks)


def _cut(lanes: Sequence[Lane], from_s: float, until_s: float) -> Iterator[Lane]:
    """The part of each lane between two times, which then begins at 0; idle copy engines are left out."""
    for lane in lanes:
        spans = tuple(
            replace(span, begin_s=max(span.begin_s - from_s, 0.0), end_s=min(span.end_s, until_s) - from_s)
            for span in lane.spans
            if span.begin_s < until_s and span.end_s > from_s
        )
        if spans or lane.name.strip() not in ENGINES:
            yield Lane(lane.name, spans)


def _length(predicted: Forecast, step: Step) -> Lane:
    """How long the step takes and, if it is shorter than in the stream, what that saves."""
    prediction = predicted.stream if predicted.graph is None or step.name == predicted.stream.way else predicted.graph
    words = as_time(step.played.end_s)
    if prediction.step_s < step.played.end_s * (1 - ALIKE):
        words += f", {as_time(prediction.step_s)} where steps follow one another"
    spans = [Span(0.0, step.played.end_s, words, "plain", "distance")]
    stream_s = predicted.stream.played.end_s
    if step.played.end_s < stream_s:
        saved = f"saves {as_time(stream_s - step.played.end_s)}"
        spans.append(Span(step.played.end_s, stream_s, saved, "good", "distance"))
    return Lane("", tuple(spans))
