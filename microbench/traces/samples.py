"""Turns samples of the lines that threads were in into ranges. Their ends are estimates, because samples do not show
when a line ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.recorder.cells import FOLLOWING_NS, SAMPLE_NS
from microbench.traces.trace import NONE, Samples, Table

Integers = npt.NDArray[np.int64]


class Lines(NamedTuple):
    """The lines of one thread: begin and end of each in ns, in their order and without overlaps, and its name."""

    begin_ns: Integers
    end_ns: Integers
    name: Integers


def in_order(rows: Table) -> Table:
    """The rows of one thread by time, without those that overlap the ones before."""
    rows = rows[np.argsort(rows["begin_ns"], kind="stable")]
    latest = np.maximum.accumulate(rows["end_ns"])
    kept: Table = rows[np.append(True, rows["begin_ns"][1:] >= latest[:-1])] if len(rows) else rows
    return kept


def lines(rows: Table, name: Callable[[int], int], following_ns: int = FOLLOWING_NS) -> Lines:
    """The lines in which samples found a thread; ``rows`` are in order. Those without a name (NONE) are left out.

    Stacks that follow each other in one line are one. The change from one line to the next is taken to be halfway
    between two samples that follow each other within a time. Where none follows, a line goes on for half of the time
    between samples.
    """
    begin, end = rows["begin_ns"].astype(np.int64), rows["end_ns"].astype(np.int64)
    apart = begin[1:] - end[:-1]
    following = apart <= following_ns
    before = np.append(SAMPLE_NS // 2, np.where(following, apart - apart // 2, SAMPLE_NS // 2))
    behind = np.append(np.where(following, apart // 2, SAMPLE_NS // 2), SAMPLE_NS // 2)
    keys, place = np.unique(rows["name"], return_inverse=True)
    names = np.array([name(key) for key in keys.tolist()], np.int64)[place]
    count = len(rows)
    begin, end = begin - before[:count], end + behind[:count]
    others = (names[1:] != names[:-1]) | (begin[1:] != end[:-1])
    firsts, lasts = (np.flatnonzero(edge[:count]) for edge in (np.append(True, others), np.append(others, True)))
    known = names[firsts] != NONE
    return Lines(begin[firsts][known], end[lasts][known], names[firsts][known])


def filled(own: Lines, other: Lines) -> Lines:
    """The lines of one thread, with the gaps filled by those of another one."""
    edges = np.unique(np.concatenate([own.begin_ns, own.end_ns, other.begin_ns, other.end_ns]))
    begin, end = edges[:-1], edges[1:]
    name = _at(other, begin)
    name = np.where((mine := _at(own, begin)) != NONE, mine, name)
    known = name != NONE
    return Lines(begin[known], end[known], name[known])


def _at(of: Lines, times_ns: Integers) -> Integers:
    """The name of the line at each time; NONE between lines."""
    place = np.searchsorted(of.begin_ns, times_ns, side="right") - 1
    inside = (place >= 0) & (times_ns < np.append(of.end_ns, 0)[place])
    return np.where(inside, np.append(of.name, NONE)[place], NONE)


def within(of: Lines, first_ns: int, last_ns: int) -> Lines:
    """The parts of the lines that lie between two times."""
    begin, end = np.maximum(of.begin_ns, first_ns), np.minimum(of.end_ns, last_ns)
    kept = begin < end
    return Lines(begin[kept], end[kept], of.name[kept])


def counted(each: list[Table], at_ns: Mapping[int, Integers], beside: Sequence[Lines]) -> Samples | None:
    """The number of samples in these rows of several threads, and the mean time between two; the rows of each are in
    order. ``at_ns`` says by thread when they were taken, and ``beside`` where other threads worked.
    """
    count = late = distances = total_ns = 0
    for rows in each:
        sizes = np.minimum(rows["size"], np.uint64(1 << 40)).astype(np.int64)
        apart = rows["begin_ns"][1:] - rows["end_ns"][:-1]
        apart = apart[apart <= FOLLOWING_NS]
        count, late = count + int(sizes.sum()), late + int(rows["flags"].sum())
        distances += int(sizes.sum()) - len(rows) + len(apart)
        total_ns += int((rows["end_ns"] - rows["begin_ns"]).sum()) + int(apart.sum())
    others = tuple(row for one in beside for row in zip(*map(np.ndarray.tolist, one), strict=True))
    return Samples(count, late, total_ns // distances if distances else SAMPLE_NS, at_ns, others) if count else None
