"""Reads findings in tests: those of a suite by rule, and one of them checked for severity, words and shape."""

import re
import textwrap

from microbench.analysis.evidence import Evidence, Finding, evidence_by_device
from microbench.core.model import Run
from microbench.explain.rules import of_suite

# Sizes are not counted: they are conditions.
FIGURE = re.compile(r"\d[\d.]* ?(?:%|×|cycles?\b|[TGMkmµnp]?(?:(?:FLOP|OP|J|W|Hz|s|words)\b|B/))")
# The sentence that with_grade adds about doubtful rows.
DOUBT = re.compile(
    r" ?(?:\d+ of its \d+ figures (?:is|are)|(?:All|Both) of its (?:\d+ )?figures are|Its figure is) .*$"
)
SENTENCE_END = re.compile(r"[.!?](?=\s|$)")


def evidence(run: Run) -> Evidence:
    return evidence_by_device(run)[0]


REMEMBERED = 16
_known: dict[tuple[int, str], tuple[Run, dict[str, Finding]]] = {}


def by_rule(run: Run, suite: str) -> dict[str, Finding]:
    """The findings of a suite on a run's first GPU. They are remembered, because many tests look at one run."""
    found = _known.pop((id(run), suite), None)
    if found is None:
        found = run, {finding.rule: finding for finding in of_suite(evidence(run), suite)}
    if len(_known) >= REMEMBERED:
        _known.pop(next(iter(_known)))
    _known[id(run), suite] = found
    return found[1]


def check(finding: Finding, severity: str, *words: str) -> None:
    """Assert a finding's severity, words that it has (or, behind a "!", has not) and its shape."""
    everything = f"{finding.title} {finding.text} {finding.advice}"
    assert finding.severity == severity, everything
    assert [part for part in words if (part.removeprefix("!") in everything) == part.startswith("!")] == [], everything
    check_shape(finding)


def check_shape(finding: Finding) -> None:
    """A headline, at most two sentences of reading, one of advice, and at most three figures in the first two. One more
    sentence says which rows are doubtful."""
    rule, text = finding.rule, DOUBT.sub("", finding.text)
    assert finding.title, rule
    assert finding.threshold, rule
    measured = finding.severity != "note" and not finding.title.startswith("No ")
    assert finding.rests_on or not measured, f"{rule}: name the rows that it rests on"
    assert len(set(finding.rests_on)) == len(finding.rests_on), f"{rule}: it rests on a row twice"
    assert len(SENTENCE_END.findall(text)) <= 2, f"{rule}: shorten the text: {text}"
    assert len(SENTENCE_END.findall(finding.advice)) <= 1, f"{rule}: shorten the advice: {finding.advice}"
    shown = FIGURE.findall(f"{finding.title} {text}")
    assert len(shown) <= 3, f"{rule}: leave these figures to the report's tables: {shown}"
    for words in (finding.text, finding.advice):
        assert words == "" or words.endswith("."), f"{rule}: end it with a full stop: {words}"
        assert "nan" not in words.split(), rule


def drawn(finding: Finding) -> str:
    words = textwrap.fill(f"{finding.text} {finding.advice}".strip(), 116, break_long_words=False)
    return f"[{finding.severity}] {finding.rule}: {finding.title}\n{textwrap.indent(words, '    ')}"
