"""Made runs of the memory suite, whole and changed, and the findings of its rules on them."""

from __future__ import annotations

import re

import msgspec
from link_evidence import changed
from make_memory_run import make_memory_run

from microbench.analysis.evidence import Evidence, Finding, evidence_by_device
from microbench.core.model import Outcome, Run
from microbench.explain.rules import of_suite

WHOLE = make_memory_run()
FULL = make_memory_run(preset="full")
FIGURE = re.compile(r"\d[\d.]* ?(?:%|×|cycles?\b|[TGMkmµnpf]?(?:FLOP|OP|B|J|W|Hz|s|words)\b(?:/\w+)*)")
SENTENCE_END = re.compile(r"[.!?](?=\s|$)")


def evidence(run: Run = WHOLE) -> Evidence:
    return evidence_by_device(run)[0]


def findings(run: Run = WHOLE) -> dict[str, Finding]:
    """The suite's findings by rule."""
    return {finding.rule: finding for finding in of_suite(evidence(run), "memory")}


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


def check_shape(finding: Finding) -> None:
    """A headline, at most two sentences of reading, one of advice, and at most three figures in the first two."""
    assert finding.title, finding.rule
    assert finding.threshold, finding.rule
    assert finding.rests_on, finding.rule
    assert len(SENTENCE_END.findall(finding.text)) <= 2, f"{finding.rule}: shorten the text: {finding.text}"
    assert len(SENTENCE_END.findall(finding.advice)) <= 1, f"{finding.rule}: shorten the advice: {finding.advice}"
    shown = FIGURE.findall(f"{finding.title} {finding.text}")
    assert len(shown) <= 3, f"{finding.rule}: leave these figures to the report's tables: {shown}"
    for words in (finding.text, finding.advice):
        assert words == "" or words.endswith("."), f"{finding.rule}: end it with a full stop: {words}"
        assert "nan" not in words.split(), finding.rule
