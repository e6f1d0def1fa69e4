"""Connects to a Dask cluster: an existing scheduler, or one that is made of local processes, SSH hosts or Slurm jobs.

How they are secured is Dask's own configuration: every one of them reads ``distributed.comm.tls`` and
``distributed.comm.require-encryption``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from microbench.core.errors import MicrobenchError, UsageError
from microbench.core.units import plain

if TYPE_CHECKING:
    from distributed import Client

# Loggers; Dask gives distributed.client and tornado.application levels of their own.
QUIET = ("distributed", "distributed.client", "bokeh", "tornado", "tornado.application", "asyncssh", "asyncio")
CONNECT_S = 30.0
PYTHON_S = 120.0  # Python and its packages may come from a slow network disk
# One task at a time in a worker; no limit of memory, at which Dask would restart a worker.
WORKER = {"nthreads": 1, "memory_limit": 0}
# The module whose dask_setup ends a process started by SSH when its connection ends. Otherwise an interruption at the
# wrong moment, or a killed client, would leave such processes on all hosts.
ON_HOST = "microbench.fleet.node"
# What the Python of a host must have; this is tried before Dask starts there.
NEEDED = f"import distributed, {ON_HOST}"
NEXT_STEPS = {
    "--scheduler": "check the address, the certificates and the scheduler's log",
    "--ssh": "the hosts and this machine must reach each other at any TCP port, by the addresses of their host names",
    "--slurm": "Dask's configuration names queue, account and walltime, as docs/fleet.md shows",
    "--local": "start fewer workers: --local 1",
}

# What closed connections mean, by what is in the error.
UNTRUSTED = "it closed the connection, as for a certificate that has expired or that it does not trust"
WITHOUT_TLS = "it answers without TLS: give a tcp:// address, or start the scheduler with TLS"
CLOSED = {
    "SSLEOFError": UNTRUSTED,
    "_ALERT_": UNTRUSTED,
    "ConnectionResetError": "it closed the connection, as a scheduler with TLS does: give a tls:// address",
    "FatalCommClosedError": WITHOUT_TLS,
    "WRONG_VERSION_NUMBER": WITHOUT_TLS,
    "cannot convert to SSL": WITHOUT_TLS,
    "Instead got None": "Dask's configuration requires encryption and names no certificates: set distributed.comm.tls",
}


@dataclass(frozen=True)
class Where:
    """Where the workers are: exactly one of the fields is given. ``slurm`` and ``local`` count workers."""

    local: int | None = None
    scheduler: str | None = None
    ssh: tuple[str, ...] = ()
    slurm: int | None = None

    @property
    def arguments(self) -> list[str]:
        given = {**vars(self), "ssh": ",".join(self.ssh)}
        return [word for name, value in given.items() if value for word in (f"--{name}", str(value))]

    @property
    def expected(self) -> int:
        """How many workers should come; of an existing scheduler, at least one."""
        return self.local or self.slurm or len(self.ssh) or 1


def check(where: Where) -> None:
    """Raise UsageError unless exactly one way is given."""
    given = sum(value not in (None, ()) for value in vars(where).values())
    if given != 1:
        cause = f"{'several of' if given else 'none of'} --local, --scheduler, --ssh and --slurm are given"
        raise UsageError(cause, "say where the nodes are by one of them: --scheduler tcp://HOST:8786")


# Which hosts or jobs have brought no worker yet, and why, from the names of the workers that came.
Absent = Callable[[Collection[str]], Mapping[str, str]]


@contextmanager
def connected(where: Where, wait_s: float = CONNECT_S) -> Iterator[tuple[Client, Mapping[str, str], Absent]]:
    """A client of the cluster, which is closed at the end if it was made here; the hosts on which no worker could be
    started, each with the reason; and who is absent. A scheduler is waited for at most ``wait_s``.

    Raises UsageError if a package is missing, MicrobenchError if there is no scheduler, no host can be used, or Slurm
    takes no job.
    """
    check(where)
    try:
        from distributed import Client, SpecCluster
        from distributed.gc import disable_gc_diagnosis
    except ImportError:
        raise _missing("distributed", ".[fleet]") from None
    # A lost worker is an outcome of the campaign; Dask's own words of it would stand between the lines of progress.
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)

    class Once(Client):  # type: ignore[misc]
        """Without a scheduler it ends its thread, which would else try to close it, and wait 30 s for itself."""

        def __init__(self, target: Any, **options: Any) -> None:
            with ExitStack() as undone:
                undone.callback(lambda: self._loop_runner.stop())
                super().__init__(target, **options)
                undone.pop_all()

        def __del__(self) -> None:
            pass

    with ExitStack() as stack:
        try:
            address = where.scheduler or ""  # with TLS and without certificates a Dask client would never end
            if not _certificates() and address.startswith("tls://"):
                raise UsageError(
                    f"{plain(address)} needs certificates, and Dask's configuration names none",
                    "set distributed.comm.tls, as docs/fleet.md shows",
                )
            unreachable = _unusable(where.ssh)
            hosts = [host for host in where.ssh if host not in unreachable]
            target: Any = where.scheduler
            if target is None:
                # Also one that Ctrl-C left half made.
                stack.callback(lambda: list(map(_close, list(SpecCluster._instances))))
                target = _cluster(where, hosts)
            timeout_s = min(wait_s, CONNECT_S) if where.scheduler else CONNECT_S
            client = stack.enter_context(Once(target, timeout=timeout_s, direct_to_workers=False, set_as_default=False))
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            verb = "reached" if where.scheduler is not None else "started"
            cause = f"{plain(' '.join(where.arguments))} cannot be {verb}: {_words(error)}"
            raise MicrobenchError(cause, NEXT_STEPS[where.arguments[0]]) from None
        disable_gc_diagnosis(force=True)  # Ctrl-C within its callback would be lost, and leave a traceback
        absent = _absent_hosts if where.ssh else _absent_jobs if where.slurm else lambda cluster, came: {}
        yield client, unreachable, partial(absent, target)


def _certificates() -> bool:
    """Whether Dask's configuration names certificates. Raises UsageError if they cannot be used."""
    from distributed import Security

    security = Security()
    try:
        return bool(security.get_connection_args("client").get("ssl_context"))
    except (OSError, ValueError, TypeError) as error:  # OSError does not say which file
        named = filter(None, (security.tls_ca_file, security.tls_client_cert, security.tls_client_key))
        absent = next((each for each in named if "\n" not in each and not os.access(each, os.R_OK)), None)
        words = f"{absent} cannot be read" if absent else error
        raise UsageError(
            f"the certificates of Dask's configuration cannot be used: {plain(words)}",
            "correct distributed.comm.tls, as docs/fleet.md shows",
        ) from None


