"""The protocol Submit: an op made ready to be submitted, timed from compiled loops."""

from __future__ import annotations

from typing import Protocol

from microbench.core.ops import IntArray


class Submit(Protocol):
    """A bound op. Calling it submits ``count`` times with nothing between the calls.

    ``queue_slots`` is how many calls may be outstanding before the next one would block, halved for safety; None when
    a call is not queued at all (a query). Raises MeasurementError when a call returns an error.
    """

    queue_slots: int | None

    def __call__(self, count: int) -> None:
        """Submit ``count`` times."""
        ...

    def burst_ns(self, count: int) -> int:
        """Submit ``count`` times; host time from before the first call to after the last, in ns."""
        ...

    def stamps(self, out_ns: IntArray) -> None:
        """Submit ``len(out_ns) - 1`` times; stamp the host clock before each call and after the last."""
        ...

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        """``len(out_ns)`` times: ``calls`` calls and a synchronise of what they went to; each time in ns."""
        ...
