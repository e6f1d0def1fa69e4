"""Copies between host and device: by a copy engine, and by a kernel that reads or writes host memory."""

import math
from collections.abc import Sequence
from typing import Literal

from microbench.core.model import Fact
from microbench.core.ops import Copy, Launch
from microbench.gpu.cuda.buffers import Copied, HostBuffer, require_node
from microbench.gpu.cuda.submit import DriverSubmit, Parameters, copy, launch
from microbench.gpu.experiment import Case, Skip, Submit, check, driver, experiment
from microbench.gpu.fake.costs import Traffic
from microbench.gpu.fake.machine import FakeProgram, Machine, call_of
from microbench.gpu.fake.transfers import WARP_THREADS, FakeTransfer, require_host_memory
from microbench.gpu.protocol.gpu import Direction, HostMemory, Transfer

Access = Literal["read", "write"]
DIRECTIONS: tuple[Direction, ...] = ("h2d", "d2h")
COPY_THREADS = 512
BUSY_FACT = "others_busy_throughout"


class Ends(Copied):
    """A host buffer and device memory: one is the source of a pattern, the other its destination.

    ``ends`` are both as the GPU addresses them, the source first. ``submit`` is set where the ends are a Transfer.
    """

    submit: Submit

    def __init__(
        self, case: Case, host: HostBuffer, size_bytes: int, direction: Direction, offset_bytes: int = 0
    ) -> None:
        self.size_bytes, self._direction = size_bytes, direction
        self.host, self.device = host.address + offset_bytes, case.device_memory(size_bytes)
        # The GPU cannot reach pageable memory: its pattern goes through device memory of its own.
        self._aside = None if host.device_address else case.device_memory(size_bytes)
        mapped = self._aside or (host.device_address or 0) + offset_bytes
        self.ends = (mapped, self.device) if direction == "h2d" else (self.device, mapped)
        super().__init__(case, *self.ends, size_bytes)

    def by_engine(self, stream: int) -> DriverSubmit:
        """One asynchronous copy of the whole buffer in a CUstream."""
        return copy(self._direction, self.device, self.host, self.size_bytes, stream)

    def fresh(self) -> None:
        super().fresh()
        if self._aside is not None:
            check(driver.cuMemcpyDtoH(self.host, self._aside, self.size_bytes))

    def check(self) -> str:
        """Compare the destination: device memory in place, host memory by another way than the measured copy."""
        if self._direction == "h2d":
            return super().check()
        if self._aside is not None:
            check(driver.cuMemcpyHtoD(self._aside, self.host, self.size_bytes))
        self._patterns.verify(self._destination, self.size_bytes, self._seed, "host memory")
        if self._aside is not None:
            return "every byte copied back and compared on the GPU"
        return "every byte compared by a kernel that reads the host's memory"


def _engine_copy(
    case: Case, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None
) -> Transfer:
    """A copy by a copy engine. The host buffer lies on NUMA node ``node``, by default on the caller's node."""
    if node is not None:
        require_node(node)
    ends = Ends(case, HostBuffer(case, memory, size_bytes, node), size_bytes, direction)
    ends.submit, ends.blocks = ends.by_engine(case.stream(0)), memory == "pageable"
    return ends


