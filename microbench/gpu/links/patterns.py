"""Patterns that depend on their place, made and checked by the GPU: what proves that data have moved."""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver

from microbench.errors import MeasurementError
from microbench.gpu.context import Context, check
from microbench.gpu.modules import Modules
from microbench.gpu.submit import Parameters, launch
from microbench.ops import LEGACY_STREAM, Launch

BLOCK_THREADS = 256
MOST_BLOCKS = 2048
BYTES_PER_THREAD = 16
NOTHING_WRONG = (1 << 64) - 1
POISON_FLIP = 0xFFFFFFFF
LEGACY_STREAM_HANDLE = 1  # CU_STREAM_LEGACY: what the checks run in, whatever the case does with its streams


class Patterns:
    """Fills and checks memory that the GPU of ``context`` can reach. Each call waits until it is done."""

    def __init__(self, context: Context, modules: Modules) -> None:
        self._context = context
        self._modules = modules
        self._first_wrong = context.device_memory(8)

    def fill(self, address: int, size_bytes: int, seed: int) -> None:
        """Word i becomes a hash of i and ``seed``."""
        self._run("fill", size_bytes, (address, size_bytes, seed, 0))

    def poison(self, address: int, size_bytes: int, seed: int) -> None:
        """Every byte becomes another one than ``fill`` with that seed would write."""
        self._run("fill", size_bytes, (address, size_bytes, seed, POISON_FLIP))

    def verify(self, address: int, size_bytes: int, seed: int, what: str) -> None:
        """Raise MeasurementError, saying where in ``what``, unless memory holds what ``fill`` writes."""
        self._compare("differ", size_bytes, (address, size_bytes, seed), what)

    def verify_rows(self, address: int, size_bytes: int, seed: int, width_bytes: int, pitch_bytes: int) -> None:
        """As ``verify``, for what begins each row of ``pitch_bytes``; what is left of a row is ``poison``'s still."""
        self._compare("differ_rows", size_bytes, (address, size_bytes, seed, width_bytes, pitch_bytes), "rows")

    def verify_bytes(self, address: int, size_bytes: int, value: int) -> None:
        """As ``verify``, for bytes that are all the same."""
        self._compare("differ_bytes", size_bytes, (address, size_bytes, value), "bytes that were set")

    def _compare(self, kernel: str, size_bytes: int, arguments: tuple[int, ...], what: str) -> None:
        start = np.array([NOTHING_WRONG], dtype=np.uint64)
        check(driver.cuMemcpyHtoD(self._first_wrong, start.ctypes.data, start.nbytes))
        self._run(kernel, size_bytes, (*arguments, self._first_wrong))
        wrong = int(self._context.read(self._first_wrong, 1, np.uint64)[0])
        if wrong != NOTHING_WRONG:
            raise MeasurementError(f"{what}: byte {wrong} of {size_bytes} is not the one that was sent")

    def _run(self, kernel: str, size_bytes: int, arguments: tuple[int, ...]) -> None:
        blocks = -(-size_bytes // (BLOCK_THREADS * BYTES_PER_THREAD))
        shape = Launch(grid_blocks=min(max(blocks, 1), MOST_BLOCKS), block_threads=BLOCK_THREADS, stream=LEGACY_STREAM)
        function = self._modules.function("link", kernel)
        launch(function, shape, LEGACY_STREAM_HANDLE, Parameters([arguments]))(1)
        self._context.synchronize()
