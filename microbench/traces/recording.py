"""Reads a recording of `microbench watch` into a Trace; microbench/recorder/cells.py says what is in the file.

The file is read once, in pieces. Of a long recording the rows in the middle are kept, and the others are counted.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.errors import UsageError
from microbench.core.units import plain
from microbench.recorder import cells
from microbench.traces.collector import MAX_NAME, MAX_TIME_NS, NO_ROW, Category, Collector, Facts, Field, Integers
from microbench.traces.samples import Lines, counted, filled, in_order, lines, within
from microbench.traces.stream import open_trace
from microbench.traces.trace import (
    AUTOGRAD,
    BACKWARD_OF,
    MAIN_AT,
    NONE,
    STACKS,
    TURNS,
    Loop,
    Pause,
    Processor,
    Samples,
    Table,
    Trace,
    memory_place,
)

MOST_ROWS = 4_000_000  # that are kept
AT_ONCE = 1 << 16  # cells
MOST_TEXTS = 200_000
MOST_FACT = 200  # characters
BEGUN = re.compile(r"(?:.*/)?threading\.py (?:Thread\.)?_bootstrap")
MOST_SAMPLES = 1 << 40  # in a row
# Functions in which a thread waits for others.
IDLE = re.compile(r"(?:acquire|select|poll|accept) at |(?:^|/)(?:threading|queue|selectors|socketserver)\.py ")
MOST_SAMPLED = 64  # threads whose samples become ranges
MOST_DEEP = 64  # functions of a stack that are kept: the outermost ones and the innermost
UNKNOWN_32 = 0xFFFFFFFF  # of a stream or an event
SAME_CLOCK_NS = 10**9
ROW = np.dtype(list(cells.ROW))

CATEGORIES = {
    cells.KERNEL: Category.KERNEL, cells.MEMCPY: Category.COPY, cells.PEER_MEMCPY: Category.COPY,
    cells.MEMSET: Category.MEMSET, cells.RUNTIME: Category.RUNTIME, cells.DRIVER: Category.DRIVER,
    cells.SYNC: Category.SYNC, cells.OVERHEAD: Category.OVERHEAD,
}  # fmt: skip
APIS = {cells.RUNTIME: "runtime", cells.DRIVER: "driver"}
# The numbers of CUPTI's enumerations (cupti_activity.h) in the words of PyTorch's profiler.
MEMORY_NAMES = ("Unknown", "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
COPY_WAYS = ("unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
STREAM_WAIT_EVENT = 2
SYNC_NAMES = {1: "Event Sync", STREAM_WAIT_EVENT: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
OVERHEAD_NAMES = {
    1: "Driver compiler", 1 << 16: "Buffer flush", 2 << 16: "Instrumentation", 3 << 16: "Resource",
    4 << 16: "Module loading", 5 << 16: "Lazy function loading", 6 << 16: "Command buffer full",
    7 << 16: "Buffer request", 8 << 16: "Managed memory",
}  # fmt: skip
DRIVERS_OWN = (1, 4 << 16, 5 << 16, 6 << 16)  # is CUDA's own work and not the recorder's
API_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds)+$")  # cudaLaunchKernel_v7000, cuMemAlloc_v2
MANGLED = re.compile(r"_Z(N[KVrRO]*)?(?=\d)")
PART_OF_NAME = re.compile(r"(\d{1,4})(?=[A-Za-z_])")
GPU_NUMBER = re.compile(r"[0-9]{1,4}")
WINDOW = re.compile(r"([0-9]{1,19})-([0-9]{0,19})")
TIME = re.compile(r"[0-9]{1,19}")
SETTLING_NS = 100_000_000  # in which the recorder still finishes its window, where it does not say when it has
UNNAMED = "(unnamed)"
TEXTS = (cells.FACT, cells.NAME, cells.LINE, cells.LOOP, cells.FRAME)
FRAME = re.compile(rf"(\d{{1,9}}) ({cells.OWN})?(.+)", re.DOTALL)
EXACT = {
    cells.COLLECTED: "Python's garbage collection", cells.ABSENT: "waiting for a processor",
    cells.LOCKED: "waiting for Python's lock",
}  # fmt: skip
CALLERS = ("torch", "jax", "jaxlib")  # packages that call CUDA for the others
PYTHON_LIBRARY = re.compile(r"python3\.\d+$|lib-dynload$|<")
LINE_NUMBER = re.compile(r":\d+(?= [^ ]*$)")  # of a place: module.py:1747 Module.__call__
FIRST_CELLS = 1 << 12  # of a file; the names of all calls are among them
LAST_CELLS = 1 << 20  # of a growing file, in which texts are looked for; few are written between two windows


def read(path: Path) -> Trace:
    """Read a recording. Raises UsageError for one of a newer format."""
    with open_trace(path) as stream:
        _check_header(path.name, stream.read(cells.CELL_BYTES))
        size = _unpacked_size(path) if stream.compressed else path.stat().st_size
        reader = _Reader(plain(path.name), max(size // cells.CELL_BYTES - 1, 0))
        while data := stream.read(AT_ONCE * cells.CELL_BYTES):
            reader.take(np.frombuffer(data, ROW, len(data) // cells.CELL_BYTES))
        return reader.finish()


class Growing:
    """A recording that a running program still writes: what was recorded last."""

    def __init__(self, path: Path) -> None:
        self._path, self._name = path, plain(path.name)
        self._texts = _Texts()
        self._read = 1  # cells
        self._last = np.empty(0, ROW)

    def new_cells(self) -> int:
        """How many cells nobody has read yet."""
        return self._path.stat().st_size // cells.CELL_BYTES - self._read

    def newest(self, most: int, longest_ns: int) -> Trace:
        """The last ``most`` rows of calls, waits and work at most, none older than ``longest_ns``. If there are more
        than LAST_CELLS new cells, some are never read, and kernels whose names are among them have none.
        """
        new = self.new_cells()
        if self._read == 1:
            self._take(1, min(new, FIRST_CELLS))
        skipped = max(new - most, 0)
        self._take(self._read + max(new - LAST_CELLS, 0), max(min(skipped, LAST_CELLS - most), 0))
        kept = self._last if new <= most else self._last[:0]
        rows = np.concatenate([kept, self._take(self._read + skipped, min(new, most))])
        self._read += new
        if len(rows):
            begins_ns = [begin_ns for begin_ns, _ in self._windows()] or [0]
            rows = rows[rows["end_ns"] >= max(int(rows["end_ns"].max()) - longest_ns, *begins_ns)]
        self._last = rows[-most:]
        reader = _Reader(self._name, len(self._last), self._texts)
        reader.take(self._last)
        return reader.finish()

    @property
    def between_windows(self) -> bool:
        """Whether a window has ended and the next one has not begun."""
        return any(end_ns < MAX_TIME_NS for _, end_ns in self._windows()[-1:])

    def _windows(self) -> tuple[tuple[int, int], ...]:
        return _windows(self._texts)

    def _take(self, first: int, count: int) -> Table:
        """Read cells, take the texts among them, and give the rows that become calls, waits or work."""
        found = np.fromfile(self._path, ROW, count, offset=first * cells.CELL_BYTES)
        _take_texts(self._texts, found)
        return found[np.isin(found["kind"], [kind for kind in CATEGORIES if kind != cells.OVERHEAD])]


def _unpacked_size(path: Path) -> int:
    with open_trace(path) as stream:
        return sum(iter(lambda: len(stream.read(AT_ONCE * cells.CELL_BYTES)), 0))


def _check_header(name: str, head: bytes) -> None:
    magic, version, cell_bytes = cells.HEADER.unpack(head.ljust(cells.CELL_BYTES, b"\0"))
    if magic != cells.MAGIC or version == 0 or len(head) < cells.CELL_BYTES:
        raise UsageError(f"{plain(name)} is no recording of microbench watch", "give a file that it has written")
    if version > cells.VERSION or cell_bytes != cells.CELL_BYTES:
        cause = f"{plain(name)} has format {version} of a newer microbench; this one reads format {cells.VERSION}"
        raise UsageError(cause, "install the newest microbench")


def unmangled(name: str) -> str:
    """The namespaces and the name within a mangled C++ name, without the arguments of templates and calls."""
    start = MANGLED.match(name)
    parts: list[str] = []
    at = start.end() if start else 0
    while start and (length := PART_OF_NAME.match(name, at)) and (start[1] or not parts):
        at = length.end() + int(length[1])
        parts.append(name[length.end() : at])
    return "::".join("(anonymous)" if part.startswith("_GLOBAL__N_") else part for part in parts) or name


class Stack(NamedTuple):
    """The innermost line of the program's own code, and the functions of packages called from there, the outermost
    first; without code of its own the innermost line of all, and all functions. Then the innermost line of a package
    called from there, other than PyTorch, JAX and Python's library; "" without one."""

    line: str
    functions: tuple[str, ...] = ()
    package: str = ""


