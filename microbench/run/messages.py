"""What the parent and a worker say to each other: one JSON line a message, orders down stdin, answers up a pipe.

    parent                        worker
    Job                    ->
                           <-     Busy, Ready | Refused          (a probe: Busy, Probed | Refused, Floored …, Ready)
    Order                  ->
                           <-     Started, Busy, Tick …, Done
    Order … or end of input

The next Order is the acknowledgement: until the parent has saved and drawn an outcome, the worker waits.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from microbench.core.model import Case, Environment, Floors, Outcome

Seam = Literal["gpu", "host", "cold", "probe"]


class Job(msgspec.Struct, frozen=True):
    """What a worker is started for.

    ``device`` is a GPU's UUID, "fake", or for a probe whatever the user asked for. ``benchmarks`` and ``backend`` name
    the package of benchmarks and the module that opens devices. ``parent_pid`` is who to die with, ``near_node`` the
    GPU's NUMA node, ``allowed_cpus`` what the user lets the run use: the parent has pinned itself by then.
    """

    seam: Seam
    device: str | None
    benchmarks: str
    backend: str
    parent_pid: int
    floors: Floors = Floors()
    near_node: int | None = None
    allowed_cpus: tuple[int, ...] = ()


class Order(msgspec.Struct, frozen=True):
    """One case to measure. ``device`` is the GPU's UUID for the outcome, ``seconds`` the sampling time a metric."""

    case: Case
    session: int
    round: int
    device: str | None
    seconds: float


class Busy(msgspec.Struct, frozen=True, tag="busy"):
    """Importing or compiling begins, which shows no sign of life: be patient until the next message."""

    what: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The device is open, orders may come. From a probe: all is said."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The device could not be opened, or the probe not be done; the worker leaves.

    ``exit_code`` is that of a MicrobenchError, None for anything else; ``status`` is skipped or failed.
    """

    status: Literal["skipped", "failed"]
    reason: str
    next_step: str = ""
    exit_code: int | None = None


class Probed(msgspec.Struct, frozen=True, tag="probed"):
    """What the machine is."""

    environment: Environment


class Floored(msgspec.Struct, frozen=True, tag="floored"):
    """The floors of the session as far as they are known: the host's first, then the GPU's too."""

    floors: Floors


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The case begins."""

    case_id: str


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """``n`` samples so far with this median, by the call."""

    metric: str
    n: int
    value: float


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The case's outcome. After any but ok and skipped the worker leaves."""

    outcome: Outcome


Message = Busy | Ready | Refused | Probed | Floored | Started | Tick | Done
