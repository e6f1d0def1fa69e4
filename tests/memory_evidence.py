"""Made runs of the memory suite, whole and changed, and the findings of its rules."""

import read_findings
from link_evidence import changed
from make_memory_run import make_memory_run
from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, Finding
from microbench.core.model import Outcome, Run

WHOLE = make_memory_run()
FULL = make_memory_run(preset="full")


def evidence(run: Run = WHOLE) -> Evidence:
    return read_findings.evidence(run)


def findings(run: Run = WHOLE) -> dict[str, Finding]:
    """The suite's findings by rule."""
    return read_findings.by_rule(run, "memory")


def with_facts(benchmark: str, **values: object) -> Run:
    """The run with other facts of a benchmark; None leaves one without a value."""

    def change(one: Outcome) -> Outcome:
        if one.case.benchmark != benchmark:
            return one
        facts = tuple(
            replace(fact, value=values[fact.name], reason="others are there") if fact.name in values
            else fact
            for fact in one.facts
        )  # fmt: skip
        return replace(one, facts=facts)

    return changed(change, WHOLE)
