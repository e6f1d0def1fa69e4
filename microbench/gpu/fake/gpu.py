"""The simulated Gpu: it plays every operation on virtual clocks."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count as numbers
from typing import Any, TypeVar

import msgspec

from microbench.core.errors import MeasurementError
from microbench.core.model import Fact, Telemetry
from microbench.core.ops import LOOP_LAYER, GraphLaunch, Launch, LayerCall, Op, Record
from microbench.gpu.fake import machine as sim
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.environment import DEFAULT_SPREAD, SIMULATED, costs_here, fake_gpu_info
from microbench.gpu.protocol import gpu as protocol

Result = TypeVar("Result")

# Power above idle of telemetry's own kernels, which only wait for steps of %globaltimer.
TELEMETRY_KERNEL_W = 40.0


class FakeGpu:
    """One simulated GPU and the simulated host thread that drives it."""

    simulated = True

    def __init__(self, costs: FakeCosts, *, seed: int, spread: float, wait: protocol.WaitMode) -> None:
        self.costs = costs
        self.info = fake_gpu_info(costs)
        self._machine = sim.Machine(costs, seed, spread, wait)
        self._time = self._machine.clock
        self.clock: protocol.HostClock = self._time
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

    def graph(self, ops: Sequence[Op]) -> GraphLaunch:
        graph, layer, costs = sim.graph_of(sim.chain_of(ops, self.costs)), LOOP_LAYER, self.costs.graphs
        if isinstance(ops[0], LayerCall):
            layer = ops[0].layer
            self._time.pass_ns(sum(sim.call_of(op, self.costs).host_ns for op in ops))
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

    def gate(self) -> sim.FakeGate:
        return sim.FakeGate(self._machine)

    def events(self, stream: int = 0) -> sim.FakeEventPair:
        return sim.FakeEventPair(self._machine, sim.call_of(Record(stream=stream), self.costs))

    def synchronize(self) -> None:
        self._machine.synchronize()

    def synchronize_stream(self, stream: int = 0) -> None:
        self._machine.synchronize(stream)

    def record(self, launch: Launch, count: int, *, graph: bool, gated: bool) -> protocol.GpuRecording:
        return sim.record(self._machine, launch, count, graph=graph, gated=gated)

    def pause(self, seconds: float) -> None:
        self._time.pass_ns(seconds * 1e9)

    def pcie_bytes(self) -> protocol.PcieBytes:
        """The traffic of what was submitted, of an idle GPU, and of reading the counters."""
        device, costs = self._machine.device, self.costs
        device.received_bytes += costs.counter_read_traffic.received
        device.sent_bytes += costs.counter_read_traffic.sent
        self._time.pass_ns(self._machine.noise.one(costs.counter_read_ns))
        lived_s = self._time.time_ns * 1e-9
        return protocol.PcieBytes(
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
    costs: FakeCosts | None = None,
    *,
    seed: int = 0,
    spread: float = DEFAULT_SPREAD,
    wait: protocol.WaitMode | None = None,
) -> protocol.Gpu:
    """A simulated GPU with these costs, in this wait mode; by default in that of WAIT_VARIABLE.

    With a ``spread`` of 0 every cost is exact; the same ``seed`` gives the same sequence of times. Raises
    MeasurementError for an environment with an unknown wait mode or number of GPUs.
    """
    if wait is None:
        named = os.environ.get(protocol.WAIT_VARIABLE, "auto")
        wait = next((mode for mode in protocol.WAIT_MODES if mode == named), None)
        if wait is None:
            raise MeasurementError(
                f"{protocol.WAIT_VARIABLE}={named} is no wait mode: {', '.join(protocol.WAIT_MODES)}"
            )
    costs = costs or costs_here()
    if protocol.launch_streams() == "one":
        shorter = {name: getattr(costs, name) - costs.one_stream_gap_ns for name in ("gap_stream_ns", "gap_graph_ns")}
        costs = msgspec.structs.replace(costs, **shorter)
    return FakeGpu(costs, seed=seed, spread=spread, wait=wait)
