"""THE VERDICT on compute: what products reach of the tensor cores at the clock they ran at, and what takes the rest."""

from __future__ import annotations

from microbench.analysis.clocks import CLOCK_LOSS
from microbench.analysis.evidence import Evidence, Finding, Severity, exceeds, rests_on
from microbench.analysis.stats import Row
from microbench.core.units import percent, quantity, round_percent
from microbench.explain.compute_units import (
    ALUS,
    DATA,
    HEAT,
    LASTING,
    MAIN_DTYPE,
    POWER_BRAKE,
    SEARCH,
    SHAPES,
    TENSORS,
    Reached,
    accumulator,
    best_products,
    dtype_of,
    figure,
    held_by,
    rates,
    reached,
    shares,
    some,
    typed,
    units_of,
)

# Shares of the units' rate at the measured clock; an H200's products reach 89 to 92 % on its tensor cores.
HEALTHY, BROKEN = 0.80, 0.5
THRESHOLD = (
    f"products at least {round_percent(HEALTHY)} of rate x SMs x measured clock; under {round_percent(BROKEN)} a "
    "problem"
)


def verdict(evidence: Evidence) -> list[Finding]:
    """How well products feed the units, and how much of the data sheet is left."""
    if not evidence.suite("compute"):
        return []
    found = [reached(evidence, row) for row in best_products(evidence)]
    if found and (found[0].fed is not None or found[0].of_highest is not None):
        return [_judged(evidence, found)]
    return _unjudged(evidence, found)


def _judged(evidence: Evidence, found: list[Reached]) -> Finding:
    shown, others = found[0], found[1:]
    share = shown.fed if shown.fed is not None else shown.of_highest or 0.0
    severity: Severity = "good" if share >= HEALTHY else "warning" if share >= BROKEN else "problem"
    hot = held_by(evidence, shown.row) in (HEAT, POWER_BRAKE) and taken(evidence, shown) != ""
    if severity == "good" and (hot or (shown.highest is not None and exceeds(shown.row, shown.highest))):
        severity = "warning"
    words = [f"{typed(shown.row)}{accumulator(shown.row)}: {shares(shown)} of the {units_of(shown)}, dense."]
    if others:
        words.append(f"{some([_short(one) for one in others])}.")
    if share < HEALTHY:
        words.append("The kernel leaves the units waiting: try other sizes and candidates, and end other work.")
    limit = shown.highest
    words += [f"The ceiling assumes: {one}." for one in (limit.assumptions if limit is not None else ())]
    return Finding(
        rule="compute.verdict",
        severity=severity,
        title=_title(evidence, shown),
        text=" ".join(words),
        threshold=THRESHOLD,
        rests_on=rests_on(*(one.row for one in found)),
        suite="compute",
    )


def _title(evidence: Evidence, one: Reached) -> str:
    """ "bf16 748 TFLOP/s: 92.0 % of the tensor cores at 1.39 GHz, 75.6 % of the data sheet; the power limit …"."""
    words = []
    if one.fed is not None:
        words.append(f"{percent(one.fed)} of the {units_of(one)} at {quantity(one.clock_hz, 'Hz')}")
    if one.of_data_sheet is not None:
        words.append(f"{percent(one.of_data_sheet)} of the data sheet")
    elif one.of_highest is not None:
        words.append(f"{percent(one.of_highest)} at the highest clock")
    return f"{typed(one.row)} {figure(one.row)}: {', '.join(words)}{taken(evidence, one)}"


def taken(evidence: Evidence, one: Reached) -> str:
    """What takes the clock, where some of it is lost: "; the power limit takes the clock"."""
    if one.clock_share is None or one.clock_share >= 1 - CLOCK_LOSS:
        return ""
    by = held_by(evidence, one.row)
    return f"; {by} takes the clock" if by else "; the clock stays below its highest"


def _short(one: Reached) -> str:
    fed = f" ({percent(one.fed)} at {quantity(one.clock_hz, 'Hz')})" if one.fed is not None else ""
    return f"{typed(one.row)} {figure(one.row)}{fed}{accumulator(one.row)}"


def _unjudged(evidence: Evidence, found: list[Reached]) -> list[Finding]:
    """Products that cannot be judged, or none at all."""
    units = [row for name in (SEARCH, SHAPES, DATA, TENSORS, ALUS) for row in rates(evidence, name)]
    units += rates(evidence, LASTING, ("sustained",))
    if not found and not units:
        return []
    best = max((one.row for one in found), key=lambda row: row.value, default=None)
    why = "no square product was measured" if best is None else "the rates of this architecture are not known"
    shown: Row = best or next((row for row in units if dtype_of(row) == MAIN_DTYPE), units[0])
    advice = "`microbench run gemm_throughput --into RUN` measures products." if best is None else ""
    return [
        Finding(
            rule="compute.verdict",
            severity="note",
            title=f"No verdict: {why}",
            text=f"{shown.case_id} reaches {figure(shown)}. {advice}".strip(),
            threshold="a verdict needs a product and the rates of the architecture",
            rests_on=rests_on(shown),
            suite="compute",
        )
    ]
