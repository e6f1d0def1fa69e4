"""Explains launch_cost and launch_duration: what a launch costs, and when the GPU waits for the host."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from microbench.analysis.evidence import Evidence, Finding, listed, rests_on
from microbench.analysis.graph_steps import TITLES
from microbench.analysis.stats import Row
from microbench.core.units import as_time, percent, times

PLATEAU_MARGIN = 1.10
SWEEP_TOLERANCE = 1.5
TAIL_RATIO = 2.0
WORST_RATIO = 10.0
GAIN_EXAMPLE_S = 10e-6

REMEDIES = {
    "submit": "Fewer calls help most: fuse kernels, or replay a graph.",
    "start": "It is the way to the GPU, and passes unseen while other work is queued: do not wait after each launch.",
    "complete": "It is paid once a synchronise, not once a launch: synchronise after many launches.",
}


def cost(evidence: Evidence) -> list[Finding]:
    """What one launch costs here, and which of its three parts is the largest."""
    submit, start, complete, whole = (
        evidence.row("launch_cost", name) for name in ("submit", "start", "complete", "round_trip")
    )
    if submit is None or start is None or complete is None or whole is None:
        return []
    parts = {"submit": submit.value, "start": max(start.value - submit.value, 0.0), "complete": complete.value}
    largest = max(parts, key=lambda name: parts[name])
    share = parts[largest] / sum(parts.values())
    throughput = evidence.row("launch_cost", "throughput")
    back_to_back = f" Back to back, a launch takes {as_time(throughput.value)}." if throughput else ""
    return [
        Finding(
            rule="launch.cost",
            severity="note",
            title=f"A launch costs the host {as_time(submit.value)}, and {as_time(whole.value)} until it is done",
            text=(
                f"Of an empty kernel's round trip, {as_time(parts['submit'])} pass in the call (submit), "
                f"{as_time(parts['start'])} from there until the kernel's first act is seen (start), "
                f"{as_time(parts['complete'])} until the synchronise returns (complete).{back_to_back} "
                f"The largest part is {largest}, {percent(share)}. {REMEDIES[largest]}"
            ),
            threshold="names the largest of submit, start less submit, and complete",
            rests_on=rests_on(submit, start, complete, whole, throughput),
            suite="launch",
        )
    ]


def crossover_s(evidence: Evidence) -> float | None:
    """The kernel duration below which the GPU waits for the host, by the model submit - gap_stream."""
    submit, gap = evidence.row("launch_cost", "submit"), evidence.row("launch_cost", "gap_stream")
    return submit.value - gap.value if submit and gap else None


def sweep(evidence: Evidence, metric: str) -> list[tuple[float, Row]]:
    """launch_duration's rows of a metric by the kernel's own recorded duration in s (the nominal one if unrecorded)."""
    recorded = dict(evidence.curve("launch_duration", "duration", "duration_ns"))
    points = []
    for duration_ns, row in evidence.curve("launch_duration", metric, "duration_ns"):
        own = recorded.get(duration_ns)
        points.append((own.value if own and own.value > 0 else duration_ns * 1e-9, row))
    return points


def plateau_end(points: Sequence[tuple[float, Row]]) -> tuple[float, float] | None:
    """Between which two durations (s) the period leaves the plateau it starts on; None if it never does.

    The plateau is the shortest kernels' period; it is left at the first period above PLATEAU_MARGIN times that.
    """
    for (below, _), (above, row) in itertools.pairwise(points):
        if row.value > points[0][1].value * PLATEAU_MARGIN:
            return below, above
    return None


def starving(evidence: Evidence) -> list[Finding]:
    """Below which kernel duration this GPU waits for the host, by the model and by the sweep."""
    submit, gap = (evidence.row("launch_cost", name) for name in ("submit", "gap_stream"))
    crossover = crossover_s(evidence)
    if submit is None or gap is None or crossover is None:
        return []
    points = sweep(evidence, "period")
    agrees, seen = _held_against_sweep(crossover, points)
    text = (
        f"A launch takes the host {as_time(submit.value)}, and the GPU needs {as_time(gap.value)} between two "
        f"kernels, so it runs dry below {as_time(max(crossover, 0.0))}.{seen} "
        "Shorter kernels gain from fusing, a graph, or a cheaper way to launch; longer ones do not."
    )
    title = f"Kernels shorter than {as_time(crossover)} leave this GPU waiting for the host"
    if crossover <= 0:
        title = "Even empty kernels keep this GPU busy: the host submits faster than the GPU starts them"
    return [
        Finding(
            rule="launch.starving",
            severity="good" if crossover <= 0 else "advice" if agrees else "warning",
            title=title,
            text=text,
            threshold=(
                f"duration < submit - gap_stream; the sweep leaves its plateau above {PLATEAU_MARGIN:.2f} times the "
                "shortest "
                f"kernels' period, and agrees within a factor of {SWEEP_TOLERANCE:g}"
            ),
            rests_on=rests_on(submit, gap, *(row for _, row in points)),
            suite="launch",
        )
    ]


def _held_against_sweep(crossover: float, points: Sequence[tuple[float, Row]]) -> tuple[bool, str]:
    """Whether the sweep leaves its plateau where the model says, and that in words; nothing to say without a sweep."""
    seen = plateau_end(points)
    if seen is None:
        return True, ""
    below, above = seen
    agrees = below / SWEEP_TOLERANCE <= crossover <= above * SWEEP_TOLERANCE
    words = (
        f" The duration sweep {'agrees' if agrees else 'does not agree, believe it rather'}: time per kernel leaves "
        f"its plateau of {as_time(points[0][1].value)} between kernels of {as_time(below)} and {as_time(above)}."
    )
    return agrees, words


def gaps(evidence: Evidence) -> list[Finding]:
    """What the GPU itself needs between two kernels, in a stream and in a graph."""
    stream, graph = evidence.row("launch_cost", "gap_stream"), evidence.row("launch_cost", "gap_graph")
    if stream is None or graph is None:
        return []
    ratio = stream.value / graph.value
    comparison = "A graph's gap is no shorter here."
    if ratio > PLATEAU_MARGIN:
        gain = (stream.value - graph.value) / (GAIN_EXAMPLE_S + stream.value)
        comparison = (
            f"In a stream it is {times(ratio)} what it is in a graph: as a graph, a chain of kernels of "
            f"{as_time(GAIN_EXAMPLE_S)} gains {percent(gain)} even where the host keeps up."
        )
    return [
        Finding(
            rule="launch.gap",
            severity="note",
            title=f"Between two kernels the GPU needs {as_time(stream.value)}, in a graph {as_time(graph.value)}",
            text=f"This is the GPU's own time, the host out of the way. {comparison}",
            threshold=f"a graph's gap counts as shorter above {PLATEAU_MARGIN:.2f} times",
            rests_on=rests_on(stream, graph),
            suite="launch",
        )
    ]


def tails(evidence: Evidence) -> list[Finding]:
    """How far the slow launches lie from the usual one."""
    row = evidence.row("launch_cost", "submit")
    if row is None or row.summaries[0].per_call is None:
        return []
    p99, worst = row.over_rounds("p99") / row.value, row.over_rounds("max") / row.value
    spiky = p99 > TAIL_RATIO
    text = (
        f"The usual call takes {as_time(row.value)}, one in a hundred {as_time(row.over_rounds('p99'))} or more "
        f"({times(p99)}), the worst {as_time(row.over_rounds('max'))} ({times(worst)})."
    )
    if spiky:
        text += " Something stops the submitting core: interrupts, frequency changes, other processes, a hypervisor."
    elif worst > WORST_RATIO:
        text += " Rare interruptions of the submitting core do that; they do not move the median."
    return [
        Finding(
            rule="launch.tail",
            severity="warning" if spiky else "note" if worst > WORST_RATIO else "good",
            title=f"One launch in a hundred takes {times(p99)} the usual, the worst {times(worst)}",
            text=text,
            threshold=f"p99 above {TAIL_RATIO:g} times the median warns; the worst is told above {WORST_RATIO:g} times",
            rests_on=rests_on(row),
            suite="launch",
        )
    ]


# Explains launch_layers: what each Python layer adds over the compiled loop, and what a one-operation call costs.


CHOICE_MARGIN = 1.10
NATIVE = "loop"
FOUR_ARGUMENTS = 4


def layer(row: Row) -> str:
    """The layer that a row measured, by its name on the axis."""
    return str(row.params.get("layer"))


def title(row: Row) -> str:
    """A row's layer as its authors write it."""
    return TITLES.get(layer(row), layer(row))