def _in_package(functions: Sequence[str]) -> str:
    """The package whose function is the innermost one beside those of Python's library: ", in joblib"."""
    parts = (name.partition("/")[0] for name in reversed(functions) if "/" in name)
    return next((f", in {one}" for one in parts if not _is_pythons_own(one)), "")


def _is_pythons_own(package: str) -> bool:
    """Whether the first part of a path is of Python's library."""
    return package in sys.stdlib_module_names or PYTHON_LIBRARY.match(package) is not None


class _Texts:
    """The texts of a file: facts, and names of kernels and lines of Python by their key."""

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}
        self.kernels: dict[int, str] = {}
        self.lines: dict[int, Stack] = {}  # by the key of the innermost frame
        self._own: set[int] = set()  # frames of the program's own code and those that it called
        self.begun: set[int] = set()  # frames of threads that Python's threading has begun
        self.callers: dict[str, frozenset[str]] = {}
        self.loops: dict[int, Loop] = {}
        self.left_out = 0
        self._open = (0, 0, 0)  # kind, key and length of the text that goes on
        self._content = bytearray()
        self._readable: dict[str, str] = {}  # names by mangled ones
        self._alike: Counter[str] = Counter()  # kernels of the same readable name

    def take(self, kind: int, part: int, length: int, key: int, content: bytes) -> None:
        """Take a part. A text that lacks one is left out."""
        if part == 0:
            self._open, self._content = (kind, key, length), bytearray()
        if self._open != (kind, key, length) or part * cells.TEXT_BYTES != len(self._content):
            return
        self._content += content
        if len(self._content) < min(length, cells.LONGEST_TEXT):
            return
        text = self._content[:length].decode("utf-8", "replace")
        if len(self.facts) + len(self.kernels) + len(self.lines) + len(self.loops) >= MOST_TEXTS:
            self.left_out += 1
        elif kind == cells.NAME:
            self.kernels[key] = self._kernel(text)
        elif kind == cells.LINE:
            self.lines[key] = Stack(plain(text, MAX_NAME))
        elif kind == cells.FRAME and (frame := FRAME.fullmatch(text)):
            self._frame(key, int(frame[1]), frame[2] is not None, plain(frame[3], MAX_NAME))
        elif kind == cells.LOOP:
            own, beneath = text.startswith(cells.OWN), text.startswith(cells.BENEATH)
            place = text.removeprefix(cells.OWN if own else cells.BENEATH)
            self.loops[key] = Loop(plain(place, MAX_NAME), own, beneath)
        else:
            name, _, value = text.partition("=")
            self.facts[name[:MOST_FACT]] = plain(value[:MOST_FACT])

    def _frame(self, key: int, caller: int, own: bool, place: str) -> None:
        """Take a frame: the line is the innermost one of the program's own code, and the function is of a package."""
        line, functions, package = self.lines.get(caller, Stack(""))
        by_own, name = caller in self._own, LINE_NUMBER.sub("", place)
        if own or by_own:
            self._own.add(key)
        if caller in self.begun or BEGUN.fullmatch(name):
            self.begun.add(key)
        if own:
            self.callers[place] = self.callers.get(place, frozenset()) | ({line} if by_own else set())
        if name == place:  # a function in C, which has no lines
            name, place = f"{place} at {line}{_in_package(functions) if by_own else ''}", line
        called = () if own else (*functions[: MOST_DEEP - 1], name)
        first = place.partition("/")[0].partition(".py:")[0]
        if own or not by_own:
            package = ""
        elif place != line and first not in CALLERS and not _is_pythons_own(first):
            package = place
        self.lines[key] = Stack(line if by_own and not own else place, called, package)

    def _kernel(self, mangled: str) -> str:
        """The readable name of a kernel, with a number if others have the same."""
        if mangled not in self._readable:
            short = plain(unmangled(mangled), MAX_NAME)
            self._alike[short] += 1
            self._readable[mangled] = f"{short} ({self._alike[short]})" if self._alike[short] > 1 else short
        return self._readable[mangled]

    def number(self, name: str) -> int:
        """A fact that is a number; NONE without it."""
        text = self.facts.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else NONE

    def starting(self, beginning: str) -> dict[str, str]:
        """The facts whose names begin so, by the rest of their names."""
        return {name.removeprefix(beginning): value for name, value in self.facts.items() if name.startswith(beginning)}

    def numbered(self, beginning: str) -> dict[int, str]:
        """The facts of GPUs whose names begin so, by the number of the GPU."""
        facts = self.starting(beginning)
        return {int(number): value for number, value in facts.items() if GPU_NUMBER.fullmatch(number)}


