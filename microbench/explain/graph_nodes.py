"""Explains graph_nodes: what each kind of node costs GPU and host, what is not updated, who decides on an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, listed, rests_on
from microbench.analysis.stats import Row
from microbench.core.units import as_time, percent, quantity, size, times

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


# Explains graph_memory: what allocating inside a step costs, in a graph and in a stream.


USUAL_BYTES = 1 << 20
RELEASE_DEAR = 2.0
HOLDERS = {
    "graph_nodes": "by a graph",
    "stream_kept": "by the pool that keeps",
    "stream_released": "by the pool that gives back",
}
# Each way that allocates in the step, with the one that has its memory before.
OUTSIDE = {"graph_nodes": "graph_outside", "stream_kept": "stream_outside", "stream_released": "stream_outside"}
WORDS = {
    "graph_nodes": "as graph nodes",
    "stream_kept": "from a pool that keeps it",
    "stream_released": "from one that gives it back",
}


class Added(NamedTuple):
    """What a way adds to a step for each allocation, against memory allocated before; 0 where that is not resolved."""

    way: str
    seconds: float
    inside: Row
    outside: Row

    @property
    def words(self) -> str:
        """What the way adds."""
        return f"{as_time(self.seconds) if self.seconds > 0 else 'nothing measurable'} {WORDS[self.way]}"


def added(evidence: Evidence, size_bytes: int, pairs: int = 1) -> list[Added]:
    """For each way measured at that size."""
    found = []
    for way, without in OUTSIDE.items():
        inside, outside = (
            evidence.row("graph_memory", "step", way=name, size_bytes=size_bytes, pairs=pairs)
            for name in (way, without)
        )
        if inside is not None and outside is not None:
            resolved = not inside.interval.overlaps(outside.interval)
            seconds = max(inside.value - outside.value, 0.0) / pairs if resolved else 0.0
            found.append(Added(way, seconds, inside, outside))
    return found


def memory(evidence: Evidence) -> list[Finding]:
    """What an allocation costs in a graph's nodes, from a pool that keeps, and from one that gives back."""
    sizes = [count for count, _ in evidence.curve("graph_memory", "step", "size_bytes", pairs=1)]
    if not sizes:
        return []
    usual = min(sizes, key=lambda count: abs(count - USUAL_BYTES))
    found = added(evidence, usual)
    if not found:
        return []
    by_way = {one.way: one for one in found}
    kept, released = by_way.get("stream_kept"), by_way.get("stream_released")
    dear = bool(kept and released and released.seconds > max(kept.seconds, 1e-9) * RELEASE_DEAR)
    steps = [f"{as_time(one.inside.value)} instead of {as_time(one.outside.value)} {WORDS[one.way]}" for one in found]
    text = f"A step that allocates {size(usual)}, uses and frees it takes {', '.join(steps)}."
    largest = added(evidence, sizes[-1]) if sizes[-1] != usual else []
    if largest:
        text += f" {size(sizes[-1])} add {', '.join(one.words for one in largest)}."
    text += _held(evidence, sizes[-1])
    if dear:
        text += " Raise the pool's release threshold (cuMemPoolSetAttribute) where steps allocate."
    return [
        Finding(
            rule="graph.memory",
            severity="advice" if dear else "note",
            title=f"An allocation of {size(usual)} adds to a step {', '.join(one.words for one in found)}",
            text=text,
            threshold=(
                "a step less the same step with memory allocated before; nothing measurable where their intervals "
                f"overlap; advised above {RELEASE_DEAR:g} times the pool that keeps"
            ),
            rests_on=tuple(dict.fromkeys(rests_on(*(row for one in found + largest for row in one[2:])))),
            suite="graph",
        )
    ]


def _held(evidence: Evidence, size_bytes: int) -> str:
    held = [
        f"{quantity(row.value, 'B')} {who}"
        for way, who in HOLDERS.items()
        for row in evidence.rows("graph_memory", "held", way=way, size_bytes=size_bytes, pairs=1)
        if row.value > 0
    ]
    return f" Held from step to step: {', '.join(held)}." if held else ""


# Explains programmatic dependent launch in graph_nodes: what it saves a kernel that needs the one in front.


PLACES = {"a stream": "stream", "a graph": "node"}
# How the kinds of a case end; whom a title names; when a kernel of the case needs the one in front.
CASES = {
    "": ("dependent kernels", "at once"),
    "_prologue": ("kernels that begin with 1 µs of work of their own", "after 1 µs of work of its own"),
}


class Gain(NamedTuple):
    """A kernel without PDL, and with it: by the attribute alone, and with an early trigger in the kernel in front."""

    place: str
    plain: Row
    attribute: Row | None
    trigger: Row | None

    @property
    def rows(self) -> tuple[Row, ...]:
        """All that were measured."""
        return tuple(row for row in self[1:] if row is not None)

    @property
    def speedup(self) -> float:
        """Of the better way."""
        return self.plain.value / min(row.value for row in self.rows[1:])

    @property
    def words(self) -> str:
        """What it takes there, each way."""
        ways = [(self.attribute, "with PDL"), (self.trigger, "with an early trigger as well")]
        each = [f"{as_time(row.value)} {how}" for row, how in ways if row is not None]
        return f"in {self.place} {', '.join([as_time(self.plain.value), *each])}"


def gains(evidence: Evidence, case: str) -> list[Gain]:
    """What PDL saves in a stream and in a graph, of the kinds that end in ``case``."""
    found = []
    for place, metric in PLACES.items():
        plain, attribute, trigger = (
            evidence.row("graph_nodes", metric, kind=kind + case) for kind in ("kernel", "pdl", "pdl_trigger")
        )
        if plain is not None and (attribute is not None or trigger is not None):
            found.append(Gain(place, plain, attribute, trigger))
    return found


