"""Which network device this GPU's rank should use: a model of GPUDirect's rates over each path of the PCIe bus.

Nothing here is measured, except rates between GPUs that link_peer measured, which stand beside the model in the report.
Each reduction is a published figure; without a published figure only the ceiling of the path is given.
"""

import math
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Rule, listed, rule, said
from microbench.analysis.limits import ASSUMED_PAYLOAD_BYTES, pcie_rate
from microbench.core.units import quantity
from microbench.explain import link_facts as links

# From near to far, in the words of ``nvidia-smi topo -m``. NCCL uses GPUDirect up to PXB unless NCCL_NET_GDR_LEVEL says
# otherwise (src/graph/paths.cc, ncclTopoCheckGdr).
NEAREST_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS")
BY_SWITCHES = ("PIX", "PXB")
ACROSS = "SYS"
# A switch level adds this to the round trip of a read. A write does not wait for an answer: half of it.
# Source: Alibaba Cloud, Elastic computing technical guide (two levels 0.6 us; a write has half the path of a read).
SWITCH_ROUND_TRIP_S = 0.3e-6
READ_REQUEST_BYTES = 512  # of the network device in NVIDIA's guide; used if the configuration space is hidden
# Requests under way at once without extended tags: a tag has five bits then (PCI Express base specification).
PLAIN_TAGS = 32
MOST_PATHS = 1000
# NCCL's own model of a machine (github.com/NVIDIA/nccl at 5067397c, src/graph/topo.h, topo.cc). An Intel root
# complex cuts traffic between devices into packets of 64 bytes, which takes 6/5 of the link.
INTEL, AMD = "GenuineIntel", "AuthenticAMD"
INTEL_ROOT_OVERHEAD = 6 / 5
# Bytes a second from one processor to another: Intel's by the model number of family 6 from which it holds, AMD's by
# family: Zen 5, Zen 3 and 4, before. Zen 5's was measured between two GPUs of a machine with EPYC 9575F; that of Zen 3
# and 4 is a careful estimate (NVIDIA/nccl#2036, commit 2f1c174c).
INTEL_FAMILY = 6
INTEL_ACROSS = ((0xCF, 40e9), (0x8F, 22e9), (0x55, 10e9), (0, 6e9))
AMD_ACROSS = ((26, 32e9), (25, 24e9), (0, 16e9))
ACROSS_BY_VENDOR = {"ARM": 6e9, "POWER": 32e9}


class DevicePath(NamedTuple):
    """The PCIe path to a network device ("mlx5_0") or another GPU ("gpu1"), as far as it is known.

    ``rdma`` is "active", "down" or "no" for a network device; ``port`` is its fastest active port as UCX names it,
    "mlx5_0:1"; ``redirected`` means that ACS sends packets up to the processor although a switch joins the two.
    """

    name: str
    near: str
    switches: int | None
    narrowest: links.Speed
    narrowest_bus_id: str
    payload_bytes: int
    redirected: bool
    rdma: str | None
    port: str | None
    port_bytes_per_s: float | None
    read_request_bytes: int
    extended_tags: bool | None

    @property
    def added_s(self) -> float | None:
        """What the switches add to the round trip of a read; None if their number is unknown."""
        return None if self.switches is None else self.switches * SWITCH_ROUND_TRIP_S


class Modelled(NamedTuple):
    """What a path carries in B/s when the device writes to and reads from the GPU's memory. A model, not a measurement.

    ``write_limit`` and ``read_limit`` are the ceilings of the narrowest link. ``write`` and ``read`` include published
    reductions and the line rate of the port, named in ``reductions``; None where no figure is published for this kind
    of path.
    """

    write_limit: float
    read_limit: float
    write: float | None
    read: float | None
    reductions: tuple[str, ...]


def device_paths(evidence: Evidence) -> list[DevicePath]:
    """Every path whose narrowest link is known, nearest devices first; none for a GPU that shares the host's memory."""
    facts = links.link_facts(evidence)
    if links.shares_memory(evidence, facts) is not None:
        return []
    found = []
    classes = facts.topology()
    for number in range(MOST_PATHS):
        prefix = f"path{number}_"
        name = facts.text(f"{prefix}device")
        if name is None:
            break
        near, narrowest = classes.get(name), facts.speed(f"{prefix}generation", f"{prefix}lanes")
        if near is None or near not in NEAREST_FIRST or narrowest is None or not narrowest.raw_rate:
            continue
        port = facts.get(f"{prefix}port_bytes_per_s")
        redirected = near in BY_SWITCHES and facts.flag(f"{prefix}acs") is True
        found.append(
            DevicePath(
                name=name,
                near=near,
                switches=None if redirected else facts.number(f"{prefix}switches"),
                narrowest=narrowest,
                narrowest_bus_id=facts.text(f"{prefix}narrowest_bus_id") or "",
                payload_bytes=facts.number(f"{prefix}max_payload_bytes") or ASSUMED_PAYLOAD_BYTES,
                redirected=redirected,
                rdma=facts.text(f"{prefix}rdma"),
                port=facts.text(f"{prefix}port"),
                port_bytes_per_s=float(port) if isinstance(port, int | float) and port > 0 else None,
                read_request_bytes=facts.number(f"{prefix}max_read_request_bytes") or READ_REQUEST_BYTES,
                extended_tags=facts.flag(f"{prefix}extended_tags"),
            )
        )
    return sorted(found, key=lambda path: (NEAREST_FIRST.index(path.near), path.switches or 0))


