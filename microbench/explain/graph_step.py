"""The measured costs that a step of kernels is computed from, in a stream and in a graph, and where they come from."""

from __future__ import annotations

import math

import msgspec

from microbench.costmodel import Costs, Schedule, schedule
from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.graph_gain import Pair, kernel_counts, pairs, usual_kernels
from microbench.explain.graph_life import curve_of, life_line
from microbench.ops import LOOP_LAYER
from microbench.stats import Row

PARTS = ("submit", "start", "complete", "gap_stream", "gap_graph")


class StepCosts(msgspec.Struct, frozen=True):
    """What a step of ``kernels`` costs each way, what had to be assumed, and the rows used.

    ``empty_s`` is what an empty kernel took by its own record; 0 where none was recorded.
    """

    kernels: int
    empty_s: float
    stream: Costs
    graph: Costs
    assumed: tuple[str, ...]
    rests_on: tuple[str, ...]

    def schedules(self, duration_s: float) -> tuple[Schedule, Schedule]:
        """The step in the stream and as a graph."""
        own_s = self.own_s(duration_s)
        return schedule(self.stream, self.kernels, own_s), schedule(self.graph, self.kernels, own_s)

    def own_s(self, duration_s: float) -> float:
        """How long a kernel runs that is asked to run so long: an empty one takes a moment too."""
        return duration_s if duration_s > 0 else self.empty_s


class Measured(msgspec.Struct, frozen=True):
    """The measured case of graph_gain that lies nearest to a step."""

    kernels: int
    pair: Pair


def missing(evidence: Evidence, layer: str = LOOP_LAYER) -> list[str]:
    """Benchmarks without which a step cannot be computed from this run."""
    found = []
    if any(evidence.row("launch_cost", name) is None for name in PARTS):
        found.append("launch_cost")
    if layer != LOOP_LAYER and _layer_submit(evidence, layer) is None:
        found.append("launch_layers")
    if not curve_of(evidence, "relaunch"):
        found.append("graph_lifecycle")
    return found


def layers(evidence: Evidence) -> list[str]:
    """Who can submit in a step computed from this run."""
    rows = evidence.rows("launch_layers", "submit", family="same_kernel", arguments=0)
    return list(dict.fromkeys([LOOP_LAYER, *(str(row.params.get("layer")) for row in rows if row.value > 0)]))


def _layer_submit(evidence: Evidence, layer: str) -> Row | None:
    return evidence.row("launch_layers", "submit", family="same_kernel", arguments=0, layer=layer)


def step_costs(evidence: Evidence, kernels: int, layer: str = LOOP_LAYER) -> StepCosts | None:
    """The costs of a step of so many kernels; None where ``missing`` names something.

    In a stream: the way to the GPU is start (its estimate on the GPU's clock, where there is one) less submit, and
    what is left of a measured round trip follows the kernel's end. In a graph the call is the fit of relaunch over
    the nodes, and its way is what remains of a measured replay of one kernel.
    """
    submit, start, complete, gap_stream, gap_graph = (evidence.row("launch_cost", name) for name in PARTS)
    if submit is None or start is None or complete is None or gap_stream is None or gap_graph is None:
        return None
    layer_submit = submit if layer == LOOP_LAYER else _layer_submit(evidence, layer)
    call_s = _relaunch_s(evidence, kernels)
    if layer_submit is None or call_s is None:
        return None
    estimate = evidence.row("launch_cost", "start_estimate")
    begun_s = min(estimate.value, start.value) if estimate is not None else start.value
    way_s = max(begun_s - submit.value, 0.0)
    stream = Costs(layer_submit.value, way_s, gap_stream.value, start.value + complete.value - begun_s)
    graph_way_s, single = _replay_way(evidence, stream.complete_s)
    graph = Costs(call_s, way_s if graph_way_s is None else graph_way_s, gap_graph.value, stream.complete_s, True)
    rows = (submit, layer_submit, start, estimate, complete, gap_stream, gap_graph, *single)
    replays = [row for _, row in curve_of(evidence, "relaunch")]
    used = tuple(dict.fromkeys(rests_on(*rows, *replays)))
    empty = evidence.row("launch_duration", "duration", duration_ns=0)
    empty_s = empty.value if empty is not None else 0.0
    return StepCosts(kernels, empty_s, stream, graph, _assumed(layer, estimate, graph_way_s), used)


def _relaunch_s(evidence: Evidence, nodes: int) -> float | None:
    """The replay call of a graph of ``nodes``: by the fit, or that of the nearest count measured."""
    fit = life_line(evidence, "relaunch")
    if fit is not None:
        return fit.at(nodes)
    measured = curve_of(evidence, "relaunch")
    if not measured:
        return None
    return min(measured, key=lambda point: abs(math.log(max(point[0], 1) / nodes)))[1].value


def _replay_way(evidence: Evidence, complete_s: float) -> tuple[float | None, tuple[Row, ...]]:
    """From the replay call's return until the first kernel begins: a replay of one kernel less its other parts."""
    pair = next((one for one in pairs(evidence, LOOP_LAYER, 1) if one.duration_s > 0), None)
    call_s = _relaunch_s(evidence, 1)
    if pair is None or call_s is None:
        return None, ()
    return max(pair.graph.value - call_s - pair.duration_s - complete_s, 0.0), (pair.graph,)


def _assumed(layer: str, estimate: Row | None, graph_way_s: float | None) -> tuple[str, ...]:
    found = ["every call takes as long as the usual one"]
    if estimate is None:
        found.append("a kernel begins when the host sees its first act")
    if graph_way_s is None:
        found.append("a replay's way to the GPU is a launch's")
    if layer != LOOP_LAYER:
        found.append("the replay's call is that of the compiled loop")
    return tuple(found)


def nearest(evidence: Evidence, kernels: int, duration_s: float, layer: str = LOOP_LAYER) -> Measured | None:
    """The case of graph_gain whose kernels and duration lie nearest, by ratio; None if that layer was not measured."""
    counts = kernel_counts(evidence, layer)
    count = usual_kernels(counts, kernels)
    if count is None:
        return None
    found = pairs(evidence, layer, count)
    shortest_s = 1e-7  # an empty kernel's own time, roughly: what keeps 0 on a logarithmic scale
    pair = min(
        found,
        key=lambda one: abs(math.log(max(one.duration_s, shortest_s) / max(duration_s, shortest_s))),
        default=None,
    )
    return None if pair is None else Measured(count, pair)
