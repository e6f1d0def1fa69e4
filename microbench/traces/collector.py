"""Collects the records of a recording in columns and makes a Trace of them.

Readers hand over numbers only, a row a record, in the columns of FIELDS. The collector keeps the tables in arrays whose
pages cost memory only once they are written, counts the rows beyond ROW_LIMITS instead of keeping them, and at the end
finds which call submitted which work.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, auto
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from microbench.traces.tables import CallFinder, outermost
from microbench.traces.trace import (
    CALLS,
    NONE,
    RANGE_KINDS,
    RANGES,
    STACKS,
    SYNC_KINDS,
    SYNCS,
    TURNS,
    WORK,
    Format,
    Loop,
    Pause,
    Samples,
    Table,
    Thread,
    Trace,
    memory_place,
)

Integers = npt.NDArray[np.int64]


class Category(IntEnum):
    """What a record is about. The first three are the places of WORK_KINDS."""

    KERNEL = 0
    COPY = 1
    MEMSET = 2
    RUNTIME = 3
    DRIVER = 4
    SYNC = 5
    OPERATOR = 6
    PYTHON = 7
    ANNOTATION = 8
    OVERHEAD = 9
    DRIVERS_OWN = 10
    LINE = 11
    FUNCTION = 12


class Field(IntEnum):
    """The columns of a row of numbers; NONE (-1) where a record does not have one. SOURCE and TARGET are memories."""

    CATEGORY = 0
    BEGIN_NS = auto()
    DURATION_NS = auto()
    NAME = auto()
    THREAD = auto()
    CORRELATION = auto()
    STREAM = auto()
    DEVICE = auto()
    BYTES = auto()
    BLOCKS = auto()
    THREADS = auto()
    NODE = auto()
    ON_STREAM = auto()
    ON_CORRELATION = auto()
    SOURCE = auto()
    TARGET = auto()


NO_ROW = (NONE,) * (len(Field) - 2) + (0, 0)
RANGE_KIND = {
    Category.ANNOTATION: RANGE_KINDS.index("annotation"),
    Category.OPERATOR: RANGE_KINDS.index("operator"),
    Category.PYTHON: RANGE_KINDS.index("python"),
    Category.OVERHEAD: RANGE_KINDS.index("overhead"),
    Category.DRIVERS_OWN: RANGE_KINDS.index("driver"),
    Category.LINE: RANGE_KINDS.index("line"),
    Category.FUNCTION: RANGE_KINDS.index("function"),
}
# What CUPTI calls overhead and CUDA does within a call: "Runtime Triggered Module Loading".
DRIVERS_OWN = re.compile(r"(?i)module load|lazy function|command buffer full|driver compiler")
SYNC_WORDS = (
    ("wait event", "stream_wait_event"), ("event", "event"), ("stream", "stream"), ("context", "context"),
    ("device", "context"),
)  # fmt: skip
# The most rows of each kind that are kept: 0.4 GB in all. Further ones are counted in Trace.unread.
ROW_LIMITS = {
    "work": 1_500_000, "call": 1_500_000, "sync": 500_000, "annotation": 500_000, "operator": 1_500_000,
    "python": 1_500_000, "overhead": 100_000, "driver": 100_000,
    "line": 1_000_000, "function": 1_000_000,
}  # fmt: skip
MAX_TEXT_BYTES = 64_000_000  # of all names together
MAX_NAMES = 500_000
MAX_THREADS = 65_536
MAX_NAME = 16_384  # characters of a name that are kept
LONGEST_ZERO_NS = 60_000_000_000  # records at time 0 are invalid if all others are later than this
MAX_TIME_NS = 1 << 61  # later times are invalid: Unix times of today are below 2^61 ns
SURELY_UNIX_NS = 10**18  # a later time (from 2001 on) is a Unix time, not the time since the computer's start
NO_DURATION = NONE
AT_ONCE = 1 << 16

AT_ZERO = "records at time 0"
BAD_TIME = "records with an impossible time"
NO_DURATION_WORDS = "records without a duration"


def memories_of(name: str) -> tuple[int, int]:
    """Places in MEMORIES of source and target, from a copy's name such as ``Memcpy HtoD (Pageable -> Device)``."""
    source, _, target = name.partition("(")[2].partition(")")[0].partition(" -> ")
    return memory_place(source) if target else 0, memory_place(target)


