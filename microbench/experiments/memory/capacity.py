"""How much of a GPU's memory can be allocated now, and who holds the rest."""

from collections.abc import Callable
from contextlib import ExitStack

from microbench.core.model import Fact
from microbench.core.units import about_size
from microbench.gpu.cuda.case import OUT_OF_MEMORY, Case
from microbench.gpu.experiment import Machine, check, driver, experiment
from microbench.gpu.fake.environment import SIMULATED
from microbench.gpu.machine.nvml import holders, memory_holders
from microbench.gpu.machine.query import Answer
from microbench.host.files import known, unknown

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
