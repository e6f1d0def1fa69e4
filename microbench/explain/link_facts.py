"""Facts about a GPU's link, in SI units: its state and path, copies over it, kernels on host memory, other GPUs.

The other link files turn them into findings.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

import numpy as np

from microbench.analysis.evidence import Evidence, facts_of, paid_after, whole
from microbench.analysis.fits import Line, line
from microbench.analysis.limits import COMPLETION_HEADER_BYTES, WRITE_HEADER_BYTES
from microbench.analysis.stats import Row
from microbench.core.model import Scalar, pcie_raw_rate

DIRECTIONS = {"h2d": "to the GPU", "d2h": "from the GPU"}

# The state of the link: facts that link_state recorded.

RISEN = "_risen"
UNDER_LOAD = "read_under_load"
TOPOLOGY = "topology_"
MOST_HOPS = 64
# A lane may get one bit in 10^12 wrong (PCI Express base specification): less than one of the 4e11 bits that link_state
# moves while it counts. The counters in NEVER have no such allowance.
TOLERATED_ERRORS = 3
NEVER = ("pcie_replay_rollovers", "pcie_nonfatal_errors", "pcie_fatal_errors")


class Speed(NamedTuple):
    """Generation and width of a PCIe link."""

    generation: int
    lanes: int

    @property
    def words(self) -> str:
        return f"{self.generation}.0 x{self.lanes}"

    @property
    def raw_rate(self) -> float:
        """Bytes a second in one direction, headers included; 0 for an unknown generation."""
        return pcie_raw_rate(self.generation, self.lanes) or 0.0


class Hop(NamedTuple):
    """One device on the path from the GPU up to the processor; speeds are those of its upward link."""

    bus_id: str
    kind: str
    now: Speed | None
    most: Speed | None


class LinkFacts(dict[str, Scalar]):
    """Facts by name. Every look-up returns None for an unknown or missing fact, and for one of another type."""

    def number(self, name: str) -> int | None:
        value = self.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, name: str) -> bool | None:
        value = self.get(name)
        return value if isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        value = self.get(name)
        return value if isinstance(value, str) else None

    def speed(self, generation: str, lanes: str) -> Speed | None:
        """The speed that two facts give; None unless both are known."""
        known, width = self.number(generation), self.number(lanes)
        return Speed(known, width) if known and width else None

    @property
    def now(self) -> Speed | None:
        """The speed of the GPU's link while it was busy."""
        return self.speed("generation_now", "lanes_now")

    @property
    def slot(self) -> Speed | None:
        """The speed of the narrowest bridge on the path."""
        return self.speed("generation_slot_max", "lanes_slot_max")

    @property
    def idle(self) -> bool:
        """Whether copies ended before all facts were read: then a low speed may only be power saving."""
        return self.flag(UNDER_LOAD) is False

    def risen(self) -> dict[str, int]:
        """By how much each error counter rose while the link was busy; counters that did not rise are omitted."""
        counts = {name.removesuffix(RISEN): self.number(name) for name in self if name.endswith(RISEN)}
        return {name: count for name, count in counts.items() if count}

    def damaging(self) -> dict[str, int]:
        """The counters that rose further than those of a healthy link may."""
        return {name: count for name, count in self.risen().items() if count > TOLERATED_ERRORS or name in NEVER}

    def topology(self) -> dict[str, str]:
        """The topology class of each other device: "gpu1" -> "PIX"."""
        classes = {name: self.text(name) for name in self if name.startswith(TOPOLOGY)}
        return {name.removeprefix(TOPOLOGY): words for name, words in classes.items() if words}

    def hops(self) -> list[Hop]:
        """The path from the GPU upwards as far as it is known."""
        known = takewhile(lambda index: f"hop{index}_bus_id" in self, range(MOST_HOPS))
        return [
            Hop(
                bus_id=self.text(f"hop{index}_bus_id") or "",
                kind=self.text(f"hop{index}_kind") or "",
                now=self.speed(f"hop{index}_generation_now", f"hop{index}_lanes_now"),
                most=self.speed(f"hop{index}_generation_max", f"hop{index}_lanes_max"),
            )
            for index in known
        ]


