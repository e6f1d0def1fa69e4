"""Timing of the device without the host: the gate, timing events, kernels that record their own begin and end."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda import driver
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.submit import Parameters, allow_shared_memory, captured, launch
from microbench.gpu.protocol.gpu import GpuRecording, Submit

NANOSECOND_S = 1e-9
MILLISECOND_S = 1e-3
CLOCK_WINDOW_NS = 50_000
GATE_TRIES = 3


class SpinGate:
    """A kernel that spins on a flag in mapped host memory until a time-out. Each ``shut`` waits for a higher value."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._function = case.function("launch", "gate")
        self._words = case.pinned(64)
        self._flag_address = int(self._words[:1].ctypes.data)
        self._late_address = int(self._words[32:33].ctypes.data)
        self._event = case.event(timed=False)
        self._want = 0
        self._late_before = 0

    def shut(self, streams: Sequence[int] = (0,), timeout_s: float = 0.5) -> None:
        """The kernel runs in the first stream; the other streams wait for an event after it."""
        self._want += 1
        self._late_before = int(self._words[32])
        row = (self._flag_address, self._want, int(timeout_s * 1e9), self._late_address)
        launch(self._case, self._function, Launch(block_threads=1, stream=streams[0]), Parameters([row]))(1)
        if len(streams) > 1:
            check(driver.cuEventRecord(self._event, self._case.stream(streams[0])))
            for stream in streams[1:]:
                check(driver.cuStreamWaitEvent(self._case.stream(stream), self._event, 0))

    def open(self) -> None:
        """Takes effect in the GPU 3 to 4 us later."""
        self._words[0] = self._want

    def was_late(self) -> bool:
        return int(self._words[32]) != self._late_before


class TimingEvents:
    """Two timing events in one stream. Their resolution is 32 ns on data-centre GPUs."""

    def __init__(self, case: Case, stream: int) -> None:
        self._stream = case.stream(stream)
        self._first = case.event(timed=True)
        self._second = case.event(timed=True)

    def start(self) -> None:
        check(driver.cuEventRecord(self._first, self._stream))

    def stop(self) -> None:
        check(driver.cuEventRecord(self._second, self._stream))

    def elapsed_s(self) -> float:
        check(driver.cuEventSynchronize(self._second))
        return elapsed_s(self._first, self._second)


def elapsed_s(first: int, second: int) -> float:
    """Seconds between two CUevents that have happened."""
    return float(check(driver.cuEventElapsedTime(first, second))) * MILLISECOND_S


class Batch:
    """``count`` self-recording kernels that are prepared once and submitted often, as launches or as one graph."""

    def __init__(self, case: Case, op: Launch, count: int, graph: bool) -> None:
        self._case, self._op, self._count = case, op, count
        self._stream = case.stream(op.stream)
        self._out = case.device_memory(count * op.grid_blocks * 16)
        cycles = case.cycles(op.duration_ns)
        rows = Parameters([(self._out, index, cycles) for index in range(count)])
        kernel = case.function("launch", "record_dependent" if op.kind == "pdl" else "record")
        self._submit = launch(case, kernel, op, rows)
        self.queue_slots = self._submit.queue_slots or count
        self._submit(count)  # loads the code, which must not happen behind a gate
        case.synchronize()
        self._graph = captured(case, self._stream, lambda: self._submit(count))[0] if graph else None

    def submit(self) -> None:
        if self._graph is None:
            self._submit(self._count)
        else:
            check(driver.cuGraphLaunch(self._graph, self._stream))

    def clear(self) -> None:
        """Clear the results, so that a kernel that did not run is noticed."""
        self._case.clear(self._out, self._count * self._op.grid_blocks * 16)

    def result(self) -> GpuRecording:
        """Earliest begin and latest end over the blocks of each kernel. Raises MeasurementError if one did not run."""
        step_ns = self._case.once(globaltimer_step_ns)
        words = self._case.read(self._out, self._count * self._op.grid_blocks * 2, np.int64)
        stamps = words.reshape(self._count, self._op.grid_blocks, 2)
        if not stamps.all():
            raise MeasurementError("a recording kernel did not run")
        return GpuRecording(stamps[:, :, 0].min(axis=1), stamps[:, :, 1].max(axis=1), step_ns)


