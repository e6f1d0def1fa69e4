"""The comparison of diagnoses with true times, on made-up traces and times; the programs themselves need a GPU."""

import ast
import csv
import itertools
import json
import os
import tarfile
from pathlib import Path
from typing import Any, get_args

import pytest
import real_programs
from make_trace import kineto, steps_of
from programs import BY_NAME, PROGRAMS, Made, judged, measured

from microbench.diagnosis.advice import FIRST
from microbench.diagnosis.diagnosis import Bound

LAB = Path(real_programs.__file__).parent


def answer(graph_s: float | None, *, bound: str = "launch-bound", step_s: float = 2e-3, work: float = 50) -> Any:
    """What `diagnose --json` prints, as far as the comparison reads it; 22 steps of 50 pieces of work."""
    times = {"watched_s": 1.2 * step_s, "unwatched_s": step_s}
    limits = {} if graph_s is None else {"step_s": graph_s, "low_s": 0.9 * graph_s, "high_s": 1.1 * graph_s}
    if graph_s is not None:
        speedup = step_s / graph_s
        limits |= {"speedup": speedup, "speedup_low": 0.8 * speedup, "speedup_high": 1.2 * speedup}
    return {
        "trace": {"work": 22 * 50}, "bound": bound, "why_no_graph": "a graph would save less than 3% of the step",
        "step": {"kernels": 0.4 * work, "work": work, **times, "likeness": 1.0},
        "graph": limits if graph_s is not None else None, "blockers": [],
        "advice": [{"name": "graph"}, {"name": "fuse"}] if graph_s is not None else [],
        "findings": [{"rule": "diagnose.bound"}],
    }  # fmt: skip


def judge(
    plain: Any, name: str = "three_streams", eager: float = 2e-3, graph: float = 1e-3, **more: float
) -> judged.Row:
    return judged.row(name, "cuda", {"eager": eager, "graph": graph, **more}, 22, plain, plain)


def test_each_program_is_in_its_module_and_expects_what_a_diagnosis_can_say() -> None:
    assert len(PROGRAMS) == len(BY_NAME) >= 14
    for program in PROGRAMS:
        source = ast.parse((LAB / "programs" / f"{program.module}.py").read_text())
        assert program.name in {node.name for node in source.body if isinstance(node, ast.FunctionDef)}
        assert program.bounds
        assert {*program.bounds} <= {*get_args(Bound)}
        assert program.blocker in {"", *FIRST, "copies pageable memory"}


def test_errors_are_shares_of_the_true_times() -> None:
    row = judge(answer(1.08e-3))
    assert row["error"] == pytest.approx(0.08)
    assert row["speedup_error"] == row["given_error"] == pytest.approx(1 / 1.08 - 1)
    assert row["inside"]
    assert row["right_first"]
    assert row["best_change"] == "graph: yes"
    assert not judge(answer(1.3e-3))["inside"]
    assert not judge(answer(0.8e-3))["inside"]


def test_a_speed_up_is_compared_with_the_time_of_the_process_that_was_recorded() -> None:
    row, near = (judge(answer(1e-3), here=here) for here in (3e-3, 2.3e-3))
    assert row["speedup_error"] == row["given_error"] == pytest.approx(2 / 3 - 1)
    assert (row["speedup_inside"], near["speedup_inside"]) == (False, True)
    assert "- true speed-up inside the range given without --step: 1 of 2" in judged.summary([row, near])
    assert row["true_speedup"] == pytest.approx(2.0)
    assert row["best_change"] == "graph: yes", "the time of that process is no change"


@pytest.mark.parametrize(("work", "parts"), [(50, 1.0), (5, 10.0), (48, 1.0), (100, 0.5), (200, 0.25)])
def test_a_part_of_a_step_and_several_steps_are_compared_as_one(work: float, parts: float) -> None:
    row = judge(answer(1e-3 / parts, step_s=2e-3 / parts, work=work))
    assert row["parts"] == parts
    assert row["error"] == pytest.approx(0)
    assert row["unwatched_s"] == pytest.approx(2e-3)
    assert row["recorded_s"] == pytest.approx(2.4e-3)


def test_a_graph_advised_in_vain_and_one_that_is_missing_are_named() -> None:
    vain, right = judge(answer(1e-3), graph=1.96e-3), judge(answer(None), graph=1.96e-3)
    missing = judge(answer(None), graph=1e-3)
    assert [row["worth"] for row in (vain, right, missing)] == [False, False, True]
    lines = list(judged.summary([vain, right, missing]))
    assert "- graph advised where it saves less than 3%: 1 of 2 (three_streams)" in lines
    assert "- graphs predicted: 0 of 1 that save 3% or more" in lines
    assert missing["best_change"] == "none: no, graph"
    assert "none: a graph would save less than 3% of the step" in "\n".join(judged.table([missing]))


def test_the_first_finding_and_the_first_change_must_be_right() -> None:
    row = judge(answer(1e-3), name="statistics_item", waits=0.6e-3, graph_without_waits=0.1e-3)
    assert not row["right_first"]
    assert not row["right_blocker"], "the wait is no blocker in this answer"
    assert row["best_change"] == "graph: no, waits"
    assert "- right first finding: 0 of 1 (statistics_item)" in judged.summary([row])


