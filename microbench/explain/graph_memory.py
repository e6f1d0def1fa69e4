"""Explains graph_memory: what allocating inside a step costs, in a graph and in a stream."""

from __future__ import annotations

from typing import NamedTuple

from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.stats import Row
from microbench.units import as_time, quantity, size

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
