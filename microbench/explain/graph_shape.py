"""Explains graph_shape: branches in a graph against as many streams, and from how many on more do not help."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.stats import Row
from microbench.units import as_time, times

USUAL_DURATION_NS = 5000
ROOTS = 5.0
HELPS = 1.05
EQUAL = 1.05

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
