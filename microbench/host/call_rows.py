"""Numba-compiled host loops over rows of different calls: mixed chains, work on several streams, iterations."""

from __future__ import annotations

from microbench.gpu.bound import IntArray
from microbench.host.loops import call_narrow, call_row, compiled, first_code, load_flag, now_ns, wait_for


@compiled
def timed_call(address: int, a: int, b: int, c: int, clock: int) -> tuple[int, int]:
    """One call: (code, ns)."""
    begin = now_ns(clock)
    code = call_narrow(address, a, b, c, 0)
    return code, now_ns(clock) - begin


@compiled
def submit_rows(addresses: IntArray, rows: IntArray, takes: IntArray, scratch: IntArray, count: int) -> int:
    """``count`` calls, row after row and from the first again: rows hold 11 arguments each.

    Where ``takes[i]`` is not negative, that argument of row i is scratch[0], which a call before may have written.
    """
    code = 0
    row = 0
    for _ in range(count):
        if takes[row] >= 0:
            rows[row, takes[row]] = scratch[0]
        code = first_code(code, call_row(addresses[row], rows[row], 0, 0))
        row += 1
        if row == addresses.size:
            row = 0
    return code


@compiled
def submit_rows_stamped(
    addresses: IntArray, rows: IntArray, takes: IntArray, scratch: IntArray, each: int, clock: int, out: IntArray
) -> int:
    """``out.size - 1`` times ``each`` calls, a stamp before each time and one after the last."""
    code = 0
    out[0] = now_ns(clock)
    for index in range(out.size - 1):
        code = first_code(code, submit_rows(addresses, rows, takes, scratch, each))
        out[index + 1] = now_ns(clock)
    return code


@compiled
def rows_round_trips(
    addresses: IntArray,
    rows: IntArray,
    takes: IntArray,
    scratch: IntArray,
    each: int,
    synchronize: int,
    stream: int,
    clock: int,
    out: IntArray,
) -> int:
    """``out.size`` times ``each`` calls and a synchronise, of ``stream`` or of the context: ns of each."""
    code = 0
    for index in range(out.size):
        begin = now_ns(clock)
        code = first_code(code, submit_rows(addresses, rows, takes, scratch, each))
        code = first_code(code, call_narrow(synchronize, stream, 0, 0, 0))
        out[index] = now_ns(clock) - begin
    return code


@compiled
def iterate(
    address: int, a: IntArray, synchronize: int, stream: int, flag: int, count: int, clock: int
) -> tuple[int, int]:
    """Launch a kernel that counts up to ``flag`` until it says ``count``: (code, ns); code -1 if it never does.

    With a ``synchronize`` (its address) the host waits for the stream before it looks; with 0 it watches the flag.
    """
    code = 0
    seen = 0
    begin = now_ns(clock)
    while seen < count and code == 0:
        code = first_code(code, call_row(address, a, 0, 0))
        if synchronize != 0:
            code = first_code(code, call_narrow(synchronize, stream, 0, 0, 0))
        elif not wait_for(flag, seen + 1, clock):
            return -1, 0
        seen = load_flag(flag)
    return code, now_ns(clock) - begin
