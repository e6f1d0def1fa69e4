"""The way to a GPU hop by hop: which ports make one switch, and what the link between two neighbours runs at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from microbench.explain.link_facts import Hop, LinkFacts, Speed

UPSTREAM, DOWNSTREAM, UNNAMED = "upstream", "downstream", "bridge"


class Joint(NamedTuple):
    """Two neighbours with a PCIe link between them, the one nearer to the processor first."""

    above: Hop
    below: Hop

    @property
    def now(self) -> Speed | None:
        """What the link runs at."""
        return self.below.now or self.above.now

    @property
    def most(self) -> Speed | None:
        """What both ends could do, as far as they say."""
        ends = [one for one in (self.above.most, self.below.most) if one is not None]
        return Speed(min(one.generation for one in ends), min(one.lanes for one in ends)) if ends else None

    @property
    def slowed(self) -> bool:
        """Whether it runs at less than both ends could do."""
        return self.now is not None and self.most is not None and 0 < self.now.raw_rate < self.most.raw_rate


def bridges(facts: LinkFacts) -> list[list[Hop]]:
    """The bridges from the root downwards; a switch's two ports are one group.

    Kinds of ports need root to be read: without it the count of switches says whether unnamed bridges are their ports.
    """
    found = facts.hops()[:0:-1]
    unnamed = sum(hop.kind == UNNAMED for hop in found)
    paired = unnamed > 0 and unnamed == 2 * (facts.number("switches") or 0)
    groups: list[list[Hop]] = []
    for hop in found:
        if groups and len(groups[-1]) == 1 and _one_switch(groups[-1][0], hop, paired=paired):
            groups[-1].append(hop)
        else:
            groups.append([hop])
    return groups


def _one_switch(first: Hop, second: Hop, *, paired: bool) -> bool:
    if paired and first.kind == second.kind == UNNAMED:
        return True
    return UPSTREAM in first.kind and DOWNSTREAM in second.kind


def joints(facts: LinkFacts, groups: Sequence[Sequence[Hop]]) -> list[Joint]:
    """The links from the root port downwards, the GPU's own last; inside a switch there is none."""
    if not groups:
        return []
    below = [*(group[0] for group in groups[1:]), facts.hops()[0]]
    return [Joint(group[-1], hop) for group, hop in zip(groups, below, strict=True)]
