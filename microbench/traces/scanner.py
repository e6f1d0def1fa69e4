"""Finds the events of a large or damaged trace file, chunk by chunk, and decodes the usual ones in compiled code.

The compiled loop reads each byte once and writes a row of numbers for each event that matters. It hands back the place
of what it does not decode: begin and end events, metadata, events without a category, numbers in quotes, keys with
escapes. Memory is bounded by the chunk, the longest value, and the limits on names and threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numba
import numpy as np

from microbench.traces.collector import MAX_NAMES, MAX_THREADS, NO_ROW, Field
from microbench.traces.events import CATEGORIES, CUT_TAIL, DAMAGED, FACT_KEYS, MALFORMED, ChromeReader
from microbench.traces.stream import TraceStream
from microbench.traces.trace import NONE

CHUNK_BYTES = 8 << 20
MAX_VALUE_BYTES = 64 << 20  # a file with a longer event is damaged, or no trace
MAX_FACT_BYTES = 1 << 20
ROWS = 1 << 16  # rows that one pass may give
NAME_PLACES, THREAD_PLACES = 1 << 20, 1 << 17  # of open tables for MAX_NAMES and MAX_THREADS: powers of two
NEED_MORE, OUT_OF_ROOM, ARRAY_ENDED = range(3)
# Places of what a pass counts.
N_ROWS, N_UNUSUAL, N_NAMES, N_THREADS, N_DAMAGED, ALL_NAMES, ALL_THREADS = range(7)

FNV_START, FNV_PRIME = np.uint64(14695981039346656037), np.uint64(1099511628211)


def fnv(text: bytes) -> np.uint64:
    """The hash by which the compiled loop knows keys and names."""
    value = int(FNV_START)
    for byte in text:
        value = (value ^ byte) * int(FNV_PRIME) % 2**64
    return np.uint64(value)


def compiled(function: Callable[..., Any]) -> Any:
    """The function, compiled by Numba at its first call and cached; without a folder to write to, by each process."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # Numba found no folder for its cache
        return numba.njit(nogil=True)(function)


K_PH, K_CAT, K_NAME, K_PID, K_TID, K_TS, K_DUR, K_ARGS = (
    fnv(key) for key in (b"ph", b"cat", b"name", b"pid", b"tid", b"ts", b"dur", b"args")
)
# The keys of args that matter, and the column of each.
ARGS = {
    b"correlation": Field.CORRELATION, b"stream": Field.STREAM, b"device": Field.DEVICE, b"bytes": Field.BYTES,
    b"grid": Field.BLOCKS, b"block": Field.THREADS, b"graph node id": Field.NODE, b"wait_on_stream": Field.ON_STREAM,
    b"wait_on_cuda_event_record_corr_id": Field.ON_CORRELATION,
}  # fmt: skip
ARG_HASHES = np.array([fnv(key) for key in ARGS], np.uint64)
ARG_COLUMNS = np.array([int(column) for column in ARGS.values()], np.int64)
CATEGORY_HASHES = np.array([fnv(text.encode()) for text in CATEGORIES], np.uint64)
CATEGORY_CODES = np.array([int(code) for code in CATEGORIES.values()], np.int64)
BLANK_ROW = np.array(NO_ROW, np.int64)
F_CATEGORY, F_BEGIN, F_DURATION, F_NAME, F_THREAD, F_CORRELATION, F_STREAM, F_DEVICE = (int(one) for one in (
    Field.CATEGORY, Field.BEGIN_NS, Field.DURATION_NS, Field.NAME, Field.THREAD, Field.CORRELATION, Field.STREAM,
    Field.DEVICE))  # fmt: skip
F_BYTES, F_BLOCKS, F_THREADS, F_NODE, F_ON_STREAM, F_ON_CORRELATION = (int(one) for one in (
    Field.BYTES, Field.BLOCKS, Field.THREADS, Field.NODE, Field.ON_STREAM, Field.ON_CORRELATION))  # fmt: skip
