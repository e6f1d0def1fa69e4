"""Workers, terminals, disks and clocks end cases in every possible way, in real processes: nothing measured is lost."""

import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from worker_run import Recorder, outcomes, run

from microbench.archive import schema, store
from microbench.archive.runfile import ResultLostError
from microbench.core.errors import ExitCode, MicrobenchError
from microbench.core.model import Settings
from microbench.session import session, supervisor
from microbench.session.messages import Busy, CaseDone, CaseStarted, Event, Job, Message, RunEnded, Waiting
from microbench.session.process import Patience, UnkillableWorkerError, WorkerProcess, WorkerSilentError
from microbench.session.request import Intent, RunRequest
from microbench.session.session import NothingMeasuredError, Seams, execute

pytestmark = pytest.mark.usefixtures("data")

CRASHES = {
    "abort": "killed by SIGABRT", "segv": "killed by SIGSEGV", "killed": "killed by SIGKILL", "exit": "exit code 3",
    "exit_politely": "exit code 1: I had enough", "exit_silently": "exit code 0", "half_line": "exit code 0",
    "rubbish_line": "the worker sent an invalid message: \\x1b[31mSegmentation fault",
    "flood_errors": "exit code 7: " + "x" * 400 + "… (1000 characters) | last words | and \\x1b[1mvery last",
    "leave_a_child": "exit code 5",
}  # fmt: skip


def test_a_crash_is_an_outcome_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FAILURES_ALLOWED", len(CRASHES) + 1)
    result = run("wild", how=",".join(("nothing", *CRASHES)))
    before, *crashes = outcomes(result)
    assert before.status == "ok"
    for (how, reason), crash in zip(CRASHES.items(), crashes, strict=True):
        assert crash.status == "crashed", how
        assert (crash.reason or "").startswith(reason)
        assert crash.measurements == ()
        assert crash.wall_s > 0
    assert result.exit_code == ExitCode.SOME_FAILED


def test_silence_is_timed_out_and_the_run_goes_on() -> None:
    patience = Patience(silent_s=0.5, busy_s=60, leave_s=0.5, killed_s=5)
    result = run("wild", how="nothing,hang,hang_ignoring_signals,print,close_and_hang", patience=patience)
    assert [outcome.status for outcome in outcomes(result)] == ["ok", "timed_out", "timed_out", "ok", "timed_out"]
    for outcome in outcomes(result):
        if outcome.status == "timed_out":
            assert "no sign of life for 0.5 s" in (outcome.reason or "")
            assert outcome.wall_s >= 0.5


def test_the_time_of_a_run_bounds_every_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was stopped sends nothing, although it has just said that the next message may take long."""
    receive, waits = WorkerProcess.receive, []

    def watched(worker: WorkerProcess, longest_s: float | None = None) -> Message:
        waits.append(longest_s)
        return receive(worker, longest_s)

    monkeypatch.setattr(WorkerProcess, "receive", watched)
    run("calm", time_limit_s=600.0)
    assert len(waits) > 3
    assert all(wait_s is not None and wait_s <= 600.0 for wait_s in waits)
    job = Job("host", None, "worker_benchmarks", "worker_backend", os.getpid(), waits=True)
    worker = WorkerProcess(job, {}, Patience(silent_s=600, busy_s=600))
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(WorkerSilentError, match=r"no sign of life for 0\.1 s"):
        worker.receive(0.1)


def waiting_worker() -> WorkerProcess:
    job = Job("host", None, "worker_benchmarks", "worker_backend", os.getpid(), waits=True)
    worker = WorkerProcess(job, {}, Patience(silent_s=600, busy_s=600, stopped_s=0.2))
    assert isinstance(worker.receive(), Waiting)
    return worker


def test_a_stopped_worker_is_waited_for_only_shortly_even_without_a_time_limit() -> None:
    worker = waiting_worker()
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(WorkerSilentError, match=r"^stopped for "):
        worker.receive()
    assert not _is_alive(worker.pid)


def test_a_worker_outlives_a_parent_that_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z stops only the parent. An hour passes in its first look at the worker."""
    worker, hours, read, clock = waiting_worker(), [0.0], WorkerProcess._read, time.monotonic

    def stopped_meanwhile(self: WorkerProcess, timeout_s: float) -> bool:
        hours[0] = 1.0
        return read(self, timeout_s)

    monkeypatch.setattr(WorkerProcess, "_read", stopped_meanwhile)
    monkeypatch.setattr("microbench.session.process.time.monotonic", lambda: clock() + 3600 * hours[0])
    worker.go()
    assert isinstance(worker.receive(), Busy)
    monkeypatch.undo()
    worker.end()


FAILURES = {
    "fail": "mismatch at byte 7",
    "raise": "KeyError: 'no such key' (wild.py:",
    "nan": "wild[how=nan].facts[0].value is not a finite number",
    "undeclared": "wild yields minutes, which it does not declare",
    "twice": "wild yields seconds twice",
    "no_measurement": "wild yields something that is not a Measurement, Fact or Series",
}


