"""Managed memory that is moved one way again and again: by faults, by prefetch, as read-mostly copies."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from contextlib import closing

import numpy as np
from cuda.bindings import driver

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray
from microbench.core.units import about_size, size
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import HOST_PORTABLE_MAPPED, Context, check, check_code, entry_point
from microbench.gpu.cuda.links.buffers import (
    HostBuffer,
    HostPages,
    Patterns,
    map_and_touch,
    read_pages,
    refused,
    require_taken,
    take_and_release,
)
from microbench.gpu.cuda.links.copies import WORD_BYTES, Piece, Readers
from microbench.gpu.cuda.submit import DriverSubmit
from microbench.gpu.protocol.links import ManagedWay, Pinning, PinningWay
from microbench.host.memory import require_room
from microbench.host.native import c_address

SHARE_OF_FREE = 4
SEED = 1
HOST = 0xFFFFFFFF  # CU_DEVICE_CPU, -1, as the low half of a 64-bit argument
ATTACH_GLOBAL = int(driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)
SET_READ_MOSTLY = int(driver.CUmem_advise.CU_MEM_ADVISE_SET_READ_MOSTLY)
UNSET_READ_MOSTLY = int(driver.CUmem_advise.CU_MEM_ADVISE_UNSET_READ_MOSTLY)
LAST_PREFETCH = driver.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION
BY_PREFETCH: tuple[ManagedWay, ...] = ("prefetch_to_device", "prefetch_to_host")
FROM_HOST: tuple[ManagedWay, ...] = ("fault_to_device", "prefetch_to_device", "read_mostly_to_device")


class Pages:
    """Managed memory of whole words, owned by the case, and what moves it.

    Entry points are those of CUDA 12.0, whose prefetch and advice take a device's number: the bindings of CUDA 13 have
    others, the driver has both.
    """

    def __init__(self, context: Context, size_bytes: int, stream: int) -> None:
        self._stream = stream
        self._device = int(context.device)
        self.size_bytes = -(-size_bytes // WORD_BYTES) * WORD_BYTES
        code, pointer = driver.cuMemAllocManaged(self.size_bytes, ATTACH_GLOBAL)
        require_taken(int(code), "managed", self.size_bytes)
        self.address = address = int(pointer)
        context.own(lambda: driver.cuMemFree(address))

    def prefetch_ns(self, *, to_device: bool) -> int:
        """Prefetch all of it and wait: host time of both."""
        arguments = [self.address, self.size_bytes, self._device if to_device else HOST, self._stream]
        return round_trip_ns(self._call("cuMemPrefetchAsync", arguments))

    def advise(self, advice: int) -> None:
        """Give the driver an advice for all of it."""
        self._call("cuMemAdvise", [self.address, self.size_bytes, advice, self._device])(1)

    def prefetched_to(self, *, to_device: bool) -> bool:
        """True if the last prefetch of every page went there."""
        found = check(driver.cuMemRangeGetAttribute(WORD_BYTES, LAST_PREFETCH, self.address, self.size_bytes))
        return int(found) == (self._device if to_device else -1)

    def _call(self, name: str, arguments: list[int]) -> DriverSubmit:
        return DriverSubmit(name, entry_point(name), arguments, stream=self._stream)


class CudaManaged:
    """See Managed of link_api.py.

    Raises Skip without managed memory that both sides may use at once, and for more than a quarter of what is free on
    the device: pages that push others out would measure something else.
    """

    def __init__(self, case: Case, way: ManagedWay, size_bytes: int) -> None:
        require_managed(case.context, size_bytes)
        self._case = case
        self._way: ManagedWay = way
        self._stream = case.stream(0)
        self._pages = Pages(case.context, size_bytes, self._stream)
        self._patterns = Patterns(case.context, case.modules)
        self._readers = Readers(case, [Piece(self._pages.address, self._pages.size_bytes)])
        self._read = self._readers.submit(0, self._stream)
        self._host_sums: list[int] = []
        self._patterns.fill(self._pages.address, self._pages.size_bytes, SEED)

    def take_ns(self) -> int:
        self._put_back()
        if self._way in BY_PREFETCH:
            return self._pages.prefetch_ns(to_device=self._way == "prefetch_to_device")
        return self._read_on_host() if self._way == "fault_to_host" else round_trip_ns(self._read)

    def _put_back(self) -> None:
        """The pages lie where they come from, and there alone: copies of read-mostly pages are given up first."""
        read_mostly = self._way == "read_mostly_to_device"
        if read_mostly:
            self._pages.advise(UNSET_READ_MOSTLY)
        self._pages.prefetch_ns(to_device=self._way not in FROM_HOST)
        if read_mostly:
            self._pages.advise(SET_READ_MOSTLY)
        self._case.context.synchronize()

    def _read_on_host(self) -> int:
        """This thread reads a word of each page."""
        taken_ns, total = sum_of_pages(self._pages.address, self._pages.size_bytes)
        self._host_sums.append(total)
        return taken_ns

    def check(self) -> str:
        """See Transfer. Managed memory reads right wherever it lies, so what moved it must have left its trace as well:
        a kernel's checksum, the host's sum of what it read, or where the driver says that all was prefetched to."""
        to_device = not self._way.endswith("to_host")
        if self._way in BY_PREFETCH and not self._pages.prefetched_to(to_device=to_device):
            raise MeasurementError(f"the driver did not take the prefetch to the {'device' if to_device else 'host'}")
        if not to_device:
            return self._check_on_host()
        self._patterns.verify(self._pages.address, self._pages.size_bytes, SEED, "managed memory")
        if self._way in BY_PREFETCH:
            return "every byte compared on the GPU"
        self._readers.check(self._stream)
        return "every byte compared on the GPU, and each kernel had seen all of it"

    def _check_on_host(self) -> str:
        """The host copies all of it into pinned memory, which the GPU compares."""
        copy = HostBuffer(self._case.context, "pinned", self._pages.size_bytes)
        ctypes.memmove(copy.address, self._pages.address, self._pages.size_bytes)
        self._patterns.verify(copy.device_address or copy.address, copy.size_bytes, SEED, "managed memory")
        if self._way in BY_PREFETCH:
            return "every byte read by the host and compared on the GPU"
        wanted = sum_of_pages(copy.address, copy.size_bytes)[1]
        if not self._host_sums or any(found != wanted for found in self._host_sums):
            raise MeasurementError("the host did not read what the pages hold")
        return "every byte read by the host and compared on the GPU, and each time one word of each page"


def require_managed(context: Context, size_bytes: int) -> None:
    """Raise Skip where that much managed memory cannot be moved without pushing out what others have."""
    if not context.attribute("CONCURRENT_MANAGED_ACCESS"):
        raise Skip("this GPU and its driver have no managed memory that host and device may use at once")
    free_bytes = int(check(driver.cuMemGetInfo())[0])
    if size_bytes > free_bytes // SHARE_OF_FREE:
        free = about_size(free_bytes)
        raise Skip(f"{size(size_bytes)} of managed memory is over a quarter of the {free} that are free on the GPU")
    require_room(size_bytes, "managed memory")


def round_trip_ns(submit: DriverSubmit) -> int:
    """One call and a synchronise of its stream: host time of both."""
    out: IntArray = np.zeros(1, dtype=np.int64)
    submit.round_trips(out)
    return int(out[0])


def sum_of_pages(address: int, size_bytes: int) -> tuple[int, int]:
    """This thread reads the first word of each page: host time, and the sum of the words."""
    out: IntArray = np.zeros(2, dtype=np.int64)
    read_pages(address, size_bytes, mmap.PAGESIZE, c_address("clock_gettime"), out)
    return int(out[0]), int(out[1])


# What it costs to have memory that the GPU can copy from: allocated, registered, or only touched.


Take = Callable[[int, int, IntArray], None]


def pinning(case: Case, way: PinningWay, size_bytes: int, count: int) -> IntArray:
    """See Links.pinning. Nothing of it outlives the call: many samples must not pile up.

    Portable and mapped, as the buffers that are copied from. Touched pages are what the kernel chooses: where
    transparent huge pages are "always" (a fact of the run), one fault may bring 2 MiB.
    """
    require_room(size_bytes, "host memory")
    case.context.make_current()
    ways: dict[PinningWay, Take] = {"allocate": _allocate, "register": _register, "touch": _touch}
    clock = c_address("clock_gettime")
    out: IntArray = np.zeros((count, len(Pinning)), dtype=np.int64)
    for row in out:
        ways[way](size_bytes, clock, row)
    return out


def _allocate(size_bytes: int, clock: int, out: IntArray) -> None:
    held: IntArray = np.zeros(1, dtype=np.int64)
    arguments = (int(held.ctypes.data), size_bytes, HOST_PORTABLE_MAPPED)
    _driver_calls("cuMemHostAlloc", arguments, "cuMemFreeHost", held, clock, out)


def _register(size_bytes: int, clock: int, out: IntArray) -> None:
    """The pages are there and touched before the clock is read."""
    with closing(HostPages(size_bytes)) as pages:
        held: IntArray = np.array([pages.address], dtype=np.int64)
        arguments = (pages.address, size_bytes, HOST_PORTABLE_MAPPED)
        _driver_calls("cuMemHostRegister", arguments, "cuMemHostUnregister", held, clock, out)


def _driver_calls(
    take: str, arguments: tuple[int, int, int], release: str, held: IntArray, clock: int, out: IntArray
) -> None:
    taken, released = take_and_release(entry_point(take), *arguments, 0, entry_point(release), 0, held, clock, out)
    require_taken(taken, "registered" if take == "cuMemHostRegister" else "pinned", arguments[1])
    check_code(released, release)


def _touch(size_bytes: int, clock: int, out: IntArray) -> None:
    addresses = (c_address("mmap"), c_address("munmap"))
    if not map_and_touch(*addresses, size_bytes, mmap.PAGESIZE, clock, out):
        if out[Pinning.PINNED] == 0:
            raise refused("pageable", size_bytes, "the kernel")
        raise MeasurementError("pages that were touched could not be given back")