QUOTE, ESCAPE, COMMA, COLON, OPEN, CLOSE, OPEN_LIST, CLOSE_LIST = (ord(one) for one in '"\\,:{}[]')
MINUS, POINT, ZERO, NINE, LETTER_X = (ord(one) for one in "-.09X")
SHORT, BROKEN = -1, -2  # instead of a place: the chunk ends before; this is not JSON
LAST_DEVICE_CATEGORY, SYNC_CATEGORY, FIRST_HOST_CATEGORY = 2, 5, 6


@compiled
def _string_end(data, place, size):  # type: ignore[no-untyped-def]
    """The place of the quote that ends the string whose first character is at ``place``, and whether it has escapes."""
    escapes = False
    while place < size:
        byte = data[place]
        if byte == QUOTE:
            return place, escapes
        if byte == ESCAPE:
            escapes = True
            place += 1
        place += 1
    return SHORT, escapes


@compiled
def _hash(data, begin, end, lower):  # type: ignore[no-untyped-def]
    value = FNV_START
    for place in range(begin, end):
        byte = data[place]
        if lower and 65 <= byte <= 90:
            byte += 32
        value = (value ^ np.uint64(byte)) * FNV_PRIME
    return value


@compiled
def _blank(data, place, size):  # type: ignore[no-untyped-def]
    while place < size and data[place] <= 32:
        place += 1
    return place


@compiled
def _value_end(data, place, size, depth):  # type: ignore[no-untyped-def]
    """The place after the value that begins at ``place``, or after the object in which ``place`` is (depth 1)."""
    while place < size:
        byte = data[place]
        if byte == QUOTE:
            place, _ = _string_end(data, place + 1, size)
            if place == SHORT:
                return SHORT
            if depth == 0:
                return place + 1
        elif byte in (OPEN, OPEN_LIST):
            depth += 1
        elif byte in (CLOSE, CLOSE_LIST):
            if depth == 0:
                return place
            depth -= 1
            if depth == 0:
                return place + 1
        elif depth == 0 and (byte == COMMA or byte <= 32):
            return place
        place += 1
    return SHORT


@compiled
def _number(data, place, size, decimals):  # type: ignore[no-untyped-def]
    """A number times 10^decimals, rounded; the place after it; whether it is written in a way that is read here."""
    negative = data[place] == MINUS
    if negative:
        place += 1
    value, digits, fraction, up = np.int64(0), 0, 0, False
    point = False
    while place < size:
        byte = data[place]
        if ZERO <= byte <= NINE:
            digits += 1
            if not point or fraction < decimals:
                value = value * 10 + np.int64(byte - ZERO)
                if point:
                    fraction += 1
            elif fraction == decimals:
                up = byte >= 53
                fraction += 1
        elif byte == POINT and not point:
            point = True
        else:
            break
        place += 1
    if place == size:
        return value, SHORT, False
    byte = data[place]
    # At most 15 digits: no overflow whatever the decimals.
    good = digits > 0 and (byte in (COMMA, CLOSE, CLOSE_LIST) or byte <= 32)
    good = good and digits - fraction <= 15 and digits <= 40 and (decimals > 0 or not point)
    while fraction < decimals:
        value *= 10
        fraction += 1
    if up:
        value += 1
    return -value if negative else value, place, good


@compiled
def _big_integer(data, place, size):  # type: ignore[no-untyped-def]
    """An integer of up to 64 bits and beyond, wrapped around; the place after it; whether it is one."""
    negative = data[place] == MINUS
    if negative:
        place += 1
    first = place
    value = np.uint64(0)
    while place < size and ZERO <= data[place] <= NINE:
        value = value * np.uint64(10) + np.uint64(data[place] - ZERO)
        place += 1
    if place == size:
        return np.int64(0), SHORT, False
    byte = data[place]
    good = 0 < place - first <= 30 and (byte in (COMMA, CLOSE, CLOSE_LIST) or byte <= 32)
    signed = np.int64(value)
    return -signed if negative else signed, place, good


