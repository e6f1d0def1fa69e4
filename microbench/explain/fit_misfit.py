"""How far measured steps lie from the fitted model, by way and by what sets the pace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from microbench.explain.fit_calibration import Calibrated
from microbench.explain.fit_steps import Step
from microbench.fitted import Constant, Misfit, scattering_s
from microbench.stats import STUDENT_T
from microbench.submission import WAYS, Way

# What is taken for a misfit where no step was measured, and what no number of steps promises to stay under: shares of
# what scatters in a step.
ASSUMED = Misfit(0.05, 0.10)
LEAST = 0.01
WITHIN = 0.95
# So many steps make a group of their own; fewer are judged together with the others of their way.
FEWEST = 8
# Steps of which kernels are more than this share are no test of the law: what they are off is their kernels'.
MOSTLY = 0.9
REGIMES = ("host", "gpu")


def misfits(
    measured: Sequence[Step], found: Calibrated, constants: Mapping[str, Constant]
) -> dict[tuple[Way, str], Misfit]:
    """By way and regime: of its own steps, else of all steps of the way, else what is assumed."""
    values = {name: one.value for name, one in constants.items()}
    groups: dict[tuple[Way, str], list[float]] = {}
    for step, fast, off in zip(measured, found.pace, found.off, strict=True):
        kernels_s = step.kernels_s(fast)
        if kernels_s <= MOSTLY * step.seconds and all(name in values for name in step.terms(fast)):
            share = abs(off) * step.seconds / scattering_s(step.seconds, kernels_s)
            groups.setdefault((step.way, regime(step, fast, values)), []).append(share)
    chosen = {}
    for way in WAYS:
        alike = [off for (other, _), several in groups.items() for off in several if other == way]
        for kind in REGIMES:
            own = groups.get((way, kind), [])
            chosen[way, kind] = misfit(own if len(own) >= FEWEST else alike)
    return chosen


def regime(step: Step, gpu_paced: bool, values: Mapping[str, float]) -> str:
    """ "host" if the host's calls are the largest share of the critical path, else "gpu"."""
    terms = {name: factor * values[name] for name, factor in step.terms(gpu_paced).items()}
    calls = (step.call, f"replay.{step.layer}", "replay_node")
    host_s = sum(seconds for name, seconds in terms.items() if name in calls)
    sync_s = terms.get("complete", 0.0)
    others_s = (sum(terms.values()) - host_s - sync_s, sync_s, step.kernels_s(gpu_paced))
    return "host" if host_s > max(others_s) else "gpu"


def misfit(off: Iterable[float]) -> Misfit:
    """Median of residuals, as shares of what scatters, and what the next one stays within at 95 %.

    The order statistic of rank ceil((n + 1) * 0.95) holds a further one for any distribution (split conformal
    prediction, Lei et al. 2018; of residuals each over a scale of its own: their section 5.2). Under 19 there is none:
    then Student's t on their root mean square, and at least the largest.
    """
    ordered = sorted(off)
    n = len(ordered)
    if n == 0:
        return ASSUMED
    rank = math.ceil((n + 1) * WITHIN)
    if rank <= n:
        most = ordered[rank - 1]
    else:
        spread = math.sqrt(sum(one**2 for one in ordered) / n)
        most = max(ordered[-1], STUDENT_T[n - 1] * spread * math.sqrt(1 + 1 / n))
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return Misfit(median, max(most, LEAST), n)
