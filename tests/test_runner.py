"""Whole runs with real worker processes: what is measured, in which process, and where it goes."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import worker_backend
from worker_run import Recorder, fact, only, outcomes, run

from microbench.archive import store
from microbench.core.errors import DeviceAbsentError, ExitCode
from microbench.core.model import Environment, Floors, Settings
from microbench.session import supervisor
from microbench.session.budget import Budget
from microbench.session.messages import (
    CaseStarted,
    CaseTick,
    FloorsFound,
    Job,
    Message,
    Order,
    PlanMade,
    Probed,
    Ready,
    Refused,
    RunEnded,
    Waiting,
)
from microbench.session.plan import Process
from microbench.session.process import Seams, WorkerProcess, WorkerSilentError
from microbench.session.request import RunRequest
from microbench.session.session import execute
from microbench.session.supervisor import Workers

pytestmark = pytest.mark.usefixtures("data")


def test_a_run_is_measured_shown_and_saved() -> None:
    listener, affinity = Recorder(), os.sched_getaffinity(0)
    result = run("calm", listener=listener, rounds=2)
    assert result.exit_code == ExitCode.MEASURED
    assert [outcome.case.id for outcome in outcomes(result)] == ["calm[size=1]", "calm[size=2]"] * 2
    assert all(outcome.status == "ok" and outcome.wall_s > 0 for outcome in outcomes(result))
    assert outcomes(result)[1].measurements[0].values[0] == pytest.approx(2e-6)
    assert store.last() == result.path
    loaded = store.read(store.find(result.run.run_id))
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
    processes = [int(str(fact(outcome, "process"))) for outcome in outcomes(result)]
    assert processes[0] == processes[1] != processes[2] == processes[3], "the cases of a round share a process"
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_the_run_before_tells_how_long_a_run_will_take() -> None:
    forecasts = []
    for _ in range(2):
        listener = Recorder()
        run("calm", listener=listener)
        forecasts += [plan.expected_s for plan in listener.of(PlanMade) if isinstance(plan, PlanMade)]
    first_s, second_s = forecasts
    assert (second_s or 0.0) < (first_s or 0.0)


def several(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let ``count`` processes import side by side, whatever the number of CPUs."""
    monkeypatch.setattr(supervisor, "min", lambda most, cpus: count, raising=False)


def test_processes_import_side_by_side_but_not_while_a_case_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    several(monkeypatch, 3)
    importing: set[int] = set()
    side_by_side, orders = [], []
    start, receive, order = WorkerProcess.__init__, WorkerProcess.receive, WorkerProcess.order

    def started(self: WorkerProcess, job: Job, *rest: Any) -> None:
        start(self, job, *rest)
        if job.waits:
            importing.add(self.pid)
            side_by_side.append(len(importing))

    def received(self: WorkerProcess, *rest: Any) -> Message:
        message = receive(self, *rest)
        if isinstance(message, Waiting):
            importing.remove(self.pid)
        return message

    def ordered(self: WorkerProcess, what: Order) -> None:
        orders.append(len(importing))
        order(self, what)

    monkeypatch.setattr(WorkerProcess, "__init__", started)
    monkeypatch.setattr(WorkerProcess, "receive", received)
    monkeypatch.setattr(WorkerProcess, "order", ordered)
    result = run("apart", device="one", rounds=2)
    assert [outcome.status for outcome in outcomes(result)] == ["ok"] * 8
    assert len({fact(outcome, "process") for outcome in outcomes(result)}) == 4
    assert side_by_side == [1, 2, 3, 1]
    assert orders == [0] * 8


