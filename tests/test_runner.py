"""Runs with real worker processes: what they do well, and every way they can go wrong."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import worker_backend

from microbench import store
from microbench.errors import DeviceAbsentError, ExitCode, ResultNotWrittenError, RunUnreadableError, UsageError
from microbench.events import CaseDone, CaseStarted, CaseTick, Event, PlanMade, Probed, RunEnded
from microbench.model import Outcome
from microbench.process import Patience, UnkillableWorkerError
from microbench.runfile import ResultLostError
from microbench.runner import NothingMeasuredError, RunRequest, RunResult, Seams, execute

PATIENT = Patience(silent_s=20, busy_s=20, leave_s=5, killed_s=5)


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


class Recorder:
    """A listener that remembers, and interrupts when told to."""

    def __init__(self, interrupt_at: type | None = None) -> None:
        self.events: list[Event] = []
        self.interrupt_at = interrupt_at

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self.interrupt_at is not None and isinstance(event, self.interrupt_at):
            raise KeyboardInterrupt

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def run(
    *names: str, listener: Recorder | None = None, patience: Patience = PATIENT, how: str | None = None, **more: object
) -> RunResult:
    overrides = {"how": tuple(how.split(","))} if how else {}
    request = RunRequest(select=names, preset=str(more.pop("preset", "quick")), overrides=overrides, **more)  # type: ignore[arg-type]
    seams = Seams("worker_benchmarks", "worker_backend", patience)
    return execute(request, listener or Recorder(), seams)


def outcomes(result: RunResult) -> list[Outcome]:
    return list(result.run.outcomes)


def only(result: RunResult) -> Outcome:
    assert len(result.run.outcomes) == 1
    return result.run.outcomes[0]


def fact(outcome: Outcome, name: str) -> object:
    return next(one.value for one in outcome.facts if one.name == name)


# -- what goes well ----------------------------------------------------------------------------------------------------


def test_a_run_is_measured_told_and_saved() -> None:
    listener = Recorder()
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


def test_a_session_says_with_what_it_was_measured() -> None:
    session = run("calm").run.sessions[0]
    assert session.floors.timer_step_s == session.floors.timer_call_s == pytest.approx(30e-9)
    assert session.settings.select == ("calm",)
    assert session.started_at.endswith("+00:00")
    assert not session.simulated


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
    result = run("warm", device="two")
    assert [outcome.device for outcome in outcomes(result)] == [worker_backend.ONE, worker_backend.OTHER]
    for outcome in outcomes(result):
        assert fact(outcome, "opened") == outcome.device
        assert fact(outcome, "done") == "begin telemetry"
        telemetry = outcome.telemetry[outcome.device or ""]
        assert (telemetry.sm_clock_begin_hz, telemetry.sm_clock_end_hz) == (1e9 + 2, 1e9 + 3)
        assert telemetry.throttle_reasons == ("reason 2", "reason 3")


def test_a_rate_ticks_as_a_time() -> None:
    listener = Recorder()
    run("warm", device="one", listener=listener)
    ticks = [tick for tick in listener.of(CaseTick) if isinstance(tick, CaseTick)]
    assert {(tick.metric, tick.unit) for tick in ticks} == {("rate", "s")}


def test_a_simulated_gpu_marks_its_session() -> None:
    result = run("warm", device="fake")
    assert result.run.simulated
    assert fact(only(result), "opened") == "fake"
    assert only(result).device == "GPU-fake"


def test_the_affinity_of_the_parent_is_as_before() -> None:
    before = os.sched_getaffinity(0)
    run("calm")
    assert os.sched_getaffinity(0) == before


# -- no GPU ------------------------------------------------------------------------------------------------------------


def test_without_a_gpu_the_host_is_measured_and_the_rest_skipped_once() -> None:
    result = run()
    by_status = {outcome.case.id: (outcome.status, outcome.reason) for outcome in outcomes(result)}
    assert by_status == {
        "calm[size=1]": ("ok", None),
        "calm[size=2]": ("ok", None),
        "wild[how=nothing]": ("ok", None),
        "apart": ("skipped", worker_backend.NO_GPU),
        "cold": ("skipped", worker_backend.NO_GPU),
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


# -- what goes wrong in a worker ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("abort", "killed by SIGABRT"),
        ("segv", "killed by SIGSEGV"),
        ("killed", "killed by SIGKILL"),
        ("exit", "exit code 3"),
        ("exit_politely", "exit code 1: I had enough"),
        ("exit_silently", "exit code 0"),
        ("half_line", "exit code 0"),
        ("rubbish_line", "the worker sent what is no message: \\x1b[31mSegmentation fault"),
        ("flood_errors", "exit code 7: " + "x" * 400 + "… (1000 characters) | last words | and \\x1b[1mvery last"),
        ("leave_a_child", "exit code 5"),
    ],
)
def test_a_crash_is_an_outcome_and_the_run_goes_on(how: str, reason: str) -> None:
    result = run("wild", how=f"{how},nothing")
    crash, after = outcomes(result)
    assert (crash.status, after.status) == ("crashed", "ok")
    assert (crash.reason or "").startswith(reason)
    assert crash.measurements == ()
    assert crash.wall_s > 0
    assert result.exit_code == ExitCode.SOME_FAILED


@pytest.mark.parametrize("how", ["hang", "hang_ignoring_signals", "close_and_hang"])
def test_silence_is_timed_out_and_the_run_goes_on(how: str) -> None:
    patience = Patience(silent_s=0.5, busy_s=5, leave_s=0.5, killed_s=5)
    result = run("wild", how=f"nothing,{how},print", patience=patience)
    assert [outcome.status for outcome in outcomes(result)] == ["ok", "timed_out", "ok"]
    assert "no sign of life for 0.5 s" in (outcomes(result)[1].reason or "")
    assert outcomes(result)[1].wall_s >= 0.5


def test_the_first_case_of_a_benchmark_has_more_patience() -> None:
    """Loading and compiling are not silence: a first case is waited for longer."""
    patience = Patience(silent_s=0.3, busy_s=2.5, leave_s=0.5, killed_s=5)
    result = run("wild", how="hang", patience=patience)
    assert only(result).reason == "no sign of life for 0.3 s"  # after its tick
    assert only(result).wall_s < 2.5


def test_what_a_library_prints_or_reads_is_not_the_protocol() -> None:
    assert only(run("wild", how="print")).status == "ok"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("fail", "mismatch at byte 7"),
        ("raise", "KeyError: 'no such key' (wild.py:"),
        ("nan", "wild[how=nan].facts[0].value is not a finite number"),
        ("undeclared", "wild yields minutes, which it does not declare"),
        ("twice", "wild yields seconds twice"),
        ("no_measurement", "wild yields what is no Measurement, Fact or Series"),
    ],
)
def test_a_failure_leaves_no_numbers_and_a_fresh_process(how: str, reason: str) -> None:
    result = run("wild", how=f"{how},nothing")
    failure, after = outcomes(result)
    assert (failure.status, after.status) == ("failed", "ok")
    assert (failure.reason or "").startswith(reason)
    assert failure.measurements == ()


def test_a_skip_costs_no_process() -> None:
    listener = Recorder()
    result = run("wild", "calm", how="skip", listener=listener)
    skipped = next(one for one in outcomes(result) if one.case.benchmark == "wild")
    assert (skipped.status, skipped.reason, skipped.measurements) == ("skipped", "not on a Tuesday", ())
    assert result.exit_code == ExitCode.MEASURED


def test_after_three_failures_the_rest_of_a_benchmark_is_skipped() -> None:
    result = run("wild", "calm", how="fail,fail_again,fail_more,fail_still")
    wild = [outcome for outcome in outcomes(result) if outcome.case.benchmark == "wild"]
    assert [outcome.status for outcome in wild] == ["failed", "failed", "failed", "skipped"]
    assert wild[3].reason == "given up: 3 cases of wild failed before"
    assert {one.status for one in outcomes(result) if one.case.benchmark == "calm"} == {"ok"}


@pytest.fixture
def unkillable() -> Iterator[list[int]]:
    """A kill that does nothing; what it spared is killed in the end."""
    spared: list[int] = []
    yield spared
    for pid in set(spared):
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:subprocess .* is still running")
def test_a_worker_that_cannot_be_killed_ends_the_run(unkillable: list[int], tmp_path: Path) -> None:
    patience = Patience(silent_s=0.3, busy_s=5, leave_s=0.2, killed_s=0.2)
    # The probe's worker leaves by itself: it is a zombie that needs no killing.
    seams = Seams("worker_benchmarks", "worker_backend", patience, kill=lambda pid, _: unkillable.append(pid))
    path = tmp_path / "run.json"
    request = RunRequest(("wild",), overrides={"how": ("nothing", "hang", "print")}, out=path)
    with pytest.raises(UnkillableWorkerError) as caught:
        execute(request, Recorder(), seams)
    unkillable[:] = unkillable[-1:]
    assert str(unkillable[-1]) in caught.value.cause
    assert str(path) in caught.value.next_step
    assert [outcome.status for outcome in store.load(path).outcomes] == ["ok", "timed_out"]


def test_no_worker_outlives_the_run() -> None:
    result = run("calm")
    for outcome in outcomes(result):
        with pytest.raises(ProcessLookupError):
            os.kill(int(str(fact(outcome, "process"))), 0)


# -- interruption and a full disk --------------------------------------------------------------------------------------


def test_ctrl_c_finishes_the_file() -> None:
    listener = Recorder(interrupt_at=CaseDone)
    result = run("calm", listener=listener)
    assert result.exit_code == ExitCode.INTERRUPTED
    assert listener.events[-1] == RunEnded(result.path, "interrupted")
    assert [one.case.id for one in store.load(result.path).outcomes] == ["calm[size=1]"]


def test_ctrl_c_during_the_probe_leaves_nothing(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_MACHINE", "hang")
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(NothingMeasuredError) as caught:
            run("calm")
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert caught.value.exit_code == ExitCode.INTERRUPTED
    assert list(data_folder.iterdir()) == []


def test_a_killed_parent_leaves_a_readable_run_and_no_worker(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    program = (
        "from microbench.runner import *; from microbench.runner import Seams\n"
        f"request = RunRequest(('wild',), overrides={{'how': ('nothing', 'hang')}}, out=__import__('pathlib').Path({str(path)!r}))\n"
        "execute(request, lambda event: print(event, flush=True), Seams('worker_benchmarks', 'worker_backend'))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, text=True) as parent:
        assert parent.stdout is not None
        for line in parent.stdout:
            if line.startswith("CaseStarted") and "hang" in line:
                break
        workers = _children(parent.pid)
        parent.kill()
    assert [outcome.status for outcome in store.load(path).outcomes] == ["ok"]
    assert workers
    deadline_s = time.monotonic() + 5
    while any(_is_alive(pid) for pid in workers):
        assert time.monotonic() < deadline_s, "a worker outlived its parent"
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_full_disk_ends_the_run_and_keeps_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "run.json"

    class FillDisk(Recorder):
        """The disk is full after the first outcome: no file may grow beyond what it has now."""

        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if isinstance(event, CaseDone) and len(self.of(CaseDone)) == 1:
                size = store.growing_path(path).stat().st_size
                resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, resource.RLIM_INFINITY))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(ResultLostError) as caught:
            run("calm", out=path, listener=FillDisk())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.exit_code == ExitCode.SOME_FAILED
    assert str(store.growing_path(path)) in caught.value.next_step
    assert [outcome.case.id for outcome in store.load(path).outcomes] == ["calm[size=1]"]
    result = run(resume=str(path))
    assert [outcome.case.id for outcome in outcomes(result)] == ["calm[size=1]", "calm[size=2]"]


# -- where it goes -----------------------------------------------------------------------------------------------------


def test_into_adds_a_session(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    first = run("calm", out=path)
    second = run("wild", into=str(path), how="nothing")
    assert second.path == path
    loaded = store.load(path)
    assert loaded.run_id == first.run.run_id
    assert [outcome.session for outcome in loaded.outcomes] == [0, 0, 1]
    assert [info.name for info in loaded.benchmarks] == ["calm", "wild"]
    assert len(loaded.sessions) == 2


def test_into_joins_the_values_of_an_axis(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run("calm", out=path)
    grown = run("calm", into=str(path), preset="default").run
    assert grown.benchmarks[0].axes[0].values == (1, 2, 3)


def test_resume_measures_only_what_is_not_ok(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run("wild", out=path, how="nothing,skip,exit,print")
    resumed = run(resume=str(path))
    assert [(one.session, one.case.params["how"], one.status) for one in outcomes(resumed)] == [
        (0, "nothing", "ok"),
        (0, "exit", "crashed"),
        (0, "print", "ok"),
        (1, "skip", "skipped"),
        (1, "exit", "crashed"),
    ]


def test_resume_keeps_the_settings_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run("calm", out=path, listener=Recorder(interrupt_at=CaseDone), rounds=2)
    resumed = run(resume=str(path)).run
    assert [(one.case.params["size"], one.round) for one in resumed.outcomes] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    with pytest.raises(UsageError, match="preset"):
        run(resume=str(path), preset="full")


@pytest.mark.parametrize("request_", [{"into": "nothing-like-it"}, {"resume": "/no/such/run.json"}])
def test_a_run_to_grow_must_be_there(request_: dict[str, str]) -> None:
    with pytest.raises(RunUnreadableError):
        run("calm", **request_)  # type: ignore[arg-type]


def test_a_file_that_exists_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("mine")
    listener = Recorder()
    with pytest.raises(ResultNotWrittenError) as caught:
        run("calm", out=path, listener=listener)
    assert caught.value.exit_code == ExitCode.USAGE
    assert listener.events == []
    assert path.read_text() == "mine"


def test_a_data_folder_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path / "file" / "data"))
    with pytest.raises(ResultNotWrittenError):
        run("calm")


# -- time --------------------------------------------------------------------------------------------------------------


def test_what_the_time_does_not_reach_is_skipped() -> None:
    patience = Patience(silent_s=1.5, busy_s=5, leave_s=0.5, killed_s=5)
    result = run("wild", "calm", how="nothing,hang,print", patience=patience, time_limit_s=2.0)
    late = [(outcome.status, outcome.reason) for outcome in outcomes(result)][-1]
    assert late == ("skipped", "time budget")


# -- the real thing, simulated -----------------------------------------------------------------------------------------


def test_every_suite_runs_on_the_simulated_gpu() -> None:
    request = RunRequest(("host", "launch_cost", "launch_sync", "launch_kind"), preset="quick", device="fake")
    result = execute(request)
    assert result.run.simulated
    wrong = [(one.case.id, one.reason) for one in result.run.outcomes if one.status != "ok"]
    assert wrong == []
    assert result.run.sessions[0].floors.event_pair_s is not None
