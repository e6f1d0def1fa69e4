"""A step of kernels drawn to scale from measured costs: host and GPU, in a stream above the same as a graph."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import msgspec

from microbench.costmodel import Interval, Schedule
from microbench.errors import RunUnreadableError, UsageError
from microbench.explain import timeline
from microbench.explain.evidence import Evidence, evidence_by_device
from microbench.explain.graph_gain import kernels_in_words, title_of
from microbench.explain.graph_step import StepCosts, layers, missing, step_costs
from microbench.model import Run
from microbench.ops import LOOP_LAYER
from microbench.report.curves import nice_step, short
from microbench.report.document import Lane, Mark, Report, Section, Span, TimeLine, Tone
from microbench.report.heading import head
from microbench.text import plain
from microbench.units import as_time, percent

# Up to so many kernels each is drawn; of a longer step its beginning is, and the whole in one stretch.
MOST_DRAWN = 12
BEGINNING = 8
HOST: Tone = "first"
GPU: Tone = "second"
NOT_RECORDED = "drawn from measured costs, not a recording"


def pictures(costs: StepCosts, duration_s: float) -> list[TimeLine]:
    """The whole step; of many kernels also the beginning, where each can be seen."""
    stream, graph = costs.schedules(duration_s)
    what = f"{kernels_in_words(costs.kernels, duration_s)}"
    both = ((stream, "stream"), (graph, "graph"))
    if costs.kernels <= MOST_DRAWN:
        drawn = [lane for one, name in both for lane in _each(one, name, stream.end_s)]
        return [_picture(f"A step of {what}, in a stream and as a graph", drawn, stream, graph)]
    until_s = stream.kernels[BEGINNING - 1][1]
    cut = [lane for one, name in both for lane in _each(_until(one, until_s), name, until_s, whole=False)]
    merged = [lane for one, name in both for lane in _merged(one, name, stream.end_s)]
    title = f"The first {as_time(until_s)} of a step of {what}"
    whole = _picture("The whole step, its calls and kernels in one stretch each", merged, stream, graph)
    return [_line(title, until_s, cut), whole]


def _picture(title: str, lanes: Sequence[Lane], stream: Schedule, graph: Schedule) -> TimeLine:
    return _line(title, max(stream.end_s, graph.end_s), lanes)


def _line(title: str, end_s: float, lanes: Sequence[Lane]) -> TimeLine:
    step_s = nice_step(end_s / 5)
    ticks = tuple(Mark(index * step_s, short(index * step_s, "s")) for index in range(int(end_s / step_s) + 1))
    # The last lane is the empty one that parts stream and graph.
    return TimeLine(title, f"to scale; {NOT_RECORDED}", end_s, ticks, tuple(lanes[:-1]))


def _until(one: Schedule, until_s: float) -> Schedule:
    """What begins before ``until_s``, cut off there."""

    def cut(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
        return tuple((begin, min(end, until_s)) for begin, end in intervals if begin < until_s)

    return Schedule(cut(one.calls), cut(one.kernels), min(one.end_s, until_s))


def _each(one: Schedule, name: str, stream_s: float, *, whole: bool = True) -> list[Lane]:
    """Every call and every kernel by its number, and how long the step takes; an empty lane behind."""
    replay = name == "graph"
    calls = [Span(*call, "" if replay else str(number), HOST) for number, call in enumerate(one.calls, start=1)]
    kernels = [
        Span(begin, end, str(number) if end > begin else "", GPU)
        for number, (begin, end) in enumerate(one.kernels, start=1)
    ]
    ends = [0.0, *(end for _, end in one.kernels)]
    idle = [Span(end, begin, "", "quiet", "idle") for end, (begin, _) in zip(ends, one.kernels, strict=False)]
    waits = "one replay, then synchronise" if replay else "synchronise"
    waiting = [Span(one.calls[-1][1], one.end_s, waits, HOST, "pale")]
    if one.kernels and one.kernels[-1][1] < one.end_s:
        idle.append(Span(one.kernels[-1][1], one.end_s, "", "quiet", "idle"))
    lanes = [
        Lane(f"{name.ljust(6)} host", (*(waiting if waiting[0].begin_s < one.end_s else ()), *calls)),
        Lane("       GPU", (*idle, *kernels)),
    ]
    return [*lanes, *([_length(one, stream_s)] if whole else []), Lane("", ())]


def _merged(one: Schedule, name: str, stream_s: float) -> list[Lane]:
    """All calls and all kernels in one stretch each."""
    calls, kernels = len(one.calls), len(one.kernels)
    begin_s, end_s = one.kernels[0][0], one.kernels[-1][1]
    called_s = one.calls[-1][1]
    busy = sum(end - begin for begin, end in one.kernels) / (end_s - begin_s) if end_s > begin_s else 0.0
    host = (
        Span(0.0, called_s, f"{calls} calls" if calls > 1 else "", HOST),
        Span(called_s, one.end_s, "synchronise", HOST, "pale"),
    )
    gpu = (
        Span(0.0, begin_s, "", "quiet", "idle"),
        Span(begin_s, end_s, f"{kernels} kernels, {percent(busy)} busy", GPU, "shaded"),
        Span(end_s, one.end_s, "", "quiet", "idle"),
    )
    return [Lane(f"{name.ljust(6)} host", host), Lane("       GPU", gpu), _length(one, stream_s), Lane("", ())]


def _length(one: Schedule, stream_s: float) -> Lane:
    """How long the step takes and, where it is shorter than the stream's, what that saves."""
    spans = [Span(0.0, one.end_s, as_time(one.end_s), "plain", "distance")]
    if one.end_s < stream_s:
        saved = f"−{as_time(stream_s - one.end_s)}"
        spans.append(Span(one.end_s, stream_s, saved, "good", "distance"))
    return Lane("", tuple(spans))


