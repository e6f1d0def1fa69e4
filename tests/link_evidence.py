"""Made runs of the link suite, changed in many ways, and the findings of its rules."""

import itertools

from changed_run import changed, scaled
from make_link_run import Facts, make_link_run, state, two_switches
from msgspec.structs import replace
from read_findings import by_rule

from microbench.analysis.evidence import Finding
from microbench.core.model import Outcome, Run

WHOLE = make_link_run()
SEVERAL = make_link_run(gpus=4, nodes=2, facts=two_switches())
# GPUs of different halves reach half of the rate.
for first, second in itertools.permutations(range(4), 2):
    if first // 2 != second // 2:
        SEVERAL = scaled(SEVERAL, "link_peer", "bandwidth", 0.5, access="on", first=first, second=second)


def findings(run: Run = WHOLE) -> dict[str, Finding]:
    return by_rule(run, "link")


def peer_outcomes(run: Run, status: str, reason: str, **params: int) -> Run:
    """The run in which every link_peer case with these parameters ended with this status."""

    def change(one: Outcome) -> Outcome:
        if one.case.benchmark != "link_peer" or not params.items() <= one.case.params.items():
            return one
        return replace(one, status=status, reason=reason, measurements=())

    return changed(run, change)


def with_facts(facts: Facts, run: Run = WHOLE) -> Run:
    return changed(run, lambda one: state(facts) if one.case.benchmark == "link_state" else one)


def slower(factor: float, run: Run = WHOLE) -> Run:
    return scaled(run, "link_copy", "bandwidth", factor)
