"""Managed memory that moves by faults, by prefetch or as read-mostly copies; and what pinning host memory costs."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import closing

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray
from microbench.core.units import about_size, size
from microbench.gpu.cuda import buffers, driver, loops
from microbench.gpu.cuda.case import HOST_PORTABLE_MAPPED, Case
from microbench.gpu.cuda.context import check, check_code, entry_point
from microbench.gpu.cuda.links.copies import WORD_BYTES, Piece, Readers
from microbench.gpu.cuda.submit import DriverSubmit
from microbench.gpu.protocol.links import ManagedWay, Pinning, PinningWay
from microbench.host.memory import require_room
from microbench.host.native import c_address

SHARE_OF_FREE = 4
SEED = 1
HOST = 0xFFFFFFFF  # CU_DEVICE_CPU, -1, as the low half of a 64-bit argument
ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL
SET_READ_MOSTLY, UNSET_READ_MOSTLY = 1, 2  # CU_MEM_ADVISE_…
BY_PREFETCH: tuple[ManagedWay, ...] = ("prefetch_to_device", "prefetch_to_host")
FROM_HOST: tuple[ManagedWay, ...] = ("fault_to_device", "prefetch_to_device", "read_mostly_to_device")


class Pages:
    """Managed memory of whole words, owned by the case, and the calls that move it.

    The entry points are those of CUDA 12.0, whose prefetch and advice take a device number. The bindings of CUDA 13
    have other functions; the driver has both.
    """

    def __init__(self, case: Case, size_bytes: int) -> None:
        self._stream = case.stream(0)
        self._device = int(case.context.device)
        self.size_bytes = -(-size_bytes // WORD_BYTES) * WORD_BYTES
        code, pointer = driver.cuMemAllocManaged(self.size_bytes, ATTACH_GLOBAL)
        buffers.require_taken(int(code), "managed", self.size_bytes)
        self.address = address = int(pointer)
        case.own(lambda: driver.cuMemFree(address))

    def prefetch_ns(self, *, to_device: bool) -> int:
        """Prefetch all of it and wait; returns the host time."""
        arguments = [self.address, self.size_bytes, self._device if to_device else HOST, self._stream]
        return round_trip_ns(DriverSubmit("cuMemPrefetchAsync", arguments, stream=self._stream))

    def advise(self, advice: int) -> None:
        DriverSubmit("cuMemAdvise", [self.address, self.size_bytes, advice, self._device], stream=self._stream)(1)

    def prefetched_to(self, *, to_device: bool) -> bool:
        last = driver.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION
        place = check(driver.cuMemRangeGetAttribute(WORD_BYTES, last, self.address, self.size_bytes))
        return int(place) == (self._device if to_device else -1)


class CudaManaged:
    """A Managed.

    Raises Skip without managed memory that host and device may use at the same time, and for more than a quarter of the
    free device memory: pages that evict others would measure something else.
    """

    def __init__(self, case: Case, way: ManagedWay, size_bytes: int) -> None:
        require_managed(case, size_bytes)
        self._case = case
        self._way: ManagedWay = way
        self._pages = Pages(case, size_bytes)
        self._patterns = buffers.Patterns(case)
        self._readers = Readers(case, [Piece(self._pages.address, self._pages.size_bytes)])
        self._read = self._readers.submit(0, 0)
        self._host_sums: list[int] = []
        self._patterns.fill(self._pages.address, self._pages.size_bytes, SEED)

    def take_ns(self) -> int:
        self._put_back()
        if self._way in BY_PREFETCH:
            return self._pages.prefetch_ns(to_device=self._way == "prefetch_to_device")
        if self._way != "fault_to_host":
            return round_trip_ns(self._read)
        taken_ns, total = sum_of_pages(self._pages.address, self._pages.size_bytes)
        self._host_sums.append(total)
        return taken_ns

    def _put_back(self) -> None:
        """Move the pages back to their source only: copies of read-mostly pages are dropped first."""
        read_mostly = self._way == "read_mostly_to_device"
        if read_mostly:
            self._pages.advise(UNSET_READ_MOSTLY)
        self._pages.prefetch_ns(to_device=self._way not in FROM_HOST)
        if read_mostly:
            self._pages.advise(SET_READ_MOSTLY)
        self._case.synchronize()

    def check(self) -> str:
        """Managed memory reads correctly wherever it is, so the move itself is checked too: by a kernel's checksum, the
        sum of what the host read, or the driver's record of the last prefetch."""
        to_device = not self._way.endswith("to_host")
        if self._way in BY_PREFETCH and not self._pages.prefetched_to(to_device=to_device):
            raise MeasurementError(f"the driver did not take the prefetch to the {'device' if to_device else 'host'}")
        if not to_device:
            return self._check_on_host()
        self._patterns.verify(self._pages.address, self._pages.size_bytes, SEED, "managed memory")
        if self._way in BY_PREFETCH:
            return "every byte compared on the GPU"
        self._readers.check()
        return "every byte compared on the GPU, and each kernel had seen all of it"

    def _check_on_host(self) -> str:
        """The host copies all of it into pinned memory, which the GPU compares."""
        copy = buffers.HostBuffer(self._case, "pinned", self._pages.size_bytes)
        ctypes.memmove(copy.address, self._pages.address, self._pages.size_bytes)
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


def pinning(case: Case, way: PinningWay, size_bytes: int, count: int) -> IntArray:
    """Each sample's memory is released before the next sample.

    Memory is portable and mapped, like the buffers that are copied from. The kernel chooses the page size of touched
    memory: if transparent huge pages are "always" (a fact of the run), one fault may bring 2 MiB.
    """
    require_room(size_bytes, "host memory")
    case.context.make_current()
    clock = c_address("clock_gettime")
    out: IntArray = np.zeros((count, len(Pinning)), dtype=np.int64)
    for row in out:
        if way == "allocate":
            held: IntArray = np.zeros(1, dtype=np.int64)
            _driver_calls("cuMemHostAlloc", int(held.ctypes.data), size_bytes, "cuMemFreeHost", held, clock, row)
        elif way == "register":
            with closing(buffers.HostPages(size_bytes)) as pages:  # they exist before the clock is read
                held = np.array([pages.address], dtype=np.int64)
                _driver_calls("cuMemHostRegister", pages.address, size_bytes, "cuMemHostUnregister", held, clock, row)
        elif not loops.map_and_touch(c_address("mmap"), c_address("munmap"), size_bytes, mmap.PAGESIZE, clock, row):
            if row[Pinning.PINNED] == 0:
                raise buffers.refused("pageable", size_bytes, "the kernel")
            raise MeasurementError("pages that were touched could not be given back")
    return out


def _driver_calls(
    take: str, where: int, size_bytes: int, release: str, held: IntArray, clock: int, out: IntArray
) -> None:
    """``take(where, size_bytes, flags)``, then ``release(held[0])``, with the stamps of Pinning."""
    taken, released = loops.take_and_release(
        entry_point(take), where, size_bytes, HOST_PORTABLE_MAPPED, 0, entry_point(release), 0, held, clock, out
    )
    buffers.require_taken(taken, "registered" if take == "cuMemHostRegister" else "pinned", size_bytes)
    check_code(released, release)
