"""What link_state found out about a GPU's link, read for the rules: generations, widths, the way hop by hop."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, facts_of
from microbench.analysis.fits import Line, line
from microbench.analysis.stats import Row
from microbench.core.model import Fact, Scalar, pcie_raw_rate

RISEN = "_risen"
UNDER_LOAD = "read_under_load"
OTHERS_BUSY = "others_busy_throughout"  # what was measured beside others was beside them to its end
# A lane may get one bit in 10^12 wrong (PCI Express base specification): less than one of the 4e11 bits that link_state
# moves while it counts. What is never to happen has no such allowance.
TOLERATED_ERRORS = 3
NEVER = ("pcie_replay_rollovers", "pcie_nonfatal_errors", "pcie_fatal_errors")
TOPOLOGY = "topology_"
MOST_HOPS = 64


class Speed(NamedTuple):
    """Generation and width of a PCIe link."""

    generation: int
    lanes: int

    @property
    def words(self) -> str:
        """As people write it: "5.0 x16"."""
        return f"{self.generation}.0 x{self.lanes}"

    @property
    def raw_rate(self) -> float:
        """Bytes a second and direction, headers included; 0 for a generation that is not known."""
        return pcie_raw_rate(self.generation, self.lanes) or 0.0


class Hop(NamedTuple):
    """One device on the way from the GPU up to the processor; speeds are those of its link upwards."""

    bus_id: str
    kind: str
    now: Speed | None
    most: Speed | None


class LinkFacts:
    """Facts by name; every look-up answers None for what is unknown."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self._facts = {fact.name: fact for fact in facts}

    def __bool__(self) -> bool:
        return bool(self._facts)

    def value(self, name: str) -> Scalar:
        """The value, whatever it is."""
        fact = self._facts.get(name)
        return fact.value if fact is not None else None

    def number(self, name: str) -> int | None:
        """A whole number."""
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, name: str) -> bool | None:
        """A truth."""
        value = self.value(name)
        return value if isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        """A word."""
        value = self.value(name)
        return value if isinstance(value, str) else None

    def speed(self, generation: str, lanes: str) -> Speed | None:
        """Generation and width from two facts; None unless both are known."""
        known, wide = self.number(generation), self.number(lanes)
        return Speed(known, wide) if known and wide else None

    @property
    def now(self) -> Speed | None:
        """What the link ran at while it was busy."""
        return self.speed("generation_now", "lanes_now")

    @property
    def slot(self) -> Speed | None:
        """The narrowest bridge on the way."""
        return self.speed("generation_slot_max", "lanes_slot_max")

    def risen(self) -> dict[str, int]:
        """Error counters that rose while the link was busy, by their name."""
        found = {name.removesuffix(RISEN): self.number(name) for name in self._facts if name.endswith(RISEN)}
        return {name: count for name, count in found.items() if count}

    def damaging(self) -> dict[str, int]:
        """Those that rose further than a sound link's may."""
        return {name: count for name, count in self.risen().items() if count > TOLERATED_ERRORS or name in NEVER}

    @property
    def idle(self) -> bool:
        """Whether copies had ended before all was read, so that a link below its full speed means nothing."""
        return self.flag(UNDER_LOAD) is False

    def topology(self) -> dict[str, str]:
        """How far the other devices are: "gpu1" -> "PIX"."""
        found = {name: self.text(name) for name in self._facts if name.startswith(TOPOLOGY)}
        return {name.removeprefix(TOPOLOGY): words for name, words in found.items() if words}

    def hops(self) -> list[Hop]:
        """The way from the GPU upwards as far as it is known."""
        known = takewhile(lambda index: f"hop{index}_bus_id" in self._facts, range(MOST_HOPS))
        return [self._hop(index) for index in known]

    def _hop(self, index: int) -> Hop:
        name = f"hop{index}_"
        return Hop(
            bus_id=self.text(f"{name}bus_id") or "",
            kind=self.text(f"{name}kind") or "",
            now=self.speed(f"{name}generation_now", f"{name}lanes_now"),
            most=self.speed(f"{name}generation_max", f"{name}lanes_max"),
        )


def link_facts(evidence: Evidence) -> LinkFacts:
    """The facts of the newest link_state that went well, with the worst that any round of its session saw; none at all
    without one."""
    sound = [one for one in evidence.outcomes("link_state") if one.status == "ok" and one.facts]
    if not sound:
        return LinkFacts(())
    rounds = [one.facts for one in sound if one.session == sound[-1].session]
    told: dict[str, list[Fact]] = {}
    for fact in (fact for facts in rounds for fact in facts):
        told.setdefault(fact.name, []).append(fact)
    risen = [fact for facts in rounds for fact in facts if fact.name.endswith(RISEN)]
    newest = {one.name: one for one in (*risen, *rounds[-1])}
    return LinkFacts(_worst(fact, told[name]) for name, fact in newest.items())


