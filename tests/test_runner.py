"""Whole runs with real worker processes: what is measured, in which process, and where it goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import worker_backend
from worker_run import PATIENT, Recorder, fact, only, outcomes, run

from microbench.core.errors import DeviceAbsentError, ExitCode
from microbench.run.events import CaseStarted, CaseTick, PlanMade, Probed, RunEnded
from microbench.run.process import Patience
from microbench.run.request import RunRequest
from microbench.run.session import execute
from microbench.runs import store


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


# -- what goes well ----------------------------------------------------------------------------------------------------


def test_a_run_is_measured_shown_and_saved() -> None:
    listener, affinity = Recorder(), os.sched_getaffinity(0)
    result = run("calm", listener=listener)
    assert result.exit_code == ExitCode.MEASURED
    assert [outcome.case.id for outcome in outcomes(result)] == ["calm[size=1]", "calm[size=2]"]
    assert all(outcome.status == "ok" and outcome.wall_s > 0 for outcome in outcomes(result))
    assert outcomes(result)[1].measurements[0].values[0] == pytest.approx(2e-6)
    assert store.last() == result.path
    loaded = store.load(result.run.run_id)
    assert [one.case for one in loaded.outcomes] == [one.case for one in result.run.outcomes]
    assert loaded.outcomes[0].measurements[0].values == outcomes(result)[0].measurements[0].values
    assert [type(event) for event in listener.events[:3]] == [Probed, PlanMade, CaseStarted]
    assert len(listener.of(CaseTick)) >= 1
    assert listener.events[-1] == RunEnded(result.path, "complete")
    assert not store.growing_path(result.path).exists()
    session = result.run.sessions[0]
    assert session.floors.timer_step_s == session.floors.timer_call_s == pytest.approx(30e-9)
    assert session.settings.select == ("calm",)
    assert session.started_at.endswith("+00:00")
    assert not session.simulated
    assert os.sched_getaffinity(0) == affinity
    for outcome in outcomes(result):
        with pytest.raises(ProcessLookupError):
            os.kill(int(str(fact(outcome, "process"))), 0)


def test_cases_share_a_process_and_rounds_do_not() -> None:
    result = run("calm", rounds=2)
    processes = [fact(outcome, "process") for outcome in outcomes(result)]
    assert [outcome.round for outcome in outcomes(result)] == [0, 0, 1, 1]
    assert processes[0] == processes[1] != processes[2] == processes[3]
    assert os.getpid() not in processes


def test_values_that_need_a_process_of_their_own_get_one_with_its_variables() -> None:
    result = run("apart", device="one")
    assert [outcome.status for outcome in outcomes(result)] == ["ok"] * 4
    processes = {fact(outcome, "mode"): set() for outcome in outcomes(result)}  # type: dict[object, set[object]]
    for outcome in outcomes(result):
        processes[fact(outcome, "mode")].add(fact(outcome, "process"))
        assert fact(outcome, "scratch_is_there") is True
        assert not Path(str(fact(outcome, "scratch"))).parent.exists()
    assert {name: len(members) for name, members in processes.items()} == {"spin": 1, "yield": 1}
    assert outcomes(result)[0].device == worker_backend.ONE


def test_cold_cases_have_a_process_each_and_their_own_rounds() -> None:
    result = run("cold", device="one")
    assert [(one.case.params["what"], one.round) for one in outcomes(result)] == [
        ("first", 0), ("second", 0), ("first", 1), ("second", 1),
    ]  # fmt: skip
    assert len({fact(outcome, "process") for outcome in outcomes(result)}) == 4
    assert fact(outcomes(result)[0], "device") == "TinyCold"
    assert outcomes(result)[0].telemetry == {}


def test_every_gpu_is_measured_with_telemetry_of_both_ends() -> None:
    listener = Recorder()
    result = run("warm", device="two", listener=listener)
    assert [outcome.device for outcome in outcomes(result)] == [worker_backend.ONE, worker_backend.OTHER]
    for outcome in outcomes(result):
        assert fact(outcome, "opened") == outcome.device
        assert fact(outcome, "done") == "begin telemetry"
        telemetry = outcome.telemetry[outcome.device or ""]
        assert (telemetry.sm_clock_begin_hz, telemetry.sm_clock_end_hz) == (1e9 + 2, 1e9 + 3)
        assert telemetry.throttle_reasons == ("reason 2", "reason 3")
    ticks = [tick for tick in listener.of(CaseTick) if isinstance(tick, CaseTick)]
    assert {(tick.metric, tick.unit) for tick in ticks} == {("rate", "s")}, "a rate ticks as a time"


def test_a_simulated_gpu_marks_its_session() -> None:
    result = run("warm", device="fake")
    assert result.run.simulated
    assert fact(only(result), "opened") == "fake"
    assert only(result).device == "GPU-fake"


# -- no GPU ------------------------------------------------------------------------------------------------------------


def test_without_a_gpu_the_host_is_measured_and_the_rest_skipped_once() -> None:
    result = run()
    by_status = {outcome.case.id: (outcome.status, outcome.reason) for outcome in outcomes(result)}
    assert by_status == {
        "calm[size=1]": ("ok", None),
        "calm[size=2]": ("ok", None),
        "wild[how=nothing]": ("ok", None),
        "apart": ("skipped", worker_backend.NO_GPU),
        "captured": ("skipped", worker_backend.NO_GPU),
        "changed": ("skipped", worker_backend.NO_GPU),
        "cold": ("skipped", worker_backend.NO_GPU),
        "topology": ("skipped", worker_backend.NO_GPU),
        "warm": ("skipped", worker_backend.NO_GPU),
    }
    assert result.exit_code == ExitCode.MEASURED
    assert result.environment.no_gpu_reason == worker_backend.NO_GPU


def test_a_benchmark_named_without_a_gpu_is_skipped_case_by_case() -> None:
    assert [outcome.case.id for outcome in outcomes(run("cold"))] == ["cold[what=first]", "cold[what=second]"]


@pytest.mark.parametrize("device", ["absent", "all"])
def test_a_named_device_that_is_absent_is_an_error(device: str, data_folder: Path) -> None:
    with pytest.raises(DeviceAbsentError) as caught:
        run("calm", device=device)
    assert caught.value.exit_code == ExitCode.NO_DEVICE
    assert list(data_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("machine", "reason"),
    [("crash", "killed by SIGABRT"), ("confused", "RuntimeError: the driver answers nonsense"), ("hang", "no sign")],
)
def test_a_probe_that_fails_is_no_gpu(machine: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_MACHINE", machine)
    patience = Patience(silent_s=2, busy_s=2, leave_s=2, killed_s=5) if machine == "hang" else PATIENT
    result = run("calm", patience=patience)
    assert reason in (result.environment.no_gpu_reason or "")
    assert {outcome.status for outcome in outcomes(result)} == {"ok"}


def test_a_gpu_that_cannot_be_opened_is_tried_once() -> None:
    result = run("warm", "apart", device="refusing")
    reasons = {(outcome.status, outcome.reason) for outcome in outcomes(result)}
    assert reasons == {("skipped", "this GPU does not like us")}


# -- the real thing, simulated -----------------------------------------------------------------------------------------


def test_every_suite_runs_on_the_simulated_gpu() -> None:
    request = RunRequest(
        ("host", "launch_cost", "launch_sync", "launch_kind"), preset="quick", device="fake", time_limit_s=600
    )
    result = execute(request)
    assert result.run.simulated
    wrong = [(one.case.id, one.reason) for one in result.run.outcomes if one.status != "ok"]
    assert wrong == []
    assert result.run.sessions[0].floors.event_pair_s is not None
