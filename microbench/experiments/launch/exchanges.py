"""Flags between host and GPU, stamps of the parts of a launch on one clock, and launches from several threads."""

from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from microbench.gpu.cuda.context import check_code, entry_point
from microbench.gpu.cuda.submit import DriverSubmit, Parameters, launch
from microbench.gpu.cuda.timing import SpinGate
from microbench.gpu.experiment import Case, IntArray, Launch, MeasurementError, Skip, driver, experiment, loops
from microbench.gpu.fake.machine import FakeGate, Machine, call_of
from microbench.host.affinity import on_cores
from microbench.host.native import c_address

WATCH_TIMEOUT_NS = 5_000_000_000
LINE_WORDS = 32  # flags lie a 128-byte line apart, so that polling one does not slow the other
CHASE_LINES = 16_384
CHASE_READS = 500
LINE_BYTES = 64
SEED = 20240229
TIE_EXCHANGES = 30
# The watcher thread of start_stamps is preempted once in a thousand launches and misses the flag.
MISSED_FLAG_SHARE = 0.001


class LaunchStamps(NamedTuple):
    """Launches of one kernel, each followed by a wait for it, on the host's clock in ns.

    ``stamps`` has the shape (launches, 5): before the call, after it, the kernel's first and last instruction, after
    the wait. The kernel's own times are %globaltimer converted to the host's clock, with an offset from exchanges of
    flags before and after the launches. ``round_trip_ns`` is the quickest exchange before or the quickest one after,
    whichever is slower; the error of the offset is at most half of it.
    """

    stamps: IntArray
    round_trip_ns: int


def _flags(case: Case, first: int) -> tuple[int, int]:
    """Addresses of two flags of this case; all flags are cleared."""
    words = case.once(Case.pinned, 8 * LINE_WORDS)
    words[:] = 0
    address = int(words.ctypes.data) + 4 * LINE_WORDS * first
    return address, address + 4 * LINE_WORDS


def real_start_stamps(case: Case, count: int) -> IntArray:
    """``count`` times: launch an empty kernel whose first instruction sets a flag, then synchronise the stream.

    Returns the host clock in ns, shape (count, 4): before the call, after the call, when a second thread saw the
    flag, after the synchronise. A stamp of 0 means that the second thread missed the flag. Raises Skip if there is
    no second CPU to watch from.

    A second, pinned thread watches the flag, because this thread is inside the calls. An extra first round is dropped,
    because the watcher may not be ready in it.
    """
    cores = case.board.cores
    if not cores.watcher_alone:
        raise Skip("needs a second CPU for the thread that watches the flag: this process may use one only")
    flag, watched = _flags(case, 0)
    rows = Parameters([(flag, index + 1) for index in range(count + 1)])
    submit = launch(case, case.function("launch", "mark"), Launch(), rows)
    synchronize, clock = entry_point("cuStreamSynchronize"), c_address("clock_gettime")
    out: IntArray = np.zeros((count + 1, 4), dtype=np.int64)
    watch = partial(loops.watch_flag, flag, watched, clock, WATCH_TIMEOUT_NS, out)
    watcher = on_cores(watch, (cores.watcher_core,))
    code = loops.launch_and_synchronize(
        submit.address, submit.arguments, rows.stride, synchronize, submit.stream, watched, clock, out
    )
    watcher.result()
    check_code(code, "launch and synchronise")
    return out[1:]


def real_flag_round_trips(case: Case, count: int) -> IntArray:
    """``count`` times: the host sets a flag, the GPU answers with another, the host sees it. Shape (count,), ns."""
    exchanged = _exchanges(case, count, "answer")
    return exchanged[:, 1] - exchanged[:, 0]


