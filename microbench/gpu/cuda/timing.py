"""Gates and event pairs: what makes a time the device's alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from cuda.bindings import driver

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda.context import Context, Modules, check
from microbench.gpu.cuda.submit import DriverSubmit, Parameters, launch, launch_extended
from microbench.gpu.protocol.gpu import Recorded


class SpinGate:
    """A kernel that spins on a flag in mapped host memory, with its own time-out; each shut wants a higher value."""

    def __init__(self, context: Context, modules: Modules, stream: Callable[[int], int]) -> None:
        self._stream = stream
        self._function = modules.function("launch", "gate")
        self._words = context.pinned(64)
        self._flag_address = int(self._words[:1].ctypes.data)
        self._late_address = int(self._words[32:33].ctypes.data)
        self._event = context.event(timed=False)
        self._want = 0
        self._late_before = 0

    def shut(self, streams: Sequence[int] = (0,), timeout_s: float = 0.5) -> None:
        """Hold the streams: the kernel sits in the first, the others wait for an event behind it."""
        self._want += 1
        self._late_before = int(self._words[32])
        row = (self._flag_address, self._want, int(timeout_s * 1e9), self._late_address)
        first = self._stream(streams[0])
        launch(self._function, Launch(block_threads=1), first, Parameters([row]))(1)
        if len(streams) > 1:
            check(driver.cuEventRecord(self._event, first))
            for stream in streams[1:]:
                check(driver.cuStreamWaitEvent(self._stream(stream), self._event, 0))

    def open(self) -> None:
        """Let go: effective in the GPU 3 to 4 us later."""
        self._words[0] = self._want

    def was_late(self) -> bool:
        """True if the last gate timed out before it was opened."""
        return int(self._words[32]) != self._late_before


class TimingEvents:
    """Two timing events in one stream; they resolve 32 ns on data-centre GPUs."""

    def __init__(self, context: Context, stream: int) -> None:
        self._stream = stream
        self._first = context.event(timed=True)
        self._second = context.event(timed=True)

    def start(self) -> None:
        """Record the first."""
        check(driver.cuEventRecord(self._first, self._stream))

    def stop(self) -> None:
        """Record the second."""
        check(driver.cuEventRecord(self._second, self._stream))

    def elapsed_s(self) -> float:
        """Wait for the second; time between them."""
        check(driver.cuEventSynchronize(self._second))
        return float(check(driver.cuEventElapsedTime(self._first, self._second))) * 1e-3


# Kernels that report on themselves: recorded batches, resident counts, the SM clock as the SMs count it.


CLOCK_WINDOW_NS = 50_000
# From the eighth kernel launched directly on, each node of a graph takes 0.18 us more, in all streams and for good (an
# H200, driver 580, docs/validation.md). Programs launch more kernels than that before their first graph.
SETTLING_LAUNCHES = 32
THREAD_LOCAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
GATE_TRIES = 3


def capture(stream: int, submit: Callable[[], None]) -> driver.CUgraph:
    """The graph of what ``submit`` does to a stream; the caller destroys it.

    Raises MeasurementError with the driver's reason for what cannot be captured; the stream no longer captures then.
    """
    check(driver.cuStreamBeginCapture(stream, THREAD_LOCAL))
    whole = False
    try:
        submit()
        whole = True
    finally:
        code, graph = driver.cuStreamEndCapture(stream)
        if not whole and int(code) == 0:
            driver.cuGraphDestroy(graph)
    return check((code, graph))


def instantiate(context: Context, stream: int, submit: Callable[[], None]) -> tuple[int, int]:
    """Capture what ``submit`` does to a stream, instantiate and upload it: (executable graph, its count of nodes)."""
    graph = capture(stream, submit)
    nodes = int(check(driver.cuGraphGetNodes(graph))[1])
    executable = check(driver.cuGraphInstantiate(graph, 0))
    context.own(lambda: driver.cuGraphExecDestroy(executable))
    check(driver.cuGraphDestroy(graph))
    check(driver.cuGraphUpload(executable, stream))
    context.synchronize()
    return int(executable), nodes


def settle(context: Context, modules: Modules, stream: int) -> None:
    """Launch as many kernels as any program has when it comes to its graphs, with timing events about."""
    event = context.event(timed=True)
    check(driver.cuEventRecord(event, stream))
    launch(modules.function("launch", "empty"), Launch(), stream, None)(SETTLING_LAUNCHES)
    context.synchronize()


class Batch:
    """``count`` self-recording kernels, made ready once and submitted often."""

    def __init__(
        self, context: Context, modules: Modules, op: Launch, stream: int, count: int, cycles: int, *, graph: bool
    ) -> None:
        self._context = context
        self._count = count
        self._blocks = op.grid_blocks
        self._out = context.device_memory(count * op.grid_blocks * 16)
        rows = Parameters([(self._out, index, cycles) for index in range(count)])
        kernel = modules.function("launch", "record_dependent" if op.kind == "pdl" else "record")
        make = launch if op.kind == "launch" else None
        self._submit: DriverSubmit = (
            make(kernel, op, stream, rows) if make else launch_extended(context, kernel, op, stream, rows)
        )
        self.queue_slots = self._submit.queue_slots or count
        self._stream = stream
        self._executable: int | None = None
        self._submit(count)  # loads the code, which must not happen behind a gate
        context.synchronize()
        if graph:
            self._executable, _ = instantiate(context, stream, lambda: self._submit(count))

    def submit(self) -> None:
        """The whole batch, as launches or as one graph."""
        if self._executable is None:
            self._submit(self._count)
        else:
            check(driver.cuGraphLaunch(self._executable, self._stream))

    def clear(self) -> None:
        """Poison the results, so that a kernel that did not run cannot pass for one that did."""
        self._context.clear(self._out, self._count * self._blocks * 16)

    def result(self, step_ns: int) -> Recorded:
        """Earliest start and latest end over the blocks of each kernel. Raises MeasurementError if one did not run."""
        words = self._context.read(self._out, self._count * self._blocks * 2, np.int64)
        stamps = words.reshape(self._count, self._blocks, 2)
        if not stamps.all():
            raise MeasurementError("a recording kernel did not run")
        return Recorded(stamps[:, :, 0].min(axis=1), stamps[:, :, 1].max(axis=1), step_ns)


class Recorder:
    """Recorded batches of one case, by launch, count and way of submitting."""

    def __init__(self, context: Context, modules: Modules, gate: SpinGate, stream: Callable[[int], int]) -> None:
        self._context = context
        self._modules = modules
        self._gate = gate
        self._stream = stream
        self._batches: dict[tuple[Launch, int, bool], Batch] = {}
        self._step_ns: int | None = None

    def record(self, op: Launch, count: int, cycles: int, *, graph: bool, gated: bool) -> Recorded:
        """Raises MeasurementError when the gate times out GATE_TRIES times in a row."""
        key = (op, count, graph)
        if key not in self._batches:
            stream = self._stream(op.stream)
            self._batches[key] = Batch(self._context, self._modules, op, stream, count, cycles, graph=graph)
        batch = self._batches[key]
        if gated and not graph and count > batch.queue_slots:
            raise MeasurementError(f"{count} launches do not fit behind a gate ({batch.queue_slots} may)")
        for _ in range(GATE_TRIES):
            batch.clear()
            if gated:
                self._gate.shut((op.stream,))
            batch.submit()
            if gated:
                self._gate.open()
            self._context.synchronize()
            if not (gated and self._gate.was_late()):
                return batch.result(self.globaltimer_step_ns())
        raise MeasurementError(f"the gate timed out {GATE_TRIES} times before the batch was queued")

    def globaltimer_step_ns(self) -> int:
        """The smallest step of %globaltimer, probed once."""
        if self._step_ns is None:
            out = self._context.device_memory(64 * 8)
            kernel = self._modules.function("launch", "globaltimer_steps")
            launch(kernel, Launch(block_threads=1), self._stream(0), Parameters([(out,)]))(1)
            self._context.synchronize()
            self._step_ns = int(np.diff(self._context.read(out, 64, np.int64)).min())
        return self._step_ns


class SmClock:
    """The SM clock as the SMs count it themselves: clock cycles over %globaltimer, a block an SM."""

    def __init__(self, context: Context, modules: Modules, stream: int, sm_count: int) -> None:
        self._context = context
        self._sm_count = sm_count
        self._out = context.device_memory(sm_count * 16)
        op, row = Launch(grid_blocks=sm_count, block_threads=1), Parameters([(self._out, CLOCK_WINDOW_NS)])
        self._submit = launch(modules.function("launch", "sm_clock"), op, stream, row)

    def read_hz(self) -> float:
        """Median over the SMs in a window of CLOCK_WINDOW_NS."""
        self._submit(1)
        self._context.synchronize()
        counts: IntArray = self._context.read(self._out, self._sm_count * 2, np.int64).reshape(self._sm_count, 2)
        return float(round(np.median(counts[:, 1] / counts[:, 0]) * 1e9))


def most_resident(
    context: Context, modules: Modules, gate: SpinGate, stream: Callable[[int], int], streams: int, cycles: int
) -> int:
    counters = context.device_memory(256)
    kernel = modules.function("launch", "resident")
    row = Parameters([(counters, counters + 128, cycles)])
    submits = [launch(kernel, Launch(block_threads=1), stream(index), row) for index in range(streams)]
    submits[0](1)
    context.synchronize()
    context.clear(counters, 256)
    gate.shut(tuple(range(streams)))
    for submit in submits:
        submit(1)
    gate.open()
    context.synchronize()
    if gate.was_late():
        raise MeasurementError("the gate timed out before all streams had their kernel")
    return int(context.read(counters + 128, 1, np.uint32)[0])
