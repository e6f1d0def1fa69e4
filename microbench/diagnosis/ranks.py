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
    """The time in which the GPU works, of a step in s."""
    return words.each(diagnosis, diagnosis.idle.busy_s) if diagnosis.idle is not None else None


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