def _exchanges(case: Case, count: int, kernel: str, *words: int) -> IntArray:
    """Host ns before each question and after its reply, shape (count, 2).

    ``words`` are the kernel's arguments after the flags. The first exchange contains the start of the kernel and is
    dropped.
    """
    question, reply = _flags(case, 2)
    clock = c_address("clock_gettime")
    row = (question, reply, *words, count + 1, WATCH_TIMEOUT_NS)
    out: IntArray = np.zeros((count + 1, 2), dtype=np.int64)
    loops.ask(question, reply, clock, 0, out[:0])  # loads the loop before the kernel waits
    launch(case, case.function("launch", kernel), Launch(block_threads=1), Parameters([row]))(1)
    driver.cuStreamQuery(case.stream(0))  # some drivers submit launches only at a query
    answered = loops.ask(question, reply, clock, WATCH_TIMEOUT_NS, out)
    case.synchronize()
    if answered < count + 1:
        raise MeasurementError(f"the GPU answered {answered} of {count + 1} flags")
    return out[1:]


class ClockTie(NamedTuple):
    """A reading of %globaltimer and of the host's clock at one moment, in ns, by the quickest of several exchanges.

    The GPU saw the question within the ``round_trip_ns`` from its sending to the reply's arrival; the middle is taken.
    """

    host_ns: int
    gpu_ns: int
    round_trip_ns: int


