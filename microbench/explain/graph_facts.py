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
from microbench.model.constants import making_of
from microbench.model.fit import fit
from microbench.model.graph_pairs import Pair, pairs

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


def title(row: Row) -> str:
    """A row's kind of node, or of decision, in words."""
    kind = str(row.params.get("kind"))
    return TITLES.get(kind, kind)
