"""Works out the figures of the graph suite that rules, pictures and topics share: crossovers, break-even, updates."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, paid_after, whole
from microbench.analysis.fits import Line, line
from microbench.analysis.graph_steps import kernel_counts, usual_kernels
from microbench.analysis.stats import Row
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import as_time
from microbench.model.constants import Pair, making_of, pairs
from microbench.model.fit import fit

SPEEDUPS = (1.5, 1.1, 1.05)


def curves(evidence: Evidence) -> dict[str, tuple[int, list[Pair]]]:
    """The usual count of kernels and its pairs, at least two, for each submitter; the compiled loop comes first."""
    names = dict.fromkeys(str(row.params.get("submitter")) for row in evidence.rows("graph_gain", "stream"))
    by_submitter = {}
    for name in sorted(names, key=lambda name: name != LOOP_LAYER):
        kernels = usual_kernels(kernel_counts(evidence, name))
        measured = pairs(evidence, name, kernels) if kernels is not None else []
        if kernels is not None and len(measured) > 1:
            by_submitter[name] = (kernels, measured)
    return by_submitter


def crossing(measured: Sequence[Pair], speedup: float) -> float | None:
    """The shortest kernel duration (s) from which on every speed-up is under ``speedup``, between two measured ones.

    None if the longest kernels gain more, 0 if the shortest gain less. Linear in the logarithm of the duration, as the
    axis is.
    """
    if measured[-1].speedup >= speedup:
        return None
    for below, above in itertools.pairwise(reversed(measured)):
        if above.speedup >= speedup:
            share = (above.speedup - speedup) / (above.speedup - below.speedup)
            return float(above.duration_s * (below.duration_s / above.duration_s) ** share)
    return 0.0


def kernels_of(pair: Pair) -> str:
    """A pair's kernels in words."""
    return "empty kernels" if pair.empty else f"kernels of {as_time(pair.duration_s)}"


def curve_of(evidence: Evidence, metric: str) -> list[tuple[int, Row]]:
    """A metric of graph_lifecycle over the count of nodes, where it is above 0."""
    return [point for point in evidence.curve("graph_lifecycle", metric, "nodes") if point[1].value > 0]


def life_line(evidence: Evidence, metric: str) -> Line | None:
    """The fit of a phase's time over the count of nodes. GPU time is measured per node: its fit is that of a replay."""
    points = curve_of(evidence, metric)
    return line((nodes, row.value * (nodes if row.metric.unit == "s/launch" else 1)) for nodes, row in points)


def break_even(evidence: Evidence, pair: Pair) -> tuple[float, int | None] | None:
    """What it takes to capture, instantiate and upload the graph of a pair, if that was measured, and the replays after
    which the graph has paid: None if a replay saves nothing."""
    kernels = whole(pair.stream, "kernels")
    making = making_of([kernels], fit(evidence).made)
    return (making.value, paid_after(making.value, pair.saved_s * kernels)) if making is not None else None


class Library(NamedTuple):
    """A graph of ``nodes`` kernels by one library's means: rows of graph_library, or of graph_lifecycle for the driver.

    ``rows`` are those that sum up to making it and replaying it once, in ``ready_s`` of the host, ``replay`` is a
    further replay's call. ``pair`` is graph_gain's step of as many kernels, the shortest from the same submitter. After
    ``replays`` it has paid, the first included; None if a replay saves nothing.
    """

    submitter: str
    nodes: int
    rows: list[Row]
    ready_s: float
    replay: Row
    pair: Pair | None
    replays: int | None


def of_library(evidence: Evidence, submitter: str, nodes: int) -> Library | None:
    """A graph of ``nodes`` kernels by that layer's means (compiled loop: the driver's); None if not measured."""
    benchmark, names = "graph_library", ["make", "first_replay", "replay"]
    chosen: dict[str, int | str] = {"nodes": nodes, "submitter": submitter}
    if submitter == LOOP_LAYER:
        benchmark, names = "graph_lifecycle", ["capture", "instantiate", "first_replay", "relaunch"]
        del chosen["submitter"]
    rows = [row for name in names if (row := evidence.row(benchmark, name, **chosen)) is not None]
    if len(rows) < len(names):
        return None
    *made, replay = rows
    pair, ready_s, replays = next(iter(pairs(evidence, submitter, nodes)), None), sum(row.value for row in made), None
    if pair is not None:
        replays = paid_after(ready_s - pair.graph.value * nodes, pair.saved_s * nodes)
    return Library(submitter, nodes, made, ready_s, replay, pair, replays)


def libraries(evidence: Evidence) -> list[Library]:
    """What graph_library measured of each library for the usual number of kernels, the quickest library first."""
    rows = evidence.rows("graph_library", "make")
    nodes = usual_kernels([int(row.params["nodes"]) for row in rows])
    names = dict.fromkeys(str(row.params["submitter"]) for row in rows)
    every = [of_library(evidence, name, nodes) for name in names] if nodes is not None else []
    return sorted((one for one in every if one is not None), key=lambda one: one.ready_s)


WAYS = ("set_params", "set_grid", "exec_update", "rebuild")
AROUND = ("record", "dispose")  # ways that need a new capture


class Cost(NamedTuple):
    """What a change costs in all: record, calls, disposal, and what the next replay takes more than the one after."""

    way: str
    changed: int
    seconds: float
    rows: tuple[Row, ...]


