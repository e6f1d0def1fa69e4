"""What it costs to have memory: by the driver's own call, from pools, pinned on the host; given back at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy as np
from cuda.bindings import driver

from microbench.core.errors import Skip
from microbench.core.model import Fact
from microbench.core.ops import IntArray
from microbench.core.units import about_size
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import HOST_PORTABLE_MAPPED, OUT_OF_MEMORY, Context, check, check_code, entry_point
from microbench.gpu.cuda.links.buffers import Patterns, require_taken, take_and_release
from microbench.gpu.cuda.submit import DriverSubmit
from microbench.gpu.layers.cupy_shared import load_cupy
from microbench.gpu.machine.nvml import Holder, NvmlGpu, memory_holders
from microbench.gpu.machine.query import Answer
from microbench.gpu.protocol.links import Transfer
from microbench.gpu.protocol.memory import Allocation, AllocationWay, EngineWay
from microbench.gpu.protocol.submit import Submit
from microbench.host.files import known, unknown
from microbench.host.memory import require_room
from microbench.host.native import c_address

# What a pool keeps when the GPU becomes idle: all of it.
KEEP_ALL = (1 << 64) - 1
WARM_UP_BYTES = 256


def allocating(case: Case, way: AllocationWay, size_bytes: int, count: int) -> IntArray:
    """See DeviceMemory.allocating. Nothing of it outlives the call, nor an error.

    A pool is made for the call, has given memory once and is emptied: its first block is the driver's, the rest are
    its own. The GPU is idle, so that cuMemFree has nothing to wait for.
    """
    out: IntArray = np.zeros((count, len(Allocation)), dtype=np.int64)
    case.context.make_current()
    case.context.synchronize()
    ways: dict[AllocationWay, Callable[[Case, int, IntArray], None]] = {
        "malloc": _malloc, "pool": _pool, "cupy_pool": _cupy_pool, "host_pinned": _host_pinned,
    }  # fmt: skip
    ways[way](case, size_bytes, out)
    return out


def _malloc(case: Case, size_bytes: int, out: IntArray) -> None:
    refused = partial(case.context.require_room, size_bytes=size_bytes)
    Pair("cuMemAlloc", (0, 0), "cuMemFree", 0).timed(size_bytes, out, refused)


def _host_pinned(case: Case, size_bytes: int, out: IntArray) -> None:
    """Portable and mapped, as the buffers that are copied from."""
    require_room(size_bytes, "pinned host memory")
    refused = partial(require_taken, kind="pinned", size_bytes=size_bytes)
    Pair("cuMemHostAlloc", (HOST_PORTABLE_MAPPED, 0), "cuMemFreeHost", 0).timed(size_bytes, out, refused)


def _pool(case: Case, size_bytes: int, out: IntArray) -> None:
    if not case.context.attribute("MEMORY_POOLS_SUPPORTED"):
        raise Skip("this GPU or driver has no memory pools")
    pool, stream = _own_pool(case.context), case.stream(0)
    pair = Pair("cuMemAllocFromPoolAsync", (int(pool), stream), "cuMemFreeAsync", stream)
    try:
        refused = partial(case.context.require_room, size_bytes=size_bytes)
        pair.timed(WARM_UP_BYTES, np.zeros_like(out[:1]), refused)
        case.context.synchronize()
        check(driver.cuMemPoolTrimTo(pool, 0))
        pair.timed(size_bytes, out, refused)
        case.context.synchronize()
    finally:
        driver.cuMemPoolDestroy(pool)


def _own_pool(context: Context) -> driver.CUmemoryPool:
    """A pool of this GPU's memory that keeps what it has."""
    wanted = driver.CUmemPoolProps()
    wanted.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.handleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = int(context.device)
    pool = check(driver.cuMemPoolCreate(wanted))
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    check(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(KEEP_ALL)))
    return pool


