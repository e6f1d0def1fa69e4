"""One matrix product of a real GPU: its operands, and the libraries that multiply them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from microbench.errors import MeasurementError
from microbench.gpu.compute.cublaslt import CublasLt
from microbench.gpu.compute.cupy_gemm import cupy_calls
from microbench.gpu.compute.gemm_types import product_bytes
from microbench.gpu.compute.library_gemm import Call, LibraryGemm
from microbench.gpu.compute.operands import Operands
from microbench.gpu.compute_api import Library
from microbench.gpu.graphs.base import Case
from microbench.gpu.layers.torch_gemm import function_name, torch_calls


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
        """See Problem."""
        match library:
            case "cublaslt":
                return self.cublaslt.ways
            case "cupy":
                return ("cupy.matmul",) if self._cupy_calls else ()
            case "torch":
                return (function_name(self.operands.matrices.dtype),) if self._torch_calls else ()

    def gemm(self, library: Library, way: str) -> LibraryGemm:
        """See Problem. Raises MeasurementError for a way that is not one of ``ways``."""
        if way not in self.ways(library):
            raise MeasurementError(f"{library} has no way {way!r} here: {', '.join(self.ways(library))}")
        calls = {
            "cublaslt": lambda: self.cublaslt.calls(way),
            "cupy": lambda: self._cupy_calls,
            "torch": lambda: self._torch_calls,
        }[library]()
        refusals = self.cublaslt.refusals if library == "cublaslt" else ()
        return LibraryGemm(self._case, self.operands, calls, keep=self, refusals=refusals)