def _words(error: BaseException) -> str:
    """Say why Dask cannot reach or start a cluster."""
    while error.__cause__ is not None:  # "Cluster failed to start", from "Scheduler failed to start", from the reason
        error = error.__cause__
    text = str(error).rpartition("stderr:\n")[2].strip()  # by sbatch
    for sign, words in CLOSED.items():
        if sign in f"{type(error).__name__}: {text}":
            return words
    return plain(text) or type(error).__name__


def _unusable(hosts: Sequence[str]) -> dict[str, str]:
    """The hosts that SSH does not reach or whose Python lacks something: with one of them Dask would not start at all.

    Raises UsageError without asyncssh, MicrobenchError if no host can be used.
    """
    if not hosts:
        return {}
    try:
        import asyncssh
    except ImportError:
        raise _missing("asyncssh", "asyncssh") from None

    async def attempt(host: str) -> str:
        try:
            async with asyncssh.connect(host, connect_timeout=CONNECT_S) as connection:
                ended = await connection.run(shlex.join([sys.executable, "-c", NEEDED]), timeout=PYTHON_S)
        except asyncssh.TimeoutError:
            return f"{sys.executable} gave no answer there within {PYTHON_S:.0f} s"
        except (OSError, asyncssh.Error) as error:
            return f"no SSH connection: {plain(error) or 'no answer'}"
        lines = (ended.stderr or "").strip().splitlines() or [f"exit code {ended.exit_status}"]
        return f"{sys.executable} cannot be used there: {plain(lines[-1])}" if ended.exit_status else ""

    async def attempts() -> list[str]:
        return await asyncio.gather(*map(attempt, hosts))

    reasons = {host: reason for host, reason in zip(hosts, asyncio.run(attempts()), strict=True) if reason}
    if len(reasons) == len(hosts):
        listed = "; ".join(f"{plain(host)}: {reason}" for host, reason in list(reasons.items())[:3])
        raise MicrobenchError(
            f"no host can be used: {listed}", f"this must work: ssh {plain(hosts[0])} {sys.executable} -V"
        )
    return reasons


