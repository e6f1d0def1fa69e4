"""CUPTI's callbacks, written for Numba: ``requested`` hands out memory for records, ``completed`` turns records into
rows (see cells.py) and writes them, and ``called`` makes the rows of the program's calls. ``given`` writes cells that
Python has made.

They run on CUPTI's threads in a program whose Python knows nothing of them: machine_code.py takes their compiled code
out of Numba. So they use numbers only and never raise. Their last argument is the address of the state (see state.py),
which has the addresses of the C functions that they call.

The fields of a record lie at the same places in CUPTI 12.0 to 13.5 (cupti_activity.h: CUpti_ActivityKernel9 to 13, …).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from microbench.recorder.cells import (
    CUDA_EVENT,
    DRIVER,
    KERNEL,
    LAUNCHES,
    LONGEST_TEXT,
    MEMCPY,
    MEMSET,
    NAME,
    OVERHEAD,
    PEER_MEMCPY,
    PER_THREAD,
    RECORDS_EVENT,
    RUNTIME,
    STREAM_WAITS,
    SYNC,
    TEXT_BYTES,
    WAITS_FOR_ALL,
    WAITS_FOR_EVENT,
)
from microbench.recorder.state import (
    ACTIONS,
    BEGUN,
    BEGUN_SLOTS,
    CALL_ROWS,
    CALLS_MUTEX,
    DISK,
    DROPPED_CALLS,
    ENDING,
    ERROR,
    FILE,
    FINISHED,
    FIRST_LAUNCH,
    FUNCTIONS,
    HANDED_OUT_BYTES,
    LAST_COUNTED,
    LAST_LAUNCH,
    LAUNCHED,
    LEAST_FREE_BYTES,
    LOCKED_OUT,
    MOST_CALLS,
    MUTEX,
    NAME_SLOTS,
    PROCESS,
    ROWS,
    ROWS_BYTES,
    SEEN_NAMES,
    STOPPED,
    WAITING,
    WAITING_CALLS,
    WRITTEN_BYTES,
)

# Small buffers, because CUPTI delivers only full ones while the program runs, and a killed program loses the others. If
# many bytes are handed out (many threads, a slow disk), buffers become smaller; beyond MOST_BYTES none is given, and
# CUPTI drops records and counts them.
BUFFER_BYTES, SMALL_BUFFER_BYTES = 1 << 18, 1 << 15
MANY_BYTES, MOST_BYTES = 256 << 20, 1 << 30
# Rows are written before the longest name might not fit any more.
FULL_CELLS = (ROWS_BYTES >> 6) - LONGEST_TEXT // TEXT_BYTES - 2
TRIES = 64  # slots that are tried for one name in the table of names
EINTR, EBADF, ENOSPC = 4, 9, 28
SEEK_CURRENT = 1
LOW = 0xFFFFFFFF  # mask for functions that return 32 bits
I64 = ir.IntType(64)

(
    MALLOC, FREE, COPY, LENGTH, WRITE, SEEK, DISK_OF, GETPID, LOCK, UNLOCK, TRY_LOCK, SELF, YIELD, ERRNO, NEXT, STAMP,
    STREAM_ID,
) = FUNCTIONS.values()  # fmt: skip
RUNTIME_DOMAIN = 2
# After LOCK_TRIES tries, a lock in a forked child counts as held by a thread that no longer exists. In the process
# itself the holder may be waiting for a processor, or be interrupted by the signal handler that runs this, so there are
# LOCK_ROUNDS rounds.
LOCK_TRIES, LOCK_ROUNDS = 20_000, 200
UNKNOWN = LOW  # an unknown stream or event


def _loader(bits: int) -> Any:
    """A function that reads an unsigned number of so many bits at an address."""

    @intrinsic
    def load(typing_context, address):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            value = builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()))
            return builder.zext(value, I64) if bits < 64 else value

        return types.int64(types.int64), generate

    return load


def _storer(bits: int) -> Any:
    """A function that writes the low bits of a number to an address."""

    @intrinsic
    def store(typing_context, address, value):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            low = builder.trunc(arguments[1], ir.IntType(bits)) if bits < 64 else arguments[1]
            builder.store(low, builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store


u8, u16, u32, u64 = _loader(8), _loader(16), _loader(32), _loader(64)
put16, put32, put64 = _storer(16), _storer(32), _storer(64)


@intrinsic
def add(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Add to a word that several threads change."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], I64.as_pointer()), arguments[1], "monotonic")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def call4(typing_context, function, a, b, c, d):  # type: ignore[no-untyped-def]
    """Call a function of C whose address is at an address; it ignores arguments that it does not have."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        form = ir.FunctionType(I64, [I64] * 4)
        address = builder.load(builder.inttoptr(arguments[0], I64.as_pointer()))
        return builder.call(builder.inttoptr(address, form.as_pointer()), arguments[1:])

    return types.int64(*[types.int64] * 5), generate