@compiled
def _product(data, place, size):  # type: ignore[no-untyped-def]
    """The product of a list of one to three positive sizes; the place after it; whether it is such a list."""
    value, count = np.int64(1), 0
    place = _blank(data, place + 1, size)
    while place < size:
        size_value, after, good = _number(data, place, size, 0)
        if after == SHORT:
            return value, SHORT, False
        count += 1
        if not good or size_value <= 0 or (size_value > 1 << 20 and value > 1 << 20) or count > 3:
            return value, place, False
        if value > (1 << 40) or size_value >= 1 << 31:
            return value, place, False
        value *= size_value
        place = _blank(data, after, size)
        if place < size and data[place] == COMMA:
            place = _blank(data, place + 1, size)
        elif place < size and data[place] == CLOSE_LIST:
            return value, place + 1, True
        elif place < size:
            return value, place, False
    return value, SHORT, False


@compiled
def _find(hashes, numbers, key):  # type: ignore[no-untyped-def]
    """The place of a hash in an open table, and whether it is taken."""
    mask = len(hashes) - 1
    place = np.int64(key & np.uint64(mask))
    while numbers[place] >= 0:
        if hashes[place] == key:
            return place, True
        place = (place + 1) & mask
    return place, False


@compiled
def _numbered(hashes, numbers, key, counts, every, new, most, places, first, second):  # type: ignore[no-untyped-def]
    """The number of a name or thread by its hash, a new one at its first use; NONE beyond the limit."""
    found, known = _find(hashes, numbers, key)
    if not known:
        if counts[every] >= most:
            return np.int64(NONE)
        hashes[found], numbers[found] = key, counts[every]
        places[counts[new], 0], places[counts[new], 1] = first, second
        counts[every] += 1
        counts[new] += 1
    return np.int64(numbers[found])


@compiled
def _args(data, place, size, row):  # type: ignore[no-untyped-def]
    """Read the args object that begins at ``place``: the place after it, and whether all in it is of the usual form."""
    place = _blank(data, place + 1, size)
    if place < size and data[place] == CLOSE:
        return place + 1, True
    usual = True
    while place < size:
        if data[place] != QUOTE:
            return BROKEN, False
        begin = place + 1
        end, escapes = _string_end(data, begin, size)
        if end == SHORT:
            return SHORT, False
        usual = usual and not escapes
        key = _hash(data, begin, end, False)
        place = _blank(data, end + 1, size)
        if place >= size:
            return SHORT, False
        if data[place] != COLON:
            return BROKEN, False
        place = _blank(data, place + 1, size)
        if place >= size:
            return SHORT, False
        column = np.int64(-1)
        for one in range(len(ARG_HASHES)):
            if ARG_HASHES[one] == key:
                column = ARG_COLUMNS[one]
        after, good, value = place, True, np.int64(0)
        if column in (F_BLOCKS, F_THREADS):
            good = data[place] == OPEN_LIST
            if good:
                value, after, good = _product(data, place, size)
        elif column >= 0:
            value, after, good = _big_integer(data, place, size)
        if after == SHORT:
            return SHORT, False
        if column >= 0 and good:
            row[column] = value
            place = after
        else:
            usual = usual and good
            place = _value_end(data, place, size, 0)
            if place == SHORT:
                return SHORT, False
        place = _blank(data, place, size)
        if place >= size:
            return SHORT, False
        if data[place] == CLOSE:
            return place + 1, usual
        if data[place] != COMMA:
            return BROKEN, False
        place = _blank(data, place + 1, size)
    return SHORT, False


