"""The messages between the parent and a worker, each one JSON line: orders on stdin, answers on a pipe.

    parent                 worker
    Job             ->
                    <-     Waiting              (only from a worker that waits)
    an empty line   ->     (only to such a worker)
                    <-     Busy, Ready | Refused      (a probe: Busy, EnvironmentFound | Refused, FloorsFound …, Ready)
    Order           ->
                    <-     Busy, Tick …, Done
    Order … or end of input

The next Order acknowledges an outcome: the worker waits until the parent has saved and displayed it.
"""

from typing import Literal

import msgspec

from microbench.core.model import Case, Environment, Floors, Outcome

Seam = Literal["gpu", "host", "cold", "probe"]


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


class EnvironmentFound(msgspec.Struct, frozen=True, tag="environment"):
    """The probe's description of the machine."""

    environment: Environment


class FloorsFound(msgspec.Struct, frozen=True, tag="floors"):
    """The floors of the session: first the host's alone, then the host's and the GPU's."""

    floors: Floors


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """The number of samples so far and their median, for one call."""

    metric: str
    n: int
    value: float


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The case's outcome. The worker exits after any status but ok and skipped."""

    outcome: Outcome


Message = Busy | Waiting | Ready | Refused | EnvironmentFound | FloorsFound | Tick | Done
