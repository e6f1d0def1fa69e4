"""Host memory of each kind that the link is measured with: pageable, pinned, write-combined, registered."""

from __future__ import annotations

import mmap
import os
import resource
from functools import partial
from pathlib import Path

import numpy as np
from cuda.bindings import driver

from microbench.errors import MeasurementError, Skip
from microbench.gpu.context import HOST_PORTABLE_MAPPED, Context, check, error_name
from microbench.gpu.link_api import HostMemory
from microbench.gpu.links.page_loops import touch_pages
from microbench.host.affinity import on_cores
from microbench.host.files import Machine
from microbench.host.memory_room import host_room, require_room
from microbench.host.topology import nodes
from microbench.units import about_size, size

WRITE_COMBINED = 4
# What a driver says when there is no such memory, or not so much of it; anything else is an error.
REFUSALS = tuple(
    int(code)
    for code in (
        driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY,
        driver.CUresult.CUDA_ERROR_OPERATING_SYSTEM,
        driver.CUresult.CUDA_ERROR_NOT_PERMITTED,
        driver.CUresult.CUDA_ERROR_NOT_SUPPORTED,
    )
)


class HostBuffer:
    """One buffer of host memory, there in full, owned by the context's case.

    ``address`` is the host's, ``device_address`` the GPU's (None: pageable memory is out of its reach). With ``node``
    a thread on that NUMA node's CPUs takes it, to whom the kernel gives that node's memory first; without, the calling
    thread does. Nobody can be asked afterwards where pinned pages lie (the kernel does not tell for a driver's
    mapping): a node that is full is not noticed, nor one whose CPUs are closed to this process (``require_node``).

    Raises Skip where so much may not be taken, or the driver refuses it.
    """

    def __init__(self, context: Context, kind: HostMemory, size_bytes: int, node: int | None = None) -> None:
        require_room(size_bytes, f"{kind.replace('_', '-')} host memory")
        self.size_bytes = size_bytes
        self._context = context
        cpus = cpus_of(node)
        take = partial(self._take, kind)
        self.address = on_cores(take, cpus).result() if cpus else take()
        self.device_address = (
            None if kind == "pageable" else int(check(driver.cuMemHostGetDevicePointer(self.address, 0)))
        )

    def _take(self, kind: HostMemory) -> int:
        """The buffer's address. In a thread of its own the context is not yet current."""
        self._context.make_current()
        if kind in ("pageable", "registered"):
            pages = HostPages(self.size_bytes)
            self._context.own(pages.close)
            if kind == "registered":
                self._register(pages.address)
            return pages.address
        flags = HOST_PORTABLE_MAPPED | (WRITE_COMBINED if kind == "write_combined" else 0)
        code, pointer = driver.cuMemHostAlloc(self.size_bytes, flags)
        require_taken(int(code), kind, self.size_bytes)
        address = int(pointer)
        self._context.own(lambda: driver.cuMemFreeHost(address))
        return address

    def _register(self, address: int) -> None:
        (code,) = driver.cuMemHostRegister(address, self.size_bytes, HOST_PORTABLE_MAPPED)
        require_taken(int(code), "registered", self.size_bytes)
        self._context.own(lambda: driver.cuMemHostUnregister(address))


class HostPages:
    """Pageable memory of its own mapping, each page touched: what malloc gives for a large buffer.

    Where transparent huge pages are "always" (a fact of the run), the kernel may back it with pages of 2 MiB, as it
    would for any program. Raises Skip where the kernel refuses.
    """

    def __init__(self, size_bytes: int) -> None:
        try:
            self._pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise refused("pageable", size_bytes, f"the kernel: {error.strerror}") from None
        self.address = int(np.frombuffer(self._pages, dtype=np.uint8).ctypes.data)
        touch_pages(self.address, size_bytes, mmap.PAGESIZE)

    def close(self) -> None:
        """Give it back."""
        self._pages.close()


def require_taken(code: int, kind: str, size_bytes: int) -> None:
    """Raise Skip for a driver's refusal to give host memory, MeasurementError for any other error."""
    if code in REFUSALS:
        raise refused(kind, size_bytes, f"the driver: {error_name(code)}")
    if code != 0:
        raise MeasurementError(f"{size(size_bytes)} of {kind} host memory: {error_name(code)}")


def refused(kind: str, size_bytes: int, who: str) -> Skip:
    """The reason for memory that was refused although there is room for it."""
    room = host_room()
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    limit = "unlimited" if locked == resource.RLIM_INFINITY else about_size(locked)
    return Skip(
        f"{size(size_bytes)} of {kind.replace('_', '-')} host memory refused by {who}; {about_size(room.bytes)} may be "
        f"taken ({room.source}), locked memory (ulimit -l) {limit}"
    )


def cpus_of(node: int | None, root: Path = Path("/")) -> tuple[int, ...]:
    """The CPUs of a NUMA node; none for an unknown one, or one that has memory only."""
    return nodes(Machine(root)).get(-1 if node is None else node, ())


def require_node(node: int) -> None:
    """Raise Skip where this process cannot take memory on that NUMA node for sure."""
    cpus = cpus_of(node)
    if not cpus:
        raise Skip(f"NUMA node {node} has no CPUs here, so that no thread can take memory on it")
    if not on_cores(lambda: os.sched_getaffinity(0), cpus).result() <= set(cpus):
        raise Skip(f"this process may not run on the CPUs of NUMA node {node}, so that it cannot take memory there")
