"""Host memory of each kind that the link is measured with: pageable, pinned, write-combined, registered."""

from __future__ import annotations

import mmap
import os
import resource
from functools import partial
from pathlib import Path

import numpy as np
from cuda.bindings import driver
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import LEGACY_STREAM, IntArray, Launch
from microbench.core.units import about_size, size
from microbench.gpu.cuda.context import HOST_PORTABLE_MAPPED, Context, Modules, check, error_name
from microbench.gpu.cuda.submit import Parameters, launch
from microbench.gpu.protocol.links import HostMemory
from microbench.host.affinity import nodes, on_cores
from microbench.host.files import Machine
from microbench.host.loops import call_narrow, compiled, load_flag, now_ns, store_flag
from microbench.host.memory import host_room, require_room

# Compiled loops over pages of host memory: mapped, touched, pinned, read and given back, with the clock between.


READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
MAP_FAILED = -1
MAP_ARGUMENTS = 6


@intrinsic
def call_mmap(typing_context, address, a, b, c, d, e, f):  # type: ignore[no-untyped-def]
    """void *f(a … f) by address, as an integer: unlike the calls of loops.py it answers with all 64 bits."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        long = ir.IntType(64)
        function_type = ir.FunctionType(long, [long] * MAP_ARGUMENTS)
        return builder.call(builder.inttoptr(arguments[0], function_type.as_pointer()), arguments[1:])

    return types.int64(*[types.int64] * (1 + MAP_ARGUMENTS)), generate


@compiled
def touch_pages(address: int, size_bytes: int, page_bytes: int) -> None:
    """Write one word of each page, so that all of them are there. The stores are atomic: none is left out."""
    for offset in range(0, size_bytes, page_bytes):
        store_flag(address + offset, 1)


@compiled
def read_pages(address: int, size_bytes: int, page_bytes: int, clock: int, out: IntArray) -> None:
    """Read the first word of each page: out = ns, sum of the words. The loads are atomic: none is left out."""
    total = 0
    begin = now_ns(clock)
    for offset in range(0, size_bytes, page_bytes):
        total += load_flag(address + offset)
    out[0] = now_ns(clock) - begin
    out[1] = total


@compiled
def map_and_touch(map_pages: int, unmap: int, size_bytes: int, page_bytes: int, clock: int, out: IntArray) -> bool:
    """Map fresh pages, touch each, give them back: out as by ``take_and_release``. False where nothing was mapped."""
    out[0] = now_ns(clock)
    address = call_mmap(map_pages, 0, size_bytes, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    if address == MAP_FAILED:
        return False
    touch_pages(address, size_bytes, page_bytes)
    out[1] = now_ns(clock)
    out[2] = now_ns(clock)
    released = call_narrow(unmap, address, size_bytes, 0, 0)
    out[3] = now_ns(clock)
    return released == 0  # type: ignore[no-any-return]


@compiled
def take_and_release(
    take: int, a: int, b: int, c: int, d: int, release: int, last: int, held: IntArray, clock: int, out: IntArray
) -> tuple[int, int]:
    """``take(a, b, c, d)``, then ``release(held[0], last)``; the first may have written held[0]: the codes of both.

    out = the clock before and after each. What was not taken is not released.
    """
    out[0] = now_ns(clock)
    taken = call_narrow(take, a, b, c, d)
    out[1] = now_ns(clock)
    if taken != 0:
        return taken, 0
    out[2] = now_ns(clock)
    released = call_narrow(release, held[0], last, 0, 0)
    out[3] = now_ns(clock)
    return taken, released


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


# Patterns that depend on their place, made and checked by the GPU: what proves that data have moved.


BLOCK_THREADS = 256
MOST_BLOCKS = 2048
BYTES_PER_THREAD = 16
NOTHING_WRONG = (1 << 64) - 1
POISON_FLIP = 0xFFFFFFFF
LEGACY_STREAM_HANDLE = 1  # CU_STREAM_LEGACY: what the checks run in, whatever the case does with its streams


class Patterns:
    """Fills and checks memory that the GPU of ``context`` can reach. Each call waits until it is done."""

    def __init__(self, context: Context, modules: Modules) -> None:
        self._context = context
        self._modules = modules
        self._first_wrong = context.device_memory(8)

    def fill(self, address: int, size_bytes: int, seed: int) -> None:
        """Word i becomes a hash of i and ``seed``."""
        self._run("fill", size_bytes, (address, size_bytes, seed, 0))

    def poison(self, address: int, size_bytes: int, seed: int) -> None:
        """Every byte becomes another one than ``fill`` with that seed would write."""
        self._run("fill", size_bytes, (address, size_bytes, seed, POISON_FLIP))

    def verify(self, address: int, size_bytes: int, seed: int, what: str) -> None:
        """Raise MeasurementError, saying where in ``what``, unless memory holds what ``fill`` writes."""
        self._compare("differ", size_bytes, (address, size_bytes, seed), what)

    def verify_rows(self, address: int, size_bytes: int, seed: int, width_bytes: int, pitch_bytes: int) -> None:
        """As ``verify``, for what begins each row of ``pitch_bytes``; what is left of a row is ``poison``'s still."""
        self._compare("differ_rows", size_bytes, (address, size_bytes, seed, width_bytes, pitch_bytes), "rows")

    def verify_bytes(self, address: int, size_bytes: int, value: int) -> None:
        """As ``verify``, for bytes that are all the same."""
        self._compare("differ_bytes", size_bytes, (address, size_bytes, value), "bytes that were set")

    def _compare(self, kernel: str, size_bytes: int, arguments: tuple[int, ...], what: str) -> None:
        start = np.array([NOTHING_WRONG], dtype=np.uint64)
        check(driver.cuMemcpyHtoD(self._first_wrong, start.ctypes.data, start.nbytes))
        self._run(kernel, size_bytes, (*arguments, self._first_wrong))
        wrong = int(self._context.read(self._first_wrong, 1, np.uint64)[0])
        if wrong != NOTHING_WRONG:
            raise MeasurementError(f"{what}: byte {wrong} of {size_bytes} is not the one that was sent")

    def _run(self, kernel: str, size_bytes: int, arguments: tuple[int, ...]) -> None:
        blocks = -(-size_bytes // (BLOCK_THREADS * BYTES_PER_THREAD))
        shape = Launch(grid_blocks=min(max(blocks, 1), MOST_BLOCKS), block_threads=BLOCK_THREADS, stream=LEGACY_STREAM)
        function = self._modules.function("link", kernel)
        launch(function, shape, LEGACY_STREAM_HANDLE, Parameters([arguments]))(1)
        self._context.synchronize()
