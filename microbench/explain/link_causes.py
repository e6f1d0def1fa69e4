"""The verdict on a GPU's link as facts: what copies reach of its ceiling, and the likeliest causes if little."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from microbench.analysis.evidence import Evidence, Severity, rests_on
from microbench.analysis.limits import ASSUMED_PAYLOAD_BYTES, Ceiling, pcie_rate
from microbench.analysis.stats import Row
from microbench.explain.link_facts import (
    DEVICE,
    DIRECTIONS,
    MOST,
    RISEN,
    Contention,
    Joint,
    LinkFacts,
    Speed,
    bridges,
    copy_fit,
    fastest,
    gpu_speed,
    joints,
    link_facts,
    nodes,
    shared_uplinks,
)

HEALTHY = 0.9
BROKEN = 0.6
# Where sizes are too few for a fit: 5 us of fixed cost take a tenth of such a copy at 93 GB/s, less on a slower link.
FILLING_BYTES = 4 << 20
FASTER_NODE = 1.05


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Something that slows copies down. ``certain`` causes follow from facts alone, without any measured copy."""

    rests_on: tuple[str, ...]
    certain: bool = False


class SlowLink(Cause, frozen=True, kw_only=True):
    """The GPU's link runs below what GPU and slot support; ``used`` is the share of its speed that copies reach."""

    now: Speed
    possible: Speed
    idle: bool
    slot_known: bool
    used: float | None


class SlowUpstream(Cause, frozen=True, kw_only=True):
    """A link between bridges runs below what both ends support, and below what the GPU could use."""

    joint: Joint
    now: Speed
    possible: Speed
    at_root: bool
    idle: bool


class NarrowSlot(Cause, frozen=True, kw_only=True):
    """A bridge on the path supports less than the GPU; ``used`` is the share of its speed that copies reach."""

    bus_id: str | None
    slot: Speed
    gpu: Speed
    used: float | None


class FarNode(Cause, frozen=True, kw_only=True):
    """Buffers on another NUMA node than the copies used are faster."""

    node: int
    direction: str
    rate: float


class SmallCopies(Cause, frozen=True, kw_only=True):
    """The largest copy is too small to fill the link, which takes ``needed_bytes``."""

    size_bytes: int
    needed_bytes: float


class SharedUplink(Cause, frozen=True, kw_only=True):
    """Other GPUs take from the same uplink when they copy."""

    worst: Contention


class Recorded(Cause, frozen=True, kw_only=True):
    """A recorded fact: PCIe error counters rose, other processes use the GPU, the IOMMU translates every address, or a
    virtual machine hides the path to the GPU."""

    what: Literal["errors", "other_processes", "translated", "hidden"]


def causes(evidence: Evidence) -> list[Cause]:
    """Everything in this run that may slow copies down."""
    facts, gpu = link_facts(evidence), evidence.gpu
    errors = tuple(f"{name}{RISEN}" for name in facts.damaging() if name.startswith("pcie_"))
    busy = gpu is not None and gpu.other_processes
    seen = (
        _slow_link(evidence, facts),
        _slow_upstream(evidence, facts),
        _narrow_slot(evidence, facts),
        Recorded(what="errors", rests_on=errors, certain=True) if errors else None,
        _far_node(evidence),
        _small_copies(evidence),
        Recorded(what="other_processes", rests_on=("gpu other_processes",)) if busy else None,
        _shared_uplink(evidence),
        Recorded(what="translated", rests_on=("iommu",)) if facts.text("iommu") == "translated" else None,
        Recorded(what="hidden", rests_on=("virtual_bus",)) if facts.flag("virtual_bus") else None,
    )
    return [cause for cause in seen if cause is not None]


def _slow_link(evidence: Evidence, facts: LinkFacts) -> SlowLink | None:
    now, gpu, slot = facts.now, gpu_speed(evidence, facts), facts.slot
    if now is None or gpu is None or _disproved(evidence, now):
        return None
    possible = Speed(min(gpu.generation, slot.generation), min(gpu.lanes, slot.lanes)) if slot else gpu
    if now.generation >= possible.generation and now.lanes >= possible.lanes:
        return None
    return SlowLink(
        rests_on=("generation_now", "lanes_now"),
        certain=not facts.idle,
        now=now,
        possible=possible,
        idle=facts.idle,
        slot_known=slot is not None,
        used=_used(evidence, now),
    )


def _disproved(evidence: Evidence, speed: Speed) -> bool:
    """Whether copies were faster than such a link carries: then its speed was misread."""
    peaks = (fastest(evidence, direction) for direction in DIRECTIONS)
    return any(peak is not None and peak[1].interval.low > speed.raw_rate for peak in peaks)


def _used(evidence: Evidence, speed: Speed) -> float | None:
    """The share of such a link's payload rate that the slower direction reaches; None where unknown or above 1."""
    link = evidence.gpu.link if evidence.gpu is not None else None
    payload_bytes = (link.max_payload_bytes if link is not None else None) or ASSUMED_PAYLOAD_BYTES
    shares = [
        peak[1].value / rate
        for direction in DIRECTIONS
        if (peak := fastest(evidence, direction)) is not None
        and (rate := pcie_rate(speed.generation, speed.lanes, direction, payload_bytes))
    ]
    return min(shares) if shares and max(shares) <= 1 else None