def modelled(path: DevicePath, facts: links.LinkFacts) -> Modelled:
    """The path's ceilings and, where figures are published for such a path, what it is expected to carry."""
    write_limit, read_limit = (
        pcie_rate(path.narrowest.generation, path.narrowest.lanes, direction, path.payload_bytes) or 0.0
        for direction in ("d2h", "h2d")
    )
    write, read, reductions = write_limit, read_limit, []
    vendor = facts.text("processor_vendor")
    if path.near == ACROSS:
        across = across_processors(vendor, facts.number("processor_family"), facts.number("processor_model"))
        if across is None:
            return Modelled(write_limit, read_limit, None, None, ())
        if across < max(write, read):
            reductions.append("between processors")
        write, read = min(write, across), min(read, across)
    elif path.redirected or path.near not in BY_SWITCHES:
        if vendor != INTEL:
            return Modelled(write_limit, read_limit, None, None, ())
        reductions.append("root complex" + " (ACS)" * path.redirected)
        write, read = write / INTEL_ROOT_OVERHEAD, read / INTEL_ROOT_OVERHEAD
    if path.extended_tags is False and path.added_s:
        under_way = PLAIN_TAGS * path.read_request_bytes / path.added_s
        if under_way < read:
            reductions.append(f"{PLAIN_TAGS} reads at once")
            read = under_way
    if (port := path.port_bytes_per_s) is not None and port < max(write, read):
        reductions = [*(reductions if port > min(write, read) else ()), "port"]
        write, read = min(write, port), min(read, port)
    return Modelled(write_limit, read_limit, write, read, tuple(reductions))


def across_processors(vendor: str | None, family: int | None, model: int | None) -> float | None:
    """NCCL's figure for the link between two processors, in B/s; None for a processor that it does not know."""
    if vendor == INTEL and family == INTEL_FAMILY and model is not None:
        return next(rate for least, rate in INTEL_ACROSS if model >= least)
    if vendor == AMD and family is not None:
        return next(rate for least, rate in AMD_ACROSS if family >= least)
    return ACROSS_BY_VENDOR.get(vendor or "")


@rule("link.network", "a network device with RDMA whose PCIe path to the GPU is known")
def network(evidence: Evidence) -> Finding | None:
    """The network device that this GPU's rank should use. A model."""
    facts = links.link_facts(evidence)
    usable = [path for path in device_paths(evidence) if is_network(path) and path.rdma not in ("no", "down")]
    if not usable:
        return None
    preferences = {path.name: _preference(path, facts) for path in usable}
    best = max(usable, key=lambda path: preferences[path.name])
    equal = [path for path in usable if (path.near, preferences[path.name]) == (best.near, preferences[best.name])]
    names = listed([path.name for path in equal])
    title = f"For this GPU's rank: {names} ({best.near})"
    top = _carried(best, facts)
    title += f", {quantity(top, 'B/s')} by a model of the path" if top is not None else "; no figure is published"
    if best.rdma is None:
        title += "; it is not known whether RDMA works"
    elif best.port_bytes_per_s is None:
        title += "; the port's rate is not known"
    text = "Nothing here was measured: it follows from the narrowest link and published figures."
    ucx = f", with UCX by `UCX_NET_DEVICES={best.port}`" if best.port else ""
    looks = "looks for it by itself" if best.near in BY_SWITCHES else "copies through host memory on such a path"
    advice = f"Give the rank {best.name}{ucx}; NCCL {looks}."
    if best.rdma != "active":
        advice = f"See on the host with `ibv_devinfo` whether {best.name} has an active port."
    return said(title, text, advice, names=tuple(f"{links.TOPOLOGY}{path.name}" for path in usable), severity="note")


def is_network(path: DevicePath) -> bool:
    """False for another GPU."""
    return not path.name.removeprefix("gpu").isdecimal()


def _preference(path: DevicePath, facts: links.LinkFacts) -> tuple[bool, bool, int, float]:
    """A device that is known to have RDMA and a port's rate comes before others; among these the kind of path counts.

    Switches alone come first, because NCCL uses GPUDirect there; then switches with ACS, one processor, two processors.
    Of one kind the higher rate counts, or the ceiling where no figure is published; of equal ones the nearest.
    """
    kind = 3 - path.redirected if path.near in BY_SWITCHES else int(path.near != ACROSS)
    rate = _carried(path, facts)
    if rate is None:
        rate = min(modelled(path, facts).write_limit, path.port_bytes_per_s or math.inf)
    return path.rdma == "active", path.port_bytes_per_s is not None, kind, rate


def _carried(path: DevicePath, facts: links.LinkFacts) -> float | None:
    model = modelled(path, facts)
    return None if model.write is None or model.read is None else min(model.write, model.read)


RULES: tuple[Rule, ...] = (network,)