def clock_tie(case: Case) -> ClockTie:
    seen = case.once(Case.device_memory, 8 * (TIE_EXCHANGES + 1))
    exchanged = _exchanges(case, TIE_EXCHANGES, "answer_timed", seen)
    gpu_ns = case.read(seen, TIE_EXCHANGES + 1, np.int64)[1:]
    quickest = int((exchanged[:, 1] - exchanged[:, 0]).argmin())
    sent_ns, replied_ns = (int(value) for value in exchanged[quickest])
    return ClockTie((sent_ns + replied_ns) // 2, int(gpu_ns[quickest]), replied_ns - sent_ns)


def real_launch_stamps(case: Case, count: int, duration_ns: int = 0, *, blocking_event: bool = False) -> LaunchStamps:
    """``count`` times: launch a kernel of that length that records its begin and end, then wait for it.

    The wait is the stream's synchronise in the mode of the context, or with ``blocking_event`` the synchronise of
    an event that has the flag for blocking waits. Nothing else runs on the host meanwhile.

    Ties before and after the launches give the offset and drift of the GPU's clock. Raises MeasurementError if a kernel
    did not run.
    """
    submit, recorded = case.once(_recording_launch, count, case.cycles(duration_ns))
    event = case.once(Case.event, timed=False, blocking=True) if blocking_event else 0
    record = entry_point("cuEventRecord") if blocking_event else 0
    wait = entry_point("cuEventSynchronize" if blocking_event else "cuStreamSynchronize")
    clock = c_address("clock_gettime")
    out_ns: IntArray = np.zeros((count, 3), dtype=np.int64)
    case.clear(recorded, 16 * count)
    before = clock_tie(case)
    code = loops.launch_and_wait(
        submit.address, submit.arguments, submit.stride, record, event, wait, submit.stream, clock, out_ns
    )
    check_code(code, "launch and wait")
    after = clock_tie(case)
    gpu_ns = case.read(recorded, 2 * count, np.int64).reshape(count, 2)
    if not gpu_ns.all():
        raise MeasurementError("a recording kernel did not run")
    stamps = np.column_stack([out_ns[:, :2], on_host_clock(gpu_ns, before, after), out_ns[:, 2]])
    return LaunchStamps(stamps, max(before.round_trip_ns, after.round_trip_ns))


def on_host_clock(gpu_ns: IntArray, before: ClockTie, after: ClockTie) -> IntArray:
    """Readings of %globaltimer as ns of the host clock, on the straight line through two ties.

    Only differences become floats: %globaltimer counts from 1970, which a float holds to 256 ns.
    """
    rate = (after.host_ns - before.host_ns) / (after.gpu_ns - before.gpu_ns)
    elapsed: IntArray = np.round((gpu_ns - before.gpu_ns) * rate).astype(np.int64)
    return before.host_ns + elapsed


def _recording_launch(case: Case, count: int, cycles: int) -> tuple[DriverSubmit, int]:
    """The launch of ``count`` kernels that spin for ``cycles``, and the address of the 2 words that each one writes."""
    out, function = case.device_memory(16 * count), case.function("launch", "record")
    launch(case, function, Launch(), Parameters([(out, 0, 0)]))(1)  # loads the code
    return launch(case, function, Launch(), Parameters([(out, index, cycles) for index in range(count)])), out


def real_host_read_ns(case: Case, count: int) -> IntArray:
    """Dependent reads of host memory by one GPU thread: ns per read of each of ``count`` chains, shape (count,).

    Each chain has CHASE_READS reads of one 64-byte line, in random order over 1 MiB.
    """
    chain = case.once(HostChain)
    return np.array([chain.walk_ns() for _ in range(count)], dtype=np.int64)


class HostChain:
    """Lines of host memory in random order, each with the place of the next. A walk begins where the last one ended."""

    def __init__(self, case: Case) -> None:
        self._case = case
        order = np.random.default_rng(SEED).permutation(CHASE_LINES)
        words = LINE_BYTES // 4
        self._chain = case.pinned(CHASE_LINES * words)
        self._chain[order * words] = np.roll(order, -1) * words
        self._result = case.pinned(2, np.uint64)
        row = (int(self._chain.ctypes.data), CHASE_READS, int(self._result.ctypes.data))
        self._submit = launch(case, case.function("launch", "chase"), Launch(block_threads=1), Parameters([row]))
        self.walk_ns()  # warms the translation caches

    def walk_ns(self) -> int:
        """ns per read over CHASE_READS reads. Raises MeasurementError if the walk ends at the wrong line."""
        expected = int(self._result[1])
        for _ in range(CHASE_READS):
            expected = int(self._chain[expected])
        self._submit(1)
        self._case.synchronize()
        if int(self._result[1]) != expected:
            raise MeasurementError("the walk through host memory ended at the wrong line")
        return round(int(self._result[0]) / CHASE_READS)


def simulated_start_stamps(machine: Machine, count: int) -> IntArray:
    call = call_of(Launch(), machine.costs)
    stamps = np.zeros((count, 4), dtype=np.int64)
    for row in stamps:
        row[0] = machine.clock.now_ns()
        starts_ns = machine.make(call, 1).batches[0].starts_ns
        row[1] = machine.clock.now_ns()
        assert starts_ns is not None, "nothing may hold the stream here"
        if not machine.noise.happens(MISSED_FLAG_SHARE):
            row[2] = machine.clock.shown(float(starts_ns[0]) + machine.costs.flag_to_host_ns)
        machine.synchronize(call.stream)
        row[3] = machine.clock.now_ns()
    return stamps


def simulated_launch_stamps(
    machine: Machine, count: int, duration_ns: int = 0, *, blocking_event: bool = False
) -> LaunchStamps:
    call, now_ns = call_of(Launch(duration_ns=duration_ns), machine.costs), machine.clock.now_ns
    stamps = np.zeros((count, 5), dtype=np.int64)
    for row in stamps:
        row[0] = now_ns()
        (batch,) = machine.make(call, 1).batches
        row[1] = now_ns()
        if blocking_event:
            machine.spend(machine.costs.untimed_record_ns)
        machine.synchronize(call.stream, "blocking" if blocking_event else None)
        row[4] = now_ns()
        assert batch.starts_ns is not None, "all work of a synchronised stream has ended"
        assert batch.ends_ns is not None
        row[2:4] = machine.globaltimer_ns(np.array([batch.starts_ns[0], batch.ends_ns[0]]))
    return LaunchStamps(stamps, round(machine.costs.host_read_ns + machine.costs.flag_to_host_ns))


start_stamps = experiment(real_start_stamps, simulated_start_stamps)
launch_stamps = experiment(real_launch_stamps, simulated_launch_stamps)
flag_round_trips = experiment(
    real_flag_round_trips,
    lambda machine, count: machine.spent(
        machine.noise.host(machine.costs.host_read_ns + machine.costs.flag_to_host_ns, count)
    ),
)
host_read_ns = experiment(
    real_host_read_ns, lambda machine, count: machine.spent(machine.noise.device(machine.costs.host_read_ns, count))
)


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
