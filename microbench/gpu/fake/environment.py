"""The simulated machine's facts, its host and its first-use costs; every name and version says SIMULATED."""

import os
from typing import Any

import msgspec
import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Environment, Fact, GpuInfo, LinkInfo, Scalar
from microbench.core.ops import IntArray
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.device import Noise, VirtualClock
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


class FakeColdStarts:
    """First uses in a simulated process; each can be timed once."""

    def __init__(self, costs: FakeCosts, noise: Noise) -> None:
        self._costs = costs
        self._noise = noise
        self._done: set[str] = set()

    def seconds(self, what: str) -> float:
        """Raises MeasurementError for a first use that has already happened."""
        if what not in self._costs.cold_s:
            raise Skip(f"the simulated GPU has no first {what}")
        if what in self._done:
            raise MeasurementError(f"{what} is not cold any more in this process")
        self._done.add(what)
        return self._noise.one(self._costs.cold_s[what] * 1e9) * 1e-9


def open_fake_cold(costs: FakeCosts | None = None, *, seed: int = 0, spread: float = COLD_SPREAD) -> ColdStarts:
    """A simulated process that has not touched its GPU yet."""
    return FakeColdStarts(costs or FakeCosts(), Noise(seed, spread))
