"""Reads what Nsight Systems recorded, from the .sqlite file of ``nsys export --type sqlite``, into a Trace.

Columns differ between versions (schema 2 and 3 are known), so each table is asked which it has. Sources: the schema in
the exports themselves, and https://docs.nvidia.com/nsight-systems/nsys-exporter/exported_data.html.

An export also holds the environment variables and the command line of the program (META_DATA_CAPTURE and others).
SQLite itself is told to refuse everything but the tables below, so no statement of this module can read them.
"""

from __future__ import annotations

import re
import sqlite3
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np

from microbench.core.errors import UsageError
from microbench.traces.tables import (
    FURTHEST_NS,
    LONGEST_NAME,
    MOST_NAMES,
    CallFinder,
    Names,
    Numbers,
    Threads,
    joined,
    outermost,
    table_of,
    timed,
    whole,
)
from microbench.traces.trace import (
    CALLS,
    FAILED,
    MIGRATION,
    NONE,
    PERHAPS,
    RANGE_KINDS,
    RANGES,
    SYNC_KINDS,
    SYNCS,
    UNRECORDED,
    WORK,
    WORK_KINDS,
    SyncKind,
    Table,
    Trace,
    WorkKind,
    empty,
    memory_place,
)

CUPTI = "CUPTI_ACTIVITY_KIND_"
KERNELS, COPIES, MEMSETS, GRAPHS = CUPTI + "KERNEL", CUPTI + "MEMCPY", CUPTI + "MEMSET", CUPTI + "GRAPH_TRACE"
API, WAITS, EVENTS = CUPTI + "RUNTIME", CUPTI + "SYNCHRONIZATION", CUPTI + "CUDA_EVENT"
OVERHEADS = ("PROFILER_OVERHEAD", CUPTI + "OVERHEAD")
LIBRARIES = ("CUDNN_EVENTS", "CUBLAS_EVENTS")
MPI = ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
SYSTEM_CALLS, LEAST_NS = "OSRT_API", 10_000  # shorter ones are left out
NVTX, STRINGS, THREADS, GPUS = "NVTX_EVENTS", "StringIds", "ThreadNames", "TARGET_INFO_GPU"
EPOCH, DIAGNOSTICS = "TARGET_INFO_SESSION_START_TIME", "DIAGNOSTIC_EVENT"
EXPORTER, SYSTEM = "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"
MEMORY_KINDS, COPY_KINDS, SYNC_TYPES = "ENUM_CUDA_MEM_KIND", "ENUM_CUDA_MEMCPY_OPER", "ENUM_CUPTI_SYNC_TYPE"
TIMED = (KERNELS, COPIES, MEMSETS, GRAPHS, API, WAITS, *OVERHEADS, *LIBRARIES, *MPI, NVTX)
READ = {
    *TIMED, SYSTEM_CALLS, EVENTS, STRINGS, THREADS, GPUS, EPOCH, DIAGNOSTICS, EXPORTER, SYSTEM, MEMORY_KINDS,
    COPY_KINDS, SYNC_TYPES,
}  # fmt: skip
FUNCTIONS = {"ifnull", "typeof", "substr", "instr", "min", "max"}
VERSIONS = {
    EXPORTER: {"EXPORT_PRODUCT_VERSION": "Nsight Systems", "EXPORT_SCHEMA_VERSION": "schema"},
    SYSTEM: {"NvDriverVersion": "driver", "CudaDriverVersion": "CUDA driver"},
}
VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,4}")

MISSING = -(1 << 63)  # replaces NULL, and text where a number belongs
CHUNK_ROWS = 1 << 16
SMALLEST_ROW_BYTES = 8  # the least that a row takes in an SQLite file: pointer, size, number, header and columns
MOST_BYTES = 800 << 20  # of tables in memory; only the middle of a longer recording is read
ROW_BYTES = {API: 60, NVTX: 50} | dict.fromkeys(OVERHEADS + LIBRARIES + MPI, 50)  # in memory, with what sorting needs
WORK_ROW_BYTES = 120
LONGEST_VALUE_BYTES = 16 << 20
NO_STREAM = NO_EVENT = 0xFFFFFFFF
STREAM_WAIT = 2
USER_PREFETCH = 1  # the cause of a migration by cudaMemPrefetchAsync
MOST_CORRELATION = (1 << 40) - 1
MOST_PROCESSES = 1 << 16
UNNAMED = "(unnamed)"
# PyTorch's own ranges (torch.autograd.profiler.emit_nvtx) end in numbers that are unique to each: "aten::mm, seq = 3,
# op_id = 17". They are cut off after the comma.
RANGE_TEXT = (
    "CASE WHEN instr([text], ', seq = ') THEN substr([text], 1, instr([text], ', seq = '))"
    " WHEN instr([text], ', op_id = ') THEN substr([text], 1, instr([text], ', op_id = ')) ELSE [text] END"
)
Part = TypeVar("Part")