def _kernel_copy(case: Case, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> Transfer:
    """A kernel that copies pinned host memory to device memory (read), or device memory to it (write).

    Each thread moves ``width_bytes`` (4, 8 or 16) at a time. The host buffer begins ``offset_bytes`` after a 4 KiB page
    boundary: accesses stay aligned to their own width, but the offset splits the lines of a warp.
    """
    host = HostBuffer(case, "pinned", size_bytes + offset_bytes)
    ends = Ends(case, host, size_bytes, "h2d" if access == "read" else "d2h", offset_bytes)
    ends.submit = copy_by_sms(case, *ends.ends, size_bytes, width_bytes)
    return ends


def copy_by_sms(case: Case, source: int, destination: int, size_bytes: int, width_bytes: int) -> DriverSubmit:
    """A copy by all SMs in stream 0, ``width_bytes`` (4, 8 or 16) a thread at a time."""
    function = case.function("link", f"copy{width_bytes}")
    shape = Launch(grid_blocks=case.sms, block_threads=COPY_THREADS)
    return launch(case, function, shape, Parameters([(source, destination, size_bytes)]))


def _simulated_engine_copy(
    machine: Machine, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None
) -> Transfer:
    """The rate of a far node's memory is that of the link between the processors."""
    costs, nodes = machine.costs, machine.costs.links.numa_nodes
    if not 0 <= (node or 0) < nodes:
        raise Skip(f"this machine has {nodes} NUMA node{'s' if nodes > 1 else ''}")
    require_host_memory(costs, memory, size_bytes)
    most_bytes_per_s = costs.links.far_node_bytes_per_s if node else math.inf
    if memory == "pageable":
        return SimulatedPageable(machine, direction, size_bytes, most_bytes_per_s)
    call = call_of(Copy(direction, size_bytes), costs)
    duration_ns = max(call.item.duration_ns, costs.copy_fixed_ns + size_bytes / most_bytes_per_s * 1e9)
    return FakeTransfer(machine, call.with_item(duration_ns=duration_ns), size_bytes)


class SimulatedPageable(FakeTransfer):
    """A copy of pageable memory. Host and engine copy it piece by piece through a staging buffer; the slower of the two
    sets the pace. To the GPU the engine finishes last, from it the host."""

    blocks = True

    def __init__(self, machine: Machine, direction: Direction, size_bytes: int, most_bytes_per_s: float) -> None:
        costs, links = machine.costs, machine.costs.links
        pieces = -(-size_bytes // links.staging_piece_bytes)
        piece = call_of(Copy(direction, -(-size_bytes // pieces)), costs)
        self._last_piece = piece.with_item(traffic=call_of(Copy(direction, size_bytes), costs).item.traffic)
        super().__init__(machine, piece, size_bytes)
        self.submit = FakeProgram(machine, self._copy, costs.queue_slots // 2)
        self._machine = machine
        self._to_device = direction == "h2d"
        staging_s = size_bytes / min(links.staging_bytes_per_s, most_bytes_per_s)
        self._staging_ns = max(staging_s * 1e9 + pieces * piece.host_ns, (pieces - 1) * piece.item.duration_ns)

    def _copy(self) -> None:
        machine = self._machine
        if self._to_device:
            machine.spend(self._staging_ns)
        machine.make(self._last_piece, 1)
        machine.synchronize(0)
        if not self._to_device:
            machine.spend(self._staging_ns)
        self.move()


def _simulated_kernel_copy(
    machine: Machine, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int
) -> Transfer:
    """A warp's access makes one packet for each line that it touches; the link or the SMs are the limit."""
    costs, links = machine.costs, machine.costs.links
    if width_bytes not in links.sm_bytes_per_s:
        raise Skip(f"the simulated kernels move 4, 8 or 16 bytes at a time, not {width_bytes}")
    require_host_memory(costs, "pinned", size_bytes)
    warp_bytes = WARP_THREADS * width_bytes
    lines = -(-(offset_bytes % links.sm_packet_bytes + warp_bytes) // links.sm_packet_bytes)
    packets = size_bytes / warp_bytes * lines
    header_bytes = costs.packet_header_h2d_bytes if access == "read" else costs.packet_header_d2h_bytes
    wire_bytes = size_bytes + packets * header_bytes
    moved = Traffic(wire_bytes, packets * costs.read_request_bytes) if access == "read" else Traffic(sent=wire_bytes)
    busy_ns = max(wire_bytes / costs.link_bytes_per_s, size_bytes / links.sm_bytes_per_s[width_bytes]) * 1e9
    launch = call_of(Launch(), costs)
    call = launch.with_item(duration_ns=costs.empty_kernel_ns + busy_ns, traffic=launch.item.traffic + moved)
    return FakeTransfer(machine, call, size_bytes)


engine_copy = experiment(_engine_copy, _simulated_engine_copy)
kernel_copy = experiment(_kernel_copy, _simulated_kernel_copy)


def others_busy(busy: Sequence[bool]) -> Fact:
    """Whether the other copies outlasted the measured ones in every sample; twice as many may not suffice."""
    return Fact(BUSY_FACT, all(busy), source="the ends of both, by device events, in every sample")
