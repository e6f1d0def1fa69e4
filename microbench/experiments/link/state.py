"""The state of the link while copies run, and what the simulated machine says of its own."""

import numpy as np

from microbench.core.model import Fact, Scalar
from microbench.experiments.link.copies import DIRECTIONS, Ends
from microbench.gpu.cuda.buffers import HostBuffer
from microbench.gpu.cuda.context import check, device_uuid
from microbench.gpu.cuda.timing import NANOSECOND_S
from microbench.gpu.experiment import Case, IntArray, Machine, driver, experiment
from microbench.gpu.fake.gpu import GENERATION, LANES, SIMULATED, bus_id
from microbench.gpu.machine.nvml import counters_risen, link_counters
from microbench.gpu.machine.topology import link_facts_now, path_facts

LOAD_BYTES = 64 << 20
# Reading the facts takes some 20 ms, the first time longer; a link that has come up slow must not take minutes.
LOAD_S = 0.3
MOST_COPIES = 400
NOT_READY = 600  # CUDA_ERROR_NOT_READY
COUNTERS = (
    "pcie_replays", "pcie_correctable_errors", "pcie_nonfatal_errors", "pcie_fatal_errors", "nvlink_errors",
)  # fmt: skip
UNKNOWN = {
    "extended_tags": "the simulated configuration space does not say",
    "pcie_replay_rollovers": "the simulated driver does not count them",
    "pcie_replay_rollovers_risen": "the simulated driver does not count them",
    "topology_sim0": "the simulated network controller sits on a virtual bus",
}
NO_NVLINK = dict.fromkeys(("nvlink_version", "nvlink_bytes_per_s", "nvlink_peers"), "no NVLink is up")
# The bridges above the GPU: bus id and kind.
ABOVE = (
    ("0000:17:00.0", "switch downstream port"),
    ("0000:16:00.0", "switch upstream port"),
    ("0000:15:01.0", "root port"),
)
UNITS = {"_bytes_per_s": "B/s", "_bytes": "B"}


def _state(case: Case) -> tuple[Fact, ...]:
    """The state of the link while copies run both ways, and the error counters that rose meanwhile.

    A fact that cannot be read has the value None and a reason.
    """
    info, nvml, _ = case.board
    before = link_counters(info.pci_bus_id, nvml.query)
    others: list[tuple[int, str]] = []  # CUDA index and PCI bus id of every other GPU that this process sees
    for index in range(int(check(driver.cuDeviceGetCount()))):
        device = check(driver.cuDeviceGet(index))
        if device_uuid(device) != info.uuid:
            others.append((index, check(driver.cuDeviceGetPCIBusId(32, device)).split(b"\0")[0].decode()))
    loads = []  # both before the first copy: an allocation waits until the GPU is idle
    for index, direction in enumerate(DIRECTIONS):
        ends = Ends(case, HostBuffer(case, "pinned", LOAD_BYTES), LOAD_BYTES, direction)
        loads.append(ends.by_engine(case.stream(index)))
    copy_ns: IntArray = np.zeros(2, dtype=np.int64)
    loads[0].round_trips(copy_ns)
    copies = min(max(round(LOAD_S / (int(copy_ns[-1]) * NANOSECOND_S)), 2), MOST_COPIES)
    for load in loads:
        load(copies)
    facts = link_facts_now(info, nvml.query, others)
    busy = all(int(driver.cuStreamQuery(load.stream)[0]) == NOT_READY for load in loads)
    case.synchronize()
    risen = counters_risen(before, link_counters(info.pci_bus_id, nvml.query))
    loaded = Fact("read_under_load", busy, "copies both ways were still running when all was read")
    return (*facts, *path_facts(info.pci_bus_id, facts, others), loaded, *before, *risen)


def _simulated_state(machine: Machine) -> tuple[Fact, ...]:
    """Names are those of gpu/machine/topology.py."""
    costs, links, several = machine.costs, machine.costs.links, machine.costs.gpus > 1
    hops = ((bus_id(0), "endpoint"), *ABOVE)
    known: dict[str, Scalar] = {
        **{f"generation_{which}": GENERATION for which in ("now", "gpu_max", "slot_max")},
        **{f"lanes_{which}": LANES for which in ("now", "gpu_max", "slot_max")},
        "slot_limit_bus_id": "none",
        "max_payload_bytes": costs.packet_payload_bytes,
        "max_read_request_bytes": 512,
        "read_completion_boundary_bytes": 64,
        "relaxed_ordering": True,
        "acs": False,
        "iommu": "off",
        "resizable_bar": True,
        "bar1_bytes": costs.memory.total_bytes,
        "numa_node": 0,
        "hops": len(hops),
        "switches": 1,
        "root": "pci0000:15",
        "virtual_bus": False,
        "nvlinks": links.nvlinks if several else 0,
        "c2c": False,
        "read_under_load": True,
        **{name + ending: 0 for name in COUNTERS for ending in ("", "_risen")},
    }
    for index, (bus, kind) in enumerate(hops):
        known |= {
            f"hop{index}_bus_id": bus,
            f"hop{index}_kind": kind,
            f"hop{index}_generation_now": GENERATION,
            f"hop{index}_lanes_now": LANES,
            f"hop{index}_generation_max": GENERATION,
            f"hop{index}_lanes_max": LANES,
            f"hop{index}_max_payload_bytes": costs.packet_payload_bytes,
        }
    if several:
        known |= {"nvlink_version": "4.0", "nvlink_bytes_per_s": links.nvlink_bytes_per_s, "nvlink_peers": "gpu"}
        known |= {f"topology_gpu{gpu}": f"NV{links.nvlinks}" for gpu in range(1, costs.gpus)}
    unknown = UNKNOWN if several else UNKNOWN | NO_NVLINK
    return (
        *(
            Fact(name, value, SIMULATED, unit=next((unit for end, unit in UNITS.items() if name.endswith(end)), ""))
            for name, value in known.items()
        ),
        *(Fact(name, None, SIMULATED, reason=reason) for name, reason in unknown.items()),
    )


link_state = experiment(_state, _simulated_state)
