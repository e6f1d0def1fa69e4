"""Launches from several host threads at once, and from one thread into several streams in turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from microbench.errors import Skip
from microbench.gpu.api import IntArray
from microbench.gpu.context import Context, check_code, entry_point
from microbench.gpu.flags import LINE_WORDS
from microbench.gpu.modules import Modules
from microbench.gpu.submit import launch
from microbench.host import loops
from microbench.host.affinity import Cores, on_cores
from microbench.host.native import c_address
from microbench.ops import Launch


def threads_stamps(
    context: Context, modules: Modules, stream: Callable[[int], int], cores: Cores, threads: int, count: int
) -> IntArray:
    """See Gpu.threads_stamps. Each thread has a physical core of its own."""
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
    """See Gpu.round_robin_ns."""
    one = launch(modules.function("launch", "empty"), Launch(), stream(0), None)
    handles: IntArray = np.array([stream(index) for index in range(streams)], dtype=np.int64)
    wait, clock = entry_point("cuCtxSynchronize"), c_address("clock_gettime")
    code, elapsed_ns = loops.submit_round_robin(one.address, one.arguments, handles, count, wait, clock)
    check_code(code, "launches into several streams")
    return int(elapsed_ns)
