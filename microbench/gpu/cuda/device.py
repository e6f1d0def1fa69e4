"""The real Gpu: one primary context, opened for a worker process, behind the protocol of api.py."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np

from microbench.core.errors import MeasurementError
from microbench.core.model import Fact, GpuInfo, Telemetry
from microbench.core.ops import LEGACY_STREAM, Copy, GraphLaunch, IntArray, Launch, LayerCall, Memset, Op, Wait
from microbench.gpu.cuda import submit as binding
from microbench.gpu.cuda import timing
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import WAIT_FLAGS, Context, Modules, check_code, entry_point
from microbench.gpu.cuda.memory.allocation import held_by
from microbench.gpu.cuda.parts import Parts
from microbench.gpu.cuda.probe import describe
from microbench.gpu.cuda.signals import Flags, round_robin_ns, threads_stamps
from microbench.gpu.cuda.timing import SpinGate, TimingEvents
from microbench.gpu.machine.nvml import NvmlGpu
from microbench.gpu.protocol.compute import Compute
from microbench.gpu.protocol.gpu import WAIT_VARIABLE, ColdStarts, EventPair, Gate, Gpu, PcieBytes, Recorded, WaitMode
from microbench.gpu.protocol.graphs import Graphs
from microbench.gpu.protocol.links import Links
from microbench.gpu.protocol.memory import DeviceMemory
from microbench.gpu.protocol.submit import Submit
from microbench.host import loops
from microbench.host.affinity import find_cores, pinned
from microbench.host.native import MonotonicClock

LEGACY_STREAM_HANDLE = 1  # CU_STREAM_LEGACY
WARM_UP_LOOK_S = 0.02
WARM_UP_CHANGE = 0.01
WARM_UP_S = 1.0


class CudaGpu:
    """One GPU of this machine. See gpu/protocol/gpu.py for what each method promises."""

    simulated = False

    def __init__(self, uuid: str, wait: WaitMode = "auto") -> None:
        self.clock = MonotonicClock()
        self._context = Context(uuid, wait)
        self._modules = Modules(self._context)
        self._nvml = NvmlGpu(uuid)
        self._context.holders = lambda: held_by(self._nvml)
        self.info: GpuInfo = describe(self._context.device, self._nvml)
        self._streams: dict[int, int] = {}
        self._graphs: list[Submit] = []
        self._parts: Parts | None = None
        self._gate: SpinGate | None = None
        self._recorder: timing.Recorder | None = None
        self._flags: Flags | None = None
        self._sm_clock: timing.SmClock | None = None
        self._cores = find_cores(self.info.numa_node)
        self._layers: dict[LayerCall, binding.BoundLayer] = {}
        self._clock_hz = self._warm_up()

    def _warm_up(self) -> float:
        """Load the GPU until its clock has risen, two looks in a row within a percent; the SM clock then."""
        began_s, before_hz = time.monotonic(), 0.0
        while True:
            looked_s = time.monotonic()
            while time.monotonic() - looked_s < WARM_UP_LOOK_S:
                clock_hz = self._sm_clock_hz()
            settled = abs(clock_hz - before_hz) <= WARM_UP_CHANGE * clock_hz
            if settled or time.monotonic() - began_s > WARM_UP_S:
                self._end_case()
                return clock_hz
            before_hz = clock_hz

    def _sm_clock_hz(self) -> float:
        if self._sm_clock is None:
            sm_count = self.info.sm_count or 1
            self._sm_clock = timing.SmClock(self._context, self._modules, self._stream(0), sm_count)
        return self._sm_clock.read_hz()

    def _stream(self, index: int) -> int:
        if index == LEGACY_STREAM:
            return LEGACY_STREAM_HANDLE
        if index not in self._streams:
            self._streams[index] = self._context.stream()
        return self._streams[index]

    def _cycles(self, duration_ns: int) -> int:
        return round(duration_ns * self._clock_hz * 1e-9)

    def _end_case(self) -> None:
        self._streams.clear()
        self._graphs.clear()
        self._layers.clear()
        self._gate = self._recorder = self._flags = self._sm_clock = self._parts = None
        self._context.end_case()

    @contextmanager
    def case(self) -> Iterator[None]:
        try:
            timing.settle(self._context, self._modules, self._stream(0))
            self._clock_hz = self._sm_clock_hz()  # spin kernels follow the clock as it is now
            yield
        finally:
            self._end_case()

    def bind(self, op: Op) -> Submit:
        stream = self._stream(getattr(op, "stream", 0))
        match op:
            case Launch():
                return binding.bind_launch(self._context, self._modules, op, stream, self._cycles)
            case Copy():
                return binding.bind_copy(self._context, op, stream)
            case Memset():
                return binding.bind_memset(self._context, op, stream)
            case GraphLaunch():
                return self._graphs[op.graph]
            case LayerCall():
                ordinal = int(self._context.device)
                with pinned(self._cores.allowed):  # a library's own threads must not sit on the submitting core
                    self._layers[op] = binding.bind_layer(
                        self._context, self._modules, op, stream, ordinal, self._cycles
                    )
                return self._layers[op].submit
            case _:
                other = self._stream(op.other) if isinstance(op, Wait) else stream
                return binding.bind_event(self._context, op, stream, other)

    def layer_kernels(self, op: LayerCall) -> Fact:
        return self._layers[op].kernels

    def graph(self, ops: Sequence[Op]) -> GraphLaunch:
        first = ops[0] if ops else None
        bound = self._layers.get(first) if isinstance(first, LayerCall) else None
        if isinstance(first, LayerCall) and bound and bound.handle is not None:
            if set(ops) != {first}:
                raise MeasurementError(f"a graph of {first.layer} holds equal calls only")
            handle = bound.handle
            replay, nodes = binding.bind_layer_graph(self._context, handle, len(ops))
            self._graphs.append(replay)
            return GraphLaunch(len(self._graphs) - 1, nodes, layer=first.layer)
        submits = {op: self.bind(op) for op in dict.fromkeys(ops)}
        for submit in submits.values():
            submit(1)  # loads the code, which capture would not
        self._context.synchronize()

        def submit_all() -> None:
            for op in ops:
                submits[op](1)

        executable, nodes = timing.instantiate(self._context, self._stream(0), submit_all)
        self._graphs.append(binding.bind_graph(executable, self._stream(0)))
        return GraphLaunch(len(self._graphs) - 1, nodes)

    @property
    def graphs(self) -> Graphs:
        return self._case_parts().graphs

    @property
    def links(self) -> Links:
        return self._case_parts().links

    @property
    def memory(self) -> DeviceMemory:
        return self._case_parts().memory

    @property
    def compute(self) -> Compute:
        return self._case_parts().compute

    def _case_parts(self) -> Parts:
        if self._parts is None:
            case = Case(self._context, self._modules, self._spin_gate, self._stream, self._cycles)
            self._parts = Parts(case, self.info, self._nvml)
        return self._parts

    def gate(self) -> Gate:
        """See Gpu.gate; a case has one."""
        return self._spin_gate()

    def _spin_gate(self) -> SpinGate:
        if self._gate is None:
            self._gate = SpinGate(self._context, self._modules, self._stream)
        return self._gate

    def events(self, stream: int = 0) -> EventPair:
        return TimingEvents(self._context, self._stream(stream))

    def synchronize(self) -> None:
        self._context.synchronize()

    def synchronize_stream(self, stream: int = 0) -> None:
        arguments: IntArray = np.array([self._stream(stream), 0, 0, 0], dtype=np.int64)
        check_code(loops.submit(entry_point("cuStreamSynchronize"), arguments, 0, 1), "cuStreamSynchronize")

    def _flag_experiments(self) -> Flags:
        if self._flags is None:
            self._flags = Flags(self._context, self._modules, self._stream(0), self._cores)
        return self._flags

    def start_stamps(self, count: int) -> IntArray:
        return self._flag_experiments().start_stamps(count)

    def flag_round_trips(self, count: int) -> IntArray:
        return self._flag_experiments().flag_round_trips(count)

    def host_read_ns(self, count: int) -> IntArray:
        return self._flag_experiments().host_read_ns(count)

    def record(self, launch: Launch, count: int, *, graph: bool, gated: bool) -> Recorded:
        if self._recorder is None:
            self._recorder = timing.Recorder(self._context, self._modules, self._spin_gate(), self._stream)
        return self._recorder.record(launch, count, self._cycles(launch.duration_ns), graph=graph, gated=gated)

    def resident(self, streams: int, duration_ns: int) -> int:
        cycles = self._cycles(duration_ns)
        return timing.most_resident(self._context, self._modules, self._spin_gate(), self._stream, streams, cycles)

    def threads_stamps(self, threads: int, count: int) -> IntArray:
        return threads_stamps(self._context, self._modules, self._stream, self._cores, threads, count)

    def round_robin_ns(self, streams: int, count: int) -> int:
        return round_robin_ns(self._modules, self._stream, streams, count)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def pcie_bytes(self) -> PcieBytes:
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
        """Give the context back."""
        self._context.close()


def open_gpu(uuid: str) -> Gpu:
    """The GPU of that UUID, waiting as the environment says. Raises DeviceAbsentError or MeasurementError."""
    wait = os.environ.get(WAIT_VARIABLE, "auto")
    if wait not in WAIT_FLAGS:
        raise MeasurementError(f"{WAIT_VARIABLE}={wait} is no wait mode: {', '.join(WAIT_FLAGS)}")
    return CudaGpu(uuid, wait)


def open_cold(uuid: str) -> ColdStarts:
    """First acts on the GPU of that UUID; nothing has touched it yet."""
    from microbench.gpu.cuda.cold import CudaColdStarts

    return CudaColdStarts(uuid)
