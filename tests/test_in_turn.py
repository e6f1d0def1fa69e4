"""`microbench ab`: its rule by simulation, and on the simulated GPU what it measures, says and refuses."""

import json
import os
import sys
from pathlib import Path

import in_turn
import numpy as np
import pytest
from command_line import call

from microbench.comparison.in_turn import FALSE_ALARMS, judge, looks
from microbench.core.bench import discover
from microbench.core.model import Run
from microbench.session.messages import CaseDone, Event
from microbench.session.plan import select
from microbench.session.session import Seams, Side, measure_in_turn

SLOWER = 'MICROBENCH_FAKE_COSTS={"submit_ns": 3360}'  # of 3200


@pytest.mark.parametrize(("benchmark", "change"), [("launch_cost", 0.05), ("graph_lifecycle", 0.03)])
def test_a_change_is_found_on_a_busy_host(benchmark: str, change: float) -> None:
    """A launch by 5 % and a graph by 3 %, in 95 of 100 measurements. lab/in_turn.py plays more of them."""
    assert in_turn.played(benchmark, "busy", change, 200).found >= 0.95


@pytest.mark.parametrize("host", in_turn.HOSTS)
def test_equal_sides_are_called_different_in_one_of_a_hundred(host: str) -> None:
    assert in_turn.played("launch_cost", host, 0.0, 500).alarms <= FALSE_ALARMS


@pytest.mark.parametrize("rounds", [6, 7, 10, 24, 100])
def test_all_looks_together_spend_the_false_alarms_allowed(rounds: int) -> None:
    when = looks(rounds)
    assert sum(when.values()) == pytest.approx(FALSE_ALARMS)
    assert (min(when), max(when), list(when)) == (6, rounds, sorted(when))


def test_levels_of_processes_are_no_change() -> None:
    """If each process has one of two levels by chance, pairing helps nothing, and chance may sort them by side."""
    random = np.random.default_rng(3)
    values = 0.4 * random.integers(0, 2, (4000, 20)) + random.normal(0, 0.01, (4000, 20))
    alarms = np.zeros(4000, dtype=bool)
    for pairs, allowed in looks(10).items():
        for row in range(4000):
            alarms[row] |= judge(
                values[row : row + 1, :pairs] - values[row : row + 1, 10 : 10 + pairs], allowed, 10
            ).changed
    assert alarms.mean() <= FALSE_ALARMS


def test_pairs_in_which_the_host_changed_do_not_count() -> None:
    shifts = np.array([[0.05, 0.052, 0.45, 0.049, -0.35, 0.05, 0.051, 0.048, 0.05, 0.052], [0.0] * 9 + [np.nan]])
    judged = judge(shifts, looks(10)[10], 10)
    assert judged.changed.tolist() == [True, False]
    assert judged.same.tolist() == [False, True]
    assert judged.shift[0] == pytest.approx(0.05, abs=0.002)
    assert judged.smallest[1] < 0.02


def test_sides_take_turns_and_stop_when_enough_is_known() -> None:
    heard: list[tuple[str, int]] = []
    asked: list[int] = []

    def hear(event: Event) -> None:
        if isinstance(event, CaseDone):
            values = event.outcome.measurements[0].values
            heard.append(
                (
                    "B" if np.median(values) > 3.28e-6 * event.outcome.measurements[0].calls_per_sample else "A",
                    event.outcome.round,
                )
            )

    def enough(pairs: int, base: Run, new: Run) -> bool:
        asked.append(pairs)
        assert len(base.outcomes) == len(new.outcomes) == pairs
        return pairs == 2

    selected = select(discover(), ("launch_cost",), "quick", {})
    sides = Side(selected), Side(selected, (("MICROBENCH_FAKE_COSTS", '{"submit_ns": 3360}'),))
    base, new = measure_in_turn(sides, 6, "fake", enough, hear, Seams())
    assert heard == [("A", 0), ("B", 0), ("B", 1), ("A", 1)]
    assert asked == [1, 2]
    assert [one.round for run in (base, new) for one in run.outcomes] == [0, 1, 0, 1]


@pytest.mark.slow
def test_the_command_names_what_is_slower_and_ends_with_the_code_of_compare(tmp_path: Path) -> None:
    result = call(
        "ab", "-B", SLOWER, "launch_cost", "--device", "fake", "--rounds", "6", "--fail-on", "slower", COLUMNS="120"
    )
    assert result.exit_code == 5
    assert "SLOWER" in result.stdout
    assert "SIMULATED" in result.stdout
    row = next(line for line in result.stdout.splitlines() if "launch_cost submit" in line)
    assert row.split()[0] == "slower"
    assert "1.05" in row
    python = str(Path(sys.executable).absolute())
    equal = call("ab", "-A", python, "-B", python, "launch_cost", "--device", "fake", "--json", "--rounds", "6",
                 PYTHONPATH=os.pathsep.join(filter(None, sys.path)))  # fmt: skip
    assert equal.exit_code == 0
    answer = json.loads(equal.stdout)
    assert (answer["verdict"], answer["pairs"]) == ("NO CHANGE SHOWN", 6)
    assert {figure["verdict"] for figure in answer["figures"]} == {"same"}
    assert all(0.01 < figure["would_find"] < 0.03 for figure in answer["figures"])


STEP = """
from microbench.core.ops import Launch

def setup(gpu):
    return (gpu.bind(Launch(duration_ns=2000)),)

def step(kernel):
    kernel(COUNT)
"""


@pytest.mark.slow
def test_two_checkouts_of_own_code_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, count in (("old", "20"), ("new", "21")):
        Path(folder).mkdir()
        Path(folder, "step.py").write_text(STEP.replace("COUNT", count))
    sides = "-A", "old/step.py::step", "-B", "new/step.py::step"
    result = call("ab", *sides, "--setup", "setup", "--rounds", "6", "--device", "fake", "--json")
    figures = {figure["metric"]: figure for figure in json.loads(result.stdout)["figures"]}
    assert figures["submit"]["verdict"] == "slower"
    assert figures["submit"]["ratio"] == pytest.approx(1.05, abs=0.01)


@pytest.mark.parametrize(("arguments", "cause"), [
    (("-B", "X=1", "--rounds", "5"), "5 rounds are not possible"),
    (("-B", "steps.py::step"), "no file"),
    (("-B", "nowhere"), "names no kernel and no function"),
    (("-B", "X=1", "launch_costs"), "no suite or benchmark"),
    (("-B", "X=1", "--same-within", "20%"), "no percentage"),
    (("-B", "empty"), "has no microbench"),
    (("-A", "X=1", "-B", "here.py::step"), "not of one kind"),
    (("-A", "here.py::step", "-B", "here.py::step", "launch"), "has no suites"),
    ((), "-B"),
])  # fmt: skip
def test_what_is_wrong_is_said_before_anything_runs(
    arguments: tuple[str, ...], cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.py").write_text("def step(): pass\n")
    Path("empty").mkdir()
    result = call("ab", *arguments, "--device", "fake")
    assert result.exit_code == 2
    assert cause in " ".join(result.stderr.split())


@pytest.mark.slow
def test_a_side_that_fails_says_why_and_counts_as_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.py").write_text(STEP.replace("COUNT", "20"))
    Path("new.py").write_text(STEP.replace("kernel(COUNT)", "raise RuntimeError('broken')"))
    sides = "-A", "old.py::step", "-B", "new.py::step"
    result = call("ab", *sides, "--setup", "setup", "--rounds", "6", "--device", "fake", "--fail-on", "slower")
    assert result.exit_code == 5
    assert "own_step failed: RuntimeError: broken" in " ".join(result.stdout.split())