@njit
def call(function, a, b, c):  # type: ignore[no-untyped-def]
    """Like ``call4``, for a function of at most three arguments."""
    return call4(function, a, b, c, 0)


def requested(buffer, size, most_records, unused, unused_too, state):  # type: ignore[no-untyped-def]
    """CUPTI needs memory for records; the arguments are where it wants to be told about it."""
    wanted = BUFFER_BYTES if u64(state + HANDED_OUT_BYTES) < MANY_BYTES else SMALL_BUFFER_BYTES
    block = 0
    if u64(state + HANDED_OUT_BYTES) < MOST_BYTES and u64(state + STOPPED) == 0:
        block = call(state + MALLOC, wanted, 0, 0)
    if block == 0:
        wanted = 0
    add(state + HANDED_OUT_BYTES, wanted)
    put64(buffer, block)
    put64(size, wanted)
    put64(most_records, 0)


def completed(context, stream, buffer, size, valid_bytes, state):  # type: ignore[no-untyped-def]
    """CUPTI gives the memory back, with records in it. A forked child, which shares the file, writes nothing."""
    add(state + HANDED_OUT_BYTES, -size)
    if buffer != 0 and valid_bytes > 0 and call(state + GETPID, 0, 0, 0) & LOW == u64(state + PROCESS):
        call(state + LOCK, state + MUTEX, 0, 0)
        if u64(state + STOPPED) == 0:
            _keep(state, buffer, valid_bytes)
        call(state + UNLOCK, state + MUTEX, 0, 0)
        _write_waiting(state)
    call(state + FREE, buffer, 0, 0)


def given(cells, size, unused, unused_too, unused_as_well, state):  # type: ignore[no-untyped-def]
    """Python has made cells, at most ROWS_BYTES. It calls this without its lock: a thread that has Python's lock may
    wait for CUPTI, which waits for the mutex."""
    if call(state + GETPID, 0, 0, 0) & LOW == u64(state + PROCESS):
        _write_waiting(state)
        _give(state, cells, size)


def called(user, domain, number, data, unused, state):  # type: ignore[no-untyped-def]
    """The program enters a call that is recorded, or leaves it. ``data`` is a CUpti_CallbackData: 0 at its begin for
    the former, the call's parameters at 16, a word for us at 56, and the correlation at 64.

    A driver call with the same correlation as the runtime call around it is not the program's own and is not recorded.
    """
    domain, number, correlation, kept = domain & LOW, number & LOW, u32(data + 64), u64(data + 56)
    begun = state + BEGUN + ((correlation & (BEGUN_SLOTS - 1)) << 3)
    if u32(data) == 0:
        put64(kept, 0)
        if domain == RUNTIME_DOMAIN:
            put64(begun, correlation)
        if domain == RUNTIME_DOMAIN or u64(begun) != correlation:
            call(state + STAMP, kept, 0, 0)
        return
    begin_ns = u64(kept)
    if domain == RUNTIME_DOMAIN:
        put64(begun, 0)
    if begin_ns == 0 or number >= MOST_CALLS or u64(state + STOPPED) != 0:
        return
    call(state + STAMP, kept, 0, 0)
    end_ns = u64(kept)
    action = u8(state + ACTIONS + (domain - 1) * MOST_CALLS + number)
    stream, event = _stream_and_event(state, action, data, kept)
    if not _lock_calls(state):
        add(state + DROPPED_CALLS, 1)
        return
    kind = RUNTIME if domain == RUNTIME_DOMAIN else DRIVER
    thread = call(state + SELF, 0, 0, 0)
    _call_row(state, kind, number, begin_ns, end_ns, correlation, thread, 0, 0)
    type = action & 15
    if type == RECORDS_EVENT:
        _call_row(state, CUDA_EVENT, 0, 0, 1, correlation, 0, stream, event)
    elif action & LAUNCHES:
        if u64(state + FIRST_LAUNCH) == 0:
            put64(state + FIRST_LAUNCH, correlation)
        put64(state + LAST_LAUNCH, correlation)
        add(state + LAUNCHED, 1)
    elif type != 0:
        _call_row(state, SYNC, type, begin_ns, end_ns, correlation, 0, stream, event)
    if u64(state + WAITING_CALLS) > CALL_ROWS - 2:
        _write_calls(state)
    call(state + UNLOCK, state + CALLS_MUTEX, 0, 0)