def layer_rows(evidence: Evidence, family: str, arguments: int | None = None) -> list[Row]:
    """Submit rows of a family, cheapest first; of a number of arguments if given."""
    chosen = {} if arguments is None else {"arguments": arguments}
    found = [row for row in evidence.rows("launch_layers", "submit", family=family, **chosen) if row.value > 0]
    return sorted(found, key=lambda row: row.value)


def same_kernel(evidence: Evidence) -> list[Finding]:
    """What Python adds to the launch of the same empty kernel, and which layer to choose."""
    found = layer_rows(evidence, "same_kernel", 0)
    loop = next((row for row in found if layer(row) == NATIVE), None)
    layers = [row for row in found if layer(row) != NATIVE]
    if loop is None or not layers:
        return []
    best = layers[0]
    equal = [row for row in layers if row.value <= best.value * CHOICE_MARGIN]
    added = [f"{title(row)} {as_time(row.value - loop.value)} ({times(row.value / loop.value)})" for row in layers]
    choice = listed([title(row) for row in equal])
    launch = "launches" if len(equal) == 1 else "launch"
    return [
        Finding(
            rule="launch.layers",
            severity="advice",
            title=f"From Python, {choice} {launch} cheapest: {as_time(best.value)} a call",
            text=(
                f"The same launch from a compiled loop takes {as_time(loop.value)}. Over it, a call adds: "
                f"{', '.join(added)}.{_arguments(evidence, layers)} Choose {choice} where kernels are short; where a "
                "kernel "
                "outlasts its layer's submit, the GPU never waits and the choice is free."
            ),
            threshold=f"layers within {CHOICE_MARGIN:.2f} times the cheapest count as equal",
            rests_on=rests_on(loop, *layers),
            suite="launch",
        )
    ]


