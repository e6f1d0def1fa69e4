"""The driver's own copies within device memory, plain and in rows, and its memset."""

from __future__ import annotations

from microbench.gpu.cuda import driver
from microbench.gpu.cuda.buffers import Patterns
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.submit import DriverSubmit
from microbench.gpu.protocol.memory import EngineWay
from microbench.gpu.protocol.submit import Submit
from microbench.gpu.protocol.transfer import Transfer

WIDEST_ROW_BYTES = 64 << 10
FEWEST_ROWS = 16
PITCH_IN_WIDTHS = 2
# Odd, so that 256 calls of ``fresh`` go through all values of a byte.
VALUE_STEP = 37


def engine(case: Case, way: EngineWay, size_bytes: int) -> Transfer:
    """A call writes ``size_bytes``. Raises Skip if source and destination do not fit."""
    match way:
        case "copy":
            return EngineCopy(case, size_bytes)
        case "copy_2d":
            return EngineRows(case, size_bytes)
        case "memset":
            return EngineMemset(case, size_bytes)


class _Copied:
    """A source and a destination of ``buffer_bytes``; a call reads and writes ``size_bytes`` of them."""

    blocks = False
    submit: Submit

    def __init__(self, case: Case, size_bytes: int, buffer_bytes: int) -> None:
        self.size_bytes = 2 * size_bytes
        self._buffer_bytes = buffer_bytes
        self._patterns = Patterns(case)
        self._source = case.device_memory(buffer_bytes)
        self._destination = case.device_memory(buffer_bytes)
        self._seed = 0

    def fresh(self) -> None:
        self._seed += 1
        self._patterns.fill(self._source, self._buffer_bytes, self._seed)
        self._patterns.poison(self._destination, self._buffer_bytes, self._seed)


class EngineCopy(_Copied):
    """A Transfer by cuMemcpyDtoDAsync of a whole buffer, which counts as read and as written."""

    def __init__(self, case: Case, size_bytes: int) -> None:
        super().__init__(case, size_bytes, size_bytes)
        stream = case.stream(0)
        arguments = [self._destination, self._source, size_bytes, stream]
        self.submit = DriverSubmit("cuMemcpyDtoDAsync", arguments, stream=stream)

    def check(self) -> str:
        self._patterns.verify(self._destination, self._buffer_bytes, self._seed, "device memory")
        return "every byte compared on the GPU"


class EngineRows(_Copied):
    """A Transfer by cuMemcpy2DAsync of rows that are half their pitch on both sides.

    Only the rows count. The bytes between them must not change, so a copy that is too wide is noticed.
    """

    def __init__(self, case: Case, size_bytes: int) -> None:
        super().__init__(case, size_bytes, PITCH_IN_WIDTHS * size_bytes)
        self._width_bytes = row_width_bytes(size_bytes)
        self._pitch_bytes = PITCH_IN_WIDTHS * self._width_bytes
        rows = driver.CUDA_MEMCPY2D()
        rows.srcMemoryType = rows.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        rows.srcDevice = driver.CUdeviceptr(self._source)
        rows.dstDevice = driver.CUdeviceptr(self._destination)
        rows.srcPitch = rows.dstPitch = self._pitch_bytes
        rows.WidthInBytes = self._width_bytes
        rows.Height = size_bytes // self._width_bytes
        stream = case.stream(0)
        arguments = [int(rows.getPtr()), stream]
        self.submit = DriverSubmit("cuMemcpy2DAsync", arguments, stream=stream, keep=(rows,))

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