def drawable(run: Run) -> bool:
    """Whether a run has the figures that a step is computed from, on any of its GPUs."""
    return any(not missing(evidence) for evidence in evidence_by_device(run))


def sheet(run: Run, duration_s: float, kernels: int, layer: str = LOOP_LAYER, *, reference: bool = False) -> Report:
    """The step drawn from a run's figures, and what it means, under the heading that says whose they are.

    Raises UsageError for a layer that the run did not measure, RunUnreadableError where figures are missing.
    """
    evidence = _evidence(run, layer)
    costs = step_costs(evidence, kernels, layer)
    if costs is None:
        benchmarks = missing(evidence, layer)
        into = [] if reference else ["--into", run.run_id]  # nobody adds to a bundled run
        raise RunUnreadableError(
            f"run {run.run_id} has no figures of {', '.join(benchmarks)}, which the drawing is computed from",
            f"microbench run {' '.join([*benchmarks, *into])} measures them",
        )
    title = f"timeline: {kernels_in_words(kernels, duration_s)} from {title_of(layer)}"
    found = timeline.findings(evidence, costs, duration_s, layer)
    drawn = pictures(costs, duration_s)
    section = Section(timeline.SUITE, title, tuple(drawn), (), tuple(found))
    return msgspec.structs.replace(
        head(run, reference=reference, footer=(f"costs from run {run.run_id}",)), sections=(section,)
    )


def _evidence(run: Run, layer: str) -> Evidence:
    """The first GPU with every figure, or the first one."""
    groups = evidence_by_device(run)
    chosen = next((one for one in groups if not missing(one, layer)), groups[0])
    known = layers(chosen)
    if layer not in known:
        near = difflib.get_close_matches(layer, known, n=1)
        raise UsageError(
            f"run {run.run_id} measured no launches through {plain(layer, 60)}",
            f"did you mean {near[0]}?" if near else f"choose one of {', '.join(known)}",
        )
    return chosen
