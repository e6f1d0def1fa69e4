"""The driver's own copies within device memory, plain and in rows, and its memset; what they left is compared."""

from __future__ import annotations

from cuda.bindings import driver

from microbench.gpu.bound import Submit
from microbench.gpu.context import check, entry_point
from microbench.gpu.graphs.base import Case
from microbench.gpu.link_api import Transfer
from microbench.gpu.links.patterns import Patterns
from microbench.gpu.memory_api import EngineWay
from microbench.gpu.submit import DriverSubmit

WIDEST_ROW_BYTES = 64 << 10
FEWEST_ROWS = 16
PITCH_IN_WIDTHS = 2
# Odd, so that 256 calls of ``fresh`` go through all values of a byte.
VALUE_STEP = 37


def engine(case: Case, way: EngineWay, size_bytes: int) -> Transfer:
    """See DeviceMemory.engine. ``size_bytes`` are what a call writes.

    Raises Skip where source and destination do not fit.
    """
    if way == "copy":
        return EngineCopy(case, size_bytes)
    if way == "copy_2d":
        return EngineRows(case, size_bytes)
    return EngineMemset(case, size_bytes)


class EngineCopy:
    """See Transfer: cuMemcpyDtoDAsync of a whole buffer, which counts as read and as written."""

    blocks = False

    def __init__(self, case: Case, size_bytes: int) -> None:
        self.size_bytes = 2 * size_bytes
        self._written_bytes = size_bytes
        self._patterns = Patterns(case.context, case.modules)
        self._source = case.context.device_memory(size_bytes)
        self._destination = case.context.device_memory(size_bytes)
        self._seed = 0
        stream = case.stream(0)
        arguments = [self._destination, self._source, size_bytes, stream]
        self.submit: Submit = DriverSubmit(
            "cuMemcpyDtoDAsync", entry_point("cuMemcpyDtoDAsync"), arguments, stream=stream
        )

    def fresh(self) -> None:
        """See Transfer."""
        self._seed += 1
        self._patterns.fill(self._source, self._written_bytes, self._seed)
        self._patterns.poison(self._destination, self._written_bytes, self._seed)

    def check(self) -> str:
        """See Transfer."""
        self._patterns.verify(self._destination, self._written_bytes, self._seed, "device memory")
        return "every byte compared on the GPU"


class EngineRows:
    """See Transfer: cuMemcpy2DAsync of rows that are half their pitch on both sides; the other halves must stay.

    Read and written count, what lies between rows does not.
    """

    blocks = False

    def __init__(self, case: Case, size_bytes: int) -> None:
        self.size_bytes = 2 * size_bytes
        self._width_bytes = row_width_bytes(size_bytes)
        self._pitch_bytes = PITCH_IN_WIDTHS * self._width_bytes
        self._spread_bytes = PITCH_IN_WIDTHS * size_bytes
        self._patterns = Patterns(case.context, case.modules)
        self._source = case.context.device_memory(self._spread_bytes)
        self._destination = case.context.device_memory(self._spread_bytes)
        self._seed = 0
        rows = rows_of(self._source, self._destination, self._width_bytes, self._pitch_bytes, size_bytes)
        stream = case.stream(0)
        self.submit: Submit = DriverSubmit(
            "cuMemcpy2DAsync",
            entry_point("cuMemcpy2DAsync"),
            [int(rows.getPtr()), stream],
            stream=stream,
            keep=(rows,),
        )

    def fresh(self) -> None:
        """See Transfer. The pattern goes on between the rows: a copy that is too wide is noticed."""
        self._seed += 1
        self._patterns.fill(self._source, self._spread_bytes, self._seed)
        self._patterns.poison(self._destination, self._spread_bytes, self._seed)

    def check(self) -> str:
        """See Transfer."""
        self._patterns.verify_rows(
            self._destination, self._spread_bytes, self._seed, self._width_bytes, self._pitch_bytes
        )
        return "every byte of the rows and between them compared on the GPU"


class EngineMemset:
    """See Transfer: cuMemsetD8Async, which is what cudaMemsetAsync is; counts as written alone."""

    blocks = False

    def __init__(self, case: Case, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._context = case.context
        self._patterns = Patterns(case.context, case.modules)
        self._destination = case.context.device_memory(size_bytes)
        self._value = 0
        stream = case.stream(0)
        arguments = [self._destination, self._value, size_bytes, stream]
        self._memset = DriverSubmit("cuMemsetD8Async", entry_point("cuMemsetD8Async"), arguments, stream=stream)
        self.submit: Submit = self._memset

    def fresh(self) -> None:
        """See Transfer. A new value for the calls that follow, its complement in every byte of the destination."""
        self._value = (self._value + VALUE_STEP) % 256
        self._memset.arguments[1] = self._value
        check(driver.cuMemsetD8(self._destination, self._value ^ 0xFF, self.size_bytes))
        self._context.synchronize()

    def check(self) -> str:
        """See Transfer."""
        self._patterns.verify_bytes(self._destination, self.size_bytes, self._value)
        return "every byte compared on the GPU"


def row_width_bytes(size_bytes: int) -> int:
    """The widest row, a power of two, that divides the whole and leaves FEWEST_ROWS of them; 1 for an odd size."""
    most_bytes = max(min(size_bytes // FEWEST_ROWS, WIDEST_ROW_BYTES), 1)
    dividing_bytes = size_bytes & -size_bytes
    return min(dividing_bytes, 1 << (most_bytes.bit_length() - 1))


def rows_of(source: int, destination: int, width_bytes: int, pitch_bytes: int, size_bytes: int) -> driver.CUDA_MEMCPY2D:
    """What cuMemcpy2DAsync is told: ``size_bytes`` in rows of ``width_bytes``, from one buffer to another like it."""
    rows = driver.CUDA_MEMCPY2D()
    rows.srcMemoryType = rows.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    rows.srcDevice = driver.CUdeviceptr(source)
    rows.dstDevice = driver.CUdeviceptr(destination)
    rows.srcPitch = rows.dstPitch = pitch_bytes
    rows.WidthInBytes = width_bytes
    rows.Height = size_bytes // width_bytes
    return rows
