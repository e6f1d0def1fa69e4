"""What it costs to pin host memory, and to touch pageable memory instead."""

from __future__ import annotations

import mmap
from contextlib import closing
from enum import IntEnum
from typing import Literal

import numpy as np

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray
from microbench.gpu.cuda import buffers, loops
from microbench.gpu.cuda.case import HOST_PORTABLE_MAPPED, Case
from microbench.gpu.cuda.context import check_code, entry_point
from microbench.gpu.experiment import experiment
from microbench.gpu.fake.costs import HOST_PAGE_BYTES
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.transfers import require_host_memory
from microbench.host.memory import require_room
from microbench.host.native import c_address

PinningWay = Literal["allocate", "register", "touch"]


class Pinning(IntEnum):
    """Columns of ``pinning``: the host clock before and after each call."""

    BEGIN = 0
    PINNED = 1
    RELEASED_BEGIN = 2
    RELEASED = 3


def _pinning(case: Case, way: PinningWay, size_bytes: int, count: int) -> IntArray:
    """``count`` times: take memory and give it back. Host clock in ns, shape (count, len(Pinning)).

    ``allocate`` allocates pinned memory, ``register`` pins memory that was allocated and touched before, ``touch`` maps
    pageable memory and touches each page, as every program must. Each sample's memory is released before the next one.

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


def _simulated_pinning(machine: Machine, way: PinningWay, size_bytes: int, count: int) -> IntArray:
    costs, pages = machine.costs.links.pinning[way], -(-size_bytes // HOST_PAGE_BYTES)
    require_host_memory(machine.costs, "pageable" if way == "touch" else "pinned", size_bytes)
    return machine.take_and_release([(costs.take.at(pages), costs.release.at(pages))] * count)


pinning = experiment(_pinning, _simulated_pinning)