class _Reader:
    """Collects the cells of a file, of which there are ``count``, in their order."""

    def __init__(self, name: str, count: int, texts: _Texts | None = None) -> None:
        self._name = name
        self._collector = Collector(
            min(3 * count, MOST_ROWS)
        )  # samples make two ranges, and several threads may have them
        self._first = max(count - MOST_ROWS, 0) // 2  # of the cells whose rows are kept
        self._taken = 0
        self._texts = texts or _Texts()
        self._kept: dict[int, list[Table]] = {
            kind: [] for kind in (cells.SAMPLES, cells.TURN, cells.CALLED_FROM, *EXACT)
        }
        self._syncs: list[Integers] = []
        self._events: list[Integers] = []  # columns: the number of an event, the correlation of its record, its stream

    def take(self, chunk: Table) -> None:
        """Take the next cells."""
        _take_texts(self._texts, chunk)
        begin, end = (max(place - self._taken, 0) for place in (self._first, self._first + MOST_ROWS))
        kept = chunk[begin:end]
        self._taken += len(chunk)
        self._leave_out("rows outside of the middle that was read", len(chunk) - len(kept))
        for kind in np.unique(kept["kind"]).tolist():
            rows = kept[kept["kind"] == kind]
            if kind in CATEGORIES:
                self._rows(kind, rows)
            elif kind == cells.CUDA_EVENT:
                columns = [rows[column].astype(np.int64) for column in ("size", "correlation", "stream")]
                self._events.append(np.stack(columns, axis=1))
            elif kind in self._kept:
                self._kept[kind].append(rows)
            elif kind not in TEXTS:
                self._leave_out("cells of an unknown kind", len(rows))

    def _leave_out(self, what: str, count: int) -> None:
        if count:
            self._collector.unread[what] += count

    def _rows(self, kind: int, rows: Table) -> None:
        """Take rows of one kind that becomes work, calls, waits or ranges."""
        fields = np.tile(np.array(NO_ROW, np.int64), (len(rows), 1))
        begin, end = rows["begin_ns"], rows["end_ns"]
        possible = (begin >= 0) & (begin <= end) & (end <= MAX_TIME_NS)
        fields[:, Field.CATEGORY] = CATEGORIES[kind]
        fields[:, Field.BEGIN_NS] = np.where(possible, begin, MAX_TIME_NS + 1)  # which the collector counts
        fields[:, Field.DURATION_NS] = np.where(possible, end - begin, 0)
        fields[:, Field.CORRELATION] = rows["correlation"]
        if kind in APIS:
            fields[:, Field.NAME] = self._named(rows["detail"], lambda number: self._call(kind, number))
            fields[:, Field.THREAD] = self._threads(rows)
        elif kind == cells.OVERHEAD:
            fields[:, Field.NAME] = self._named(rows["flags"], OVERHEAD_NAMES.get)
            fields[:, Field.THREAD] = self._threads(rows)
            fields[np.isin(rows["flags"], DRIVERS_OWN), Field.CATEGORY] = Category.DRIVERS_OWN
        elif kind == cells.SYNC:
            fields[:, Field.NAME] = self._named(rows["detail"], SYNC_NAMES.get)
            fields[:, Field.STREAM] = _known(rows["stream"])
            fields[:, Field.ON_CORRELATION] = _known(rows["size"])  # the event, until ``finish`` finds its record
            self._syncs.append(fields)
            return
        else:
            self._work(kind, rows, fields)
        self._collector.add(fields)

    def _work(self, kind: int, rows: Table, fields: Integers) -> None:
        """Fill the columns that only work of a GPU has."""
        fields[:, Field.STREAM] = _known(rows["stream"])
        fields[:, Field.DEVICE] = rows["place"]
        for column, name in ((Field.BYTES, "size"), (Field.NODE, "node")):
            fields[:, column] = np.minimum(rows[name], np.uint64(MAX_TIME_NS)).astype(np.int64)
        fields[fields[:, Field.NODE] == 0, Field.NODE] = NONE
        first, second = (rows["flags"] >> shift & 0xFF for shift in (0, 8))

        def memory(number: int) -> int:
            return memory_place(_of(MEMORY_NAMES, number))

        if kind == cells.KERNEL:
            fields[:, Field.BLOCKS], fields[:, Field.BYTES] = fields[:, Field.BYTES], NONE
            fields[:, Field.THREADS] = rows["flags"]
            fields[:, Field.NAME] = self._named(rows["name"], self._texts.kernels.get)
        elif kind == cells.MEMSET:
            fields[:, Field.TARGET] = _each(first, memory)
            fields[:, Field.NAME] = self._named(first, lambda memory: f"Memset ({_of(MEMORY_NAMES, memory)})")
        else:
            fields[:, Field.SOURCE], fields[:, Field.TARGET] = _each(first, memory), _each(second, memory)
            ways = rows["detail"].astype(np.int64) << 16 | first.astype(np.int64) << 8 | second
            fields[:, Field.NAME] = self._named(ways, _copy)

    def _named(self, numbers: npt.NDArray[np.integer], name: Callable[[int], str | None]) -> Integers:
        """Places of the names that these numbers have."""
        return _each(numbers, lambda number: self._collector.name(name(number) or UNNAMED))

    def _call(self, kind: int, number: int) -> str:
        name = self._texts.facts.get(f"{APIS[kind]}.{number}")
        return API_VERSION.sub("", name) if name else f"call {number} of the {APIS[kind]} API"

    def _threads(self, rows: Table) -> Integers:
        process = self._texts.number("pid")
        return _each(rows["place"], lambda number: self._collector.thread(process, number))

    def finish(self) -> Trace:
        """The recording; the reader cannot be used again."""
        texts, collector = self._texts, self._collector
        windows = _windows(texts)
        other_waits_ns = self._set_aside(windows) if windows else ()
        for fields in self._syncs:
            self._find_events(fields)
            collector.add(fields)
        samples = self._read_samples()
        self._leave_out("names", texts.left_out)
        process = texts.number("pid")
        for name, value in texts.starting("thread.").items():
            if TIME.fullmatch(name):
                collector.thread_names[process, int(name)] = value
        if (dropped := texts.number("dropped")) > 0:
            collector.lost["records"] = dropped
        ahead_ns = texts.number("unix_ns") - texts.number("cupti_ns")
        known = min(texts.number("unix_ns"), texts.number("cupti_ns")) > 0
        versions = {name: texts.facts[name.lower()] for name in ("CUPTI", "Python") if name.lower() in texts.facts}
        if package := texts.facts.get("package"):
            versions[package] = "unknown"  # a program that ends by itself adds its version
        facts = Facts(
            format="microbench recording",
            gpus=texts.numbered("gpu."),
            bus_ids={number: bus_id.lower() for number, bus_id in texts.numbered("bus.").items()},
            versions=versions | texts.starting("version."),
            base_ns=ahead_ns if known and abs(ahead_ns) > SAME_CLOCK_NS else None,
            rank=None if texts.number("rank") == NONE else texts.number("rank"),
            windows=windows,
            pauses=_pauses(texts, windows),
            other_waits_ns=other_waits_ns,
            loops=tuple(texts.loops.values()),
            turns=self._read_turns(),
            stacks=self._read_stacks(),
            samples=samples,
        )
        trace = collector.finish(self._name, facts)
        trace = msgspec.structs.replace(trace, processor=_processor(texts), callers=texts.callers)
        return _without_others(trace) if windows else trace

    def _read_turns(self) -> Table:
        """The turns of loops whose texts are known, sorted by time."""
        rows = np.concatenate([np.empty(0, ROW), *self._kept[cells.TURN]])
        known = list(self._texts.loops)
        rows = rows[np.isin(rows["name"], known) & (rows["begin_ns"] >= 0) & (rows["begin_ns"] <= MAX_TIME_NS)]
        turns = np.zeros(len(rows), TURNS)
        turns["at_ns"], turns["last"] = rows["begin_ns"], rows["flags"] != 0
        turns["loop"], turns["thread"] = _each(rows["name"], known.index), self._threads(rows)
        return turns[np.argsort(turns["at_ns"], kind="stable")]

    def _read_stacks(self) -> Table:
        """The lines that call, where a call asked for it and the recording names the line; sorted by time."""
        rows = np.concatenate([np.empty(0, ROW), *self._kept[cells.CALLED_FROM]])
        rows = rows[(rows["begin_ns"] >= 0) & (rows["begin_ns"] <= MAX_TIME_NS)]
        stacks = np.zeros(len(rows), STACKS)
        stacks["at_ns"], stacks["thread"] = rows["begin_ns"], self._threads(rows)
        stacks["name"] = _each(rows["name"], self._named_line)
        stacks["package"] = _each(rows["name"], self._named_package)
        return np.sort(stacks[stacks["name"] != NONE], order="at_ns")

    def _read_samples(self) -> Samples | None:
        """Make ranges of the samples of each thread that submits work; of many threads, only of those with most calls.

        While such a thread runs no Python (like the thread of PyTorch's backward pass), its ranges are those of the
        main thread where that is at work. Elsewhere they say where the main thread is, because it mostly waits for this
        one. A thread of Python's own without Python has ended, as a server's do behind each request; it has the ranges
        of the main thread until another one has its number.
        """
        calls, collector = self._collector.calls.rows, self._collector
        if not self._kept[cells.SAMPLES] or not len(calls):
            return None
        table = np.concatenate(self._kept[cells.SAMPLES])
        possible = (table["begin_ns"] >= 0) & (table["begin_ns"] <= table["end_ns"]) & (table["end_ns"] <= MAX_TIME_NS)
        self._leave_out("samples with an impossible time", int((~possible).sum()))
        possible &= table["size"] > 0
        first_ns, last_ns = int(calls["begin_ns"].min()), int(calls["end_ns"].max())
        main = self._texts.number("main_thread")
        numbers = [number for _, number in collector.threads]
        threads, counts = np.unique(calls["thread"], return_counts=True)
        most = threads[np.argsort(-counts, kind="stable")][:MOST_SAMPLED].tolist()
        submitting = {thread: numbers[thread] for thread in most if thread != NONE}
        each = {one: in_order(table[possible & (table["place"] == one)]) for one in {main, *submitting.values()}}
        main_lines = {
            words: lines(each[main], functools.partial(self._named_line, words=words))
            for words in (MAIN_AT, BACKWARD_OF)
        }
        at_work = each[main].copy()
        at_work["name"][2 * at_work["graph"] < at_work["size"]] = 0  # the key of no frame
        # What a late sample says counts from when it was due, and is surely so only when it was taken.
        due = {one: rows["begin_ns"][rows["flags"] == 0] for one, rows in each.items()}
        taken = {one: np.concatenate([due[one], rows["end_ns"]]).astype(np.int64) for one, rows in each.items()}
        at_ns = {thread: np.unique([*taken[one], *taken[main]]) for thread, one in submitting.items()}
        for thread, number in submitting.items():
            rows = each[number]
            if ends := number != main and self._is_pythons(number, rows):
                apart_ns = _apart_ns(rows, each[main])
                both = filled(lines(rows, self._known_key, apart_ns), lines(each[main], self._known_key))
                rows = np.zeros(len(both.name), rows.dtype)
                rows["begin_ns"], rows["end_ns"], rows["name"] = both
            rows = rows if ends or len(rows) else at_work
            found = lines(rows, self._named_line)
            if not ends and number != main:
                backward = AUTOGRAD in self._texts.facts.get(f"thread.{number}", "")
                found = filled(found, main_lines[BACKWARD_OF if backward else MAIN_AT])
            found = within(found, first_ns, last_ns)
            self._add_ranges(Category.LINE, thread, found)
            for found in self._functions(rows):
                self._add_ranges(Category.FUNCTION, thread, within(found, first_ns, last_ns))
            of_main, lacks = (0, 0) if number == main else (NONE, number)
            for kind, place in ((cells.COLLECTED, number), (cells.ABSENT, of_main), (cells.LOCKED, lacks)):
                self._add_ranges(Category.PYTHON, thread, within(self._known_exactly(kind, place), first_ns, last_ns))
        others = np.setdiff1d(table["place"], [*submitting.values()])[:MOST_SAMPLED].tolist()
        rows_of = (in_order(table[possible & (table["place"] == one)]) for one in others)
        beside = [within(lines(rows, self._working_line), first_ns, last_ns) for rows in rows_of]
        return counted(list(each.values()), at_ns, beside)

    def _known_key(self, key: int) -> int:
        return key if key in self._texts.lines else NONE

    def _is_pythons(self, thread: int, samples: Table) -> bool:
        """Whether Python's module threading began a thread. The outermost function of its stacks tells."""
        asked = [rows["name"][rows["place"] == thread] for rows in self._kept[cells.CALLED_FROM]]
        return not self._texts.begun.isdisjoint(np.unique(np.concatenate([samples["name"], *asked])).tolist())

    def _known_exactly(self, kind: int, thread: int) -> Lines:
        """The times in which a thread collected Python's garbage, or had no processor or not Python's lock."""
        rows = np.concatenate([np.empty(0, ROW), *self._kept[kind]])
        rows = in_order(rows[(rows["place"] == thread) & (rows["begin_ns"] >= 0) & (rows["begin_ns"] < rows["end_ns"])])
        holders = [self._texts.lines.get(key, Stack("")) for key in rows["name"].tolist()]
        held = (f" held at {one.line or one.functions[-1]}" if any(one) else "" for one in holders)
        names = np.array([self._collector.name(EXACT[kind] + words) for words in held], np.int64)
        return Lines(rows["begin_ns"].astype(np.int64), np.minimum(rows["end_ns"], MAX_TIME_NS), names)

    def _add_ranges(self, category: Category, thread: int, found: Lines) -> None:
        fields = np.tile(np.array(NO_ROW, np.int64), (len(found.name), 1))
        fields[:, Field.CATEGORY], fields[:, Field.THREAD] = category, thread
        fields[:, Field.BEGIN_NS], fields[:, Field.DURATION_NS] = found.begin_ns, found.end_ns - found.begin_ns
        fields[:, Field.NAME] = found.name
        self._collector.add(fields)

    def _named_line(self, key: int, words: str = "") -> int:
        """The place of the name of a line of Python; NONE if the recording does not name it."""
        line = self._texts.lines.get(key, Stack("")).line
        return self._collector.name(words + line) if line else NONE

    def _working_line(self, key: int) -> int:
        """The place of the name of the line in which a thread works; NONE where it waits for other threads."""
        functions = self._texts.lines.get(key, Stack("")).functions
        return NONE if functions and IDLE.search(functions[-1]) else self._named_line(key)

    def _named_package(self, key: int) -> int:
        line = self._texts.lines.get(key, Stack("")).package
        return self._collector.name(line) if line else NONE

    def _functions(self, rows: Table) -> Iterator[Lines]:
        """The functions of packages that a thread was in, the outermost ones first. Only what lies in one function goes
        on in another one of the same name."""
        stacks = {key: self._texts.lines.get(key, Stack("")) for key in np.unique(rows["name"]).tolist()}
        for depth in range(1, 1 + max((len(one.functions) for one in stacks.values()), default=0)):
            numbers: dict[tuple[str, ...], int] = {}

            def number(key: int, depth: int = depth, numbers: dict[tuple[str, ...], int] = numbers) -> int:
                line, functions, _ = stacks[key]
                outer = (line, *functions[:depth])
                return numbers.setdefault(outer, len(numbers)) if len(functions) >= depth else NONE

            found = lines(rows, number)
            names = np.array([self._collector.name(outer[-1]) for outer in numbers], np.int64)
            yield found._replace(name=names[found.name])

    def _set_aside(self, windows: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
        """Keep only the waits inside of windows. Returns the ends of the host's other ones in ns, sorted."""
        begins_ns, ends_ns = np.array(windows, np.int64).T
        on_gpu = self._collector.name(SYNC_NAMES[STREAM_WAIT_EVENT])
        others = []
        for place, fields in enumerate(self._syncs):
            end_ns = fields[:, Field.BEGIN_NS] + fields[:, Field.DURATION_NS]
            window = np.searchsorted(begins_ns, end_ns, "right") - 1
            inside = (window >= 0) & (fields[:, Field.BEGIN_NS] < ends_ns[window])
            timed = (fields[:, Field.BEGIN_NS] <= MAX_TIME_NS) & (fields[:, Field.NAME] != on_gpu)
            others.append(end_ns[~inside & timed])
            self._syncs[place] = fields[inside]
        return tuple(np.sort(np.concatenate([*others, np.empty(0, np.int64)])).tolist())

    def _find_events(self, syncs: Integers) -> None:
        """Set the call and the stream that recorded the event that each wait waits for.

        Of several records of one event it is the last that was submitted before the wait.
        """
        whole = np.concatenate([np.empty((0, 3), np.int64), *self._events])
        events, wanted = whole[np.lexsort((whole[:, 1], whole[:, 0]))], syncs[:, Field.ON_CORRELATION].copy()
        syncs[:, Field.ON_CORRELATION] = NONE
        if not len(events):
            return
        keys = events[:, 0] << 32 | events[:, 1]
        places = np.searchsorted(keys, wanted << 32 | syncs[:, Field.CORRELATION]) - 1
        found = (places >= 0) & (wanted != NONE) & (events[places, 0] == wanted)
        syncs[found, Field.ON_CORRELATION] = events[places[found], 1]
        syncs[found, Field.ON_STREAM] = _known(events[places[found], 2])


def _apart_ns(*each: Table) -> int:
    """How far samples of a thread are apart at most, by those of long rows."""
    rows = np.concatenate(each)
    rows = rows[(rows["size"] > 1) & (rows["size"] < MOST_SAMPLES)]
    apart = int((rows["size"].astype(np.int64) - 1).sum())
    if not apart:
        return cells.FOLLOWING_NS
    return max(2 * int((rows["end_ns"] - rows["begin_ns"]).sum()) // apart, 2 * cells.SAMPLE_NS)


def _processor(texts: _Texts) -> Processor | None:
    """What the main thread had of the processors; None if the recording does not say it."""
    times, cores = (texts.facts.get(name, "").split() for name in ("processor", "cores"))
    try:
        all_ns, ran_ns, ready_ns = (min(int(one), MAX_TIME_NS) for one in times)
        allowed, count = float(cores[0]), int(cores[1])
    except (ValueError, IndexError):
        return None
    return Processor(all_ns, ran_ns, ready_ns, allowed, count) if min(all_ns, ran_ns, ready_ns) >= 0 < all_ns else None


def _take_texts(texts: _Texts, chunk: Table) -> None:
    """Take the texts among cells."""
    for place in np.flatnonzero(np.isin(chunk["kind"], TEXTS)).tolist():
        texts.take(*cells.TEXT.unpack(chunk[place].tobytes()))


def _windows(texts: _Texts) -> tuple[tuple[int, int], ...]:
    """The parts of the time that were recorded whole; the last one has no end if it was open at the end."""
    found = (WINDOW.fullmatch(value) for value in texts.starting("window.").values())
    return tuple(sorted((int(one[1]), min(int(one[2] or MAX_TIME_NS), MAX_TIME_NS)) for one in found if one))


def _pauses(texts: _Texts, windows: tuple[tuple[int, int], ...]) -> tuple[Pause, ...]:
    """The pauses behind windows that have ended."""
    quiet_ns = sorted(int(time) for time in texts.starting("quiet.").values() if TIME.fullmatch(time))
    found = []
    for place, (_, end_ns) in enumerate(windows):
        next_ns = windows[place + 1][0] if place + 1 < len(windows) else MAX_TIME_NS
        quiet = next((time for time in quiet_ns if end_ns < time < next_ns), None)
        begin_ns = end_ns + SETTLING_NS if quiet is None else quiet
        if begin_ns < next_ns and end_ns < MAX_TIME_NS:
            found.append(Pause(begin_ns, next_ns))
    return tuple(found)


def _without_others(trace: Trace) -> Trace:
    """Leave out work of later calls, which is recorded while the work of a window ends."""
    begins_ns, ends_ns = np.array(trace.windows, np.int64).T
    window = np.searchsorted(begins_ns, trace.work["begin_ns"], "right") - 1
    inside = (window >= 0) & (trace.work["begin_ns"] < ends_ns[window])
    return msgspec.structs.replace(trace, work=trace.work[inside | (trace.work["call"] != NONE)])


def _each(numbers: npt.NDArray[np.integer], function: Callable[[int], int]) -> Integers:
    """What the function gives for each number; it is called once for each different one."""
    different, inverse = np.unique(numbers, return_inverse=True)
    return np.array([function(number) for number in different.tolist()], np.int64)[inverse]


def _known(numbers: npt.NDArray[np.integer]) -> Integers:
    """The numbers of streams or events, NONE where CUPTI has none."""
    signed = numbers.astype(np.int64)
    return np.where((signed < 0) | (signed >= UNKNOWN_32), NONE, signed)


def _of(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else names[0]


def _copy(number: int) -> str:
    """The name of a copy from its way and its two memories."""
    way, source, target = number >> 16, number >> 8 & 0xFF, number & 0xFF
    return f"Memcpy {_of(COPY_WAYS, way)} ({_of(MEMORY_NAMES, source)} -> {_of(MEMORY_NAMES, target)})"
