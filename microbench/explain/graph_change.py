"""Explains the rest of graph_lifecycle: what a replay costs, what the first launch costs more, the memory taken."""

from __future__ import annotations

from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, listed, rests_on
from microbench.analysis.graph_steps import usual_kernels
from microbench.analysis.stats import Row
from microbench.core.units import as_time, percent, quantity, times
from microbench.explain.graph_gains import curve_of, life_line, nodes_of

UPLOAD_WORTH = 2.0


def replaying(evidence: Evidence) -> list[Finding]:
    """What a replay costs host and GPU by the count of nodes."""
    host, gpu = life_line(evidence, "relaunch"), life_line(evidence, "node")
    if host is None or gpu is None:
        return []
    points = [*curve_of(evidence, "relaunch"), *curve_of(evidence, "node")]
    misfits = [f"{percent(one.misfit.median)}, at most {percent(one.misfit.largest)}" for one in (host, gpu)]
    return [
        Finding(
            rule="graph.replay",
            severity="note",
            title=f"A replay costs the host {as_time(host.constant)} and the GPU {as_time(gpu.slope)} a node",
            text=(
                f"The call takes {as_time(host.constant)} and {as_time(host.slope)} a node, the GPU "
                f"{as_time(gpu.constant)} and {as_time(gpu.slope)} a node of empty kernels in a line "
                f"(fits off by {misfits[0]}, and by {misfits[1]})."
            ),
            threshold="straight lines through the relative residuals' least squares",
            rests_on=rests_on(*(row for _, row in points)),
            suite="graph",
        )
    ]


def footprint(evidence: Evidence) -> list[Finding]:
    """How much memory a graph takes, and what the first launch costs that was not uploaded."""
    device = curve_of(evidence, "device_memory")[-1:]
    host = curve_of(evidence, "host_memory")[-1:]
    if not device and not host:
        return []
    words = [
        f"{quantity(row.value, 'B')} of {where} memory for {nodes_of(nodes)}, {quantity(row.value / nodes, 'B')} each"
        for where, found in (("device", device), ("host", host))
        for nodes, row in found
    ]
    (nodes, row), where = (device or host)[0], "device" if device else "host"
    return [
        Finding(
            rule="graph.memory_taken",
            severity="note",
            title=f"A node takes {quantity(row.value / nodes, 'B')} of {where} memory",
            text=f"An executable graph takes {listed(words)}: graphs that are kept for later are not free.",
            threshold="the largest graph measured, by its nodes",
            rests_on=rests_on(*(one for _, one in device + host)),
            suite="graph",
        )
    ]


def upload(evidence: Evidence) -> list[Finding]:
    """What the first launch of a graph costs that was not uploaded before."""
    nodes = usual_kernels([count for count, _ in curve_of(evidence, "first_launch")])
    if nodes is None:
        return []
    names = ("first_launch", "uploaded_launch", "relaunch", "upload")
    first, uploaded, again, before = (evidence.row("graph_lifecycle", name, nodes=nodes) for name in names)
    against, whose = (again, "a later one, unless it was uploaded")
    if uploaded is not None:
        against, whose = uploaded, "that of one that was uploaded"
    if first is None or against is None:
        return []
    ratio = first.value / against.value
    worth = ratio > UPLOAD_WORTH
    text = f"For {nodes_of(nodes)} the first launch call takes {as_time(first.value)}"
    text += f", {as_time(uploaded.value)} if the graph was uploaded" if uploaded is not None else ""
    text += f", later ones {as_time(again.value)}." if again is not None else "."
    if before is not None and worth:
        text += f" cuGraphUpload ({as_time(before.value)}) pays that before the step that has to be quick."
    return [
        Finding(
            rule="graph.upload",
            severity="advice" if worth else "note",
            title=f"The first launch of a graph takes {times(ratio)} {whose}",
            text=text,
            threshold=f"advised above {UPLOAD_WORTH:g} times",
            rests_on=rests_on(first, uploaded, again, before),
            suite="graph",
        )
    ]


# Explains graph_update: what it costs to change a graph, against making it anew.


WAYS = {
    "set_params": "new arguments node by node",
    "set_grid": "a new grid node by node",
    "exec_update": "an update from a new capture",
    "rebuild": "capture and instantiate once more",
}
WORTH = 1.5
SINGLE = ("set_params", "set_grid")
AROUND = ("record", "dispose")  # of ways that need a new capture


