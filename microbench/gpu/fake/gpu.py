"""The simulated Gpu: it plays every operation on virtual clocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count as numbers
from typing import Any, TypeVar

import msgspec
import numpy as np

from microbench.core.errors import MeasurementError
from microbench.core.model import Fact, Telemetry
from microbench.core.ops import LOOP_LAYER, GraphLaunch, IntArray, Launch, LayerCall, Op, Record
from microbench.gpu.fake import machine as sim
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.environment import DEFAULT_SPREAD, SIMULATED, costs_here, fake_gpu_info
from microbench.gpu.fake.models import FakeJitted, FakeModel, FakeRecorder
from microbench.gpu.fake.own import FakeKernel, FakeStep
from microbench.gpu.fake.parts import FakeCompute, FakeLinks, FakeMemory
from microbench.gpu.fake.stream_signals import stream_signals
from microbench.gpu.protocol.gpu import (
    WAIT_MODES,
    WAIT_VARIABLE,
    Gpu,
    GpuRecording,
    HostClock,
    LaunchStamps,
    PcieBytes,
    SignalStamps,
    SignalWay,
    WaitMode,
    launch_streams,
)
from microbench.gpu.protocol.models import Compiled, JittedStep, ModelName, ModelStep, Output
from microbench.gpu.protocol.own import KernelSpec, OwnCall, OwnKernel, OwnStep
from microbench.gpu.protocol.recorder import Recorder, RecorderKind
from microbench.host.interruptions import ThreadState

Result = TypeVar("Result")

# Power above idle of telemetry's own kernels, which only wait for steps of %globaltimer.
TELEMETRY_KERNEL_W = 40.0
# The watcher thread of start_stamps is preempted once in a thousand launches and misses the flag.
MISSED_FLAG_SHARE = 0.001


class FakeGpu:
    """One simulated GPU and the simulated host thread that drives it."""

    simulated = True

    def __init__(self, costs: FakeCosts, *, seed: int, spread: float, wait: WaitMode) -> None:
        self.costs = costs
        self.info = fake_gpu_info(costs)
        self._machine = sim.Machine(costs, seed, spread, wait)
        self._time = self._machine.clock
        self.clock: HostClock = self._time
        self._graphs: dict[int, sim.Graph] = {}
        self._handles = numbers(1)
        self._scopes = numbers(1)

    @contextmanager
    def case(self) -> Iterator[None]:
        """Graphs, gates, events and bound operations that are made inside the case cannot be used after it."""
        self._machine.scope = next(self._scopes)
        older = set(self._graphs)
        try:
            yield
        finally:
            self._machine.end_case()
            self._graphs = {handle: graph for handle, graph in self._graphs.items() if handle in older}

    def bind(self, op: Op) -> sim.FakeSubmit:
        return sim.bound(self._machine, op, self._graphs)

    def layer_kernels(self, op: LayerCall) -> Fact:
        return Fact("kernels_per_call", 1, source=SIMULATED)

    def model(self, name: ModelName, compiled: Compiled) -> ModelStep:
        return FakeModel(self._machine, name, compiled)

    def jitted(self, kernels: int, output: Output) -> JittedStep:
        return FakeJitted(self._machine, kernels, output)

    def own_step(self, make: Callable[[], OwnCall]) -> OwnStep:
        return FakeStep(self._machine, make())

    def own_kernel(self, spec: KernelSpec) -> OwnKernel:
        return FakeKernel(self._machine, spec)

    def recorder(self, kind: RecorderKind) -> Recorder:
        recorder = FakeRecorder(self._machine, kind)
        with recorder.recording():
            self.synchronize()
        return recorder

    def graph(self, ops: Sequence[Op]) -> GraphLaunch:
        graph, layer, costs = sim.graph_of(sim.chain_of(ops, self.costs)), LOOP_LAYER, self.costs.graphs
        if isinstance(ops[0], LayerCall):
            layer = ops[0].layer
            self._time.pass_ns(sum(sim.call_of(op, self.costs, {}).host_ns for op in ops))
        else:
            self._time.pass_ns(costs.capture.at(graph.nodes))
        self._time.pass_ns(costs.instantiate.at(graph.nodes) + costs.upload.at(graph.nodes))
        handle = next(self._handles)
        self._graphs[handle] = graph
        return GraphLaunch(handle, graph.nodes, layer=layer)

    def carry_out(
        self, real: Callable[..., Result], simulated: Callable[..., Result], *args: Any, **kwargs: Any
    ) -> Result:
        return simulated(self._machine, *args, **kwargs)

    @property
    def links(self) -> FakeLinks:
        return FakeLinks(self._machine)

    @property
    def memory(self) -> FakeMemory:
        return FakeMemory(self._machine)

    @property
    def compute(self) -> FakeCompute:
        self._machine.release_ns = self.costs.compute.release_ns
        return FakeCompute(self._machine)

    def gate(self) -> sim.FakeGate:
        return sim.FakeGate(self._machine)

    def events(self, stream: int = 0) -> sim.FakeEventPair:
        return sim.FakeEventPair(self._machine, sim.call_of(Record(stream=stream), self.costs, {}))

    def synchronize(self) -> None:
        self._machine.synchronize()

    def synchronize_stream(self, stream: int = 0) -> None:
        self._machine.synchronize(stream)

    def start_stamps(self, count: int) -> IntArray:
        call = sim.call_of(Launch(), self.costs, {})
        stamps = np.zeros((count, 4), dtype=np.int64)
        for row in stamps:
            row[0] = self._time.now_ns()
            starts_ns = self._machine.make(call, 1).batches[0].starts_ns
            row[1] = self._time.now_ns()
            assert starts_ns is not None, "nothing may hold the stream here"
            if not self._machine.noise.happens(MISSED_FLAG_SHARE):
                row[2] = self._time.shown(float(starts_ns[0]) + self.costs.flag_to_host_ns)
            self._machine.synchronize(call.stream)
            row[3] = self._time.now_ns()
        return stamps

    def launch_stamps(self, count: int, duration_ns: int = 0, *, blocking_event: bool = False) -> LaunchStamps:
        call, now_ns = sim.call_of(Launch(duration_ns=duration_ns), self.costs, {}), self._time.now_ns
        stamps = np.zeros((count, 5), dtype=np.int64)
        for row in stamps:
            row[0] = now_ns()
            (batch,) = self._machine.make(call, 1).batches
            row[1] = now_ns()
            if blocking_event:
                self._machine.spend(self.costs.untimed_record_ns)
            self._machine.synchronize(call.stream, "blocking" if blocking_event else None)
            row[4] = now_ns()
            assert batch.starts_ns is not None, "all work of a synchronised stream has ended"
            assert batch.ends_ns is not None
            row[2:4] = self._machine.globaltimer_ns(np.array([batch.starts_ns[0], batch.ends_ns[0]]))
        return LaunchStamps(stamps, round(self.costs.host_read_ns + self.costs.flag_to_host_ns))

    def stream_signals(self, way: SignalWay, count: int) -> SignalStamps:
        return stream_signals(self._machine, way, count)

    def flag_round_trips(self, count: int) -> IntArray:
        times_ns = self._machine.noise.host(self.costs.host_read_ns + self.costs.flag_to_host_ns, count)
        self._time.pass_ns(float(times_ns.sum()))
        return times_ns.round().astype(np.int64)

    def host_read_ns(self, count: int) -> IntArray:
        times_ns = self._machine.noise.device(self.costs.host_read_ns, count)
        self._time.pass_ns(float(times_ns.sum()))
        return times_ns.round().astype(np.int64)

    def record(self, launch: Launch, count: int, *, graph: bool, gated: bool) -> GpuRecording:
        return sim.record(self._machine, launch, count, graph=graph, gated=gated)

    def resident(self, streams: int, duration_ns: int) -> int:
        """The front end starts one kernel after another, and waits for an end while the SMs are full."""
        gate = sim.FakeGate(self._machine)
        gate.shut(range(streams))
        for stream in range(streams):
            self._machine.make(sim.call_of(Launch(duration_ns=duration_ns, stream=stream), self.costs, {}), 1)
        gate.open()
        self._machine.synchronize()
        running: list[float] = []
        start_ns, most = 0.0, 0
        for _ in range(streams):
            while running and (running[0] <= start_ns or len(running) == self.costs.resident_kernels):
                start_ns = max(start_ns, heappop(running))
            heappush(running, start_ns + self.costs.kernel_ns(duration_ns))
            most = max(most, len(running))
            start_ns += self.costs.front_end_ns
        return most

    def threads_stamps(self, threads: int, count: int) -> IntArray:
        """Each thread's calls take longer by a constant for each other thread."""
        begin_ns = self._time.now_ns()
        contention_ns = (threads - 1) * self.costs.thread_contention_ns
        stamps = np.zeros((threads, 2), dtype=np.int64)
        for thread in range(threads):
            call = sim.call_of(Launch(stream=thread), self.costs, {})
            assert call.item is not None, "a launch puts a kernel into its stream"
            calls_ns = self._machine.noise.host(call.host_ns, count) + contention_ns
            returned_ns, _ = self._machine.device.submit(thread, call.item, begin_ns, calls_ns)
            stamps[thread] = begin_ns, self._time.shown(float(returned_ns[-1]))
        self._time.wait_until(float(stamps.max()))
        self._machine.synchronize()
        return stamps

    def round_robin_ns(self, streams: int, count: int) -> int:
        calls = [sim.call_of(Launch(stream=stream), self.costs, {}) for stream in range(streams)]
        begin_ns = self._time.now_ns()
        for index in range(count):
            self._machine.make(calls[index % streams], 1)
        self._machine.synchronize()
        return self._time.now_ns() - begin_ns

    def second_process(self) -> Fact:
        """The second process makes each launch call longer; its kernels are not simulated."""
        self._machine.beside_ns = self.costs.second_process_ns
        return Fact("mps", False, source=SIMULATED)

    def thread_state(self) -> ThreadState:
        return ThreadState(waits=0, preemptions=self._preemptions())

    def core_interrupts(self) -> int:
        return self._machine.noise.late - self._preemptions()

    def _preemptions(self) -> int:
        """How many of the late host calls count as preemptions; the others count as interrupts."""
        return round(self._machine.noise.late * self.costs.preempted_share)

    def pause(self, seconds: float) -> None:
        self._time.pass_ns(seconds * 1e9)

    def pcie_bytes(self) -> PcieBytes:
        """The traffic of what was submitted, of an idle GPU, and of reading the counters."""
        device, costs = self._machine.device, self.costs
        device.received_bytes += costs.counter_read_traffic.received
        device.sent_bytes += costs.counter_read_traffic.sent
        self._time.pass_ns(self._machine.noise.one(costs.counter_read_ns))
        lived_s = self._time.time_ns * 1e-9
        return PcieBytes(
            sent=int(device.sent_bytes + costs.idle_traffic_per_s.sent * lived_s),
            received=int(device.received_bytes + costs.idle_traffic_per_s.received * lived_s),
            coarse=False,
        )

    def energy_j(self) -> float:
        return self._machine.device.energy.shown_j(self._time.pass_ns(self._machine.noise.one(self.costs.telemetry_ns)))

    def telemetry(self) -> Telemetry:
        """The clock that earlier work has left. The kernels that read it do not lower it further."""
        now = self._machine.device.governor.at(self._time.pass_ns(self.costs.telemetry_ns))
        return Telemetry(
            sm_clock_begin_hz=now.clock_hz,
            nvml_sm_clock_hz=now.clock_hz,
            memory_clock_hz=self.info.memory_clock_max_hz,
            temperature_c=float(round(now.temperature_c)),
            power_w=now.power_w + TELEMETRY_KERNEL_W,
        )

    def close(self) -> None:
        self._machine.synchronize()
        self._graphs.clear()


def open_fake(
    costs: FakeCosts | None = None, *, seed: int = 0, spread: float = DEFAULT_SPREAD, wait: WaitMode | None = None
) -> Gpu:
    """A simulated GPU with these costs, in this wait mode; by default in that of WAIT_VARIABLE.

    With a ``spread`` of 0 every cost is exact; the same ``seed`` gives the same sequence of times. Raises
    MeasurementError for an environment with an unknown wait mode or number of GPUs.
    """
    if wait is None:
        named = os.environ.get(WAIT_VARIABLE, "auto")
        wait = next((mode for mode in WAIT_MODES if mode == named), None)
        if wait is None:
            raise MeasurementError(f"{WAIT_VARIABLE}={named} is no wait mode: {', '.join(WAIT_MODES)}")
    costs = costs or costs_here()
    if launch_streams() == "one":
        shorter = {name: getattr(costs, name) - costs.one_stream_gap_ns for name in ("gap_stream_ns", "gap_graph_ns")}
        costs = msgspec.structs.replace(costs, **shorter)
    return FakeGpu(costs, seed=seed, spread=spread, wait=wait)
