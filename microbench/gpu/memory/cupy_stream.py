"""Streaming kernels as a CuPy user writes them: one library call each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from microbench.errors import Skip
from microbench.gpu.graphs.base import Case
from microbench.gpu.layers import cupy_shared
from microbench.gpu.link_api import Transfer
from microbench.gpu.memory.arrays import ROLES, SCALAR, Arrays
from microbench.gpu.memory.python_stream import NUMPY_TYPES, PythonStream
from microbench.gpu.memory_api import DataType, StreamKernel
from microbench.text import plain

DOT_REFUSED: dict[DataType, str] = {
    "fp16": "cupy.dot of fp16 gives its sum as fp16, whose largest number is 65504",
    "int8": "cupy.dot of 8-bit integers gives its sum as an 8-bit integer, which wraps around",
}


class LastSum:
    """A call whose result is a CuPy array of one element, which is kept: a Sum of python_stream.py."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute = compute
        self._last: Any = None

    def __call__(self) -> None:
        """Make the call; its result takes memory from CuPy's pool, the one before gives its own back."""
        self._last = self._compute()

    def poison(self) -> None:
        """See Sum."""
        self._last = None

    def total(self) -> float | None:
        """See Sum."""
        return None if self._last is None else self._last.item()


def cupy_stream(case: Case, arrays: Arrays, kernel: StreamKernel) -> Transfer:
    """``kernel`` over ``arrays`` by CuPy, whose current stream is the case's stream 0 until the case ends.

    read ``x.sum()`` (of fp16 with ``dtype=float32``: its own type overflows), write ``out.fill(s)``, copy
    ``cupy.copyto(out, x)``, scale ``cupy.multiply(x, s, out=out)``, add ``cupy.add(x, y, out=out)``, dot
    ``cupy.dot(x, y)``; triad is an ElementwiseKernel, as ufuncs take two passes and memory in between. So does
    cupy.dot: its products fill an array from CuPy's pool, which is emptied when the case ends.

    Raises Skip where CuPy is missing, lacks a library or memory, or has no such kernel for the type.
    """
    if kernel == "dot" and arrays.dtype in DOT_REFUSED:
        raise Skip(DOT_REFUSED[arrays.dtype])
    cupy = cupy_shared.load_cupy()
    device_index = int(case.context.device)
    case.context.own(cupy.get_default_memory_pool().free_all_blocks)
    case.context.own(cupy_shared.use_stream(cupy, case.stream(0), device_index))
    roles = ROLES[kernel]
    first, second, out = (_array(cupy, arrays, name, device_index) for name in (roles.first, roles.second, roles.out))
    call = _call(cupy, arrays.dtype, kernel, first, second, out)
    found = LastSum(call) if out is None else None
    try:
        return PythonStream(case, arrays, kernel, found or call, found)
    except MemoryError as error:
        raise Skip(f"CuPy's own memory for {kernel}: {plain(error)}") from error
    except (ImportError, OSError) as error:  # cupy.dot looks for cuBLAS, even where it then does without
        raise Skip(f"CuPy {cupy.__version__} lacks a library for {kernel}: {plain(error)}") from error


def _array(cupy: Any, arrays: Arrays, name: str | None, device_index: int) -> Any:
    """CuPy's view of an array, which stays the case's; None for no name."""
    if name is None:
        return None
    memory = cupy.cuda.UnownedMemory(arrays.address(name), arrays.size_bytes, arrays, device_index)
    return cupy.ndarray((arrays.count,), NUMPY_TYPES[arrays.dtype], cupy.cuda.MemoryPointer(memory, 0))


def _call(cupy: Any, dtype: DataType, kernel: StreamKernel, first: Any, second: Any, out: Any) -> Callable[[], Any]:
    """One call of the library, of arguments that are looked up already."""
    match kernel:
        case "read":
            return partial(first.sum, dtype=cupy.float32) if dtype == "fp16" else first.sum
        case "write":
            return partial(out.fill, SCALAR)
        case "copy":
            return partial(cupy.copyto, out, first)
        case "scale":
            return partial(cupy.multiply, first, SCALAR, out=out)
        case "add":
            return partial(cupy.add, first, second, out=out)
        case "triad":
            triad = cupy.ElementwiseKernel("T b, T c, T s", "T a", "a = b + s * c", "microbench_triad")
            return partial(triad, first, second, SCALAR, out)
        case "dot":
            return partial(cupy.dot, first, second)
