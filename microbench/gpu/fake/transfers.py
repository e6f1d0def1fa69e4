"""Simulated movements of data: their ends, what arrives, the host memory that they take, and how long kernels last."""

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import Launch
from microbench.core.units import size
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.machine import Call, FakeSubmit, Machine, call_of
from microbench.gpu.protocol.gpu import FloatArray, Submit

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


WARP_BYTES = 512  # 32 threads, 16 bytes each


class FakeKernel(FakeTransfer):
    """A kernel whose blocks work for ``busy_ns`` on top of an empty one, counted in ``operations`` if there are any."""

    def __init__(
        self, machine: Machine, busy_ns: float, moved_bytes: int, operations: int = 0, submit_ns: float | None = None
    ) -> None:
        costs, energy_j = machine.costs, moved_bytes * machine.costs.memory.joules_per_byte
        call = call_of(Launch(), costs).with_item(duration_ns=costs.empty_kernel_ns + busy_ns, energy_j=energy_j)
        super().__init__(machine, call if submit_ns is None else Call(submit_ns, call.item), operations or moved_bytes)
        self.operations = operations


def answered_ns(
    costs: FakeCosts, requests: int, in_flight: int, l2_bytes: float, dram_bytes: float, dram_bytes_per_s: float
) -> float:
    """The time in which each SM's ``requests`` are answered, with ``in_flight`` of them at once (Little's law).

    Each request takes ``l2_bytes`` of the SM's port to the L2 and ``dram_bytes`` of DRAM; 0 where the L2 answers.
    """
    memory = costs.memory
    port_ns = costs.cycles_ns(l2_bytes / memory.l2_bytes_per_clock)
    dram_ns = dram_bytes * costs.sm_count / dram_bytes_per_s * 1e9
    near = memory.l2_near_share
    l2_cycles = near * memory.l2_near_cycles + (1 - near) * memory.l2_far_cycles
    latency_ns = costs.cycles_ns(memory.dram_cycles if dram_bytes else l2_cycles)
    return latency_ns + requests * max(port_ns, dram_ns, latency_ns / max(in_flight, 1))


def through_ns(costs: FakeCosts, moved_bytes: int, in_flight_bytes: int, dram_bytes_per_s: float) -> float:
    """The time in which all SMs together move ``moved_bytes``, each with ``in_flight_bytes`` in flight."""
    requests = -(-moved_bytes // (WARP_BYTES * costs.sm_count))
    dram_bytes = WARP_BYTES if moved_bytes > costs.memory.l2_bytes else 0
    return answered_ns(costs, requests, in_flight_bytes // WARP_BYTES, WARP_BYTES, dram_bytes, dram_bytes_per_s)
