"""Matrix products as a CuPy user writes them: cupy.matmul."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from microbench.errors import Skip
from microbench.gpu.compute.gemm_types import Matrices, matrix_bytes
from microbench.gpu.compute.library_gemm import Call
from microbench.gpu.compute_api import GemmType
from microbench.gpu.graphs.base import Case
from microbench.gpu.layers import cupy_shared

# CuPy has cuBLAS add fp16 up in fp32.
NUMPY_TYPES: dict[GemmType, npt.DTypeLike] = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}
TF32_VARIABLE = "CUPY_TF32"
REFUSED: dict[GemmType, str] = {
    "tf32": "CuPy multiplies in tf32 only where the environment variable CUPY_TF32 is set, and then always",
    "fp16_acc16": "cupy.matmul of fp16 adds up in fp32",
    "int8": "cupy.matmul of 8-bit integers gives 8-bit integers, which wrap around",
}


def cupy_calls(case: Case, matrices: Matrices) -> tuple[Call, ...]:
    """``cupy.matmul(A, B.T, out=D)`` for each copy of B; CuPy's current stream is the case's stream 0 until it ends.

    Raises Skip where CuPy is missing or does not multiply the type.
    """
    if matrices.dtype not in NUMPY_TYPES:
        raise Skip(REFUSED.get(matrices.dtype, f"CuPy has no {matrices.dtype}"))
    if matrices.dtype == "fp32" and os.environ.get(TF32_VARIABLE) == "1":
        raise Skip(f"{TF32_VARIABLE} is set: CuPy then multiplies fp32 in tf32")
    cupy = cupy_shared.load_cupy()
    device_index = int(case.context.device)
    case.context.own(cupy.get_default_memory_pool().free_all_blocks)
    case.context.own(cupy_shared.use_stream(cupy, case.stream(0), device_index))

    def viewed(address: int, rows: int, columns: int) -> Any:
        size_bytes = matrix_bytes(matrices.elements.d, rows, columns)
        memory = cupy.cuda.UnownedMemory(address, size_bytes, matrices, device_index)
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        return cupy.ndarray((rows, columns), NUMPY_TYPES[matrices.dtype], pointer)

    a = viewed(matrices.a, matrices.rows, matrices.depth)
    d = viewed(matrices.d, matrices.rows, matrices.columns)
    return tuple(
        partial(cupy.matmul, a, viewed(copy, matrices.columns, matrices.depth).T, out=d) for copy in matrices.b
    )
