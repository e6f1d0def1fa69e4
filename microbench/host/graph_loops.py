"""Numba-compiled host loops over a graph's life and its changes: no Python runs between two stamps.

The pattern is that of loops.py: entry points are addresses passed as arguments. A driver call that answers through a
pointer writes into ``scratch``, an array of 64-bit words whose address is among the arguments.
"""

from __future__ import annotations

from enum import IntEnum

import numba
from numba import types

from microbench.core.ops import IntArray
from microbench.host.loops import (
    call_narrow,
    call_row,
    call_wide,
    compiled,
    first_code,
    load_flag,
    now_ns,
    store_flag,
    wait_for,
)


class Entry(IntEnum):
    """Which address stands where in the ``entries`` of the loops below."""

    BEGIN_CAPTURE = 0
    END_CAPTURE = 1
    CREATE = 2
    ADD_KERNEL = 3
    INSTANTIATE = 4
    UPLOAD = 5
    LAUNCH = 6
    SYNCHRONIZE = 7
    DESTROY_EXECUTABLE = 8
    DESTROY = 9
    UPDATE = 10
    SET_PARAMS = 11


BEGIN_CAPTURE, END_CAPTURE, CREATE, ADD_KERNEL = (
    int(one) for one in (Entry.BEGIN_CAPTURE, Entry.END_CAPTURE, Entry.CREATE, Entry.ADD_KERNEL)
)
INSTANTIATE, UPLOAD, LAUNCH, SYNCHRONIZE = (
    int(one) for one in (Entry.INSTANTIATE, Entry.UPLOAD, Entry.LAUNCH, Entry.SYNCHRONIZE)
)
DESTROY_EXECUTABLE, DESTROY, UPDATE, SET_PARAMS = (
    int(one) for one in (Entry.DESTROY_EXECUTABLE, Entry.DESTROY, Entry.UPDATE, Entry.SET_PARAMS)
)
# Words of the scratch array: handles that the driver writes.
GRAPH, EXECUTABLE = 0, 1
WORD_BYTES = 8
THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


@compiled
def capture(entries: IntArray, a: IntArray, stride: int, count: int, stream: int, scratch_address: int) -> int:
    """Capture ``count`` launches (see loops.call_row) into the graph whose handle scratch[GRAPH] takes."""
    code = call_narrow(entries[BEGIN_CAPTURE], stream, THREAD_LOCAL, 0, 0)
    for index in range(count):
        code = first_code(code, call_row(a[11], a[:11], stride, index))
    return first_code(  # type: ignore[no-any-return]
        code, call_narrow(entries[END_CAPTURE], stream, scratch_address + GRAPH * WORD_BYTES, 0, 0)
    )


@compiled
def build(
    entries: IntArray,
    params: int,
    stride: int,
    count: int,
    nodes: IntArray,
    nodes_address: int,
    scratch: int,
    graph: IntArray,
) -> int:
    """Make a chain of ``count`` kernel nodes, node by node; ``params`` is the address of their parameters' records.

    ``graph`` is the scratch array, ``scratch`` its address; ``nodes`` (at ``nodes_address``) takes the nodes' handles.
    """
    code = call_narrow(entries[CREATE], scratch + GRAPH * WORD_BYTES, 0, 0, 0)
    for index in range(count):
        place = nodes_address + index * WORD_BYTES
        before, befores = (place - WORD_BYTES, 1) if index else (0, 0)
        code = first_code(
            code,
            call_wide(
                entries[ADD_KERNEL], place, graph[GRAPH], before, befores, params + stride * index, 0, 0, 0, 0, 0, 0
            ),
        )
    return code  # type: ignore[no-any-return]


@compiled
def make(
    entries: IntArray,
    a: IntArray,
    params: int,
    nodes: IntArray,
    addresses: IntArray,
    scratch: IntArray,
    captured: bool,
    stream: int,
) -> int:
    """A chain of nodes.size kernels, captured or built, as scratch[GRAPH]: 0 there if the driver gave none."""
    scratch[GRAPH] = scratch[EXECUTABLE] = 0
    if captured:
        return capture(entries, a, 0, nodes.size, stream, addresses[0])  # type: ignore[no-any-return]
    return build(  # type: ignore[no-any-return]
        entries, params, 0, nodes.size, nodes, addresses[1], addresses[0], scratch
    )


@compiled
def run_first(
    entries: IntArray, addresses: IntArray, scratch: IntArray, uploads: bool, stream: int, clock: int, out: IntArray
) -> int:
    """Instantiate scratch[GRAPH], upload it or not, launch it and wait; stops at the first code that is not 0."""
    code = call_narrow(entries[INSTANTIATE], addresses[0] + EXECUTABLE * WORD_BYTES, scratch[GRAPH], 0, 0)
    out[2] = now_ns(clock)
    out[3] = out[4] = out[2]
    if code != 0:
        scratch[EXECUTABLE] = 0
        return code  # type: ignore[no-any-return]
    if uploads:
        code = call_narrow(entries[UPLOAD], scratch[EXECUTABLE], stream, 0, 0)
        out[3] = now_ns(clock)
        code = first_code(code, call_narrow(entries[SYNCHRONIZE], stream, 0, 0, 0))
        out[4] = now_ns(clock)
    if code == 0:
        code = call_narrow(entries[LAUNCH], scratch[EXECUTABLE], stream, 0, 0)
        out[5] = now_ns(clock)
        code = first_code(code, call_narrow(entries[SYNCHRONIZE], stream, 0, 0, 0))
        out[6] = now_ns(clock)
    return code  # type: ignore[no-any-return]


