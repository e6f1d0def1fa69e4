"""The regressions of lab/regressions.py and the changes of lab/refactorings.py: what is made, what is read of it."""

import ast
from collections import Counter

import pytest
from refactorings import OF_TREES, changed
from regressions import PROGRAMS, REGRESSIONS, Regression, good, named, summary


@pytest.mark.parametrize("one", REGRESSIONS, ids=lambda one: one.name)
def test_a_regression_is_one_place_of_its_program(one: Regression) -> None:
    text = one.text(good(one.program))
    ast.parse(text)
    lines = one.lines(good(one.program))
    assert 1 <= len(lines) <= 6
    before = good(one.program).splitlines()
    if not one.at:
        assert all(text.splitlines()[line - 1] not in before for line in lines)


def test_a_program_that_has_changed_is_told() -> None:
    with pytest.raises(ValueError, match="is not once in classify"):
        REGRESSIONS[0].text("x = 1\n")


def test_each_program_has_ten_changes_without_effect() -> None:
    kinds = set()
    for program in PROGRAMS:
        found = dict(changed(good(program)))
        assert len(found) >= 10
        assert len({*found.values(), good(program)}) == len(found) + 1
        for text in found.values():
            assert calls(text) == calls(good(program))
        kinds |= set(found)
    assert kinds == {"commented", *(one.__name__ for one in OF_TREES)}


def calls(text: str) -> Counter[str]:
    """What a program calls, and how often it is written; helpers and the growing of lists are how, not what."""
    called = (ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    names = (name.rpartition(".")[2].removesuffix("_of_step").removesuffix("_given") for name in called)
    return Counter(name for name in names if not name.startswith("helper_") and name != "append")


def test_the_lines_at_which_a_step_does_more_are_read() -> None:
    said = """
 waits for the GPU       1      3  +1 cudaStreamSynchronize at classify.py:47 turn, -1 cudaMalloc at classify.py:9 f,
 copies                  1      2  +1.5 cudaMemcpyAsync, +1 cudaMemcpyAsync in main thread at classify.py:44 turn
 launches                4      5  +1 cudaLaunchKernel at other.py:5 step
"""
    assert named(said, "classify") == [47, 44]


def test_the_summary_counts_what_was_measured() -> None:
    row = {"kind": "regression", "flagged": True, "right": False, "expected": "4 5", "lines": "9 5", "recordings": ""}
    rows = [
        row,
        row | {"right": True, "lines": "4"},
        {"kind": "regression", "note": "Failed"},
        {"kind": "again", "flagged": False},
    ]
    assert summary(rows)[:2] == [
        "again: 0 of 1 flagged",
        "regression: 2 of 2 flagged, 1 with the right line first, 2 with it among those named; 1 not measured",
    ]
