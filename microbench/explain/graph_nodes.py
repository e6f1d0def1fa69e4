"""Explains graph_nodes: what each kind of node costs GPU and host, what is not updated, who decides on an iteration."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding
from microbench.stats import Row
from microbench.units import as_time, percent

EQUAL = 1.05
ONE_BY_ONE = 5.0
MOST_NAMED = 3
OF_FEW_BYTES = frozenset({"memset", "copy_h2d", "copy_d2h", "copy_d2d"})
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
HOST_DECIDES, DEVICE_DECIDES = ("host_sync", "host_poll"), ("while", "tail_launch")


def title(row: Row) -> str:
    """A row's kind of node, or of decision, in words."""
    kind = str(row.params.get("kind"))
    return TITLES.get(kind, kind)


def node_rows(evidence: Evidence) -> list[tuple[Row, Row | None]]:
    """Each kind's time as a node, cheapest first, with the same call's time in a stream where there is one."""
    found = [
        (row, evidence.row("graph_nodes", "stream", kind=kind))
        for row in evidence.rows("graph_nodes", "node")
        if row.value > 0 and (kind := row.params.get("kind")) is not None
    ]
    return sorted(found, key=lambda pair: pair[0].value)


def iteration_rows(evidence: Evidence) -> list[Row]:
    """What an iteration takes, by who decides on it, quickest first."""
    found = [row for row in evidence.rows("graph_nodes", "iteration") if row.value > 0]
    return sorted(found, key=lambda row: row.value)


def kinds(evidence: Evidence) -> list[Finding]:
    """The cheapest and the dearest kind of node, and what each costs against the same call in a stream."""
    found = [pair for pair in node_rows(evidence) if pair[0].trust != "below floor"]
    if len(found) < 2:
        return []
    (cheapest, _), (dearest, _) = found[0], found[-1]
    both = [(node, stream) for node, stream in found if stream is not None]
    both.sort(key=lambda pair: pair[0].value / pair[1].value)
    gained = [_against(*pair) for pair in both if pair[1].value > pair[0].value * EQUAL]
    dearer = [_against(*pair) for pair in reversed(both) if pair[0].value > pair[1].value * EQUAL]
    text = "In a stream the same calls take the GPU as long." if both else ""
    if gained:
        text = f"Against the same call in a stream, these gain most as nodes: {', '.join(gained[:MOST_NAMED])}."
    if dearer:
        text = f"{text if gained else ''} Dearer as a node than in a stream: {', '.join(dearer[:MOST_NAMED])}.".lstrip()
    return [
        Finding(
            rule="graph.nodes",
            severity="note",
            title=(
                f"The cheapest node: {title(cheapest)}, {as_time(cheapest.value)}; the dearest: {title(dearest)}, "
                f"{as_time(dearest.value)}"
            ),
            text=text,
            threshold=f"node and stream differ above {EQUAL:.2f} times",
            rests_on=rests_on(*(row for pair in found for row in pair)),
            suite="graph",
        )
    ]


def _against(node: Row, stream: Row) -> str:
    return f"{title(node)} {as_time(node.value)} against {as_time(stream.value)}"


def one_by_one(evidence: Evidence) -> list[Finding]:
    """Kinds of node whose replay keeps the host far longer than one of kernels: it submits them itself, each time."""
    usual = evidence.row("graph_nodes", "launch", kind="kernel_empty")
    if usual is None:
        return []
    rows = [row for row in evidence.rows("graph_nodes", "launch") if row.value > usual.value * ONE_BY_ONE]
    rows.sort(key=lambda row: row.value, reverse=True)
    if not rows:
        return []
    heading = f"Replays of {listed([title(row) for row in rows])} nodes keep the host"
    if len(rows) > MOST_NAMED:
        heading = f"Replays of {len(rows)} kinds of node keep the host"
    each = ", ".join(f"{title(row)} {as_time(row.value)}" for row in rows)
    text = (
        f"The launch call of a long chain of empty kernels takes {as_time(usual.value)}; of as many other nodes: "
        f"{each}. These the driver submits one by one at each replay, so a graph saves the host little."
    )
    if any(row.params.get("kind") in OF_FEW_BYTES for row in rows):
        text += " In chains that are replayed often a kernel that sets or copies the few bytes is the cheaper node."
    return [
        Finding(
            rule="graph.one_by_one",
            severity="advice",
            title=f"{heading}, up to {as_time(rows[0].value)}",
            text=text,
            threshold=f"the launch call above {ONE_BY_ONE:g} times that of empty kernels",
            rests_on=rests_on(usual, *rows),
            suite="graph",
        )
    ]


def refused(evidence: Evidence) -> list[Finding]:
    """Kinds whose executable graph the driver does not update, in its own words."""
    reasons: dict[str, list[str]] = {}
    for row, _ in node_rows(evidence):
        for fact in row.outcomes[0].facts:
            if fact.name == "update" and fact.value is None:
                reasons.setdefault(fact.reason or "no reason given", []).append(title(row))
    if not reasons:
        return []
    names = [name for several in reasons.values() for name in several]
    return [
        Finding(
            rule="graph.refused",
            severity="note",
            title=f"The driver updates no graph of: {listed(names)}",
            text=". ".join(f"{listed(several)}: {reason.rstrip('.')}" for reason, several in reasons.items())
            + ". Such a graph has to be instantiated anew when a value in it changes.",
            threshold="cuGraphExecUpdate of the same graph with other values is refused",
            rests_on=tuple(f"{row.case_id} update" for row, _ in node_rows(evidence) if title(row) in names),
            suite="graph",
        )
    ]


def decided(evidence: Evidence) -> list[Finding]:
    """Whether an iteration is shorter when the device decides on it."""
    found = iteration_rows(evidence)
    host, device = _best(found, HOST_DECIDES), _best(found, DEVICE_DECIDES)
    if host is None or device is None:
        return []
    ratio = host.value / device.value
    heading = f"An iteration decided on the device takes {as_time(device.value)}, on the host {as_time(host.value)}"
    advice = "Either will do; the device leaves the host free."
    if ratio > EQUAL:
        advice = f"Deciding on the device saves {percent(1 - 1 / ratio)} here, and leaves the host free."
    elif ratio < 1 / EQUAL:
        advice = "Here the host's round trip is the shorter: decide on the device only to leave the host free."
    return [
        Finding(
            rule="graph.iteration",
            severity="note",
            title=heading,
            text=f"By who decides: {', '.join(f'{title(row)} {as_time(row.value)}' for row in found)}. {advice}",
            threshold=f"the quickest of each; told as quicker above {EQUAL:.2f} times",
            rests_on=rests_on(*found),
            suite="graph",
        )
    ]


def _best(found: Sequence[Row], kinds: Sequence[str]) -> Row | None:
    return next((row for row in found if row.params.get("kind") in kinds), None)
