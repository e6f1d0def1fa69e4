"""The GPU resources of one case: streams, events, memory, kernels. They are released when the case ends."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact, GpuInfo
from microbench.core.ops import HIGH_PRIORITY_STREAM, LEGACY_STREAM, LayerCall
from microbench.core.units import about_size, size
from microbench.gpu.cuda import driver
from microbench.gpu.cuda.context import STREAM_NON_BLOCKING, Context, check
from microbench.gpu.layers import base
from microbench.gpu.machine.nvml import NvmlGpu, held_by
from microbench.gpu.protocol.gpu import Submit, require_capability, require_driver
from microbench.host.affinity import Cores

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LEGACY_STREAM_HANDLE = 1  # CU_STREAM_LEGACY
HOST_PORTABLE_MAPPED = 3
KEEP_ALL = (1 << 64) - 1
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class Board(NamedTuple):
    """The GPU under test as a board of this machine: its facts, its NVML handle, and the host's cores near it."""

    info: GpuInfo
    nvml: NvmlGpu
    cores: Cores


class BoundLayer(NamedTuple):
    """A layer's call, the number of kernels that it submits, and its handle (None for the compiled loop)."""

    submit: Submit
    kernels: Fact
    handle: base.LayerHandle | None


class Case:
    """One case on one GPU. Whatever its methods return is released by ``end``, in reverse order.

    ``clock_hz`` is the SM clock that converts the lengths of spin kernels to cycles. A case on a second GPU, and the
    one of a second process, have no ``board``. ``layers`` are the Python layers that are bound in this case.
    """

    def __init__(self, context: Context, clock_hz: float = 0.0, board: Board | None = None) -> None:
        self.context = context
        self.clock_hz = clock_hz
        self._board = board
        self.layers: dict[LayerCall, BoundLayer] = {}
        self._owned = ExitStack()
        self._streams: dict[int, int] = {}
        self._made: dict[Any, Any] = {}
        self._taken_bytes = 0

    def end(self) -> None:
        """Wait until the GPU is idle, then release everything."""
        try:
            self.synchronize()
        finally:
            self._owned.close()
            self._made.clear()

    def own(self, release: Callable[[], object]) -> None:
        """Call ``release`` when the case ends."""
        self._owned.callback(release)

    def once(
        self, make: Callable[Concatenate[Case, Arguments], Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """``make(case, ...)``, called once per case for the same arguments."""
        key = (make, args, *kwargs.items())
        if key not in self._made:
            self._made[key] = make(self, *args, **kwargs)
        return cast(Result, self._made[key])

    @property
    def board(self) -> Board:
        """The GPU under test as a board of this machine. Raises MeasurementError for a case on another GPU."""
        if self._board is None:
            raise MeasurementError("this case is not on the GPU under test")
        return self._board

    @property
    def sms(self) -> int:
        return self.context.attribute("MULTIPROCESSOR_COUNT")

    def synchronize(self) -> None:
        """Wait until the GPU is idle. Raises MeasurementError for an error of earlier work."""
        self.context.synchronize()

    def cycles(self, duration_ns: int) -> int:
        return round(duration_ns * self.clock_hz * 1e-9)

    def function(self, name: str, kernel: str, **defines: int) -> int:
        """CUfunction of a kernel of kernels/NAME.cu."""
        return self.context.kernels.function(name, kernel, **defines)

    def require_driver(self, version: int, what: str) -> None:
        """Raise Skip for a driver older than ``version`` (as cuDriverGetVersion counts: 12040 is CUDA 12.4)."""
        require_driver(int(check(driver.cuDriverGetVersion())), version, what)

    def require_capability(self, major: int, minor: int, what: str) -> None:
        """Raise Skip for a GPU with a lower compute capability."""
        require_capability(self.context.capability, major, minor, what)

    def stream(self, index: int) -> int:
        """CUstream of a stream index: LEGACY_STREAM, the context's main stream (0), or a stream of this case.

        The case's streams are non-blocking and are created on first use; all but HIGH_PRIORITY_STREAM have the default
        priority, which is the lowest. Raises Skip for HIGH_PRIORITY_STREAM on a GPU without priorities.
        """
        if index == LEGACY_STREAM:
            return LEGACY_STREAM_HANDLE
        if index == 0:
            return self.context.main_stream
        if index not in self._streams:
            if index == HIGH_PRIORITY_STREAM:
                lowest, highest = check(driver.cuCtxGetStreamPriorityRange())
                if lowest == highest:
                    raise Skip("this GPU has no stream priorities")
                stream = check(driver.cuStreamCreateWithPriority(STREAM_NON_BLOCKING, highest))
            else:
                stream = check(driver.cuStreamCreate(STREAM_NON_BLOCKING))
            self.own(lambda: driver.cuStreamDestroy(stream))
            self._streams[index] = int(stream)
        return self._streams[index]

    def adopt(self, handle: int) -> int:
        """The stream index of a CUstream that this case did not create."""
        index = max((0, *self._streams)) + 1
        self._streams[index] = handle
        return index

    def event(self, *, timed: bool, blocking: bool = False) -> int:
        flags = (0 if timed else 2) | (1 if blocking else 0)
        event = check(driver.cuEventCreate(flags))
        self.own(lambda: driver.cuEventDestroy(event))
        return int(event)

    def pinned(self, count: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        """Zeroed pinned host memory, mapped into the GPU's address space at the same address."""
        size_bytes = count * np.dtype(dtype).itemsize
        pointer = int(check(driver.cuMemHostAlloc(size_bytes, HOST_PORTABLE_MAPPED)))
        self.own(lambda: driver.cuMemFreeHost(pointer))
        array: npt.NDArray[Any] = np.frombuffer((ctypes.c_char * size_bytes).from_address(pointer), dtype=dtype)
        array[:] = 0
        return array

    def device_memory(self, size_bytes: int) -> int:
        """Address of zeroed device memory. Raises Skip if that much is not free."""
        code, address = driver.cuMemAlloc(size_bytes)
        self.require_room(int(code), size_bytes)
        pointer = int(check((code, address)))
        self.own(lambda: driver.cuMemFree(pointer))
        self._taken_bytes += size_bytes
        self.clear(pointer, size_bytes)  # on the legacy stream, which nothing else here waits for
        return pointer

    def array(self, values: npt.NDArray[Any]) -> int:
        """Address of device memory that holds a copy of the array."""
        address = self.device_memory(values.nbytes)
        self.upload(address, values)
        return address

    def require_room(self, code: int, size_bytes: int) -> None:
        """Raise Skip if ``code`` is OUT_OF_MEMORY; the reason gives the bytes asked for, those free, and the holders.

        "This case" counts what ``device_memory`` has returned, not the context's own memory.
        """
        if code == OUT_OF_MEMORY:
            free_bytes, total_bytes = (int(count) for count in check(driver.cuMemGetInfo()))
            others = held_by(self._board.nvml) if self._board else "others not known"
            raise Skip(
                f"{size(size_bytes)} of device memory asked, {about_size(free_bytes)} are free on the GPU of "
                f"{about_size(total_bytes)}; held by: this case {about_size(self._taken_bytes)}, {others}"
            )

    def upload(self, address: int, values: npt.NDArray[Any]) -> None:
        """Copy an array to device memory and wait for it."""
        check(driver.cuMemcpyHtoD(address, values.ctypes.data, values.nbytes))

    def read(self, pointer: int, count: int, dtype: Any) -> npt.NDArray[Any]:
        """Copy ``count`` elements of device memory to the host and wait for them."""
        array = np.empty(count, dtype=dtype)
        check(driver.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))
        return array

    def clear(self, pointer: int, size_bytes: int) -> None:
        """Zero device memory and wait for it."""
        check(driver.cuMemsetD8(pointer, 0, size_bytes))
        self.synchronize()


def memory_pool(context: Context, *, keeps_all: bool) -> Any:
    """A pool of the GPU's memory. When idle it keeps all of its memory or none. The caller destroys it."""
    wanted = driver.CUmemPoolProps()
    wanted.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.handleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = int(context.device)
    pool = check(driver.cuMemPoolCreate(wanted))
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    check(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(KEEP_ALL if keeps_all else 0)))
    return pool
