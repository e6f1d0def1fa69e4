"""Room in the simulated device memory: blocks of one case, what others hold, and how much can be had."""

from __future__ import annotations

from collections.abc import Hashable

from microbench.errors import Skip
from microbench.gpu.fake.environment import SIMULATED
from microbench.gpu.fake.memory_costs import MemoryCosts
from microbench.model import Fact
from microbench.units import size

OTHERS = "somebody (pid 4242)"
NOBODY = "nobody else"
# Where another process works on the GPU too, taking all that is free could make it fail.
NOT_ALL = "another process holds memory of this GPU: taking all that is free could make it fail"


class Room:
    """Blocks that a case holds, each under a name; they are gone with the Room."""

    def __init__(self, costs: MemoryCosts) -> None:
        self._costs = costs
        self._blocks: dict[Hashable, int] = {}

    @property
    def free_bytes(self) -> int:
        """What nobody holds."""
        costs = self._costs
        return costs.total_bytes - costs.context_bytes - costs.held_by_others_bytes - sum(self._blocks.values())

    def hold(self, name: Hashable, size_bytes: int) -> None:
        """Take a block for the rest of the case, if it is not held already. Raises Skip where it does not fit."""
        if name not in self._blocks:
            self.require(size_bytes)
            self._blocks[name] = self._whole(size_bytes)

    def require(self, size_bytes: int) -> None:
        """Raise Skip where a block does not fit."""
        if self._whole(size_bytes) > self.free_bytes:
            raise Skip(
                f"{size(size_bytes)} of device memory asked, {size(self.free_bytes)} free; {self.holders()} (SIMULATED)"
            )

    def holders(self) -> str:
        """Who else holds memory."""
        held_bytes = self._costs.held_by_others_bytes
        return f"{OTHERS} {size(held_bytes)}" if held_bytes else NOBODY

    def peers(self) -> Fact:
        """See DeviceMemory."""
        return Fact("memory_holders", self.holders(), SIMULATED)

    def capacity(self) -> tuple[Fact, ...]:
        """See DeviceMemory: the largest block first, then the largest of what is left, until nothing is."""
        costs, blocks = self._costs, list[int]()
        free_bytes = self.free_bytes
        while (block := self._largest(free_bytes - sum(blocks))) > 0:
            blocks.append(block)
        known = {"total_bytes": costs.total_bytes, "free_bytes": free_bytes, "context_bytes": costs.context_bytes}
        taken = {"largest_block_bytes": blocks[0] if blocks else 0, "obtainable_bytes": sum(blocks)}
        if costs.held_by_others_bytes:
            unknown = tuple(Fact(name, None, SIMULATED, reason=NOT_ALL) for name in taken)
        else:
            known, unknown = known | taken, ()
        return (*(Fact(name, value, SIMULATED, unit="B") for name, value in known.items()), *unknown)

    def _largest(self, free_bytes: int) -> int:
        """The largest block that the driver gives of so much: holes between blocks keep it from giving all."""
        step_bytes = self._costs.block_step_bytes
        steps = free_bytes // step_bytes
        return max(int(steps * self._costs.largest_share), min(steps, 1)) * step_bytes

    def _whole(self, size_bytes: int) -> int:
        return -(-size_bytes // self._costs.block_step_bytes) * self._costs.block_step_bytes
