"""Gives the idle time as a tree of functions, and draws and writes it as a flame graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from microbench.core.units import plain
from microbench.diagnosis.diagnosis import Diagnosis
from microbench.diagnosis.idle import CAUSES, Cause, Stack, said
from microbench.diagnosis.lanes import IDLE, LONGEST_NAME, Lane, Piece

SPEEDSCOPE = "https://www.speedscope.app/file-format-schema.json"


class Node(NamedTuple):
    """Idle time in ns: all of it, that of a cause, or that in a function or a CUDA call by who called it. ``within``
    are the parts of it in what it calls, the largest first."""

    name: str
    ns: int
    within: tuple[Node, ...]

    @property
    def itself_ns(self) -> int:
        """What passes in itself."""
        return self.ns - sum(one.ns for one in self.within)


def tree(diagnosis: Diagnosis) -> Node:
    """All idle time; the nodes of the first level are causes."""
    stacks = diagnosis.idle.stacks_ns if diagnosis.idle is not None else {}
    return _node(IDLE, Counter(stacks))


def _node(name: str, stacks: Counter[Stack]) -> Node:
    parts: dict[str, Counter[Stack]] = {}
    for (first, *rest), ns in ((stack, ns) for stack, ns in stacks.items() if stack):
        parts.setdefault(first, Counter())[tuple(rest)] += ns
    within = sorted((_node(first, of) for first, of in parts.items()), key=lambda one: -one.ns)
    return Node(name, stacks.total(), tuple(within))


class Row(NamedTuple):
    """A node of a tree as a row: how deep it lies, its time in ns, and that in itself, None where no row says the rest.

    ``names`` are functions that call one another. A row has several where all but the last take no time of their own.
    A row without names is what is left of the row above it.
    """

    depth: int
    names: tuple[str, ...]
    ns: int
    itself_ns: int | None


def rows(node: Node, least_ns: float, depth: int = 0) -> Iterator[Row]:
    """A node and all below it that last at least so long, the outermost first. The rest of what a node calls is a row
    of its own, so that a row is what those below it and itself have."""
    names = [node.name]
    while depth and len(node.within) == 1 and node.itself_ns == 0:
        (node,) = node.within
        names.append(node.name)
    large = [one for one in node.within if one.ns >= least_ns]
    yield Row(depth, tuple(names), node.ns, node.itself_ns if large else None)
    for one in large:
        yield from rows(one, least_ns, depth + 1)
    rest_ns = sum(one.ns for one in node.within) - sum(one.ns for one in large)
    if large and rest_ns:
        yield Row(depth + 1, (), rest_ns, None)


def flame(diagnosis: Diagnosis, most_rows: int, smallest: float) -> tuple[Lane, ...]:
    """The tree as a flame graph of a step, the outermost on top: a lane for each depth, with pieces as long as the time
    in s is, if that is at least the share ``smallest`` of all."""
    root, count = tree(diagnosis), diagnosis.steps.count if diagnosis.steps is not None else 1
    lanes: list[list[Piece]] = [[] for _ in range(most_rows)]

    def laid(node: Node, begin_ns: int, cause: Cause, depth: int) -> None:
        end_ns = begin_ns + node.ns
        name = plain(said(diagnosis.trace, node.name), LONGEST_NAME)
        piece = Piece(begin_ns * 1e-9 / count, end_ns * 1e-9 / count, name, cause)
        lanes[depth].append(piece)
        for one in node.within if depth + 1 < most_rows else ():
            if one.ns >= smallest * root.ns:
                laid(one, begin_ns, cause, depth + 1)
            begin_ns += one.ns

    begin_ns = 0
    causes: dict[str, Cause] = {cause: cause for cause in CAUSES}
    for node in root.within:
        laid(node, begin_ns, causes[node.name], 0)
        begin_ns += node.ns
    return tuple(Lane("", tuple(pieces)) for pieces in lanes if pieces)


def speedscope(diagnosis: Diagnosis) -> bytes:
    """The idle time as a profile of speedscope: a stack for each cause, functions and call, weighted in s."""
    stacks = diagnosis.idle.stacks_ns if diagnosis.idle is not None else {}
    frames = {name: place for place, name in enumerate(dict.fromkeys(name for stack in stacks for name in stack))}
    seconds = [ns * 1e-9 for ns in stacks.values()]
    title = f"GPU idle, by cause: {diagnosis.trace.source}"
    profile = {
        "type": "sampled", "name": title, "unit": "seconds", "startValue": 0, "endValue": sum(seconds),
        "samples": [[frames[name] for name in stack] for stack in stacks], "weights": seconds,
    }  # fmt: skip
    shared = {"frames": [{"name": said(diagnosis.trace, name)} for name in frames]}
    whole = {"$schema": SPEEDSCOPE, "exporter": "microbench", "name": title, "shared": shared, "profiles": [profile]}
    return msgspec.json.encode(whole)