def _slow_upstream(evidence: Evidence, facts: LinkFacts) -> SlowUpstream | None:
    gpu = gpu_speed(evidence, facts)
    if gpu is None or facts.flag("virtual_bus"):
        return None
    for index, joint in enumerate(joints(facts, bridges(facts))[:-1]):
        now, most = joint.now, joint.most
        if now is None or most is None or not joint.slowed or now.raw_rate >= gpu.raw_rate or _disproved(evidence, now):
            continue
        hop = facts.hops().index(joint.below)
        return SlowUpstream(
            rests_on=(f"hop{hop}_generation_now", f"hop{hop}_lanes_now"),
            certain=not facts.idle,
            joint=joint,
            now=now,
            possible=most,
            at_root=index == 0,
            idle=facts.idle,
        )
    return None


def _narrow_slot(evidence: Evidence, facts: LinkFacts) -> NarrowSlot | None:
    slot, gpu = facts.slot, gpu_speed(evidence, facts)
    if slot is None or gpu is None or slot.raw_rate >= gpu.raw_rate or _disproved(evidence, slot):
        return None
    names, bus_id = ("generation_slot_max", "lanes_slot_max"), facts.text("slot_limit_bus_id")
    return NarrowSlot(rests_on=names, certain=True, bus_id=bus_id, slot=slot, gpu=gpu, used=_used(evidence, slot))


def _far_node(evidence: Evidence) -> FarNode | None:
    for direction in DIRECTIONS:
        peak, rates = fastest(evidence, direction), nodes(evidence, direction)
        if peak is None or len(rates) < 2:
            continue
        node, row = max(rates.items(), key=lambda item: item[1].value)
        if row.value >= FASTER_NODE * peak[1].value:
            return FarNode(rests_on=rests_on(peak[1], row), node=node, direction=direction, rate=row.value)
    return None


def _small_copies(evidence: Evidence) -> SmallCopies | None:
    for direction in DIRECTIONS:
        peak, fit = fastest(evidence, direction), copy_fit(evidence, DEVICE, direction, "pinned")
        needed_bytes = fit.size_for(MOST) if fit is not None else FILLING_BYTES
        if peak is not None and peak[0] < needed_bytes:
            return SmallCopies(rests_on=rests_on(peak[1]), size_bytes=peak[0], needed_bytes=needed_bytes)
    return None


def _shared_uplink(evidence: Evidence) -> SharedUplink | None:
    own = evidence.gpu.index if evidence.gpu is not None else 0
    mine = [contention for contention in shared_uplinks(evidence) if contention.gpu_index == own]
    worst = min(mine, key=lambda contention: contention.share, default=None)
    return SharedUplink(rests_on=rests_on(worst.alone, worst.together), worst=worst) if worst is not None else None


class Reached(NamedTuple):
    """The fastest pinned copies in one direction, and the ceiling of their link."""

    direction: str
    size_bytes: int
    row: Row
    limit: Ceiling

    @property
    def share(self) -> float:
        """1 is the ceiling."""
        return self.row.value / self.limit.value

    @property
    def over(self) -> bool:
        """Whether the whole interval lies above the ceiling."""
        return self.row.interval.low > self.limit.value


class Verdict(NamedTuple):
    """Copies held against their ceiling in one or both directions, and what may slow them down."""

    reached: tuple[Reached, ...]
    causes: tuple[Cause, ...]

    @property
    def worst(self) -> Reached:
        """The direction with the lower share."""
        return min(self.reached, key=lambda reached: reached.share)

    @property
    def over(self) -> Reached | None:
        """A direction that exceeds its ceiling, which is then wrong."""
        return next((reached for reached in self.reached if reached.over), None)

    @property
    def slow(self) -> bool:
        """Whether the slower direction is below HEALTHY."""
        return self.worst.share < HEALTHY

    @property
    def small(self) -> SmallCopies | None:
        """Copies that are too small to judge the link by, where nothing is certainly wrong."""
        if not self.slow or self.over or any(cause.certain for cause in self.causes):
            return None
        return next((cause for cause in self.causes if isinstance(cause, SmallCopies)), None)

    @property
    def blamed(self) -> list[Cause]:
        """The causes of a slow link, certain ones first; of a fast one only certain ones."""
        certain, others = ([cause for cause in self.causes if cause.certain is known] for known in (True, False))
        return [*certain, *others] if self.slow else certain

    @property
    def severity(self) -> Severity:
        if self.small:
            return "note"
        if self.slow or self.over or self.blamed:
            return "problem" if self.worst.share < BROKEN else "warning"
        return "good"


def verdict(evidence: Evidence) -> Verdict | None:
    """The verdict on the link; None without pinned copies or without a ceiling."""
    reached = []
    for direction in DIRECTIONS:
        peak = fastest(evidence, direction)
        limit = evidence.ceiling(peak[1]) if peak is not None else None
        if peak is not None and limit is not None:
            reached.append(Reached(direction, *peak, limit))
    return Verdict(tuple(reached), tuple(causes(evidence))) if reached else None
