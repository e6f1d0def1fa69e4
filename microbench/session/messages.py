"""The messages between the parent and a worker, each one JSON line: orders on stdin, answers on a pipe.

    parent                 worker
    Job             ->
                    <-     Waiting              (only from a worker that waits)
    an empty line   ->     (only to such a worker)
                    <-     Busy, Ready | Refused      (a probe: Busy, Probed | Refused, FloorsFound …, Ready)
    Order           ->
                    <-     Busy, Tick …, CaseDone
    Order … or end of input

The next Order acknowledges an outcome: the worker waits until the parent has saved and displayed it. The parent tells a
Listener the events of the run.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from microbench.core.model import Case, Environment, Floors, Outcome

Seam = Literal["gpu", "host", "cold", "probe"]
RunStatus = Literal["complete", "interrupted", "stopped"]


class Job(msgspec.Struct, frozen=True):
    """The first message to a worker.

    ``device`` is a GPU's UUID, "fake", or for a probe whatever the user asked for. ``benchmarks`` and ``backend`` name
    the package of benchmarks and the module that opens devices. The worker ends when process ``parent_pid`` ends.
    ``near_node`` is the GPU's NUMA node. ``allowed_cpus`` are the CPUs that the user allows; the worker cannot look
    them up, because it inherits the parent's pinning. With ``waits`` it imports ``packages`` and what the device needs,
    sends Waiting, and waits for a line before it opens the device.
    """

    seam: Seam
    device: str | None
    benchmarks: str
    backend: str
    parent_pid: int
    floors: Floors = Floors()
    near_node: int | None = None
    allowed_cpus: tuple[int, ...] = ()
    packages: tuple[str, ...] = ()
    waits: bool = False


class Order(msgspec.Struct, frozen=True):
    """One case to measure. ``device`` is the GPU's UUID for the outcome, ``seconds`` the sampling time per metric."""

    case: Case
    session: int
    round: int
    device: str | None
    seconds: float


class Busy(msgspec.Struct, frozen=True, tag="busy"):
    """Importing or compiling begins, so the next message may take long."""

    what: str


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    """The packages are imported, and the worker waits for a line before it opens the device."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The device is open and the worker accepts orders; for a probe, the last message."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The device could not be opened or the probe failed, and the worker exits.

    ``exit_code`` is that of a MicrobenchError, None for other errors.
    """

    status: Literal["skipped", "failed"]
    reason: str
    next_step: str = ""
    exit_code: int | None = None


class Probed(msgspec.Struct, frozen=True, tag="environment"):
    """The machine as the probe describes it. As an event: nothing is planned yet; why there is no GPU can be shown."""

    environment: Environment


class FloorsFound(msgspec.Struct, frozen=True, tag="floors"):
    """The floors of the session: first the host's alone, then the host's and the GPU's."""

    floors: Floors


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """The number of samples so far and their median, for one call."""

    metric: str
    n: int
    value: float


class CaseDone(msgspec.Struct, frozen=True, tag="done"):
    """A case has its outcome; as an event: the outcome is on disk. Skipped cases are done without having been started.

    The worker exits after any status but ok and skipped.
    """

    outcome: Outcome


Message = Busy | Waiting | Ready | Refused | Probed | FloorsFound | Tick | CaseDone


# The events of a run.


class NotLocked(msgspec.Struct, frozen=True):
    """The file system of the run's file has no locks, so another process may add to the same run."""

    path: Path
    reason: str


class PlanMade(msgspec.Struct, frozen=True):
    """The plan. ``total_cases`` counts each case once per round and GPU, ``core_cases`` those that are never left out.
    ``budget_s`` is the wall time left for them (None without a limit), ``expected_s`` a rough forecast of the wall time
    without a limit."""

    total_cases: int
    core_cases: int
    budget_s: float | None
    suites: tuple[str, ...]
    expected_s: float | None = None


class CaseStarted(msgspec.Struct, frozen=True):
    """A case is about to run: number ``index`` (from 0) of ``total``."""

    case_id: str
    index: int
    total: int
    suite: str
    round: int


class CaseTick(msgspec.Struct, frozen=True):
    """The median ``value`` of the ``n`` samples so far; a rate is given as the time of a call, in s."""

    case_id: str
    metric: str
    unit: str
    n: int
    value: float


class RunEnded(msgspec.Struct, frozen=True):
    """The last event. ``path`` is the finished file; ``stopped`` means that an error ended the run (and is raised)."""

    path: Path
    status: RunStatus


Event = NotLocked | Probed | PlanMade | CaseStarted | CaseTick | CaseDone | RunEnded
# It receives every event in order, in the parent process, between two cases or while one runs; it must be quick.
Listener = Callable[[Event], None]