def _cluster(where: Where, hosts: Sequence[str]) -> Any:
    """A Dask cluster that is not started yet."""
    if where.ssh:
        return _ssh(hosts)
    if where.slurm is not None:
        return _slurm(where.slurm)
    from distributed import LocalCluster
    from distributed.utils import LoopRunner

    # Ctrl-C is this process's alone: all threads and processes that this thread starts inherit that they do not hear
    # it. The tracker of multiprocessing, which starts with the first process, would let them hear it again.
    resource_tracker.ensure_running()
    runner, before = LoopRunner(), signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        runner.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        return LocalCluster(
            loop=runner.loop,
            n_workers=where.local,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        )
    finally:
        runner.stop()  # the thread ends with the cluster, which counts on it too


def _ssh(hosts: Sequence[str]) -> Any:
    """Like Dask's SSHCluster, but workers have the names of their hosts, and not all of them must start."""
    from distributed import SpecCluster, Status
    from distributed.deploy import ssh

    class Worker(ssh.Worker):  # type: ignore[misc]
        async def start(self) -> None:
            # If it fails, the host is absent, and the others go on.
            await asyncio.gather(asyncio.wait_for(super().start(), PYTHON_S), return_exceptions=True)
            self.status = Status.running

    def process(cls: type, host: str, **options: Any) -> dict[str, Any]:
        return {"cls": cls, "options": {"address": host, "connect_options": {}, "kwargs": options}}

    workers = {host: process(Worker, host, **WORKER, name=host, preload_nanny=[ON_HOST]) for host in hosts}
    # The scheduler runs on the first host, as the nodes must be able to reach it.
    scheduler = process(ssh.Scheduler, hosts[0], dashboard=False, preload=[ON_HOST])
    return SpecCluster(workers, scheduler, name="SSHCluster", shutdown_on_close=False)


def _close(cluster: Any) -> None:
    """Close a cluster. Dask's assertions may fail, because a part of it was lost or never started."""
    cluster.shutdown_on_close = False  # else Dask tries again when the program ends
    with suppress(OSError, TimeoutError, AssertionError):
        cluster.close()


def _absent_hosts(cluster: Any, came: Collection[str]) -> dict[str, str]:
    """The hosts whose workers have not come."""
    reason = f"no worker came from it; can it reach the scheduler, {plain(cluster.scheduler_address)}?"
    return {host: reason for host in cluster.worker_spec if host not in {*came, *cluster.observed}}


def _slurm(jobs: int) -> Any:
    """A cluster of that many jobs, which end with it. Raises RuntimeError with the words of sbatch."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        from dask_jobqueue import SLURMCluster  # otherwise Ctrl-C would end the program with exit code 0
    except ImportError:
        raise _missing("dask_jobqueue", "dask-jobqueue") from None
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, on_interrupt)
    import dask

    # Queue, account, walltime and GPUs come from Dask's configuration. A run gets a node alone with its memory.
    settings = dask.config.get("jobqueue.slurm", {})
    cluster = SLURMCluster(
        cores=1,
        processes=1,
        memory=settings.get("memory") or "4GB",  # dask-jobqueue needs a limit; it is for the worker, not for its run
        job_mem=settings.get("job-mem") or "0",
        job_extra_directives=[*(settings.get("job-extra-directives") or ()), "--exclusive"],
        scheduler_options={"dashboard": False, **(settings.get("scheduler-options") or {})},
    )
    with ExitStack() as stack:
        stack.callback(_close, cluster)
        # scale() would submit them in the background, where an error of sbatch is lost.
        for _ in range(jobs):
            cluster.worker_spec.update(cluster.new_worker_spec())
        cluster.sync(cluster._correct_state)
        stack.pop_all()
    return cluster


def _absent_jobs(cluster: Any, came: Collection[str]) -> dict[str, str]:
    """The jobs whose workers have not come, each with what Slurm says of it."""
    absent = [job.job_id for name, job in cluster.workers.items() if name not in {*came, *cluster.observed}]
    if not absent:
        return {}
    states = {}
    with suppress(OSError, subprocess.SubprocessError):
        command = ["squeue", "--noheader", "--format=%i %T %r", "--jobs", ",".join(absent)]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=20.0, check=False).stdout
        states = {line.split()[0]: line.split(maxsplit=2)[1:] for line in listed.splitlines() if line.strip()}

    def reason(job: str) -> str:
        match states.get(job):
            case ["PENDING", why]:
                return f"it was still in the queue ({plain(why)}); --wait SECONDS waits longer"
            case ["RUNNING", _]:
                return f"no worker came from it; can its node reach the scheduler, {plain(cluster.scheduler_address)}?"
        return "it ended before its worker came: see its output, slurm-ID.out"

    return {f"job {job}": reason(job) for job in absent}


def _missing(package: str, install: str) -> UsageError:
    return UsageError(f"{package} is not installed", f"pip install '{install}'")
