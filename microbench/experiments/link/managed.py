"""Managed memory that moves by faults, by prefetch or as read-mostly copies."""

import ctypes
import mmap
from typing import Literal

import numpy as np

from microbench.core.ops import Copy, IntArray, Launch
from microbench.core.units import about_size, size
from microbench.experiments.link.pipeline import WORD_BYTES, Piece, Readers
from microbench.gpu.cuda.buffers import HostBuffer, Patterns, require_taken
from microbench.gpu.cuda.submit import DriverSubmit
from microbench.gpu.experiment import Case, Item, MeasurementError, Skip, check, driver, experiment, loops
from microbench.gpu.fake.costs import Traffic
from microbench.gpu.fake.machine import Call, Machine, Scoped, call_of
from microbench.gpu.fake.transfers import Ends, require_host_memory
from microbench.gpu.protocol.gpu import Direction
from microbench.host.memory import require_room
from microbench.host.native import c_address

ManagedWay = Literal[
    "fault_to_device", "prefetch_to_device", "read_mostly_to_device", "again_on_device",
    "fault_to_host", "prefetch_to_host",
]  # fmt: skip
SHARE_OF_FREE = 4
SEED = 1
HOST = 0xFFFFFFFF  # CU_DEVICE_CPU, -1, as the low half of a 64-bit argument
ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL
SET_READ_MOSTLY, UNSET_READ_MOSTLY = 1, 2  # CU_MEM_ADVISE_…
BY_PREFETCH: tuple[ManagedWay, ...] = ("prefetch_to_device", "prefetch_to_host")
FROM_HOST: tuple[ManagedWay, ...] = ("fault_to_device", "prefetch_to_device", "read_mostly_to_device")


