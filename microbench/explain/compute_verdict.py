"""THE VERDICT on compute: what products reach of the tensor cores at the clock they ran at, and what takes the rest."""

from functools import partial

from microbench.analysis.clocks import CLOCK_LOSS
from microbench.analysis.evidence import Evidence, Finding, Rule, Severity, exceeds, rests_on
from microbench.core.units import percent, round_percent
from microbench.explain import compute_units as units
from microbench.explain.compute_power import LASTS, lasting
from microbench.explain.verdicts import beyond_ceiling

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
RULES: tuple[Rule, ...] = (verdict, OVER_LIMIT)
