"""Builds the tables of a Trace from columns of numbers: names kept once, rows in order, work joined to its calls."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from microbench.traces.trace import NONE, Table, Thread

Numbers = npt.NDArray[np.int64]

LONGEST_NAME = 4096  # characters; the names of templated kernels reach some thousand
MOST_NAMES = 100_000
MOST_THREADS = 65_536
ALL_OTHERS = "(one of too many names)"
FURTHEST_NS = 1 << 62  # later times are invalid; differences of two valid ones fit 64 bits
NUMBER = re.compile(r"\d+")
AT_ONCE = 1 << 20  # rows whose calls are looked up together


class Names:
    """Names by their place, each kept once.

    After MOST_NAMES different names, names that differ only in numbers share one place; after twice as many, all new
    names share one.
    """

    def __init__(self) -> None:
        self.all: list[str] = []
        self._places: dict[str, int] = {}

    def place(self, name: str) -> int:
        """The place of a name, a new one at its first use."""
        place = self._places.get(name)
        if place is not None:
            return place
        kept = name[:LONGEST_NAME]
        if len(self.all) >= MOST_NAMES:
            kept = NUMBER.sub("#", kept) if len(self.all) < 2 * MOST_NAMES else ALL_OTHERS
        place = self._places.setdefault(kept, len(self.all))
        if place == len(self.all):
            self.all.append(kept)
        return place


class Threads:
    """Threads by their place, each kept once; after MOST_THREADS all new ones are the first."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}
        self._names: dict[int, str] = {}

    def place(self, process: int, number: int, name: str = "") -> int:
        """The place of a thread. A name given once stays, whichever call gives it."""
        known = self._places.get((process, number))
        if known is None and len(self._places) >= MOST_THREADS:
            return 0
        place = self._places.setdefault((process, number), len(self._places)) if known is None else known
        if name:
            self._names.setdefault(place, name[:LONGEST_NAME])
        return place

    def all(self) -> tuple[Thread, ...]:
        return tuple(
            Thread(process, number, self._names.get(place, "")) for (process, number), place in self._places.items()
        )


def timed(begin_ns: Numbers, end_ns: Numbers) -> npt.NDArray[np.bool_]:
    """True for rows with a beginning and an end that a clock can have had; recorders write 0 for both if unknown."""
    known: npt.NDArray[np.bool_] = (begin_ns > -FURTHEST_NS) & (end_ns < FURTHEST_NS) & (begin_ns <= end_ns)
    known &= (begin_ns != 0) | (end_ns != 0)
    return known


def whole(numbers: Numbers, most: int = FURTHEST_NS) -> Numbers:
    """The numbers, NONE for those below 0 or above ``most``."""
    return np.where((numbers >= 0) & (numbers <= most), numbers, NONE)


def table_of(dtype: np.dtype[np.void], count: int, **columns: object) -> Table:
    """A table of ``count`` rows with these columns, and NONE in all others."""
    table = np.empty(count, dtype)
    for name in table.dtype.names or ():
        table[name] = columns.get(name, NONE)
    return table


def joined(dtype: np.dtype[np.void], parts: Sequence[Table]) -> tuple[Table, npt.NDArray[np.intp] | None]:
    """One table of all parts, sorted by ``begin_ns``; the order that sorted it, None if it was in order already."""
    table = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype), *parts])
    begins = table["begin_ns"]
    if (begins[1:] >= begins[:-1]).all():
        return table, None
    order = np.argsort(begins, kind="stable")
    return table[order], order


def outermost(calls: Table) -> npt.NDArray[np.int32]:
    """For each call the place of the outermost call of its thread that it is part of, its own where it is none.

    Calls are sorted by begin; of those that begin together the longest comes first.
    """
    begin, end, thread = (calls[column] for column in ("begin_ns", "end_ns", "thread"))
    outer = np.arange(len(calls), dtype=np.int32)
    for one in np.unique(thread).tolist():
        place = np.flatnonzero(thread == one).astype(np.int32)
        ends = end[place]
        before = np.empty_like(ends)  # the latest end of the calls before it in the thread
        before[0] = np.iinfo(np.int64).min
        np.maximum.accumulate(ends[:-1], out=before[1:])
        inside = ends <= before
        inside &= ends > begin[place]  # a call of no length may just touch the next one
        inside &= begin[place] < before
        if inside.any():
            leader = np.maximum.accumulate(np.where(ends > before, np.arange(len(place), dtype=np.int32), 0))
            outer[place[inside]] = place[leader[inside]]
    return outer


class CallFinder:
    """Finds the call of a key; of several with the same one, the last that began before the time given.

    ``keys`` are those of the calls by time. ``begin_ns`` is the column of the table of calls in which ``targets`` are
    the places of these calls; without ``targets`` it has the same rows as ``keys``.
    """

    def __init__(self, keys: Numbers, begin_ns: Numbers, targets: npt.NDArray[np.int32] | None = None) -> None:
        order = np.argsort(keys, kind="stable").astype(np.int32)
        self._keys, self._targets = keys[order], order if targets is None else targets[order]
        self._begin_ns = begin_ns

    def calls(self, keys: Numbers, times_ns: Numbers) -> npt.NDArray[np.int32]:
        """The places of the calls with these keys; NONE where there is none, and for the keys NONE and 0."""
        found = np.full(len(keys), NONE, np.int32)
        for begin in range(0, len(keys) if len(self._keys) else 0, AT_ONCE):
            wanted, time_ns = keys[begin : begin + AT_ONCE], times_ns[begin : begin + AT_ONCE]
            first = np.searchsorted(self._keys, wanted, "left")
            last = np.searchsorted(self._keys, wanted, "right") - 1
            known = np.flatnonzero((last >= first) & (wanted != NONE) & (wanted != 0))
            low, high = first[known], last[known]
            while (open_spans := low < high).any():  # halves the span of the calls with one key
                middle = (low + high + 1) // 2
                later = self._begin_ns[self._targets[middle]] > time_ns[known]
                high = np.where(open_spans & later, middle - 1, high)
                low = np.where(open_spans & ~later, middle, low)
            found[begin + known] = self._targets[low]
        return found
