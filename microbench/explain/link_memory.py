"""Explains link_latency: what a word across the link costs, by footprint, and how many switches that would be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, facts_of, listed, rests_on
from microbench.analysis.limits import COMPLETION_HEADER_BYTES, WRITE_HEADER_BYTES
from microbench.analysis.stats import Row
from microbench.core.units import as_time, percent, quantity, round_percent, size, times
from microbench.explain.link_facts import DIRECTIONS, HOST, LinkFacts, Point, copies, fastest, link_facts, seconds_at

# A read by a GPU that hangs on the processor itself, and what each level of switches adds to it: a rule of thumb that
# differs between processors and has no source that could be named, which the finding says of itself.
DIRECT_S = (0.6e-6, 0.9e-6)
LEVEL_S = (0.1e-6, 0.3e-6)
GROWS = 1.2
EXCHANGES = {
    "flag": "a flag answered by a running kernel",
    "copy_h2d": "4 bytes copied to the GPU and waited for",
    "copy_d2h": "4 bytes copied back",
    "memset": "4 bytes set",
}
UNTRANSLATED = ("off", "passthrough")


def host_reads(evidence: Evidence, order: str = "sequential") -> list[tuple[int, Row]]:
    """Latency over footprint, ascending."""
    found = evidence.curve("link_latency", "latency", "footprint_bytes", what="host_read", order=order)
    return [(footprint, row) for footprint, row in found if row.value > 0]


def latency(evidence: Evidence) -> list[Finding]:
    """What a dependent read of host memory and the shortest exchanges take."""
    reads = host_reads(evidence)
    exchanges = {
        words: row
        for what, words in EXCHANGES.items()
        if (row := evidence.row("link_latency", "latency", what=what)) is not None
    }
    if not reads and not exchanges:
        return []
    words = [*_read_words(evidence, reads)]
    if exchanges:
        words.append(f"Back and forth: {listed([f'{name} {as_time(row.value)}' for name, row in exchanges.items()])}.")
    words.append("Ask for much at a time: a kernel that waits for one word after the other stands still meanwhile.")
    title = next((f"{name[0].upper()}{name[1:]} takes {as_time(row.value)}" for name, row in exchanges.items()), "")
    if reads:
        title = f"A GPU thread waits {as_time(reads[0][1].value)} for a word of host memory"
    return [
        Finding(
            rule="link.latency",
            severity="note",
            title=title,
            text=" ".join(words),
            threshold="dependent reads, mean over reads by all SMs in turn; percentiles of single reads of one",
            rests_on=rests_on(*(row for _, row in reads), *exchanges.values()),
            suite="link",
        )
    ]


def _read_words(evidence: Evidence, reads: list[tuple[int, Row]]) -> list[str]:
    if not reads:
        return []
    footprint, first = reads[0]
    calls = first.measurement.per_call
    stride_bytes = next((one for one in facts_of(first, "stride_bytes") if isinstance(one, int)), None)
    every = f", a line every {size(stride_bytes)}," if stride_bytes else ""
    words = [
        f"A dependent read within {size(footprint)}{every} takes {as_time(first.value)}, the mean over reads by all "
        "SMs in turn."
    ]
    if calls is not None:  # stamped one by one, so that they are of one SM and hold its clock's own cost
        words.append(f"Single reads of one SM: p50 {as_time(calls.p50)}, p99 {as_time(calls.p99)}.")
    last, far = max((*reads[1:], *host_reads(evidence, "random")), key=lambda one: one[1].value, default=reads[0])
    if far.value > GROWS * first.value:
        words.append(
            f"Within {size(last)}, {far.params['order']}, it takes {as_time(far.value)} "
            f"({times(far.value / first.value)}): its addresses outgrow a translation cache."
        )
    return words


def levels(latency_s: float, *, translated: bool = False) -> tuple[int, int]:
    """How many levels of switches a read's latency leaves room for: the fewest and the most.

    Where addresses may be ``translated`` on their way that alone may explain any latency, so that the fewest is 0.
    """
    fewest = math.ceil((latency_s - DIRECT_S[1]) / LEVEL_S[1] - 1e-9)
    most = math.floor((latency_s - DIRECT_S[0]) / LEVEL_S[0] + 1e-9)
    return 0 if translated else max(fewest, 0), max(most, 0)


def switches(evidence: Evidence) -> list[Finding]:
    """The room for switches that the latency leaves, by a rule of thumb, beside what sysfs shows."""
    reads = host_reads(evidence)
    if not reads:
        return []
    latency_s = reads[0][1].value
    facts = link_facts(evidence)
    translated = facts.flag("virtual_bus") is not False or facts.text("iommu") not in UNTRANSLATED
    return [
        Finding(
            rule="link.switches",
            severity="note",
            title=f"Read latency leaves {_room(*levels(latency_s, translated=translated))}; {_shown(facts)}",
            text=(
                f"A read takes {as_time(latency_s)}. A rule of thumb, which has no source: a GPU on the processor "
                f"itself needs about {as_time(DIRECT_S[0])} to {as_time(DIRECT_S[1])}, each level of switches adds "
                f"{as_time(LEVEL_S[0])} to {as_time(LEVEL_S[1])}. Processor and NUMA node count in as well"
                + (", and translation of addresses alone may explain whatever exceeds that." if translated else ".")
            ),
            threshold=(
                "rule of thumb, no source: at most (latency − 0.6 µs) / 0.1 µs, at least (latency − 0.9 µs) / 0.3 µs "
                "where no address is translated, in whole levels"
            ),
            rests_on=(*rests_on(reads[0][1]), "switches", "iommu", "virtual_bus"),
            suite="link",
        )
    ]


def _room(fewest: int, most: int) -> str:
    if most == 0:
        return "no room for switches"
    count = str(most) if fewest == most else f"{fewest} to {most}" if fewest else f"up to {most}"
    return f"room for {count} level{'s' if most > 1 else ''} of switches"


def _shown(facts: LinkFacts) -> str:
    """What is known of the switches on the way."""
    if facts.flag("virtual_bus"):
        return "the virtual machine hides how many there are"
    seen = facts.number("switches")
    return "the bus does not say how many there are" if seen is None else f"sysfs shows {seen}"


# Explains link_pinning: what pinned memory costs to have, and after how many copies it has paid for itself.


ALLOCATE, REGISTER, TOUCH = "allocate", "register", "touch"
WAYS = {ALLOCATE: "allocated pinned", REGISTER: "pinned where it is"}
AT_ONCE, FEW = 1, 10


class Price(NamedTuple):
    """What a buffer costs once: had and given back."""

    pin: Row
    release: Row

    @property
    def whole_s(self) -> float:
        """Both together."""
        return self.pin.value + self.release.value


class Choice(NamedTuple):
    """One buffer, pinned one way: what that costs more than pageable memory, and what a copy saves by it."""

    way: str
    size_bytes: int
    extra_s: float
    pageable_s: dict[str, float]
    pinned_s: dict[str, float]
    rows: tuple[Row, ...]

    @property
    def directions(self) -> list[str]:
        """Those in which copies of both kinds of memory were measured around that size: of others nothing is known."""
        return [one for one in DIRECTIONS if one in self.pageable_s and one in self.pinned_s]

    def copies(self, direction: str) -> int | None:
        """From how many copies in one of its directions on it has paid; None if a pinned copy saves nothing."""
        saved_s = self.pageable_s[direction] - self.pinned_s[direction]
        return max(math.ceil(self.extra_s / saved_s), AT_ONCE) if saved_s > 0 else None

    @property
    def paid(self) -> dict[str, int]:
        """From how many copies on, for each direction in which it pays at all."""
        return {one: count for one in self.directions if (count := self.copies(one)) is not None}

    @property
    def never(self) -> list[str]:
        """The directions in which it does not."""
        return [one for one in self.directions if one not in self.paid]


def price(evidence: Evidence, way: str, size_bytes: int) -> Price | None:
    """The cost of having that much memory that way."""
    chosen: dict[str, int | str] = {"way": way, "size_bytes": size_bytes}
    pin, release = (evidence.row("link_pinning", name, **chosen) for name in ("pin", "release"))
    return Price(pin, release) if pin is not None and release is not None else None


def sizes(evidence: Evidence, way: str) -> list[int]:
    """The sizes that were had that way, ascending."""
    return [one for one, _ in evidence.curve("link_pinning", "pin", "size_bytes", way=way)]


def choices(evidence: Evidence) -> list[Choice]:
    """Every buffer whose price and copies are both known, by way and size.

    Allocating pinned memory replaces mapping and touching pageable memory, so only the difference counts.
    """
    pinned, pageable = (
        {one: copies(evidence, HOST, one, kind) for one in DIRECTIONS} for kind in ("pinned", "pageable")
    )
    found = []
    for way in WAYS:
        for count in sizes(evidence, way):
            own, touched = price(evidence, way, count), price(evidence, TOUCH, count)
            if own is None or (way == ALLOCATE and touched is None):
                continue
            saved_s = touched.whole_s if way == ALLOCATE and touched is not None else 0.0
            rows = (*own, *(touched or ()))
            one = Choice(way, count, own.whole_s - saved_s, _at(pageable, count), _at(pinned, count), rows)
            if one.directions:
                found.append(one)
    return found


def _at(curves: dict[str, list[Point]], count: int) -> dict[str, float]:
    known = {direction: seconds_at(points, count) for direction, points in curves.items()}
    return {direction: value for direction, value in known.items() if value is not None}


def pays(evidence: Evidence) -> list[Finding]:
    """Pin or not: from how many copies of which size on."""
    found = choices(evidence)
    if not found:
        return []
    largest = max(found, key=lambda one: one.size_bytes)
    used = [row for one in found for row in one.rows]
    return [
        Finding(
            rule="link.pin",
            severity="advice",
            title=_title(largest),
            text=" ".join(words for words in (*(_way_words(way, found) for way in WAYS), _advice(found)) if words),
            threshold=(
                "(pin + release, less what pageable memory costs where it is new) / (pageable copy − pinned copy), "
                "each waited for; copies straight over size between measured ones"
            ),
            rests_on=rests_on(*used),
            suite="link",
        )
    ]


def _title(one: Choice) -> str:
    copied = f"copies of {size(one.size_bytes)}"
    if not one.paid:
        return f"Pinning does not pay for {copied}"
    # Where the directions differ, each is named: a count of one says nothing of the other.
    way, other = (f" {_ways(one.paid)}", f", never {_ways(one.never)}") if one.never else ("", "")
    most = max(one.paid.values())
    if most == AT_ONCE:
        return f"Pinning pays with the first copy of {size(one.size_bytes)}{way}{other}"
    return f"Pinning pays from {most} {copied}{way} on{other}"


def _ways(directions: Iterable[str]) -> str:
    return listed([DIRECTIONS[one] for one in directions])


def _way_words(way: str, found: Sequence[Choice]) -> str:
    own = [one for one in found if one.way == way]
    return f"{WAYS[way].capitalize()}: {listed([_choice_words(one) for one in own])}." if own else ""


def _choice_words(one: Choice) -> str:
    more = f"costs {as_time(one.extra_s)} more" if one.extra_s > 0 else "costs nothing more"
    return f"{size(one.size_bytes)} {more} and has paid {_paid_words(one)}"


def _paid_words(one: Choice) -> str:
    """After how many copies, of the worse direction where both pay."""
    if not one.paid:
        return "never"
    most = max(one.paid.values())
    after = f"after {most} {'copy' if most == 1 else 'copies'}"
    return f"{after} {_ways(one.paid)} but never {_ways(one.never)}" if one.never else after


def _advice(found: Sequence[Choice]) -> str:
    counts = [count for one in found for count in one.paid.values()]
    if not counts:
        return "Leave memory pageable."
    if any(one.never for one in found):
        return "Pin what is copied in a direction and size that pays; leave other memory pageable."
    if max(counts) <= FEW:
        return "Pin whatever is copied more than a few times."
    return "Pin buffers that are used again and keep them; leave what is copied once pageable."


# Explains link_zero_copy: kernels on host memory against copies: widths, split lines, packets on the wire.


# What a kernel does, which copy does the same, and which counter holds its payload with how many header bytes.
SAME = {"read": "h2d", "write": "d2h"}
COUNTED = {"read": ("received_per_byte", COMPLETION_HEADER_BYTES), "write": ("sent_per_byte", WRITE_HEADER_BYTES)}
WORDS = {"read": "reads", "write": "writes"}
SPLIT_LOSS = 0.05
NARROW_LOSS = 0.05
POWER_MARGIN = 0.06
MOST_PAYLOAD_BYTES = 4096  # of any PCIe packet: what counts as more was counted wrong


def best(evidence: Evidence, access: str) -> Row | None:
    """The fastest aligned rate."""
    found = [
        row for row in evidence.rows("link_zero_copy", "bandwidth", access=access, offset_bytes=0) if row.value > 0
    ]
    return max(found, key=lambda row: row.value, default=None)


def zero_copy(evidence: Evidence) -> list[Finding]:
    """Reads and writes of mapped host memory against copies, with what width and offset lose."""
    found = {access: row for access in SAME if (row := best(evidence, access)) is not None}
    if not found:
        return []
    words = [_against(evidence, access, row) for access, row in found.items()]
    packets = [one for access in found if (one := _packets(evidence, access))]
    narrow, split = _narrow(evidence, found), _split(evidence, found)
    advice = [one for one in (narrow, split) if one]
    title = " and ".join(f"{WORDS[access]} {quantity(row.value, 'B/s')}" for access, row in found.items())
    closing = (
        ""
        if advice
        else " Kernels may stream host memory that they touch once; what is touched again belongs on the GPU."
    )
    return [
        Finding(
            rule="link.zero_copy",
            severity="advice" if advice else "note",
            title=f"Kernels reach host memory without a copy: {title}",
            text=" ".join([*words, *packets, *advice]) + closing,
            threshold=f"advice where narrow or split accesses lose over {round_percent(SPLIT_LOSS)}",
            rests_on=rests_on(*evidence.rows("link_zero_copy")),
            suite="link",
        )
    ]


def _against(evidence: Evidence, access: str, row: Row) -> str:
    limit = evidence.ceiling(row)
    share = f", {percent(row.value / limit.value)} of the ceiling for its packets" if limit is not None else ""
    words = f"{WORDS[access].capitalize()} {row.params['width_bytes']} bytes wide {quantity(row.value, 'B/s')}{share}"
    peak = fastest(evidence, SAME[access])
    if peak is not None:
        words += f"; a copy {DIRECTIONS[SAME[access]]} {quantity(peak[1].value, 'B/s')}"
    return f"{words}."


def payload_bytes(access: str, per_byte: float) -> float | None:
    """The payload of a packet from the bytes counted for each byte of payload: header / (counted - 1).

    None where that is no packet: nothing counted beside the payload, or more payload than PCIe allows.
    """
    header_bytes = COUNTED[access][1]
    found = header_bytes / (per_byte - 1) if per_byte > 1 else math.inf
    return found if found < MOST_PAYLOAD_BYTES * (1 + POWER_MARGIN) else None


def _packets(evidence: Evidence, access: str) -> str:
    """The size of packets that the byte counters show."""
    metric, header_bytes = COUNTED[access]
    row = next((one for one in evidence.rows("link_zero_copy", metric, access=access, offset_bytes=0)), None)
    packet = payload_bytes(access, row.value) if row is not None else None
    if row is None or packet is None:
        return ""
    near = 1 << max(round(packet).bit_length() - 1, 0)
    near = min((near, 2 * near), key=lambda one: abs(one - packet))
    shown = near if abs(near - packet) < POWER_MARGIN * packet else round(packet)
    return (
        f"{WORDS[access].capitalize()} count {row.value:.3f} bytes on the wire for each byte of payload: packets of "
        f"{shown} bytes with {header_bytes} of header."
    )


def _narrow(evidence: Evidence, found: dict[str, Row]) -> str:
    """What the narrowest access loses."""
    words = []
    for access, row in found.items():
        curve = evidence.curve("link_zero_copy", "bandwidth", "width_bytes", access=access, offset_bytes=0)
        if len(curve) > 1 and (loss := 1 - curve[0][1].value / row.value) > NARROW_LOSS:
            words.append(f"{WORDS[access]} {curve[0][0]} bytes wide lose {percent(loss)}")
    return f"Move 16 bytes a thread: {' and '.join(words)}." if words else ""


def _split(evidence: Evidence, found: dict[str, Row]) -> str:
    """What the worst offset loses against the same width without one."""
    words = []
    for access in found:
        aligned = dict(evidence.curve("link_zero_copy", "bandwidth", "width_bytes", access=access, offset_bytes=0))
        losses = [
            (1 - row.value / aligned[width].value, row)
            for row in evidence.rows("link_zero_copy", "bandwidth", access=access)
            if row.params.get("offset_bytes") and isinstance(width := row.params.get("width_bytes"), int)
            and width in aligned and aligned[width].value > 0
        ]  # fmt: skip
        loss, worst = max(losses, key=lambda one: one[0], default=(0.0, None))
        if worst is not None and loss > SPLIT_LOSS:
            words.append(
                f"{WORDS[access]} {percent(loss)} ({worst.params['offset_bytes']} bytes off, "
                f"{worst.params['width_bytes']} wide)"
            )
    return f"Begin buffers on a 128-byte line: split lines cost {' and '.join(words)}." if words else ""
