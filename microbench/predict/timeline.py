"""Explains a drawn step: what a graph gives it, what it waits for, and the measured costs that it is drawn from."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from microbench.analysis.evidence import Evidence, Finding, rests_on
from microbench.analysis.graph_steps import Pair, kernel_counts, kernels_in_words, pairs, title_of, usual_kernels
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import as_time, percent, quantity, round_percent, times
from microbench.predict import words as prediction_words
from microbench.predict.forecast import Forecast, Prediction
from microbench.predict.model import Limit, call_name, replay_name
from microbench.predict.workload import Copies, Kernels, Wait, Workload

# The measured step of graph_gain that lies nearest to a described one.


class Measured(msgspec.Struct, frozen=True):
    """A measured step: how many kernels, and what each took both ways."""

    kernels: int
    pair: Pair


def nearest(evidence: Evidence, kernels: int, duration_s: float, layer: str = LOOP_LAYER) -> Measured | None:
    """The case whose kernels and duration lie nearest, by ratio; None if that layer was not measured."""
    count = usual_kernels(kernel_counts(evidence, layer), kernels)
    if count is None:
        return None
    shortest_s = 1e-7  # an empty kernel's own time, roughly: what keeps 0 on a logarithmic scale
    pair = min(
        pairs(evidence, layer, count),
        key=lambda one: abs(math.log(max(one.duration_s, shortest_s) / max(duration_s, shortest_s))),
        default=None,
    )
    return None if pair is None else Measured(count, pair)


SUITE = "timeline"
LEAST_TOLD = 0.005
PACE = "time per kernel in a stream is the longer of call and kernel + gap, in a graph kernel + gap"
PATH = "the critical path, each moment by what it was spent on"
SHARES: dict[Limit, str] = {
    "host": "the host", "front end": "ways and gaps", "kernel": "kernels", "link": "copies", "sync": "waits",
}  # fmt: skip


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


def findings(evidence: Evidence, one: Forecast) -> list[Finding]:
    """What a drawn step means, in words."""
    return [_gain(evidence, one), _limit(one), _costs(one)]


def _gain(evidence: Evidence, one: Forecast) -> Finding:
    """The gain as a prediction tells it, held against the measured step that is most like this one."""
    told = prediction_words.gain(one)
    step = alike(one.workload)
    near = nearest(evidence, step.kernels, step.duration_s, step.layer) if step is not None else None
    measured, rows = "No measured step to hold it against.", told.rests_on
    if near is not None and step is not None:
        measured = _measured(near, step.layer)
        rows += rests_on(near.pair.stream, near.pair.graph)
    return msgspec.structs.replace(
        told, rule="timeline.gain", text=f"{measured} {told.text}", rests_on=rows, suite=SUITE
    )


def _measured(near: Measured, layer: str) -> str:
    pair, count = near.pair, near.kernels
    return (
        f"Measured, the nearest step ({kernels_in_words(count, pair.duration_s)} from {title_of(layer)}): "
        f"{as_time(pair.stream.value * count)} in the stream, {as_time(pair.graph.value * count)} as a graph, "
        f"{times(pair.speedup)}."
    )


def _limit(one: Forecast) -> Finding:
    """For how much of the step the GPU has no kernel, and why."""
    title = f"The GPU idles for {percent(one.stream.idle_share)} of the step in the stream"
    if one.graph is not None:
        title += f", for {percent(one.graph.idle_share)} in the graph"
    step = alike(one.workload)
    words = [_pace(one, step) if step is not None else _path(one), _full(one)]
    return Finding(
        rule="timeline.limit",
        severity="note",
        title=title,
        text=" ".join(word for word in words if word),
        threshold=PATH if step is None else PACE,
        rests_on=one.fit.rests_on(prediction_words.used(one)),
        suite=SUITE,
    )


def _pace(one: Forecast, step: Alike) -> str:
    """Which part sets the pace of kernels that are alike, and what the graph does about it."""
    if step.kernels == 1:
        return "One kernel waits for nothing but its own call, its way and its completion: there is no pace to limit."
    values = one.fit.values
    call_s, gap_s = values[call_name(step.layer, step.arguments)], values["gap_stream"]
    parts = f"(kernel {as_time(step.duration_s)}, gap {as_time(gap_s)})"
    gpu_s, in_graph_s = step.duration_s + gap_s, step.duration_s + values["gap_graph"]
    if call_s > gpu_s:
        return (
            f"In the stream the host is too slow: a call takes {as_time(call_s)}, the GPU only {as_time(gpu_s)} "
            f"{parts}, so it waits for each next kernel. The graph asks for all with one call and needs "
            f"{as_time(in_graph_s)} a kernel."
        )
    return (
        f"In the stream the host keeps up: a call takes {as_time(call_s)}, the GPU {as_time(gpu_s)} {parts}. From "
        f"kernel to kernel the graph gains by its gap alone: {as_time(values['gap_graph'])}, so {as_time(in_graph_s)} "
        "a kernel."
    )


def _path(one: Forecast) -> str:
    """What the critical path of each way is spent on."""
    stream = f"What the stream's step waits for: {_spent(one.stream)}."
    return stream if one.graph is None else f"{stream} The graph's: {_spent(one.graph)}."


def _spent(one: Prediction) -> str:
    total_s = sum(one.shares.values()) or 1.0
    several = sorted(one.shares.items(), key=lambda share: share[1], reverse=True)
    return ", ".join(
        f"{SHARES[name]} {round_percent(spent_s / total_s)}"
        for name, spent_s in several
        if spent_s / total_s >= LEAST_TOLD
    )


def _full(one: Forecast) -> str:
    """Whether, and from which call on, the launch queue holds the host up."""
    before_s = 0.0
    for index, span in enumerate(one.stream.played.host):
        if span.begin_s > before_s:
            return (
                f"After {index} calls {quantity(one.fit.values['queue'], 'launch')} launches wait before the GPU: the "
                "queue is full, and each further call waits for room."
            )
        before_s = span.end_s
    return ""


def _costs(one: Forecast) -> Finding:
    values, workload = one.fit.values, one.workload
    words = [
        *_calls(workload, values),
        f"way to the GPU {as_time(values['way'])}",
        f"gap {as_time(values['gap_stream'])}",
    ]
    text = f"Stream: {', '.join(words)}. "
    if one.graph is not None:
        text += (
            f"Graph: replay call {as_time(values[replay_name(workload.layer)])}, way {as_time(values['replay_way'])}, "
            f"gap {as_time(values['gap_graph'])}. "
        )
    text += "".join(_copies(workload, values))
    text += f"From a kernel's end to the synchronise's return: {as_time(values['complete'])}."
    return Finding(
        rule="timeline.origin",
        severity="note",
        title="Predicted from measured costs, not a recording",
        text=text,
        threshold="constants fitted to this run",
        rests_on=one.fit.rests_on(prediction_words.used(one)),
        suite=SUITE,
    )


def _calls(workload: Workload, values: dict[str, float]) -> Iterator[str]:
    """Each launch call that the step makes, once."""
    kinds = [(part.layer or workload.layer, part.arguments) for part in workload.parts if isinstance(part, Kernels)]
    for layer, arguments in dict.fromkeys(kinds):
        with_them = f" with {arguments} argument{'' if arguments == 1 else 's'}" if arguments else ""
        yield f"launch call from {title_of(layer)}{with_them} {as_time(values[call_name(layer, arguments)])}"


def _copies(workload: Workload, values: dict[str, float]) -> Iterator[str]:
    """Latency and rate of each kind of copy in the step."""
    kinds = [(part.direction, part.memory) for part in workload.parts if isinstance(part, Copies)]
    for direction, memory in dict.fromkeys(kinds):
        prefix = direction if memory == "pinned" else f"{direction}_pageable"
        yield (
            f"A {memory} copy {direction}: {as_time(values[f'{prefix}_latency'])} and "
            f"{quantity(values[f'{prefix}_rate'], 'B/s')}. "
        )