@dataclass
class Rows:
    """One table while it grows, with the correlation of each row and, of a sync, that of the call it waits for.

    Of a call, ``other`` says whether it is the driver's.
    """

    table: Table
    correlation: Integers
    other: npt.NDArray[np.integer[Any]]
    count: int = 0

    @classmethod
    def of(cls, dtype: np.dtype[np.void], limit: int, *, keys: int) -> Rows:
        columns = [np.empty(limit if place < keys else 0, np.int64) for place in range(2)]
        return cls(np.empty(limit, dtype), columns[0], columns[1])

    def extend(self, count: int) -> slice:
        self.count += count
        return slice(self.count - count, self.count)

    def reorder(self, places: npt.NDArray[np.integer[Any]]) -> None:
        """Keep the rows at these places, in this order; a column at a time, as a second table would not fit."""
        count = len(places)
        columns = [self.table[column] for column in self.table.dtype.names or ()]
        for column in (*columns, self.correlation, self.other):
            if len(column):
                column[:count] = column[: self.count][places]
        self.count = count

    def sort_outer_first(self) -> None:
        """Sort by begin; of rows that begin together, the longest first, and a driver's call after a runtime's."""
        self.reorder(np.argsort(self.rows["begin_ns"], kind="stable"))
        begin = self.rows["begin_ns"]
        same = np.flatnonzero(begin[1:] == begin[:-1])
        if not len(same):
            return
        tied = np.union1d(same, same + 1)
        keys = (-self.rows["end_ns"][tied], begin[tied])
        order = tied[np.lexsort((self.other[tied], *keys) if len(self.other) else keys)]
        for column in (self.table, self.correlation, self.other):
            if len(column):
                column[tied] = column[order]

    @property
    def rows(self) -> Table:
        return self.table[: self.count]