def cost(evidence: Evidence, way: str, nodes: int, changed: int) -> Cost | None:
    """The cost of giving ``changed`` of ``nodes`` nodes new values that way; None if not measured."""
    names = ("change", "next_replay", "later_replay", *AROUND)
    rows = {
        name: row
        for name in names
        if (row := evidence.row("graph_update", name, way=way, nodes=nodes, changed_nodes=changed)) is not None
    }
    if not {"change", "next_replay", "later_replay"} <= set(rows):
        return None
    after_s = max(rows["next_replay"].value - rows["later_replay"].value, 0.0)
    around_s = sum(rows[name].value for name in AROUND if name in rows)
    return Cost(way, changed, rows["change"].value + around_s + after_s, tuple(rows.values()))


def costs(evidence: Evidence, way: str, nodes: int) -> list[Cost]:
    """Costs of a way over the count of nodes that change, ascending."""
    curve = evidence.curve("graph_update", "change", "changed_nodes", way=way, nodes=nodes)
    every = [cost(evidence, way, nodes, changed) for changed, _ in curve]
    return [known for known in every if known is not None]


def equal_at(single: Sequence[Cost], whole: Cost) -> float | None:
    """How many nodes have to change until node by node costs as much as the whole graph, linear between measured
    counts; None if it never does."""
    before: Cost | None = None
    for each in single:
        if each.seconds >= whole.seconds:
            if before is None:
                return float(each.changed)
            share = (whole.seconds - before.seconds) / (each.seconds - before.seconds)
            return before.changed + share * (each.changed - before.changed)
        before = each
    return None


TITLES = {
    "kernel_empty": "empty kernel",
    "kernel": "dependent kernel",
    "pdl": "PDL kernel",
    "pdl_trigger": "PDL kernel + trigger",
    "kernel_prologue": "prologue + kernel",
    "pdl_prologue": "prologue + PDL kernel",
    "pdl_trigger_prologue": "prologue + PDL + trigger",
    "memset": "memset 4 B",
    "copy_h2d": "copy 4 B to the GPU",
    "copy_d2h": "copy 4 B from the GPU",
    "copy_d2d": "copy 4 B on the GPU",
    "host": "host function",
    "event_record": "event record",
    "event_wait": "event wait",
    "child": "child graph",
    "empty": "empty node",
    "if_taken": "IF taken",
    "if_skipped": "IF skipped",
    "host_sync": "host, synchronise and look",
    "host_poll": "host, watching memory",
    "while": "device, WHILE node",
    "tail_launch": "device, tail launch",
}
# The kind of node that a chain times from one end on the host to the next: the GPU has no part in it.
ON_THE_HOST = "host"
# How the kinds of node of a case end: a kernel that needs the one in front at once, or after 1 µs of its own work.
AT_ONCE, PROLOGUE = "", "_prologue"


def title(row: Row) -> str:
    """A row's kind of node, or of decision, in words."""
    kind = str(row.params.get("kind"))
    return TITLES.get(kind, kind)


def gains(evidence: Evidence, case: str) -> list[tuple[str, float, list[Row]]]:
    """What PDL saves in a stream and in a graph, for the kinds of node that end in ``case``: the place, the speed-up
    of the better way, and the rows: without PDL, by the attribute alone, and with an early trigger in front."""
    result = []
    for place, metric in (("a stream", "stream"), ("a graph", "node")):
        plain = evidence.row("graph_nodes", metric, kind=f"kernel{case}")
        ways = (evidence.row("graph_nodes", metric, kind=kind + case) for kind in ("pdl", "pdl_trigger"))
        known = [row for row in ways if row is not None]
        if plain is not None and known:
            result.append((place, plain.value / min(row.value for row in known), [plain, *known]))
    return result


# Each way that allocates in the step, with the one whose memory is allocated before.
OUTSIDE = {"graph_nodes": "graph_outside", "stream_kept": "stream_outside", "stream_released": "stream_outside"}


class Added(NamedTuple):
    """What a way adds to a step for each allocation, against memory allocated before, and the most that it may add.

    ``seconds`` is 0 where the intervals of both overlap.
    """

    seconds: float
    most_s: float
    inside: Row
    outside: Row


def added(evidence: Evidence, size_bytes: int) -> dict[str, Added]:
    """What each way adds that was measured at that size with one allocation a step."""
    ways = {}
    for way, without in OUTSIDE.items():
        inside, outside = (
            evidence.row("graph_memory", "step", way=name, size_bytes=size_bytes, pairs=1) for name in (way, without)
        )
        if inside is not None and outside is not None:
            resolved = not inside.interval.overlaps(outside.interval)
            seconds = max(inside.value - outside.value, 0.0) if resolved else 0.0
            most_s = inside.interval.high - outside.interval.low
            ways[way] = Added(seconds, most_s, inside, outside)
    return ways


HELPS = 1.05


class Branches(NamedTuple):
    """A count of branches, with the row of the replay and that of the same number of streams."""

    number: int
    graph: Row
    streams: Row


def branches(evidence: Evidence, shape: str, duration_ns: int) -> list[Branches]:
    """Replay and streams over the count of branches; a chain is one branch of a fork."""
    points: dict[int, Branches] = {}
    for name in (shape, "chain"):
        chosen: dict[str, int | str] = {"shape": name, "duration_ns": duration_ns}
        streams = dict(evidence.curve("graph_shape", "streams", "branches", **chosen))
        for count, row in evidence.curve("graph_shape", "graph", "branches", **chosen):
            other = streams.get(count)
            if other is not None and row.value > 0 and other.value > 0:
                points.setdefault(count, Branches(count, row, other))
    return [points[count] for count in sorted(points)]


def enough(measured: Sequence[Branches]) -> Branches:
    """The fewest branches from which on no larger count makes the replay HELPS times as fast."""
    for index, point in enumerate(measured):
        if all(point.graph.value < later.graph.value * HELPS for later in measured[index + 1 :]):
            return point
    return measured[-1]