@compiled
def scan(  # type: ignore[no-untyped-def]
    data, place, size, fields, unusual, new_names, new_threads, name_hashes, name_numbers, thread_hashes,
    thread_numbers, counts,
):  # fmt: skip
    """Read events until the chunk or the room for rows ends: the place up to which all is read, and why it stopped."""
    row = BLANK_ROW.copy()
    while True:
        while place < size and (data[place] <= 32 or data[place] == COMMA):
            place += 1
        if place >= size:
            return size, NEED_MORE
        start = place
        if data[place] == CLOSE_LIST:
            return place + 1, ARRAY_ENDED
        if (
            counts[N_ROWS] >= len(fields) or counts[N_UNUSUAL] >= len(unusual) or counts[N_NAMES] >= len(new_names)
            or counts[N_THREADS] >= len(new_threads)
        ):  # fmt: skip
            return start, OUT_OF_ROOM
        if data[place] != OPEN:
            counts[N_DAMAGED] += 1
            if data[place] == CLOSE or data[place] == COLON:
                place += 1
                continue
            place = _value_end(data, place, size, 0)
            if place == SHORT:
                counts[N_DAMAGED] -= 1
                return start, NEED_MORE
            if place == start:
                place += 1
            continue
        row[:] = BLANK_ROW
        phase, category, usual, intact = np.int64(0), np.int64(-1), True, True
        has_category, has_time, bad_track = False, False, False
        name_begin, name_end = -1, -1
        process, thread = np.int64(-1), np.int64(-1)
        place = _blank(data, place + 1, size)
        ended = place < size and data[place] == CLOSE
        if ended:
            place += 1
        while not ended:
            if place >= size:
                return start, NEED_MORE
            if data[place] != QUOTE:
                intact = False
                break
            begin = place + 1
            end, escapes = _string_end(data, begin, size)
            if end == SHORT:
                return start, NEED_MORE
            if escapes:
                usual = False
            key = _hash(data, begin, end, False)
            place = _blank(data, end + 1, size)
            if place >= size:
                return start, NEED_MORE
            if data[place] != COLON:
                intact = False
                break
            place = _blank(data, place + 1, size)
            if place >= size:
                return start, NEED_MORE
            byte = data[place]
            if byte == QUOTE:
                begin = place + 1
                place, escapes = _string_end(data, begin, size)
                if place == SHORT:
                    return start, NEED_MORE
                if key == K_NAME:
                    name_begin, name_end = begin, place
                elif key == K_PH:
                    phase = np.int64(data[begin]) if place == begin + 1 else np.int64(-1)
                    if escapes:
                        usual = False
                        phase = np.int64(LETTER_X)
                elif key == K_CAT:
                    has_category = True
                    category = np.int64(-1)
                    text = _hash(data, begin, place, True)
                    for one in range(len(CATEGORY_HASHES)):
                        if CATEGORY_HASHES[one] == text:
                            category = CATEGORY_CODES[one]
                    if escapes:
                        usual = False
                        category = np.int64(0)
                elif key in (K_PID, K_TID):
                    bad_track = True
                elif key in (K_TS, K_DUR, K_ARGS):
                    usual = False
                place += 1
            else:
                good, after = True, SHORT
                if key == K_TS:
                    row[F_BEGIN], after, good = _number(data, place, size, 3)
                    has_time = good
                elif key == K_DUR:
                    row[F_DURATION], after, good = _number(data, place, size, 3)
                    good = good and row[F_DURATION] >= 0
                elif key == K_PID:
                    process, after, good = _big_integer(data, place, size)
                    bad_track = bad_track or not good
                    good = True
                elif key == K_TID:
                    thread, after, good = _big_integer(data, place, size)
                    bad_track = bad_track or not good
                    good = True
                elif key == K_ARGS and byte == OPEN and not category >= FIRST_HOST_CATEGORY:
                    after, good = _args(data, place, size, row)
                    if after == BROKEN:
                        intact = False
                        break
                else:
                    good = key not in (K_PH, K_NAME, K_CAT)
                    after = _value_end(data, place, size, 0)
                if after == SHORT:
                    return start, NEED_MORE
                if not good:
                    usual = False
                if not good or (bad_track and (key in (K_PID, K_TID))):
                    after = _value_end(data, place, size, 0)
                    if after == SHORT:
                        return start, NEED_MORE
                if after == place:
                    intact = False
                    break
                place = after
            place = _blank(data, place, size)
            if place >= size:
                return start, NEED_MORE
            if data[place] == CLOSE:
                place += 1
                break
            if data[place] != COMMA:
                intact = False
                break
            place = _blank(data, place + 1, size)
        if not intact:
            place = _value_end(data, start + 1, size, 1)
            if place == SHORT:
                return start, NEED_MORE
            counts[N_DAMAGED] += 1
            continue
        complete = phase == LETTER_X or phase == 0
        if complete and has_category and category < 0 and usual:
            continue
        if phase != LETTER_X and phase != 66 and phase != 69 and phase != 77 and usual:
            continue
        if not usual or phase != LETTER_X or not has_category or bad_track or not has_time or name_begin < 0:
            unusual[counts[N_UNUSUAL], 0] = start
            unusual[counts[N_UNUSUAL], 1] = place
            counts[N_UNUSUAL] += 1
            continue
        row[F_CATEGORY] = category
        key = _hash(data, name_begin, name_end, False)
        row[F_NAME] = _numbered(
            name_hashes, name_numbers, key, counts, ALL_NAMES, N_NAMES, MAX_NAMES, new_names, name_begin, name_end
        )
        if category > LAST_DEVICE_CATEGORY:
            key = (np.uint64(process) * FNV_PRIME ^ np.uint64(thread)) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(29)
            row[F_THREAD] = _numbered(
                thread_hashes, thread_numbers, key, counts, ALL_THREADS, N_THREADS, MAX_THREADS, new_threads, process,
                thread,
            )  # fmt: skip
            if category != SYNC_CATEGORY:
                row[F_STREAM] = row[F_ON_STREAM] = row[F_ON_CORRELATION] = NONE
            row[F_DEVICE] = row[F_BYTES] = row[F_BLOCKS] = row[F_THREADS] = row[F_NODE] = NONE
            if category >= FIRST_HOST_CATEGORY:
                row[F_CORRELATION] = NONE
        else:
            # Old recordings say the device and the stream only by the place where the event is drawn.
            if row[F_STREAM] == NONE:
                row[F_STREAM] = thread
            if row[F_DEVICE] == NONE:
                row[F_DEVICE] = process
            if row[F_NODE] == 0:
                row[F_NODE] = NONE
            row[F_ON_STREAM] = row[F_ON_CORRELATION] = NONE
        fields[counts[N_ROWS]] = row
        counts[N_ROWS] += 1