@dataclass
class Facts:
    """What a recording says of itself besides its records."""

    format: Format = "PyTorch profiler"
    gpus: dict[int, str] = field(default_factory=dict)
    bus_ids: dict[int, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    base_ns: int | None = None
    rank: int | None = None
    windows: tuple[tuple[int, int], ...] = ()
    pauses: tuple[Pause, ...] = ()
    other_waits_ns: tuple[int, ...] = ()
    loops: tuple[Loop, ...] = ()
    turns: Table = field(default_factory=lambda: np.empty(0, TURNS))
    stacks: Table = field(default_factory=lambda: np.empty(0, STACKS))
    samples: Samples | None = None


class Collector:
    """Takes records by ``add`` and gives the Trace by ``finish``. ``most`` is the most records that can come."""

    def __init__(self, most: int | None = None, limits: Mapping[str, int] = ROW_LIMITS) -> None:
        self.limits = dict(limits)
        sizes = {kind: limit if most is None else min(limit, most) for kind, limit in self.limits.items()}
        ranges = sum(sizes[kind] for kind in RANGE_KINDS)
        self.work = Rows.of(WORK, sizes["work"], keys=1)
        self.calls = Rows.of(CALLS, sizes["call"], keys=1)
        self.calls.other = np.empty(sizes["call"], np.int8)  # 1 for a driver's call
        self.syncs = Rows.of(SYNCS, sizes["sync"], keys=2)
        self.ranges = Rows.of(RANGES, ranges if most is None else min(ranges, most), keys=0)
        self.range_counts = dict.fromkeys(RANGE_KINDS, 0)
        self.lost: Counter[str] = Counter()
        self.unread: Counter[str] = Counter()
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[object, object], int] = {}
        self.thread_names: dict[tuple[object, object], str] = {}
        self._text_bytes = 0
        self._sync_kinds: dict[int, int] = {}

    def name(self, text: object) -> int:
        """The number of a name; NONE for one beyond the limits."""
        known = self.names.get(text) if isinstance(text, str) else None
        if known is not None:
            return known
        text = (text if isinstance(text, str) else str(text))[:MAX_NAME]
        if text in self.names:
            return self.names[text]
        self._text_bytes += 60 + len(text)
        if len(self.names) >= MAX_NAMES or self._text_bytes > MAX_TEXT_BYTES:
            self.unread["names"] += 1
            return NONE
        return self.names.setdefault(text, len(self.names))

    def thread(self, process: object, number: object) -> int:
        """The number of a thread; NONE for one beyond the limits."""
        known = self.threads.get((process, number))
        if known is None:
            if len(self.threads) >= MAX_THREADS:
                self.unread["threads"] += 1
                return NONE
            known = self.threads[process, number] = len(self.threads)
        return known

    def add(self, fields: Integers) -> None:
        """Take records, a row each (see Field)."""
        begin, duration = fields[:, Field.BEGIN_NS], fields[:, Field.DURATION_NS]
        bad = (np.abs(begin) > MAX_TIME_NS) | (duration > MAX_TIME_NS) | (duration < NO_DURATION)
        if bad.any():
            self.unread[BAD_TIME] += int(np.count_nonzero(bad))
            fields = fields[~bad]
            duration = fields[:, Field.DURATION_NS]
        if missing := int(np.count_nonzero(duration == NO_DURATION)):
            self.lost[NO_DURATION_WORDS] += missing
            fields[:, Field.DURATION_NS] = np.maximum(duration, 0)
        category = fields[:, Field.CATEGORY]
        if (overhead := category == Category.OVERHEAD).any():
            names, texts = np.unique(fields[overhead, Field.NAME]), [*self.names, ""]
            of_driver = [name for name in names.tolist() if DRIVERS_OWN.search(texts[name])]
            category[overhead & np.isin(fields[:, Field.NAME], of_driver)] = Category.DRIVERS_OWN
        self._add_work(fields[category <= Category.MEMSET])
        self._add_calls(fields[(category == Category.RUNTIME) | (category == Category.DRIVER)])
        self._add_syncs(fields[category == Category.SYNC])
        for range_category, kind in RANGE_KIND.items():
            self._add_ranges(fields[category == range_category], kind)

    def _extended(
        self, rows: Rows, fields: Integers, what: str, room: int | None = None
    ) -> tuple[Integers, slice, Table]:
        """The fields that may still be kept, and their new rows, whose times are set."""
        room = len(rows.table) - rows.count if room is None else room
        if len(fields) > room:
            self.unread[what] += len(fields) - room
        fields = fields[:room]
        place = rows.extend(len(fields))
        table = rows.table[place]
        table["begin_ns"] = fields[:, Field.BEGIN_NS]
        table["end_ns"] = fields[:, Field.BEGIN_NS] + fields[:, Field.DURATION_NS]
        if len(rows.correlation):  # ranges have none
            rows.correlation[place] = fields[:, Field.CORRELATION]
        return fields, place, table

    def _add_work(self, fields: Integers) -> None:
        fields, _, table = self._extended(self.work, fields, "work")
        for column, source, largest in (
            ("stream", Field.STREAM, None), ("bytes", Field.BYTES, None), ("blocks", Field.BLOCKS, None),
            ("node", Field.NODE, None), ("name", Field.NAME, None), ("threads", Field.THREADS, 2**31 - 1),
            ("device", Field.DEVICE, 2**15 - 1), ("kind", Field.CATEGORY, None), ("source", Field.SOURCE, None),
            ("target", Field.TARGET, None),
        ):  # fmt: skip
            table[column] = fields[:, source] if largest is None else np.clip(fields[:, source], NONE, largest)
        table["call"] = NONE

    def _add_calls(self, fields: Integers) -> None:
        fields, place, table = self._extended(self.calls, fields, "call")
        table["name"], table["thread"] = fields[:, Field.NAME], fields[:, Field.THREAD]
        self.calls.other[place] = fields[:, Field.CATEGORY] == Category.DRIVER

    def _add_syncs(self, fields: Integers) -> None:
        fields, place, table = self._extended(self.syncs, fields, "sync")
        texts = list(self.names)
        for name in set(fields[:, Field.NAME].tolist()) - self._sync_kinds.keys():
            text = texts[name].lower() if name != NONE else ""
            word = next((kind for word, kind in SYNC_WORDS if word in text), "context")
            self._sync_kinds[name] = SYNC_KINDS.index(word)
        kinds = np.array([self._sync_kinds[name] for name in fields[:, Field.NAME].tolist()], np.int64)
        stream, on_stream = fields[:, Field.STREAM], fields[:, Field.ON_STREAM]
        event, waits_itself, of_stream = (
            kinds == SYNC_KINDS.index(kind) for kind in ("event", "stream_wait_event", "stream")
        )
        table["kind"] = kinds
        table["stream"] = np.where(waits_itself, stream, NONE)
        table["on_stream"] = np.where(waits_itself | event, on_stream, np.where(of_stream, stream, NONE))
        table["call"] = table["on_call"] = NONE
        self.syncs.other[place] = fields[:, Field.ON_CORRELATION]

    def _add_ranges(self, fields: Integers, kind: int) -> None:
        what = RANGE_KINDS[kind]
        room = min(self.limits[what] - self.range_counts[what], len(self.ranges.table) - self.ranges.count)
        fields, _, table = self._extended(self.ranges, fields, what, room)
        self.range_counts[what] += len(fields)
        table["name"], table["thread"], table["kind"] = fields[:, Field.NAME], fields[:, Field.THREAD], kind

    def finish(self, source: str, facts: Facts) -> Trace:
        """The recording. The collector cannot be used again: its tables are sorted where they are."""
        self._drop_zero_times()
        names = tuple(self.names)
        work, calls, syncs, ranges = self.work, self.calls, self.syncs, self.ranges
        for rows in (work, syncs):
            rows.reorder(np.argsort(rows.rows["begin_ns"], kind="stable"))
        ranges.sort_outer_first()
        finder = self._sort_calls()
        work.rows["call"] = finder.calls(work.correlation[: work.count], work.rows["begin_ns"])
        syncs.rows["call"] = finder.calls(syncs.correlation[: syncs.count], syncs.rows["begin_ns"])
        syncs.rows["on_call"] = finder.calls(syncs.other[: syncs.count].astype(np.int64), syncs.rows["begin_ns"])
        _name_memories(work.rows, names)
        _number_nodes(work.rows, calls.rows, names)
        kept = tuple(rows.rows for rows in (work, calls, ranges, syncs))
        resolution = _resolution(kept)
        first = min((int(table["begin_ns"][0]) for table in kept if len(table)), default=0)
        epoch = None if facts.base_ns is None else facts.base_ns + first
        if first > SURELY_UNIX_NS:
            epoch = first
        for table in kept:
            table["begin_ns"] -= first
            table["end_ns"] -= first
        facts.turns["at_ns"] -= first
        facts.stacks["at_ns"] -= first
        taken = facts.samples
        if taken is not None:
            at_ns = {thread: times_ns - first for thread, times_ns in taken.at_ns.items()}
            beside = tuple((begin - first, end - first, name) for begin, end, name in taken.beside)
            taken = taken._replace(at_ns=at_ns, beside=beside)
        return Trace(
            source=source,
            format=facts.format,
            work=work.rows,
            calls=calls.rows,
            ranges=ranges.rows,
            syncs=syncs.rows,
            names=names,
            threads=tuple(self._threads()),
            gpus=facts.gpus,
            bus_ids=facts.bus_ids,
            versions=facts.versions,
            epoch_ns=epoch,
            resolution_ns=resolution,
            lost=dict(self.lost),
            unread=dict(self.unread),
            rank=facts.rank,
            windows=tuple((begin - first, end - first) for begin, end in facts.windows),
            pauses=tuple(Pause(begin - first, end - first) for begin, end in facts.pauses),
            other_waits_ns=tuple(end - first for end in facts.other_waits_ns),
            loops=facts.loops,
            turns=facts.turns,
            stacks=facts.stacks,
            samples=taken,
        )

    def _threads(self) -> list[Thread]:
        def number(value: object) -> int:
            return value if isinstance(value, int) else NONE

        threads = []
        for process, thread in self.threads:
            own = "" if isinstance(thread, int) else str(thread)[:MAX_NAME]
            threads.append(Thread(number(process), number(thread), self.thread_names.get((process, thread), own)))
        return threads

    def _drop_zero_times(self) -> None:
        """Drop the records at time 0, unless the recording begins there: such a record never got its time."""
        tables = (self.work, self.calls, self.syncs, self.ranges)
        latest = np.iinfo(np.int64).max
        starts = [table.rows["begin_ns"] for table in tables]
        first = min(int(start.min(where=start > 0, initial=latest)) for start in starts)
        if first <= LONGEST_ZERO_NS or first == latest:
            return
        for table, start in zip(tables, starts, strict=True):
            timed = np.flatnonzero(start > 0)
            self.unread[AT_ZERO] += len(start) - len(timed)
            if len(timed) < len(start):
                table.reorder(timed)
        self.unread = +self.unread  # unary plus drops the counts of 0

    def _sort_calls(self) -> CallFinder:
        """Sort the calls, drop those that are part of another one, and return a finder of calls by correlation.

        A call inside another one of its thread is part of it (a driver call below the runtime): the outer one counts
        once, and takes the place of the inner one.
        """
        calls = self.calls
        calls.sort_outer_first()
        count = calls.count
        outer = outermost(calls.rows)
        kept = outer == np.arange(count, dtype=np.int32)
        targets = (np.cumsum(kept, dtype=np.int32) - 1)[outer]
        del outer
        # The reordering below moves the rows within the same column.
        finder = CallFinder(calls.correlation[:count], calls.table["begin_ns"], targets)
        del targets
        if not kept.all():
            calls.reorder(np.flatnonzero(kept))
        return finder


