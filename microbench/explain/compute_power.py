"""Explains what power does to compute: the clock that is lost, what of the loss is feeding, how long a burst lasts."""

from __future__ import annotations

import math
from statistics import median
from typing import NamedTuple

from microbench.analysis.clocks import CLOCK_LOSS
from microbench.analysis.evidence import Evidence, Finding, listed, rests_on, sentence, whole
from microbench.analysis.stats import Row
from microbench.core.units import as_time, percent, quantity, round_percent, times
from microbench.explain.compute_units import (
    DATA,
    ENERGIES,
    HEAT,
    LASTING,
    MAIN_DTYPE,
    POWER_BRAKE,
    POWER_LIMIT,
    SEARCH,
    Reached,
    accumulator,
    beside,
    best_products,
    dtype_of,
    dtypes,
    figure,
    held_by,
    one_rate,
    rates,
    reached,
    reasons,
    some,
)

LASTS = 0.03
# Power from this share of the limit on is at it: NVML names the limit at less than half of it as well.
AT_LIMIT = 0.9


class Loss(NamedTuple):
    """What a product lacks of its units at their highest clock, and how much of that is clock and how much feeding."""

    one: Reached
    lost: float
    by_clock: float


def losses(evidence: Evidence) -> list[Loss]:
    """cuBLASLt's fastest product of each type that lacks anything.

    The rate is a product of shares, clock x feeding, so what is lost is divided as their logarithms are.
    """
    found = []
    for one in (reached(evidence, row) for row in best_products(evidence)):
        total, clock = one.of_highest, one.clock_share
        if total is not None and clock is not None and total < 1:
            by_clock = math.log(clock) / math.log(total)
            found.append(Loss(one, 1 - total, min(max(by_clock, 0.0), 1.0)))
    return found


def loss(evidence: Evidence) -> list[Finding]:
    """How much of what products lack is clock, and how much is feeding."""
    found = losses(evidence)
    if not found:
        return []
    first = found[0]
    highest = first.one.highest
    return [
        Finding(
            rule="compute.loss",
            severity="note",
            title=(
                f"{dtype_of(first.one.row)} lacks {percent(first.lost)} of {quantity(highest.value, highest.unit)}: "
                f"{round_percent(first.by_clock)} of that is clock, {round_percent(1 - first.by_clock)} feeding"
                if highest is not None else ""
            ),
            text=(
                f"{some([_loss_words(one) for one in found])}. What the clock takes, cooler or more thrifty work "
                "gives back; what feeding takes, other tiles or larger sizes."
            ),
            threshold="logarithms of measured over highest clock, and of rate over rate x SMs x measured clock",
            rests_on=rests_on(*(row for one in found for row in _with_clock(evidence, one.one.row))),
            suite="compute",
        )
    ]  # fmt: skip


def _loss_words(found: Loss) -> str:
    clock, fed = found.one.clock_share or 0.0, found.one.fed or 0.0
    return f"{dtype_of(found.one.row)}: {percent(clock)} of the highest clock, units fed to {percent(fed)}"


def _with_clock(evidence: Evidence, row: Row) -> tuple[Row | None, ...]:
    return row, beside(evidence, row, "sm_clock")


def limited(evidence: Evidence) -> list[Finding]:
    """The clock that power or heat takes, by the SMs' own count, and what NVML says of it."""
    row = _longest(evidence)
    clock = beside(evidence, row, "sm_clock") if row is not None else None
    gpu = evidence.gpu
    if row is None or clock is None or gpu is None or not gpu.sm_clock_max_hz:
        return []
    lost = 1 - clock.value / gpu.sm_clock_max_hz
    if lost <= CLOCK_LOSS:
        return []
    by = held_by(evidence, row)
    nvml_hz, told = nvml_clock_hz(evidence, row), reasons(evidence, row)
    beside_it = f" NVML said {quantity(nvml_hz, 'Hz')}" if nvml_hz else ""
    beside_it += " and is too high under tensor load." if nvml_hz and nvml_hz > clock.value * (1 + LASTS) else ""
    drawn = _drawn(evidence, row)
    named = None if _below_limit(evidence, row, by) else by
    return [
        Finding(
            rule="compute.limited",
            severity="warning" if by in (HEAT, POWER_BRAKE) else "note",
            title=(
                f"{taker(named)} takes {percent(lost)} of the clock: {dtype_of(row)} runs at "
                f"{quantity(clock.value, 'Hz')} of {quantity(gpu.sm_clock_max_hz, 'Hz')}"
            ),
            text=(
                f"By the SMs' own count.{beside_it.rstrip('.')}{'.' if beside_it else ''}{drawn} Reasons: "
                f"{listed(told) or 'none'}. {_advice(evidence, row, by)}"
            ),
            threshold=f"the SMs' clock more than {percent(CLOCK_LOSS)} below the highest; heat by NVML's reasons",
            rests_on=rests_on(row, clock),
            suite="compute",
        )
    ]


