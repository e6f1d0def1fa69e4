"""Made runs of the memory suite, whole and changed, and what its rules say of them: for the tests of its words."""

from __future__ import annotations

import msgspec
from link_evidence import changed
from make_memory_run import make_memory_run

from microbench.analysis.evidence import Evidence, Finding, evidence_by_device
from microbench.core.model import Outcome, Run
from microbench.explain.rules import of_suite

WHOLE = make_memory_run()
FULL = make_memory_run(preset="full")


def evidence(run: Run = WHOLE) -> Evidence:
    return evidence_by_device(run)[0]


def told(rule: str, run: Run = WHOLE) -> Finding:
    return next(finding for finding in of_suite(evidence(run), "memory") if finding.rule == rule)


def silent(rule: str, run: Run) -> bool:
    return all(finding.rule != rule for finding in of_suite(evidence(run), "memory"))


def only(*names: str) -> Run:
    return changed(lambda one: one if one.case.benchmark in names else None, WHOLE)


def with_facts(benchmark: str, **values: object) -> Run:
    """The run with other facts of a benchmark; None leaves one without a value."""

    def change(one: Outcome) -> Outcome:
        if one.case.benchmark != benchmark:
            return one
        facts = tuple(
            msgspec.structs.replace(fact, value=values[fact.name], reason="others are there") if fact.name in values
            else fact
            for fact in one.facts
        )  # fmt: skip
        return msgspec.structs.replace(one, facts=facts)

    return changed(change, WHOLE)
