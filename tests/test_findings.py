"""Findings of all suites: sentences of the bundled runs, their shape, every rule tested, none raising on odd runs."""

import ast
import importlib
from functools import cache
from pathlib import Path

import pytest
import snapshots
from changed_run import bundled, changed, in_one_round, without
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, json
from msgspec.structs import replace
from read_findings import DOUBT, by_rule, check_shape, drawn

from microbench.analysis.evidence import DOUBTS, Evidence, Finding, evidence_by_device, row_name
from microbench.analysis.stats import Trust, rows
from microbench.archive import store
from microbench.core.model import Outcome, Run
from microbench.explain.rules import RULES, findings, of_suite

PACKAGE = Path(__file__).parent.parent / "microbench"
BUNDLED = ("nvidia-h200", "nvidia-h200-x2")


# Rules on a user's own work need other runs: tests/test_measure.py has them.
SUITES = [suite for suite in RULES if suite != "own"]


@cache
def one_round(suite: str) -> Run:
    """The bundled run's first round of the suite; of the link also what two GPUs measured."""
    run = in_one_round(bundled(suite))
    if suite != "link":
        return run
    two = bundled(suite, name="nvidia-h200-x2")
    gpu = next(one.device for one in run.outcomes if one.device)
    more = tuple(replace(one, device=gpu) for one in two.outcomes if one.case.benchmark != "link_state")
    return replace(run, outcomes=(*run.outcomes, *more))


@pytest.mark.parametrize("suite", ["environment", *SUITES])
def test_findings_of_the_bundled_runs(suite: str) -> None:
    parts = []
    for name in BUNDLED:
        parts += [f"== {name}", *(drawn(one) for one in findings(store.read(store.find(name))) if one.suite == suite)]
    snapshots.same(f"findings-{suite}", "\n".join(parts))


@pytest.mark.parametrize("name", BUNDLED)
def test_findings_of_the_bundled_runs_are_short(name: str) -> None:
    for finding in findings(store.read(store.find(name))):
        check_shape(finding)


def graded(run: Run, grade: Trust, only: str | None = None) -> list[Evidence]:
    """The evidence of a run, with this grade for all of its rows or for the row of that name; the others are stable."""
    found = [replace(row, trust=grade if only in (None, row_name(row)) else "stable") for row in rows(run)]
    return evidence_by_device(run, found)


def rests_on_rows(finding: Finding, evidence: Evidence) -> bool:
    return not {row_name(row) for row in evidence.all_rows()}.isdisjoint(finding.rests_on)


@pytest.mark.parametrize("suite", SUITES)
def test_a_finding_on_doubtful_rows_says_so_whatever_its_rule(suite: str) -> None:
    for grade, words in DOUBTS.items():
        for evidence in graded(one_round(suite), grade):
            for finding in of_suite(evidence, suite):
                if finding.rule not in (f"{suite}.noise", f"{suite}.rounds") and rests_on_rows(finding, evidence):
                    assert finding.trust == grade, finding.rule
                    assert DOUBT.search(finding.text), f"{finding.rule}: {finding.text}"
                    assert finding.text.endswith(f" {words}."), finding.rule
                    check_shape(finding)


@pytest.mark.parametrize("suite", SUITES)
def test_a_finding_on_stable_rows_has_their_grade_and_no_doubt(suite: str) -> None:
    for evidence in graded(one_round(suite), "stable"):
        for finding in of_suite(evidence, suite):
            assert finding.trust == ("stable" if rests_on_rows(finding, evidence) else ""), finding.rule
            assert not DOUBT.search(finding.text), finding.text


def test_a_finding_names_the_doubtful_rows_among_several() -> None:
    (evidence,) = graded(one_round("launch"), "throttled", only="launch_cost submit")
    calls = next(one for one in of_suite(evidence, "launch") if one.rule == "launch.calls")
    assert calls.text.endswith(" 1 of its 7 figures is throttled: launch_cost submit.")
    assert calls.trust == "throttled"


def test_no_finding_of_the_bundled_runs_hides_doubtful_rows() -> None:
    for name in BUNDLED:
        run = store.read(store.find(name))
        doubtful = {row_name(row) for row in rows(run) if row.trust in DOUBTS}
        resting = [one for one in findings(run) if not doubtful.isdisjoint(one.rests_on)]
        assert [one.rule for one in resting if not DOUBT.search(one.text) and not one.rule.endswith(".noise")] == []


