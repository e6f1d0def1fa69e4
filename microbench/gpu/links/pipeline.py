"""A host buffer that goes to the device in pieces, on several streams, each piece followed by a kernel or by none."""

from __future__ import annotations

from collections.abc import Iterator

from microbench.errors import MeasurementError
from microbench.gpu.api import Submit
from microbench.gpu.graphs.base import Case
from microbench.gpu.graphs.program import CallRow, Program
from microbench.gpu.links.memory import HostBuffer
from microbench.gpu.links.patterns import Patterns
from microbench.gpu.links.readers import Piece, Readers
from microbench.gpu.submit import copy

# A piece begins at a multiple of what a thread of its kernel reads at a time.
UNIT_BYTES = 16


class CudaPipeline:
    """See Pipeline of link_api.py. A kernel takes ``kernel_ns / chunks`` by the SM clock as it was when the case began,
    or as long as it needs to read its piece."""

    def __init__(self, case: Case, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> None:
        self._case = case
        self._size_bytes = size_bytes
        self._seed = 0
        begins = cut(size_bytes, chunks)
        self._host = HostBuffer(case.context, "pinned", size_bytes)
        self._device = case.context.device_memory(size_bytes)
        self._patterns = Patterns(case.context, case.modules)
        ends = zip(begins, [*begins[1:], size_bytes], strict=True)
        self._pieces = [Piece(self._device + begin, end - begin) for begin, end in ends]
        self._readers = Readers(case, self._pieces) if kernel_ns else None
        cycles = case.cycles(kernel_ns // chunks)
        self.submit: Submit = Program(list(self._calls([case.stream(index) for index in range(streams)], cycles)))

    def _calls(self, streams: list[int], cycles: int) -> Iterator[CallRow]:
        for index, piece in enumerate(self._pieces):
            stream = streams[index % len(streams)]
            source = self._host.address + piece.address - self._device
            yield CallRow.of(copy("h2d", piece.address, source, piece.size_bytes, stream))
            if self._readers is not None:
                yield CallRow.of(self._readers.submit(index, stream, cycles))

    def fresh(self) -> None:
        """See Transfer."""
        self._seed += 1
        self._patterns.fill(self._host.device_address or self._host.address, self._size_bytes, self._seed)
        self._patterns.poison(self._device, self._size_bytes, self._seed)
        if self._readers is not None:
            self._readers.forget()

    def check(self) -> str:
        """See Pipeline."""
        self._patterns.verify(self._device, self._size_bytes, self._seed, "device memory")
        if self._readers is None:
            return "every byte compared on the GPU"
        self._readers.check(self._case.stream(0))
        return "every byte compared on the GPU, and each kernel had seen its own piece whole"


def cut(size_bytes: int, chunks: int) -> list[int]:
    """Where each of ``chunks`` pieces begins: as even as units of 16 bytes allow, the odd bytes go with the last."""
    units = size_bytes // UNIT_BYTES
    if not 1 <= chunks <= units:
        raise MeasurementError(f"{size_bytes} bytes cannot be cut into {chunks} pieces of {UNIT_BYTES} bytes or more")
    return [index * units // chunks * UNIT_BYTES for index in range(chunks)]