def _name_memories(work: Table, names: tuple[str, ...]) -> None:
    """Set the memories of the copies whose name says them."""
    copies = np.flatnonzero((work["kind"] == Category.COPY) & (work["source"] == 0) & (work["target"] == 0))
    used, inverse = np.unique(work["name"][copies], return_inverse=True)
    memories = np.array([memories_of(names[name]) if name != NONE else (0, 0) for name in used.tolist()], np.int8)
    if len(used):
        work["source"][copies], work["target"][copies] = memories[inverse, 0], memories[inverse, 1]


def _number_nodes(work: Table, calls: Table, names: tuple[str, ...]) -> None:
    """Number the work of each replay of a graph that the recording does not number."""
    replays = np.array([name.startswith(("cudaGraphLaunch", "cuGraphLaunch")) for name in names], np.bool_)
    if not replays.any():
        return
    _find_bodies(work, np.append(np.append(replays, False)[calls["name"]], False))
    unnumbered = np.flatnonzero((work["call"] != NONE) & (work["node"] == NONE))
    name = calls["name"][work["call"][unnumbered]]
    chosen = unnumbered[(name != NONE) & replays[name]]
    chosen = chosen[np.argsort(work["call"][chosen], kind="stable")]
    call = work["call"][chosen]
    starts = np.flatnonzero(np.diff(call, prepend=NONE))
    work["node"][chosen] = np.arange(len(chosen)) - np.repeat(starts, np.diff(starts, append=len(chosen)))


