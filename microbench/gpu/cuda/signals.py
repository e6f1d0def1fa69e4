"""Experiments in which host and GPU see each other's memory: start stamps, flags, host reads, several threads."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda import driver, loops
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check_code, entry_point
from microbench.gpu.cuda.submit import DriverSubmit, Parameters, launch
from microbench.gpu.protocol.gpu import LaunchStamps
from microbench.host.affinity import Cores, on_cores
from microbench.host.native import c_address

WATCH_TIMEOUT_NS = 5_000_000_000
LINE_WORDS = 32  # flags lie a 128-byte line apart, so that polling one does not slow the other
CHASE_LINES = 16_384
CHASE_READS = 500
LINE_BYTES = 64
SEED = 20240229
TIE_EXCHANGES = 30


def _flags(case: Case, first: int) -> tuple[int, int]:
    """Addresses of two flags of this case; all flags are cleared."""
    words = case.once(Case.pinned, 8 * LINE_WORDS)
    words[:] = 0
    address = int(words.ctypes.data) + 4 * LINE_WORDS * first
    return address, address + 4 * LINE_WORDS


def start_stamps(case: Case, cores: Cores, count: int) -> IntArray:
    """A second, pinned thread watches the flag, because this thread is inside the calls.

    An extra first round is dropped, because the watcher may not be ready in it.
    """
    if not cores.watcher_alone:
        raise Skip("needs a second CPU for the thread that watches the flag: this process may use one only")
    flag, watched = _flags(case, 0)
    rows = Parameters([(flag, index + 1) for index in range(count + 1)])
    submit = launch(case, case.function("launch", "mark"), Launch(), rows)
    synchronize, clock = entry_point("cuStreamSynchronize"), c_address("clock_gettime")
    out: IntArray = np.zeros((count + 1, 4), dtype=np.int64)
    watch = partial(loops.watch_flag, flag, watched, clock, WATCH_TIMEOUT_NS, out)
    watcher = on_cores(watch, (cores.plan.watcher_core,))
    code = loops.launch_and_synchronize(
        submit.address, submit.arguments, rows.stride, synchronize, submit.stream, watched, clock, out
    )
    watcher.result()
    check_code(code, "launch and synchronise")
    return out[1:]


def flag_round_trips(case: Case, count: int) -> IntArray:
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
    """Exchanges flags TIE_EXCHANGES times."""
    seen = case.once(Case.device_memory, 8 * (TIE_EXCHANGES + 1))
    exchanged = _exchanges(case, TIE_EXCHANGES, "answer_timed", seen)
    gpu_ns = case.read(seen, TIE_EXCHANGES + 1, np.int64)[1:]
    quickest = int((exchanged[:, 1] - exchanged[:, 0]).argmin())
    sent_ns, replied_ns = (int(value) for value in exchanged[quickest])
    return ClockTie((sent_ns + replied_ns) // 2, int(gpu_ns[quickest]), replied_ns - sent_ns)


def launch_stamps(case: Case, count: int, duration_ns: int = 0, *, blocking_event: bool = False) -> LaunchStamps:
    """Ties before and after the launches give the offset and drift of the GPU's clock.

    Raises MeasurementError if a kernel did not run.
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


def host_read_ns(case: Case, count: int) -> IntArray:
    """Each chain has CHASE_READS reads of one 64-byte line, in random order over 1 MiB."""
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


def threads_stamps(case: Case, cores: Cores, threads: int, count: int) -> IntArray:
    """Each thread has a physical core to itself."""
    helpers = cores.helpers
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


def round_robin_ns(case: Case, streams: int, count: int) -> int:
    submit = launch(case, case.function("launch", "empty"), Launch())
    handles: IntArray = np.array([case.stream(index) for index in range(streams)], dtype=np.int64)
    wait, clock = entry_point("cuCtxSynchronize"), c_address("clock_gettime")
    code, elapsed_ns = loops.submit_round_robin(submit.address, submit.arguments, handles, count, wait, clock)
    check_code(code, "launches into several streams")
    return int(elapsed_ns)