@pytest.mark.parametrize("fault", ["import", "waiting"])
def test_a_process_that_dies_before_its_turn_is_started_again(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    several(monkeypatch, 2)
    go = WorkerProcess.go

    def killed(self: WorkerProcess) -> None:
        os.kill(self.pid, signal.SIGKILL)
        go(self)

    if fault == "import":
        monkeypatch.setenv("KILLED_BY_IMPORT", "yes")
    else:
        monkeypatch.setattr(WorkerProcess, "go", killed)
    assert [outcome.status for outcome in outcomes(run("apart", device="one"))] == ["ok"] * 4


def test_no_process_waits_for_cases_that_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three processes that import together, the second's cases are left out; nothing of it remains."""
    several(monkeypatch, 3)
    ended: list[int] = []
    end, seconds = WorkerProcess.end, Budget.seconds

    def noted(self: WorkerProcess) -> None:
        ended.append(self.pid)
        end(self)

    def left_out(self: Budget, index: int, *, running: bool) -> float | None:
        return None if 2 <= index < 4 else seconds(self, index, running=running)

    monkeypatch.setattr(WorkerProcess, "end", noted)
    monkeypatch.setattr(Budget, "seconds", left_out)
    result = run("apart", device="one", rounds=3)
    assert [outcome.status for outcome in outcomes(result)] == ["ok"] * 2 + ["skipped"] * 2 + ["ok"] * 8
    assert len(set(ended)) == 7, "one of them is the probe"
    for process in ended:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


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


def test_without_a_gpu_the_host_is_measured_and_the_rest_skipped_once() -> None:
    result = run()
    by_status = {outcome.case.id: (outcome.status, outcome.reason) for outcome in outcomes(result)}
    assert by_status == {
        "calm[size=1]": ("ok", None), "calm[size=2]": ("ok", None), "calm[size=3]": ("ok", None),
        "wild[how=nothing]": ("ok", None), "apart": ("skipped", worker_backend.NO_GPU),
        "captured": ("skipped", worker_backend.NO_GPU), "changed": ("skipped", worker_backend.NO_GPU),
        "cold": ("skipped", worker_backend.NO_GPU), "topology": ("skipped", worker_backend.NO_GPU),
        "warm": ("skipped", worker_backend.NO_GPU),
    }  # fmt: skip
    assert result.exit_code == ExitCode.MEASURED
    assert result.run.sessions[-1].environment.no_gpu_reason == worker_backend.NO_GPU


def test_benchmarks_that_need_a_gpu_are_an_error_without_one_unless_another_can_be_measured(data: Path) -> None:
    with pytest.raises(DeviceAbsentError, match=worker_backend.NO_GPU):
        run("cold")
    assert list(data.iterdir()) == []
    skipped = [outcome.case.id for outcome in outcomes(run("cold", "calm")) if outcome.status == "skipped"]
    assert skipped == ["cold[what=first]", "cold[what=second]"]


@pytest.mark.parametrize("device", ["absent", "all"])
def test_a_named_device_that_is_absent_is_an_error(device: str, data: Path) -> None:
    with pytest.raises(DeviceAbsentError) as caught:
        run("calm", device=device)
    assert caught.value.exit_code == ExitCode.NO_DEVICE
    assert list(data.iterdir()) == []


def test_a_probe_that_crashes_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_MACHINE", "crash")
    result = run("calm")
    assert "killed by SIGABRT" in (result.run.sessions[-1].environment.no_gpu_reason or "")
    assert {outcome.status for outcome in outcomes(result)} == {"ok"}


class Answering:
    """A worker process that has only these messages, the last of which may be an error."""

    def __init__(self, *messages: Message | Exception) -> None:
        self._messages = iter(messages)

    def receive(self, longest_s: float | None) -> Message:
        message = next(self._messages)
        if isinstance(message, Exception):
            raise message
        return message

    def close(self) -> None: ...

    def end(self) -> None: ...


def probed(monkeypatch: pytest.MonkeyPatch, *messages: Message | Exception) -> tuple[Environment, Floors]:
    monkeypatch.setattr(Workers, "start", lambda *_: Answering(*messages))
    return Workers(Seams(), lambda event: None).probe(Process("probe", None, 0))


def test_what_a_probe_sent_before_it_fails_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Probed(Environment(gpus=(worker_backend.gpu("GPU-one"),)))
    floors = FloorsFound(Floors(timer_step_s=1e-9))
    for last in (WorkerSilentError("no sign of life"), Ready()):
        assert probed(monkeypatch, found, floors, last) == (found.environment, floors.floors)
    for last in (WorkerSilentError("no sign of life"), Refused("failed", "the driver answers nonsense")):
        environment, nothing = probed(monkeypatch, last)
        assert (environment.gpus, nothing) == ((), Floors())
        assert environment.no_gpu_reason == (
            f"the search for a GPU failed: {last.reason if isinstance(last, Refused) else last}"
        )


def test_a_gpu_that_cannot_be_opened_is_tried_once() -> None:
    result = run("warm", "apart", device="refusing")
    reasons = {(outcome.status, outcome.reason) for outcome in outcomes(result)}
    assert reasons == {("skipped", "this GPU does not like us")}


def test_a_benchmark_of_each_suite_runs_on_the_simulated_gpu() -> None:
    names = ("host_timer", "launch_cost", "graph_update", "link_state", "memory_copy", "tensor_ceiling")
    result = execute(RunRequest(Settings("quick", names, device="fake", time_limit_s=600)))
    assert result.run.simulated
    wrong = [(outcome.case.id, outcome.reason) for outcome in result.run.outcomes if outcome.status != "ok"]
    assert wrong == []
    assert result.run.sessions[0].floors.event_pair_s is not None