def benchmarks(suite: str) -> list[str]:
    return [info.name for info in one_round(suite).benchmarks if info.suite == suite]


@pytest.mark.parametrize(("suite", "benchmark"), [(suite, name) for suite in SUITES for name in benchmarks(suite)])
def test_a_missing_benchmark_silences_its_rules_only(suite: str, benchmark: str) -> None:
    whole, left = by_rule(one_round(suite), suite), by_rule(without(one_round(suite), benchmark), suite)
    assert left.keys() - {f"{suite}.noise"} <= whole.keys()  # fewer rows, of which more are noisy
    rests_on = [name for finding in left.values() for name in finding.rests_on]
    assert not [name for name in rests_on if name.startswith((f"{benchmark}[", f"{benchmark} "))]
    findings(changed(one_round(suite), lambda one: one if one.case.benchmark == benchmark else None))


@pytest.mark.parametrize("suite", [suite for suite in SUITES if suite != "host"])
def test_a_suite_without_measurements_has_no_findings(suite: str) -> None:
    assert by_rule(one_round("host"), suite) == {}


@pytest.mark.parametrize("suite", SUITES)
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_no_rule_raises_whatever_is_missing_or_odd(suite: str, data: st.DataObject) -> None:
    run = one_round(suite)
    dropped = data.draw(st.sets(st.integers(0, len(run.outcomes) - 1)))
    metrics = sorted({old.metric for one in run.outcomes for old in one.measurements})
    odd = data.draw(st.sets(st.sampled_from(metrics)))
    value = data.draw(st.sampled_from((0.0, -1e-6, 1e-12, 1e6)))

    def change(one: Outcome) -> Outcome:
        samples = Raw(json.encode([value] * 3))
        measured = (
            replace(old, samples=samples, n=3, per_call=None) if old.metric in odd else old for old in one.measurements
        )
        return replace(one, measurements=tuple(measured))

    left = tuple(change(one) for index, one in enumerate(run.outcomes) if index not in dropped)
    findings(replace(run, outcomes=left))


def test_every_rule_is_listed() -> None:
    unlisted = []
    applied = [rule for rules in RULES.values() for rule in rules]
    for path in (PACKAGE / "explain").glob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if not isinstance(node, ast.FunctionDef) or node.returns is None or node.name.startswith("_"):
                continue
            takes = [argument.arg for argument in node.args.args]
            if ast.unparse(node.returns) == "Finding | None" and takes == ["evidence"]:
                module = importlib.import_module(f"microbench.explain.{path.stem}")
                unlisted += [f"{path.name}: {node.name}"] if getattr(module, node.name) not in applied else []
    assert unlisted == [], "add these functions to RULES at the end of their file"
    assert all(len(set(rules)) == len(rules) for rules in RULES.values())


def rules(tree: ast.AST) -> set[str]:
    """Every literal name of a rule that a Finding is made with, or that a rule is declared with."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("Finding", "said", "rule"):
            values = [keyword.value for keyword in node.keywords if keyword.arg == "rule"] or node.args[:1]
            for value in values:
                names |= {
                    part.value
                    for part in ast.walk(value)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and "." in part.value.strip(".")
                }
    return names


def test_every_finding_is_tested() -> None:
    """By a table of its suite, or as a part of a document that is a snapshot."""
    tests = [path for path in Path(__file__).parent.rglob("*.py") if path.name != Path(__file__).name]
    names = ("fleet-*", "environment", "unknowns", "predictions", "comparisons", "links", "paths", "timelines")
    documents = [path for name in names for path in snapshots.FOLDER.rglob(f"{name}.txt")]
    known = "\n".join(path.read_text(encoding="utf-8") for path in (*tests, *documents))
    declared = {rule: path for path in PACKAGE.rglob("*.py") for rule in rules(ast.parse(path.read_text("utf-8")))}
    assert len(declared) > 100
    told = {rule for rule in declared if f'"{rule}' in known or f"] {rule}:" in known}
    untested = [f"{rule} ({path.relative_to(PACKAGE)})" for rule, path in declared.items() if rule not in told]
    assert untested == [], "add each to its suite's table of tests: rule, run that has it, severity and figures"