def link_facts(evidence: Evidence) -> LinkFacts:
    """The facts of the newest session with a successful link_state; empty without one.

    Of several rounds the newest counts, with two exceptions: an error counts in whichever round it came, and a link
    that any round read idle may have been idle in all.
    """
    states = [outcome for outcome in evidence.outcomes("link_state") if outcome.status == "ok" and outcome.facts]
    rounds = [outcome.facts for outcome in states if outcome.session == states[-1].session]
    newest = {fact.name: fact for fact in rounds[-1]} if rounds else {}
    most: dict[str, int] = {}
    for fact in itertools.chain(*rounds):
        if fact.name.endswith(RISEN) and isinstance(fact.value, int) and fact.value > most.get(fact.name, -1):
            most[fact.name], newest[fact.name] = fact.value, fact
        elif fact.name == UNDER_LOAD and fact.value is False:
            newest[fact.name] = fact
    return LinkFacts((fact.name, fact.value) for fact in newest.values())


def gpu_speed(evidence: Evidence, facts: LinkFacts) -> Speed | None:
    """The highest speed of the GPU itself, from link_state or else from the environment."""
    own, gpu = facts.speed("generation_gpu_max", "lanes_gpu_max"), evidence.gpu
    if own is None and gpu is not None and gpu.link.generation_max and gpu.link.lanes_max:
        return Speed(gpu.link.generation_max, gpu.link.lanes_max)
    return own


def shares_memory(evidence: Evidence, facts: LinkFacts) -> Literal["integrated", "coherent"] | None:
    """Why PCIe says nothing about this GPU: it uses the host's memory, or a coherent chip-to-chip link joins them.

    None for a GPU behind PCIe.
    """
    gpu = evidence.gpu
    if gpu is not None and gpu.integrated:
        return "integrated"
    return "coherent" if facts.flag("c2c") or (gpu is not None and gpu.link.coherent) else None


# The path to the GPU: which ports form one switch, and at what speed each link between two devices runs.

UPSTREAM, DOWNSTREAM, UNNAMED = "upstream", "downstream", "bridge"


class Joint(NamedTuple):
    """Two neighbours with a PCIe link between them, the one nearer to the processor first."""

    above: Hop
    below: Hop

    @property
    def now(self) -> Speed | None:
        return self.below.now or self.above.now

    @property
    def most(self) -> Speed | None:
        """The highest speed that both ends support, as far as it is known."""
        ends = [speed for speed in (self.above.most, self.below.most) if speed is not None]
        return Speed(min(end.generation for end in ends), min(end.lanes for end in ends)) if ends else None

    @property
    def slowed(self) -> bool:
        return self.now is not None and self.most is not None and 0 < self.now.raw_rate < self.most.raw_rate


def bridges(facts: LinkFacts) -> list[list[Hop]]:
    """The bridges from the root downwards; the two ports of a switch form one group.

    Only root can read the kinds of ports: without them the number of switches tells whether unnamed bridges are ports.
    """
    hops = facts.hops()[:0:-1]
    unnamed = sum(hop.kind == UNNAMED for hop in hops)
    paired = unnamed > 0 and unnamed == 2 * (facts.number("switches") or 0)
    groups: list[list[Hop]] = []
    for hop in hops:
        upper = groups[-1][0].kind if groups and len(groups[-1]) == 1 else ""
        if (paired and upper == hop.kind == UNNAMED) or (UPSTREAM in upper and DOWNSTREAM in hop.kind):
            groups[-1].append(hop)
        else:
            groups.append([hop])
    return groups


def joints(facts: LinkFacts, groups: Sequence[Sequence[Hop]]) -> list[Joint]:
    """The links from the root port downwards, the GPU's own last; links inside a switch are omitted."""
    if not groups:
        return []
    below = [*(group[0] for group in groups[1:]), facts.hops()[0]]
    return [Joint(group[-1], hop) for group, hop in zip(groups, below, strict=True)]


# Copies by the copy engine: rates over size, the fit T = a + V / b, and times at a size.

MEMORIES = {"pinned": "pinned", "pageable": "pageable", "write_combined": "write-combined", "registered": "registered"}
DEVICE, HOST = "bandwidth", "bandwidth_host"
HALF, MOST = 0.5, 0.9
PAGEABLE_LOSS = 0.2
OTHERS_BUSY = "others_busy_throughout"  # false where the other copies ended before the measured ones

# Bytes of a copy, its rate.
Point = tuple[int, Row]


class CopyFit(NamedTuple):
    """T = a + V / b through copies of one kind."""

    line: Line
    points: tuple[Point, ...]

    @property
    def fixed_s(self) -> float:
        """a: the time of a copy of no bytes."""
        return self.line.constant

    @property
    def bandwidth(self) -> float:
        """b, in bytes a second."""
        return 1 / self.line.slope

    def size_for(self, share: float) -> float:
        """Bytes at which a copy reaches that share of b: half of it at a * b, 90 % at 9 * a * b."""
        return size_for(share, self.fixed_s, self.bandwidth)


