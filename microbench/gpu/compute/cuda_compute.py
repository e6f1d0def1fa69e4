"""Tensor cores and ALUs of a real GPU: see compute_api.py for what each method promises."""

from __future__ import annotations

from cuda.bindings import driver

from microbench.errors import Skip
from microbench.gpu.compute import alu
from microbench.gpu.compute.bracket import Bracket
from microbench.gpu.compute.cublaslt import WORKSPACE_BYTES
from microbench.gpu.compute.gemm_types import ELEMENTS, matrix_bytes, product_bytes
from microbench.gpu.compute.operands import Operands, vector_bytes
from microbench.gpu.compute.problem import CudaProblem
from microbench.gpu.compute.tensor import tensor
from microbench.gpu.compute_api import (
    AluOperation,
    Chain,
    ClockBracket,
    GemmData,
    GemmType,
    Problem,
    Resident,
    TensorPath,
    TensorType,
)
from microbench.gpu.context import check
from microbench.gpu.graphs.base import Case
from microbench.gpu.nvml import NvmlGpu
from microbench.model import GpuInfo, Telemetry
from microbench.units import about_size, size

# What a library's own memory and the code of its kernels may take.
RESERVE_BYTES = 256 << 20
# Copies of B in turn are several times the L2 together, so none is there when its turn comes again.
BEYOND_L2, MOST_COPIES = 4, 64
UNKNOWN_L2_BYTES = 512 << 20


def copies_beyond(l2_bytes: int | None, copy_bytes: int, free_bytes: int) -> int:
    """How many copies of B are used in turn: as many as BEYOND_L2 asks for and ``free_bytes``, beyond the first one,
    allow; at least 1."""
    wanted = -(-BEYOND_L2 * (l2_bytes or UNKNOWN_L2_BYTES) // copy_bytes)
    return max(1, min(wanted, MOST_COPIES, 1 + max(free_bytes, 0) // copy_bytes))


class CudaCompute:
    """Tensor cores and ALUs of one GPU for one case."""

    def __init__(self, case: Case, info: GpuInfo, nvml: NvmlGpu) -> None:
        self._case, self._info, self._nvml = case, info, nvml

    def problem(
        self,
        dtype: GemmType,
        rows: int,
        columns: int,
        depth: int,
        data: GemmData = "normal",
        *,
        beyond_l2: bool = False,
    ) -> Problem:
        """See Compute."""
        needed_bytes, free_bytes = self.needed_bytes(dtype, rows, columns, depth), self.free_bytes()
        if needed_bytes > free_bytes:
            raise Skip(
                f"{size(needed_bytes)} of device memory asked for {dtype} of {rows} x {columns} x {depth}, "
                f"{about_size(free_bytes)} are free"
            )
        copies = 1
        if beyond_l2:
            copy_bytes = matrix_bytes(ELEMENTS[dtype].b, columns, depth)
            copies = copies_beyond(self._info.l2_bytes, copy_bytes, free_bytes - needed_bytes)
        return CudaProblem(self._case, Operands(self._case, dtype, rows, columns, depth, data, copies))

    def needed_bytes(self, dtype: GemmType, rows: int, columns: int, depth: int) -> int:
        """See Compute. With what comparing the result takes."""
        return product_bytes(dtype, rows, columns, depth) + vector_bytes(rows, columns, depth) + WORKSPACE_BYTES

    def free_bytes(self) -> int:
        """See Compute: less a reserve for what libraries take for themselves."""
        free_bytes, _ = check(driver.cuMemGetInfo())
        return max(int(free_bytes) - RESERVE_BYTES, 0)

    def bracket(self) -> ClockBracket:
        """See Compute."""
        return Bracket(self._case, self._case.context.attribute("MULTIPROCESSOR_COUNT"))

    def state(self) -> Telemetry:
        """See Compute."""
        return self._nvml.telemetry()

    def tensor(self, path: TensorPath, dtype: TensorType) -> Resident:
        """See Compute."""
        return tensor(self._case, path, dtype)

    def arithmetic(self, operation: AluOperation) -> Resident:
        """See Compute."""
        return alu.arithmetic(self._case, operation)

    def chain(self, operation: AluOperation) -> Chain:
        """See Compute."""
        return alu.chain(self._case, operation)
