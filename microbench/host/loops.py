"""Numba-compiled host loops that submit, stamp each call or poll a flag; no Python runs between two calls.

Entry points are addresses passed as ARGUMENTS and called through an intrinsic: numba does not cache a loop that uses a
global, and a cached address would be wrong in the next process. Driver calls take only integers and pointers, so one
call form with 64-bit arguments serves them all: the System V x86-64 and AAPCS64 conventions give each argument a
register or an 8-byte slot of its own, the callee reads the low half of a 32-bit argument, and the caller cleans up
surplus ones. Calls of up to four arguments use the narrow form, launches (eleven arguments) the wide one. Each loop
returns the first code that is not 0; 0 is success.
"""

import mmap
from collections.abc import Callable
from typing import Any

from microbench.core.errors import Skip
from microbench.core.ops import IntArray

try:
    import numba
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic
except ModuleNotFoundError as error:
    raise Skip(f"needs Numba, which compiles its loops: pip install numba ({error})") from error

CLOCK_MONOTONIC = 1
SECOND_NS = 1_000_000_000
WIDE_ARGUMENTS = 11
NARROW_ARGUMENTS = 4
MAP_ARGUMENTS = 6
SPIN_TIMEOUT_NS = 10_000_000_000

READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
MAP_FAILED = -1

_I32, _I64 = ir.IntType(32), ir.IntType(64)


def compiled(function: Callable[..., Any]) -> Any:
    """The loop, compiled by Numba at its first call and cached; without a folder to write to, each process compiles."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # Numba found no folder for its cache
        return numba.njit(nogil=True)(function)


def _call(builder: Any, address: Any, arguments: Any) -> Any:
    function_type = ir.FunctionType(_I32, [_I64] * len(arguments))
    return builder.call(builder.inttoptr(address, function_type.as_pointer()), arguments)


@intrinsic
def call_narrow(typing_context, address, a, b, c, d):  # type: ignore[no-untyped-def]
    """int f(a, b, c, d) by address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return _call(builder, arguments[0], arguments[1:])

    return types.int32(*[types.int64] * (1 + NARROW_ARGUMENTS)), generate


@intrinsic
def call_wide(typing_context, address, a, b, c, d, e, f, g, h, i, j, k):  # type: ignore[no-untyped-def]
    """int f(a … k) by address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return _call(builder, arguments[0], arguments[1:])

    return types.int32(*[types.int64] * (1 + WIDE_ARGUMENTS)), generate


@intrinsic
def now_ns(typing_context, clock_gettime):  # type: ignore[no-untyped-def]
    """CLOCK_MONOTONIC in ns through clock_gettime's address; a call takes 20 to 40 ns through the vDSO."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        timespec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
        pointer = builder.ptrtoint(timespec, _I64)
        _call(builder, arguments[0], [ir.Constant(_I64, CLOCK_MONOTONIC), pointer])
        fields = [builder.load(cgutils.gep(builder, timespec, 0, index)) for index in range(2)]
        return builder.add(builder.mul(fields[0], ir.Constant(_I64, SECOND_NS)), fields[1])

    return types.int64(types.int64), generate


