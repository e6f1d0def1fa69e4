"""What needs the host to watch memory that the GPU writes: start, complete, flag round trips, host reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from cuda.bindings import driver

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda.context import Context, Modules, check_code, entry_point
from microbench.gpu.cuda.submit import Parameters, launch
from microbench.host import loops
from microbench.host.affinity import Cores, on_cores
from microbench.host.native import c_address

WATCH_TIMEOUT_NS = 5_000_000_000
LINE_WORDS = 32  # flags lie a 128-byte line apart, so that polling one does not slow the other
CHASE_LINES = 16_384
CHASE_READS = 500
LINE_BYTES = 64
SEED = 20240229


class Flags:
    """Flag experiments of one case."""

    def __init__(self, context: Context, modules: Modules, stream: int, cores: Cores) -> None:
        self._context = context
        self._modules = modules
        self._stream = stream
        self._words = context.pinned(8 * LINE_WORDS)
        self._clock = c_address("clock_gettime")
        self._cores = cores
        self._chain: Chain | None = None

    def _flag(self, index: int) -> int:
        return int(self._words.ctypes.data) + 4 * LINE_WORDS * index

    def start_stamps(self, count: int) -> IntArray:
        """See Gpu.start_stamps: a second, pinned thread watches the flag, as this one sits in the calls.

        One round more is made first and left out: the watcher may still be on its way.
        """
        if not self._cores.watcher_alone:
            raise Skip("needs a second CPU for the thread that watches the flag: this process may use one only")
        self._words[:] = 0
        flag, watched = self._flag(0), self._flag(1)
        rows = Parameters([(flag, index + 1) for index in range(count + 1)])
        submit = launch(self._modules.function("launch", "mark"), Launch(), self._stream, rows)
        synchronize = entry_point("cuStreamSynchronize")
        out: IntArray = np.zeros((count + 1, 4), dtype=np.int64)
        watch = partial(loops.watch_flag, flag, watched, self._clock, WATCH_TIMEOUT_NS, out)
        watcher = on_cores(watch, (self._cores.plan.watcher_core,))
        code = loops.launch_and_synchronize(
            submit.address, submit.arguments, rows.stride, synchronize, self._stream, watched, self._clock, out
        )
        watcher.result()
        check_code(code, "launch and synchronise")
        return out[1:]

    def flag_round_trips(self, count: int) -> IntArray:
        """The first exchange holds the kernel's start and is left out."""
        self._words[:] = 0
        question, reply = self._flag(2), self._flag(3)
        row = (question, reply, count + 1, WATCH_TIMEOUT_NS)
        out: IntArray = np.zeros(count + 1, dtype=np.int64)
        loops.ask(question, reply, self._clock, 0, out[:0])  # loads the loop before the kernel waits
        launch(self._modules.function("launch", "answer"), Launch(block_threads=1), self._stream, Parameters([row]))(1)
        driver.cuStreamQuery(self._stream)  # some drivers collect launches until they are asked
        answered = loops.ask(question, reply, self._clock, WATCH_TIMEOUT_NS, out)
        self._context.synchronize()
        if answered < count + 1:
            raise MeasurementError(f"the GPU answered {answered} of {count + 1} flags")
        return out[1:]

    def host_read_ns(self, count: int) -> IntArray:
        """See Gpu.host_read_ns: CHASE_READS reads a chain, one 64-byte line each, in random order over 1 MiB."""
        if self._chain is None:
            self._chain = Chain(self._context, self._modules, self._stream)
            self._chain.walk_ns()  # warms the translation caches
        chain = self._chain
        return np.array([chain.walk_ns() for _ in range(count)], dtype=np.int64)


class Chain:
    """Lines of host memory in random order, each holding where the next one is; a walk goes on where the last ended."""

    def __init__(self, context: Context, modules: Modules, stream: int) -> None:
        self._context = context
        order = np.random.default_rng(SEED).permutation(CHASE_LINES)
        words = LINE_BYTES // 4
        self._chain = context.pinned(CHASE_LINES * words)
        self._chain[order * words] = np.roll(order, -1) * words
        self._result = context.pinned(2, np.uint64)
        row = (int(self._chain.ctypes.data), CHASE_READS, int(self._result.ctypes.data))
        function = modules.function("launch", "chase")
        self._submit = launch(function, Launch(block_threads=1), stream, Parameters([row]))

    def walk_ns(self) -> int:
        """ns a read over CHASE_READS of them. Raises MeasurementError when the walk ended at the wrong line."""
        expected = int(self._result[1])
        for _ in range(CHASE_READS):
            expected = int(self._chain[expected])
        self._submit(1)
        self._context.synchronize()
        if int(self._result[1]) != expected:
            raise MeasurementError("the walk through host memory ended at the wrong line")
        return round(int(self._result[0]) / CHASE_READS)


# Launches from several host threads at once, and from one thread into several streams in turn.


def threads_stamps(
    context: Context, modules: Modules, stream: Callable[[int], int], cores: Cores, threads: int, count: int
) -> IntArray:
    """Each thread has a physical core of its own."""
    helpers = cores.helpers
    if threads > len(helpers):
        raise Skip(f"needs {threads} physical cores: this process may use {len(helpers)}")
    words = context.pinned(2 * LINE_WORDS)
    ready, start = int(words.ctypes.data), int(words.ctypes.data) + 4 * LINE_WORDS
    out: IntArray = np.zeros((threads, 2), dtype=np.int64)
    function, clock = modules.function("launch", "empty"), c_address("clock_gettime")
    submits = [launch(function, Launch(), stream(index), None) for index in range(threads)]

    def work(index: int) -> int:
        context.make_current()
        one = submits[index]
        return int(loops.submit_together(one.address, one.arguments, 1, count, clock, ready, start, out[index]))

    workers = [on_cores(partial(work, index), (helpers[index],)) for index in range(threads)]
    loops.start_when_ready(ready, start, threads, clock)
    for worker in workers:
        check_code(worker.result(), "launches of several threads")
    return out


def round_robin_ns(modules: Modules, stream: Callable[[int], int], streams: int, count: int) -> int:
    one = launch(modules.function("launch", "empty"), Launch(), stream(0), None)
    handles: IntArray = np.array([stream(index) for index in range(streams)], dtype=np.int64)
    wait, clock = entry_point("cuCtxSynchronize"), c_address("clock_gettime")
    code, elapsed_ns = loops.submit_round_robin(one.address, one.arguments, handles, count, wait, clock)
    check_code(code, "launches into several streams")
    return int(elapsed_ns)
