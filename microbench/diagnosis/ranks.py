"""Compares the traces of the ranks of one program and names the outliers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from microbench.analysis.evidence import Finding
from microbench.core.units import as_time, percent, round_percent
from microbench.diagnosis import words
from microbench.diagnosis.diagnosis import Diagnosis

# With fewer traces nobody can tell which one is odd.
FEWEST = 3
# A rank is odd if it lies this many median deviations, and this share, from the median of all ranks. 1.4826 times the
# median deviation is the standard deviation of normal noise.
DEVIATIONS, LEAST_SHARE = 3.5 * 1.4826, 0.05
# One rank is late if the next one waits for it at least this part of the time that the ranks wait in the median.
APART = 4


class Odd(msgspec.Struct, frozen=True):
    """An outlier among the traces: in what, its value, and the median of all."""

    name: str
    what: str
    value: str
    median: str


def names(several: Sequence[Diagnosis]) -> list[str]:
    """The name of each trace: its rank, or else its file name without the ending that all of them share."""
    parts = [one.trace.source.split(".") for one in several]
    while all(len(own) > 1 for own in parts) and len({own[-1] for own in parts}) == 1:
        parts = [own[:-1] for own in parts]
    ranks = [one.trace.rank for one in several]
    return [".".join(own) if rank is None else f"rank {rank}" for own, rank in zip(parts, ranks, strict=True)]


def busy_s(diagnosis: Diagnosis) -> float | None:
    """The time in which the GPU works, of a step in s, without communication that no other work hides."""
    idle = diagnosis.idle
    return words.each(diagnosis, idle.busy_s - idle.exposed_s) if idle is not None else None


def communication_s(diagnosis: Diagnosis) -> float | None:
    """The time of all collectives together, of a step in s; None for a program without them."""
    idle = diagnosis.idle
    if idle is None or not idle.collectives:
        return None
    return words.each(diagnosis, sum(one.seconds for one in idle.collectives))


def step_s(diagnosis: Diagnosis) -> float | None:
    """The time of a recorded step in s."""
    return diagnosis.step.watched_s if diagnosis.step is not None else None


def host_s(diagnosis: Diagnosis) -> float | None:
    """The host time for a launch in s."""
    return words.launch_time(diagnosis)


FIGURES: tuple[tuple[str, Callable[[Diagnosis], float | None]], ...] = (
    ("a step", step_s),
    ("work of the GPU in a step", busy_s),
    ("host time for a launch", host_s),
)


def late_rank(several: Sequence[Diagnosis]) -> tuple[str, float] | None:
    """The rank that comes last to its collectives, and by how many s of a step; None if no rank is clearly late.

    A collective ends on all ranks together and begins on each when that rank comes. So it is shortest on the last one.
    """
    counts = [
        words.each(one, sum(kind.pieces for kind in one.idle.collectives)) if one.idle else 0.0 for one in several
    ]
    if len(several) < 2 or min(counts) <= 0 or max(counts) > (1 + LEAST_SHARE) * min(counts):
        return None
    if any(one.trace.rank is None for one in several):
        return None
    ordered = sorted((communication_s(one) or 0.0, name) for name, one in zip(names(several), several, strict=True))
    (shortest_s, name), others_s = ordered[0], [seconds for seconds, _ in ordered[1:]]
    # Where the next one comes about as late, no single rank is the last.
    late_s = statistics.median(others_s) - shortest_s
    spans_s = [words.each(one, one.idle.span_s) for one in several if one.idle is not None]
    apart_s = others_s[0] - shortest_s
    if late_s <= LEAST_SHARE * statistics.median(spans_s) or APART * apart_s < late_s:
        return None
    return name, late_s


def odd_ranks(several: Sequence[Diagnosis]) -> list[Odd]:
    """The outliers, by figure."""
    found, named = [], names(several)
    for what, figure in FIGURES:
        known = [(name, value) for name, one in zip(named, several, strict=True) if (value := figure(one)) is not None]
        if len(known) < FEWEST:
            continue
        median = statistics.median(value for _, value in known)
        deviation = statistics.median(abs(value - median) for _, value in known)
        limit = max(DEVIATIONS * deviation, LEAST_SHARE * median)
        found += [
            Odd(name, what, as_time(value), as_time(median)) for name, value in known if abs(value - median) > limit
        ]
    return found


def finding(several: Sequence[Diagnosis]) -> Finding:
    """Which ranks are odd, in words; no rank is, where their steps differ in kernels."""
    kernels = [one.step.kernels for one in several if one.step is not None]
    if kernels and max(kernels) > (1 + LEAST_SHARE) * min(kernels):
        ranked = all(one.trace.rank is not None for one in several)
        what = "The ranks do different work" if ranked else "The traces are of different programs"
        return Finding(
            rule="diagnose.ranks",
            severity="note",
            title=f"{what}: a step has {min(kernels):.0f} to {max(kernels):.0f} kernels",
            text="",
            threshold=f"kernels in a step differ by more than {round_percent(LEAST_SHARE)}",
        )
    if (late := late_rank(several)) is not None:
        name, late_s = late
        return Finding(
            rule="diagnose.late_rank",
            severity="warning",
            title=f"{name} comes late: the others wait about {as_time(late_s)} of each step for it",
            text="Its collectives take that much less time than theirs, because it joins them last.",
            threshold=f"collectives shorter than the other ranks' by more than {round_percent(LEAST_SHARE)} of a step",
            advice=f"Look at what {name} does before its collectives: more data, a slower host, or a slower GPU",
        )
    odd = odd_ranks(several)
    threshold = f"farther than {percent(LEAST_SHARE)} and 3.5 standard deviations from the median of the ranks"
    if len(several) < FEWEST:
        title = f"{len(several)} traces: at least {FEWEST} are needed to say which one is odd"
        return Finding(rule="diagnose.ranks", severity="note", title=title, text="", threshold=threshold)
    if not odd:
        title = f"{len(several)} traces are alike"
        return Finding(rule="diagnose.ranks", severity="good", title=title, text="", threshold=threshold)
    names = list(dict.fromkeys(one.name for one in odd))
    first = odd[0]
    return Finding(
        rule="diagnose.ranks",
        severity="warning",
        title=f"Outliers among the ranks: {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}",
        text=f"{first.name}: {first.what} takes {first.value}, in the median {first.median}.",
        threshold=threshold,
        advice=f"{first.name} takes {first.value} for {first.what} (median {first.median}). Look at that rank's host",
    )