# The numbers of these kinds where an export does not explain them in a table of its own.
MEMORY_LABELS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
COPY_LABELS = (
    "Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array",
    "Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer", "Unified Host-to-Device",
    "Unified Device-to-Host", "Unified Device-to-Device",
)  # fmt: skip
SYNC_LABELS = ("Unknown", "Event sync", "Stream wait sync", "Stream sync", "Context sync")
SYNC_OF_LABEL: dict[str, SyncKind] = {
    "event": "event", "stream wait": "stream_wait_event", "stream": "stream", "context": "context",
}  # fmt: skip
RANGE_EVENTS = (59, 60, 70, 71)  # NvtxPushPopRange, NvtxStartEndRange, and both of an imported text file
# Types of overhead that are CUDA's own work within a call: compiling, loading modules and functions, a full queue.
DRIVER_OVERHEADS = (2, 6, 7, 8)
OPERATOR = RANGE_KINDS.index("operator")
API_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds)+$")  # cudaLaunchKernel_v7000, cuMemAlloc_v2
LOST = re.compile(
    r"not all (\w+) .*collected|(\w+) \w+ (?:were|was|have been|has been) (?:lost|dropped)", re.IGNORECASE
)

# What nsys says where it recorded no CUDA, and what it means.
NO_CUDA = (
    (
        re.compile(r"CUDA driver version \(([\d.]{1,9})\) is not supported"),
        "this Nsight Systems is too old for the driver, {}: take a newer one",
    ),
    (
        re.compile(r"CUDA profiling might have not been started"),
        "the program ended with an error before, or nsys could not record CUDA",
    ),
    (re.compile(r"No CUDA events collected"), "the process made no CUDA call, or ended with an error before one"),
)


def read(path: Path, begin_ns: int | None = None, end_ns: int | None = None) -> Trace:
    """The Trace of an export; of a part of it if the first or last ns after the start of the session is given.

    Of a recording that would take over MOST_BYTES of memory only the middle is read, and ``unread`` counts the other
    rows. Raises UsageError for a file that is not such an export, is damaged, or has views or triggers.
    """
    try:
        return _read(path, begin_ns, end_ns)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter from a message with bytes of a damaged schema
        code = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")
        cause = "it takes too long to read" if code == "SQLITE_INTERRUPT" else f"SQLite reports {code}"
        raise _refusal(path, cause) from error
    except OSError as error:
        next_step = "check its name and permissions"
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", next_step) from error


def _refusal(path: Path, cause: str) -> UsageError:
    next_step = "nsys export --type sqlite REPORT.nsys-rep"
    return UsageError(f"{path} is no usable export of Nsight Systems: {cause}", next_step)


def _read(path: Path, begin_ns: int | None, end_ns: int | None) -> Trace:
    with closing(_Export(path)) as export:
        export.prepare()
        known = [table for table in TIMED if table in export.tables]
        if not known:
            cause = f"{path} has none of the tables of CUDA or NVTX: nothing of the GPU was recorded"
            raise UsageError(cause, "record again by nsys profile -t cuda,nvtx the process that uses the GPU")
        window, unread = export.window(known, begin_ns, end_ns)
        return _Reader(export, window, unread).trace(path)


