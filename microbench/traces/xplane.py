"""Reads what JAX and XLA recorded (an .xplane.pb file, also packed by gzip) into a Trace.

Such a file is one XSpace message in protobuf's wire format. The field numbers are those of xplane.proto in
https://github.com/openxla/xla (xla/tsl/profiler/protobuf); what the planes and values mean follows its
xplane_schema.cc and cupti_collector.cc. Nothing here recurses, and each byte is looked at a fixed number of times.
"""

from __future__ import annotations

import gzip
import mmap
import re
import tempfile
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from microbench.core.errors import UsageError
from microbench.traces.tables import LONGEST_NAME, CallFinder, Names, Numbers, Threads, joined, table_of, timed, whole
from microbench.traces.trace import (
    CALLS,
    NONE,
    RANGE_KINDS,
    RANGES,
    SYNC_KINDS,
    SYNCS,
    WORK,
    WORK_KINDS,
    RangeKind,
    SyncKind,
    Table,
    Trace,
    WorkKind,
    memory_place,
)

GZIP = b"\x1f\x8b"
LARGEST_BYTES = 2 << 30  # the largest message that protobuf reads
MOST_NAMES_OF_A_PLANE = 2_000_000
MOST_LINES = 100_000
MOST_ROWS = 8_000_000
MOST_REMEMBERED = 1 << 12  # texts about work that were read before
LONGEST_VARINT = 10
SIGN = 1 << 63
FIRST_UNIX_NS = 10**17  # a time in 1973; times since a recording's begin are smaller

# Field numbers of xplane.proto.
SPACE_PLANE, SPACE_WARNING = 1, 3
PLANE_NAME, PLANE_LINE, PLANE_EVENT_NAMES, PLANE_STAT_NAMES, PLANE_STATS = 2, 3, 4, 5, 6
LINE_ID, LINE_NAME, LINE_BEGIN_NS, LINE_EVENT = 1, 2, 3, 4
EVENT_NAME, EVENT_OFFSET_PS, EVENT_DURATION_PS, EVENT_STAT = 1, 2, 3, 4
STAT_NAME, STAT_UNSIGNED, STAT_SIGNED, STAT_TEXT, STAT_REFERENCE = 1, 3, 4, 5, 7
METADATA_NAME = 2

DEVICE = re.compile(r"/device:GPU:(\d{1,4})")
HOST_PLANES = ("/host:CPU", "/host:CUPTI", "/host:NVTX-CUPTI", "/host:python-tracer")
CUDA_LINE = "Host Threads/"
TASK = "Task Environment"
WANTED_STATS = {
    "correlation_id", "kernel_details", "memcpy_details", "memset_details", "cuda_graph_node_id", "cuda_graph_exec_id",
    "hlo_op", "hlo_module", "step_num",
}  # fmt: skip
VERSIONS = {"cuda_version": "CUDA", "cuda_runtime_version": "CUDA runtime", "cuda_driver_version": "CUDA driver"}
KERNEL_SHAPE = re.compile(r"grid:(\d{1,10}),(\d{1,10}),(\d{1,10}) block:(\d{1,4}),(\d{1,4}),(\d{1,4})")
COPY = re.compile(r"kind_src:(\w{1,30}) kind_dst:(\w{1,30}) size:(\d{1,18})")
COPY_SIZE = re.compile(r"size:(\d{1,18})")
MEMSET = re.compile(r"kind:(\w{1,30}) num_bytes:(\d{1,18})")
COPY_NAME = re.compile(r"Memcpy(\w)2(\w)")
LAUNCH = "cuLaunchKernel"
GRAPH_OF_CALL = re.compile(r" \(CudaGraph:\d+\)$")
DROPPED = re.compile(r"(\d{1,18}) events dropped because total (driver|device)")
SYNC_OF_NAME: dict[str, SyncKind] = {
    "cuEventSynchronize": "event", "cuStreamWaitEvent": "stream_wait_event", "cuStreamSynchronize": "stream",
    "cuCtxSynchronize": "context",
}  # fmt: skip
OVERHEAD_OF_NAME: dict[str, RangeKind] = {
    "BUFFER_FLUSH": "overhead", "INSTRUMENTATION": "overhead", "RESOURCE": "overhead", "<UNKNOWN>": "overhead",
    "COMPILER": "driver",
}  # fmt: skip
NOT_WORK = ("memalloc_details", "MemFree_details", "MemoryResidency_details")

Value = int | str
Bytes = bytes | mmap.mmap