@intrinsic
def load_flag(typing_context, address):  # type: ignore[no-untyped-def]
    """Atomic acquire load of 32 bits. A plain load would be hoisted out of a polling loop, which would never end."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load_atomic(builder.inttoptr(arguments[0], _I32.as_pointer()), "acquire", 4)

    return types.int32(types.int64), generate


@intrinsic
def store_flag(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Atomic release store of 32 bits."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        value = builder.trunc(arguments[1], _I32)
        builder.store_atomic(value, builder.inttoptr(arguments[0], _I32.as_pointer()), "release", 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def add_flag(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Atomic add to 32 bits; returns the value before."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        value = builder.trunc(arguments[1], _I32)
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], _I32.as_pointer()), value, "acq_rel")

    return types.int32(types.int64, types.int64), generate


@compiled
def call_row(address: int, a: IntArray, stride: int, index: int) -> int:
    """One call. ``a`` holds 4 or 11 arguments; kernelParams (the third or the tenth) advances by ``stride`` bytes a
    call, so that each launch of a batch may have parameters of its own."""
    if a.size == 4:
        return call_narrow(address, a[0], a[1], a[2] + stride * index, a[3])
    return call_wide(address, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9] + stride * index, a[10])


@compiled
def first_code(code: int, result: int) -> int:
    """The first of two codes that is not 0: a later error must not replace an earlier one."""
    return code if code != 0 else result


@compiled
def submit(address: int, a: IntArray, stride: int, count: int) -> int:
    """Call ``count`` times."""
    code = 0
    for index in range(count):
        code = first_code(code, call_row(address, a, stride, index))
    return code


@compiled
def submit_timed(address: int, a: IntArray, stride: int, count: int, clock: int) -> tuple[int, int]:
    """Call ``count`` times; returns the code and the ns from before the first call to after the last."""
    code = 0
    begin = now_ns(clock)
    for index in range(count):
        code = first_code(code, call_row(address, a, stride, index))
    return code, now_ns(clock) - begin


@compiled
def submit_stamped(address: int, a: IntArray, stride: int, clock: int, out: IntArray) -> int:
    """Call ``out.size - 1`` times; ``out`` gets a stamp before each call and one after the last."""
    code = 0
    out[0] = now_ns(clock)
    for index in range(out.size - 1):
        code = first_code(code, call_row(address, a, stride, index))
        out[index + 1] = now_ns(clock)
    return code


@compiled
def round_trips(address: int, a: IntArray, calls: int, synchronize: int, stream: int, clock: int, out: IntArray) -> int:
    """Repeat ``calls`` calls and a synchronise of their stream; ``out`` gets the ns of each repetition."""
    code = 0
    for index in range(out.size):
        begin = now_ns(clock)
        for _ in range(calls):
            code = first_code(code, call_row(address, a, 0, 0))
        code = first_code(code, call_narrow(synchronize, stream, 0, 0, 0))
        out[index] = now_ns(clock) - begin
    return code


@compiled
def wait_for(flag: int, value: int, clock: int) -> bool:
    """Spin until the flag reaches the value; False after SPIN_TIMEOUT_NS: the thread that sets it may be dead."""
    polls = 0
    began = now_ns(clock)
    while load_flag(flag) < value:
        polls += 1
        if polls & 1023 == 0 and now_ns(clock) - began > SPIN_TIMEOUT_NS:
            return False
    return True


@compiled
def submit_round_robin(
    address: int, a: IntArray, streams: IntArray, count: int, synchronize: int, clock: int
) -> tuple[int, int]:
    """Launch ``count`` times (wide form) on one stream after the other, then wait for all; returns code and ns."""
    code = 0
    begin = now_ns(clock)
    for index in range(count):
        a[8] = streams[index % streams.size]
        code = first_code(code, call_row(address, a, 0, 0))
    code = first_code(code, call_narrow(synchronize, 0, 0, 0, 0))
    return code, now_ns(clock) - begin


@compiled
def submit_together(
    address: int, a: IntArray, warm: int, count: int, clock: int, ready: int, start: int, out: IntArray
) -> int:
    """Run in each of several threads: call ``warm`` times, report ready, spin until ``start`` is set, call ``count``
    times. ``out`` gets begin and end. Returns -1 if ``start`` was not set within SPIN_TIMEOUT_NS."""
    code = 0
    for index in range(warm):
        code = first_code(code, call_row(address, a, 0, index))
    add_flag(ready, 1)
    if not wait_for(start, 1, clock):
        return -1
    out[0] = now_ns(clock)
    for index in range(count):
        code = first_code(code, call_row(address, a, 0, index))
    out[1] = now_ns(clock)
    return code


@compiled
def start_when_ready(ready: int, start: int, threads: int, clock: int) -> bool:
    """Set the start flag once all threads are ready; False if they were not within SPIN_TIMEOUT_NS."""
    if not wait_for(ready, threads, clock):
        return False
    store_flag(start, 1)
    return True


@compiled
def launch_and_synchronize(
    address: int, a: IntArray, stride: int, synchronize: int, stream: int, watched: int, clock: int, out: IntArray
) -> int:
    """Rounds of launch and synchronise while another thread runs ``watch_flag``; stamps out[:, (0, 1, 3)].

    Each round waits until the watcher has seen its flag, so that no flag is overwritten unseen.
    """
    code = 0
    for index in range(out.shape[0]):
        out[index, 0] = now_ns(clock)
        code = first_code(code, call_row(address, a, stride, index))
        out[index, 1] = now_ns(clock)
        code = first_code(code, call_narrow(synchronize, stream, 0, 0, 0))
        out[index, 3] = now_ns(clock)
        if code != 0:
            store_flag(watched, -1)
            return code
        if not wait_for(watched, index + 1, clock):
            return -1
    return code


@compiled
def watch_flag(flag: int, watched: int, clock: int, timeout_ns: int, out: IntArray) -> int:
    """Stamp out[:, 2] when the flag reaches 1, 2, 3 …; returns how many were seen, fewer after ``timeout_ns``."""
    begin = now_ns(clock)
    for index in range(out.shape[0]):
        polls = 0
        while load_flag(flag) < index + 1:
            polls += 1
            if polls & 1023 == 0 and (load_flag(watched) < 0 or now_ns(clock) - begin > timeout_ns):
                store_flag(watched, out.shape[0])
                return index
        out[index, 2] = now_ns(clock)
        store_flag(watched, index + 1)
    return out.shape[0]


@compiled
def launch_and_wait(
    address: int, a: IntArray, stride: int, record: int, event: int, wait: int, stream: int, clock: int, out: IntArray
) -> int:
    """Rounds of a launch and a wait; stamps before the launch, after it, and after the wait in the columns of ``out``.

    ``record`` is the address of cuEventRecord, or 0 for a wait that is the stream's own: ``wait`` is that of
    cuEventSynchronize or cuStreamSynchronize.
    """
    code = 0
    for index in range(out.shape[0]):
        out[index, 0] = now_ns(clock)
        code = first_code(code, call_row(address, a, stride, index))
        out[index, 1] = now_ns(clock)
        if record != 0:
            code = first_code(code, call_narrow(record, event, stream, 0, 0))
        code = first_code(code, call_narrow(wait, event if record != 0 else stream, 0, 0, 0))
        out[index, 2] = now_ns(clock)
    return code


@compiled
def signal_rounds(
    addresses: IntArray,
    rows: IntArray,
    watched: int,
    answered: int,
    held_ns: int,
    synchronize: int,
    stream: int,
    clock: int,
    timeout_ns: int,
    out: IntArray,
) -> int:
    """Rounds of several calls and a synchronise; ``rows[round, call]`` holds the 11 arguments of a call.

    ``out`` gets a stamp after the calls, one when the flag ``watched`` shows the round's number (from 1 on), and one
    before the host sets ``answered`` to it, ``held_ns`` after the round's begin at the earliest. With an address of 0
    that step is skipped. A failed call, a flag that is not seen within ``timeout_ns`` (code -1) and an answer that
    another thread has given already (code -2) end the rounds. The answer is given first, because the stream may be
    waiting for it.
    """
    for index in range(out.shape[0]):
        code = 0
        began = now_ns(clock)
        for call in range(addresses.size):
            code = first_code(code, call_row(addresses[call], rows[index, call], 0, 0))
        out[index, 0] = now_ns(clock)
        if watched != 0 and code == 0:
            polls = 0
            while load_flag(watched) != index + 1 and code == 0:
                polls += 1
                if polls & 1023 == 0 and now_ns(clock) - out[index, 0] > timeout_ns:
                    code = -1
            out[index, 1] = now_ns(clock)
        if answered != 0:
            while now_ns(clock) - began < held_ns:
                pass
            out[index, 2] = now_ns(clock)
            if load_flag(answered) > index:
                code = first_code(code, -2)
            else:
                store_flag(answered, index + 1)
        code = first_code(code, call_narrow(synchronize, stream, 0, 0, 0))
        if code != 0:
            return code
    return 0


@compiled
def ask(question: int, reply: int, clock: int, timeout_ns: int, out: IntArray) -> int:
    """Set the question flag to 1, 2, 3 …; returns how many were answered.

    ``out``, of shape (n, 2), gets the ns before each question and after its reply.
    """
    began = now_ns(clock)
    for index in range(out.shape[0]):
        out[index, 0] = now_ns(clock)
        store_flag(question, index + 1)
        polls = 0
        while load_flag(reply) != index + 1:
            polls += 1
            if polls & 1023 == 0 and now_ns(clock) - began > timeout_ns:
                return index
        out[index, 1] = now_ns(clock)
    return out.shape[0]


@compiled
def hand_over(mine: int, theirs: int, first: int, clock: int, out: IntArray) -> bool:
    """Two threads pass a turn back and forth by flags; the thread with ``first`` = 1 times each round trip in ns.

    False if the other thread did not answer within SPIN_TIMEOUT_NS.
    """
    for index in range(out.size):
        begin = now_ns(clock)
        if first == 1:
            store_flag(theirs, index + 1)
        if not wait_for(mine, index + 1, clock):
            return False
        if first != 1:
            store_flag(theirs, index + 1)
        out[index] = now_ns(clock) - begin
    return True


@compiled
def clock_stamps(clock: int, out: IntArray) -> None:
    """Readings of the clock with nothing between them."""
    for index in range(out.size):
        out[index] = now_ns(clock)


# Pages of memory: map, touch, read, and calls that take and release.


@intrinsic
def call_mmap(typing_context, address, a, b, c, d, e, f):  # type: ignore[no-untyped-def]
    """void *f(a ... f) by address, as an integer: unlike the other calls it returns all 64 bits."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        function_type = ir.FunctionType(_I64, [_I64] * MAP_ARGUMENTS)
        return builder.call(builder.inttoptr(arguments[0], function_type.as_pointer()), arguments[1:])

    return types.int64(*[types.int64] * (1 + MAP_ARGUMENTS)), generate