@compiled
def dispose(entries: IntArray, executable: int, graph: int) -> int:
    """Destroy what is there of an executable graph and a graph; 0 is none."""
    code = 0
    if executable != 0:
        code = call_narrow(entries[DESTROY_EXECUTABLE], executable, 0, 0, 0)
    if graph != 0:
        code = first_code(code, call_narrow(entries[DESTROY], graph, 0, 0, 0))
    return code


@compiled
def live(
    entries: IntArray,
    a: IntArray,
    params: int,
    nodes: IntArray,
    addresses: IntArray,
    scratch: IntArray,
    captured: bool,
    stream: int,
    clock: int,
    out: IntArray,
) -> int:
    """One life of a chain of nodes.size kernels, all the same; out is a row of Graphs.lives.

    ``a`` are a launch's 11 arguments and the address of the launch call; ``params`` the address of a node's record;
    ``addresses`` those of ``scratch`` and ``nodes``. A graph that is not captured is built, and not uploaded. After a
    call that fails nothing more is done with what it should have made, and what was made is destroyed.
    """
    out[0] = now_ns(clock)
    code = make(entries, a, params, nodes, addresses, scratch, captured, stream)
    out[1] = now_ns(clock)
    if code == 0:
        code = run_first(entries, addresses, scratch, captured, stream, clock, out)
    code = first_code(code, dispose(entries, scratch[EXECUTABLE], scratch[GRAPH]))
    out[7] = now_ns(clock)
    return code  # type: ignore[no-any-return]


@compiled
def replay_twice(entries: IntArray, executable: int, stream: int, clock: int, out: IntArray) -> int:
    """The two replays behind a change: out[3:8] of a row of Graphs.changes."""
    code = call_narrow(entries[LAUNCH], executable, stream, 0, 0)
    out[3] = now_ns(clock)
    code = first_code(code, call_narrow(entries[SYNCHRONIZE], stream, 0, 0, 0))
    out[4] = now_ns(clock)
    out[5] = now_ns(clock)
    code = first_code(code, call_narrow(entries[LAUNCH], executable, stream, 0, 0))
    out[6] = now_ns(clock)
    code = first_code(code, call_narrow(entries[SYNCHRONIZE], stream, 0, 0, 0))
    out[7] = out[8] = now_ns(clock)
    return code  # type: ignore[no-any-return]


@compiled
def change_nodes(
    entries: IntArray,
    executable: int,
    nodes: IntArray,
    params: int,
    stride: int,
    changed: int,
    stream: int,
    clock: int,
    out: IntArray,
) -> int:
    """Set the parameters of the first ``changed`` nodes, then replay twice; out is a row of Graphs.changes."""
    code = 0
    out[0] = out[1] = now_ns(clock)
    for index in range(changed):
        code = first_code(code, call_narrow(entries[SET_PARAMS], executable, nodes[index], params + stride * index, 0))
    out[2] = now_ns(clock)
    return first_code(code, replay_twice(entries, executable, stream, clock, out))  # type: ignore[no-any-return]


@compiled
def change_whole(
    entries: IntArray,
    a: IntArray,
    stride: int,
    count: int,
    scratch: IntArray,
    scratch_address: int,
    result: int,
    rebuild: bool,
    stream: int,
    clock: int,
    out: IntArray,
) -> int:
    """Capture a graph anew; update scratch[EXECUTABLE] to it, or make a new executable in its place; replay twice.

    ``result`` is the address of a CUgraphExecUpdateResultInfo. The code is that of the first call that failed: the old
    executable stays then, where it was to be replaced, and nothing is replayed.
    """
    old = scratch[EXECUTABLE]
    scratch[GRAPH] = 0
    out[0] = now_ns(clock)
    code = capture(entries, a, stride, count, stream, scratch_address)
    out[1] = now_ns(clock)
    made = False
    if code == 0 and rebuild:
        place = scratch_address + EXECUTABLE * WORD_BYTES
        code = call_narrow(entries[INSTANTIATE], place, scratch[GRAPH], 0, 0)
        made = code == 0
        if not made:
            scratch[EXECUTABLE] = old
    elif code == 0:
        code = call_narrow(entries[UPDATE], old, scratch[GRAPH], result, 0)
    out[2] = now_ns(clock)
    if code == 0:
        code = replay_twice(entries, scratch[EXECUTABLE], stream, clock, out)
    code = first_code(code, dispose(entries, old if made else 0, scratch[GRAPH]))
    out[8] = now_ns(clock)
    return code  # type: ignore[no-any-return]


# Numba-compiled host loops over rows of different calls: mixed chains, work on several streams, iterations.


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


# Functions of the host that the driver calls from threads of its own: compiled, as Python would need its lock.


@numba.cfunc(types.void(types.int64), cache=True)
def append_on_host(words: int) -> None:
    """A host function of a graph or stream: the word after the one at ``words`` becomes that and 1."""
    store_flag(words + 4, load_flag(words) + 1)
