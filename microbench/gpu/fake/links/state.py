"""What the simulated machine says of its link: a GPU below two switches, everything as fast as it should be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.environment import GENERATION, LANES, SIMULATED, bus_id
from microbench.model import Fact, Scalar

READ_COMPLETION_BOUNDARY_BYTES = 64
COUNTERS = (
    "pcie_replays",
    "pcie_correctable_errors",
    "pcie_nonfatal_errors",
    "pcie_fatal_errors",
    "nvlink_errors",
)
UNKNOWN = {
    "extended_tags": "the simulated configuration space does not say",
    "pcie_replay_rollovers": "the simulated driver does not count them",
    "pcie_replay_rollovers_risen": "the simulated driver does not count them",
    "topology_sim0": "the simulated network controller sits on a virtual bus",
}
UNITS = ("_bytes_per_s", "_bytes")


class Above(NamedTuple):
    """A bridge above the GPU."""

    bus_id: str
    kind: str


ABOVE = (
    Above("0000:19:00.0", "switch downstream port"),
    Above("0000:18:00.0", "switch upstream port"),
    Above("0000:17:00.0", "switch downstream port"),
    Above("0000:16:00.0", "switch upstream port"),
    Above("0000:15:01.0", "root port"),
)


def state(costs: FakeCosts) -> tuple[Fact, ...]:
    """See Links.state: names are those of gpu/link_state.py."""
    known: dict[str, Scalar] = {**_link(costs), **_path(costs), **_between_gpus(costs), "read_under_load": True}
    known |= {name + ending: 0 for name in COUNTERS for ending in ("", "_risen")}
    return (
        *(Fact(name, value, SIMULATED, unit=_unit(name)) for name, value in known.items()),
        *(Fact(name, None, SIMULATED, reason=reason) for name, reason in _unknown(costs).items()),
    )


def _unknown(costs: FakeCosts) -> dict[str, str]:
    if costs.gpus > 1:
        return UNKNOWN
    return UNKNOWN | dict.fromkeys(("nvlink_version", "nvlink_bytes_per_s", "nvlink_peers"), "no NVLink is up")


def _unit(name: str) -> str:
    ending = next((ending for ending in UNITS if name.endswith(ending)), "")
    return {"_bytes_per_s": "B/s", "_bytes": "B"}.get(ending, "")


def _link(costs: FakeCosts) -> dict[str, Scalar]:
    speeds: dict[str, Scalar] = {}
    for which in ("now", "gpu_max", "slot_max"):
        speeds |= {f"generation_{which}": GENERATION, f"lanes_{which}": LANES}
    return speeds | {
        "slot_limit_bus_id": "none",
        "max_payload_bytes": costs.packet_payload_bytes,
        "max_read_request_bytes": 512,
        "read_completion_boundary_bytes": READ_COMPLETION_BOUNDARY_BYTES,
        "relaxed_ordering": True,
        "acs": False,
        "iommu": "off",
        "resizable_bar": True,
        "bar1_bytes": costs.memory.total_bytes,
        "numa_node": 0,
    }


def _path(costs: FakeCosts) -> dict[str, Scalar]:
    hops = (Above(bus_id(0), "endpoint"), *ABOVE)
    found: dict[str, Scalar] = {
        "hops": len(hops),
        "switches": sum(hop.kind == "switch upstream port" for hop in hops),
        "root": "pci0000:15",
        "virtual_bus": False,
    }
    for index, hop in enumerate(hops):
        found |= {
            f"hop{index}_bus_id": hop.bus_id,
            f"hop{index}_kind": hop.kind,
            f"hop{index}_generation_now": GENERATION,
            f"hop{index}_lanes_now": LANES,
            f"hop{index}_generation_max": GENERATION,
            f"hop{index}_lanes_max": LANES,
            f"hop{index}_max_payload_bytes": costs.packet_payload_bytes,
        }
    return found


def _between_gpus(costs: FakeCosts) -> dict[str, Scalar]:
    links = costs.links if costs.gpus > 1 else None
    found: dict[str, Scalar] = {"nvlinks": links.nvlinks if links else 0, "c2c": False}
    if links:
        found |= {"nvlink_version": "4.0", "nvlink_bytes_per_s": links.nvlink_bytes_per_s, "nvlink_peers": "gpu"}
        found |= dict(_topology(costs))
    return found


def _topology(costs: FakeCosts) -> Iterator[tuple[str, Scalar]]:
    for gpu in range(1, costs.gpus):
        yield f"topology_gpu{gpu}", f"NV{costs.links.nvlinks}"