@compiled
def touch_pages(address: int, size_bytes: int, page_bytes: int) -> None:
    """Write one word of each page, so that all pages exist. Atomic stores are not optimised away."""
    for offset in range(0, size_bytes, page_bytes):
        store_flag(address + offset, 1)


@compiled
def read_pages(address: int, size_bytes: int, page_bytes: int, clock: int, out: IntArray) -> None:
    """Read the first word of each page: out = ns, sum of the words. Atomic loads are not optimised away."""
    total = 0
    begin = now_ns(clock)
    for offset in range(0, size_bytes, page_bytes):
        total += load_flag(address + offset)
    out[0] = now_ns(clock) - begin
    out[1] = total


@compiled
def map_and_touch(map_pages: int, unmap: int, size_bytes: int, page_bytes: int, clock: int, out: IntArray) -> bool:
    """Map fresh pages, touch each, unmap them: out as in ``take_and_release``. False if nothing was mapped."""
    out[0] = now_ns(clock)
    address = call_mmap(map_pages, 0, size_bytes, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    if address == MAP_FAILED:
        return False
    touch_pages(address, size_bytes, page_bytes)
    out[1] = now_ns(clock)
    out[2] = now_ns(clock)
    released = call_narrow(unmap, address, size_bytes, 0, 0)
    out[3] = now_ns(clock)
    return released == 0


@compiled
def take_and_release(
    take: int, a: int, b: int, c: int, d: int, release: int, last: int, held: IntArray, clock: int, out: IntArray
) -> tuple[int, int]:
    """``take(a, b, c, d)``, which may write held[0], then ``release(held[0], last)``: the codes of both.

    ``out`` gets the clock before and after each call. If the first call fails, the second one is not made.
    """
    out[0] = now_ns(clock)
    taken = call_narrow(take, a, b, c, d)
    out[1] = now_ns(clock)
    if taken != 0:
        return taken, 0
    out[2] = now_ns(clock)
    released = call_narrow(release, held[0], last, 0, 0)
    out[3] = now_ns(clock)
    return taken, released
