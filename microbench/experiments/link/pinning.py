"""What it costs to pin host memory, and to touch pageable memory instead."""

import mmap
from contextlib import closing
from functools import partial
from typing import Literal

import numpy as np

from microbench.experiments.memory.allocation import Taking, timed
from microbench.gpu.cuda import buffers, loops
from microbench.gpu.cuda.case import HOST_PORTABLE_MAPPED, Case
from microbench.gpu.experiment import IntArray, Machine, MeasurementError, experiment, require_host_memory
from microbench.gpu.fake.costs import HOST_PAGE_BYTES
from microbench.host.memory import require_room
from microbench.host.native import c_address

PinningWay = Literal["allocate", "register", "touch"]


def _pinning(case: Case, way: PinningWay, size_bytes: int, count: int) -> IntArray:
    """``count`` times: take memory and give it back. Host clock in ns, shape (count, len(Taking)).

    ``allocate`` allocates pinned memory, ``register`` pins memory that was allocated and touched before, ``touch`` maps
    pageable memory and touches each page, as every program must. Each sample's memory is released before the next one.

    Memory is portable and mapped, like the buffers that are copied from. The kernel chooses the page size of touched
    memory: if transparent huge pages are "always" (a fact of the run), one fault may bring 2 MiB.
    """
    require_room(size_bytes, "host memory")
    case.context.make_current()
    clock, flags = c_address("clock_gettime"), (HOST_PORTABLE_MAPPED, 0)
    out: IntArray = np.zeros((count, len(Taking)), dtype=np.int64)
    for row in out:
        if way == "allocate":
            refused = partial(buffers.require_taken, kind="pinned", size_bytes=size_bytes)
            timed("cuMemHostAlloc", flags, "cuMemFreeHost", 0, size_bytes, row[None], refused)
        elif way == "register":
            refused = partial(buffers.require_taken, kind="registered", size_bytes=size_bytes)
            with closing(buffers.HostPages(size_bytes)) as pages:  # they exist before the clock is read
                where = pages.address
                timed("cuMemHostRegister", flags, "cuMemHostUnregister", 0, size_bytes, row[None], refused, where)
        elif not loops.map_and_touch(c_address("mmap"), c_address("munmap"), size_bytes, mmap.PAGESIZE, clock, row):
            if row[Taking.TAKEN] == 0:
                raise buffers.refused("pageable", size_bytes, "the kernel")
            raise MeasurementError("pages that were touched could not be given back")
    return out


def _simulated_pinning(machine: Machine, way: PinningWay, size_bytes: int, count: int) -> IntArray:
    costs, pages = machine.costs.links.pinning[way], -(-size_bytes // HOST_PAGE_BYTES)
    require_host_memory(machine.costs, "pageable" if way == "touch" else "pinned", size_bytes)
    return machine.take_and_release([(costs.take.at(pages), costs.release.at(pages))] * count)


pinning = experiment(_pinning, _simulated_pinning)