def test_what_the_command_refuses_is_a_row_with_its_reason() -> None:
    row = judge({"error": "no trace"})
    assert (row["why"], row["right_first"]) == ("no trace", False)
    assert "none: no trace" in "\n".join(judged.table([row]))


class Clock:
    """A host's clock that only steps and waits move; the GPU needs 300 us for a step, eager or as a graph."""

    def __init__(self) -> None:
        self.now_s, self.free_s = 0.0, 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def submits(self, host_s: float) -> None:
        self.now_s += host_s
        self.free_s = max(self.free_s, self.now_s) + 300e-6

    def waits(self) -> None:
        self.now_s = max(self.now_s, self.free_s)


def test_each_way_is_timed_by_blocks_with_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = Clock(), dict[str, Any]()
    monkeypatch.setattr(measured, "time", clock)

    def broken() -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    made = Made(
        step=lambda: clock.submits(1e-3), wait=clock.waits, graph=lambda: lambda: clock.submits(5e-6),
        remedies={"waits": lambda: clock.submits(0.5e-3)}, without_waits=broken,
    )  # fmt: skip
    measured.times(made, found)
    last_s = 300e-6 / found["steps_a_block"]["eager"]
    assert found["times_s"]["eager"] == pytest.approx(1e-3 + last_s)
    assert found["times_s"]["waits"] == pytest.approx(0.5e-3, rel=0.01)
    assert found["times_s"]["graph"] == pytest.approx(300e-6, rel=0.01)
    assert "not permitted" in found["graph_without_waits_error"]
    assert {len(blocks) for blocks in found["blocks_s"].values()} == {measured.ROUNDS}
    assert all(count % 2 == 0 for count in found["steps_a_block"].values())


@pytest.mark.slow
def test_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cupy.py").write_text('raise ModuleNotFoundError("hidden", name="cupy")')
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(LAB.parent)]))
    folder = tmp_path / "out"
    real_programs.measure(folder, 60, (BY_NAME["cupy_wave"],))
    assert capsys.readouterr().out.count("error: needs cupy") == 3
    truths = json.loads((folder / real_programs.TRUTHS).read_text())
    ways = ("times", "traces", "watched")
    assert truths["programs"]["cupy_wave"] == {what: {"error": "needs cupy"} for what in ways}
    real_programs.compare(folder, "nvidia-h200")
    assert "- cupy_wave, times, error: needs cupy" in (folder / "programs.md").read_text()


@pytest.mark.slow
def test_traces_are_diagnosed_with_and_without_their_true_step(tmp_path: Path) -> None:
    """The first program is launch-bound as expected; the second is too, although its name stands for a slow loader."""
    true = {"decode_grouped": {"eager": 230e-6, "graph": 30e-6}, "loader_stalls": {"eager": 2e-3, "graph": 1.99e-3}}
    programs: dict[str, Any] = {}
    with tarfile.open(tmp_path / real_programs.TRACES, "w") as tar:
        for name, between_ns in zip(true, (20_000, 200_000), strict=True):
            path = tmp_path / f"{name}.cpu.json"
            path.write_bytes(kineto(steps_of(count=12, kernels=10, between_ns=between_ns, marked=True).trace()))
            tar.add(path, path.name)
            traces = {"cpu": {"file": path.name, "steps": 12}}
            programs[name] = {"times": {"times_s": true[name]}, "traces": {"traces": traces}}
    (tmp_path / real_programs.TRUTHS).write_text(json.dumps({"programs": programs}))
    real_programs.compare(tmp_path, "nvidia-h200")
    with (tmp_path / "programs.csv").open(newline="") as file:
        rows = {row["program"]: row for row in csv.DictReader(file)}
    answers = json.loads((tmp_path / real_programs.TRUTHS).read_text())["programs"]
    for name, times in true.items():
        plain, given = (answers[name]["answers"]["cpu"][key] for key in ("plain", "given"))
        assert given["step"]["unwatched_s"] == pytest.approx(times["eager"])
        assert float(rows[name]["error"]) == pytest.approx(plain["graph"]["step_s"] / times["graph"] - 1, rel=1e-4)
        speedup = given["graph"]["speedup"] / (times["eager"] / times["graph"])
        assert float(rows[name]["given_error"]) == pytest.approx(speedup - 1, rel=1e-4)
    assert [rows[name]["right_first"] for name in true] == ["True", "False"]
    text = (tmp_path / "programs.md").read_text()
    assert "- right first finding: 1 of 2 (loader_stalls)" in text
    assert "- graph advised where it saves less than 3%: 1 of 1 (loader_stalls)" in text
    kinds = [line for line in text.splitlines() if line.startswith("### ")]
    assert kinds[:2] == ["### Traces: cpu", "### CUDA only, and CPU and CUDA, together"]
    assert all(len(first.split("|")) == len(second.split("|")) for first, second in itertools.pairwise(table_of(text)))


def table_of(text: str) -> list[str]:
    lines = text.partition("### Traces: cpu")[2].partition("\n- ")[0]
    return [line for line in lines.splitlines() if line.startswith("|")]
