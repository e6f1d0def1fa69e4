"""Managed memory of the simulated machine: pages that lie with the host, with the GPU, or (read mostly) with both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact, Scalar
from microbench.core.ops import Copy, IntArray, Launch
from microbench.core.units import size
from microbench.gpu.fake.costs import FakeCosts, Traffic
from microbench.gpu.fake.device import FloatArray, Item
from microbench.gpu.fake.environment import GENERATION, LANES, SIMULATED, bus_id
from microbench.gpu.fake.links import Ends, require_host_memory
from microbench.gpu.fake.machine import Call, Machine, call_of
from microbench.gpu.protocol.links import Direction, ManagedWay, Order

# Dependent reads on the simulated GPU: line after line, through a cache of address translations.


SEED = 20240229


class Translations:
    """A cache of page translations, each page in one place only (direct mapped)."""

    def __init__(self, entries: int) -> None:
        self._pages: IntArray = np.full(entries, -1, dtype=np.int64)

    def misses(self, pages: IntArray) -> FloatArray:
        """1 for each of these accesses that misses, else 0; a miss displaces what was there."""
        places = pages % len(self._pages)
        order = np.argsort(places, kind="stable")
        places, pages = places[order], pages[order]
        first = np.concatenate(([True], places[1:] != places[:-1]))
        held = np.concatenate(([0], pages[:-1]))
        held[first] = self._pages[places[first]]
        last = np.concatenate((first[1:], [True]))
        self._pages[places[last]] = pages[last]
        found: FloatArray = np.zeros(len(pages))
        found[order] = pages != held
        return found


class FakeChase:
    """``visits`` are the lines' numbers in the order of the walk, shape (lines,)."""

    def __init__(self, machine: Machine, visits: IntArray, stride_bytes: int, read_ns: float, miss_ns: float) -> None:
        links = machine.costs.links
        self.blocks = machine.costs.sm_count
        self._machine = machine
        self._scope = machine.scope
        self._pages = visits * stride_bytes // links.translation_page_bytes
        self._translations = Translations(links.translation_entries)
        self._read_ns = read_ns
        self._miss_ns = miss_ns
        self._at = 0

    def walks_ns(self, reads: int) -> IntArray:
        noise = self._machine.noise.device(1.0, self.blocks)
        return self._walk(self._reads_ns(reads * self.blocks).reshape(self.blocks, reads).sum(axis=1) * noise)

    def each_ns(self, reads: int) -> IntArray:
        return self._walk(self._reads_ns(reads) * self._machine.noise.device(1.0, reads))

    def _reads_ns(self, count: int) -> FloatArray:
        lines = (self._at + np.arange(count)) % len(self._pages)
        self._at = (self._at + count) % len(self._pages)
        return self._read_ns + self._miss_ns * self._translations.misses(self._pages[lines])

    def _walk(self, times_ns: FloatArray) -> IntArray:
        """Let the GPU walk that long, in all. Lines whose addresses never came lead nowhere."""
        machine = self._machine
        machine.check(self._scope)
        machine.make(Call(machine.costs.submit_ns, Item(duration_ns=float(times_ns.sum()))), 1)
        machine.synchronize(0)
        if machine.costs.links.arrives != "right":
            raise MeasurementError(f"SIMULATED: the walk ended at no line where line {self._at} should be")
        return times_ns.round().astype(np.int64)


def host_chase(machine: Machine, footprint_bytes: int, stride_bytes: int, order: Order) -> FakeChase:
    require_host_memory(machine.costs, "pinned", footprint_bytes)
    visits = _lines(footprint_bytes, stride_bytes)
    if order == "random":
        visits = np.random.default_rng(SEED).permutation(visits)
    return FakeChase(machine, visits, stride_bytes, machine.costs.host_read_ns, machine.costs.links.translation_miss_ns)


def peer_chase(machine: Machine, footprint_bytes: int, stride_bytes: int) -> FakeChase:
    """See Links.peer_chase; the other GPU's translations are always at hand."""
    return FakeChase(machine, _lines(footprint_bytes, stride_bytes), stride_bytes, machine.costs.links.peer_read_ns, 0)


