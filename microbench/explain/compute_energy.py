"""Explains what an operation costs in energy, and what the numbers that are multiplied do to the rate."""

from __future__ import annotations

from microbench.explain.compute_units import (
    DATA,
    ENERGIES,
    MAIN_DTYPE,
    SEARCH,
    beside,
    dtype_of,
    dtypes,
    figure,
    one_rate,
    rates,
)
from microbench.explain.evidence import Evidence, listed, rests_on, whole
from microbench.explain.finding import Finding
from microbench.stats import Row
from microbench.units import percent, round_percent, times

DIFFERENT = 0.02


def data(evidence: Evidence) -> list[Finding]:
    """What zeros gain over random numbers: the gap that benchmarks of zeros do not tell."""
    pairs = [
        (normal, other)
        for dtype in dtypes(evidence, DATA)
        if (normal := one_rate(evidence, DATA, dtype=dtype, data="normal")) is not None
        and (other := one_rate(evidence, DATA, dtype=dtype, data="zeros", size=whole(normal, "size"))) is not None
    ]
    if not pairs:
        return []
    pairs.sort(key=lambda pair: dtype_of(pair[0]) != MAIN_DTYPE)
    normal, zeros = pairs[0]
    gain = zeros.value / normal.value - 1
    apart = abs(gain) > DIFFERENT
    words = [f"{_data_words(evidence, one)}; {_data_words(evidence, other)}" for one, other in pairs]
    advice = "Never compare a figure of zeros with one of real data." if apart else "The limit is not power here."
    return [
        Finding(
            rule="compute.data",
            severity="advice" if apart else "note",
            title=(
                f"Zeros multiply {percent(abs(gain))} {'faster' if gain > 0 else 'slower'} than random numbers "
                f"({dtype_of(normal)})"
                if apart
                else f"The numbers do not matter: zeros within {percent(abs(gain))} of random ones ({dtype_of(normal)})"
            ),
            text=f"{'. '.join(words)}. The units do the same work: what differs is power. {advice}",
            threshold=f"rates of the same product more than {round_percent(DIFFERENT)} apart",
            rests_on=rests_on(*(row for pair in pairs for row in pair)),
            suite="compute",
        )
    ]


def _data_words(evidence: Evidence, row: Row) -> str:
    others = (beside(evidence, row, "sm_clock"), beside(evidence, row, "power"), beside(evidence, row, *ENERGIES))
    told = [figure(one) for one in others if one is not None]
    return f"{dtype_of(row)} {row.params.get('data')} {figure(row)}{f' ({listed(told)})' if told else ''}"


def energies(evidence: Evidence) -> list[Row]:
    """Energy of an operation of random numbers, the least of each type."""
    found: dict[str, Row] = {}
    rows = rates(evidence, SEARCH, ENERGIES) + rates(evidence, DATA, ENERGIES, data="normal")
    for row in rows:
        dtype = dtype_of(row)
        if dtype not in found or row.value < found[dtype].value:
            found[dtype] = row
    return sorted(found.values(), key=lambda row: dtype_of(row) != MAIN_DTYPE)


def energy(evidence: Evidence) -> list[Finding]:
    """What an operation costs in energy."""
    found = energies(evidence)
    if not found:
        return []
    shown = found[0]
    power = beside(evidence, shown, "power")
    at = f" at {figure(power)}" if power is not None else ""
    least = min(found, key=lambda row: row.value)
    advice = (
        f" {dtype_of(least)} does {times(shown.value / least.value)} as many operations for the same energy."
        if least is not shown and least.value < shown.value
        else ""
    )
    return [
        Finding(
            rule="compute.energy",
            severity="note",
            title=f"An operation costs {figure(shown)} ({dtype_of(shown)}{at})",
            text=f"Random numbers, idle power included: {listed([f'{dtype_of(row)} {figure(row)}' for row in found])}."
            + advice,
            threshold="energy counter over two seconds of one product, over its operations",
            rests_on=rests_on(*found, power),
            suite="compute",
        )
    ]
