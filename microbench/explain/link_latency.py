"""Explains link_latency: what a word across the link costs, by footprint, and how many switches that would be."""

from __future__ import annotations

import math

from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding
from microbench.explain.link_facts import link_facts
from microbench.stats import Row
from microbench.units import as_time, size, times

# A read by a GPU that hangs on the processor itself, and what each level of switches adds to it. Round figures that
# differ between processors: the finding calls itself an estimate.
DIRECT_S = (0.6e-6, 0.9e-6)
LEVEL_S = (0.1e-6, 0.3e-6)
GROWS = 1.2
EXCHANGES = {
    "flag": "a flag answered by a running kernel",
    "copy_h2d": "4 bytes copied to the GPU and waited for",
    "copy_d2h": "4 bytes copied back",
    "memset": "4 bytes set",
}


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
            threshold="dependent reads, mean over all SMs; percentiles of single reads",
            rests_on=rests_on(*(row for _, row in reads), *exchanges.values()),
            suite="link",
        )
    ]


def _read_words(evidence: Evidence, reads: list[tuple[int, Row]]) -> list[str]:
    if not reads:
        return []
    footprint, first = reads[0]
    calls = first.measurement.per_call
    words = [f"A dependent read within {size(footprint)} takes {as_time(first.value)}, the mean over all SMs."]
    if calls is not None:  # stamped one by one, so that they are of one SM and hold its clock's own cost
        words.append(f"Single reads of one SM: p50 {as_time(calls.p50)}, p99 {as_time(calls.p99)}.")
    last, far = max((*reads[1:], *host_reads(evidence, "random")), key=lambda one: one[1].value, default=reads[0])
    if far.value > GROWS * first.value:
        words.append(
            f"Within {size(last)}, {far.params['order']}, it takes {as_time(far.value)} "
            f"({times(far.value / first.value)}): its addresses outgrow a translation cache."
        )
    return words


def levels(latency_s: float) -> tuple[int, int]:
    """How many levels of switches a read's latency leaves room for: the fewest and the most."""
    fewest = math.ceil((latency_s - DIRECT_S[1]) / LEVEL_S[1] - 1e-9)
    most = math.floor((latency_s - DIRECT_S[0]) / LEVEL_S[0] + 1e-9)
    return max(fewest, 0), max(most, 0)


def switches(evidence: Evidence) -> list[Finding]:
    """An estimate of switch levels from the latency, against what sysfs shows."""
    reads = host_reads(evidence)
    if not reads:
        return []
    latency_s = reads[0][1].value
    fewest, most = levels(latency_s)
    facts = link_facts(evidence)
    seen = facts.number("switches")
    hidden = facts.flag("virtual_bus")
    shown = "the bus does not say how many there are"
    if hidden:
        shown = "the virtual machine hides how many there are"
    elif seen is not None:
        shown = f"sysfs shows {seen}"
    unlike = seen is not None and not hidden and not fewest <= seen <= most
    room = f"{fewest} to {most} levels" if most > fewest else f"{most} level{'s' * (most != 1)}"
    return [
        Finding(
            rule="link.switches",
            severity="note",
            title=f"Estimate: {room} of switches between GPU and processor; {shown}",
            text=(
                f"A read takes {as_time(latency_s)}; directly attached GPUs need about {as_time(DIRECT_S[0])} to "
                f"{as_time(DIRECT_S[1])}, a level of switches adds {as_time(LEVEL_S[0])} to {as_time(LEVEL_S[1])}. "
                + ("Translation of addresses or a far NUMA node add to it as well." if unlike else "Only an estimate: ")
                + ("" if unlike else "processor, translation of addresses and NUMA node count in as well.")
            ),
            threshold="(latency − 0.9 µs) / 0.3 µs to (latency − 0.6 µs) / 0.1 µs, in whole levels",
            rests_on=(*rests_on(reads[0][1]), "switches"),
            suite="link",
        )
    ]
