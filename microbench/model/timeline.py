"""Turns a drawn step into findings: how much a graph gains, and what the GPU waits for."""

from __future__ import annotations

import itertools
import math

import msgspec

from microbench.analysis.evidence import Evidence, Finding, rests_on
from microbench.analysis.graph_steps import kernel_counts, kernels_in_words, usual_kernels
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import times
from microbench.model.forecast import Forecast, Prediction
from microbench.model.graph_pairs import Pair, pairs
from microbench.model.model import Limit, call_name
from microbench.model.words import gain, idle, used
from microbench.model.workload import Kernels, Wait, Workload

SUITE = "timeline"
# An empty kernel's own time, roughly: what keeps 0 on a logarithmic scale.
SHORTEST_S = 1e-7
# Two speed-ups within this ratio of one another are alike.
AGREES = 1.10
SHARES: dict[Limit, str] = {
    "host": "the host", "front end": "ways and gaps", "kernel": "kernels", "link": "copies", "sync": "waits",
}  # fmt: skip


class Measured(msgspec.Struct, frozen=True):
    """A measured step of graph_gain: how many kernels, and what each took both ways."""

    kernels: int
    pair: Pair


def nearest(evidence: Evidence, kernels: int, duration_s: float, layer: str = LOOP_LAYER) -> Measured | None:
    """The measured step whose kernels and duration lie nearest, by ratio; None if that layer was not measured."""
    count = usual_kernels(kernel_counts(evidence, layer), kernels)
    if count is None:
        return None
    pair = min(
        pairs(evidence, layer, count),
        key=lambda pair: abs(math.log(max(pair.duration_s, SHORTEST_S) / max(duration_s, SHORTEST_S))),
        default=None,
    )
    return None if pair is None else Measured(count, pair)


class Alike(msgspec.Struct, frozen=True):
    """A step of kernels of one length in a row, from one layer."""

    kernels: int
    duration_s: float
    layer: str
    arguments: int


def alike(workload: Workload) -> Alike | None:
    """The step, if it is that, in one stream and with at most one wait at its end; else None."""
    match workload.parts:
        case (Kernels() as part,) | (Kernels() as part, Wait()):
            plain = len(set(part.durations_s)) == 1 and not part.bytes and not part.host_s and workload.streams == 1
            layer = part.layer or workload.layer
            return Alike(part.count, part.durations_s[0], layer, part.arguments) if plain else None
    return None


def findings(evidence: Evidence, forecast: Forecast) -> list[Finding]:
    """What a drawn step means; the first finding is what the graph gives."""
    return [_gain(evidence, forecast), _limit(forecast)]


def _gain(evidence: Evidence, forecast: Forecast) -> Finding:
    """The predicted gain, compared with the measured step that is most like this one."""
    predicted, step = gain(forecast), alike(forecast.filled)
    near = nearest(evidence, step.kernels, step.duration_s, step.layer) if step is not None else None
    text, rows = "No measured step is like this one.", predicted.rests_on
    if near is not None:
        ratio = near.pair.speedup / forecast.speedup
        words = "less" if ratio < 1 / AGREES else "more" if ratio > AGREES else "about as much"
        text = f"The nearest measured step, {kernels_in_words(near.kernels, near.pair.duration_s)}, gains {words}."
        rows += rests_on(near.pair.stream, near.pair.graph)
    return msgspec.structs.replace(predicted, rule="timeline.gain", text=text, rests_on=rows)


def _limit(forecast: Forecast) -> Finding:
    """For how much of the step the GPU has no kernel, and why."""
    stream, graph = forecast.stream, forecast.graph
    title = f"The GPU idles for {idle(stream)} of the step in the stream"
    if graph is not None:
        title += f", for {idle(graph)} as a graph"
    step = alike(forecast.filled)
    full = "The launch queue is full, and further calls wait for room." if queue_full(stream) else ""
    text = f"{_pace(forecast, step) if step is not None else _path(forecast)} {full}".rstrip()
    threshold = (
        "the critical path, each moment by what it was spent on"
        if step is None
        else "time per kernel in a stream is the longer of call and kernel + gap, in a graph kernel + gap"
    )
    return Finding("timeline.limit", "note", title, text, threshold, forecast.fit.rests_on(used(forecast)))


def _pace(forecast: Forecast, step: Alike) -> str:
    """What limits kernels that are alike, and what the graph does about it."""
    if step.kernels == 1:
        return "One kernel waits only for its own call, its launch latency and its completion."
    values = forecast.fit.values
    call_s, gpu_s = values[call_name(step.layer, step.arguments)], step.duration_s + values["gap_stream"]
    if call_s > gpu_s:
        return f"The step is launch-bound: a launch call takes {times(call_s / gpu_s)} as long as a kernel and its gap."
    return "The host keeps up: a graph gains only by its shorter gap between kernels."


def _path(forecast: Forecast) -> str:
    """What most of the critical path of each way is spent on."""
    stream = f"Most of the time the stream waits for {SHARES[forecast.stream.limit]}"
    return f"{stream}." if forecast.graph is None else f"{stream}, the graph for {SHARES[forecast.graph.limit]}."


def queue_full(stream: Prediction) -> bool:
    """Whether the launch queue holds the host up in the played step."""
    host = stream.played.host
    return any(span.begin_s > before.end_s for before, span in itertools.pairwise(host))