@pytest.mark.slow
def test_a_failure_leaves_no_numbers_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FAILURES_ALLOWED", len(FAILURES) + 1)
    skipped, *failures, after = outcomes(run("wild", how=",".join(("skip", *FAILURES, "nothing"))))
    assert (skipped.status, skipped.reason, skipped.measurements) == ("skipped", "not on a Tuesday", ())
    for (how, reason), failure in zip(FAILURES.items(), failures, strict=True):
        assert failure.status == "failed", how
        assert (failure.reason or "").startswith(reason)
        assert failure.measurements == failure.facts == ()
    assert after.status == "ok"


def test_a_benchmark_is_given_up_after_three_failures() -> None:
    result = run("wild", "calm", how="fail,fail_again,fail_more,nothing")
    wild = [outcome for outcome in outcomes(result) if outcome.case.benchmark == "wild"]
    assert [outcome.status for outcome in wild] == ["failed", "failed", "failed", "skipped"]
    assert wild[-1].reason == "given up: 3 cases of wild failed before"
    assert {outcome.status for outcome in outcomes(result) if outcome.case.benchmark == "calm"} == {"ok"}


@pytest.mark.slow
def test_the_drivers_refusals_are_failures_with_its_reason() -> None:
    """Of a call that cannot be captured, and of an update to another topology."""
    synchronized, queried, launched, before, refused, after = outcomes(run("captured", "changed", device="stubborn"))
    for called, outcome in (("cuStreamSynchronize", synchronized), ("cuEventQuery", queried)):
        assert (outcome.reason or "").startswith(f"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: {called}")
    assert refused.reason == (
        "the driver refused the update: CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE (ERROR_TOPOLOGY_CHANGED)"
    )
    for outcome in (synchronized, queried, refused):
        assert (outcome.status, outcome.measurements) == ("failed", ())
    assert [outcome.status for outcome in (launched, before, after)] == ["ok"] * 3
    assert [measurement.metric for measurement in launched.measurements] == ["before", "replay"]


@pytest.fixture
def spared() -> Iterator[list[int]]:
    """The process groups that a test's ``kill`` did not kill; they are killed at its end."""
    pids: list[int] = []
    yield pids
    for pid in set(pids):
        with suppress(OSError):  # the probe's worker has exited by itself and is reaped
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:subprocess .* is still running")
def test_a_worker_that_cannot_be_killed_ends_the_run(
    spared: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the probe's worker takes seconds to exit, and the first case may be silent for a while: only
    # the worker of the hanging case may run out of patience.
    patience = Patience(silent_s=2, busy_s=60, leave_s=60, killed_s=0.2)
    seams = Seams("worker_benchmarks", "worker_backend", patience)
    path = tmp_path / "run.json"
    request = RunRequest(Settings(select=("wild",), overrides={"how": ("nothing", "hang", "print")}), out=path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda pid, _: spared.append(pid))
        cause, next_step = _stopped(request, seams)
    assert str(spared[-1]) in cause
    assert str(path) in next_step
    assert [outcome.status for outcome in store.read(store.find(path)).outcomes] == ["ok", "timed_out"]


def _stopped(request: RunRequest, seams: Seams) -> tuple[str, str]:
    """Cause and next step of the error that ends a run. The process object is collected here, where its warning is
    ignored."""
    with pytest.raises(UnkillableWorkerError) as caught:
        execute(request, Recorder(), seams)
    words = caught.value.cause, caught.value.next_step
    del caught
    gc.collect()
    return words


def test_ctrl_c_finishes_the_file() -> None:
    listener = Recorder(interrupt_at=CaseDone)
    result = run("calm", listener=listener)
    assert result.exit_code == ExitCode.INTERRUPTED
    assert listener.events[-1] == RunEnded(result.path, "interrupted")
    assert [one.case.id for one in store.read(store.find(result.path)).outcomes] == ["calm[size=1]"]


def test_ctrl_c_during_the_probe_leaves_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_MACHINE", "hang")
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(NothingMeasuredError) as caught:
            run("calm")
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert caught.value.exit_code == ExitCode.INTERRUPTED
    assert list(data.iterdir()) == []


def test_ctrl_c_before_the_first_case_leaves_no_empty_run_or_session(data: Path) -> None:
    with pytest.raises(NothingMeasuredError):
        run("calm", listener=Recorder(interrupt_at=CaseStarted))
    assert list(data.iterdir()) == []
    path = run("calm").path
    with pytest.raises(NothingMeasuredError):
        run("wild", into=str(path), listener=Recorder(interrupt_at=CaseStarted))
    kept = store.read(store.find(path))
    assert [info.name for info in kept.benchmarks] == ["calm"]
    assert len(kept.sessions) == 1
    assert list(data.iterdir()) == [path]


def test_a_run_that_cannot_start_another_process_is_finished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, listener, start, started = tmp_path / "run.json", Recorder(), WorkerProcess.__init__, list[WorkerProcess]()

    def few(self: WorkerProcess, *arguments: Any) -> None:
        if len(started) == 2:
            raise MicrobenchError("no worker process can be started", "free memory")
        started.append(self)
        start(self, *arguments)

    monkeypatch.setattr(WorkerProcess, "__init__", few)
    with pytest.raises(MicrobenchError) as caught:
        run("calm", out=path, rounds=2, listener=listener)
    assert caught.value.next_step == f"what was measured is in {path}; free memory"
    assert listener.events[-1] == RunEnded(path, "stopped")
    assert [outcome.round for outcome in store.read(store.find(path)).outcomes] == [0, 0]


def test_a_run_goes_on_where_the_kernel_reaps_its_workers() -> None:
    """A program that ignores SIGCHLD leaves that to all that it starts."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        result = run("wild", how="nothing,exit,print")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert [outcome.status for outcome in outcomes(result)] == ["ok", "crashed", "ok"]


def test_a_process_that_hangs_before_its_first_case_is_tried_once() -> None:
    result = run("apart", "warm", device="hanging", patience=Patience(silent_s=1, busy_s=3, leave_s=0.5))
    hung = [outcome for outcome in outcomes(result) if outcome.status == "timed_out"]
    assert [outcome.case.id for outcome in hung] == ["warm", "apart[mode=spin,size=1]", "apart[mode=yield,size=1]"]
    others = {(outcome.status, outcome.reason) for outcome in outcomes(result) if outcome not in hung}
    assert others == {("skipped", "its process did not start: no sign of life for 3 s")}


def test_a_killed_parent_leaves_a_readable_run_and_no_worker(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    program = f"""
from pathlib import Path
from microbench.core.model import Settings
from microbench.session.session import RunRequest, Seams, execute
request = RunRequest(Settings(select=('wild',), overrides={{'how': ('nothing', 'hang')}}), out=Path({str(path)!r}))
execute(request, lambda event: print(event, flush=True), Seams('worker_benchmarks', 'worker_backend'))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, text=True
    ) as parent:
        assert parent.stdout is not None
        for line in parent.stdout:
            if line.startswith("CaseStarted") and "hang" in line:
                break
        workers = _children(parent.pid)
        parent.kill()
    assert [outcome.status for outcome in store.read(store.find(path)).outcomes] == ["ok"]
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
    assert [outcome.case.id for outcome in store.read(store.find(path)).outcomes] == ["calm[size=1]"]
    result = run(resume=str(path))
    assert [outcome.case.id for outcome in outcomes(result)] == ["calm[size=1]", "calm[size=2]"]