def size_for(share: float, fixed_s: float, bandwidth: float) -> float:
    """Bytes at which a copy reaches that share of its bandwidth (B/s)."""
    return fixed_s * bandwidth * share / (1 - share)


def copies(evidence: Evidence, metric: str, direction: str, memory: str) -> list[Point]:
    """The rates over size, ascending."""
    curve = evidence.curve("link_copy", metric, "size_bytes", direction=direction, memory=memory)
    return [(size, row) for size, row in curve if size > 0 and row.value > 0]


def copy_fit(evidence: Evidence, metric: str, direction: str, memory: str) -> CopyFit | None:
    """The fit by relative least squares; None with too few sizes, or where time does not grow with size."""
    points = tuple(copies(evidence, metric, direction, memory))
    fitted = line((size, size / row.value) for size, row in points)
    return CopyFit(fitted, points) if fitted is not None and fitted.slope > 0 else None


def fastest(evidence: Evidence, direction: str, memory: str = "pinned", metric: str = DEVICE) -> Point | None:
    """The size with the highest rate."""
    return max(copies(evidence, metric, direction, memory), key=lambda point: point[1].value, default=None)


def seconds_at(points: Sequence[Point], size: int) -> float | None:
    """The time of a copy of that size, interpolated between two measured sizes; None outside of them.

    T = a + V / b is straight between sizes; a curve that bends there is met only roughly.
    """
    if not points or not points[0][0] <= size <= points[-1][0]:
        return None
    return float(np.interp(size, [size for size, _ in points], [size / row.value for size, row in points]))


def pageable_against_pinned(evidence: Evidence) -> dict[str, tuple[int, Row, Row]]:
    """For each direction the largest size at which pageable and pinned memory were both timed on the host.

    The value is that size in bytes, the pageable and the pinned row.
    """
    result = {}
    for direction in DIRECTIONS:
        pageable, pinned = (dict(copies(evidence, HOST, direction, memory)) for memory in ("pageable", "pinned"))
        if common := pageable.keys() & pinned.keys():
            result[direction] = (max(common), pageable[max(common)], pinned[max(common)])
    return result


def others_ended_first(*rows: Row) -> bool:
    """Whether in any round of these rows the other copies ended first, so that they were partly alone."""
    return any(value is False for row in rows for value in facts_of(row, OTHERS_BUSY))


def both_directions(evidence: Evidence) -> dict[str, tuple[Row, Row, Row]]:
    """Each direction at its largest size, where it was measured alone as well: alone, while the other direction works,
    and the sum of both directions."""
    result = {}
    for direction in DIRECTIONS:
        peak = fastest(evidence, direction)
        curve = evidence.curve("link_bidirectional", "bandwidth", "size_bytes", direction=direction)
        sums = dict(evidence.curve("link_bidirectional", "sum_bandwidth", "size_bytes", direction=direction))
        known = [(row, sums[size]) for size, row in curve if size in sums and row.value > 0 and sums[size].value > 0]
        if peak is not None and known:
            result[direction] = (peak[1], *known[-1])
    return result


def both_total(ways: Mapping[str, tuple[Row, Row, Row]]) -> Row | None:
    """The highest rate of both directions at once; None if it was not measured."""
    return max((total for _, _, total in ways.values()), key=lambda row: row.value, default=None)


def pieces(evidence: Evidence, work: Literal["copy", "copy_and_kernel"]) -> tuple[Row, Row] | None:
    """A step in one piece, and the fastest one in several pieces; None unless both were measured."""
    rows = [row for row in evidence.rows("link_chunks", "bandwidth", work=work) if row.value > 0]
    whole_step = next((row for row in rows if row.params.get("chunks") == 1), None)
    cut = max((row for row in rows if row.params.get("chunks") != 1), key=lambda row: row.value, default=None)
    return (whole_step, cut) if whole_step is not None and cut is not None else None


# What pinned memory costs to have, and after how many copies it has paid.

ALLOCATE, REGISTER, TOUCH = "allocate", "register", "touch"
PINNING = {ALLOCATE: "allocated pinned", REGISTER: "registered in place"}


class Choice(NamedTuple):
    """One buffer pinned one way: its extra cost over pageable memory, and what a copy saves in each direction.

    ``saved_s`` has the directions in which copies of both kinds of memory were measured around that size, ``paid``
    after how many copies pinning has paid, for each direction in which it pays at all, and ``never`` the others.
    """

    way: str
    size_bytes: int
    extra_s: float
    saved_s: dict[str, float]
    rows: tuple[Row, ...]
    paid: dict[str, int]
    never: list[str]


