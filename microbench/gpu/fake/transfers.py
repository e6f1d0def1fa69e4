"""What simulated movements of data have in common: their ends, what arrives, and the host memory that they take."""

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.units import size
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.device import FloatArray
from microbench.gpu.fake.machine import Call, FakeSubmit, Machine
from microbench.gpu.protocol.gpu import Submit

CHECKED = "SIMULATED: every byte compared"
WARP_THREADS = 32


class Ends:
    """Source and destination of a movement of ``size_bytes``, and which byte of the destination is wrong, if any."""

    def __init__(self, costs: FakeCosts, size_bytes: int, wrong: str = "", checked: str = CHECKED) -> None:
        """``wrong`` says what a check found, by default the byte; ``checked`` how it was made."""
        self.size_bytes, self._wrong, self._checked = size_bytes, wrong, checked
        self._arrives = costs.links.arrives
        self._wrong_byte: int | None = None

    def fresh(self) -> None:
        """A new pattern at the source; every byte of the destination differs from it."""
        self._wrong_byte = 0

    def move(self) -> None:
        if self._arrives != "lost":
            self._wrong_byte = None if self._arrives == "right" else self.size_bytes - 1

    def check(self) -> str:
        if self._wrong_byte is not None:
            byte = f"byte {self._wrong_byte} of {self.size_bytes} is not the one that was sent"
            raise MeasurementError(f"SIMULATED: {self._wrong or byte}")
        return self._checked


class FakeTransfer(Ends):
    """A call that moves ``size_bytes``."""

    blocks = False

    def __init__(self, machine: Machine, call: Call, size_bytes: int) -> None:
        super().__init__(machine.costs, size_bytes)
        self.submit: Submit = FakeSubmit(machine, call, self.move)


def require_host_memory(costs: FakeCosts, memory: str, size_bytes: int) -> None:
    """Raise Skip for more host memory than the limit allows."""
    limit_bytes = costs.links.host_memory_limit_bytes
    if size_bytes > limit_bytes:
        raise Skip(f"{size(size_bytes)} of {memory} memory asked, {size(limit_bytes)} may be taken (SIMULATED limit)")


def evenly(share: float, first: int, count: int) -> FloatArray:
    """For each of ``count`` numbers from ``first`` on: 1 for an evenly spread ``share`` of all numbers, else 0."""
    chosen: FloatArray = np.diff(np.floor(np.arange(first, first + count + 1) * max(share, 0.0)))
    return chosen