class _Export:
    """An open export: the columns of its tables, and their rows as arrays of integers."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size
        if not path.is_file():
            raise _refusal(path, "it is not a file")
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise _refusal(path, "it is not an SQLite database")
        self.rows_left = 1024 + self.size // SMALLEST_ROW_BYTES
        self.text_left = 4096 + self.size
        self._deadline = time.monotonic() + 30 + self.size / 1e6
        self._sql = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
        self.close = self._sql.close

    def prepare(self) -> None:
        """Set the bounds on what SQLite may read and for how long, and look up the tables and their columns."""
        self._sql.text_factory = bytes
        self._sql.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE_BYTES)
        self._sql.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._sql.set_progress_handler(lambda: time.monotonic() > self._deadline, 100_000)
        for setting in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON", "cache_size = -4096"):
            self._sql.execute(f"PRAGMA {setting}")
        self._sql.set_authorizer(_allowed)
        self.tables: dict[str, frozenset[str]] = {}
        for kind, name, page in self._sql.execute("SELECT type, name, rootpage FROM sqlite_master"):
            name = _text(name)
            if kind not in (b"table", b"index") or not page:  # a virtual table has no page
                raise _refusal(
                    self.path, "it has views, triggers or virtual tables, which Nsight Systems does not write"
                )
            if kind == b"table" and name in READ:
                self.tables[name] = frozenset()
        self._not_null: dict[tuple[str, str], bool] = {}
        for name in self.tables:
            columns = [(_text(row[1]), row[3]) for row in self._sql.execute(f"PRAGMA table_info([{name}])")]
            self.tables[name] = frozenset(column for column, _ in columns)
            self._not_null.update({(name, column): bool(not_null) for column, not_null in columns})

    def rows(self, table: str, columns: Sequence[str], where: str = "") -> Iterator[tuple[Any, ...]]:
        """Rows of a table; none if the export lacks the table or a column that ``where`` does not guard."""
        if table not in self.tables or not self.tables[table].issuperset(columns):
            return
        for row in self._sql.execute(f"SELECT {', '.join(f'[{name}]' for name in columns)} FROM [{table}] {where}"):
            self._count(1)
            yield row

    def numbers(self, table: str, wanted: Sequence[str], where: str = "", strict: bool = False) -> Iterator[Numbers]:
        """Integers of a table in pieces of shape (rows, columns), MISSING where the export has none.

        A column "a|b" is the first that there is, "a*b" their product. Raises _NotNumbers unless ``strict``.
        """
        if table not in self.tables:
            return
        columns = ", ".join(self._expression(table, name, strict) for name in wanted)
        values = chain.from_iterable(self._sql.execute(f"SELECT {columns} FROM [{table}] {where}"))
        while True:
            try:
                piece = _integers(islice(values, CHUNK_ROWS * len(wanted)))
            except (TypeError, ValueError, OverflowError):
                if strict:
                    raise _refusal(self.path, f"{table} has values that are not numbers") from None
                raise _NotNumbers from None
            if not len(piece):
                return
            self._count(len(piece) // len(wanted))
            yield piece.reshape(-1, len(wanted))

    def texts(
        self, table: str, wanted: Sequence[str], where: str, strict: bool
    ) -> Iterator[tuple[Numbers, tuple[object, ...]]]:
        """Like ``numbers``, with the column "text" beside them."""
        columns = [self._expression(table, name, strict) for name in wanted]
        text = RANGE_TEXT if "text" in self.tables[table] else "NULL"
        cursor = self._sql.execute(f"SELECT {', '.join((*columns, text))} FROM [{table}] {where}")
        while rows := list(islice(cursor, CHUNK_ROWS)):
            self._count(len(rows))
            *numbers, texts = zip(*rows, strict=True)
            try:
                piece = np.array([_integers(column) for column in numbers])
            except (TypeError, ValueError, OverflowError):
                raise _NotNumbers from None
            yield piece.T, texts

    def _expression(self, table: str, name: str, strict: bool) -> str:
        there = self.tables[table]
        name = next((one for one in name.split("|") if there.issuperset(one.split("*"))), "")
        if not name:
            return str(NONE)
        value = "*".join(f"[{factor}]" for factor in name.split("*"))
        if strict:
            return f"CASE typeof({value}) WHEN 'integer' THEN {value} ELSE {MISSING} END"
        sure = "*" not in name and self._not_null[table, name]
        return value if sure else f"ifnull({value}, {MISSING})"

    def string(self, number: int) -> str:
        """The string of this number in StringIds. Others are never looked at: they hold whole files and outputs."""
        if not self.tables.get(STRINGS, frozenset()) >= {"id", "value"}:
            return ""
        found = self._sql.execute(f"SELECT substr(value, 1, {LONGEST_NAME}) FROM StringIds WHERE id = ?", (number,))
        row = found.fetchone()
        text = _text(row[0]) if row else ""
        self.count_text(len(text))
        return text

    def count_text(self, characters: int) -> None:
        self.text_left -= characters
        if self.text_left < 0:
            raise _refusal(self.path, "it is damaged: more text than it has room for")

    def _count(self, rows: int) -> None:
        self.rows_left -= rows
        if self.rows_left < 0:
            raise _refusal(self.path, "it is damaged: more rows than it has room for")

    def window(self, known: Sequence[str], begin_ns: int | None, end_ns: int | None) -> tuple[str, int]:
        """The condition on the rows to be read, "" for all; about how many rows it leaves out of a long recording."""
        rows = {}
        for table in known:
            # Each of the two alone looks at one end of the table; both in one statement would read all of it.
            ends = (f"(SELECT {end}(rowid) FROM [{table}])" for end in ("min", "max"))
            first, last = self._sql.execute(f"SELECT {', '.join(ends)}").fetchone()
            rows[table] = min(last - first + 1, self.rows_left) if first is not None else 0
        needed = sum(ROW_BYTES.get(table, WORK_ROW_BYTES) * count for table, count in rows.items())
        unread = 0
        if begin_ns is None and end_ns is None and needed > MOST_BYTES:
            first_ns, last_ns = self._span(max(known, key=lambda table: (table == KERNELS, table == API, rows[table])))
            middle_ns, half_ns = (first_ns + last_ns) // 2, int((last_ns - first_ns) * MOST_BYTES / needed / 2)
            begin_ns, end_ns = middle_ns - half_ns, middle_ns + half_ns
            unread = int(sum(rows.values()) * (1 - MOST_BYTES / needed))
        if begin_ns is None and end_ns is None:
            return "", 0
        first_ns = -FURTHEST_NS if begin_ns is None else begin_ns
        return f"[start] >= {first_ns:d} AND [end] <= {FURTHEST_NS if end_ns is None else end_ns:d}", unread

    def _span(self, table: str) -> tuple[int, int]:
        first, last = self._sql.execute(f"SELECT min([start]), max([start]) FROM [{table}]").fetchone()
        if not (isinstance(first, int) and isinstance(last, int) and abs(first) < FURTHEST_NS > abs(last)):
            raise _refusal(self.path, f"{table} has values that are not times")
        return first, last


class _NotNumbers(Exception):
    """A column of integers holds something else; the rows must be read with the type of each value checked."""


def _integers(values: Iterable[int]) -> Numbers:
    """The values as 64-bit integers. Raises TypeError for others, where numpy would cut off decimals."""
    return np.asarray(array("q", values), np.int64)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _allowed(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    """SQLite's question before each statement: only what this module reads, and nothing through a view or trigger."""
    fine = (
        action == sqlite3.SQLITE_SELECT
        or (action == sqlite3.SQLITE_READ and first in READ | {"sqlite_master", "sqlite_schema"} and source is None)
        or (action == sqlite3.SQLITE_FUNCTION and second in FUNCTIONS)
        or (action == sqlite3.SQLITE_PRAGMA and first == "table_info")
    )
    return sqlite3.SQLITE_OK if fine else sqlite3.SQLITE_DENY


