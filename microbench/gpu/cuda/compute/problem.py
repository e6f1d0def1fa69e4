"""One matrix product of a real GPU: its operands, and the libraries that multiply them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError
from microbench.core.ops import Launch
from microbench.gpu.cuda.case import NANOSECOND_S, Case, alone_on_its_sm
from microbench.gpu.cuda.compute.operands import Operands
from microbench.gpu.cuda.compute.products import Call, CublasLt, LibraryGemm, cupy_calls
from microbench.gpu.cuda.compute.types import product_bytes
from microbench.gpu.cuda.submit import DriverSubmit, Parameters, launch
from microbench.gpu.layers.torch_gemm import function_name, torch_calls
from microbench.gpu.protocol.compute import Library

# The mean SM clock of what runs between two tiny kernels, each SM reading its own counter.


# Tick of kernels/clock_bracket.cu.
TICKS = np.dtype([("clock", "u8"), ("time_ns", "u8"), ("sm", "u4"), ("unused", "u4")])
Ticks = npt.NDArray[Any]


class Bracket:
    """After one call of each, ``begin`` and ``end`` only launch."""

    def __init__(self, case: Case, sm_count: int) -> None:
        self._context, self._blocks = case.context, sm_count
        function = case.modules.function("clock_bracket", "tick")
        shared_bytes = alone_on_its_sm(case, function)
        self._ticks = [case.context.device_memory(TICKS.itemsize * sm_count) for _ in range(2)]
        # One warp an SM; the shared memory keeps further ones off.
        shape = Launch(grid_blocks=sm_count, block_threads=32)
        self._begin, self._end = (self._launch(case, function, shape, ticks, shared_bytes) for ticks in self._ticks)

    @staticmethod
    def _launch(case: Case, function: int, shape: Launch, ticks: int, shared_bytes: int) -> DriverSubmit:
        return launch(function, shape, case.stream(0), Parameters([(ticks,)]), shared_bytes=shared_bytes)

    def begin(self) -> None:
        self._begin(1)

    def end(self) -> None:
        self._end(1)

    def hz(self) -> float:
        """SMs that only one of the kernels saw do not count."""
        first, last = (self._context.read(ticks, self._blocks, TICKS) for ticks in self._ticks)
        return clock_hz(first, last)


def clock_hz(first: Ticks, last: Ticks) -> float:
    """Median over the SMs in both of clock cycles over time. Raises MeasurementError where no time passed on any."""
    _, here, there = np.intersect1d(first["sm"], last["sm"], return_indices=True)
    elapsed_ns = last["time_ns"][there].astype(np.int64) - first["time_ns"][here].astype(np.int64)
    cycles = last["clock"][there].astype(np.int64) - first["clock"][here].astype(np.int64)
    ran = elapsed_ns > 0
    if not ran.any():
        raise MeasurementError("the clock kernels before and after the work have no SM and no time in common")
    return float(np.median(cycles[ran] / elapsed_ns[ran])) / NANOSECOND_S


class CudaProblem:
    """See Problem of compute_api.py."""

    def __init__(self, case: Case, operands: Operands) -> None:
        self._case = case
        self.operands = operands
        matrices = operands.matrices
        self.dtype = matrices.dtype
        self.rows, self.columns, self.depth = matrices.rows, matrices.columns, matrices.depth
        self.operations = 2 * self.rows * self.columns * self.depth
        self.size_bytes = product_bytes(matrices.dtype, self.rows, self.columns, self.depth)

    @cached_property
    def cublaslt(self) -> CublasLt:
        """cuBLASLt's candidates. Raises Skip where it has none."""
        return CublasLt(self._case, self.operands.matrices)

    @cached_property
    def _cupy_calls(self) -> tuple[Call, ...]:
        return cupy_calls(self._case, self.operands.matrices)

    @cached_property
    def _torch_calls(self) -> tuple[Call, ...]:
        context = self._case.context
        return torch_calls(self._case.stream(0), int(context.device), self.operands.matrices, context.own)

    def ways(self, library: Library) -> Sequence[str]:
        match library:
            case "cublaslt":
                return self.cublaslt.ways
            case "cupy":
                return ("cupy.matmul",) if self._cupy_calls else ()
            case "torch":
                return (function_name(self.operands.matrices.dtype),) if self._torch_calls else ()

    def gemm(self, library: Library, way: str) -> LibraryGemm:
        """Raises MeasurementError for a way that is not one of ``ways``."""
        if way not in self.ways(library):
            raise MeasurementError(f"{library} has no way {way!r} here: {', '.join(self.ways(library))}")
        calls = {
            "cublaslt": lambda: self.cublaslt.calls(way),
            "cupy": lambda: self._cupy_calls,
            "torch": lambda: self._torch_calls,
        }[library]()
        refusals = self.cublaslt.refusals if library == "cublaslt" else ()
        return LibraryGemm(self._case, self.operands, calls, keep=self, refusals=refusals)
