"""Which GPU of a run a workload is predicted on: the first one whose measurements suffice for it."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.errors import RunUnreadableError
from microbench.explain.evidence import Evidence, evidence_by_device
from microbench.explain.fitting import fit, missing, with_calls
from microbench.explain.remeasuring import measuring
from microbench.fitted import Fit
from microbench.model import Run
from microbench.submission import WAYS
from microbench.workload import Workload


def fit_for(run: Run, workload: Workload, adding: Sequence[str] = ()) -> tuple[Evidence, Fit]:
    """The evidence and the fit of that GPU, with every launch call that the workload makes.

    Raises RunUnreadableError that names the benchmarks to run; ``adding`` are the options that add to this run.
    """
    lacking: list[str] = []
    for evidence in evidence_by_device(run):
        found = fit(evidence)
        absent = missing(found, workload, WAYS)
        if not absent:
            return evidence, with_calls(found, workload)
        lacking = lacking or absent
    raise RunUnreadableError(
        f"run {run.run_id} has no figures of {', '.join(lacking)}, which the prediction rests on",
        f"{measuring(lacking, adding)} measures them",
    )


def suits(run: Run, workload: Workload) -> bool:
    """Whether the run is of a real GPU and has what the workload's prediction rests on."""
    if run.simulated:
        return False
    return any(not missing(fit(evidence), workload, WAYS) for evidence in evidence_by_device(run))