def _cupy_pool(case: Case, size_bytes: int, out: IntArray) -> None:
    """From Python, as its user has it: the block goes back to the pool when its last name does."""
    cupy = load_cupy()
    with cupy.cuda.Device(int(case.context.device)):
        pool = cupy.cuda.MemoryPool()
        try:
            block = pool.malloc(WARM_UP_BYTES)
            del block
            pool.free_all_blocks()
            for row in out:
                row[Allocation.BEGIN] = time.monotonic_ns()
                block = pool.malloc(size_bytes)
                row[Allocation.ALLOCATED] = time.monotonic_ns()
                row[Allocation.FREE_BEGIN] = time.monotonic_ns()
                del block
                row[Allocation.FREED] = time.monotonic_ns()
        except cupy.cuda.memory.OutOfMemoryError:
            case.context.require_room(int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY), size_bytes)
        finally:
            pool.free_all_blocks()


class Pair(NamedTuple):
    """Driver calls by name: take(where, bytes, *arguments) has memory, release(address, last) gives it back."""

    take: str
    arguments: tuple[int, int]
    release: str
    last: int

    def timed(self, size_bytes: int, out: IntArray, require: Callable[[int], None]) -> None:
        """Take and give back once for each row of ``out``, with the stamps of Allocation.

        ``require`` raises for a code of the first call that is a refusal; MeasurementError for any other error.
        """
        clock, held = c_address("clock_gettime"), np.zeros(1, dtype=np.int64)
        where, take, release = int(held.ctypes.data), entry_point(self.take), entry_point(self.release)
        for row in out:
            taken, released = take_and_release(
                take, where, size_bytes, *self.arguments, release, self.last, held, clock, row
            )
            require(taken)
            check_code(taken, self.take)
            check_code(released, self.release)


# How much device memory can be had: blocks are taken until the driver refuses, and given back at once.


# What the driver hands out in one piece: its large pages.
STEP_BYTES = 2 << 20
MOST_BLOCKS = 64
# More than a context of this package takes. Where NVML shows no process, more than that is taken for somebody's.
MOST_OWN_BYTES = 2 << 30
TAKEN = ("largest_block_bytes", "obtainable_bytes")
TAKEN_SOURCE = f"blocks of cuMemAlloc until it refused, {MOST_BLOCKS} at most"
RISK = "taking all that is free could make it fail"

Take = Callable[[int], int | None]


def capacity(case: Case, nvml: NvmlGpu) -> tuple[Fact, ...]:
    """All that is free is taken for a moment, unless somebody else could miss it."""
    case.context.make_current()
    case.context.synchronize()
    free_bytes, total_bytes = (int(count) for count in check(driver.cuMemGetInfo()))
    found = memory_holders(nvml.query)
    shared = bool(case.context.attribute("INTEGRATED"))
    why_not = why_not_all(found, total_bytes - free_bytes, shared_with_host=shared)
    facts = [
        known("total_bytes", total_bytes, "cuMemGetInfo", "B"),
        known("free_bytes", free_bytes, "cuMemGetInfo", "B"),
        _context_bytes(found, total_bytes - free_bytes),
    ]
    if why_not is not None:
        return (*facts, *(unknown(name, why_not, TAKEN_SOURCE) for name in TAKEN))
    blocks = all_blocks(lambda size_bytes: _take(case.context, size_bytes), _give_back, _free_bytes)
    values = (max(blocks, default=0), sum(blocks))
    return (*facts, *(known(name, value, TAKEN_SOURCE, "B") for name, value in zip(TAKEN, values, strict=True)))


def why_not_all(found: Answer, used_bytes: int, *, shared_with_host: bool) -> str | None:
    """Why all that is free must not be taken, even for a moment; None where nobody would miss it.

    ``found`` is what memory_holders answered, ``used_bytes`` what is not free now.
    """
    if shared_with_host:
        return "the GPU's memory is the host's: taking all that is free could end other programs"
    if found.value is not None:
        return f"another process holds memory of this GPU: {RISK}" if found.value.others else None
    if used_bytes <= MOST_OWN_BYTES:
        return None
    return f"{about_size(used_bytes)} are held, perhaps by another process ({found.reason}): {RISK}"


def all_blocks(take: Take, give_back: Callable[[int], object], free_bytes: Callable[[], int]) -> list[int]:
    """Bytes of the largest block that ``take`` gives, then of the largest beside it, and so on; MOST_BLOCKS at most.

    ``take(bytes)`` is an address, or None for a refusal. All are given back, whatever happens.
    """
    blocks: list[int] = []
    with ExitStack() as held:
        while len(blocks) < MOST_BLOCKS:
            size_bytes = largest_block_bytes(take, give_back, free_bytes())
            address = take(size_bytes) if size_bytes else None
            if address is None:
                break
            held.callback(give_back, address)
            blocks.append(size_bytes)
    return blocks


