"""Made runs of the link suite, changed in many ways, and the findings of its rules."""

import itertools
from collections.abc import Callable

import changed_run
import read_findings
from make_link_run import Facts, make_link_run, state, two_switches
from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, Finding
from microbench.core.model import GpuInfo, Outcome, Param, Run

WHOLE = make_link_run()
SEVERAL = make_link_run(gpus=4, nodes=2, facts=two_switches())
# GPUs of different halves reach half of the rate.
for first, second in itertools.permutations(range(4), 2):
    if first // 2 != second // 2:
        SEVERAL = changed_run.scaled(SEVERAL, "link_peer", "bandwidth", 0.5, access="on", first=first, second=second)


def evidence(run: Run = WHOLE) -> Evidence:
    return read_findings.evidence(run)


def findings(run: Run = WHOLE) -> dict[str, Finding]:
    return read_findings.by_rule(run, "link")


def changed(change: Callable[[Outcome], Outcome | None], run: Run = WHOLE) -> Run:
    """The run with each outcome changed, or left out for None."""
    return changed_run.changed(run, change)


def scaled(benchmark: str, metric: str, factor: float, run: Run = WHOLE, **params: Param) -> Run:
    return changed_run.scaled(run, benchmark, metric, factor, **params)


def without(benchmark: str, run: Run = WHOLE, **params: Param) -> Run:
    return changed_run.without(run, benchmark, **params)


def peer_outcomes(run: Run, status: str, reason: str, **params: int) -> Run:
    """The run in which every link_peer case with these parameters ended with this status."""

    def change(one: Outcome) -> Outcome:
        if one.case.benchmark != "link_peer" or not params.items() <= one.case.params.items():
            return one
        return replace(one, status=status, reason=reason, measurements=())

    return changed(change, run)


def with_facts(facts: Facts, run: Run = WHOLE) -> Run:
    return changed(lambda one: state(facts) if one.case.benchmark == "link_state" else one, run)


def with_gpu(change: Callable[[GpuInfo], GpuInfo], run: Run = WHOLE) -> Run:
    return changed_run.with_gpu(run, change)


def slower(factor: float, run: Run = WHOLE) -> Run:
    return scaled("link_copy", "bandwidth", factor, run)
