"""A streaming kernel that a Python library launches: its calls as a Submit, its output or its sum compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.gpu.api import Submit
from microbench.gpu.graphs.base import Case
from microbench.gpu.layers.base import LayerHandle, LayerSubmit
from microbench.gpu.memory.arrays import Arrays
from microbench.gpu.memory_api import READ_ARRAYS, WRITTEN_ARRAYS, DataType, StreamKernel

# Types of the elements as libraries know them; integers wrap around, so they are unsigned.
NUMPY_TYPES: dict[DataType, npt.DTypeLike] = {
    "fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "int8": np.uint8,
}  # fmt: skip
# How far off a sum may be, of itself: elements are small whole numbers, so sums of fp64 and of integers are exact in
# any order, while those accumulated in fp32 (fp32 and fp16 alike) are rounded from 2**24 on, in a tree of unknown form.
RELATIVE: dict[DataType, float] = {"fp64": 0.0, "fp32": 1e-5, "fp16": 1e-5, "int8": 0.0}


class Sum(Protocol):
    """Where a kernel without an output array leaves the sum that it finds."""

    def poison(self) -> None:
        """Forget the sum of earlier calls."""
        ...

    def total(self) -> float | None:
        """The sum that the last call has found, None before there is one; the call has ended."""
        ...


class PythonStream:
    """See Transfer of link_api.py: ``call`` is one call of a library, which submits to stream 0 of the case.

    ``found`` is where its sum is, None for a kernel that writes an array. The call is made once here, so that its code
    is compiled and loaded and the library's own memory taken: none of that can be done behind a gate.
    """

    blocks = False

    def __init__(
        self, case: Case, arrays: Arrays, kernel: StreamKernel, call: Callable[[], object], found: Sum | None
    ) -> None:
        self._arrays = arrays
        self._kernel = kernel
        self._found = found
        self.size_bytes = arrays.size_bytes * (READ_ARRAYS[kernel] + WRITTEN_ARRAYS[kernel])
        self.submit: Submit = LayerSubmit(LayerHandle(call=call, stream_handle=case.stream(0)), driver)
        call()
        case.context.synchronize()

    def fresh(self) -> None:
        """See Transfer."""
        self._arrays.fresh(self._kernel)
        if self._found is not None:
            self._found.poison()

    def check(self) -> str:
        """See Transfer."""
        if self._found is None:
            return self._arrays.check(self._kernel)
        return self._arrays.check(self._kernel, self._found.total(), RELATIVE[self._arrays.dtype])
