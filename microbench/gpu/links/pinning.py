"""What it costs to have memory that the GPU can copy from: allocated, registered, or only touched."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import closing

import numpy as np

from microbench.errors import MeasurementError
from microbench.gpu.api import IntArray
from microbench.gpu.context import HOST_PORTABLE_MAPPED, check_code, entry_point
from microbench.gpu.graphs.base import Case
from microbench.gpu.link_api import Pinning, PinningWay
from microbench.gpu.links.memory import HostPages, refused, require_taken
from microbench.gpu.links.page_loops import map_and_touch, take_and_release
from microbench.host.memory_room import require_room
from microbench.host.native import c_address

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
