"""One copy by a copy engine, one by a kernel, and copies both ways at once; what they moved is checked on the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.core.errors import MeasurementError
from microbench.core.ops import Launch
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.graphs.effects import CallRow, Program
from microbench.gpu.cuda.links.buffers import HostBuffer, Patterns
from microbench.gpu.cuda.submit import DriverSubmit, Parameters, copy, launch
from microbench.gpu.protocol.links import Access, Direction, FloatArray, HostMemory
from microbench.gpu.protocol.submit import Submit

COPY_THREADS = 512
MILLISECOND_S = 1e-3


class Ends:
    """The two ends of a movement: a host buffer and device memory, which of them is the source, and their pattern."""

    def __init__(
        self, case: Case, host: HostBuffer, size_bytes: int, *, to_device: bool, offset_bytes: int = 0
    ) -> None:
        self._case = case
        self._host = host
        self._offset_bytes = offset_bytes
        self._to_device = to_device
        self._patterns = Patterns(case.context, case.modules)
        self._seed = 0
        self.size_bytes = size_bytes
        self.host = host.address + offset_bytes
        self.device = case.context.device_memory(size_bytes)
        # Pageable memory is out of the GPU's reach: its pattern goes through device memory of its own.
        self._aside = None if host.device_address else case.context.device_memory(size_bytes)

    @property
    def mapped(self) -> int:
        """The host buffer as the GPU addresses it. Raises MeasurementError for pageable memory."""
        if self._host.device_address is None:
            raise MeasurementError("pageable memory has no address on the GPU")
        return self._host.device_address + self._offset_bytes

    def fresh(self) -> None:
        """A new pattern in the source, its complement in the destination."""
        self._seed += 1
        if self._to_device:
            self._write_host(poison=False)
            self._patterns.poison(self.device, self.size_bytes, self._seed)
        else:
            self._patterns.fill(self.device, self.size_bytes, self._seed)
            self._write_host(poison=True)

    def check(self) -> str:
        """Compare the destination: on the device in place, on the host by the way that no copy took."""
        if self._to_device:
            self._patterns.verify(self.device, self.size_bytes, self._seed, "device memory")
            return "every byte compared on the GPU"
        if self._aside is None:
            self._patterns.verify(self.mapped, self.size_bytes, self._seed, "host memory")
            return "every byte compared by a kernel that reads the host's memory"
        check(driver.cuMemcpyHtoD(self._aside, self.host, self.size_bytes))
        self._patterns.verify(self._aside, self.size_bytes, self._seed, "host memory")
        return "every byte copied back and compared on the GPU"

    def _write_host(self, *, poison: bool) -> None:
        address = self.mapped if self._aside is None else self._aside
        write = self._patterns.poison if poison else self._patterns.fill
        write(address, self.size_bytes, self._seed)
        if self._aside is not None:
            check(driver.cuMemcpyDtoH(self.host, self._aside, self.size_bytes))


class CudaCopy:
    """See Transfer of link_api.py."""

    def __init__(
        self, case: Case, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None
    ) -> None:
        self.size_bytes = size_bytes
        self.blocks = memory == "pageable"
        host = HostBuffer(case.context, memory, size_bytes, node)
        self._ends = Ends(case, host, size_bytes, to_device=direction == "h2d")
        self.submit: Submit = copy_submit(self._ends, direction, case.stream(0))
        self.fresh = self._ends.fresh
        self.check = self._ends.check


def copy_submit(ends: Ends, direction: Direction, stream: int) -> DriverSubmit:
    """One asynchronous copy of the whole buffer."""
    return copy(direction, ends.device, ends.host, ends.size_bytes, stream)


class CudaKernelCopy:
    """See Transfer and Links.kernel_copy of link_api.py."""

    blocks = False

    def __init__(self, case: Case, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        host = HostBuffer(case.context, "pinned", size_bytes + offset_bytes)
        reads = access == "read"
        self._ends = ends = Ends(case, host, size_bytes, to_device=reads, offset_bytes=offset_bytes)
        source, destination = (ends.mapped, ends.device) if reads else (ends.device, ends.mapped)
        self.submit: Submit = kernel_copy_submit(case, case.stream(0), source, destination, size_bytes, width_bytes)
        self.fresh = ends.fresh
        self.check = ends.check


def kernel_copy_submit(
    case: Case, stream: int, source: int, destination: int, size_bytes: int, width_bytes: int
) -> DriverSubmit:
    """A copy by all SMs, ``width_bytes`` (4, 8 or 16) a thread at a time."""
    function = case.modules.function("link", f"copy{width_bytes}")
    shape = Launch(grid_blocks=case.context.attribute("MULTIPROCESSOR_COUNT"), block_threads=COPY_THREADS)
    return launch(function, shape, stream, Parameters([(source, destination, size_bytes)]))


class CudaDuplex:
    """See Duplex of link_api.py: host to device in stream 0, device to host in stream 1."""

    def __init__(self, case: Case, size_bytes: int) -> None:
        self._case = case
        self._ends: dict[Direction, Ends] = {}
        self._submits: dict[Direction, DriverSubmit] = {}
        directions: tuple[Direction, ...] = ("h2d", "d2h")
        for index, direction in enumerate(directions):
            ends = Ends(case, HostBuffer(case.context, "pinned", size_bytes), size_bytes, to_device=direction == "h2d")
            self._ends[direction] = ends
            self._submits[direction] = copy_submit(ends, direction, case.stream(index))
        self._begin = case.context.event(timed=True)
        self._events: dict[Direction, list[int]] = {"h2d": [], "d2h": []}

    def ends_s(self, h2d: int, d2h: int) -> tuple[FloatArray, FloatArray] | None:
        """An event behind every copy, which costs its stream about a microsecond."""
        counts: dict[Direction, int] = {"h2d": h2d, "d2h": d2h}
        self._make_events(counts)
        gate = self._case.gate()
        gate.shut((0,))
        check(driver.cuEventRecord(self._begin, self._case.stream(0)))
        check(driver.cuStreamWaitEvent(self._case.stream(1), self._begin, 0))
        for direction, submit in self._submits.items():
            for event in self._events[direction][: counts[direction]]:
                submit(1)
                check(driver.cuEventRecord(event, submit.stream))
        gate.open()
        self._case.context.synchronize()
        if gate.was_late():
            return None
        return self._since_begin("h2d", h2d), self._since_begin("d2h", d2h)

    def _make_events(self, counts: dict[Direction, int]) -> None:
        for direction, count in counts.items():
            events = self._events[direction]
            events.extend(self._case.context.event(timed=True) for _ in range(count - len(events)))

    def _since_begin(self, direction: Direction, count: int) -> FloatArray:
        events = self._events[direction][:count]
        elapsed_ms = [float(check(driver.cuEventElapsedTime(self._begin, event))) for event in events]
        return np.array(elapsed_ms, dtype=np.float64) * MILLISECOND_S

    def fresh(self) -> None:
        for ends in self._ends.values():
            ends.fresh()

    def check(self) -> str:
        return "; ".join(f"{direction}: {ends.check()}" for direction, ends in self._ends.items())


# Kernels that read pieces of memory whole: what proves that the data were there when each of them ran.


BLOCK_THREADS = 1024
WORD_BYTES = 4


class Piece(NamedTuple):
    """Memory that the GPU reaches; ``address`` is a multiple of 16."""

    address: int
    size_bytes: int


class Readers:
    """One reader a piece: it adds a checksum of what it sees to a word of the piece's own, and 1 to another.

    Its grid fills every SM, so that two of them do not run side by side: as many blocks of 1024 threads as fit.
    """

    def __init__(self, case: Case, pieces: Sequence[Piece]) -> None:
        self._context = case.context
        self._pieces = pieces
        self._function = case.modules.function("link_pipeline", "consume")
        fitting = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self._function, BLOCK_THREADS, 0)
        self._blocks = case.context.attribute("MULTIPROCESSOR_COUNT") * int(check(fitting))
        self._size_bytes = 2 * WORD_BYTES * len(pieces)
        self._found, self._wanted = (case.context.device_memory(self._size_bytes) for _ in range(2))

    def submit(self, index: int, stream: int, cycles: int = 0) -> DriverSubmit:
        """The reader of one piece, which takes ``cycles`` of the SM clock, or longer where reading does."""
        return self._reader(index, stream, cycles, self._found)

    def _reader(self, index: int, stream: int, cycles: int, out: int) -> DriverSubmit:
        checksum = out + 2 * WORD_BYTES * index
        row = (*self._pieces[index], cycles, checksum, checksum + WORD_BYTES)
        shape = Launch(grid_blocks=self._blocks, block_threads=BLOCK_THREADS)
        return launch(self._function, shape, stream, Parameters([row]))

    def forget(self) -> None:
        """No reader has run."""
        self._context.clear(self._found, self._size_bytes)

    def check(self, stream: int) -> None:
        """Raise MeasurementError unless each piece was seen in every run as it is now, which the caller has compared.

        What it should have seen is read once more by the same kernel, now that the memory is known to be right.
        """
        self._context.clear(self._wanted, self._size_bytes)
        for index in range(len(self._pieces)):
            self._reader(index, stream, 0, self._wanted)(1)
        self._context.synchronize()
        found, wanted = (self._words(words) for words in (self._found, self._wanted))
        never = np.flatnonzero(found[:, 1] == 0)
        if never.size:
            raise MeasurementError(f"the kernel of piece {never[0]} of {len(found)} did not run")
        wrong = np.flatnonzero(found[:, 0] != wanted[:, 0] * found[:, 1])
        if wrong.size:
            raise MeasurementError(f"the kernel of piece {wrong[0]} of {len(found)} ran before its data were there")

    def _words(self, address: int) -> npt.NDArray[np.uint32]:
        """Checksum and runs of each piece."""
        return self._context.read(address, 2 * len(self._pieces), np.uint32).reshape(-1, 2)


# A host buffer that goes to the device in pieces, on several streams, each piece followed by a kernel or by none.


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
        self._seed += 1
        self._patterns.fill(self._host.device_address or self._host.address, self._size_bytes, self._seed)
        self._patterns.poison(self._device, self._size_bytes, self._seed)
        if self._readers is not None:
            self._readers.forget()

    def check(self) -> str:
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
