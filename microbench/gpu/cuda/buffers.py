"""The kinds of host memory that links are measured with, and the patterns that prove that data has moved."""

import mmap
import os
import resource
from functools import partial
from pathlib import Path

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.units import about_size, size
from microbench.gpu.cuda import driver, loops
from microbench.gpu.cuda.case import HOST_PORTABLE_MAPPED, Case
from microbench.gpu.cuda.context import check, error_name
from microbench.gpu.cuda.submit import run
from microbench.gpu.protocol.gpu import HostMemory
from microbench.host.affinity import nodes, on_cores
from microbench.host.files import Machine
from microbench.host.memory import host_room, require_room

WRITE_COMBINED = 4
# The driver's codes for "no such memory" and "not that much of it"; any other code is an error.
REFUSALS = (2, 304, 800, 801)  # CUDA_ERROR_OUT_OF_MEMORY, _OPERATING_SYSTEM, _NOT_PERMITTED, _NOT_SUPPORTED


class HostBuffer:
    """A buffer of host memory whose pages all exist, owned by the case.

    ``address`` is the host's, ``device_address`` the GPU's, None for pageable memory, which the GPU cannot reach. With
    ``node`` a thread on the CPUs of that NUMA node allocates the memory, and the kernel prefers that node's memory;
    otherwise the calling thread allocates it. The node of pinned pages cannot be verified, because the kernel does not
    report it for a driver's mapping: a full node goes unnoticed, and so does a node whose CPUs this process may not use
    (``require_node``).

    Raises Skip if that much may not be allocated, or the driver refuses it.
    """

    def __init__(self, case: Case, kind: HostMemory, size_bytes: int, node: int | None = None) -> None:
        require_room(size_bytes, f"{kind.replace('_', '-')} host memory")
        self.size_bytes = size_bytes
        self._case = case
        cpus = cpus_of(node)
        take = partial(self._take, kind)
        self.address = on_cores(take, cpus).result() if cpus else take()
        self.device_address = (
            None if kind == "pageable" else int(check(driver.cuMemHostGetDevicePointer(self.address, 0)))
        )

    def _take(self, kind: HostMemory) -> int:
        """Allocate; returns the address. In a new thread the context is not yet current."""
        self._case.context.make_current()
        if kind in ("pageable", "registered"):
            pages = HostPages(self.size_bytes)
            address = pages.address
            self._case.own(pages.close)
            if kind == "registered":
                (code,) = driver.cuMemHostRegister(address, self.size_bytes, HOST_PORTABLE_MAPPED)
                require_taken(int(code), kind, self.size_bytes)
                self._case.own(lambda: driver.cuMemHostUnregister(address))
            return address
        flags = HOST_PORTABLE_MAPPED | (WRITE_COMBINED if kind == "write_combined" else 0)
        code, pointer = driver.cuMemHostAlloc(self.size_bytes, flags)
        require_taken(int(code), kind, self.size_bytes)
        address = int(pointer)
        self._case.own(lambda: driver.cuMemFreeHost(address))
        return address


class HostPages:
    """Pageable memory in a mapping of its own, each page touched: what malloc returns for a large buffer.

    If transparent huge pages are "always" (a fact of the run), the kernel may use pages of 2 MiB, as for any program.
    Raises Skip if the kernel refuses.
    """

    def __init__(self, size_bytes: int) -> None:
        try:
            self._pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise refused("pageable", size_bytes, f"the kernel: {error.strerror}") from None
        self.address = int(np.frombuffer(self._pages, dtype=np.uint8).ctypes.data)
        loops.touch_pages(self.address, size_bytes, mmap.PAGESIZE)

    def close(self) -> None:
        self._pages.close()


def require_taken(code: int, kind: str, size_bytes: int) -> None:
    """Raise Skip if the driver refuses to give host memory, MeasurementError for any other error."""
    if code in REFUSALS:
        raise refused(kind, size_bytes, f"the driver: {error_name(code)}")
    if code != 0:
        raise MeasurementError(f"{size(size_bytes)} of {kind} host memory: {error_name(code)}")


