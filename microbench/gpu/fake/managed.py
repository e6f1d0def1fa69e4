"""Dependent reads of host and peer memory, managed memory, and what the simulated machine says of its link."""

from __future__ import annotations

import numpy as np

from microbench.core.errors import Skip
from microbench.core.model import Fact, Scalar
from microbench.core.ops import Copy, IntArray, Launch
from microbench.core.units import size
from microbench.gpu.fake.costs import Traffic
from microbench.gpu.fake.device import FloatArray, Item
from microbench.gpu.fake.environment import GENERATION, LANES, SIMULATED, bus_id
from microbench.gpu.fake.links import require_pair
from microbench.gpu.fake.machine import Call, Machine, Scoped, call_of
from microbench.gpu.fake.transfers import Ends, evenly, require_host_memory
from microbench.gpu.protocol.links import ManagedWay, Order
from microbench.gpu.protocol.transfer import Direction

SHARE_OF_FREE = 4


class FakeChase(Scoped):
    """Reads of ``read_ns`` each; ``miss_ns`` longer beyond the reach of address translations."""

    def __init__(
        self, machine: Machine, footprint_bytes: int, stride_bytes: int, read_ns: float, miss_ns: float
    ) -> None:
        if footprint_bytes < stride_bytes:
            raise Skip(f"{footprint_bytes} B hold no line of {stride_bytes} B to walk through")
        super().__init__(machine)
        self.blocks = machine.costs.sm_count
        self._footprint_bytes = footprint_bytes
        self._read_ns = read_ns
        self._miss_ns = miss_ns
        self._at = 0

    def walks_ns(self, reads: int) -> IntArray:
        noise = self._machine.noise.device(1.0, self.blocks)
        return self._walk(self._reads_ns(reads * self.blocks).reshape(self.blocks, reads).sum(axis=1) * noise)

    def each_ns(self, reads: int) -> IntArray:
        return self._walk(self._reads_ns(reads) * self._machine.noise.device(1.0, reads))

    def _reads_ns(self, count: int) -> FloatArray:
        beyond_reach = 1 - self._machine.costs.links.translation_reach_bytes / self._footprint_bytes
        missed = evenly(beyond_reach, self._at, count)
        self._at += count
        return self._read_ns + self._miss_ns * missed

    def _walk(self, times_ns: FloatArray) -> IntArray:
        self._open().walk(float(times_ns.sum()), self._at)
        return times_ns.round().astype(np.int64)


def host_chase(machine: Machine, footprint_bytes: int, stride_bytes: int, order: Order) -> FakeChase:
    """In sequential order a page is translated once for many reads, which costs nothing visible."""
    costs = machine.costs
    require_host_memory(costs, "pinned", footprint_bytes)
    miss_ns = costs.links.translation_miss_ns if order == "random" else 0.0
    return FakeChase(machine, footprint_bytes, stride_bytes, costs.host_read_ns, miss_ns)


def peer_chase(machine: Machine, first: int, second: int, footprint_bytes: int, stride_bytes: int) -> FakeChase:
    require_pair(machine, first, second)
    return FakeChase(machine, footprint_bytes, stride_bytes, machine.costs.links.peer_read_ns, 0.0)


class FakeManaged(Ends, Scoped):
    """A Managed. Raises Skip without managed memory, or for more than a quarter of the device's memory."""

    def __init__(self, machine: Machine, way: ManagedWay, size_bytes: int) -> None:
        if not machine.costs.links.managed_memory:
            raise Skip("this GPU has no concurrent managed access (SIMULATED)")
        free_bytes = machine.costs.memory.total_bytes
        if size_bytes > free_bytes // SHARE_OF_FREE:
            raise Skip(f"{size(size_bytes)} is over a quarter of the {size(free_bytes)} free on the device")
        require_host_memory(machine.costs, "managed", size_bytes)
        Ends.__init__(self, machine.costs, size_bytes)
        Scoped.__init__(self, machine)
        self._way: ManagedWay = way
        self._on_device = False

    def take_ns(self) -> int:
        machine = self._open()
        self.fresh()
        starts_on_device = self._way == "again_on_device" or self._way.endswith("to_host")
        if self._on_device != starts_on_device:
            self._prefetch("h2d" if starts_on_device else "d2h")
        began_ns = machine.clock.now_ns()
        if self._way.startswith("prefetch"):
            self._prefetch("h2d" if self._way == "prefetch_to_device" else "d2h")
        elif self._way == "fault_to_host":
            self._touch_on_host()
        else:
            self._read_on_device()
        taken_ns = machine.clock.now_ns() - began_ns
        self.move()
        return taken_ns

    def _prefetch(self, direction: Direction) -> None:
        self._machine.make(call_of(Copy(direction, self.size_bytes), self._machine.costs, {}), 1)
        self._machine.synchronize(0)
        self._on_device = direction == "h2d"

    def _read_on_device(self) -> None:
        """A kernel reads the whole buffer. Missing pages are fetched, one batch of faults at a time."""
        costs, links, size_bytes = self._machine.costs, self._machine.costs.links, self.size_bytes
        launch = call_of(Launch(), costs, {})
        duration_ns = costs.empty_kernel_ns + size_bytes / links.device_read_bytes_per_s * 1e9
        moved = Traffic()
        if not self._on_device:
            batch_ns = links.read_mostly_batch_ns if self._way == "read_mostly_to_device" else links.fault_batch_ns
            moved = costs.copy_traffic("h2d", size_bytes)
            batches = -(-size_bytes // links.fault_batch_bytes)
            duration_ns += batches * batch_ns + moved.received / costs.link_bytes_per_s * 1e9
        self._machine.run(launch.with_item(duration_ns=duration_ns, traffic=launch.item.traffic + moved).item)
        self._on_device = True

    def _touch_on_host(self) -> None:
        """A host thread reads the whole buffer. Each fault fetches one piece, and the thread waits for it."""
        costs, links, size_bytes = self._machine.costs, self._machine.costs.links, self.size_bytes
        faults = -(-size_bytes // links.host_fault_bytes)
        moved = costs.copy_traffic("d2h", size_bytes / faults)
        each_ns = links.host_fault_ns + moved.sent / costs.link_bytes_per_s * 1e9
        self._machine.make(Call(each_ns, Item(traffic=moved, queued=False)), faults)
        self._on_device = False


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


def state(machine: Machine) -> tuple[Fact, ...]:
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
        *(Fact(name, value, SIMULATED, unit=_unit(name)) for name, value in known.items()),
        *(Fact(name, None, SIMULATED, reason=reason) for name, reason in unknown.items()),
    )


def _unit(name: str) -> str:
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")
