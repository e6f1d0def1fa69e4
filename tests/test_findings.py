"""The findings of the bundled runs, sentence by sentence, and that no rule is left without a test."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
import snapshots

from microbench.analysis.evidence import Finding
from microbench.core.bench import SUITES
from microbench.explain.rules import findings
from microbench.runs import store

PACKAGE = Path(__file__).parent.parent / "microbench"
RUNS = ("nvidia-h200", "nvidia-h200-compute", "nvidia-h200-x2")


def drawn(finding: Finding) -> str:
    words = textwrap.fill(f"{finding.text} {finding.advice}".strip(), 116, break_long_words=False)
    return f"[{finding.severity}] {finding.rule}: {finding.title}\n{textwrap.indent(words, '    ')}"


@pytest.mark.parametrize("suite", ["environment", *SUITES])
def test_findings_of_the_bundled_runs(suite: str) -> None:
    parts = []
    for name in RUNS:
        parts += [f"== {name}", *(drawn(one) for one in findings(store.load(name)) if one.suite == suite)]
    snapshots.same(f"findings-{suite}", "\n".join(parts))


def rules(tree: ast.AST) -> set[str]:
    """Every literal ``rule`` that a Finding is made with."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Finding"):
            values = [keyword.value for keyword in node.keywords if keyword.arg == "rule"] or node.args[:1]
            for value in values:
                names |= {
                    part.value
                    for part in ast.walk(value)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and "." in part.value.strip(".")
                }
    return names


def test_every_finding_is_tested() -> None:
    known = "\n".join(
        path.read_text(encoding="utf-8")
        for path in sorted(Path(__file__).parent.rglob("*"))
        if path.suffix == ".py" and path.name != Path(__file__).name
    )
    declared = {rule: path for path in PACKAGE.rglob("*.py") for rule in rules(ast.parse(path.read_text("utf-8")))}
    assert len(declared) > 100
    untested = [f"{rule} ({path.relative_to(PACKAGE)})" for rule, path in declared.items() if rule not in known]
    assert untested == [], "no test mentions these rules: assert rule, severity and figures of a run that has them"
