"""A Submit of several different calls in a fixed order, from a compiled loop: work on several streams, mixed chains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from microbench.gpu.api import SAFE_QUEUE_SLOTS, IntArray
from microbench.gpu.context import check_code, entry_point
from microbench.gpu.graphs.base import as_int64
from microbench.gpu.submit import DriverSubmit
from microbench.host import call_rows
from microbench.host.loops import WIDE_ARGUMENTS
from microbench.host.native import c_address

NOTHING_TAKEN = -1


class CallRow(NamedTuple):
    """One driver call: its name (for errors), address and arguments.

    ``takes`` is the place of an argument that is read, when its turn comes, from the program's scratch word; ``keep``
    is what the arguments point to.
    """

    what: str
    address: int
    arguments: Sequence[int]
    takes: int = NOTHING_TAKEN
    keep: tuple[Any, ...] = ()

    @classmethod
    def named(cls, name: str, arguments: Sequence[int], takes: int = NOTHING_TAKEN) -> CallRow:
        """A call of a driver function by name."""
        return cls(name, entry_point(name), arguments, takes)

    @classmethod
    def of(cls, submit: DriverSubmit) -> CallRow:
        """The call of a bound op."""
        return cls(submit.what, submit.address, [int(value) for value in submit.arguments], keep=(submit,))


class Program:
    """``calls`` in their order. One submission is all of them, or the next one of them where ``single``.

    Its own waits are for ``waits_for``, the stream that comes last, or for the whole context where that is None.
    ``queue_slots`` is how many submissions may be outstanding, where a call takes more than one slot of the queue.
    """

    def __init__(
        self,
        calls: Sequence[CallRow],
        *,
        single: bool = False,
        scratch: IntArray | None = None,
        waits_for: int | None = None,
        queue_slots: int | None = None,
    ) -> None:
        self._names = [call.what for call in calls]
        self._keep = [call.keep for call in calls]
        self._addresses: IntArray = np.array([call.address for call in calls], dtype=np.uint64).astype(np.int64)
        self._rows: IntArray = np.zeros((len(calls), WIDE_ARGUMENTS), dtype=np.int64)
        for row, call in zip(self._rows, calls, strict=True):
            row[: len(call.arguments)] = [as_int64(value) for value in call.arguments]
        self._takes: IntArray = np.array([call.takes for call in calls], dtype=np.int64)
        self._scratch: IntArray = scratch if scratch is not None else np.zeros(1, dtype=np.int64)
        self._each = 1 if single else len(calls)
        self._clock = c_address("clock_gettime")
        self._synchronize = entry_point("cuCtxSynchronize" if waits_for is None else "cuStreamSynchronize")
        self._waits_for = waits_for or 0
        self.queue_slots: int | None = queue_slots or max(SAFE_QUEUE_SLOTS // self._each, 1)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def _what(self) -> str:
        return ", ".join(dict.fromkeys(self._names))

    def __call__(self, count: int) -> None:
        code = call_rows.submit_rows(self._addresses, self._rows, self._takes, self._scratch, count * self._each)
        check_code(code, self._what)

    def burst_ns(self, count: int) -> int:
        stamps: IntArray = np.zeros(2, dtype=np.int64)
        self._stamped(count * self._each, stamps)
        return int(stamps[1] - stamps[0])

    def stamps(self, out_ns: IntArray) -> None:
        self._stamped(self._each, out_ns)

    def _stamped(self, each: int, out_ns: IntArray) -> None:
        code = call_rows.submit_rows_stamped(
            self._addresses, self._rows, self._takes, self._scratch, each, self._clock, out_ns
        )
        check_code(code, self._what)

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        code = call_rows.rows_round_trips(
            self._addresses,
            self._rows,
            self._takes,
            self._scratch,
            calls * self._each,
            self._synchronize,
            as_int64(self._waits_for),
            self._clock,
            out_ns,
        )
        check_code(code, self._what)
