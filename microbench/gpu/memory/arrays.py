"""The arrays a, b and c that streaming kernels work on: made, poisoned and compared on the GPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from cuda.bindings import driver

from microbench.errors import MeasurementError, Skip
from microbench.gpu.context import check
from microbench.gpu.graphs.base import Case
from microbench.gpu.links.patterns import LEGACY_STREAM_HANDLE, NOTHING_WRONG
from microbench.gpu.memory_api import ELEMENT_BYTES, DataType, StreamKernel
from microbench.gpu.submit import Parameters, launch
from microbench.ops import LEGACY_STREAM, Launch

SCALAR = 3
POISON = 101  # no kernel computes it from values below 16
BLOCK_THREADS = 256
BLOCKS = 1024
WORD_BYTES = 8


class Roles(NamedTuple):
    """Names of the arrays that a kernel reads first and second, and of the one that it writes."""

    first: str | None
    second: str | None
    out: str | None


# As STREAM has them: copy c = a, scale b = s c, add c = a + b, triad a = b + s c, dot sum(a b).
ROLES: dict[StreamKernel, Roles] = {
    "read": Roles("a", None, None),
    "write": Roles(None, None, "a"),
    "copy": Roles("a", None, "c"),
    "scale": Roles("c", None, "b"),
    "add": Roles("a", "b", "c"),
    "triad": Roles("b", "c", "a"),
    "dot": Roles("a", "b", None),
}
# What the output is: constant + first factor x first + second factor x second.
RESULTS: dict[StreamKernel, tuple[int, int, int]] = {
    "write": (SCALAR, 0, 0),
    "copy": (0, 1, 0),
    "scale": (0, SCALAR, 0),
    "add": (0, 1, 1),
    "triad": (0, 1, SCALAR),
}


class Arrays:
    """Three arrays of ``count`` elements, ``size_bytes`` each (whole elements); those that no kernel asks for are not
    there.

    Values are whole numbers below 16 that depend on their place and on a seed, so every result is exact.
    """

    def __init__(self, case: Case, dtype: DataType, size_bytes: int) -> None:
        self._case = case
        self.dtype = dtype
        self.count = size_bytes // ELEMENT_BYTES[dtype]
        if self.count == 0:
            raise Skip(f"{size_bytes} B hold no element of {dtype}")
        self.size_bytes = self.count * ELEMENT_BYTES[dtype]
        self.constant = SCALAR
        self._addresses: dict[str, int] = {}
        self._seeds = {"a": 1, "b": 2, "c": 3}
        self._found = case.context.device_memory(WORD_BYTES)

    @property
    def a(self) -> int:
        """Address of the first array."""
        return self.address("a")

    @property
    def b(self) -> int:
        """Address of the second array."""
        return self.address("b")

    @property
    def c(self) -> int:
        """Address of the third array."""
        return self.address("c")

    def address(self, name: str | None) -> int:
        """Address of an array, taken when first asked for; 0 for none. Raises Skip where it does not fit."""
        if name is None:
            return 0
        if name not in self._addresses:
            self._addresses[name] = self._case.context.device_memory(self.size_bytes)
        return self._addresses[name]

    def fresh(self, kernel: StreamKernel) -> None:
        """New values in what the kernel reads, poison in what it writes; waits for both."""
        roles = ROLES[kernel]
        for name in filter(None, (roles.first, roles.second)):
            self._seeds[name] += 3
            self._run("fill_values", (self.address(name), self.count, self._seeds[name]))
        if roles.out is not None:
            self._run("fill_constant", (self.address(roles.out), self.count, POISON))

    def check(self, kernel: StreamKernel, total: float | None = None, relative: float = 0.0) -> str:
        """Compare the whole output, or the sum ``total`` that a kernel without one has found.

        Raises MeasurementError for the first element that is wrong, or a sum that is off by more than its share
        ``relative``.
        """
        roles = ROLES[kernel]
        first, second = (self._seeds[name] if name else 0 for name in (roles.first, roles.second))
        if roles.out is None:
            return self._check_sum(kernel, first, second, total, relative)
        constant, by_first, by_second = RESULTS[kernel]
        self._set(NOTHING_WRONG)
        factors = (first, by_first, second, by_second, constant)
        self._run("differs", (self.address(roles.out), self.count, *factors, self._found))
        wrong = self._get()
        if wrong != NOTHING_WRONG:
            raise MeasurementError(f"{kernel}: element {wrong} of {self.count} is not what it should be")
        return "every element compared on the GPU"

    def _check_sum(self, kernel: StreamKernel, first: int, second: int, total: float | None, relative: float) -> str:
        self._set(0)
        self._run("expected_sum", (self.count, first, second, int(kernel == "dot"), self._found))
        wanted = self._get()
        if total is None or not abs(total - wanted) <= relative * wanted:  # a NaN is no sum either
            raise MeasurementError(f"{kernel}: the sum is {total} where {wanted} should be")
        return "the sum compared with one that needs no array"

    def add_up(self, parts: int, count: int) -> int:
        """The sum of ``count`` 64-bit words at ``parts``, modulo 2**64."""
        self._set(0)
        self._run("add_up", (parts, count, self._found))
        return self._get()

    def _set(self, value: int) -> None:
        start = np.array([value], dtype=np.uint64)
        check(driver.cuMemcpyHtoD(self._found, start.ctypes.data, start.nbytes))

    def _get(self) -> int:
        return int(self._case.context.read(self._found, 1, np.uint64)[0])

    def _run(self, kernel: str, arguments: tuple[int, ...]) -> None:
        bits = 8 * ELEMENT_BYTES[self.dtype]
        function = self._case.modules.function("memory_arrays", kernel, ELEMENT=bits)
        shape = Launch(grid_blocks=BLOCKS, block_threads=BLOCK_THREADS, stream=LEGACY_STREAM)
        launch(function, shape, LEGACY_STREAM_HANDLE, Parameters([arguments]))(1)
        self._case.context.synchronize()
