"""How long the simulated GPU's memory keeps a kernel: its SMs' ports, DRAM, or the latency of what is in flight."""

from microbench.core.ops import Launch
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.machine import Call, Machine, call_of
from microbench.gpu.fake.transfers import FakeTransfer

WARP_BYTES = 512  # 32 threads, 16 bytes each


class SimulatedOperations(FakeTransfer):
    """A kernel that is counted in operations."""

    def __init__(self, machine: Machine, call: Call, operations: int) -> None:
        super().__init__(machine, call, operations)
        self.operations = operations


def kernel_call(machine: Machine, busy_ns: float, moved_bytes: float, submit_ns: float | None = None) -> Call:
    """A launch whose blocks work for ``busy_ns`` on top of an empty kernel."""
    costs = machine.costs
    energy_j = moved_bytes * costs.memory.joules_per_byte
    call = call_of(Launch(), costs).with_item(duration_ns=costs.empty_kernel_ns + busy_ns, energy_j=energy_j)
    return call if submit_ns is None else Call(submit_ns, call.item)


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