class Cost(NamedTuple):
    """What a change costs in all: record, calls, disposal, and what the next replay takes more than the one after."""

    way: str
    changed: int
    seconds: float
    rows: tuple[Row, ...]


def cost(evidence: Evidence, way: str, nodes: int, changed: int) -> Cost | None:
    """The cost of giving ``changed`` of ``nodes`` nodes new values that way; None if not measured."""
    names = ("change", "next_replay", "later_replay", *AROUND)
    found = {
        name: row
        for name in names
        if (row := evidence.row("graph_update", name, way=way, nodes=nodes, changed_nodes=changed)) is not None
    }
    if not {"change", "next_replay", "later_replay"} <= set(found):
        return None
    after_s = max(found["next_replay"].value - found["later_replay"].value, 0.0)
    around_s = sum(found[name].value for name in AROUND if name in found)
    return Cost(way, changed, found["change"].value + around_s + after_s, tuple(found.values()))


def costs(evidence: Evidence, way: str, nodes: int) -> list[Cost]:
    """Costs of a way over the count of nodes that change, ascending."""
    changed = [count for count, _ in evidence.curve("graph_update", "change", "changed_nodes", way=way, nodes=nodes)]
    return [one for count in changed if (one := cost(evidence, way, nodes, count)) is not None]


def equal_at(single: list[Cost], whole: Cost) -> float | None:
    """How many nodes have to change until node by node costs as much as the whole graph; straight between measured
    counts. None if it never does."""
    before: Cost | None = None
    for one in single:
        if one.seconds >= whole.seconds:
            if before is None:
                return float(one.changed)
            share = (whole.seconds - before.seconds) / (one.seconds - before.seconds)
            return before.changed + share * (one.changed - before.changed)
        before = one
    return None


def update(evidence: Evidence) -> list[Finding]:
    """What changing one node and all nodes costs, against a rebuild, and which way to choose."""
    counts = [count for count, _ in evidence.curve("graph_update", "change", "nodes", way="rebuild")]
    nodes = usual_kernels([count for count in counts if count > 1] or counts)
    if nodes is None:
        return []
    rebuilt = cost(evidence, "rebuild", nodes, nodes)
    found = {way: costs(evidence, way, nodes) for way in WAYS}
    whole = sorted((one for several in found.values() for one in several[-1:] if one.changed == nodes), key=_seconds)
    if rebuilt is None or len(whole) < 2:
        return []
    best = whole[0]
    ratio = rebuilt.seconds / best.seconds
    words = [f"{WAYS[one.way]} {as_time(one.seconds)}" for one in whole]
    text = f"All of {nodes_of(nodes)} changed: {', '.join(words)}.{_one_node(found)}{_choice(found)}"
    title = f"Changing all of {nodes_of(nodes)} takes {as_time(best.seconds)}, making the graph anew "
    title += f"{as_time(rebuilt.seconds)}: {times(ratio)}" if best.way != "rebuild" else "is the cheapest way"
    rows = [row for several in found.values() for one in several for row in one.rows]
    return [
        Finding(
            rule="graph.update",
            severity="advice" if ratio > WORTH else "note",
            title=title,
            text=text,
            threshold=(
                "record + change + dispose + (next_replay - later_replay); advised where a rebuild takes more than "
                f"{WORTH:g} times the cheapest way"
            ),
            rests_on=rests_on(*rows),
            suite="graph",
        )
    ]


def _seconds(one: Cost) -> float:
    return one.seconds


def _one_node(found: dict[str, list[Cost]]) -> str:
    words = [
        f"{WAYS[way]} {as_time(one.seconds)}"
        for way in SINGLE
        for one in found[way][:1]
        if one.changed == 1 and len(found[way]) > 1
    ]
    return f" Of one node: {', '.join(words)}." if words else ""


def _choice(found: dict[str, list[Cost]]) -> str:
    single, whole = found["set_params"], found["exec_update"][-1:]
    if not single or not whole:
        return ""
    count = equal_at(single, whole[0])
    if count is None:
        return " Node by node stays the cheapest however many change, so keep the nodes' handles."
    if count <= 1:
        return " An update of the whole graph is cheaper even for one node."
    return f" From about {round(count)} changed nodes on an update of the whole graph is cheaper than node by node."
