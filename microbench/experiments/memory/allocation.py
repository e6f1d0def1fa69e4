"""Allocating, pinning and freeing memory: what it costs, how much is left, and who holds the rest."""

import mmap
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from enum import IntEnum
from functools import partial
from typing import Literal

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact
from microbench.core.units import about_size
from microbench.gpu.cuda import buffers
from microbench.gpu.cuda.buffers import require_taken
from microbench.gpu.cuda.case import HOST_PORTABLE_MAPPED, OUT_OF_MEMORY, Case, memory_pool
from microbench.gpu.cuda.context import check, check_code, entry_point
from microbench.gpu.experiment import IntArray, Machine, driver, experiment, loops, require_host_memory
from microbench.gpu.fake.costs import HOST_PAGE_BYTES
from microbench.gpu.fake.gpu import SIMULATED
from microbench.gpu.layers.cupy import load_cupy
from microbench.gpu.machine.nvml import holders, memory_holders
from microbench.gpu.machine.query import Answer
from microbench.host.files import known, unknown
from microbench.host.memory import require_room
from microbench.host.native import c_address

AllocationWay = Literal["malloc", "pool", "cupy_pool", "host_pinned"]

WARM_UP_BYTES = 256


class Taking(IntEnum):
    """Columns of ``allocating`` and ``pinning``: the host clock before and after each call."""

    BEGIN = 0
    TAKEN = 1
    RELEASE_BEGIN = 2
    RELEASED = 3


def _allocating(case: Case, way: AllocationWay, size_bytes: int, count: int) -> IntArray:
    """``count`` times: allocate memory and free it. Host clock in ns, shape (count, len(Taking)).

    The first allocation is the first of that size in this process. Each block is freed at once, also after an error. A
    pool is made for the call, used once and emptied, so that its first block comes from the driver and all others
    from the pool. The GPU is idle, so that cuMemFree has nothing to wait for.
    """
    out: IntArray = np.zeros((count, len(Taking)), dtype=np.int64)
    case.context.make_current()
    case.synchronize()
    refused = partial(case.require_room, size_bytes=size_bytes)
    match way:
        case "malloc":
            timed("cuMemAlloc", (0, 0), "cuMemFree", 0, size_bytes, out, refused)
        case "host_pinned":  # portable and mapped, like the buffers that are copied from
            require_room(size_bytes, "pinned host memory")
            refused = partial(require_taken, kind="pinned", size_bytes=size_bytes)
            timed("cuMemHostAlloc", (HOST_PORTABLE_MAPPED, 0), "cuMemFreeHost", 0, size_bytes, out, refused)
        case "pool":
            _pool(case, size_bytes, out, refused)
        case "cupy_pool":
            _cupy_pool(case, size_bytes, out)
    return out


def timed(
    take: str,
    arguments: tuple[int, int],
    release: str,
    last: int,
    size_bytes: int,
    out: IntArray,
    refused: Callable[[int], None],
    address: int = 0,
) -> None:
    """The driver calls ``take(where, bytes, *arguments)`` and ``release(address, last)`` for each row of ``out``, with
    the stamps of Taking. The first call takes an ``address``, or writes one where it is told to.

    ``refused`` raises for a code of the first call that is a refusal; MeasurementError is raised for any other error.
    """
    clock, held = c_address("clock_gettime"), np.array([address], dtype=np.int64)
    where, taking, releasing = address or int(held.ctypes.data), entry_point(take), entry_point(release)
    for row in out:
        taken, released = loops.take_and_release(
            taking, where, size_bytes, *arguments, releasing, last, held, clock, row
        )
        refused(taken)
        check_code(taken, take)
        check_code(released, release)


def _pool(case: Case, size_bytes: int, out: IntArray, refused: Callable[[int], None]) -> None:
    if not case.context.attribute("MEMORY_POOLS_SUPPORTED"):
        raise Skip("this GPU or driver has no memory pools")
    pool, stream = memory_pool(case.context, keeps_all=True), case.stream(0)
    calls = partial(timed, "cuMemAllocFromPoolAsync", (int(pool), stream), "cuMemFreeAsync", stream)
    try:
        calls(WARM_UP_BYTES, np.zeros_like(out[:1]), refused)
        case.synchronize()
        check(driver.cuMemPoolTrimTo(pool, 0))
        calls(size_bytes, out, refused)
        case.synchronize()
    finally:
        driver.cuMemPoolDestroy(pool)


def _cupy_pool(case: Case, size_bytes: int, out: IntArray) -> None:
    """From Python, as a user of CuPy does it: the block returns to the pool when its last reference is deleted."""
    cupy = load_cupy()
    with cupy.cuda.Device(int(case.context.device)):
        pool = cupy.cuda.MemoryPool()
        try:
            block = pool.malloc(WARM_UP_BYTES)
            del block
            pool.free_all_blocks()
            for row in out:
                row[Taking.BEGIN] = time.monotonic_ns()
                block = pool.malloc(size_bytes)
                row[Taking.TAKEN] = time.monotonic_ns()
                row[Taking.RELEASE_BEGIN] = time.monotonic_ns()
                del block
                row[Taking.RELEASED] = time.monotonic_ns()
        except cupy.cuda.memory.OutOfMemoryError:
            case.require_room(OUT_OF_MEMORY, size_bytes)
        finally:
            pool.free_all_blocks()