def _lines(footprint_bytes: int, stride_bytes: int) -> IntArray:
    if footprint_bytes < stride_bytes:
        raise Skip(f"{footprint_bytes} B hold no line of {stride_bytes} B to walk through")
    return np.arange(footprint_bytes // stride_bytes, dtype=np.int64)


SHARE_OF_FREE = 4


class FakeManaged:
    """Raises Skip without managed memory, or for more than a quarter of what is free on the device."""

    def __init__(self, machine: Machine, way: ManagedWay, size_bytes: int) -> None:
        if not machine.costs.links.managed_memory:
            raise Skip("this GPU has no concurrent managed access (SIMULATED)")
        free_bytes = machine.costs.memory.total_bytes
        if size_bytes > free_bytes // SHARE_OF_FREE:
            raise Skip(f"{size(size_bytes)} is over a quarter of the {size(free_bytes)} free on the device")
        require_host_memory(machine.costs, "managed", size_bytes)
        self._machine = machine
        self._scope = machine.scope
        self._way: ManagedWay = way
        self._size_bytes = size_bytes
        self._ends = Ends(machine.costs, size_bytes)
        self._on_device = False

    def take_ns(self) -> int:
        machine = self._machine
        machine.check(self._scope)
        self._ends.fresh()
        starts_on_device = self._way == "again_on_device" or self._way.endswith("to_host")
        if self._on_device != starts_on_device:
            self._prefetch("h2d" if starts_on_device else "d2h")
        began_ns = machine.clock.now_ns()
        self._move()
        taken_ns = machine.clock.now_ns() - began_ns
        self._ends.move()
        return taken_ns

    def _move(self) -> None:
        if self._way == "prefetch_to_device":
            self._prefetch("h2d")
        elif self._way == "prefetch_to_host":
            self._prefetch("d2h")
        elif self._way == "fault_to_host":
            self._touch_on_host()
        else:
            self._read_on_device()

    def _prefetch(self, direction: Direction) -> None:
        self._machine.make(call_of(Copy(direction, self._size_bytes), self._machine.costs, {}), 1)
        self._machine.synchronize(0)
        self._on_device = direction == "h2d"

    def _read_on_device(self) -> None:
        """A kernel reads all: pages that are not there are fetched, a batch of faults at a time."""
        costs, links = self._machine.costs, self._machine.costs.links
        call = call_of(Launch(), costs, {})
        assert call.item is not None, "a launch goes into a stream"
        duration_ns = costs.empty_kernel_ns + self._size_bytes / links.device_read_bytes_per_s * 1e9
        traffic = call.item.traffic
        if not self._on_device:
            batch_ns = links.read_mostly_batch_ns if self._way == "read_mostly_to_device" else links.fault_batch_ns
            wire_bytes = costs.on_the_link_bytes("h2d", self._size_bytes)
            batches = -(-self._size_bytes // links.fault_batch_bytes)
            duration_ns += batches * batch_ns + wire_bytes / costs.link_bytes_per_s * 1e9
            requests_bytes = costs.read_requests_bytes(self._size_bytes)
            traffic = Traffic(traffic.received + wire_bytes, traffic.sent + requests_bytes)
        item = msgspec.structs.replace(call.item, duration_ns=duration_ns, traffic=traffic)
        self._machine.make(Call(call.host_ns, item), 1)
        self._machine.synchronize(0)
        self._on_device = True

    def _touch_on_host(self) -> None:
        """A host thread reads all: each fault fetches its piece, and the thread waits for it."""
        machine, costs, links = self._machine, self._machine.costs, self._machine.costs.links
        if not self._on_device:
            raise MeasurementError("SIMULATED: the pages lie with the host already")
        faults = -(-self._size_bytes // links.host_fault_bytes)
        wire_bytes = costs.on_the_link_bytes("d2h", self._size_bytes / faults)
        each_ns = links.host_fault_ns + wire_bytes / costs.link_bytes_per_s * 1e9
        machine.make(Call(each_ns, Item(traffic=Traffic(0.0, wire_bytes), queued=False)), faults)
        self._on_device = False

    def check(self) -> str:
        return self._ends.check()


# What the simulated machine says of its link: a GPU below two switches, everything as fast as it should be.


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
    """See Links.state: names are those of gpu/machine/topology.py."""
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
