"""The protocol Submit: a GPU operation that is ready to be submitted and timed."""

from typing import Protocol

from microbench.core.ops import IntArray


class Submit(Protocol):
    """A bound operation. Between its calls only the loop that makes them runs.

    ``queue_slots`` is how many calls may be outstanding before the next call blocks, halved for safety; None for an
    operation that takes no slot of the launch queue (a query, for example). Every method raises MeasurementError when a
    call returns an error.
    """

    queue_slots: int | None

    def __call__(self, count: int) -> None:
        """Submit ``count`` times."""

    def burst_ns(self, count: int) -> int:
        """Submit ``count`` times. Returns the host time from before the first call to after the last, in ns."""

    def stamps(self, out_ns: IntArray) -> None:
        """Submit ``len(out_ns) - 1`` times. Stamps the host clock, in ns, before each call and after the last."""

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        """``len(out_ns)`` times: make ``calls`` calls, then synchronise with them. Writes each time in ns."""