def largest_block_bytes(take: Take, give_back: Callable[[int], object], most_bytes: int) -> int:
    """The largest block of at most ``most_bytes`` that ``take`` gives, in whole STEP_BYTES; 0 for none.

    Down from the top in steps that double, as little is missing in most cases, then by halves.
    """

    def fits(steps: int) -> bool:
        address = take(steps * STEP_BYTES)
        if address is not None:
            give_back(address)
        return address is not None

    had, refused, down = 0, most_bytes // STEP_BYTES + 1, 1
    while refused - had > 1:
        tried = max(refused - down, (had + refused) // 2)
        if fits(tried):
            had = tried
        else:
            refused, down = tried, 2 * down
    return had * STEP_BYTES


def _context_bytes(found: Answer, used_bytes: int) -> Fact:
    """What this process keeps on the GPU while a case has taken next to nothing: its context and loaded kernels."""
    name, holders = "context_bytes", found.value
    if holders is None:
        return unknown(name, found.why_none, "NVML")
    if holders.own is not None and holders.own.used_bytes is not None:
        return known(name, holders.own.used_bytes, "NVML's figure of this process", "B")
    if not holders.others:
        return known(name, used_bytes, "cuMemGetInfo: what is not free, nobody else being there", "B")
    return unknown(name, "NVML does not say how much this process holds, and others are there", "NVML")


def _free_bytes() -> int:
    return int(check(driver.cuMemGetInfo())[0])


def _take(context: Context, size_bytes: int) -> int | None:
    code, address = driver.cuMemAlloc(size_bytes)
    return None if int(code) == OUT_OF_MEMORY else int(check((code, address)))


def _give_back(address: int) -> None:
    check(driver.cuMemFree(address))


# The driver's own copies within device memory, plain and in rows, and its memset; what they left is compared.


WIDEST_ROW_BYTES = 64 << 10
FEWEST_ROWS = 16
PITCH_IN_WIDTHS = 2
# Odd, so that 256 calls of ``fresh`` go through all values of a byte.
VALUE_STEP = 37


def engine(case: Case, way: EngineWay, size_bytes: int) -> Transfer:
    """See DeviceMemory.engine. ``size_bytes`` are what a call writes.

    Raises Skip where source and destination do not fit.
    """
    if way == "copy":
        return EngineCopy(case, size_bytes)
    if way == "copy_2d":
        return EngineRows(case, size_bytes)
    return EngineMemset(case, size_bytes)


class EngineCopy:
    """See Transfer: cuMemcpyDtoDAsync of a whole buffer, which counts as read and as written."""

    blocks = False

    def __init__(self, case: Case, size_bytes: int) -> None:
        self.size_bytes = 2 * size_bytes
        self._written_bytes = size_bytes
        self._patterns = Patterns(case.context, case.modules)
        self._source = case.context.device_memory(size_bytes)
        self._destination = case.context.device_memory(size_bytes)
        self._seed = 0
        stream = case.stream(0)
        arguments = [self._destination, self._source, size_bytes, stream]
        self.submit: Submit = DriverSubmit(
            "cuMemcpyDtoDAsync", entry_point("cuMemcpyDtoDAsync"), arguments, stream=stream
        )

    def fresh(self) -> None:
        self._seed += 1
        self._patterns.fill(self._source, self._written_bytes, self._seed)
        self._patterns.poison(self._destination, self._written_bytes, self._seed)

    def check(self) -> str:
        self._patterns.verify(self._destination, self._written_bytes, self._seed, "device memory")
        return "every byte compared on the GPU"


class EngineRows:
    """See Transfer: cuMemcpy2DAsync of rows that are half their pitch on both sides; the other halves must stay.

    Read and written count, what lies between rows does not.
    """

    blocks = False

    def __init__(self, case: Case, size_bytes: int) -> None:
        self.size_bytes = 2 * size_bytes
        self._width_bytes = row_width_bytes(size_bytes)
        self._pitch_bytes = PITCH_IN_WIDTHS * self._width_bytes
        self._spread_bytes = PITCH_IN_WIDTHS * size_bytes
        self._patterns = Patterns(case.context, case.modules)
        self._source = case.context.device_memory(self._spread_bytes)
        self._destination = case.context.device_memory(self._spread_bytes)
        self._seed = 0
        rows = rows_of(self._source, self._destination, self._width_bytes, self._pitch_bytes, size_bytes)
        stream = case.stream(0)
        self.submit: Submit = DriverSubmit(
            "cuMemcpy2DAsync",
            entry_point("cuMemcpy2DAsync"),
            [int(rows.getPtr()), stream],
            stream=stream,
            keep=(rows,),
        )

    def fresh(self) -> None:
        """The pattern goes on between the rows: a copy that is too wide is noticed."""
        self._seed += 1
        self._patterns.fill(self._source, self._spread_bytes, self._seed)
        self._patterns.poison(self._destination, self._spread_bytes, self._seed)

    def check(self) -> str:
        self._patterns.verify_rows(
            self._destination, self._spread_bytes, self._seed, self._width_bytes, self._pitch_bytes
        )
        return "every byte of the rows and between them compared on the GPU"


class EngineMemset:
    """See Transfer: cuMemsetD8Async, which is what cudaMemsetAsync is; counts as written alone."""

    blocks = False

    def __init__(self, case: Case, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._context = case.context
        self._patterns = Patterns(case.context, case.modules)
        self._destination = case.context.device_memory(size_bytes)
        self._value = 0
        stream = case.stream(0)
        arguments = [self._destination, self._value, size_bytes, stream]
        self._memset = DriverSubmit("cuMemsetD8Async", entry_point("cuMemsetD8Async"), arguments, stream=stream)
        self.submit: Submit = self._memset

    def fresh(self) -> None:
        """A new value for the calls that follow, its complement in every byte of the destination."""
        self._value = (self._value + VALUE_STEP) % 256
        self._memset.arguments[1] = self._value
        check(driver.cuMemsetD8(self._destination, self._value ^ 0xFF, self.size_bytes))
        self._context.synchronize()

    def check(self) -> str:
        self._patterns.verify_bytes(self._destination, self.size_bytes, self._value)
        return "every byte compared on the GPU"


def row_width_bytes(size_bytes: int) -> int:
    """The widest row, a power of two, that divides the whole and leaves FEWEST_ROWS of them; 1 for an odd size."""
    most_bytes = max(min(size_bytes // FEWEST_ROWS, WIDEST_ROW_BYTES), 1)
    dividing_bytes = size_bytes & -size_bytes
    return min(dividing_bytes, 1 << (most_bytes.bit_length() - 1))


def rows_of(source: int, destination: int, width_bytes: int, pitch_bytes: int, size_bytes: int) -> driver.CUDA_MEMCPY2D:
    """What cuMemcpy2DAsync is told: ``size_bytes`` in rows of ``width_bytes``, from one buffer to another like it."""
    rows = driver.CUDA_MEMCPY2D()
    rows.srcMemoryType = rows.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    rows.srcDevice = driver.CUdeviceptr(source)
    rows.dstDevice = driver.CUdeviceptr(destination)
    rows.srcPitch = rows.dstPitch = pitch_bytes
    rows.WidthInBytes = width_bytes
    rows.Height = size_bytes // width_bytes
    return rows


# Who else holds memory of a GPU, in words: what a case that finds too little of it is told.


NOBODY = "nobody else"


def holders(nvml: NvmlGpu) -> Fact:
    """See DeviceMemory.peers: "python (pid 12) 1.20 GiB, Xorg (graphics, pid 3)", or "nobody else"."""
    answer = memory_holders(nvml.query)
    if answer.value is None:
        return answer.fact("memory_holders")
    return Fact("memory_holders", ", ".join(map(_words, answer.value.others)) or NOBODY, "NVML")


def held_by(nvml: NvmlGpu) -> str:
    """The same as part of a sentence, whether NVML knows it or not."""
    fact = holders(nvml)
    return f"others not known ({fact.reason})" if fact.value is None else str(fact.value)


def _words(holder: Holder) -> str:
    used = "" if holder.used_bytes is None else f" {about_size(holder.used_bytes)}"
    return f"{holder.name} ({holder.pid}){used}"
