"""Explains link_latency: what a word across the link costs, by footprint, and how many switches that would be."""

from __future__ import annotations

import math

from microbench.explain.evidence import Evidence, facts_of, listed, rests_on
from microbench.explain.finding import Finding
from microbench.explain.link_facts import LinkFacts, link_facts
from microbench.stats import Row
from microbench.units import as_time, size, times

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
