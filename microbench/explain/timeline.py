"""Explains a step computed from measured costs: how long it takes each way, what limits it, what was assumed."""

from __future__ import annotations

from microbench.costmodel import Schedule, period_s
from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.explain.graph_gain import LITTLE, kernels_in_words, title_of
from microbench.explain.graph_step import StepCosts, nearest
from microbench.units import as_time, percent, times

SUITE = "timeline"


def findings(evidence: Evidence, costs: StepCosts, duration_s: float, layer: str) -> list[Finding]:
    """What a drawn step means, in words."""
    stream, graph = costs.schedules(duration_s)
    return [
        _gain(evidence, costs, duration_s, layer, stream.end_s, graph.end_s),
        _limit(costs, duration_s, stream, graph),
        _origin(costs, layer),
    ]


def _gain(
    evidence: Evidence, costs: StepCosts, duration_s: float, layer: str, stream_s: float, graph_s: float
) -> Finding:
    ratio = stream_s / graph_s
    title = f"As a graph the step takes {as_time(graph_s)} instead of {as_time(stream_s)}: {times(ratio)}"
    if ratio < 1:
        title = f"As a graph the step takes longer: {as_time(graph_s)} instead of {as_time(stream_s)}"
    near = nearest(evidence, costs.kernels, duration_s, layer)
    text = "No measured step to hold it against: `microbench run graph_gain` measures them."
    if near is not None:
        pair, count = near.pair, near.kernels
        text = (
            f"Measured, the nearest step ({kernels_in_words(count, pair.duration_s)} from {title_of(layer)}): "
            f"{as_time(pair.stream.value * count)} in the stream, {as_time(pair.graph.value * count)} as a graph, "
            f"{times(pair.speedup)}."
        )
    return Finding(
        rule="timeline.gain",
        severity="good" if ratio > LITTLE else "note",
        title=title,
        text=text,
        threshold=f"computed, not measured; good above {LITTLE:g}×",
        rests_on=costs.rests_on + (rests_on(near.pair.stream, near.pair.graph) if near is not None else ()),
        suite=SUITE,
    )


def _limit(costs: StepCosts, duration_s: float, stream: Schedule, graph: Schedule) -> Finding:
    """Which part sets the pace of the stream, and what the graph does about it."""
    own_s = costs.own_s(duration_s)
    call_s, gpu_s = costs.stream.call_s, own_s + costs.stream.gap_s
    in_graph_s = period_s(costs.graph, own_s)
    if costs.kernels == 1:
        text = "One kernel waits for nothing but its own call, its way and its completion: there is no pace to limit."
    elif call_s > gpu_s:
        text = (
            f"In the stream the host is too slow: a call takes {as_time(call_s)}, the GPU only {as_time(gpu_s)} "
            f"(kernel {as_time(own_s)}, gap {as_time(costs.stream.gap_s)}), so it waits for each next kernel. "
            f"The graph asks for all with one call and needs {as_time(in_graph_s)} a kernel."
        )
    else:
        text = (
            f"In the stream the host keeps up: a call takes {as_time(call_s)}, the GPU {as_time(gpu_s)} (kernel "
            f"{as_time(own_s)}, gap {as_time(costs.stream.gap_s)}). The graph gains by its gap alone: "
            f"{as_time(costs.graph.gap_s)}, so {as_time(in_graph_s)} a kernel."
        )
    idle = [percent(one.idle_share) for one in (stream, graph)]
    return Finding(
        rule="timeline.limit",
        severity="note",
        title=f"The GPU idles for {idle[0]} of the step in the stream, for {idle[1]} in the graph",
        text=text,
        threshold="time per kernel in a stream is the longer of call and kernel + gap, in a graph kernel + gap",
        rests_on=costs.rests_on,
        suite=SUITE,
    )


def _origin(costs: StepCosts, layer: str) -> Finding:
    stream, graph = costs.stream, costs.graph
    return Finding(
        rule="timeline.origin",
        severity="note",
        title="Drawn from measured costs, not a recording",
        text=(
            f"Stream, from {title_of(layer)}: submit {as_time(stream.call_s)}, way to the GPU {as_time(stream.way_s)}, "
            f"gap {as_time(stream.gap_s)}. Graph: replay call {as_time(graph.call_s)}, way {as_time(graph.way_s)}, gap "
            f"{as_time(graph.gap_s)}. From a kernel's end to the synchronise's return: {as_time(stream.complete_s)}. "
            f"Assumed: {'; '.join(costs.assumed)}."
        ),
        threshold="medians of this run",
        rests_on=costs.rests_on,
        suite=SUITE,
    )