@njit
def _stream_and_event(state, action, data, kept):  # type: ignore[no-untyped-def]
    """The number of the stream of a call, as records of kernels have it, and the number of its event."""
    parameters, type = u64(data + 16), action & 15
    stream, event = UNKNOWN, UNKNOWN
    if type == 0 or type == WAITS_FOR_ALL or parameters == 0:
        return stream, event
    first = u64(parameters)
    if type in (WAITS_FOR_EVENT, RECORDS_EVENT):
        event = first >> 4 & LOW  # the low bits of an address are always 0
    elif type == STREAM_WAITS:
        event = u64(parameters + 8) >> 4 & LOW
    if type != WAITS_FOR_EVENT:
        handle = u64(parameters + 8) if type == RECORDS_EVENT else first
        put64(kept, 0)
        if call4(state + STREAM_ID, u64(data + 40), handle, (action & PER_THREAD) >> 4, kept) & LOW == 0:
            stream = u32(kept)
    return stream, event


@njit
def _lock_calls(state):  # type: ignore[no-untyped-def]
    """Lock the rows of calls. Returns whether that was possible; it can fail only in a forked child."""
    if u64(state + LOCKED_OUT) != 0:
        return False
    for _ in range(LOCK_ROUNDS):
        for _ in range(LOCK_TRIES):
            if call(state + TRY_LOCK, state + CALLS_MUTEX, 0, 0) & LOW == 0:
                return True
            call(state + YIELD, 0, 0, 0)
        if call(state + GETPID, 0, 0, 0) & LOW != u64(state + PROCESS):
            put64(state + LOCKED_OUT, 1)
            return False
    return False


@njit
def _call_row(state, kind, detail, begin_ns, end_ns, correlation, place, stream, size):  # type: ignore[no-untyped-def]
    """Add a row to those of calls."""
    row = state + WAITING + (u64(state + WAITING_CALLS) << 6)
    put16(row, kind)
    put16(row + 2, detail)
    put32(row + 4, 0)
    put64(row + 8, begin_ns)
    put64(row + 16, end_ns)
    put32(row + 24, correlation)
    put32(row + 28, place)
    put32(row + 32, stream)
    put32(row + 36, 0)
    put64(row + 40, size)
    put64(row + 48, 0)
    put64(row + 56, 0)
    add(state + WAITING_CALLS, 1)


@njit
def _write_waiting(state):  # type: ignore[no-untyped-def]
    """Write the rows of calls that wait, although there is room for more."""
    if _lock_calls(state):
        _write_calls(state)
        call(state + UNLOCK, state + CALLS_MUTEX, 0, 0)


@njit
def _write_calls(state):  # type: ignore[no-untyped-def]
    """Write the rows of calls. A forked child, which shares the file, forgets them."""
    if call(state + GETPID, 0, 0, 0) & LOW == u64(state + PROCESS):
        _give(state, state + WAITING, u64(state + WAITING_CALLS) << 6)
    put64(state + WAITING_CALLS, 0)


@njit
def _give(state, cells, size):  # type: ignore[no-untyped-def]
    """Write cells when no other thread writes."""
    call(state + LOCK, state + MUTEX, 0, 0)
    if u64(state + STOPPED) == 0:
        call(state + COPY, state + ROWS, cells, size)
        _write(state, size >> 6)
    call(state + UNLOCK, state + MUTEX, 0, 0)


@njit
def _keep(state, buffer, valid_bytes):  # type: ignore[no-untyped-def]
    """Write all records of a buffer."""
    place = call(state + MALLOC, 8, 0, 0)
    if place == 0:
        return
    put64(place, 0)
    cells = 0
    while call(state + NEXT, buffer, valid_bytes, place) & LOW == 0:
        record = u64(place)
        if u32(record) == KERNEL:
            cells = _name(state, u64(record + 104), cells)
            _count(state, u32(record + 92), u32(record + 156))
        cells += _row(state + ROWS + (cells << 6), record, u64(state + ENDING))
        if cells >= FULL_CELLS:
            _write(state, cells)
            cells = 0
    _write(state, cells)
    call(state + FREE, place, 0, 0)


@njit
def _count(state, correlation, graph):  # type: ignore[no-untyped-def]
    """Count a kernel that was launched in this window and by itself."""
    first, last = u64(state + FIRST_LAUNCH), u64(state + LAST_COUNTED)
    if graph == 0 and first != 0 and correlation >= first and (last == 0 or correlation <= last):
        add(state + FINISHED, 1)


