"""The process that launches kernels beside a measurement: it is always ended. Its driver is a stand-in."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from host_case import HostCase

from microbench.core.errors import MeasurementError, Skip
from microbench.experiments.launch import second_process as second
from microbench.host.affinity import Cores

TELLS = f"import sys, os; os.write(1, {second.READY!r}); "
CORES = Cores(1, (0,), 3, (1, 3, 0), frozenset((0, 1, 3)))


def program(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_it_runs_for_the_block_and_ends_by_itself_or_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, code in (("sys.stdin.read(); sys.exit(7)", 7), ("import time; time.sleep(60)", -signal.SIGKILL)):
        with second.running(program(TELLS + words)) as process:
            assert exists(process.pid)
            monkeypatch.setattr(second, "END_S", second.END_S if code == 7 else 0.1)
        assert process.returncode == code


@pytest.mark.parametrize("error", [MeasurementError("the driver's"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_it_ends_when_the_block_raises(error: BaseException) -> None:
    with pytest.raises(type(error)), second.running(program(TELLS + "sys.stdin.read()")) as process:
        raise error
    assert process.returncode == 0


def test_one_that_does_not_start_is_quoted() -> None:
    with pytest.raises(MeasurementError, match="did not start: no GPU"):
        second.running(program("import sys; print('a library', flush=True); sys.exit('no GPU')")).__enter__()


def test_one_that_launches_nothing_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second, "START_S", 0.1)
    began_s = time.monotonic()
    with pytest.raises(MeasurementError, match=r"launched nothing within 0\.1 s"):
        second.running(program("import sys; sys.stdin.read()")).__enter__()
    assert time.monotonic() - began_s < second.END_S


def test_one_that_ends_too_early_voids_the_measurement() -> None:
    with (
        pytest.raises(MeasurementError, match="ended too early: out of memory"),
        second.running(program(TELLS + "sys.exit('out of memory')")) as process,
    ):
        process.wait()


def test_it_ends_when_the_process_that_started_it_is_killed() -> None:
    code = (
        "import os, signal; from microbench.experiments.launch import second_process as second\n"
        f"with second.running({program(TELLS + 'sys.stdin.read()')!r}) as process:\n"
        "    print(process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(program(code), capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    deadline_s = time.monotonic() + 10
    while exists(int(done.stdout)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not exists(int(done.stdout))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The commands that were run; each is followed by an empty one when it was ended."""
    found: list[Sequence[str]] = []

    @contextmanager
    def running(command: Sequence[str]) -> Iterator[None]:
        found.append(command)
        yield
        found.append([])

    monkeypatch.setattr(second, "running", running)
    return found


def lone_case(compute_mode: int, cores: Cores, through_mps: int = 0) -> HostCase:
    case = HostCase(MPS_ENABLED=through_mps, COMPUTE_MODE=compute_mode)
    case._board = SimpleNamespace(info=SimpleNamespace(uuid="GPU-7"), cores=cores)
    return case


@pytest.mark.parametrize(("through_mps", "compute_mode"), [(0, 0), (1, 0), (1, 3)])
def test_it_opens_the_same_gpu_on_a_core_of_its_own_until_the_case_ends(
    commands: list[Sequence[str]], through_mps: int, compute_mode: int
) -> None:
    case = lone_case(compute_mode, CORES, through_mps)
    mps = second.real_second_process(case)
    assert (mps.name, mps.value) == ("mps", bool(through_mps))
    assert [command[-3:] for command in commands] == [[second.MODULE, "GPU-7", "3"]]
    case.end()
    assert commands[1:] == [[]]


def test_where_no_second_process_can_run_is_skipped(commands: list[Sequence[str]]) -> None:
    with pytest.raises(Skip, match="compute mode"):
        second.real_second_process(lone_case(3, CORES))
    one_core = Cores(1, (1,), 1, (1,), frozenset((1,)))
    with pytest.raises(Skip, match="a core of its own"):
        second.real_second_process(lone_case(0, one_core))
    assert not commands


def test_a_driver_older_than_the_attribute_does_not_say_whether_mps_is_in_use() -> None:
    def refuse(name: str) -> int:
        raise MeasurementError("CUDA_ERROR_INVALID_VALUE")

    fact = second.through_mps(SimpleNamespace(attribute=refuse))
    assert (fact.value, fact.reason) == (None, "CUDA_ERROR_INVALID_VALUE")


def test_the_process_launches_until_its_input_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[Any] = []
    reader, writer = os.pipe()

    def launch(count: int) -> None:
        done.append(count)
        if done.count(count) == 3:
            os.close(writer)

    case = SimpleNamespace(sms=5, once=lambda make: SimpleNamespace(read_hz=lambda: 1e9))
    case.synchronize = lambda: done.append("wait")
    monkeypatch.setattr(second, "pin", done.append)
    monkeypatch.setattr(second, "Context", lambda uuid: done.append(uuid))
    monkeypatch.setattr(second, "Case", lambda context: case)
    monkeypatch.setattr(second, "bind_launch", lambda of, op: done.append((of.clock_hz, op.grid_blocks)) or launch)
    with os.fdopen(reader) as orders, (tmp_path / "told").open("wb") as told:
        monkeypatch.setattr(second.sys, "stdin", orders)
        monkeypatch.setattr(second.sys, "stdout", told)
        second.main("GPU-7", 3)
    assert done == [(3,), "GPU-7", (1e9, 5), *[second.BATCH, "wait"] * 3]
    assert (tmp_path / "told").read_bytes() == second.READY