def dependent_launch(evidence: Evidence) -> list[Finding]:
    """What programmatic dependent launch saves: the gap, and with an early trigger what a kernel does before it waits.

    The title is of kernels with such work, where they were measured: those PDL is for.
    """
    found = {case: several for case in CASES if (several := gains(evidence, case))}
    if not found:
        return []
    words = [
        f"A kernel that needs the one in front {CASES[case][1]} takes {'; '.join(one.words for one in several)}."
        for case, several in found.items()
    ]
    case, told = list(found.items())[-1]
    whom = CASES[case][0]
    title = f"Programmatic dependent launch does not speed {whom} up"
    if any(one.speedup > EQUAL for one in told):
        speedups = listed([f"{times(one.speedup)} in {one.place}" for one in told])
        title = f"Programmatic dependent launch speeds {whom} up {speedups}"
    return [
        Finding(
            rule="graph.pdl",
            severity="note",
            title=title,
            text=(
                f"{' '.join(words)} The attribute alone can save the gap. The work before the wait runs under the "
                "kernel in front only where that one triggers early (cudaTriggerProgrammaticLaunchCompletion)."
            ),
            threshold=f"without PDL over the better way with it; told as faster above {EQUAL:.2f} times",
            rests_on=rests_on(*(row for several in found.values() for one in several for row in one.rows)),
            suite="graph",
        )
    ]


# Explains graph_shape: branches in a graph against as many streams, and from how many on more do not help.


USUAL_DURATION_NS = 5000
ROOTS = 5.0
HELPS = 1.05

# Branches, the replay's row, the streams' row.
Point = tuple[int, Row, Row]


def points(evidence: Evidence, shape: str, duration_ns: int) -> list[Point]:
    """Replay and streams over the count of branches; a chain is one branch of a fork."""
    found: dict[int, Point] = {}
    for name in (shape, "chain"):
        chosen: dict[str, int | str] = {"shape": name, "duration_ns": duration_ns}
        streams = dict(evidence.curve("graph_shape", "streams", "branches", **chosen))
        for branches, row in evidence.curve("graph_shape", "graph", "branches", **chosen):
            other = streams.get(branches)
            if other is not None and row.value > 0 and other.value > 0:
                found.setdefault(branches, (branches, row, other))
    return [found[branches] for branches in sorted(found)]


def enough(measured: Sequence[Point]) -> int:
    """The fewest branches behind which no larger count makes the replay HELPS times as fast."""
    for index, (branches, row, _) in enumerate(measured):
        if all(row.value < later.value * HELPS for _, later, _ in measured[index + 1 :]):
            return branches
    return measured[-1][0]


def shapes(evidence: Evidence) -> list[Finding]:
    """How a graph's branches compare with streams, and how many branches help."""
    durations = [duration for duration, _ in evidence.curve("graph_shape", "graph", "duration_ns", shape="fork_join")]
    if not durations:
        return []
    duration_ns = min(durations, key=lambda one: abs(one - USUAL_DURATION_NS))
    measured = points(evidence, "fork_join", duration_ns)
    if len(measured) < 2:
        return []
    kernels = "empty kernels" if duration_ns == 0 else f"kernels of {as_time(duration_ns * 1e-9)}"
    most = enough(measured)
    branches, graph, streams = next(point for point in measured if point[0] == most)
    independent = points(evidence, "independent", duration_ns)[-1:]
    text = f"With {kernels}, replay against streams: {', '.join(_words(point) for point in measured)}."
    text += "".join(f" All {point[0]} independent: {_words(point, '')}." for point in independent if point[0] > 1)
    text += _roots(evidence, duration_ns)
    if most < measured[-1][0]:
        text += f" More than {most} branches do not help: the GPU starts kernels no faster."
    return [
        Finding(
            rule="graph.shape",
            severity="note",
            title=_title(branches, graph, streams),
            text=text,
            threshold=(
                f"branches are enough when more make a replay less than {HELPS:g} times as fast; first nodes keep the "
                f"host above {ROOTS:g} times a chain's call"
            ),
            rests_on=tuple(dict.fromkeys(rests_on(*(row for point in measured + independent for row in point[1:])))),
            suite="graph",
        )
    ]


def _roots(evidence: Evidence, duration_ns: int) -> str:
    """What many first nodes cost the host, and how to have one; nothing where their replay call is as short as any."""
    many, one = (
        evidence.row("graph_shape", "graph_submit", shape=shape, duration_ns=duration_ns)
        for shape in ("independent", "chain")
    )
    if many is None or one is None or many.value < one.value * ROOTS:
        return ""
    text = f" Nodes that depend on nothing the host submits: their replay call takes {as_time(many.value)}, a chain's "
    text += f"{as_time(one.value)}."
    forks = evidence.curve("graph_shape", "graph_submit", "branches", shape="fork_join", duration_ns=duration_ns)
    if forks:
        text += f" With one kernel in front of all branches it takes {as_time(forks[-1][1].value)}."
    return text


def _title(branches: int, graph: Row, streams: Row) -> str:
    ratio = streams.value / graph.value
    if branches == 1:
        return "Branches in a graph do not help here"
    if 1 / EQUAL < ratio < EQUAL:
        return f"{branches} branches in a graph take as long as on {branches} streams: {as_time(graph.value)}"
    than = f"{times(max(ratio, 1 / ratio))} as {'fast' if ratio > 1 else 'slow'}"
    return f"{branches} branches in a graph take {as_time(graph.value)}, {than} as on {branches} streams"


def _words(point: Point, name: str = "branch") -> str:
    branches, graph, streams = point
    head = f"{branches} {name}{'es' if branches > 1 else ''} " if name else ""
    return f"{head}{as_time(graph.value)} against {as_time(streams.value)}"
