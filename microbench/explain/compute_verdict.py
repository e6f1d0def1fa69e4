"""THE VERDICT on compute, and what takes the rest: the clock, the power limit, seconds of work, the data."""

from functools import partial
from statistics import median

from microbench.analysis.clocks import CLOCK_LOSS
from microbench.analysis.evidence import (
    Evidence,
    Finding,
    Rule,
    Severity,
    exceeds,
    listed,
    rests_on,
    rule,
    said,
    sentence,
    whole,
)
from microbench.analysis.stats import Row
from microbench.core.units import percent, round_percent
from microbench.explain import compute_units as units
from microbench.explain.verdicts import beyond_ceiling

LASTS = 0.03
# NVML reports the power limit as a reason even below half of the limit, so it only counts from this share of the limit
# on.
AT_LIMIT = 0.9
DIFFERENT = 0.02


def lasting(evidence: Evidence) -> list[Row]:
    """Each type's sustained rate, from its longest measurement; the main type first."""
    by_dtype: dict[str, Row] = {}
    for row in sorted(units.rates(evidence, units.LASTING, ("sustained",)), key=lambda row: whole(row, "duration_s")):
        by_dtype[units.dtype_of(row)] = row
    return sorted(by_dtype.values(), key=units.not_main)


def nvml_clock_hz(evidence: Evidence, row: Row) -> float | None:
    """NVML's SM clock: over the second half of sustained work, else after the case."""
    clocks = _later_half(row, "nvml_sm_clock") or [
        telemetry.nvml_sm_clock_hz
        for outcome in row.outcomes
        for device, telemetry in outcome.telemetry.items()
        if device == evidence.device and telemetry.nvml_sm_clock_hz
    ]
    return median(clocks) if clocks else None


def drawn_share(evidence: Evidence, row: Row) -> float | None:
    """Power over the second half of sustained work as a share of the board's limit; None where one is not known."""
    powers = _later_half(row, "power")
    limit_w = evidence.gpu.power_limit_w if evidence.gpu is not None else None
    return median(powers) / limit_w if powers and limit_w else None


