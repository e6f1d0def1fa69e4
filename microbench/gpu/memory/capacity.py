"""How much device memory can be had: blocks are taken until the driver refuses, and given back at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from cuda.bindings import driver

from microbench.gpu.context import OUT_OF_MEMORY, Context, check
from microbench.gpu.graphs.base import Case
from microbench.gpu.nvml import NvmlGpu
from microbench.gpu.nvml_processes import memory_holders
from microbench.gpu.nvml_query import Answer
from microbench.host.files import known, unknown
from microbench.model import Fact
from microbench.units import about_size

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
    """See DeviceMemory.capacity. All that is free is taken for a moment, unless somebody else could miss it."""
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
