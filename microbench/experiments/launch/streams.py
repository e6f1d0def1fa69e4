"""Launches from several threads and into several streams, and how many kernels run at the same time."""

from functools import partial
from heapq import heappop, heappush

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.gpu.cuda.context import check_code, entry_point
from microbench.gpu.cuda.timing import SpinGate
from microbench.gpu.experiment import Case, IntArray, Launch, Parameters, experiment, launch, loops
from microbench.gpu.fake.machine import FakeGate, Machine, call_of
from microbench.host.affinity import on_cores
from microbench.host.native import c_address

LINE_WORDS = 32  # flags lie a 128-byte line apart, so that polling one does not slow the other


def real_resident(case: Case, streams: int, duration_ns: int) -> int:
    """The largest number of kernels resident at the same time: one-block kernels behind a gate, one a stream."""
    gate = case.once(SpinGate)
    counters = case.device_memory(256)
    kernel = case.function("launch", "resident")
    row = Parameters([(counters, counters + 128, case.cycles(duration_ns))])
    submits = [launch(case, kernel, Launch(block_threads=1, stream=index), row) for index in range(streams)]
    submits[0](1)
    case.synchronize()
    case.clear(counters, 256)
    gate.shut(tuple(range(streams)))
    for submit in submits:
        submit(1)
    gate.open()
    case.synchronize()
    if gate.was_late():
        raise MeasurementError("the gate timed out before all streams had their kernel")
    return int(case.read(counters + 128, 1, np.uint32)[0])


def real_threads_stamps(case: Case, threads: int, count: int) -> IntArray:
    """``threads`` host threads start together; each launches ``count`` empty kernels into its own stream.

    Returns begin and end of each thread's loop in host ns, shape (threads, 2). Raises Skip for more threads than
    physical cores.
    """
    helpers = case.board.cores.helpers
    if threads > len(helpers):
        raise Skip(f"needs {threads} physical cores: this process may use {len(helpers)}")
    words = case.pinned(2 * LINE_WORDS)
    ready, start = int(words.ctypes.data), int(words.ctypes.data) + 4 * LINE_WORDS
    out: IntArray = np.zeros((threads, 2), dtype=np.int64)
    function, clock = case.function("launch", "empty"), c_address("clock_gettime")
    submits = [launch(case, function, Launch(stream=index)) for index in range(threads)]

    def work(index: int) -> int:
        case.context.make_current()
        submit = submits[index]
        return int(loops.submit_together(submit.address, submit.arguments, 1, count, clock, ready, start, out[index]))

    workers = [on_cores(partial(work, index), (helpers[index],)) for index in range(threads)]
    loops.start_when_ready(ready, start, threads, clock)
    for worker in workers:
        check_code(worker.result(), "launches of several threads")
    return out


def real_round_robin_ns(case: Case, streams: int, count: int) -> int:
    """Launch ``count`` empty kernels into ``streams`` streams in turn and wait for all: host ns in total."""
    submit = launch(case, case.function("launch", "empty"), Launch())
    handles: IntArray = np.array([case.stream(index) for index in range(streams)], dtype=np.int64)
    wait, clock = entry_point("cuCtxSynchronize"), c_address("clock_gettime")
    code, elapsed_ns = loops.submit_round_robin(submit.address, submit.arguments, handles, count, wait, clock)
    check_code(code, "launches into several streams")
    return int(elapsed_ns)


def simulated_resident(machine: Machine, streams: int, duration_ns: int) -> int:
    """The front end starts one kernel after another, and waits for an end while the SMs are full."""
    gate = FakeGate(machine)
    gate.shut(range(streams))
    for stream in range(streams):
        machine.make(call_of(Launch(duration_ns=duration_ns, stream=stream), machine.costs), 1)
    gate.open()
    machine.synchronize()
    running: list[float] = []
    start_ns, most = 0.0, 0
    for _ in range(streams):
        while running and (running[0] <= start_ns or len(running) == machine.costs.resident_kernels):
            start_ns = max(start_ns, heappop(running))
        heappush(running, start_ns + machine.costs.kernel_ns(duration_ns))
        most = max(most, len(running))
        start_ns += machine.costs.front_end_ns
    return most


def simulated_threads_stamps(machine: Machine, threads: int, count: int) -> IntArray:
    """Each thread's calls take longer by a constant for each other thread."""
    begin_ns = machine.clock.now_ns()
    contention_ns = (threads - 1) * machine.costs.thread_contention_ns
    stamps = np.zeros((threads, 2), dtype=np.int64)
    for thread in range(threads):
        call = call_of(Launch(stream=thread), machine.costs)
        assert call.item is not None, "a launch puts a kernel into its stream"
        calls_ns = machine.noise.host(call.host_ns, count) + contention_ns
        returned_ns, _ = machine.device.submit(thread, call.item, begin_ns, calls_ns)
        stamps[thread] = begin_ns, machine.clock.shown(float(returned_ns[-1]))
    machine.clock.wait_until(float(stamps.max()))
    machine.synchronize()
    return stamps


def simulated_round_robin_ns(machine: Machine, streams: int, count: int) -> int:
    calls = [call_of(Launch(stream=stream), machine.costs) for stream in range(streams)]
    begin_ns = machine.clock.now_ns()
    for index in range(count):
        machine.make(calls[index % streams], 1)
    machine.synchronize()
    return machine.clock.now_ns() - begin_ns


resident = experiment(real_resident, simulated_resident)
threads_stamps = experiment(real_threads_stamps, simulated_threads_stamps)
round_robin_ns = experiment(real_round_robin_ns, simulated_round_robin_ns)
