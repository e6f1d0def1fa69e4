"""Explains the rest of graph_lifecycle: what a replay costs, what the first launch costs more, the memory taken."""

from __future__ import annotations

from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding
from microbench.explain.graph_gain import usual_kernels
from microbench.explain.graph_life import curve_of, life_line, nodes_of
from microbench.units import as_time, percent, quantity, times

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
