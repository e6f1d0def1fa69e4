"""Connects to a Dask cluster: an existing scheduler, or one that is made of local processes, SSH hosts or Slurm jobs.

How they are secured is Dask's own configuration: every one of them reads ``distributed.comm.tls`` and
``distributed.comm.require-encryption``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from microbench.core.errors import MicrobenchError, UsageError
from microbench.core.units import plain

if TYPE_CHECKING:
    from distributed import Client

CONNECT_S = 30.0
# One task at a time in a worker; no limit of memory, at which Dask would restart a worker.
WORKER = {"nthreads": 1, "memory_limit": 0}
WORKER_MEMORY = "4GB"  # dask-jobqueue needs a limit; it is for the worker, not for the run that it starts


@dataclass(frozen=True)
class Where:
    """Where the workers are: exactly one of the fields is given. ``slurm`` and ``local`` count workers."""

    local: int | None = None
    scheduler: str | None = None
    ssh: tuple[str, ...] = ()
    slurm: int | None = None

    @property
    def arguments(self) -> list[str]:
        """The options that say the same."""
        given = {
            "--local": self.local,
            "--scheduler": self.scheduler,
            "--ssh": ",".join(self.ssh),
            "--slurm": self.slurm,
        }
        return [word for option, value in given.items() if value for word in (option, str(value))]

    @property
    def expected(self) -> int:
        """How many workers should come; of an existing scheduler, at least one."""
        return self.local or self.slurm or len(self.ssh) or 1


def check(where: Where) -> None:
    """Raise UsageError unless exactly one way is given."""
    given = [where.local is not None, where.scheduler is not None, bool(where.ssh), where.slurm is not None]
    if sum(given) != 1:
        raise UsageError(
            f"{'several of' if any(given) else 'none of'} --local, --scheduler, --ssh and --slurm are given",
            "say where the nodes are by one of them: --scheduler tcp://HOST:8786",
        )


@dataclass(frozen=True)
class Connection:
    """A client of the cluster, and the hosts that SSH did not reach, each with the reason."""

    client: Client
    unreachable: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def connected(where: Where) -> Iterator[Connection]:
    """A connection to the cluster, which is closed at the end if it was made here.

    Raises UsageError if a package is missing, MicrobenchError if there is no scheduler.
    """
    check(where)
    try:
        from distributed import Client
    except ImportError:
        raise _missing("distributed", "cuda-microbench[fleet]") from None
    # A lost worker is an outcome of the campaign; Dask's own words of it would stand between the lines of progress.
    for name in ("distributed", "bokeh", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        try:
            _check_certificates(where.scheduler or "")
            unreachable = _unreachable(where.ssh)
            reached = tuple(host for host in where.ssh if host not in unreachable)
            target = where.scheduler or stack.enter_context(_cluster(where, reached))
            client = stack.enter_context(
                Client(target, timeout=CONNECT_S, direct_to_workers=False, set_as_default=False)
            )
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            cause = f"{plain(' '.join(where.arguments))} cannot be reached: {plain(error) or type(error).__name__}"
            raise MicrobenchError(cause, "check the address, the certificates and the scheduler's log") from None
        yield Connection(client, unreachable)


def _check_certificates(address: str) -> None:
    """Raise UsageError for an address with TLS without certificates, with which a client of Dask's would never end."""
    from distributed import Security

    if address.startswith("tls://") and not Security().get_connection_args("client").get("ssl_context"):
        raise UsageError(
            f"{plain(address)} needs certificates, and Dask's configuration names none",
            "set distributed.comm.tls, as docs/fleet.md shows",
        )


def _unreachable(hosts: Sequence[str]) -> dict[str, str]:
    """The hosts that SSH does not reach: with one of them Dask's SSHCluster would not start at all.

    Raises OSError if none is reached, UsageError without asyncssh.
    """
    if not hosts:
        return {}
    try:
        import asyncssh
    except ImportError:
        raise _missing("asyncssh", "asyncssh") from None

    async def attempt(host: str) -> None:
        async with asyncssh.connect(host, connect_timeout=CONNECT_S):
            pass

    async def attempts() -> list[BaseException | None]:
        return await asyncio.gather(*map(attempt, hosts), return_exceptions=True)

    found = zip(hosts, asyncio.run(attempts()), strict=True)
    reasons = {host: f"no SSH connection: {plain(error)}" for host, error in found if error is not None}
    if len(reasons) == len(hosts):
        raise OSError("; ".join(f"{host}: {reason}" for host, reason in reasons.items()))
    return reasons


def _cluster(where: Where, hosts: Sequence[str]) -> Any:
    """A cluster of Dask's that does not exist yet."""
    if hosts:
        from distributed import SSHCluster

        # The scheduler runs on the first host, as the nodes must be able to reach it.
        return SSHCluster([hosts[0], *hosts], worker_options=dict(WORKER), scheduler_options={"dashboard": False})
    if where.slurm is not None:
        try:
            from dask_jobqueue import SLURMCluster
        except ImportError:
            raise _missing("dask_jobqueue", "dask-jobqueue") from None
        import dask

        # Queue, account, walltime and GPUs come from Dask's configuration. A run gets a node alone with its memory.
        settings = dask.config.get("jobqueue.slurm", {})
        return SLURMCluster(
            n_workers=where.slurm,
            cores=1,
            processes=1,
            memory=settings.get("memory") or WORKER_MEMORY,
            job_mem=settings.get("job-mem") or "0",
            job_extra_directives=[*(settings.get("job-extra-directives") or ()), "--exclusive"],
        )
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=where.local,
        threads_per_worker=1,
        processes=True,
        memory_limit=0,
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    )


def _missing(package: str, install: str) -> UsageError:
    return UsageError(f"{package} is not installed", f"pip install '{install}'")
