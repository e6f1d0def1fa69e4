"""How `microbench fleet run` reaches nodes by SSH and Slurm, with stand-ins for asyncssh, dask-jobqueue and squeue.

lab/fleet_hosts.sh runs the same with a real sshd and a real Slurm.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from command_line import call

from microbench.cli import fleet
from microbench.core.errors import ExitCode, MicrobenchError
from microbench.fleet import clusters
from microbench.fleet.clusters import Where, connected


class NoConnection(Exception):
    """What asyncssh raises."""


class Host:
    """A host of SSH, whose Python ends with this exit code and message."""

    def __init__(self, exit_status: int = 0, stderr: str = "") -> None:
        self.ended = SimpleNamespace(exit_status=exit_status, stderr=stderr)

    async def __aenter__(self) -> Host:
        if self.ended.exit_status < 0:
            raise NoConnection(self.ended.stderr)
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def run(self, command: str, timeout: float) -> SimpleNamespace:
        return self.ended


HOSTS = {
    "good": Host(),
    "far": Host(-1, "Permission denied \x1b[31m"),
    "bare": Host(1, "Traceback\nModuleNotFoundError: No module named 'microbench'\n"),
}


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package asyncssh, which reaches HOSTS."""
    module: Any = types.ModuleType("asyncssh")
    module.Error = NoConnection
    module.TimeoutError = type("TimeoutError", (NoConnection,), {})
    module.connect = lambda host, connect_timeout: HOSTS[host]
    monkeypatch.setitem(sys.modules, "asyncssh", module)


def test_hosts_without_ssh_or_microbench_are_left_out_before_dask_starts(hosts: None) -> None:
    assert clusters._unusable(("good", "far", "bare")) == {
        "far": "no SSH connection: Permission denied \\x1b[31m",
        "bare": f"{sys.executable} cannot be used there: ModuleNotFoundError: No module named 'microbench'",
    }


def test_hosts_whose_workers_did_not_come_are_named() -> None:
    cluster = SimpleNamespace(worker_spec=dict.fromkeys("abc"), observed={"a"}, scheduler_address="tcp://10.0.0.1:1")
    assert clusters._absent_hosts(cluster, {"b"}) == {
        "c": "no worker came from it; can it reach the scheduler, tcp://10.0.0.1:1?"
    }


def test_if_no_host_can_be_used_the_error_says_why(hosts: None, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    ended = call("fleet", "run", "host", "--ssh", "bare,far,bare", "--store", str(tmp_path))
    assert ended.exit_code == ExitCode.SOME_FAILED
    assert "no host can be used: bare: " in ended.stderr
    assert "; far: no SSH connection" in ended.stderr
    assert ended.stderr.count("bare:") == 1  # a host that is named twice is one host
    assert f"ssh bare {sys.executable} -V" in ended.stderr


def test_what_runs_on_a_host_ends_with_its_connection() -> None:
    code = "import time; from microbench.fleet import node; node.CLOSE_S = 0.0; node.dask_setup(None); time.sleep(1e6)"
    ended = subprocess.run([sys.executable, "-c", code], input=b"", capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, b"")


class Cluster:
    """In the place of SLURMCluster; its jobs are not accepted if ``refused``."""

    made: ClassVar[list[Cluster]] = []
    refused = ""

    def __init__(self, **options: Any) -> None:
        self.options, self.worker_spec, self.closed = options, dict[str, Any](), False
        Cluster.made.append(self)

    def new_worker_spec(self) -> dict[str, Any]:
        return {f"SLURMCluster-{len(self.worker_spec)}": {}}

    def _correct_state(self) -> None:
        if self.refused:
            raise RuntimeError(f"Command exited with non-zero exit code.\nstdout:\n\nstderr:\n{self.refused}\n")

    def sync(self, function: Any) -> None:
        function()

    def close(self) -> None:
        self.closed = True
        assert not self.refused, "a job was never submitted"


@pytest.fixture
def jobqueue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Cluster]]:
    """The package dask_jobqueue, which takes SIGINT for itself when it is imported, as the real one does."""
    pytest.importorskip("distributed")
    (tmp_path / "dask_jobqueue.py").write_text(
        "import signal, sys\nsignal.signal(signal.SIGINT, lambda *_: sys.exit())\n"
        "from test_fleet_clusters import Cluster as SLURMCluster\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "dask_jobqueue", raising=False)
    monkeypatch.setattr(Cluster, "made", [])
    yield Cluster
    sys.modules.pop("dask_jobqueue", None)


def test_what_sbatch_says_is_the_error_nothing_stays(jobqueue: type[Cluster], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobqueue, "refused", "sbatch: error: invalid partition specified: nope")
    with pytest.raises(MicrobenchError) as raised, connected(Where(slurm=2)):
        pass
    assert raised.value.cause == "--slurm 2 cannot be started: sbatch: error: invalid partition specified: nope"
    assert "docs/fleet.md" in raised.value.next_step
    (cluster,) = jobqueue.made
    assert cluster.closed
    assert len(cluster.worker_spec) == 2
    assert cluster.options["job_extra_directives"][-1] == "--exclusive"


def test_dask_jobqueue_does_not_take_ctrl_c(jobqueue: type[Cluster]) -> None:
    before = signal.getsignal(signal.SIGINT)
    clusters._slurm(1)
    assert signal.getsignal(signal.SIGINT) == before


def test_jobs_without_a_worker_say_what_slurm_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 12 PENDING Resources\necho 13 RUNNING None\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    jobs = {f"SLURMCluster-{n}": SimpleNamespace(job_id=str(10 + n)) for n in range(5)}
    cluster = SimpleNamespace(workers=jobs, observed={"SLURMCluster-0"}, scheduler_address="tcp://head:1")
    reasons = clusters._absent_jobs(cluster, {"SLURMCluster-1"})
    assert reasons["job 12"] == "it was still in the queue (Resources); --wait SECONDS waits longer"
    assert reasons["job 13"].endswith("can its node reach the scheduler, tcp://head:1?")
    assert reasons["job 14"].startswith("it ended before its worker came")
    assert len(reasons) == 3
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert len(clusters._absent_jobs(cluster, {"SLURMCluster-1"})) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_acts_as_ctrl_c(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores one of them
    try:
        with pytest.raises(KeyboardInterrupt), fleet._signals():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_an_interruption_before_anything_began_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @contextmanager
    def interrupted(where: Where, wait_s: float) -> Iterator[None]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(clusters, "connected", interrupted)
    ended = call("fleet", "run", "host", "--ssh", "a", "--store", str(tmp_path / "store"))
    assert (ended.exit_code, ended.stdout) == (ExitCode.INTERRUPTED, "")
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_of_a_connection_neither_threads_nor_files_stay() -> None:
    pytest.importorskip("distributed")

    def kept() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    found = []
    for _ in range(4):
        with connected(Where(local=1)):
            pass
        with pytest.raises(MicrobenchError), connected(Where(scheduler="tcp://127.0.0.1:1"), wait_s=0.1):
            pass
        gc.collect()
        found.append(kept())
    assert found[-1] <= found[1], found  # Dask's pools of threads grow once
    assert found[-1][1] <= found[1][1], found