class Managed:
    """Managed memory that is moved one way again and again, and moved back outside of the timed region.

    Raises Skip without managed memory that host and device may use at the same time, and for more than a quarter of the
    free device memory: pages that evict others would measure something else.

    The entry points are those of CUDA 12.0, whose prefetch and advice take a device number. The bindings of CUDA 13
    have other functions; the driver has both.
    """

    def __init__(self, case: Case, way: ManagedWay, size_bytes: int) -> None:
        require_managed(case, size_bytes)
        self._case, self._stream, self._device = case, case.stream(0), int(case.context.device)
        self._way: ManagedWay = way
        self._size_bytes = -(-size_bytes // WORD_BYTES) * WORD_BYTES
        code, pointer = driver.cuMemAllocManaged(self._size_bytes, ATTACH_GLOBAL)
        require_taken(int(code), "managed", self._size_bytes)
        self._pages = pages = int(pointer)
        case.own(lambda: driver.cuMemFree(pages))
        self._patterns = Patterns(case)
        self._readers = Readers(case, [Piece(pages, self._size_bytes)])
        self._read = self._readers.submit(0, 0)
        self._host_sums: list[int] = []
        self._patterns.fill(pages, self._size_bytes, SEED)

    def _prefetch_ns(self, *, to_device: bool) -> int:
        arguments = [self._pages, self._size_bytes, self._device if to_device else HOST, self._stream]
        return round_trip_ns(DriverSubmit("cuMemPrefetchAsync", arguments, stream=self._stream))

    def _advise(self, advice: int) -> None:
        DriverSubmit("cuMemAdvise", [self._pages, self._size_bytes, advice, self._device], stream=self._stream)(1)

    def take_ns(self) -> int:
        """Move the pages back to where they come from, then move them and wait: host time of the second move in ns."""
        self._put_back()
        if self._way in BY_PREFETCH:
            return self._prefetch_ns(to_device=self._way == "prefetch_to_device")
        if self._way != "fault_to_host":
            return round_trip_ns(self._read)
        taken_ns, total = sum_of_pages(self._pages, self._size_bytes)
        self._host_sums.append(total)
        return taken_ns

    def _put_back(self) -> None:
        """Move the pages back to their source only: copies of read-mostly pages are dropped first."""
        read_mostly = self._way == "read_mostly_to_device"
        if read_mostly:
            self._advise(UNSET_READ_MOSTLY)
        self._prefetch_ns(to_device=self._way not in FROM_HOST)
        if read_mostly:
            self._advise(SET_READ_MOSTLY)
        self._case.synchronize()

    def check(self) -> str:
        """Compare the whole buffer, and verify that the last move really took place. Returns how.

        Managed memory reads correctly wherever it is, so the move itself is checked too: by a kernel's checksum, the
        sum of what the host read, or the driver's record of the last prefetch. Raises MeasurementError for wrong data,
        and if nothing shows that the pages moved.
        """
        to_device = not self._way.endswith("to_host")
        last = driver.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION
        if self._way in BY_PREFETCH and int(
            check(driver.cuMemRangeGetAttribute(WORD_BYTES, last, self._pages, self._size_bytes))
        ) != (self._device if to_device else -1):
            raise MeasurementError(f"the driver did not take the prefetch to the {'device' if to_device else 'host'}")
        if not to_device:
            return self._check_on_host()
        self._patterns.verify(self._pages, self._size_bytes, SEED, "managed memory")
        if self._way in BY_PREFETCH:
            return "every byte compared on the GPU"
        self._readers.check()
        return "every byte compared on the GPU, and each kernel had seen all of it"

    def _check_on_host(self) -> str:
        """The host copies all of it into pinned memory, which the GPU compares."""
        copy = HostBuffer(self._case, "pinned", self._size_bytes)
        ctypes.memmove(copy.address, self._pages, self._size_bytes)
        self._patterns.verify(copy.device_address or copy.address, copy.size_bytes, SEED, "managed memory")
        if self._way in BY_PREFETCH:
            return "every byte read by the host and compared on the GPU"
        wanted = sum_of_pages(copy.address, copy.size_bytes)[1]
        if not self._host_sums or any(total != wanted for total in self._host_sums):
            raise MeasurementError("the host did not read what the pages hold")
        return "every byte read by the host and compared on the GPU, and each time one word of each page"


def require_managed(case: Case, size_bytes: int) -> None:
    """Raise Skip if that much managed memory cannot be moved without evicting the memory of others."""
    if not case.context.attribute("CONCURRENT_MANAGED_ACCESS"):
        raise Skip("this GPU and its driver have no managed memory that host and device may use at once")
    free_bytes = int(check(driver.cuMemGetInfo())[0])
    if size_bytes > free_bytes // SHARE_OF_FREE:
        free = about_size(free_bytes)
        raise Skip(f"{size(size_bytes)} of managed memory is over a quarter of the {free} that are free on the GPU")
    require_room(size_bytes, "managed memory")


def round_trip_ns(submit: DriverSubmit) -> int:
    """Host time of one call and a synchronise of its stream."""
    out: IntArray = np.zeros(1, dtype=np.int64)
    submit.round_trips(out)
    return int(out[0])


def sum_of_pages(address: int, size_bytes: int) -> tuple[int, int]:
    """This thread reads the first word of each page: host time in ns, and the sum of the words."""
    out: IntArray = np.zeros(2, dtype=np.int64)
    loops.read_pages(address, size_bytes, mmap.PAGESIZE, c_address("clock_gettime"), out)
    return int(out[0]), int(out[1])


class SimulatedManaged(Ends, Scoped, Managed):
    """Pages are on the host at first."""

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
        self._machine.make(call_of(Copy(direction, self.size_bytes), self._machine.costs), 1)
        self._machine.synchronize(0)
        self._on_device = direction == "h2d"

    def _read_on_device(self) -> None:
        """A kernel reads the whole buffer. Missing pages are fetched, one batch of faults at a time."""
        costs, links, size_bytes = self._machine.costs, self._machine.costs.links, self.size_bytes
        launch = call_of(Launch(), costs)
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


managed_memory = experiment(Managed, SimulatedManaged)
