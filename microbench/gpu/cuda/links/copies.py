"""Copies between host and device: by a copy engine, by a kernel, both ways at once, in chunks on several streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError
from microbench.core.model import Fact, GpuInfo
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda import driver
from microbench.gpu.cuda.buffers import HostBuffer, Patterns, require_node
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check, device_uuid
from microbench.gpu.cuda.submit import CallRow, DriverSubmit, Parameters, Program, copy, launch
from microbench.gpu.cuda.timing import NANOSECOND_S, SpinGate, elapsed_s
from microbench.gpu.machine.counters import counters_risen, link_counters
from microbench.gpu.machine.nvml import NvmlGpu
from microbench.gpu.machine.paths import path_facts
from microbench.gpu.machine.topology import link_facts_now
from microbench.gpu.protocol.links import Access
from microbench.gpu.protocol.submit import Submit
from microbench.gpu.protocol.transfer import Direction, FloatArray, HostMemory

DIRECTIONS: tuple[Direction, ...] = ("h2d", "d2h")
COPY_THREADS = 512


class Ends:
    """The two ends of a movement, a host buffer and device memory: one is the source of a pattern."""

    def __init__(
        self, case: Case, host: HostBuffer, size_bytes: int, *, to_device: bool, offset_bytes: int = 0
    ) -> None:
        self._case = case
        self._host = host
        self._offset_bytes = offset_bytes
        self._to_device = to_device
        self._patterns = Patterns(case)
        self._seed = 0
        self.size_bytes = size_bytes
        self.host = host.address + offset_bytes
        self.device = case.device_memory(size_bytes)
        # The GPU cannot reach pageable memory: its pattern goes through device memory of its own.
        self._aside = None if host.device_address else case.device_memory(size_bytes)

    @property
    def mapped(self) -> int:
        """The host buffer as the GPU addresses it. Raises MeasurementError for pageable memory."""
        if self._host.device_address is None:
            raise MeasurementError("pageable memory has no address on the GPU")
        return self._host.device_address + self._offset_bytes

    def fresh(self) -> None:
        self._seed += 1
        if self._to_device:
            self._write_host(poison=False)
            self._patterns.poison(self.device, self.size_bytes, self._seed)
        else:
            self._patterns.fill(self.device, self.size_bytes, self._seed)
            self._write_host(poison=True)

    def check(self) -> str:
        """Compare the destination: device memory in place, host memory by another way than the measured copy."""
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


def copy_submit(ends: Ends, direction: Direction, stream: int) -> DriverSubmit:
    """One asynchronous copy of the whole buffer in a CUstream."""
    return copy(direction, ends.device, ends.host, ends.size_bytes, stream)


class CudaCopy:
    """A Transfer by a copy engine."""

    def __init__(
        self, case: Case, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None
    ) -> None:
        if node is not None:
            require_node(node)
        self.size_bytes = size_bytes
        self.blocks = memory == "pageable"
        host = HostBuffer(case, memory, size_bytes, node)
        ends = Ends(case, host, size_bytes, to_device=direction == "h2d")
        self.submit: Submit = copy_submit(ends, direction, case.stream(0))
        self.fresh, self.check = ends.fresh, ends.check


class CudaKernelCopy:
    """A Transfer by a kernel that reads or writes pinned host memory."""

    blocks = False

    def __init__(self, case: Case, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        host = HostBuffer(case, "pinned", size_bytes + offset_bytes)
        reads = access == "read"
        ends = Ends(case, host, size_bytes, to_device=reads, offset_bytes=offset_bytes)
        source, destination = (ends.mapped, ends.device) if reads else (ends.device, ends.mapped)
        self.submit: Submit = copy_by_sms(case, source, destination, size_bytes, width_bytes)
        self.fresh, self.check = ends.fresh, ends.check


def copy_by_sms(case: Case, source: int, destination: int, size_bytes: int, width_bytes: int) -> DriverSubmit:
    """A copy by all SMs in stream 0, ``width_bytes`` (4, 8 or 16) a thread at a time."""
    function = case.function("link", f"copy{width_bytes}")
    shape = Launch(grid_blocks=case.sms, block_threads=COPY_THREADS)
    return launch(case, function, shape, Parameters([(source, destination, size_bytes)]))


class CudaDuplex:
    """A Duplex: host to device in stream 0, device to host in stream 1."""

    def __init__(self, case: Case, size_bytes: int) -> None:
        self._case = case
        self._ends: dict[Direction, Ends] = {}
        self._submits: dict[Direction, DriverSubmit] = {}
        for index, direction in enumerate(DIRECTIONS):
            ends = Ends(case, HostBuffer(case, "pinned", size_bytes), size_bytes, to_device=direction == "h2d")
            self._ends[direction] = ends
            self._submits[direction] = copy_submit(ends, direction, case.stream(index))
        self._begin = case.event(timed=True)
        self._events: dict[Direction, list[int]] = {"h2d": [], "d2h": []}

    def ends_s(self, h2d: int, d2h: int) -> tuple[FloatArray, FloatArray] | None:
        """There is an event after every copy, which costs its stream about a microsecond."""
        case, counts = self._case, {"h2d": h2d, "d2h": d2h}
        for direction, events in self._events.items():
            events.extend(case.event(timed=True) for _ in range(counts[direction] - len(events)))
        gate = case.once(SpinGate)
        gate.shut((0,))
        check(driver.cuEventRecord(self._begin, case.stream(0)))
        check(driver.cuStreamWaitEvent(case.stream(1), self._begin, 0))
        for direction, submit in self._submits.items():
            for event in self._events[direction][: counts[direction]]:
                submit(1)
                check(driver.cuEventRecord(event, submit.stream))
        gate.open()
        case.synchronize()
        if gate.was_late():
            return None
        return self._since_begin("h2d", h2d), self._since_begin("d2h", d2h)

    def _since_begin(self, direction: Direction, count: int) -> FloatArray:
        return np.array([elapsed_s(self._begin, event) for event in self._events[direction][:count]], dtype=np.float64)

    def fresh(self) -> None:
        for ends in self._ends.values():
            ends.fresh()

    def check(self) -> str:
        return "; ".join(f"{direction}: {ends.check()}" for direction, ends in self._ends.items())


BLOCK_THREADS = 1024
WORD_BYTES = 4


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
        """Clear the words, as if no reader had run."""
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


# A piece begins at a multiple of what a thread of its reader reads at a time.
UNIT_BYTES = 16


class CudaPipeline:
    """A Pipeline. A kernel takes ``kernel_ns / chunks`` by the SM clock as it was when the case began."""

    def __init__(self, case: Case, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> None:
        self._case = case
        self._size_bytes = size_bytes
        self._seed = 0
        begins = cut(size_bytes, chunks)
        self._host = HostBuffer(case, "pinned", size_bytes)
        self._device = case.device_memory(size_bytes)
        self._patterns = Patterns(case)
        ends = zip(begins, [*begins[1:], size_bytes], strict=True)
        self._pieces = [Piece(self._device + begin, end - begin) for begin, end in ends]
        self._readers = Readers(case, self._pieces) if kernel_ns else None
        self.submit: Submit = Program(list(self._calls(streams, case.cycles(kernel_ns // chunks))))

    def _calls(self, streams: int, cycles: int) -> Iterator[CallRow]:
        for index, piece in enumerate(self._pieces):
            stream = index % streams
            source = self._host.address + piece.address - self._device
            yield CallRow.of(copy("h2d", piece.address, source, piece.size_bytes, self._case.stream(stream)))
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
        self._readers.check()
        return "every byte compared on the GPU, and each kernel had seen its own piece whole"


def cut(size_bytes: int, chunks: int) -> list[int]:
    """Where each of ``chunks`` pieces begins: evenly in units of 16 bytes, the odd bytes go with the last piece."""
    units = size_bytes // UNIT_BYTES
    if not 1 <= chunks <= units:
        raise MeasurementError(f"{size_bytes} bytes cannot be cut into {chunks} pieces of {UNIT_BYTES} bytes or more")
    return [index * units // chunks * UNIT_BYTES for index in range(chunks)]


LOAD_BYTES = 64 << 20
# Reading the facts takes some 20 ms, the first time longer; a link that has come up slow must not take minutes.
LOAD_S = 0.3
MOST_COPIES = 400
NOT_READY = 600  # CUDA_ERROR_NOT_READY


def state(case: Case, info: GpuInfo, nvml: NvmlGpu) -> tuple[Fact, ...]:
    before = link_counters(info.pci_bus_id, nvml.query)
    others: list[tuple[int, str]] = []  # CUDA index and PCI bus id of every other GPU that this process sees
    for index in range(int(check(driver.cuDeviceGetCount()))):
        device = check(driver.cuDeviceGet(index))
        if device_uuid(device) != info.uuid:
            others.append((index, check(driver.cuDeviceGetPCIBusId(32, device)).split(b"\0")[0].decode()))
    loads = []  # both before the first copy: an allocation waits until the GPU is idle
    for index, direction in enumerate(DIRECTIONS):
        ends = Ends(case, HostBuffer(case, "pinned", LOAD_BYTES), LOAD_BYTES, to_device=direction == "h2d")
        loads.append(copy_submit(ends, direction, case.stream(index)))
    copy_ns: IntArray = np.zeros(2, dtype=np.int64)
    loads[0].round_trips(copy_ns)
    copies = min(max(round(LOAD_S / (int(copy_ns[-1]) * NANOSECOND_S)), 2), MOST_COPIES)
    for load in loads:
        load(copies)
    facts = link_facts_now(info, nvml.query, others)
    busy = all(int(driver.cuStreamQuery(load.stream)[0]) == NOT_READY for load in loads)
    case.synchronize()
    risen = counters_risen(before, link_counters(info.pci_bus_id, nvml.query))
    loaded = Fact("read_under_load", busy, "copies both ways were still running when all was read")
    return (*facts, *path_facts(info.pci_bus_id, facts, others), loaded, *before, *risen)
