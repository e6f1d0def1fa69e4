"""The simulated Gpu, which plays every operation on virtual clocks, its facts, its host and its first-use costs.

Every name and version says SIMULATED.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count as numbers
from typing import Any, TypeVar

import msgspec
import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Environment, Fact, GpuInfo, LinkInfo, Scalar, Telemetry
from microbench.core.ops import LOOP_LAYER, GraphLaunch, IntArray, Launch, LayerCall, Op, Record
from microbench.gpu.fake import machine as sim
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.device import Noise, VirtualClock
from microbench.gpu.protocol import gpu as protocol
from microbench.gpu.protocol.gpu import ColdStarts, HostClock

FAKE_NAME = "SIMULATED GPU"
FAKE_UUID = "GPU-SIMULATED"
SIMULATED = "SIMULATED"
GPUS_VARIABLE = "MICROBENCH_FAKE_GPUS"
MOST_GPUS = 16
# Costs that differ from the default, as JSON: {"link_bytes_per_s": 30e9, "memory": {"l1_cycles": 40}}.
COSTS_VARIABLE = "MICROBENCH_FAKE_COSTS"
SEED_VARIABLE = "MICROBENCH_FAKE_SEED"
GENERATION, LANES = 5, 16
DEFAULT_SPREAD = 0.005
COLD_SPREAD = 0.05


def costs_here() -> FakeCosts:
    """The default costs, with the number of GPUs that GPUS_VARIABLE gives (1 if it is not set) and the costs that
    COSTS_VARIABLE changes.

    Raises MeasurementError for a value that is not a number of GPUs, and for costs that do not exist.
    """
    named = os.environ.get(GPUS_VARIABLE, "1")
    if not named.isdecimal() or not 1 <= int(named) <= MOST_GPUS:
        raise MeasurementError(f"{GPUS_VARIABLE}={named} is no number of GPUs from 1 to {MOST_GPUS}")
    costs = FakeCosts(gpus=int(named))
    changes = os.environ.get(COSTS_VARIABLE)
    if not changes:
        return costs
    try:
        return msgspec.convert(_changed(msgspec.to_builtins(costs), msgspec.json.decode(changes)), FakeCosts)
    except (msgspec.DecodeError, KeyError, AttributeError) as error:
        raise MeasurementError(f"{COSTS_VARIABLE} is no JSON of costs: {error}") from None


def _changed(costs: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The costs with these changes. Raises KeyError for a cost that does not exist."""
    changed = {
        name: _changed(costs[name], value) if isinstance(costs[name], dict) else value
        for name, value in changes.items()
    }
    return costs | changed


def seed_here() -> int:
    """The seed of the simulated times that SEED_VARIABLE gives; 0 if it is not set. Raises MeasurementError."""
    named = os.environ.get(SEED_VARIABLE, "0")
    if not named.isdecimal():
        raise MeasurementError(f"{SEED_VARIABLE}={named} is no seed: give a whole number")
    return int(named)


def bus_id(index: int) -> str:
    """The PCI bus id of a simulated GPU."""
    return f"0000:{0x1A + index:02x}:00.0"


def fake_gpu_info(costs: FakeCosts, index: int = 0) -> GpuInfo:
    """The facts of a simulated GPU that CUDA and NVML would report."""
    return GpuInfo(
        name=FAKE_NAME,
        uuid=f"{FAKE_UUID}-{index}" if index else FAKE_UUID,
        simulated=True,
        index=index,
        pci_bus_id=bus_id(index),
        compute_capability=costs.compute_capability,
        sm_count=costs.sm_count,
        l2_bytes=costs.memory.l2_bytes,
        memory_bytes=costs.memory.total_bytes,
        sm_clock_max_hz=costs.sm_clock_hz,
        memory_clock_max_hz=3e9,
        memory_bus_bits=6144,
        ecc=True,
        mig=False,
        persistence=True,
        confidential_computing=False,
        integrated=False,
        power_limit_w=costs.compute.power_limit_w,
        other_processes=(),
        link=LinkInfo(
            generation_now=GENERATION,
            generation_max=GENERATION,
            lanes_now=LANES,
            lanes_max=LANES,
            max_payload_bytes=costs.packet_payload_bytes,
            max_read_request_bytes=512,
            nvlinks=costs.links.nvlinks if costs.gpus > 1 else 0,
            nvlink_bytes_per_s=costs.links.nvlink_bytes_per_s if costs.gpus > 1 else None,
            coherent=False,
        ),
        memory_errors=costs.memory_errors,
    )


