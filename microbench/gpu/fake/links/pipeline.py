"""A buffer in pieces on several simulated streams, each piece followed by a kernel that takes all SMs or by none."""

from __future__ import annotations

import msgspec

from microbench.errors import MeasurementError
from microbench.gpu.bound import Submit
from microbench.gpu.fake.calls import Call, call_of
from microbench.gpu.fake.links.ends import CHECKED, Ends, require_host_memory
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.program import FakeProgram
from microbench.gpu.fake.stream import Batch
from microbench.ops import Copy, Launch


class Piece:
    """One piece: its copy, and the kernel behind it."""

    def __init__(self, machine: Machine, size_bytes: int, stream: int, kernel_ns: int) -> None:
        costs = machine.costs
        self._machine = machine
        self.ends = Ends(costs, size_bytes)
        self._copy = call_of(Copy("h2d", size_bytes, stream), costs, {})
        self.kernel = self._kernel_call(size_bytes, stream, kernel_ns) if kernel_ns else None
        self._seen = False

    def _kernel_call(self, size_bytes: int, stream: int, kernel_ns: int) -> Call:
        costs = self._machine.costs
        reads_ns = size_bytes / costs.links.device_read_bytes_per_s * 1e9
        call = call_of(Launch(duration_ns=max(kernel_ns, round(reads_ns)), stream=stream), costs, {})
        assert call.item is not None, "a launch goes into a stream"
        return msgspec.structs.replace(call, item=msgspec.structs.replace(call.item, engine="sm"))

    def submit(self) -> None:
        """The copy and its kernel."""
        copied = self._machine.make(self._copy, 1).batches[-1]
        self.ends.move()
        if self.kernel is not None:
            worked = self._machine.make(self.kernel, 1).batches[-1]
            self._seen = _behind(worked, copied)

    def check(self) -> None:
        """Raise MeasurementError unless the piece is there and its kernel saw it."""
        self.ends.check()
        if self.kernel is not None and not self._seen:
            raise MeasurementError("SIMULATED: a kernel began before its piece was there")


def _behind(kernel: Batch, copy: Batch) -> bool:
    if kernel.starts_ns is None or copy.ends_ns is None:
        return False
    return float(kernel.starts_ns[0]) >= float(copy.ends_ns[-1])


class FakePipeline:
    """See Pipeline. Pieces differ by one byte at most."""

    def __init__(self, machine: Machine, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> None:
        require_host_memory(machine.costs, "pinned", size_bytes)
        if not 1 <= chunks <= size_bytes:
            raise MeasurementError(f"{size_bytes} bytes cannot be cut into {chunks} pieces")
        whole, rest = divmod(size_bytes, chunks)
        each_ns = max(kernel_ns // chunks, 1) if kernel_ns else 0
        self._pieces = [Piece(machine, whole + (one < rest), one % streams, each_ns) for one in range(chunks)]
        in_a_stream = -(-chunks // streams) * (2 if kernel_ns else 1)
        self.submit: Submit = FakeProgram(machine, self._submit, max(machine.costs.queue_slots // 2 // in_a_stream, 1))

    def _submit(self) -> None:
        for piece in self._pieces:
            piece.submit()

    def fresh(self) -> None:
        """See Transfer."""
        for piece in self._pieces:
            piece.ends.fresh()

    def check(self) -> str:
        """See Pipeline."""
        for piece in self._pieces:
            piece.check()
        return CHECKED