def _later_half(row: Row, name: str) -> list[float]:
    return [
        value
        for outcome in row.outcomes
        for series in outcome.series
        if series.metric == name
        for value in series.values[len(series.values) // 2 :]
    ]


@rule(
    "compute.limited",
    f"the SMs' clock more than {percent(CLOCK_LOSS)} below the highest; heat and brake by NVML's reasons, "
    f"the power limit only from {round_percent(AT_LIMIT)} of it on",
)
def limited(evidence: Evidence) -> Finding | None:
    """How much of the SM clock power or heat takes, as the SMs themselves count it."""
    row = next(iter((*lasting(evidence), *units.best_products(evidence))), None)
    clock = units.same_case(evidence, row, "sm_clock")
    highest_hz = evidence.gpu.sm_clock_max_hz if evidence.gpu is not None else None
    if row is None or clock is None or not highest_hz or clock.value >= highest_hz * (1 - CLOCK_LOSS):
        return None
    by, share, nvml_hz = units.held_by(evidence, row), drawn_share(evidence, row), nvml_clock_hz(evidence, row)
    if by == units.POWER_LIMIT and share is not None and share < AT_LIMIT:
        by = None
    advised = {
        units.HEAT: "Improve the cooling.",
        units.POWER_BRAKE: "Check the power supply and its cables.",
        units.POWER_LIMIT: "Only a higher limit or data that flip fewer bits give it back.",
    }
    text = f"The board draws {percent(share)} of its power limit. " if share is not None else ""
    names = dict.fromkeys(reason.partition(" from ")[0] for reason in units.reasons(evidence, row))
    text += f"NVML names {listed(tuple(names)) or 'no reason'}"
    if nvml_hz and nvml_hz > clock.value * (1 + LASTS):
        text += ", and its own clock reads too high under tensor load"
    title = (
        f"{sentence(by or 'tensor work')} takes {percent(1 - clock.value / highest_hz)} of the clock: "
        f"{units.dtype_of(row)} runs at {units.figure(clock)}"
    )
    text = f"{text}."
    advice = advised.get(by or "", "")
    rows = (row, clock)
    return said(title, text, advice, rows=rows, severity="warning" if by in (units.HEAT, units.POWER_BRAKE) else "note")


@rule("compute.sustained", f"falls where more than {percent(LASTS)} of the first batch is lost in the second half")
def sustained(evidence: Evidence) -> Finding | None:
    """The burst rate against the sustained one."""
    pairs = [
        (burst, row) for row in lasting(evidence) if (burst := units.same_case(evidence, row, "burst")) is not None
    ]
    if not pairs:
        return None
    burst, late = pairs[0]
    dtype = units.dtype_of(late)
    share = late.value / burst.value
    falls = share < 1 - LASTS
    title = (
        f"{dtype} keeps {percent(share)} of its burst: {units.figure(burst)}, then {units.figure(late)}"
        if falls
        else f"{dtype} lasts: {units.figure(late)} after seconds, {percent(share)} of its burst"
    )
    text = "A benchmark of milliseconds shows the burst; a training run gets the sustained rate." if falls else ""
    return said(title, text, rows=(*(row for pair in pairs for row in pair), units.same_case(evidence, late, "turn")))


@rule("compute.data", f"rates of the same product more than {round_percent(DIFFERENT)} apart")
def data(evidence: Evidence) -> Finding | None:
    """How much faster zeros multiply than random numbers."""
    pairs = [
        (normal, zeros)
        for dtype in units.dtypes(evidence, units.DATA)
        if (normal := units.one_rate(evidence, units.DATA, dtype=dtype, data="normal")) is not None
        and (zeros := units.one_rate(evidence, units.DATA, dtype=dtype, data="zeros", size=whole(normal, "size")))
        is not None
    ]
    if not pairs:
        return None
    normal, zeros = min(pairs, key=lambda pair: units.not_main(pair[0]))
    gain = zeros.value / normal.value - 1
    differ = abs(gain) > DIFFERENT
    powers = [units.same_case(evidence, row, "power") for row in (normal, zeros)]
    drawn = [units.figure(power) for power in powers if power is not None]
    title = (
        f"The data do not matter: zeros are within {percent(abs(gain))} of random numbers ({units.dtype_of(normal)})"
    )
    if differ:
        faster = "faster" if gain > 0 else "slower"
        title = f"Zeros multiply {percent(abs(gain))} {faster} than random numbers ({units.dtype_of(normal)})"
    text = "Power does not limit this product."
    if differ:
        text = "The units do the same work at a different power"
        text += f": {drawn[1]} for zeros, {drawn[0]} for random numbers." if len(drawn) == len(powers) else "."
    advice = "Never compare a rate measured on zeros with one on real data." if differ else ""
    return said(title, text, advice, rows=(row for pair in pairs for row in pair))


# Shares of the units' rate at the measured clock; an H200's products reach 89 to 92 % on its tensor cores.
HEALTHY, BROKEN = 0.80, 0.5


def verdict(evidence: Evidence) -> Finding | None:
    """How well products feed the units, and how much of the data sheet is left."""
    products = units.best_products(evidence)
    shown = units.reached(evidence, products[0]) if products else None
    share = None if shown is None else shown.fed if shown.fed is not None else shown.of_highest
    if shown is None or share is None:
        return _unjudged(evidence)
    lowered = shown.clock_share is not None and shown.clock_share < 1 - CLOCK_LOSS
    by = units.held_by(evidence, shown.row) if lowered else None
    severity: Severity = "good" if share >= HEALTHY else "warning" if share >= BROKEN else "problem"
    limit = shown.highest
    over = limit is not None and exceeds(shown.row, limit)
    if severity == "good" and (over or by in (units.HEAT, units.POWER_BRAKE)):
        severity = "warning"
    title = f"{units.typed(shown.row)} reaches {units.figure(shown.row)}"
    if shown.of_data_sheet is not None:
        title += f", {percent(shown.of_data_sheet)} of the data sheet"
    elif shown.of_highest is not None:
        title += f", {percent(shown.of_highest)} of the rate at the highest clock"
    if lowered:
        title += f": {by} lowers the clock" if by else ": the clock stays below its highest"
    text = f"That is {percent(shown.fed)} of the {shown.units} at the clock they ran at." if shown.fed else ""
    late = next((row for row in lasting(evidence) if units.dtype_of(row) == units.dtype_of(shown.row)), None)
    if late is not None and late.value < shown.row.value * (1 - LASTS):
        text = f"{text} Seconds without a pause leave less: gemm_sustained.".strip()
    assumptions = [f"; the ceiling assumes: {words}" for words in (limit.assumptions if limit is not None else ())]
    return Finding(
        rule="compute.verdict",
        severity=severity,
        title=title,
        text=text,
        advice="Try other sizes and candidates, and end other work on this GPU." if share < HEALTHY else "",
        threshold=(
            f"products at least {round_percent(HEALTHY)} of rate x SMs x measured clock; under "
            f"{round_percent(BROKEN)} a problem{''.join(assumptions)}"
        ),
        rests_on=rests_on(*products),
        reached=(share, HEALTHY),
    )


def _unjudged(evidence: Evidence) -> Finding | None:
    """Why products cannot be judged, and the best rate there is."""
    products = sorted(units.best_products(evidence), key=lambda row: -row.value)
    rows = units.rates(evidence, units.LASTING, ("sustained",))
    for name in (units.SEARCH, units.SHAPES, units.DATA, units.TENSORS, units.ALUS):
        rows = [*units.rates(evidence, name), *rows]
    shown = next(iter(products or sorted(rows, key=units.not_main)), None)
    if shown is None:
        return None
    why = "the rates of this architecture are not known" if products else "no square product was measured"
    into = f"microbench run gemm_throughput --into {evidence.run.run_id}"
    title = f"No verdict on compute: {why}"
    text = f"{shown.case_id} reaches {units.figure(shown)}."
    threshold = "a verdict needs a product and the rates of the architecture"
    advice = "" if products else f"Measure products with `{into}`."
    return Finding("compute.verdict", "note", title, text, threshold, rests_on(shown), advice=advice)


OVER_LIMIT = partial(
    beyond_ceiling,
    suite="compute",
    perhaps="a rate that this board's name does not tell, or a highest clock that is misreported",
)
RULES: tuple[Rule, ...] = (verdict, OVER_LIMIT, limited, sustained, data)
