"""The driver's own copies within device memory, plain and in rows, and its memset."""

from typing import Literal

from microbench.core.ops import Memset
from microbench.gpu.cuda.buffers import Copied, Patterns
from microbench.gpu.cuda.submit import DriverSubmit
from microbench.gpu.experiment import Case, Item, Submit, check, driver, experiment
from microbench.gpu.fake.machine import Call, Machine, call_of
from microbench.gpu.fake.transfers import FakeTransfer
from microbench.gpu.protocol.gpu import Transfer

EngineWay = Literal["copy", "copy_2d", "memset"]

WIDEST_ROW_BYTES = 64 << 10
FEWEST_ROWS = 16
PITCH_IN_WIDTHS = 2
# Odd, so that 256 calls of ``fresh`` go through all values of a byte.
VALUE_STEP = 37


class EngineCopy(Copied):
    """A Transfer by cuMemcpyDtoDAsync of a whole buffer, which counts as read and as written."""

    def __init__(self, case: Case, size_bytes: int) -> None:
        super().__init__(case, case.device_memory(size_bytes), case.device_memory(size_bytes), size_bytes)
        self.size_bytes, stream = 2 * size_bytes, case.stream(0)
        arguments = [self._destination, self._source, size_bytes, stream]
        self.submit: Submit = DriverSubmit("cuMemcpyDtoDAsync", arguments, stream=stream)


class EngineRows(Copied):
    """A Transfer by cuMemcpy2DAsync of rows that are half their pitch on both sides.

    Only the rows count. The bytes between them must not change, so a copy that is too wide is noticed.
    """

    def __init__(self, case: Case, size_bytes: int) -> None:
        source, destination = (case.device_memory(PITCH_IN_WIDTHS * size_bytes) for _ in range(2))
        super().__init__(case, source, destination, PITCH_IN_WIDTHS * size_bytes)
        self.size_bytes = 2 * size_bytes
        self._width_bytes = row_width_bytes(size_bytes)
        self._pitch_bytes = PITCH_IN_WIDTHS * self._width_bytes
        rows = driver.CUDA_MEMCPY2D()
        rows.srcMemoryType = rows.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        rows.srcDevice, rows.dstDevice = driver.CUdeviceptr(source), driver.CUdeviceptr(destination)
        rows.srcPitch = rows.dstPitch = self._pitch_bytes
        rows.WidthInBytes, rows.Height = self._width_bytes, size_bytes // self._width_bytes
        arguments, stream = [int(rows.getPtr()), case.stream(0)], case.stream(0)
        self.submit: Submit = DriverSubmit("cuMemcpy2DAsync", arguments, stream=stream, keep=(rows,))

    def check(self) -> str:
        patterns, destination = self._patterns, self._destination
        patterns.verify_rows(destination, self._buffer_bytes, self._seed, self._width_bytes, self._pitch_bytes)
        return "every byte of the rows and between them compared on the GPU"


class EngineMemset:
    """A Transfer by cuMemsetD8Async, which is what cudaMemsetAsync calls; it counts as written only."""

    blocks = False

    def __init__(self, case: Case, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._case = case
        self._patterns = Patterns(case)
        self._destination = case.device_memory(size_bytes)
        self._value = 0
        stream = case.stream(0)
        self._memset = DriverSubmit("cuMemsetD8Async", [self._destination, 0, size_bytes, stream], stream=stream)
        self.submit: Submit = self._memset

    def fresh(self) -> None:
        """Take a new value for the next calls; fill the destination with its complement."""
        self._value = (self._value + VALUE_STEP) % 256
        self._memset.arguments[1] = self._value
        check(driver.cuMemsetD8(self._destination, self._value ^ 0xFF, self.size_bytes))
        self._case.synchronize()

    def check(self) -> str:
        self._patterns.verify_bytes(self._destination, self.size_bytes, self._value)
        return "every byte compared on the GPU"


def row_width_bytes(size_bytes: int) -> int:
    """The widest row, a power of two, that divides the whole and leaves FEWEST_ROWS of them; 1 for an odd size."""
    most_bytes = max(min(size_bytes // FEWEST_ROWS, WIDEST_ROW_BYTES), 1)
    dividing_bytes = size_bytes & -size_bytes
    return min(dividing_bytes, 1 << (most_bytes.bit_length() - 1))


ENGINES: dict[EngineWay, type[EngineCopy | EngineRows | EngineMemset]] = {
    "copy": EngineCopy, "copy_2d": EngineRows, "memset": EngineMemset,
}  # fmt: skip


def _simulated_engine(machine: Machine, way: EngineWay, size_bytes: int) -> Transfer:
    """The rows of a 2D copy fill half of their pitch, at source and destination."""
    costs = machine.costs
    machine.room.hold((way, size_bytes), {"copy": 2, "copy_2d": 4, "memset": 1}[way] * size_bytes)
    moved_bytes = size_bytes if way == "memset" else 2 * size_bytes
    energy_j = moved_bytes * costs.memory.joules_per_byte
    if way == "memset":
        call = call_of(Memset(size_bytes), costs).with_item(energy_j=energy_j)
    else:
        own = costs.memory.engines[way]
        duration_ns = own.duration_ns + moved_bytes / own.bytes_per_s * 1e9
        call = Call(own.submit_ns, Item(gap_ns=costs.gap_stream_ns, duration_ns=duration_ns, energy_j=energy_j))
    return FakeTransfer(machine, call, moved_bytes)


# A call writes ``size_bytes``. Raises Skip if source and destination do not fit.
engine = experiment(lambda case, way, size_bytes: ENGINES[way](case, size_bytes), _simulated_engine)