def _advice(evidence: Evidence, row: Row, by: str | None) -> str:
    if by == HEAT:
        return "Look after the cooling: heat need not cost anything."
    if by == POWER_BRAKE:
        return "A signal from the power supply asks for it: look after the supply and its cables."
    if _below_limit(evidence, row, by):
        return "The reason shows well below the limit too: a higher one need not give the clock back."
    if by == POWER_LIMIT:
        return "This is what the board is built for: only a higher limit or data that flip fewer bits change it."
    return "No reason was reported: tensor work alone lowers it on some architectures."


def _below_limit(evidence: Evidence, row: Row, by: str | None) -> bool:
    share = _drawn_share(evidence, row)
    return by == POWER_LIMIT and share is not None and share < AT_LIMIT


def taker(by: str | None) -> str:
    """The taker of the clock at the begin of a line."""
    return sentence(by) if by else "Tensor work"


def _longest(evidence: Evidence) -> Row | None:
    """The case that shows a settled clock best: work that lasts, else the fastest product of the main type."""
    return next(iter(lasting(evidence)), None) or next(iter(best_products(evidence)), None)


def lasting(evidence: Evidence) -> list[Row]:
    """What is sustained over the longest time that each type was measured for, the suite's main type first."""
    found: dict[str, Row] = {}
    for row in sorted(rates(evidence, LASTING, ("sustained",)), key=lambda row: whole(row, "duration_s")):
        found[dtype_of(row)] = row
    return sorted(found.values(), key=lambda row: dtype_of(row) != MAIN_DTYPE)


def nvml_clock_hz(evidence: Evidence, row: Row) -> float | None:
    """The SM clock that NVML gave beside a case: over the second half of work that lasts, else after the case."""
    seen = [
        value
        for outcome in row.outcomes
        for series in outcome.series
        if series.metric == "nvml_sm_clock"
        for value in series.values[len(series.values) // 2 :]
    ]
    seen = seen or [
        telemetry.nvml_sm_clock_hz
        for outcome in row.outcomes
        for device, telemetry in outcome.telemetry.items()
        if device == evidence.device and telemetry.nvml_sm_clock_hz
    ]
    return median(seen) if seen else None


def _drawn_share(evidence: Evidence, row: Row) -> float | None:
    """Power meanwhile over the board's limit, where both are known: the reason alone does not prove it."""
    powers = [
        value
        for outcome in row.outcomes
        for series in outcome.series
        if series.metric == "power"
        for value in series.values[len(series.values) // 2 :]
    ]
    limit_w = evidence.gpu.power_limit_w if evidence.gpu is not None else None
    return median(powers) / limit_w if powers and limit_w else None


def _drawn(evidence: Evidence, row: Row) -> str:
    share = _drawn_share(evidence, row)
    limit_w = evidence.gpu.power_limit_w if evidence.gpu is not None else None
    if share is None or limit_w is None:
        return ""
    return f" It draws {quantity(share * limit_w, 'W')} of {quantity(limit_w, 'W')} ({percent(share)})."


def sustained(evidence: Evidence) -> list[Finding]:
    """Burst against sustained, and when it turns."""
    pairs = [(burst, row) for row in lasting(evidence) if (burst := beside(evidence, row, "burst")) is not None]
    if not pairs:
        return []
    burst, late = pairs[0]
    kept = late.value / burst.value
    falls = kept < 1 - LASTS
    words = [_lasting_words(evidence, *pair) for pair in pairs]
    advice = "A benchmark of milliseconds shows the burst; a training run gets what is sustained." if falls else ""
    return [
        Finding(
            rule="compute.sustained",
            severity="note",
            title=(
                f"{dtype_of(late)} keeps {percent(kept)} of its burst: {figure(burst)}, then {figure(late)}"
                if falls
                else f"{dtype_of(late)} lasts: {figure(late)} after seconds, {percent(kept)} of its burst"
            ),
            text=f"{'; '.join(words)}. {advice}".strip(),
            threshold=f"falls where more than {percent(LASTS)} of the first batch is lost in the second half",
            rests_on=rests_on(*(row for pair in pairs for row in pair), beside(evidence, late, "turn")),
            suite="compute",
        )
    ]


def _lasting_words(evidence: Evidence, burst: Row, late: Row) -> str:
    turn, clock = beside(evidence, late, "turn"), beside(evidence, late, "sm_clock")
    turned = f", half of the loss after {as_time(turn.value)}" if turn is not None else ""
    at = f" at {quantity(clock.value, 'Hz')}" if clock is not None else ""
    return f"{dtype_of(late)}{accumulator(late)}: {figure(burst)}, then {figure(late)}{at}{turned}"


# Explains what an operation costs in energy, and what the numbers that are multiplied do to the rate.


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
