"""Reads kernel durations as profilers report them: CUPTI's kernel records of this process, through ctypes."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray
from microbench.gpu.protocol.gpu import Recorded

# CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: records of kernels that do not keep others from running at the same time.
KERNEL_RECORD = 10
# Where a kernel record has its begin and end, in ns: CUpti_ActivityKernel4 to 10 (cupti_activity.h, CUDA 9 to 13).
BEGIN_AT, END_AT = 16, 24
BUFFER_BYTES = 1 << 20
ANOTHER_PROFILER = 39  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
NAMES = ("libcupti.so.13", "libcupti.so.12")
# Where the packages of PyTorch and the toolkit have the library.
PACKAGE_FOLDERS = ("nvidia/cu13/lib", "nvidia/cuda_cupti/lib")
TOOLKIT_FOLDERS = ("extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")

BufferRequested = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
BufferCompleted = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


def cupti_library() -> Path | None:
    """The CUPTI library that PyTorch would load, else the toolkit's; None if neither is installed."""
    toolkits = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")), *sorted(Path("/usr/local").glob("cuda-*"))]
    folders = [Path(entry) / folder for folder in PACKAGE_FOLDERS for entry in sys.path]
    folders += [toolkit / folder for toolkit in toolkits for folder in TOOLKIT_FOLDERS]
    return next((folder / name for folder in folders for name in NAMES if (folder / name).is_file()), None)


class KernelRecords:
    """CUPTI's kernel records. A process has one of these; it records only inside ``recording``.

    Raises Skip without CUPTI, and where another profiler is attached to the process.
    """

    def __init__(self) -> None:
        library = cupti_library()
        if library is None:
            raise Skip("needs CUPTI, which comes with PyTorch and with the CUDA toolkit: pip install nvidia-cuda-cupti")
        try:
            self._cupti: Any = ctypes.CDLL(str(library), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        except OSError as error:
            raise Skip(f"CUPTI cannot be loaded: {error}") from error
        self._buffers: dict[int, Any] = {}
        self._records_ns: list[tuple[int, int]] = []  # begin and duration
        # CUPTI keeps the addresses of both callbacks, so the objects must live as long as this one.
        self._callbacks = BufferRequested(self._requested), BufferCompleted(self._completed)
        self._check("cuptiActivityRegisterCallbacks", self._cupti.cuptiActivityRegisterCallbacks(*self._callbacks))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record kernels. They must end before the block does."""
        self._records_ns.clear()
        self._check("cuptiActivityEnable", self._cupti.cuptiActivityEnable(KERNEL_RECORD))
        try:
            yield
        finally:
            self._cupti.cuptiActivityFlushAll(1)
            self._cupti.cuptiActivityDisable(KERNEL_RECORD)

    def recorded(self, run: Callable[[], object]) -> Recorded:
        return Recorded(kernels=len(self.durations_ns(run)))

    def durations_ns(self, run: Callable[[], object]) -> IntArray:
        """Duration of every kernel that ``run`` submits and waits for, in order of their begin.

        Raises MeasurementError if CUPTI has lost records.
        """
        with self.recording():
            run()
        lost = ctypes.c_size_t()
        self._cupti.cuptiActivityGetNumDroppedRecords(None, 0, ctypes.byref(lost))
        if lost.value:
            raise MeasurementError(f"CUPTI lost {lost.value} kernel records")
        return np.array([duration_ns for _, duration_ns in sorted(self._records_ns)], dtype=np.int64)

    def _requested(self, buffer: Any, size: Any, most: Any) -> None:
        memory = ctypes.create_string_buffer(BUFFER_BYTES)
        address = ctypes.addressof(memory)
        self._buffers[address] = memory
        buffer[0], size[0], most[0] = address, BUFFER_BYTES, 0

    def _completed(self, context: int, stream: int, buffer: int, size: int, valid_bytes: int) -> None:
        record = ctypes.c_void_p()
        while valid_bytes and not self._cupti.cuptiActivityGetNextRecord(
            ctypes.c_void_p(buffer), ctypes.c_size_t(valid_bytes), ctypes.byref(record)
        ):
            address = record.value or 0
            if ctypes.c_uint32.from_address(address).value == KERNEL_RECORD:
                begin_ns, end_ns = (ctypes.c_uint64.from_address(address + at).value for at in (BEGIN_AT, END_AT))
                self._records_ns.append((begin_ns, end_ns - begin_ns))
        self._buffers.pop(buffer, None)

    def _check(self, what: str, status: int) -> None:
        if status == ANOTHER_PROFILER:
            raise Skip("another profiler is attached to this process, and CUPTI serves one at a time")
        if status:
            words = ctypes.c_char_p()
            self._cupti.cuptiGetResultString(status, ctypes.byref(words))
            raise Skip(f"CUPTI does not record here: {what}: {(words.value or b'').decode()} ({status})")