def read(path: Path) -> Trace:
    """The Trace of an .xplane.pb file.

    Raises UsageError for a file that is not a profile, is damaged, or was recorded on another maker's GPU.
    """
    try:
        with ExitStack() as stack:
            return _Reader(path).trace(_contents(path, stack))
    except _Damaged as error:
        raise _refusal(path, str(error)) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _refusal(path, f"gzip cannot unpack it: {error}") from error
    except OSError as error:
        cause = f"{path} cannot be read: {error.strerror or error}"
        raise UsageError(cause, "check its name and permissions") from error


def _refusal(path: Path, cause: str) -> UsageError:
    next_step = "jax.profiler.trace(FOLDER) writes an .xplane.pb file"
    return UsageError(f"{path} is no usable XLA profile: {cause}", next_step)


class _Damaged(Exception):
    """The file is not what it claims to be; the text says in what."""


def _contents(path: Path, stack: ExitStack) -> mmap.mmap:
    """The file, or what gzip has packed into it, mapped into memory."""
    if not path.is_file():
        raise _Damaged("it is not a file")
    file: IO[bytes] = stack.enter_context(path.open("rb"))
    if file.read(2) == GZIP:
        file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        with gzip.open(path) as packed:
            while piece := packed.read(1 << 20):
                if file.tell() > LARGEST_BYTES:
                    raise _Damaged("it is larger than 2 GiB")
                file.write(piece)
        file.flush()
    size = file.seek(0, 2)
    if not 0 < size <= LARGEST_BYTES:
        raise _Damaged("it is empty" if not size else "it is larger than 2 GiB")
    return stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


# One field of a message: its number, and a value and NONE, or where its bytes begin and stop. A plain tuple: there are
# millions of them.
Field = tuple[int, int, int]


def _varint(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(at + LONGEST_VARINT, stop)):
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2 * SIGN - 1), place + 1
        shift += 7
    raise _Damaged("a number runs on without end")


def _fields(data: Bytes, at: int, stop: int) -> Iterator[Field]:
    """The fields of the message in these bytes. Most numbers are a single byte, and are read here."""
    while at < stop:
        key = data[at]
        at += 1
        if key >= 128:
            key, at = _varint(data, at - 1, stop)
        wire = key & 7
        if wire == 0 or wire == 2:
            if at >= stop:
                raise _Damaged("it is cut short, or no XSpace message")
            value = data[at]
            at += 1
            if value >= 128:
                value, at = _varint(data, at - 1, stop)
            if wire == 0:
                yield key >> 3, value, NONE
            elif value > stop - at:
                raise _Damaged("it is cut short, or no XSpace message")
            else:
                yield key >> 3, at, at + value
                at += value
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
            if at > stop:
                raise _Damaged("it is cut short, or no XSpace message")
        else:
            raise _Damaged("it is no XSpace message")


def _signed(value: int) -> int:
    return value - 2 * SIGN if value >= SIGN else value


def _text(data: Bytes, at: int, stop: int) -> str:
    return data[at : min(stop, at + 4 * LONGEST_NAME)].decode("utf-8", "replace")[:LONGEST_NAME] if stop > at else ""


class _Plane:
    """One plane: its name, the places of its lines, and the names of its events and values."""

    def __init__(self, data: mmap.mmap, at: int, stop: int) -> None:
        self.data, self.name = data, ""
        self.lines: list[tuple[int, int]] = []
        self.event_names: dict[int, str] = {}
        self.stat_names: dict[int, str] = {}
        self._stats: list[tuple[int, int]] = []
        for number, value, end in _fields(data, at, stop):
            if end == NONE:
                continue
            if number == PLANE_NAME:
                self.name = _text(data, value, end)
            elif number == PLANE_LINE:
                self.lines.append((value, end))
            elif number == PLANE_EVENT_NAMES:
                self._add_name(self.event_names, value, end)
            elif number == PLANE_STAT_NAMES:
                self._add_name(self.stat_names, value, end)
            elif number == PLANE_STATS and len(self._stats) < 1000:
                self._stats.append((value, end))
            if max(len(self.event_names), len(self.stat_names)) > MOST_NAMES_OF_A_PLANE or len(self.lines) > MOST_LINES:
                raise _Damaged("it has too many names or lines")

    def _add_name(self, names: dict[int, str], at: int, stop: int) -> None:
        """An entry of a map: 1 is the key, 2 the metadata with the name."""
        key, name = 0, ""
        for number, value, end in _fields(self.data, at, stop):
            if number == 1 and end == NONE:
                key = value
            elif number == 2 and end != NONE:
                for inner, begin, finish in _fields(self.data, value, end):
                    if inner == METADATA_NAME and finish != NONE:
                        name = _text(self.data, begin, finish)
        names[key] = name

    def stats(self) -> dict[str, Value]:
        """Values of the plane itself by name."""
        found = (self.stat(self.data, at, stop, self.stat_names) for at, stop in self._stats)
        return {name: value for name, value in found if name}

    def stat(self, data: Bytes, at: int, stop: int, wanted: Mapping[int, str]) -> tuple[str, Value]:
        """A value by its name, "" if it is not wanted or is neither an integer nor a text."""
        name, result = "", None
        for number, value, end in _fields(data, at, stop):
            if end == NONE:
                if number == STAT_NAME:
                    name = wanted.get(value, "")
                elif number == STAT_UNSIGNED:
                    result = value
                elif number == STAT_SIGNED:
                    result = _signed(value)
                elif number == STAT_REFERENCE:
                    return (name or "", self.stat_names.get(value, "")) if name else ("", 0)
            elif number == STAT_TEXT and name:
                return name, _text(data, value, end)
        return (name, result) if result is not None else ("", 0)