def _worst(fact: Fact, told: Sequence[Fact]) -> Fact:
    """That fact of all rounds where it says most against the link: an error counts in whichever round it came, and a
    link that one round found idle may be so in what is told of it. Other facts are the newest round's."""
    if fact.name.endswith(RISEN):
        return max(told, key=lambda one: one.value if isinstance(one.value, int) else -1)
    if fact.name == UNDER_LOAD:
        return next((one for one in told if one.value is not True), fact)
    return fact


def partly_alone(*found: Row) -> bool:
    """Whether in any round of these rows the others ended first, so that part of the figure is of one alone."""
    return any(value is False for row in found for value in facts_of(row, OTHERS_BUSY))


def gpu_speed(evidence: Evidence, facts: LinkFacts) -> Speed | None:
    """What the GPU itself could do, by link_state or as the environment has it."""
    own = facts.speed("generation_gpu_max", "lanes_gpu_max")
    gpu = evidence.gpu
    if own is None and gpu is not None and gpu.link.generation_max and gpu.link.lanes_max:
        return Speed(gpu.link.generation_max, gpu.link.lanes_max)
    return own


def shares_memory(evidence: Evidence, facts: LinkFacts) -> str | None:
    """Why PCIe is no measure for this GPU, in words; None where it is."""
    gpu = evidence.gpu
    if gpu is not None and gpu.integrated:
        return "an integrated GPU, its memory is the host's"
    coherent = facts.flag("c2c") or (gpu is not None and gpu.link.coherent)
    return "a coherent chip-to-chip link joins GPU and processor" if coherent else None


# The copies of a run, for all rules of the link: curves over size, the fit T = a + V / b, times at a size.


DIRECTIONS = {"h2d": "to the GPU", "d2h": "from the GPU"}
MEMORIES = {
    "pinned": "pinned",
    "pageable": "pageable",
    "write_combined": "write-combined",
    "registered": "registered",
}
DEVICE, HOST = "bandwidth", "bandwidth_host"

# Bytes of a copy, its rate.
Point = tuple[int, Row]


class CopyFit(NamedTuple):
    """T = a + V / b through the copies of one direction and kind of memory."""

    line: Line
    points: tuple[Point, ...]

    @property
    def fixed_s(self) -> float:
        """a: what a copy takes however small it is."""
        return self.line.constant

    @property
    def bandwidth(self) -> float:
        """b, in bytes a second."""
        return 1 / self.line.slope

    def size_for(self, share: float) -> float:
        """Bytes at which a copy reaches that share of b: half of it at a * b, 90 % at 9 * a * b."""
        return self.fixed_s * self.bandwidth * share / (1 - share)


def copies(evidence: Evidence, metric: str, direction: str, memory: str) -> list[Point]:
    """The rates over size, ascending."""
    found = evidence.curve("link_copy", metric, "size_bytes", direction=direction, memory=memory)
    return [(size, row) for size, row in found if size > 0 and row.value > 0]


def copy_fit(evidence: Evidence, metric: str, direction: str, memory: str) -> CopyFit | None:
    """The fit by relative least squares; None with too few sizes, or where time does not grow with size."""
    points = tuple(copies(evidence, metric, direction, memory))
    found = line((size, size / row.value) for size, row in points)
    return CopyFit(found, points) if found is not None and found.slope > 0 else None


def fastest(evidence: Evidence, direction: str, memory: str = "pinned", metric: str = DEVICE) -> Point | None:
    """The size with the highest rate."""
    return max(copies(evidence, metric, direction, memory), key=lambda point: point[1].value, default=None)


def seconds_at(points: Sequence[Point], size: int) -> float | None:
    """What a copy of that size takes: straight over the size between two measured ones, None outside of them.

    T = a + V / b is straight there; a curve that bends in between is met only roughly.
    """
    for (below, first), (above, second) in itertools.pairwise(points):
        if below <= size <= above:
            begin_s, end_s = below / first.value, above / second.value
            return begin_s + (end_s - begin_s) * (size - below) / (above - below)
    return next((size / row.value for measured, row in points if measured == size), None)


# The way to a GPU hop by hop: which ports make one switch, and what the link between two neighbours runs at.


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
