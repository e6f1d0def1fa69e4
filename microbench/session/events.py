"""The events of a run, and the Listener that receives and displays them."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from microbench.core.model import Environment, Outcome

RunStatus = Literal["complete", "interrupted", "stopped"]


class NotLocked(msgspec.Struct, frozen=True):
    """The file system of the run's file has no locks, so another process may add to the same run."""

    path: Path
    reason: str


class Probed(msgspec.Struct, frozen=True):
    """The machine was probed, and nothing is planned yet. A display can say now why there is no GPU."""

    environment: Environment


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


class CaseDone(msgspec.Struct, frozen=True):
    """A case has its outcome, and the outcome is on disk. Skipped cases are done without having been started."""

    outcome: Outcome


class RunEnded(msgspec.Struct, frozen=True):
    """The last event. ``path`` is the finished file; ``stopped`` means that an error ended the run (and is raised)."""

    path: Path
    status: RunStatus


Event = NotLocked | Probed | PlanMade | CaseStarted | CaseTick | CaseDone | RunEnded
# It receives every event in order, in the parent process, between two cases or while one runs; it must be quick.
Listener = Callable[[Event], None]
