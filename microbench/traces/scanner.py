"""Finds the events of a large or damaged trace file, chunk by chunk, and decodes the usual ones in compiled code.

The loop of scanner.c reads each byte once and writes a row of numbers for each event that matters. It hands back the
place of what it does not decode: begin and end events, metadata, events without a category, numbers in quotes, keys
with escapes. Memory is bounded by the chunk, the longest value, and the limits on names and threads.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import msgspec
import numpy as np

from microbench.core.c_library import MISSING, library
from microbench.core.errors import UsageError
from microbench.traces.collector import MAX_NAMES, MAX_THREADS, NO_ROW, Field
from microbench.traces.events import CATEGORIES, CUT_TAIL, DAMAGED, FACT_KEYS, MALFORMED, ChromeReader
from microbench.traces.stream import TraceStream
from microbench.traces.trace import NONE

SOURCE = Path(__file__).with_name("scanner.c")
CHUNK_BYTES = 8 << 20
MAX_VALUE_BYTES = 64 << 20  # a file with a longer event is damaged, or no trace
MAX_FACT_BYTES = 1 << 20
ROWS = 1 << 16  # rows that one pass may give
NEW_THREADS = 1 << 12
NAME_PLACES, THREAD_PLACES = 1 << 20, 1 << 17  # of open tables for MAX_NAMES and MAX_THREADS: powers of two
SHORT = -1  # instead of a place: the chunk ends before
NEED_MORE, OUT_OF_ROOM, ARRAY_ENDED = range(3)
# Places of what a pass counts.
N_ROWS, N_UNUSUAL, N_NAMES, N_THREADS, N_DAMAGED, ALL_NAMES, ALL_THREADS = range(7)
ARRAYS = (
    "blank_row", "category_hashes", "category_codes", "rows", "unusual", "new_names", "new_threads", "name_hashes",
    "thread_hashes", "name_numbers", "thread_numbers", "counts",
)  # fmt: skip
SIZES = ("categories", "most_rows", "most_new_threads", "name_places", "thread_places", "most_names", "most_threads")


class Tables(ctypes.Structure):
    """What lasts from one chunk to the next, as scanner.c has it."""

    _fields_ = [(name, ctypes.c_void_p) for name in ARRAYS] + [(name, ctypes.c_int64) for name in SIZES]


def fnv(text: bytes) -> int:
    """The hash by which the compiled loop knows categories and names."""
    value = 14695981039346656037
    for byte in text:
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


def _text(raw: bytes) -> str:
    """A JSON string without its quotes as text."""
    try:
        return msgspec.json.decode(b'"%b"' % raw, type=str)
    except MALFORMED:
        return raw.decode("utf-8", "replace")


def compiled() -> bool:
    """Whether the compiled loop is there, or can be made here."""
    return library(SOURCE) is not None


class _Scanner:
    """The part of the stream that is in memory, and what the compiled loop keeps between chunks."""

    def __init__(self, stream: TraceStream, reader: ChromeReader) -> None:
        self._stream, self._reader = stream, reader
        self._data, self._place = b"", 0
        self._ended = False
        self._rows = np.empty((ROWS, len(Field)), np.int64)
        self._unusual, self._new_names = np.empty((ROWS, 2), np.int64), np.empty((ROWS, 2), np.int64)
        self._new_threads = np.empty((NEW_THREADS, 2), np.int64)
        self._counts = np.zeros(7, np.int64)
        self._kept = (
            np.array(NO_ROW, np.int64), np.array([fnv(text.encode()) for text in CATEGORIES], np.uint64),
            np.array([int(code) for code in CATEGORIES.values()], np.int64), self._rows, self._unusual,
            self._new_names, self._new_threads, np.zeros(NAME_PLACES, np.uint64), np.zeros(THREAD_PLACES, np.uint64),
            np.full(NAME_PLACES, -1, np.int32), np.full(THREAD_PLACES, -1, np.int32), self._counts,
        )  # fmt: skip
        self._tables = Tables(
            *(array.ctypes.data for array in self._kept),
            len(CATEGORIES), ROWS, NEW_THREADS, NAME_PLACES, THREAD_PLACES, MAX_NAMES, MAX_THREADS,
        )  # fmt: skip
        path = library(SOURCE)
        if path is None:
            raise UsageError(f"a trace that is large, cut or damaged cannot be read: {MISSING[0]}", MISSING[1])
        loop = ctypes.CDLL(str(path))
        self._scan, self._value_end = loop.microbench_scan, loop.microbench_value_end
        self._scan.restype = self._value_end.restype = ctypes.c_int64
        self._names = np.empty(MAX_NAMES + 1, np.int64)  # of the collector, by the compiled loop's; the last is NONE
        self._threads = np.empty(MAX_THREADS + 1, np.int64)
        self._names[-1] = self._threads[-1] = NONE

    def more(self) -> bool:
        """Read the next chunk behind what is not read yet; False at the end, or if a value is too long."""
        if self._ended or len(self._data) - self._place > MAX_VALUE_BYTES:
            return False
        chunk = self._stream.read(CHUNK_BYTES)
        self._ended = len(chunk) < CHUNK_BYTES
        self._data = self._data[self._place :] + chunk
        self._place = 0
        return bool(chunk)

    def byte(self) -> bytes:
        """The next byte that is not blank, which stays; nothing at the end."""
        while True:
            rest = len(self._data)
            while self._place < rest and self._data[self._place] <= 32:
                self._place += 1
            if self._place < rest:
                return self._data[self._place : self._place + 1]
            if not self.more():
                return b""

    def value(self, depth: int = 0) -> bytes | None:
        """The text of the next value; None if the file ends before it does, or if it is too long."""
        while True:
            sizes = (ctypes.c_int64(one) for one in (self._place, len(self._data), depth))
            end: int = self._value_end(self._data, *sizes)
            if end != SHORT:
                text = self._data[self._place : end]
                self._place = end
                return text
            if not self.more():
                return None

    def skip(self) -> None:
        self._place += 1

    def events(self) -> bool:
        """Read the events of the list that begins here; True if the list ends as it should."""
        self._place += 1
        self._reader.found_events = True
        reason = ctypes.c_int64()
        while True:
            self._counts[:ALL_NAMES] = 0
            sizes = (ctypes.c_int64(one) for one in (self._place, len(self._data)))
            self._place = self._scan(ctypes.byref(self._tables), self._data, *sizes, ctypes.byref(reason))
            self._take()
            if reason.value == ARRAY_ENDED:
                return True
            if reason.value == NEED_MORE and not self.more():
                return False

    def _take(self) -> None:
        """Give the reader what the last pass found."""
        reader, counts, data = self._reader, self._counts, self._data
        collector = reader.collector
        if counts[N_DAMAGED]:
            collector.unread[DAMAGED] += int(counts[N_DAMAGED])
        first = counts[ALL_NAMES] - counts[N_NAMES]
        for number, (begin, end) in enumerate(self._new_names[: counts[N_NAMES]].tolist(), first):
            self._names[number] = collector.name(_text(data[begin:end]))
        first = counts[ALL_THREADS] - counts[N_THREADS]
        for number, (process, thread) in enumerate(self._new_threads[: counts[N_THREADS]].tolist(), first):
            self._threads[number] = collector.thread(process, thread)
        if counts[N_UNUSUAL]:
            reader.take_raw(data[begin:end] for begin, end in self._unusual[: counts[N_UNUSUAL]].tolist())
        fields = self._rows[: counts[N_ROWS]]
        fields[:, Field.NAME] = self._names[fields[:, Field.NAME]]
        fields[:, Field.THREAD] = self._threads[fields[:, Field.THREAD]]
        if len(fields):
            collector.add(fields)


def scan_trace(stream: TraceStream, reader: ChromeReader) -> None:
    """Give the reader all events and facts of a file; a file that ends too early gives what is whole."""
    scanner = _Scanner(stream, reader)
    whole = _document(scanner, reader)
    if not whole or stream.fault:
        reader.collector.lost[CUT_TAIL] += 1


def _document(scanner: _Scanner, reader: ChromeReader) -> bool:
    """Read the object or the list that is the file; False if it ends too early."""
    first = scanner.byte()
    if first == b"\xef":  # a byte order mark
        for _ in range(3):
            scanner.skip()
        first = scanner.byte()
    if first == b"[":
        return scanner.events()
    if first != b"{":
        return False
    scanner.skip()
    while (byte := scanner.byte()) not in (b"", b"}"):
        if byte == b",":
            scanner.skip()
            continue
        key = scanner.value()
        if key is None or scanner.byte() != b":":
            return False
        scanner.skip()
        byte = scanner.byte()
        name = _text(key[1:-1])
        if name == "traceEvents" and byte == b"[":
            if not scanner.events():
                return False
            continue
        value = scanner.value()
        if value is None:
            return False
        if name in FACT_KEYS and len(value) <= MAX_FACT_BYTES:
            try:
                reader.fact(name, msgspec.json.decode(value))
            except MALFORMED:
                reader.collector.unread["facts"] += 1
    return byte == b"}"