def refused(kind: str, size_bytes: int, who: str) -> Skip:
    """The Skip for memory that was refused although there is room for it."""
    room = host_room()
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    limit = "unlimited" if locked == resource.RLIM_INFINITY else about_size(locked)
    return Skip(
        f"{size(size_bytes)} of {kind.replace('_', '-')} host memory refused by {who}; {about_size(room.bytes)} may be "
        f"taken ({room.source}), locked memory (ulimit -l) {limit}"
    )


def cpus_of(node: int | None, root: Path = Path("/")) -> tuple[int, ...]:
    """The CPUs of a NUMA node; none for an unknown node, or one that has only memory."""
    return nodes(Machine(root)).get(-1 if node is None else node, ())


def require_node(node: int) -> None:
    """Raise Skip unless this process can certainly allocate memory on that NUMA node."""
    cpus = cpus_of(node)
    if not cpus:
        raise Skip(f"NUMA node {node} has no CPUs here, so that no thread can take memory on it")
    if not on_cores(lambda: os.sched_getaffinity(0), cpus).result() <= set(cpus):
        raise Skip(f"this process may not run on the CPUs of NUMA node {node}, so that it cannot take memory there")


BLOCK_THREADS = 256
MOST_BLOCKS = 2048
BYTES_PER_THREAD = 16
NOTHING_WRONG = (1 << 64) - 1
POISON_FLIP = 0xFFFFFFFF


class Patterns:
    """Fills and compares memory that the GPU of ``case`` can reach. Each call returns when it is done."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._first_wrong = case.device_memory(8)

    def fill(self, address: int, size_bytes: int, seed: int) -> None:
        """Set word i to a hash of i and ``seed``."""
        self._run("fill", size_bytes, (address, size_bytes, seed, 0))

    def poison(self, address: int, size_bytes: int, seed: int) -> None:
        """Set every byte to another value than ``fill`` with that seed writes."""
        self._run("fill", size_bytes, (address, size_bytes, seed, POISON_FLIP))

    def verify(self, address: int, size_bytes: int, seed: int, what: str) -> None:
        """Raise MeasurementError, saying where in ``what``, unless memory holds what ``fill`` writes."""
        self._compare("differ", size_bytes, (address, size_bytes, seed), what)

    def verify_rows(self, address: int, size_bytes: int, seed: int, width_bytes: int, pitch_bytes: int) -> None:
        """As ``verify`` for the first ``width_bytes`` of each row of ``pitch_bytes``; the rest must hold ``poison``."""
        self._compare("differ_rows", size_bytes, (address, size_bytes, seed, width_bytes, pitch_bytes), "rows")

    def verify_bytes(self, address: int, size_bytes: int, value: int) -> None:
        """As ``verify``, for bytes that all have one value."""
        self._compare("differ_bytes", size_bytes, (address, size_bytes, value), "bytes that were set")

    def _compare(self, kernel: str, size_bytes: int, arguments: tuple[int, ...], what: str) -> None:
        self._case.upload(self._first_wrong, np.array([NOTHING_WRONG], dtype=np.uint64))
        self._run(kernel, size_bytes, (*arguments, self._first_wrong))
        wrong = int(self._case.read(self._first_wrong, 1, np.uint64)[0])
        if wrong != NOTHING_WRONG:
            raise MeasurementError(f"{what}: byte {wrong} of {size_bytes} is not the one that was sent")

    def _run(self, kernel: str, size_bytes: int, arguments: tuple[int, ...]) -> None:
        blocks = min(max(-(-size_bytes // (BLOCK_THREADS * BYTES_PER_THREAD)), 1), MOST_BLOCKS)
        run(self._case, self._case.function("link", kernel), blocks, BLOCK_THREADS, arguments)


class Copied:
    """A source with a pattern and a destination, both ``buffer_bytes`` long, at addresses that the GPU can reach."""

    blocks = False

    def __init__(self, case: Case, source: int, destination: int, buffer_bytes: int) -> None:
        self._patterns = Patterns(case)
        self._source, self._destination, self._buffer_bytes = source, destination, buffer_bytes
        self._seed = 0

    def fresh(self) -> None:
        self._seed += 1
        self._patterns.fill(self._source, self._buffer_bytes, self._seed)
        self._patterns.poison(self._destination, self._buffer_bytes, self._seed)

    def check(self) -> str:
        self._patterns.verify(self._destination, self._buffer_bytes, self._seed, "device memory")
        return "every byte compared on the GPU"