def _arguments(evidence: Evidence, layers: list[Row]) -> str:
    with_four = {layer(row): row for row in layer_rows(evidence, "same_kernel", FOUR_ARGUMENTS)}
    added = [(with_four[layer(row)].value - row.value, title(row)) for row in layers if layer(row) in with_four]
    if len(added) < 2:
        return ""
    (least, cheap), (most, dear) = min(added), max(added)
    return f" Four arguments add between {as_time(max(least, 0.0))} ({cheap}) and {as_time(max(most, 0.0))} ({dear})."


def one_op(evidence: Evidence) -> list[Finding]:
    """What one array operation costs through the array libraries; a different kernel each, so no ratio to the loop."""
    found = layer_rows(evidence, "one_op")
    if not found:
        return []
    words = [f"{title(row)} {as_time(row.value)}" for row in found]
    best = title(found[0])
    several = [title(row) for row in found if (_kernels(row) or 1) != 1]
    more = f" More than one kernel a call: {listed(several)}." if several else ""
    return [
        Finding(
            rule="launch.one_op",
            severity="note",
            title=f"One array operation costs {as_time(found[0].value)} to submit at best ({best})",
            text=(
                f"x + 1 on one element: {', '.join(words)}.{more} Each library runs a kernel of its own and looks "
                "after dtypes, "
                "shapes and memory, so these are not launch costs of one kernel and are not held against the "
                "compiled loop."
            ),
            threshold="cheapest first; told whenever measured",
            rests_on=rests_on(*found),
            suite="launch",
        )
    ]


def _kernels(row: Row) -> int | None:
    """Kernels that one call was seen to launch when captured; None where capture does not work."""
    for fact in row.outcomes[0].facts:
        if fact.name == "kernels_per_call" and isinstance(fact.value, int):
            return fact.value
    return None