def _find_bodies(work: Table, replays: npt.NDArray[np.bool_]) -> None:
    """Give the bodies of a graph's conditional nodes, which have numbers of their own, the replay that runs them: the
    last one that has begun on the GPU. The nodes of a replay whose call is lost are known from others."""
    lost, of_replays = (work["call"] == NONE) & (work["node"] != NONE), replays[work["call"]]
    lost &= ~np.isin(work["node"], work["node"][of_replays])
    for device in np.unique(work["device"][lost]).tolist():
        here = work["device"] == device
        last = np.maximum.accumulate(np.where(of_replays & here, np.arange(len(work)), NONE))[lost & here]
        work["call"][lost & here] = np.append(work["call"], NONE)[last]


def _resolution(tables: tuple[Table, ...]) -> int:
    """The step of the times in ns: 1000 in recordings of whole microseconds."""
    some = False
    for table in tables:
        for column in (table["begin_ns"], table["end_ns"]):
            for first in range(0, len(column), AT_ONCE):
                some = True
                if (column[first : first + AT_ONCE] % 1000).any():
                    return 1
    return 1000 if some else 1


def product(sizes: object) -> int:
    """The product of a grid's or block's three sizes; NONE if they are not positive integers."""
    if not isinstance(sizes, list) or not 0 < len(sizes) <= 3:
        return NONE
    if not all(isinstance(size, int) and 0 < size < 2**31 for size in sizes):
        return NONE
    return min(prod(sizes), 2**62)