def test_two_processes_that_add_to_one_run_lose_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one looks at the run before the first one has finished, and locks it afterwards."""
    path = tmp_path / "run.json"
    run("calm", out=path)
    examine, first = session.examine, [True]

    def overtaken(*arguments: Any) -> Intent:
        intent = examine(*arguments)
        if first:
            first.clear()
            run("calm", into=str(path))
        return intent

    monkeypatch.setattr(session, "examine", overtaken)
    run("calm", into=str(path))
    kept = store.read(store.find(path))
    assert len(kept.sessions) == 3
    assert [outcome.session for outcome in kept.outcomes] == [0, 0, 1, 1, 2, 2]


def test_what_a_damaged_line_held_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    finished = run("calm", out=path).run
    lines = [schema.encode_outcome(outcome) for outcome in finished.outcomes]
    assert len(lines) == 2
    path.unlink()
    head = schema.encode(msgspec.structs.replace(finished, outcomes=()))
    store.growing_path(path).write_bytes(head + lines[0].replace(b'"', b"'", 1) + lines[1])
    assert store.read(store.find(path)).damaged_lines == 1
    result = run(resume=str(path))
    assert sorted(outcome.case.id for outcome in outcomes(result)) == ["calm[size=1]", "calm[size=2]"]
    assert result.run.damaged_lines == 0


def test_a_folder_that_is_deleted_meanwhile_costs_no_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    class DeleteFolder(Recorder):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if isinstance(event, CaseDone):
                shutil.rmtree(folder, ignore_errors=True)

    with pytest.raises(ResultLostError) as caught:
        run("calm", out=folder / "run.json", listener=DeleteFolder())
    (path,) = (tmp_path / "here").iterdir()
    assert str(path) in caught.value.next_step
    assert [outcome.status for outcome in store.read(store.find(path)).outcomes] == ["ok", "ok"]


def test_what_the_time_does_not_reach_is_skipped() -> None:
    patience = Patience(silent_s=2.5, busy_s=5, leave_s=0.5, killed_s=5)
    result = run("wild", "calm", how="nothing,hang,print", patience=patience, time_limit_s=2.0)
    late = [(outcome.status, outcome.reason) for outcome in outcomes(result)][-1]
    assert late == ("skipped", "time budget")
