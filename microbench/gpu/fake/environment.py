"""What the simulated machine says of itself: every name and version is marked SIMULATED."""

from __future__ import annotations

import os

from microbench.errors import MeasurementError
from microbench.gpu.fake.costs import FakeCosts
from microbench.model import Environment, Fact, GpuInfo, LinkInfo, Scalar

FAKE_NAME = "SIMULATED GPU"
FAKE_UUID = "GPU-SIMULATED"
SIMULATED = "SIMULATED"
GPUS_VARIABLE = "MICROBENCH_FAKE_GPUS"
MOST_GPUS = 16
GENERATION, LANES = 5, 16


def costs_here() -> FakeCosts:
    """The usual costs, for as many GPUs as the environment names: one unless GPUS_VARIABLE says otherwise.

    Raises MeasurementError for what is no number of GPUs.
    """
    named = os.environ.get(GPUS_VARIABLE, "1")
    if not named.isdecimal() or not 1 <= int(named) <= MOST_GPUS:
        raise MeasurementError(f"{GPUS_VARIABLE}={named} is no number of GPUs from 1 to {MOST_GPUS}")
    return FakeCosts(gpus=int(named))


def bus_id(index: int) -> str:
    """Where a simulated GPU sits: all below one switch."""
    return f"0000:{0x1A + index:02x}:00.0"


def fake_gpu_info(costs: FakeCosts, index: int = 0) -> GpuInfo:
    """A simulated GPU as CUDA and NVML would report it."""
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
    )


def fake_environment(costs: FakeCosts | None = None) -> Environment:
    """The Environment of a simulated session: its GPUs, a simulated host, no package versions.

    Raises MeasurementError where the environment names no number of GPUs.
    """
    costs = costs or costs_here()
    return Environment(
        gpus=tuple(fake_gpu_info(costs, index) for index in range(costs.gpus)),
        driver_version=SIMULATED,
        cuda_driver_version=SIMULATED,
        facts=tuple(Fact(name, value, source=SIMULATED) for name, value in _host_facts(costs).items()),
    )


def _host_facts(costs: FakeCosts) -> dict[str, Scalar]:
    """A host that distorts nothing; the names are those of host/facts.py."""
    return {
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