def _simulated_allocating(machine: Machine, way: AllocationWay, size_bytes: int, count: int) -> IntArray:
    """A pool is empty at first and keeps a block that is freed."""
    if way == "host_pinned":
        require_host_memory(machine.costs, "pinned", size_bytes)
    else:
        machine.room.require(size_bytes)
    own, steps = machine.costs.memory.blocks[way], -(-size_bytes // machine.costs.memory.block_step_bytes)
    first_ns, later_ns, release_ns = own.take.at(steps), own.take.at(steps), own.release.at(steps)
    if own.pooled_take_ns is not None:
        first_ns, later_ns = first_ns + own.pooled_take_ns, own.pooled_take_ns
        release_ns = own.pooled_release_ns
    return machine.take_and_release([(later_ns if index else first_ns, release_ns) for index in range(count)])


allocating = experiment(_allocating, _simulated_allocating)


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


# What the driver hands out in one piece: its large pages.
STEP_BYTES = 2 << 20
MOST_BLOCKS = 64
# More than a context of this package takes. If NVML shows no process, usage above this may be another process's.
MOST_OWN_BYTES = 2 << 30
TAKEN = ("largest_block_bytes", "obtainable_bytes")
TAKEN_SOURCE = f"blocks of cuMemAlloc until it refused, {MOST_BLOCKS} at most"
RISK = "taking all that is free could make it fail"
OTHERS_NEED_IT = f"another process holds memory of this GPU: {RISK}"

Take = Callable[[int], int | None]


def why_not_all(answer: Answer, used_bytes: int, *, shared_with_host: bool) -> str | None:
    """Why not all free memory may be allocated, even for a moment; None if it may be.

    ``answer`` is that of memory_holders, ``used_bytes`` what is not free now.
    """
    if shared_with_host:
        return "the GPU's memory is the host's: taking all that is free could end other programs"
    if answer.value is not None:
        return OTHERS_NEED_IT if answer.value.others else None
    if used_bytes <= MOST_OWN_BYTES:
        return None
    return f"{about_size(used_bytes)} are held, perhaps by another process ({answer.reason}): {RISK}"


def all_blocks(take: Take, give_back: Callable[[int], object], free_bytes: Callable[[], int]) -> list[int]:
    """Bytes of the largest block that ``take`` gives, then of the largest besides it, and so on; MOST_BLOCKS at most.

    ``take(bytes)`` returns an address, or None for a refusal. All blocks are given back, also after an error.
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

    The search goes down from the top in doubling steps, because little is missing in most cases, then by halves.
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


def _context_bytes(answer: Answer, used_bytes: int) -> Fact:
    """What this process keeps on the GPU while a case has taken next to nothing: its context and loaded kernels."""
    name, seen = "context_bytes", answer.value
    if seen is None:
        return unknown(name, answer.why_none, "NVML")
    if seen.own is not None and seen.own.used_bytes is not None:
        return known(name, seen.own.used_bytes, "NVML's figure of this process", "B")
    if not seen.others:
        return known(name, used_bytes, "cuMemGetInfo: all that is not free; no other process is there", "B")
    return unknown(name, "NVML does not say how much this process holds, and other processes hold memory", "NVML")


def _take(size_bytes: int) -> int | None:
    code, address = driver.cuMemAlloc(size_bytes)
    return None if int(code) == OUT_OF_MEMORY else int(check((code, address)))


def _capacity(case: Case) -> tuple[Fact, ...]:
    """The largest single block and the most memory in several blocks that can be allocated now, the memory that the
    context takes, in bytes, and the other processes that hold memory.

    All free memory is allocated for a moment, unless another process might need it.
    """
    nvml = case.board.nvml
    case.context.make_current()
    case.synchronize()
    free_bytes, total_bytes = (int(count) for count in check(driver.cuMemGetInfo()))
    answer = memory_holders(nvml.query)
    shared = bool(case.context.attribute("INTEGRATED"))
    why_not = why_not_all(answer, total_bytes - free_bytes, shared_with_host=shared)
    facts = [
        known("total_bytes", total_bytes, "cuMemGetInfo", "B"),
        known("free_bytes", free_bytes, "cuMemGetInfo", "B"),
        _context_bytes(answer, total_bytes - free_bytes),
    ]
    if why_not is None:
        blocks = all_blocks(
            _take, lambda address: check(driver.cuMemFree(address)), lambda: int(check(driver.cuMemGetInfo())[0])
        )
        values = (max(blocks, default=0), sum(blocks))
        facts += (known(name, value, TAKEN_SOURCE, "B") for name, value in zip(TAKEN, values, strict=True))
    else:
        facts += (unknown(name, why_not, TAKEN_SOURCE) for name in TAKEN)
    return (*facts, holders(nvml))


def _simulated_capacity(machine: Machine) -> tuple[Fact, ...]:
    """The driver gives ``largest_share`` of the free memory as one block, and all of it as several blocks."""
    costs, free_bytes = machine.costs.memory, machine.room.free_bytes
    facts = [
        known("total_bytes", costs.total_bytes, SIMULATED, "B"),
        known("free_bytes", free_bytes, SIMULATED, "B"),
        known("context_bytes", costs.context_bytes, SIMULATED, "B"),
    ]
    steps = free_bytes // costs.block_step_bytes
    largest_steps = max(int(steps * costs.largest_share), min(steps, 1))
    for name, taken_steps in zip(TAKEN, (largest_steps, steps), strict=True):
        if costs.held_by_others_bytes:
            facts.append(unknown(name, OTHERS_NEED_IT, SIMULATED))
        else:
            facts.append(known(name, taken_steps * costs.block_step_bytes, SIMULATED, "B"))
    return (*facts, known("memory_holders", machine.room.holders(), SIMULATED))


capacity = experiment(_capacity, _simulated_capacity)