class _Reader:
    """Fills the tables of one Trace from an export."""

    def __init__(self, export: _Export, window: str, unread: int) -> None:
        self.export, self.window = export, window
        self.names, self.threads = Names(), Threads()
        self.unread = Counter({"rows outside of the middle that was read": unread})
        self._strings: dict[tuple[int, re.Pattern[str] | None], int] = {}
        self._texts: dict[object, int] = {}
        self._processes: dict[int, int] = {}
        self._callers = set[int]()  # threads that call CUDA

    def trace(self, path: Path) -> Trace:
        calls, finder = self.calls()
        work = self.work(finder)
        syncs = self.syncs(finder)
        ranges = self.ranges(calls)
        # Names of the threads that are in use already.
        used = {(thread.process, thread.number) for thread in self.threads.all()}
        for number, name in self.export.rows(THREADS, ("globalTid", "nameId")):
            if not (isinstance(number, int) and isinstance(name, int)):
                continue
            process, thread = number >> 24 & 0xFFFFFF, number & 0xFFFFFF
            if (process, thread) in used:
                self.threads.place(process, thread, self.export.string(name))
        return Trace(
            source=str(path),
            format="Nsight Systems",
            work=work,
            calls=calls,
            ranges=ranges,
            syncs=syncs,
            names=tuple(self.names.all),
            threads=self.threads.all(),
            gpus=self.gpus(),
            versions=self.versions(),
            epoch_ns=self.epoch_ns(),
            lost=self.lost(recorded=len(work) > 0),
            unread={what: count for what, count in self.unread.items() if count > 0},
        )

    def converted(
        self,
        table: str,
        wanted: Sequence[str],
        convert: Callable[[Numbers], Part],
        condition: str = "",
        read: Callable[[str, Sequence[str], str, bool], Iterator[Numbers]] | None = None,
    ) -> list[Part]:
        """Rows of one table that have times, lie in the window and meet the condition, in pieces; their first columns
        are start and end."""
        if not self.export.tables.get(table, frozenset()) >= {"start", "end"}:
            return []
        where = " AND ".join(filter(None, (condition, self.window)))
        where = f"WHERE {where}" if where else ""
        for strict in (False, True):
            parts, untimed = [], 0
            try:
                for piece in (read or self.export.numbers)(table, ("start", "end", *wanted), where, strict):
                    good = timed(piece[:, 0], piece[:, 1])
                    untimed += len(piece) - int(np.count_nonzero(good))
                    parts.append(convert(piece if good.all() else piece[good]))
            except _NotNumbers:
                continue
            self.unread[f"rows without times in {table}"] += untimed
            return parts
        raise AssertionError("a strict reading takes any value")

    def calls(self) -> tuple[Table, CallFinder]:
        """CUDA calls, and a finder of them by the keys of work. One inside another, like the driver's inside the
        runtime's, is a part of that."""

        def with_error(name: int, error: int) -> str:
            text = self.names.all[name]
            return f"{text}{FAILED}{error})" if "Launch" in text else text

        def convert(piece: Numbers) -> tuple[Table, Numbers]:
            self._callers.update(np.unique(piece[:, 2]).tolist())
            threads, names = self.thread_places(piece[:, 2]), self.string_places(piece[:, 4], API_VERSION)
            if (failed := piece[:, 5] > 0).any():
                names[failed] = self.named(np.column_stack([names, piece[:, 5]])[failed], with_error)
            return _table(CALLS, piece, thread=threads, name=names), self.keys(piece[:, 2], piece[:, 3])

        wanted = ("globalTid", "correlationId", "nameId", "returnValue")
        calls, keys = _with_keys(CALLS, self.converted(API, wanted, convert))
        order = np.lexsort((-calls["end_ns"], calls["begin_ns"]))
        calls, keys = calls[order], keys[order]
        outer = outermost(calls)
        kept = outer == np.arange(len(calls))
        targets = (np.cumsum(kept, dtype=np.int32) - 1)[outer]
        return calls[kept], CallFinder(keys, calls["begin_ns"][kept], targets)

    def work(self, finder: CallFinder) -> Table:
        parts: list[tuple[Table, Numbers]] = []
        common = ("globalPid", "correlationId", "deviceId", "streamId", "graphNodeId")

        kinds = self.labels(MEMORY_KINDS, MEMORY_LABELS)
        copy_labels = self.labels(COPY_KINDS, COPY_LABELS)
        memories = {number: memory_place(label) for number, label in kinds.items()}

        def made(kind: WorkKind, piece: Numbers, **columns: object) -> tuple[Table, Numbers]:
            stream = whole(np.where(piece[:, 5] == NO_STREAM, NONE, piece[:, 5]))
            of_all: dict[str, object] = {"kind": WORK_KINDS.index(kind), "source": 0, "target": 0, "stream": stream}
            of_all |= {"device": whole(piece[:, 4], 32766), "node": whole(piece[:, 6])}
            return _table(WORK, piece, **of_all | columns), self.keys(piece[:, 2], piece[:, 3])

        def kernels(piece: Numbers) -> tuple[Table, Numbers]:
            blocks, threads = whole(piece[:, 8]), whole(piece[:, 9], 1 << 30)
            return made("kernel", piece, name=self.string_places(piece[:, 7]), blocks=blocks, threads=threads)

        def copies(piece: Numbers) -> tuple[Table, Numbers]:
            memory = {name: _mapped(piece[:, place], memories) for name, place in (("source", 9), ("target", 10))}
            name = self.named(piece[:, 8:12], lambda copy, *more: _copy_name(copy_labels, kinds, copy, *more))
            return made("copy", piece, bytes=whole(piece[:, 7]), name=name, **memory)

        def memsets(piece: Numbers) -> tuple[Table, Numbers]:
            name = self.named(piece[:, 8:9], lambda kind: f"Memset ({kinds.get(kind, 'Unknown')})")
            return made("memset", piece, bytes=whole(piece[:, 7]), target=_mapped(piece[:, 8], memories), name=name)

        def graphs(piece: Numbers) -> tuple[Table, Numbers]:
            name = self.named(piece[:, 7:8], lambda number: f"CUDA graph {max(number, 0)}")
            return made("graph", piece, node=NONE, name=name)

        shape = ("gridX*gridY*gridZ", "blockX*blockY*blockZ")
        parts += self.converted(KERNELS, (*common, "demangledName|shortName", *shape), kernels)
        parts += self.converted(COPIES, (*common, "bytes", "copyKind", "srcKind", "dstKind", "migrationCause"), copies)
        parts += self.converted(MEMSETS, (*common, "bytes", "memKind"), memsets)
        parts += self.converted(GRAPHS, (*common, "graphExecId|graphId"), graphs)
        work, keys = _with_keys(WORK, parts)
        work["call"] = finder.calls(keys, work["begin_ns"])
        return work

    def syncs(self, finder: CallFinder) -> Table:
        """Waits; the stream and call of the event that one waited for, if records of events are in the export."""
        labels = self.labels(SYNC_TYPES, SYNC_LABELS)
        known = {number: SYNC_OF_LABEL.get(label.lower().removesuffix(" sync")) for number, label in labels.items()}
        kinds = {number: SYNC_KINDS.index(kind) for number, kind in known.items() if kind is not None}
        wanted = ("globalPid", "eventSyncId", "correlationId", "streamId")
        try:
            events = list(self.export.numbers(EVENTS, wanted))
        except _NotNumbers:
            events = list(self.export.numbers(EVENTS, wanted, strict=True))
        recorded = np.concatenate([np.empty((0, 4), np.int64), *events])
        without_time = np.zeros(len(recorded), np.int64)
        events_of = CallFinder(self.keys(recorded[:, 0], recorded[:, 1]), without_time)
        event_calls = finder.calls(self.keys(recorded[:, 0], recorded[:, 2]), without_time)

        def convert(piece: Numbers) -> tuple[Table, Numbers]:
            # Nsight Systems 2026.1 files a wait of the host for a stream as a stream's wait for no event.
            no_event = (piece[:, 5] == STREAM_WAIT) & (piece[:, 7] == NO_EVENT)
            kind = np.where(no_event, SYNC_KINDS.index("stream"), _mapped(piece[:, 5], kinds, NONE))
            self.unread[f"rows of an unknown type in {WAITS}"] += int(np.count_nonzero(kind == NONE))
            piece, kind = piece[kind != NONE], kind[kind != NONE]
            stream = whole(np.where(piece[:, 4] == NO_STREAM, NONE, piece[:, 4]))
            own, other = (
                np.where(kind == SYNC_KINDS.index(one), stream, NONE) for one in ("stream_wait_event", "stream")
            )
            table = _table(SYNCS, piece, kind=kind, stream=own, on_stream=other)
            if len(recorded):
                event = events_of.calls(self.keys(piece[:, 2], piece[:, 6]), piece[:, 0])
                found = event != NONE
                table["on_stream"][found] = whole(recorded[event[found], 3])
                table["on_call"][found] = event_calls[event[found]]
            return table, self.keys(piece[:, 2], piece[:, 3])

        waits = ("globalPid", "correlationId", "streamId", "syncType|deprecatedSyncType", "eventSyncId", "eventId")
        syncs, keys = _with_keys(SYNCS, self.converted(WAITS, waits, convert))
        syncs["call"] = finder.calls(keys, syncs["begin_ns"])
        return syncs

    def ranges(self, calls: Table) -> Table:
        def named(piece: Numbers) -> Table:
            return _table(RANGES, piece, thread=self.thread_places(piece[:, 2]), name=piece[:, 4], kind=piece[:, 5])

        def waiting(piece: Numbers) -> Table:
            """What threads that call CUDA do in the C library between their CUDA calls."""
            piece = piece[np.isin(piece[:, 2], list(self._callers))]
            threads, outside = self.thread_places(piece[:, 2]), np.ones(len(piece), bool)
            for thread in np.unique(threads[outside]):
                own, of = calls[calls["thread"] == thread], threads == thread
                ended = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(own["end_ns"]))
                outside[of] &= piece[of, 0] >= ended[np.searchsorted(own["begin_ns"], piece[of, 0], "right")]
            names = self.named(piece[outside, 3:4], lambda name: f"{self.export.string(name)} (libc)")
            return _table(RANGES, piece[outside], thread=threads[outside], name=names, kind=OPERATOR)

        types = "eventType" in self.export.tables.get(NVTX, frozenset())
        condition = f"[eventType] IN {RANGE_EVENTS}" if types else ""
        parts = self.converted(NVTX, ("globalTid", "textId"), named, condition, self.texts)
        for table in (*OVERHEADS, *LIBRARIES, *MPI):

            def convert(piece: Numbers, table: str = table) -> Table:
                kind: object = OPERATOR
                if table in OVERHEADS:
                    of_driver = np.isin(piece[:, 4], DRIVER_OVERHEADS)
                    kind = np.where(of_driver, RANGE_KINDS.index("driver"), RANGE_KINDS.index("overhead"))
                threads, names = self.thread_places(piece[:, 2]), self.string_places(piece[:, 3], API_VERSION)
                return _table(RANGES, piece, thread=threads, name=names, kind=kind)

            parts += self.converted(table, ("globalTid", "nameId|textId", "overheadType"), convert)
        parts += self.converted(SYSTEM_CALLS, ("globalTid", "nameId"), waiting, f"[end] - [start] >= {LEAST_NS}")
        return joined(RANGES, parts or [empty(RANGES)])[0]

    def texts(self, table: str, wanted: Sequence[str], where: str, strict: bool) -> Iterator[Numbers]:
        """Numbers of ranges, and beside them the place and the kind of their names: by their text, by the number of a
        registered string (the last of ``wanted``) if they have none."""
        known = self._texts
        for numbers, texts in self.export.texts(table, wanted, where, strict):
            if len(known) > MOST_NAMES:
                known.clear()
            for text in set(texts).difference(known):
                written = _text(text)
                self.export.count_text(min(len(written), LONGEST_NAME))
                place = self.names.place(written.removesuffix(",") or UNNAMED) if isinstance(text, bytes) else NONE
                known[text] = place
            places = np.fromiter(map(known.__getitem__, texts), np.int64, len(texts))
            operators = np.fromiter((isinstance(one, bytes) and one.endswith(b",") for one in texts), bool, len(texts))
            kinds = np.where(operators, RANGE_KINDS.index("operator"), RANGE_KINDS.index("annotation"))
            names = np.where(places == NONE, self.string_places(numbers[:, -1]), places)
            yield np.column_stack([numbers, names, kinds])

    def keys(self, global_ids: Numbers, correlations: Numbers) -> Numbers:
        """One number for process and correlation id, which is unique in its process only; NONE if there is none."""
        processes, inverse = np.unique(global_ids >> 24, return_inverse=True)
        alone = len(self._processes) == 1
        places = []
        for process in processes.tolist():
            if len(self._processes) < MOST_PROCESSES and not (alone and process < 0):
                self._processes.setdefault(process, len(self._processes))
            places.append(0 if alone and process < 0 else self._processes.get(process, MOST_PROCESSES))
        place = np.array(places, np.int64)[inverse]
        known = (correlations > 0) & (correlations <= MOST_CORRELATION) & (place < MOST_PROCESSES)
        return np.where(known, place << 40 | correlations, NONE)

    def thread_places(self, global_ids: Numbers) -> Numbers:
        """Places of threads: a serialized number has the process in bits 24 to 47 and the thread's own number below."""
        numbers, inverse = np.unique(np.maximum(global_ids, 0), return_inverse=True)
        places = [self.threads.place(number >> 24 & 0xFFFFFF, number & 0xFFFFFF) for number in numbers.tolist()]
        return np.array(places, np.int64)[inverse]

    def string_places(self, numbers: Numbers, without: re.Pattern[str] | None = None) -> Numbers:
        """Places of the names with these numbers in StringIds, cut where a pattern matches."""
        different, inverse = np.unique(numbers, return_inverse=True)
        places = []
        if len(self._strings) > 2 * MOST_NAMES:
            self._strings.clear()
        for number in different.tolist():
            place = self._strings.get((number, without))
            if place is None:
                text = self.export.string(number) if number >= 0 else ""
                place = self.names.place((without.sub("", text) if without else text) or UNNAMED)
                self._strings[number, without] = place
            places.append(place)
        return np.array(places, np.int64)[inverse]

    def named(self, columns: Numbers, name: Callable[..., str]) -> Numbers:
        """Places of the names that follow from the numbers of some columns."""
        different, inverse = np.unique(columns, axis=0, return_inverse=True)
        places = [self.names.place(name(*row)) for row in different.tolist()]
        return np.array(places, np.int64)[inverse.reshape(-1)]

    def labels(self, table: str, otherwise: Sequence[str]) -> Mapping[int, str]:
        """What the numbers of a kind mean, from the export's own table or else as they are known."""
        rows = islice(self.export.rows(table, ("id", "label")), 100)
        own = {number: _text(label)[:100] for number, label in rows if isinstance(number, int)}
        return own or dict(enumerate(otherwise))

    def gpus(self) -> dict[int, str]:
        number = "id" if "id" in self.export.tables.get(GPUS, ()) else "deviceId"  # before Nsight Systems 2021
        rows = islice(self.export.rows(GPUS, (number, "name")), 1000)
        return {device: _text(name)[:100] for device, name in rows if isinstance(device, int)}

    def versions(self) -> dict[str, str]:
        """Versions of the recorder and the driver. Other rows of these tables are not asked for."""
        found = {}
        for table, names in VERSIONS.items():
            where = f"WHERE [name] IN ({', '.join(map(repr, names))})"
            for name, value in islice(self.export.rows(table, ("name", "value"), where), 10):
                version = _text(value)
                if VERSION.fullmatch(version):
                    whole_number = int(version) if version.isdigit() else 0
                    plain = f"{whole_number // 1000}.{whole_number % 1000 // 10}" if whole_number >= 1000 else version
                    found[names[_text(name)]] = plain
        return found

    def epoch_ns(self) -> int | None:
        times = [time for (time,) in islice(self.export.rows(EPOCH, ("utcEpochNs",)), 1)]
        return next((time for time in times if isinstance(time, int) and 0 < time < FURTHEST_NS), None)

    def lost(self, *, recorded: bool) -> dict[str, int]:
        """Warnings of lost records about processes of the trace, by what was lost; without work ``recorded``, why there
        is none. Their texts are not kept."""
        lost: Counter[str] = Counter()
        said: dict[int, re.Match[str]] = {}
        for text, process in islice(self.export.rows(DIAGNOSTICS, ("text", "globalPid")), 100_000):
            match = LOST.search(_text(text)[:1000])
            if match and not (isinstance(process, int) and process >> 24 not in self._processes):
                what = (match[1] or match[2]).upper()
                kind = f"{what} events" if what in ("CUDA", "NVTX", "CUPTI", "OS") else "events"
                lost[kind + PERHAPS if match[1] else kind] += 1
            said |= {
                place: found for place, (pattern, _) in enumerate(NO_CUDA) if (found := pattern.search(_text(text)))
            }
        if not recorded and said and max(said) == len(NO_CUDA) - 1:  # the last one stands in each export without CUDA
            lost[f"{UNRECORDED}: {NO_CUDA[min(said)][1].format(*said[min(said)].groups())}"] += 1
        return dict(lost)


