"""What doctor answers: checks as data, for report/ to draw."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "note", "warning", "problem", "unknown"]
STATES: tuple[State, ...] = ("ok", "note", "unknown", "warning", "problem")


class Check(msgspec.Struct, frozen=True):
    """One thing looked at: what was found, and what to do unless it is ok."""

    name: str
    state: State
    found: str
    next_step: str | None = None


class DoctorReport(msgspec.Struct, frozen=True):
    """All checks in the order to read them."""

    checks: tuple[Check, ...]

    @property
    def worst(self) -> State:
        """The worst state of any check."""
        return max((check.state for check in self.checks), key=STATES.index, default="ok")
