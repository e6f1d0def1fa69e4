"""What a run tells whoever watches it: plain events, and the Listener that gets them. Nothing here draws."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

import msgspec

from microbench.core.model import Environment, Outcome

RunStatus = Literal["complete", "interrupted", "stopped"]


class Probed(msgspec.Struct, frozen=True):
    """The machine is known, nothing is planned yet: the moment to say why there is no GPU."""

    environment: Environment


class PlanMade(msgspec.Struct, frozen=True):
    """What will be measured. ``total_cases`` counts every case once a round and GPU; ``budget_s`` is the wall time left
    for them, None without a limit; ``expected_s`` a rough forecast of the wall time without one."""

    total_cases: int
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
    """A figure as it comes: the median ``value`` of ``n`` samples so far, in ``unit``.

    A rate is told as the time of one call, so its ``unit`` is s.
    """

    case_id: str
    metric: str
    unit: str
    n: int
    value: float


class CaseDone(msgspec.Struct, frozen=True):
    """A case has its outcome, and the outcome is on disk. A skipped case is done without having been started."""

    outcome: Outcome


class RunEnded(msgspec.Struct, frozen=True):
    """Nothing more comes. ``path`` is the finished file; ``stopped`` is a run ended by an error told elsewhere."""

    path: Path
    status: RunStatus


Event = Probed | PlanMade | CaseStarted | CaseTick | CaseDone | RunEnded


class Listener(Protocol):
    """Gets every event in order, in the parent process, between two cases or while one runs; must be quick."""

    def __call__(self, event: Event) -> None: ...


def nobody(event: Event) -> None:
    """A listener that does nothing."""