def _table(dtype: np.dtype[np.void], piece: Numbers, **columns: object) -> Table:
    """Rows that begin and end as the piece says."""
    return table_of(dtype, len(piece), begin_ns=piece[:, 0], end_ns=piece[:, 1], **columns)


def _with_keys(dtype: np.dtype[np.void], parts: Sequence[tuple[Table, Numbers]]) -> tuple[Table, Numbers]:
    table, order = joined(dtype, [part for part, _ in parts] or [empty(dtype)])
    keys = np.concatenate([np.empty(0, np.int64), *(keys for _, keys in parts)])
    return table, keys if order is None else keys[order]


def _mapped(numbers: Numbers, meanings: Mapping[int, int], otherwise: int = 0) -> Numbers:
    result = np.full(len(numbers), otherwise, np.int64)
    for number, meaning in meanings.items():
        result[numbers == number] = meaning
    return result


def _copy_name(
    copies: Mapping[int, str], memories: Mapping[int, str], copy: int, source: int, target: int, cause: int
) -> str:
    """The name that PyTorch's profiler gives the same copy: "Memcpy HtoD (Pageable -> Device)"."""
    whole_name = copies.get(copy, "Unknown")
    short = whole_name.replace("Unified ", "").replace("-to-", "to")
    short = "".join(part[0] if part else "" for part in short.partition("to")[::2])
    way = f"{short[0]}to{short[1]}" if len(short) == 2 else "unknown"
    managed = MIGRATION if whole_name.startswith("Unified") else ""
    managed += "prefetched " if managed and cause == USER_PREFETCH else ""
    return f"{managed}Memcpy {way} ({memories.get(source, 'Unknown')} -> {memories.get(target, 'Unknown')})"
