"""Numba-compiled host loops over pages of memory: map, touch, read, and calls that take and release."""

import mmap

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from microbench.core.ops import IntArray
from microbench.host.loops import call_narrow, compiled, load_flag, now_ns, store_flag

READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
MAP_FAILED = -1
MAP_ARGUMENTS = 6


@intrinsic
def call_mmap(typing_context, address, a, b, c, d, e, f):  # type: ignore[no-untyped-def]
    """void *f(a ... f) by address, as an integer: unlike the calls of host/loops.py it returns all 64 bits."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        long = ir.IntType(64)
        function_type = ir.FunctionType(long, [long] * MAP_ARGUMENTS)
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
