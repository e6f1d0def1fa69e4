"""Numba-compiled host loops over the life and the changes of a graph; no Python runs between two stamps.

As in loops.py, entry points are addresses passed as arguments. A driver call that returns a value through a pointer
writes into ``scratch``, an array of 64-bit words whose address is among the arguments.
"""

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

# The functions whose addresses are the ``entries`` of the loops below, and the place of each.
ENTRY_NAMES = (
    "cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphCreate", "cuGraphAddKernelNode",
    "cuGraphInstantiateWithFlags", "cuGraphUpload", "cuGraphLaunch", "cuStreamSynchronize", "cuGraphExecDestroy",
    "cuGraphDestroy", "cuGraphExecUpdate", "cuGraphExecKernelNodeSetParams",
)  # fmt: skip
(
    BEGIN_CAPTURE, END_CAPTURE, CREATE, ADD_KERNEL, INSTANTIATE, UPLOAD,
    LAUNCH, SYNCHRONIZE, DESTROY_EXECUTABLE, DESTROY, UPDATE, SET_PARAMS,
) = range(len(ENTRY_NAMES))  # fmt: skip
# Words of the scratch array: handles that the driver writes.
GRAPH, EXECUTABLE = 0, 1
WORD_BYTES = 8
THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


@compiled
def capture(entries: IntArray, a: IntArray, stride: int, count: int, stream: int, scratch_address: int) -> int:
    """Capture ``count`` launches (as loops.call_row makes them) into a graph; its handle goes to scratch[GRAPH]."""
    code = call_narrow(entries[BEGIN_CAPTURE], stream, THREAD_LOCAL, 0, 0)
    for index in range(count):
        code = first_code(code, call_row(a[11], a[:11], stride, index))
    return first_code(code, call_narrow(entries[END_CAPTURE], stream, scratch_address + GRAPH * WORD_BYTES, 0, 0))


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
    """Build a chain of ``count`` kernel nodes; ``params`` is the address of their parameters' records.

    ``graph`` is the scratch array, ``scratch`` its address; the nodes' handles go to ``nodes`` (at ``nodes_address``).
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
    return code


@compiled
def run_first(
    entries: IntArray, addresses: IntArray, scratch: IntArray, uploads: bool, stream: int, clock: int, out: IntArray
) -> int:
    """Instantiate scratch[GRAPH], upload it if asked to, launch it and wait; stops at the first code that is not 0."""
    code = call_narrow(entries[INSTANTIATE], addresses[0] + EXECUTABLE * WORD_BYTES, scratch[GRAPH], 0, 0)
    out[2] = now_ns(clock)
    out[3] = out[4] = out[2]
    if code != 0:
        scratch[EXECUTABLE] = 0
        return code
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
    return code


@compiled
def dispose(entries: IntArray, executable: int, graph: int) -> int:
    """Destroy an executable graph and a graph; handles of 0 are skipped."""
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
    """One life of a chain of nodes.size equal kernels; ``out`` is a row of Graphs.lives.

    ``a`` holds a launch's 11 arguments and the address of the launch call; ``params`` is the address of a node's
    record; ``addresses`` are those of ``scratch`` and ``nodes``. A graph that is not captured is built and not
    uploaded. After a failed call its missing result is not used, and what was made is destroyed.
    """
    scratch[GRAPH] = scratch[EXECUTABLE] = 0
    out[0] = now_ns(clock)
    if captured:
        code = capture(entries, a, 0, nodes.size, stream, addresses[0])
    else:
        code = build(entries, params, 0, nodes.size, nodes, addresses[1], addresses[0], scratch)
    out[1] = now_ns(clock)
    if code == 0:
        code = run_first(entries, addresses, scratch, captured, stream, clock, out)
    code = first_code(code, dispose(entries, scratch[EXECUTABLE], scratch[GRAPH]))
    out[7] = now_ns(clock)
    return code


@compiled
def replay_twice(entries: IntArray, executable: int, stream: int, clock: int, out: IntArray) -> int:
    """The two replays after a change; fills out[3:8] of a row of Graphs.changes."""
    code = call_narrow(entries[LAUNCH], executable, stream, 0, 0)
    out[3] = now_ns(clock)
    code = first_code(code, call_narrow(entries[SYNCHRONIZE], stream, 0, 0, 0))
    out[4] = now_ns(clock)
    out[5] = now_ns(clock)
    code = first_code(code, call_narrow(entries[LAUNCH], executable, stream, 0, 0))
    out[6] = now_ns(clock)
    code = first_code(code, call_narrow(entries[SYNCHRONIZE], stream, 0, 0, 0))
    out[7] = out[8] = now_ns(clock)
    return code


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
    """Set the parameters of the first ``changed`` nodes, then replay twice; ``out`` is a row of Graphs.changes."""
    code = 0
    out[0] = out[1] = now_ns(clock)
    for index in range(changed):
        code = first_code(code, call_narrow(entries[SET_PARAMS], executable, nodes[index], params + stride * index, 0))
    out[2] = now_ns(clock)
    return first_code(code, replay_twice(entries, executable, stream, clock, out))


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
    """Capture a graph again, update scratch[EXECUTABLE] to it or replace that by a new executable, then replay twice.

    ``result`` is the address of a CUgraphExecUpdateResultInfo. Returns the code of the first call that failed; in that
    case the old executable stays and nothing is replayed.
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
    return code