def choices(evidence: Evidence) -> list[Choice]:
    """Every buffer whose cost and copies are both known, by way and size.

    Allocating pinned memory replaces mapping and touching pageable memory, so only the difference counts.
    """
    points = {
        (direction, memory): copies(evidence, HOST, direction, memory)
        for direction in DIRECTIONS
        for memory in ("pageable", "pinned")
    }
    result = []
    for way in PINNING:
        for size, _ in evidence.curve("link_pinning", "pin", "size_bytes", way=way):
            own, replaced = _price(evidence, way, size), _price(evidence, TOUCH, size) if way == ALLOCATE else ()
            if own is None or replaced is None:
                continue
            saved_s = {}
            for direction in DIRECTIONS:
                pageable_s, pinned_s = (
                    seconds_at(points[direction, memory], size) for memory in ("pageable", "pinned")
                )
                if pageable_s is not None and pinned_s is not None:
                    saved_s[direction] = pageable_s - pinned_s
            if saved_s:
                extra_s = sum(row.value for row in own) - sum(row.value for row in replaced)
                paid = {to: after for to, saved in saved_s.items() if (after := paid_after(extra_s, saved)) is not None}
                never = [to for to in saved_s if to not in paid]
                result.append(Choice(way, size, extra_s, saved_s, (*own, *replaced), paid, never))
    return result


def _price(evidence: Evidence, way: str, size_bytes: int) -> tuple[Row, Row] | None:
    pin, release = (
        evidence.row("link_pinning", metric, way=way, size_bytes=size_bytes) for metric in ("pin", "release")
    )
    return (pin, release) if pin is not None and release is not None else None


# Kernels on host memory: what widths and offsets lose, the packets on the wire, and the latency of a read.

# What a kernel does, which counter holds its payload, and with how many header bytes.
COUNTED = {"read": ("received_per_byte", COMPLETION_HEADER_BYTES), "write": ("sent_per_byte", WRITE_HEADER_BYTES)}
POWER_MARGIN = 0.06
MOST_PAYLOAD_BYTES = 4096  # the largest of any PCIe packet: a larger result was counted wrong


def aligned_rates(evidence: Evidence, access: str) -> dict[int, Row]:
    """The rates without an offset, by the width of an access in bytes."""
    curve = evidence.curve("link_zero_copy", "bandwidth", "width_bytes", access=access, offset_bytes=0)
    return {width: row for width, row in curve if row.value > 0}


def packet_bytes(evidence: Evidence, access: str) -> int | None:
    """The payload of a packet that the byte counters show; a power of two where one is near."""
    rows = evidence.rows("link_zero_copy", COUNTED[access][0], access=access, offset_bytes=0)
    packet = payload_bytes(access, rows[0].value) if rows else None
    if packet is None:
        return None
    below = 1 << max(round(packet).bit_length() - 1, 0)
    near = min((below, 2 * below), key=lambda power: abs(power - packet))
    return near if abs(near - packet) < POWER_MARGIN * packet else round(packet)


def payload_bytes(access: str, per_byte: float) -> float | None:
    """The payload of a packet from the bytes counted for each byte of payload: header / (counted - 1).

    None where that cannot be a packet: nothing counted beyond the payload, or more payload than PCIe allows.
    """
    header_bytes = COUNTED[access][1]
    payload = header_bytes / (per_byte - 1) if per_byte > 1 else math.inf
    return payload if payload < MOST_PAYLOAD_BYTES * (1 + POWER_MARGIN) else None


def host_reads(evidence: Evidence) -> list[tuple[int, Row]]:
    """The latency of dependent reads of host memory over footprint, ascending."""
    curve = evidence.curve("link_latency", "latency", "footprint_bytes", what="host_read", order="sequential")
    return [(footprint, row) for footprint, row in curve if row.value > 0]


# NUMA nodes and other GPUs: whose memory is near, which GPUs share an uplink, what pairs of GPUs exchange.

FAR_LOSS = 0.05
SHARED_BELOW = 0.9  # a GPU whose share of its rate falls below this while others copy shares an uplink
EVERYBODY = "all"
LATENCY = "latency"
PEER_WAYS = {
    "engine_write": "copy-engine writes",
    "engine_read": "copy-engine reads",
    "sm_write": "SM writes",
    "sm_read": "SM reads",
    "engine_both_write": "copy-engine writes with both ways busy",
    "engine_both_read": "copy-engine reads with both ways busy",
}