class _Line(NamedTuple):
    """One timeline: its number, name, time of its offset 0 and its events' bytes."""

    number: int
    name: str
    begin_ns: int
    data: bytes

    @classmethod
    def of(cls, data: mmap.mmap, at: int, stop: int) -> _Line:
        line = cls(0, "", 0, data[at:stop])
        for number, value, end in _fields(line.data, 0, stop - at):
            if number == LINE_ID and end == NONE:
                line = line._replace(number=_signed(value))
            elif number == LINE_NAME and end != NONE:
                line = line._replace(name=_text(line.data, value, end))
            elif number == LINE_BEGIN_NS and end == NONE:
                line = line._replace(begin_ns=_signed(value))
            elif number == LINE_EVENT and end != NONE and line.name:
                break
        return line


class _Columns:
    """Rows of integers while they grow."""

    def __init__(self, width: int) -> None:
        self.width, self.values = width, array("q")

    def add(self, *row: int) -> None:
        self.values.extend(row)

    def take(self) -> Numbers:
        numbers = np.frombuffer(self.values, np.int64).reshape(-1, self.width) if self.values else None
        return np.empty((0, self.width), np.int64) if numbers is None else numbers


class _Reader:
    """Fills the tables of one Trace from the planes of a space."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names, self.threads = Names(), Threads()
        self.unread: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.gpus: dict[int, str] = {}
        self.versions: dict[str, str] = {}
        self.start_ns: int | None = None
        self.rows = 0
        self.work = _Columns(13)
        self.calls = _Columns(5)
        self.ranges = _Columns(5)
        self.syncs = _Columns(4)

    def trace(self, data: mmap.mmap) -> Trace:
        planes = 0
        for number, value, stop in _fields(data, 0, len(data)):
            if number == SPACE_PLANE and stop != NONE:
                self.plane(_Plane(data, value, stop))
                planes += 1
            elif number == SPACE_WARNING and stop != NONE:
                for count, what in DROPPED.findall(_text(data, value, stop)):
                    self.lost[f"{what} events"] += int(count)
        if not planes:
            raise _Damaged("it has no plane")
        calls, keys = self.table(self.calls, "calls", CALLS, "name", "thread")
        finder = CallFinder(keys, calls["begin_ns"])
        ranges, _ = self.table(self.ranges, "ranges", RANGES, "name", "thread", "kind")
        shape = ("blocks", "threads", "bytes", "source", "target")
        work, keys = self.table(self.work, "work", WORK, "stream", "node", "name", "device", "kind", *shape)
        work["call"] = finder.calls(keys, work["begin_ns"])
        syncs, keys = self.table(self.syncs, "waits", SYNCS, "kind")
        syncs["call"] = finder.calls(keys, syncs["begin_ns"])
        first_ns = min((int(table["begin_ns"][0]) for table in (calls, ranges, work) if len(table)), default=0)
        return Trace(
            source=str(self.path),
            format="XLA profiler",
            work=work,
            calls=calls,
            ranges=ranges,
            syncs=syncs,
            names=tuple(self.names.all),
            threads=self.threads.all(),
            gpus=self.gpus,
            versions=self.versions,
            epoch_ns=0 if first_ns > FIRST_UNIX_NS else self.start_ns,
            lost={what: count for what, count in self.lost.items() if count > 0},
            unread={what: count for what, count in self.unread.items() if count > 0},
        )

    def plane(self, plane: _Plane) -> None:
        stats = plane.stats()
        for name, title in VERSIONS.items():
            if isinstance(version := stats.get(name), int) and 0 < version < 10**6:
                self.versions[title] = f"{version // 1000}.{version % 1000 // 10}"
        if device := DEVICE.fullmatch(plane.name):
            if stats.get("device_vendor") == "AMD":
                raise _Damaged("it was recorded on an AMD GPU, and microbench knows those of NVIDIA only")
            if isinstance(model := stats.get("gpu_device_name"), str):
                self.gpus[int(device[1])] = model[:100]
            for at, stop in plane.lines:
                self.device_line(plane, _Line.of(plane.data, at, stop), int(device[1]))
        elif plane.name in HOST_PLANES:
            for at, stop in plane.lines:
                self.host_line(plane, _Line.of(plane.data, at, stop))
        elif plane.name == TASK and isinstance(start := stats.get("profile_start_time"), int):
            self.start_ns = start if FIRST_UNIX_NS < start < SIGN else None

    def events(
        self, plane: _Plane, line: _Line, wanted: Mapping[int, str]
    ) -> Iterator[tuple[int, int, str, dict[str, Value]]]:
        """Begin and end in ns, name, and the wanted values of each event of a line."""
        data = line.data
        for number, at, stop in _fields(data, 0, len(data)):
            if number != LINE_EVENT or stop == NONE:
                continue
            name = offset_ps = duration_ps = 0
            stats: dict[str, Value] = {}
            for inner, value, end in _fields(data, at, stop):
                if end == NONE:
                    if inner == EVENT_NAME:
                        name = value
                    elif inner == EVENT_OFFSET_PS:
                        offset_ps = value
                    elif inner == EVENT_DURATION_PS:
                        duration_ps = value
                elif inner == EVENT_STAT and wanted:
                    what, found = plane.stat(data, value, end, wanted)
                    if what:
                        stats[what] = found
            begin_ps = _signed(offset_ps)
            begin_ns = line.begin_ns + begin_ps // 1000
            end_ns = line.begin_ns + (begin_ps + _signed(duration_ps)) // 1000
            self.rows += 1
            if self.rows > MOST_ROWS:
                self.unread["events beyond the limit"] += 1
            elif not -SIGN < begin_ns <= end_ns < SIGN:
                self.unread["events with impossible times"] += 1
            else:
                yield begin_ns, end_ns, plane.event_names.get(name, ""), stats

    def device_line(self, plane: _Plane, line: _Line, device: int) -> None:
        """Work of a stream. Lines of other names hold counters, or repeat the work by module, operator and step."""
        if line.name == "CUPTI overhead":
            thread = self.threads.place(0, 0)
            for begin_ns, end_ns, name, _ in self.events(plane, line, {}):
                place = self.names.place(name)
                self.ranges.add(
                    begin_ns, end_ns, place, thread, RANGE_KINDS.index(OVERHEAD_OF_NAME.get(name, "overhead"))
                )
            return
        if not line.name.startswith("Stream"):
            return
        wanted = {number: name.lower() for number, name in plane.stat_names.items() if name.lower() in WANTED_STATS}
        not_work = {number: "not work" for number, name in plane.stat_names.items() if name in NOT_WORK}
        stream = whole(np.array([line.number]))[0]
        for begin_ns, end_ns, name, stats in self.events(plane, line, wanted | not_work):
            correlation = _integer(stats.get("correlation_id"), 0)
            if sync := SYNC_OF_NAME.get(name):
                self.syncs.add(begin_ns, end_ns, SYNC_KINDS.index(sync), correlation)
                continue
            if "not work" in stats or name.startswith("UM_"):
                if name.startswith("UM_"):
                    self.unread["records of unified memory"] += 1
                continue
            kind, numbers, title = self.kind_of_work(name, stats)
            node = _integer(stats.get("cuda_graph_node_id"), NONE)
            self.work.add(begin_ns, end_ns, stream, node, title, device, WORK_KINDS.index(kind), *numbers, correlation)

    def kind_of_work(self, name: str, stats: Mapping[str, Value]) -> tuple[WorkKind, tuple[int, ...], int]:
        """What an event of a stream is; its blocks, threads, bytes, source and target; and the place of its name."""
        kind: WorkKind = "kernel"
        if isinstance(details := stats.get("memcpy_details"), str):
            kind = "copy"
        elif isinstance(details := stats.get("memset_details"), str):
            kind = "memset"
        elif "cuda_graph_exec_id" in stats or name.startswith("CudaGraphExec:"):
            kind = "graph"
        else:
            details = stats.get("kernel_details")
        text = details if isinstance(details, str) else ""
        operator, module = str(stats.get("hlo_op", "")), str(stats.get("hlo_module", ""))
        title = _work_name(kind, name, operator, module, text if kind != "kernel" else "")
        return kind, _details(kind, text), self.names.place(title)

    def host_line(self, plane: _Plane, line: _Line) -> None:
        """CUDA calls of a thread, or what its code did. Lines of one number are of one thread, in any plane.

        Older profiles have a line of their own for a thread's calls, newer ones have them among its code, those that
        launch by the name of the kernel. Only a call has the number of the work that it submits.
        """
        of_cuda = plane.name in ("/host:CUPTI", "/host:NVTX-CUPTI") or line.name.startswith(CUDA_LINE)
        thread = self.threads.place(0, line.number, "" if of_cuda else line.name)
        wanted = {number: name for number, name in plane.stat_names.items() if name in ("correlation_id", "step_num")}
        for begin_ns, end_ns, name, stats in self.events(plane, line, wanted):
            correlation = _integer(stats.get("correlation_id"), 0)
            if correlation or (of_cuda and name.startswith("cu")):
                name = GRAPH_OF_CALL.sub("", name) if name.startswith(("cu", "Mem")) else LAUNCH
                self.calls.add(begin_ns, end_ns, self.names.place(name), thread, correlation)
                continue
            kind: RangeKind = "operator"
            if of_cuda:
                kind = "annotation" if name.startswith("NVTX:") else OVERHEAD_OF_NAME.get(name, "operator")
                name = name.removeprefix("NVTX:")
            elif name.startswith("$"):
                kind, name = "python", name[1:]
            elif "step_num" in stats:
                kind, name = "annotation", f"{name}#{stats['step_num']}"
            self.ranges.add(begin_ns, end_ns, self.names.place(name or "(unnamed)"), thread, RANGE_KINDS.index(kind))

    def table(self, taken: _Columns, what: str, dtype: np.dtype[np.void], *names: str) -> tuple[Table, Numbers]:
        """The rows with times by time, with begin, end and these columns; and what the last column of each holds."""
        columns = taken.take()
        good = timed(columns[:, 0], columns[:, 1])
        self.unread[f"{what} without times"] += len(columns) - int(np.count_nonzero(good))
        columns = columns[good]
        named = {name: columns[:, place] for place, name in enumerate(("begin_ns", "end_ns", *names))}
        table, order = joined(dtype, [table_of(dtype, len(columns), **named)])
        return table, columns[:, -1] if order is None else columns[order, -1]


def _integer(value: Value | None, otherwise: int) -> int:
    return value if isinstance(value, int) and 0 <= value < SIGN else otherwise


@lru_cache(MOST_REMEMBERED)
def _details(kind: WorkKind, text: str) -> tuple[int, ...]:
    """Blocks, threads, bytes, source and target, as XLA's text about a piece of work gives them."""
    if kind == "kernel" and (shape := KERNEL_SHAPE.search(text)):
        x, y, z, *block = map(int, shape.groups())
        blocks, threads = x * y * z, block[0] * block[1] * block[2]
        return (blocks if blocks < SIGN else NONE, threads if threads < 1 << 31 else NONE, NONE, 0, 0)
    if kind == "copy":
        if copy := COPY.search(text):
            return (NONE, NONE, int(copy[3]), memory_place(copy[1]), memory_place(copy[2]))
        size = COPY_SIZE.search(text)
        return (NONE, NONE, int(size[1]) if size else NONE, 0, 0)
    if kind == "memset" and (memset := MEMSET.search(text)):
        return (NONE, NONE, int(memset[2]), 0, memory_place(memset[1]))
    return (NONE, NONE, NONE, 0, 0)


@lru_cache(MOST_REMEMBERED)
def _work_name(kind: WorkKind, name: str, operator: str, module: str, details: str) -> str:
    """A kernel's name with the operator that XLA compiled it from, a copy's as PyTorch's profiler writes it."""
    if kind == "kernel":
        named = name or "(unnamed)"
        return f"{named} ({operator} of {module})" if operator and operator != name and module else named
    if kind == "copy" and (way := COPY_NAME.match(name)) and (memories := COPY.search(details)):
        source, target = (word.replace("_", " ").title() for word in memories.groups()[:2])
        return f"Memcpy {way[1]}to{way[2]} ({source} -> {target})"
    if kind == "memset" and (memset := MEMSET.search(details)):
        return f"Memset ({memset[1].replace('_', ' ').title()})"
    return name.replace("CudaGraphExec:", "CUDA graph ") or "(unnamed)"
