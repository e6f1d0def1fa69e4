"""What needs the host to watch memory that the GPU writes: start, complete, flag round trips, host reads."""

from __future__ import annotations

from functools import partial

import numpy as np

from microbench.errors import MeasurementError
from microbench.gpu.api import IntArray
from microbench.gpu.context import Context, check_code, entry_point
from microbench.gpu.modules import Modules
from microbench.gpu.submit import Parameters, launch
from microbench.host import loops
from microbench.host.affinity import core_plan, on_cores
from microbench.host.native import c_address
from microbench.ops import Launch

WATCH_TIMEOUT_NS = 5_000_000_000
LINE_WORDS = 32  # flags lie a 128-byte line apart, so that polling one does not slow the other
CHASE_LINES = 16_384
CHASE_READS = 500
LINE_BYTES = 64
SEED = 20240229


class Flags:
    """Flag experiments of one case."""

    def __init__(self, context: Context, modules: Modules, stream: int) -> None:
        self._context = context
        self._modules = modules
        self._stream = stream
        self._words = context.pinned(8 * LINE_WORDS)
        self._clock = c_address("clock_gettime")
        self._watcher_core = core_plan().watcher_core

    def _flag(self, index: int) -> int:
        return int(self._words.ctypes.data) + 4 * LINE_WORDS * index

    def start_stamps(self, count: int) -> IntArray:
        """See Gpu.start_stamps: a second, pinned thread watches the flag, as this one sits in the calls."""
        self._words[:] = 0
        flag, watched = self._flag(0), self._flag(1)
        rows = Parameters([(flag, index + 1) for index in range(count)])
        submit = launch(self._modules.function("launch", "mark"), Launch(), self._stream, rows)
        synchronize = entry_point("cuStreamSynchronize")
        out: IntArray = np.zeros((count, 4), dtype=np.int64)
        watch = partial(loops.watch_flag, flag, watched, self._clock, WATCH_TIMEOUT_NS, out)
        watcher = on_cores(watch, (self._watcher_core,))
        code = loops.launch_and_synchronize(
            submit.address, submit.arguments, rows.stride, synchronize, self._stream, watched, self._clock, out
        )
        watcher.result()
        check_code(code, "launch and synchronise")
        return out

    def flag_round_trips(self, count: int) -> IntArray:
        """See Gpu.flag_round_trips."""
        self._words[:] = 0
        question, reply = self._flag(2), self._flag(3)
        row = (question, reply, count, WATCH_TIMEOUT_NS)
        out: IntArray = np.zeros(count, dtype=np.int64)
        loops.ask(question, reply, self._clock, 0, out[:0])  # loads the loop before the kernel waits
        launch(self._modules.function("launch", "answer"), Launch(block_threads=1), self._stream, Parameters([row]))(1)
        answered = loops.ask(question, reply, self._clock, WATCH_TIMEOUT_NS, out)
        self._context.synchronize()
        if answered < count:
            raise MeasurementError(f"the GPU answered {answered} of {count} flags")
        return out

    def host_read_ns(self, count: int) -> IntArray:
        """See Gpu.host_read_ns: CHASE_READS reads a chain, one 64-byte line each, in random order over 1 MiB."""
        order = np.random.default_rng(SEED).permutation(CHASE_LINES)
        words = LINE_BYTES // 4
        chain = self._context.pinned(CHASE_LINES * words)
        chain[order * words] = np.roll(order, -1) * words
        result = self._context.pinned(2, np.uint64)
        row = (int(chain.ctypes.data), CHASE_READS, int(result.ctypes.data))
        submit = launch(
            self._modules.function("launch", "chase"), Launch(block_threads=1), self._stream, Parameters([row])
        )
        out: IntArray = np.zeros(count, dtype=np.int64)
        expected = 0
        for _ in range(CHASE_READS):
            expected = int(chain[expected])
        for index in range(count + 1):  # the first one warms the translation caches
            submit(1)
            self._context.synchronize()
            if int(result[1]) != expected:
                raise MeasurementError("the chase through host memory ended at the wrong element")
            if index:
                out[index - 1] = round(int(result[0]) / CHASE_READS)
        return out
