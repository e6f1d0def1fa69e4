"""Copies in pieces: a large one on several streams with a kernel behind each piece or not, and many small ones."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Measurement, Work
from microbench.core.ops import Copy, Launch
from microbench.gpu.cuda.buffers import Copied, HostBuffer
from microbench.gpu.cuda.submit import CallRow, DriverSubmit, Parameters, Program, copy, launch
from microbench.gpu.experiment import Case, Submit, check, driver, experiment, require_host_memory
from microbench.gpu.fake.machine import Call, FakeProgram, FakeSubmit, Machine, call_of
from microbench.gpu.fake.transfers import Ends as SimulatedEnds
from microbench.gpu.fake.transfers import FakeTransfer
from microbench.meter.sampling import NANOSECOND_S
from microbench.meter.timer import Meter
from microbench.meter.transfers import verified

BatchWay = Literal["loop", "batched", "gather"]
BATCH_VERSION = 12080  # CUDA 12.8 has cuMemcpyBatchAsync
GATHER_THREADS, VECTOR_BYTES = 256, 16


class BatchedCopy(Copied):
    """A Transfer of ``count`` pieces, each half of its row on both sides, so that no two pieces touch."""

    submit: Submit

    def __init__(self, case: Case, way: BatchWay, piece_bytes: int, count: int) -> None:
        require_vectors(piece_bytes)
        self.size_bytes, self._piece = piece_bytes * count, piece_bytes
        self._host, stream = HostBuffer(case, "pinned", 2 * self.size_bytes), case.stream(0)
        mapped, target = int(self._host.device_address or 0), case.device_memory(2 * self.size_bytes)
        super().__init__(case, mapped, target, 2 * self.size_bytes)
        rows = 2 * piece_bytes * np.arange(count, dtype=np.uint64)
        sources, targets = (rows + np.uint64(start) for start in (self._host.address, target))
        if way == "loop":
            copies = zip(targets.tolist(), sources.tolist(), strict=True)
            calls = [CallRow.named("cuMemcpyHtoDAsync", [to, start, piece_bytes, stream]) for to, start in copies]
            self.submit = Program(calls, waits_for=stream)
        elif way == "gather":
            row = Parameters([(mapped, target, piece_bytes, 2 * piece_bytes)])
            op = Launch(grid_blocks=count, block_threads=GATHER_THREADS)
            self.submit = launch(case, case.function("link_batch", "gather"), op, row)
        else:
            case.require_driver(BATCH_VERSION, "batched copies")
            address = check(driver.cuGetProcAddress(b"cuMemcpyBatchAsync", BATCH_VERSION, 0))[0]
            sizes, attributes = np.full(count, piece_bytes, dtype=np.uint64), np.zeros(6, dtype=np.uint32)
            attributes[0] = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM; the hints of both locations stay empty
            keep = targets, sources, sizes, attributes, np.zeros(1, dtype=np.uint64), np.zeros(1, dtype=np.uint64)
            to, start, size, attribute, index, fails = (int(array.ctypes.data) for array in keep)
            arguments = [to, start, size, count, attribute, index, 1, fails, stream]
            self.submit = DriverSubmit("cuMemcpyBatchAsync", arguments, stream=stream, keep=keep, address=int(address))

    def check(self) -> str:
        """Compare each piece, and what lies between. Raises MeasurementError for the first wrong byte."""
        pitch, destination = 2 * self._piece, self._destination
        self._patterns.verify_rows(destination, self._buffer_bytes, self._seed, self._piece, pitch)
        return "every byte of the pieces and between them compared on the GPU"


class SimulatedBatch(FakeTransfer, BatchedCopy):
    """A batched call copies piece by piece; the gathering kernel reads as fast as the SMs and their packets can."""

    def __init__(self, machine: Machine, way: BatchWay, piece_bytes: int, count: int) -> None:
        require_vectors(piece_bytes)
        costs, links = machine.costs, machine.costs.links
        call = call_of(Copy("h2d", piece_bytes * count), costs)
        if way == "gather":
            on_the_link = 1 + costs.packet_header_h2d_bytes / links.sm_packet_bytes
            rate = min(links.sm_bytes_per_s[VECTOR_BYTES], costs.link_bytes_per_s / on_the_link)
            call = call_of(Launch(), costs).with_item(duration_ns=piece_bytes * count / rate * 1e9)
        elif way == "batched":
            rate = piece_bytes * count / (call.item.duration_ns - costs.copy_fixed_ns) * 1e9
            rate = min(rate, links.batched_small_bytes_per_s) if piece_bytes <= links.batched_small_bytes else rate
            call = call.with_item(duration_ns=count * (links.batched_piece_ns + piece_bytes / rate * 1e9))
        super().__init__(machine, call, piece_bytes * count)
        if way == "loop":
            copies = FakeSubmit(machine, call_of(Copy("h2d", piece_bytes), costs), self.move)
            self.submit = FakeProgram(machine, lambda: copies(count), 1, stream=0)


def require_vectors(piece_bytes: int) -> None:
    """Raise Skip for pieces that are no whole number of vectors."""
    if piece_bytes % VECTOR_BYTES:
        raise Skip(f"pieces of {piece_bytes} B are not made of {VECTOR_BYTES} B")


batched_copy = experiment(BatchedCopy, SimulatedBatch)


BLOCK_THREADS = 1024
WORD_BYTES = 4
# A piece begins at a multiple of what a thread of its reader reads at a time.
UNIT_BYTES = 16


class Piece(NamedTuple):
    """Memory that the GPU can reach; ``address`` is a multiple of 16."""

    address: int
    size_bytes: int


class Readers:
    """One reader per piece: it adds a checksum of what it reads to its own word, and 1 to another.

    Its grid fills every SM, as many blocks of 1024 threads as fit, so that two readers do not run at the same time.
    """

    def __init__(self, case: Case, pieces: Sequence[Piece]) -> None:
        self._case = case
        self._pieces = pieces
        self._function = case.function("link_pipeline", "consume")
        fitting = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self._function, BLOCK_THREADS, 0)
        self._blocks = case.sms * int(check(fitting))
        self._size_bytes = 2 * WORD_BYTES * len(pieces)
        self._seen, self._due = (case.device_memory(self._size_bytes) for _ in range(2))

    def submit(self, index: int, stream: int, cycles: int = 0) -> DriverSubmit:
        """The reader of one piece in a stream index. It takes ``cycles`` of the SM clock, or longer if reading does."""
        return self._reader(index, stream, cycles, self._seen)

    def _reader(self, index: int, stream: int, cycles: int, out: int) -> DriverSubmit:
        checksum = out + 2 * WORD_BYTES * index
        row = (*self._pieces[index], cycles, checksum, checksum + WORD_BYTES)
        shape = Launch(grid_blocks=self._blocks, block_threads=BLOCK_THREADS, stream=stream)
        return launch(self._case, self._function, shape, Parameters([row]))

    def forget(self) -> None:
        self._case.clear(self._seen, self._size_bytes)

    def check(self) -> None:
        """Raise MeasurementError unless every run of each reader saw its piece as it is now.

        The caller has compared the memory. The same kernel then reads it once more for the expected checksums.
        """
        self._case.clear(self._due, self._size_bytes)
        for index in range(len(self._pieces)):
            self._reader(index, 0, 0, self._due)(1)
        self._case.synchronize()
        seen, due = self._words(self._seen), self._words(self._due)
        never = np.flatnonzero(seen[:, 1] == 0)
        if never.size:
            raise MeasurementError(f"the kernel of piece {never[0]} of {len(seen)} did not run")
        wrong = np.flatnonzero(seen[:, 0] != due[:, 0] * seen[:, 1])
        if wrong.size:
            raise MeasurementError(f"the kernel of piece {wrong[0]} of {len(seen)} ran before its data were there")

    def _words(self, address: int) -> npt.NDArray[np.uint32]:
        return self._case.read(address, 2 * len(self._pieces), np.uint32).reshape(-1, 2)


class Pipeline(Copied):
    """A host buffer that is copied to the GPU in chunks; chunk i goes to stream i modulo ``streams``.

    If ``kernel_ns`` is not 0, a kernel follows each chunk in its stream: it reads the whole chunk, then spins until it
    has run for ``kernel_ns / chunks`` by the SM clock as it was when the case began. Each kernel takes all SMs, so that
    no two run at the same time. One call of ``submit`` is the whole buffer; its round trips wait for all streams.
    """

    def __init__(self, case: Case, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> None:
        self._case, self.size_bytes, begins = case, size_bytes, cut(size_bytes, chunks)
        self._host = HostBuffer(case, "pinned", size_bytes)
        mapped, device = self._host.device_address or self._host.address, case.device_memory(size_bytes)
        super().__init__(case, mapped, device, size_bytes)
        ends = zip(begins, [*begins[1:], size_bytes], strict=True)
        self._pieces = [Piece(device + begin, end - begin) for begin, end in ends]
        self._readers = Readers(case, self._pieces) if kernel_ns else None
        self.submit: Submit = Program(list(self._calls(streams, case.cycles(kernel_ns // chunks))))

    def _calls(self, streams: int, cycles: int) -> Iterator[CallRow]:
        for index, piece in enumerate(self._pieces):
            stream = index % streams
            source = self._host.address + piece.address - self._destination
            yield CallRow.of(copy("h2d", piece.address, source, piece.size_bytes, self._case.stream(stream)))
            if self._readers is not None:
                yield CallRow.of(self._readers.submit(index, stream, cycles))

    def fresh(self) -> None:
        super().fresh()
        if self._readers is not None:
            self._readers.forget()

    def check(self) -> str:
        """Also verifies that each kernel saw its whole chunk."""
        checked = super().check()
        if self._readers is None:
            return checked
        self._readers.check()
        return "every byte compared on the GPU, and each kernel had seen its own piece whole"


def cut(size_bytes: int, chunks: int) -> list[int]:
    """Where each of ``chunks`` pieces begins: evenly in units of 16 bytes, the odd bytes go with the last piece."""
    units = size_bytes // UNIT_BYTES
    if not 1 <= chunks <= units:
        raise MeasurementError(f"{size_bytes} bytes cannot be cut into {chunks} pieces of {UNIT_BYTES} bytes or more")
    return [index * units // chunks * UNIT_BYTES for index in range(chunks)]


class SimulatedPipeline(SimulatedEnds, Pipeline):
    """The sizes of chunks differ by one byte at most."""

    def __init__(self, machine: Machine, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> None:
        costs = machine.costs
        require_host_memory(costs, "pinned", size_bytes)
        if not 1 <= chunks <= size_bytes:
            raise MeasurementError(f"{size_bytes} bytes cannot be cut into {chunks} pieces")
        SimulatedEnds.__init__(self, costs, size_bytes)
        self._machine = machine
        self._queued: list[Call] = []
        for chunk in range(chunks):
            chunk_bytes, stream = size_bytes // chunks + (chunk < size_bytes % chunks), chunk % streams
            self._queued.append(call_of(Copy("h2d", chunk_bytes, stream), costs))
            if kernel_ns:
                reads_ns = chunk_bytes / costs.links.device_read_bytes_per_s * 1e9
                kernel = Launch(duration_ns=max(kernel_ns // chunks, round(reads_ns), 1), stream=stream)
                self._queued.append(call_of(kernel, costs).with_item(engine="sm"))
        in_a_stream = -(-chunks // streams) * (2 if kernel_ns else 1)
        self.submit: Submit = FakeProgram(machine, self._submit, max(costs.queue_slots // 2 // in_a_stream, 1))

    def _submit(self) -> None:
        for call in self._queued:
            self._machine.make(call, 1)
        self.move()


chunked_copy = experiment(Pipeline, SimulatedPipeline)


def pieces(meter: Meter, copied: Pipeline | BatchedCopy) -> list[Measurement]:
    """Metric ``bandwidth``: the rate of all pieces and a wait for them, on the host's clock."""
    out_ns = np.zeros(2, dtype=np.int64)
    copied.submit.round_trips(out_ns)
    copied.fresh()
    one_ns = out_ns[:1]

    def take() -> Sequence[float]:
        copied.submit.round_trips(one_ns)
        return (int(one_ns[0]) * NANOSECOND_S,)

    work = Work(bytes=copied.size_bytes)
    measured = meter.collect("bandwidth", take, clock="host", work=work, bound="pcie_h2d")
    return verified([measured], copied.check())