@compiled
def timed_call(address: int, a: int, b: int, c: int, clock: int) -> tuple[int, int]:
    """One call; returns code and ns."""
    begin = now_ns(clock)
    code = call_narrow(address, a, b, c, 0)
    return code, now_ns(clock) - begin


@compiled
def submit_rows(addresses: IntArray, rows: IntArray, takes: IntArray, scratch: IntArray, count: int) -> int:
    """``count`` calls, row after row and then from the first again; each row holds 11 arguments.

    If ``takes[i]`` is not negative, that argument of row i is scratch[0], which an earlier call may have written.
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
    """Make ``each`` calls ``out.size - 1`` times, with a stamp before each time and one after the last."""
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
    """Repeat ``each`` calls and a synchronise of ``stream`` or of the context; ``out`` gets the ns of each time."""
    code = 0
    for index in range(out.size):
        begin = now_ns(clock)
        code = first_code(code, submit_rows(addresses, rows, takes, scratch, each))
        code = first_code(code, call_narrow(synchronize, stream, 0, 0, 0))
        out[index] = now_ns(clock) - begin
    return code


@compiled
def rows_until_done(
    addresses: IntArray, rows: IntArray, count: int, synchronize: int, streams: IntArray, clock: int
) -> tuple[int, int, int]:
    """All rows ``count`` times, then a synchronise of each stream.

    Returns the first code of the rows, the first code of the synchronises, and the ns of all that.
    """
    code = 0
    waited = 0
    begin = now_ns(clock)
    for _ in range(count):
        for row in range(addresses.size):
            code = first_code(code, call_row(addresses[row], rows[row], 0, 0))
    for stream in streams:
        waited = first_code(waited, call_narrow(synchronize, stream, 0, 0, 0))
    return code, waited, now_ns(clock) - begin


@compiled
def iterate(
    address: int, a: IntArray, synchronize: int, stream: int, flag: int, count: int, clock: int
) -> tuple[int, int]:
    """Launch a kernel that adds 1 to ``flag`` until it is ``count``; returns code and ns, code -1 on a time-out.

    With the address of ``synchronize`` the host waits for the stream, then reads the flag; with 0 it polls the flag.
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


# The driver calls host functions from its own threads; compiled ones need no interpreter lock.


@numba.cfunc(types.void(types.int64), cache=True)
def append_on_host(words: int) -> None:
    """A host function of a graph or stream: writes the word at ``words`` plus 1 into the word after it."""
    store_flag(words + 4, load_flag(words) + 1)


@numba.cfunc(types.void(types.CPointer(types.int64)), cache=True)
def stamp_on_host(words: IntArray) -> None:
    """A host function that stamps its begin and end: words 1 and 2, by the address of clock_gettime in word 0."""
    stamps = numba.carray(words, 3)
    stamps[1] = now_ns(stamps[0])
    stamps[2] = now_ns(stamps[0])
