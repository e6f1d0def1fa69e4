"""What the simulated machine says of itself: every name and version is marked SIMULATED."""

from __future__ import annotations

from microbench.gpu.fake.costs import FakeCosts
from microbench.model import Environment, Fact, GpuInfo, LinkInfo, Scalar

FAKE_NAME = "SIMULATED GPU"
FAKE_UUID = "GPU-SIMULATED"
SIMULATED = "SIMULATED"


def fake_gpu_info(costs: FakeCosts | None = None) -> GpuInfo:
    """The simulated GPU as CUDA and NVML would report it."""
    costs = costs or FakeCosts()
    return GpuInfo(
        name=FAKE_NAME,
        uuid=FAKE_UUID,
        simulated=True,
        pci_bus_id="0000:00:00.0",
        compute_capability=costs.compute_capability,
        sm_count=costs.sm_count,
        l2_bytes=48 << 20,
        memory_bytes=96 << 30,
        sm_clock_max_hz=costs.sm_clock_hz,
        memory_clock_max_hz=3e9,
        memory_bus_bits=6144,
        ecc=True,
        mig=False,
        persistence=True,
        confidential_computing=False,
        integrated=False,
        power_limit_w=700.0,
        other_processes=(),
        link=LinkInfo(
            generation_now=5,
            generation_max=5,
            lanes_now=16,
            lanes_max=16,
            max_payload_bytes=costs.packet_payload_bytes,
            max_read_request_bytes=512,
        ),
    )


def fake_environment(costs: FakeCosts | None = None) -> Environment:
    """The Environment of a simulated session: one simulated GPU, a simulated host, no package versions."""
    costs = costs or FakeCosts()
    return Environment(
        gpus=(fake_gpu_info(costs),),
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
        "numa_nodes": 1,
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