def record(case: Case, op: Launch, count: int, *, graph: bool, gated: bool) -> GpuRecording:
    """Raises MeasurementError if the gate times out GATE_TRIES times in a row."""
    gate = case.once(SpinGate)
    batch = case.once(Batch, op, count, graph)
    if gated and not graph and count > batch.queue_slots:
        raise MeasurementError(f"{count} launches do not fit behind a gate ({batch.queue_slots} may)")
    for _ in range(GATE_TRIES):
        batch.clear()
        if gated:
            gate.shut((op.stream,))
        batch.submit()
        if gated:
            gate.open()
        case.synchronize()
        if not (gated and gate.was_late()):
            return batch.result()
    raise MeasurementError(f"the gate timed out {GATE_TRIES} times before the batch was queued")


def globaltimer_step_ns(case: Case) -> int:
    """The smallest step of %globaltimer that a kernel sees."""
    out = case.device_memory(64 * 8)
    launch(case, case.function("launch", "globaltimer_steps"), Launch(block_threads=1), Parameters([(out,)]))(1)
    case.synchronize()
    return int(np.diff(case.read(out, 64, np.int64)).min())


class SmClock:
    """The SM clock counted by the SMs: clock cycles over %globaltimer, in one block on each SM."""

    def __init__(self, case: Case) -> None:
        self._case, self._sms = case, case.sms or 1
        self._out = case.device_memory(self._sms * 16)
        op, row = Launch(grid_blocks=self._sms, block_threads=1), Parameters([(self._out, CLOCK_WINDOW_NS)])
        self._submit = launch(case, case.function("launch", "sm_clock"), op, row)

    def read_hz(self) -> float:
        """Median over the SMs in a window of CLOCK_WINDOW_NS."""
        self._submit(1)
        self._case.synchronize()
        counts: IntArray = self._case.read(self._out, self._sms * 2, np.int64).reshape(self._sms, 2)
        return float(round(np.median(counts[:, 1] / counts[:, 0]) * 1e9))


STAMPS = np.dtype([("begin_ns", "u8"), ("end_ns", "u8"), ("cycles", "u8"), ("sm", "u4"), ("sum", "u4")])
# Static shared memory that a kernel may have in addition to the dynamic.
OWN_SHARED_BYTES = 1024


def alone_on_its_sm(case: Case, function: int) -> int:
    """Dynamic shared memory, in bytes, that lets only one block run on an SM; the kernel may have it from now on.

    Since compute capability 7.0 a block may have nearly all of an SM's memory.
    """
    shared_bytes = case.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - OWN_SHARED_BYTES
    allow_shared_memory(function, shared_bytes)
    return shared_bytes


def stamped(case: Case, submit: Submit, address: int, blocks: int) -> npt.NDArray[Any]:
    """Launch a kernel once and wait for it: the STAMPS that its blocks wrote to that address."""
    submit(1)
    case.synchronize()
    return case.read(address, blocks, STAMPS)


def require_an_sm_each(stamps: npt.NDArray[Any]) -> None:
    """Raise MeasurementError if two blocks shared an SM."""
    if len(np.unique(stamps["sm"])) < len(stamps):
        raise MeasurementError("two blocks shared an SM: is another process using this GPU?")


class UnitPass(NamedTuple):
    """Duration of one launch on every SM, by the SMs' own clocks.

    ``seconds`` is from the first SM's begin to the last SM's end. ``cycles`` (of one SM, from its begin to its end) and
    ``clock_hz`` are medians over the SMs: under tensor work some SMs run half a percent slower and end last.
    """

    seconds: float
    cycles: float
    clock_hz: float


def pass_of(stamps: npt.NDArray[Any]) -> UnitPass:
    """Duration of a launch by the stamps of its blocks, one on each SM. Raises MeasurementError if two shared an SM."""
    require_an_sm_each(stamps)
    elapsed_ns = int(stamps["end_ns"].max()) - int(stamps["begin_ns"].min())
    own_s = (stamps["end_ns"] - stamps["begin_ns"]) * NANOSECOND_S
    clock_hz = float(np.median(stamps["cycles"] / own_s))
    return UnitPass(elapsed_ns * NANOSECOND_S, float(np.median(stamps["cycles"])), clock_hz)