def _text(raw: bytes) -> str:
    """A JSON string without its quotes as text."""
    try:
        return msgspec.json.decode(b'"%b"' % raw, type=str)
    except MALFORMED:
        return raw.decode("utf-8", "replace")


class _Scanner:
    """The part of the stream that is in memory, and what the compiled loop keeps between chunks."""

    def __init__(self, stream: TraceStream, reader: ChromeReader) -> None:
        self._stream, self._reader = stream, reader
        self._data, self._place = b"", 0
        self._ended = False
        self._fields = np.empty((ROWS, len(Field)), np.int64)
        self._unusual = np.empty((ROWS, 2), np.int64)
        self._new_names = np.empty((ROWS, 2), np.int64)
        self._new_threads = np.empty((4096, 2), np.int64)
        self._name_tables = np.zeros(NAME_PLACES, np.uint64), np.full(NAME_PLACES, -1, np.int32)
        self._thread_tables = np.zeros(THREAD_PLACES, np.uint64), np.full(THREAD_PLACES, -1, np.int32)
        self._counts = np.zeros(7, np.int64)
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
            data = np.frombuffer(self._data, np.uint8)
            end = _value_end(data, self._place, len(data), depth)
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
        while True:
            data = np.frombuffer(self._data, np.uint8)
            self._counts[:ALL_NAMES] = 0
            self._place, reason = scan(
                data, self._place, len(data), self._fields, self._unusual, self._new_names, self._new_threads,
                *self._name_tables, *self._thread_tables, self._counts,
            )  # fmt: skip
            self._take()
            if reason == ARRAY_ENDED:
                return True
            if reason == NEED_MORE and not self.more():
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
        fields = self._fields[: counts[N_ROWS]]
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