def nodes(evidence: Evidence, direction: str) -> dict[int, Row]:
    """The rate from or to each NUMA node's memory, at the largest size."""
    result: dict[int, Row] = {}
    rows = evidence.rows("link_numa", "bandwidth", direction=direction)
    for row in sorted(rows, key=lambda row: whole(row, "size_bytes")):
        if row.value > 0 and isinstance(node := row.params.get("node"), int):
            result[node] = row
    return dict(sorted(result.items()))


def own_node(evidence: Evidence) -> int | None:
    """The node that the GPU reports as its own."""
    own = link_facts(evidence).number("numa_node")
    return evidence.gpu.numa_node if own is None and evidence.gpu is not None else own


def near_node(evidence: Evidence, rates: dict[int, Row]) -> int | None:
    """The GPU's own node, unless another is clearly faster; the fastest where its own is not known or not measured."""
    own, best = own_node(evidence), max(rates, key=lambda node: rates[node].value, default=None)
    if own is None or best is None or own not in rates:
        return best
    return best if 1 - rates[own].value / rates[best].value > FAR_LOSS else own


class Contention(NamedTuple):
    """Copies of one GPU alone, and while another GPU or all others (EVERYBODY) copy as well."""

    gpu_index: int
    others: str
    direction: str
    alone: Row
    together: Row

    @property
    def others_words(self) -> str:
        return "all others" if self.others == EVERYBODY else f"GPU {self.others}"

    @property
    def share(self) -> float:
        return self.together.value / self.alone.value


def contentions(evidence: Evidence) -> list[Contention]:
    """Every GPU that was measured alone and together with others."""
    together = {row.case_id: row for row in evidence.rows("link_concurrent", "together") if row.value > 0}
    return [
        Contention(index, str(row.params.get("beside")), str(row.params.get("direction")), row, together[row.case_id])
        for row in evidence.rows("link_concurrent", "alone")
        if row.value > 0 and row.case_id in together and isinstance(index := row.params.get("gpu_index"), int)
    ]


def shared_uplinks(evidence: Evidence) -> list[Contention]:
    """The GPUs that lose by others, pairs before all together."""
    lost = [contention for contention in contentions(evidence) if contention.share < SHARED_BELOW]
    return sorted(lost, key=lambda contention: contention.others == EVERYBODY)


class Pair(NamedTuple):
    """Two GPUs by their CUDA indices: the one that moves the data, and the one that owns the memory."""

    first: int
    second: int

    @property
    def words(self) -> str:
        return f"{self.first} → {self.second}"


# Why a rate is missing, with the pairs that lack it.
Reasons = dict[str, list[Pair]]


def pair_of(params: dict[str, int | str]) -> Pair | None:
    """The pair of a case."""
    first, second = params.get("first"), params.get("second")
    return Pair(first, second) if isinstance(first, int) and isinstance(second, int) else None


def pairs(evidence: Evidence, way: str, access: str = "on") -> dict[Pair, Row]:
    """The rate (or latency) of each pair that way, at the largest size."""
    metric = LATENCY if way == LATENCY else "bandwidth"
    result: dict[Pair, Row] = {}
    for row in evidence.rows("link_peer", metric, way=way, access=access):
        pair = pair_of(row.params)
        if pair is None or row.value <= 0:
            continue
        other = result.get(pair)
        if other is None or whole(row, "size_bytes") >= whole(other, "size_bytes"):
            result[pair] = row
    return result


def usual_way(evidence: Evidence) -> str | None:
    """The way by which pairs are compared: the first of PEER_WAYS that was measured."""
    return next((way for way in PEER_WAYS if pairs(evidence, way)), None)


def lacking(evidence: Evidence) -> tuple[Reasons, Reasons]:
    """The pairs that were skipped with peer access, and those that failed, above all by wrong data, by reason."""
    found: tuple[dict[str, dict[Pair, None]], dict[str, dict[Pair, None]]] = {}, {}
    for outcome in evidence.outcomes("link_peer"):
        skipped, pair = outcome.status == "skipped", pair_of(outcome.case.params)
        if pair is not None and outcome.status != "ok" and not (skipped and outcome.case.params.get("access") != "on"):
            found[not skipped].setdefault(outcome.reason or "no reason given", {})[pair] = None
    refused, failed = ({reason: list(members) for reason, members in kind.items()} for kind in found)
    return refused, failed