@njit
def _row(row, record, ending):  # type: ignore[no-untyped-def]
    """Fill a row from a record. Returns 1, or 0 for a record of another kind, and for what has not ended when the
    recording ends."""
    kind = u32(record)
    detail, flags, place, stream, graph, size, name, node = 0, 0, 0, 0, 0, 0, 0, 0
    begin_ns, end_ns, correlation = 0, 1, 0
    if kind == KERNEL:
        begin_ns, end_ns, correlation = u64(record + 16), u64(record + 24), u32(record + 92)
        place, stream = u32(record + 40), u32(record + 48)
        size = u32(record + 52) * u32(record + 56) * u32(record + 60)
        flags = u32(record + 64) * u32(record + 68) * u32(record + 72)
        name, node, graph = u64(record + 104), u64(record + 144), u32(record + 156)
    elif kind in (MEMCPY, PEER_MEMCPY, MEMSET):
        size, begin_ns, end_ns = u64(record + 8), u64(record + 16), u64(record + 24)
        place, stream = u32(record + 32), u32(record + 40)
        if kind == PEER_MEMCPY:
            correlation, node, graph = u32(record + 60), u64(record + 72), u32(record + 80)
        else:
            correlation, node, graph = u32(record + 44), u64(record + 64), u32(record + 72)
        if kind == MEMSET:
            flags = u16(record + 50)
        else:
            detail, flags = u8(record + 4), u8(record + 5) | u8(record + 6) << 8
    elif kind == OVERHEAD:
        flags, place = u32(record + 4), u32(record + 16)
        begin_ns, end_ns = u64(record + 24), u64(record + 32)
    else:
        return 0
    if ending != 0 and end_ns == 0:
        return 0
    put16(row, kind)
    put16(row + 2, detail)
    put32(row + 4, flags)
    put64(row + 8, begin_ns)
    put64(row + 16, end_ns)
    put32(row + 24, correlation)
    put32(row + 28, place)
    put32(row + 32, stream)
    put32(row + 36, graph)
    put64(row + 40, size)
    put64(row + 48, name)
    put64(row + 56, node)
    return 1


@njit
def _name(state, name, cells):  # type: ignore[no-untyped-def]
    """Put the text of a name before its first row. Returns the number of cells that now wait for being written.

    A name that finds no slot in the table is left out.
    """
    slot = (name >> 3) * 40503
    new = False
    for _ in range(TRIES):
        seen = state + SEEN_NAMES + ((slot & (NAME_SLOTS - 1)) << 3)
        new = u64(seen) == 0
        if new or u64(seen) == name:
            put64(seen, name)
            break
        slot += 1
    if not new or name == 0:
        return cells
    length = min(call(state + LENGTH, name, 0, 0), LONGEST_TEXT)
    part, begun = 0, 0
    while begun < length:
        cell = state + ROWS + (cells << 6)
        put16(cell, NAME)
        put16(cell + 2, part)
        put32(cell + 4, length)
        put64(cell + 8, name)
        for empty in range(16, 64, 8):
            put64(cell + empty, 0)
        call(state + COPY, cell + 16, name + begun, min(length - begun, TEXT_BYTES))
        begun += TEXT_BYTES
        part += 1
        cells += 1
    return cells


@njit
def _write(state, cells):  # type: ignore[no-untyped-def]
    """Write the cells that wait. After a failure nothing more is written, so the file stays whole up to there."""
    file, begun, end = u64(state + FILE), 0, cells << 6
    # A program that closes all files may have opened another one by this number since.
    if call(state + SEEK, file, 0, SEEK_CURRENT) != u64(state + WRITTEN_BYTES):
        _fail(state, EBADF)
        return
    disk = state + DISK  # statvfs: the second word is the size of a block, the fifth the number of free ones
    known = call(state + DISK_OF, file, disk, 0) & LOW == 0
    if known and u64(disk + 32) * u64(disk + 8) < u64(state + LEAST_FREE_BYTES):
        _fail(state, ENOSPC)
        return
    while begun < end:
        written = call(state + WRITE, file, state + ROWS + begun, end - begun)
        if written > 0:
            begun += written
        else:
            error = u32(call(state + ERRNO, 0, 0, 0))
            if error != EINTR:
                _fail(state, error)
                return
    add(state + WRITTEN_BYTES, end)


@njit
def _fail(state, error):  # type: ignore[no-untyped-def]
    put64(state + ERROR, error)
    put64(state + STOPPED, 1)