def fake_environment(costs: FakeCosts | None = None) -> Environment:
    """The Environment of a simulated session: its GPUs, a host that distorts no measurement, and no package versions.

    Raises MeasurementError if GPUS_VARIABLE is not a number of GPUs.
    """
    costs = costs or costs_here()
    facts: dict[str, Scalar] = {  # the names are those of host/facts.py
        "cpu_model": "SIMULATED CPU",
        "cpu_count": costs.host_cores,
        "cpu_affinity_count": costs.host_cores,
        "physical_core_count": costs.host_cores,
        "smt_active": False,
        "numa_nodes": costs.links.numa_nodes,
        "governor": "performance",
        "c_state_deepest": "POLL",
        "c_state_exit_latency_s": 0.0,
        "clock_source": "tsc",
        "virtualization": "none",
        "container": "none",
        "iommu": "off",
        "mps": "off",
        "profiler": "none",
        "tracer": "none",
        "launch_variables": "none",
        "load_average_1min": 0.0,
    }
    return Environment(
        gpus=tuple(fake_gpu_info(costs, index) for index in range(costs.gpus)),
        driver_version=SIMULATED,
        cuda_driver_version=SIMULATED,
        facts=tuple(Fact(name, value, source=SIMULATED) for name, value in facts.items()),
    )


class FakeHost:
    """The Host of the simulated machine, with a virtual clock of its own."""

    def __init__(self, costs: FakeCosts | None = None, *, seed: int = 0, spread: float = DEFAULT_SPREAD) -> None:
        self._costs = costs or FakeCosts()
        self._noise = Noise(seed, spread)
        self._time = VirtualClock(self._costs.timer_call_ns, self._costs.timer_step_ns)
        self.clock: HostClock = self._time
        self.simulated = True

    def clock_stamps(self, count: int) -> IntArray:
        times_ns = self._time.time_ns + np.cumsum(self._noise.host(self._costs.timer_call_ns, count))
        self._time.wait_until(float(times_ns[-1]))
        return self._time.all_shown(times_ns)

    def call_s(self, how: str, count: int) -> float:
        return self._spend_s(float(self._noise.host(self._costs.host_call_ns[how], count).sum()))

    def copy_s(self, threads: int, size_bytes: int) -> float:
        """Beyond a core's cache the threads share the memory's bandwidth."""
        costs = self._costs
        if size_bytes <= costs.host_cache_bytes:
            bytes_per_s = costs.host_cache_bytes_per_s
        else:
            bytes_per_s = min(costs.host_core_bytes_per_s, costs.host_memory_bytes_per_s / threads)
        return self._spend_s(self._noise.one(costs.host_copy_fixed_ns + size_bytes / bytes_per_s * 1e9))

    def wakeup_stamps(self, how: str, count: int) -> IntArray:
        times_ns = self._noise.host(self._costs.host_wakeup_ns[how], count)
        self._spend_s(float(times_ns.sum()))
        return times_ns.round().astype(np.int64)

    def cores(self) -> int:
        return self._costs.host_cores

    def _spend_s(self, duration_ns: float) -> float:
        self._time.pass_ns(duration_ns)
        return duration_ns * 1e-9


def open_fake_cold(costs: FakeCosts | None = None, *, seed: int = 0, spread: float = COLD_SPREAD) -> ColdStarts:
    """A simulated process that has not touched its GPU yet. Raises MeasurementError for a first use that has already
    happened."""
    cold_s, noise = dict((costs or FakeCosts()).cold_s), Noise(seed, spread)
    done: set[str] = set()

    def seconds(what: str) -> float:
        if what not in cold_s:
            raise Skip(f"the simulated GPU has no first {what}")
        if what in done:
            raise MeasurementError(f"{what} is not cold any more in this process")
        done.add(what)
        return noise.one(cold_s[what] * 1e9) * 1e-9

    return seconds


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


def open_fake(costs: FakeCosts | None = None, *, seed: int = 0, spread: float = DEFAULT_SPREAD) -> protocol.Gpu:
    """A simulated GPU with these costs, in the wait mode of WAIT_VARIABLE.

    With a ``spread`` of 0 every cost is exact; the same ``seed`` gives the same sequence of times. Raises
    MeasurementError for an environment with an unknown wait mode or number of GPUs.
    """
    wait = protocol.mode_here(protocol.WAIT_VARIABLE, protocol.WAIT_MODES, "auto")
    costs = costs or costs_here()
    if protocol.mode_here(protocol.STREAMS_VARIABLE, protocol.LAUNCH_STREAMS, "two") == "one":
        shorter = {name: getattr(costs, name) - costs.one_stream_gap_ns for name in ("gap_stream_ns", "gap_graph_ns")}
        costs = msgspec.structs.replace(costs, **shorter)
    return FakeGpu(costs, seed=seed, spread=spread, wait=wait)
