"""The real Gpu: one primary context of this machine, opened for a worker process."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import numpy as np

from microbench.core import ops as kinds
from microbench.core.errors import MeasurementError
from microbench.core.model import Fact, GpuInfo, Telemetry
from microbench.core.ops import IntArray
from microbench.gpu.cuda import loops, submit, timing
from microbench.gpu.cuda.case import Board, Case
from microbench.gpu.cuda.context import Context, check_code, entry_point
from microbench.gpu.cuda.probe import describe
from microbench.gpu.cuda.timing import SmClock, SpinGate, TimingEvents
from microbench.gpu.machine.nvml import NvmlGpu
from microbench.gpu.protocol import gpu as protocol
from microbench.host.affinity import find_cores, pinned
from microbench.host.native import MonotonicClock

Result = TypeVar("Result")

WARM_UP_LOOK_S = 0.02
WARM_UP_CHANGE = 0.01
WARM_UP_S = 1.0
# About eight kernels launched directly into a second stream lengthen the gap before every later kernel, in all streams
# and graphs, until the process ends (H200, driver 580: lab/measurements/gaps.csv).
SECOND_STREAM_LAUNCHES = 32


class CudaGpu:
    """One GPU of this machine."""

    simulated = False

    def __init__(self, uuid: str, wait: protocol.WaitMode = "auto", streams: protocol.LaunchStreams = "two") -> None:
        self.clock = MonotonicClock()
        self._context = Context(uuid, wait)
        self._nvml = NvmlGpu(uuid)
        self.info: GpuInfo = describe(self._context.device, self._nvml)
        self._cores = find_cores(self.info.numa_node)
        self._replays: list[protocol.Submit] = []
        self._case = self._new_case(clock_hz=0.0)
        self._warm_up()
        if streams == "two":
            # As programs do that warm up in a side stream.
            for stream in (0, 1):
                empty = self._case.function("launch", "empty")
                submit.launch(self._case, empty, kinds.Launch(stream=stream))(SECOND_STREAM_LAUNCHES)
            self._case.synchronize()
            self._end_case()

    def _new_case(self, clock_hz: float) -> Case:
        return Case(self._context, clock_hz, Board(self.info, self._nvml, self._cores))

    def _warm_up(self) -> None:
        """Keep the GPU busy until its clock has risen: two successive readings agree within a percent."""
        began_s, before_hz = time.monotonic(), 0.0
        while True:
            looked_s = time.monotonic()
            while time.monotonic() - looked_s < WARM_UP_LOOK_S:
                clock_hz = self._sm_clock_hz()
            settled = abs(clock_hz - before_hz) <= WARM_UP_CHANGE * clock_hz
            if settled or time.monotonic() - began_s > WARM_UP_S:
                self._case.clock_hz = clock_hz
                self._end_case()
                return
            before_hz = clock_hz

    def _sm_clock_hz(self) -> float:
        return self._case.once(SmClock).read_hz()

    def _end_case(self) -> None:
        ended, self._case = self._case, self._new_case(self._case.clock_hz)
        self._replays.clear()
        ended.end()

    @contextmanager
    def case(self) -> Iterator[None]:
        try:
            self._case.clock_hz = self._sm_clock_hz()  # the present clock sets the cycles of spin kernels
            yield
        finally:
            self._end_case()

    def bind(self, op: kinds.Op) -> protocol.Submit:
        match op:
            case kinds.Launch():
                return submit.bind_launch(self._case, op)
            case kinds.Copy():
                stream = self._case.stream(op.stream)
                host = int(self._case.pinned(op.size_bytes, np.uint8).ctypes.data)
                return submit.copy(op.direction, self._case.device_memory(op.size_bytes), host, op.size_bytes, stream)
            case kinds.Memset():
                stream = self._case.stream(op.stream)
                arguments = [self._case.device_memory(op.size_bytes), 1, op.size_bytes, stream]
                return submit.DriverSubmit("cuMemsetD8Async", arguments, stream=stream)
            case kinds.Record() | kinds.Wait() | kinds.Query() | kinds.SynchronizeIdle():
                return submit.bind_event(self._case, op)
            case kinds.GraphLaunch():
                return self._replays[op.graph]
            case kinds.LayerCall():
                with pinned(self._cores.allowed):  # a library's own threads must not sit on the submitting core
                    self._case.layers[op] = submit.bind_layer(self._case, op)
                return self._case.layers[op].submit

    def layer_kernels(self, op: kinds.LayerCall) -> Fact:
        return self._case.layers[op].kernels

    def graph(self, ops: Sequence[kinds.Op]) -> kinds.GraphLaunch:
        case, first = self._case, ops[0]
        bound = case.layers.get(first) if isinstance(first, kinds.LayerCall) else None
        if isinstance(first, kinds.LayerCall) and bound and bound.handle:
            if set(ops) != {first}:
                raise MeasurementError(f"a graph of {first.layer} holds equal calls only")
            replayed, nodes = submit.bind_layer_graph(case, bound.handle, len(ops))
            self._replays.append(replayed)
            return kinds.GraphLaunch(len(self._replays) - 1, nodes, layer=first.layer)
        submits = {op: self.bind(op) for op in dict.fromkeys(ops)}
        for bound_op in submits.values():
            bound_op(1)  # loads the code, which capture would not
        case.synchronize()
        stream = case.stream(0)
        executable, nodes = submit.captured(case, stream, lambda: [submits[op](1) for op in ops])
        self._replays.append(submit.replay(executable, stream))
        return kinds.GraphLaunch(len(self._replays) - 1, nodes)

    def carry_out(
        self, real: Callable[..., Result], simulated: Callable[..., Result], *args: Any, **kwargs: Any
    ) -> Result:
        return real(self._case, *args, **kwargs)

    def gate(self) -> protocol.Gate:
        return self._case.once(SpinGate)

    def events(self, stream: int = 0) -> protocol.EventPair:
        return TimingEvents(self._case, stream)

    def synchronize(self) -> None:
        self._context.synchronize()

    def synchronize_stream(self, stream: int = 0) -> None:
        arguments: IntArray = np.array([self._case.stream(stream), 0, 0, 0], dtype=np.int64)
        check_code(loops.submit(entry_point("cuStreamSynchronize"), arguments, 0, 1), "cuStreamSynchronize")

    def record(self, launch: kinds.Launch, count: int, *, graph: bool, gated: bool) -> protocol.GpuRecording:
        return timing.record(self._case, launch, count, graph=graph, gated=gated)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def pcie_bytes(self) -> protocol.PcieBytes:
        return self._nvml.pcie_bytes()

    def energy_j(self) -> float:
        return self._nvml.energy_j()

    def telemetry(self) -> Telemetry:
        telemetry = self._nvml.telemetry()
        try:
            return msgspec.structs.replace(telemetry, sm_clock_begin_hz=self._sm_clock_hz())
        except MeasurementError:  # the context may be broken by the case that has just failed
            return telemetry

    def close(self) -> None:
        self._case.end()
        self._context.close()


def open_gpu(uuid: str) -> protocol.Gpu:
    """The GPU with that UUID, in the wait mode of the environment. Raises DeviceAbsentError or MeasurementError."""
    wait = protocol.mode_here(protocol.WAIT_VARIABLE, protocol.WAIT_MODES, "auto")
    return CudaGpu(uuid, wait, protocol.mode_here(protocol.STREAMS_VARIABLE, protocol.LAUNCH_STREAMS, "two"))
