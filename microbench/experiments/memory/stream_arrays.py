"""The arrays of the kernels of STREAM, filled with values whose results are known, and compared on the GPU."""

from typing import Literal, NamedTuple

import numpy as np

from microbench.gpu.cuda.buffers import NOTHING_WRONG
from microbench.gpu.experiment import Case, MeasurementError, Skip, run

StreamKernel = Literal["read", "write", "copy", "scale", "add", "triad", "dot"]
DataType = Literal["fp64", "fp32", "fp16", "int8"]
Implementation = Literal["cuda", "cupy", "numba"]

ELEMENT_BYTES: dict[DataType, int] = {"fp64": 8, "fp32": 4, "fp16": 2, "int8": 1}
SCALAR = 3
POISON = 101  # no kernel computes it from values below 16
BLOCK_THREADS = 256
BLOCKS = 1024
WORD_BYTES = 8


class Roles(NamedTuple):
    """Names of the arrays that a kernel reads first and second, and of the array that it writes."""

    first: str | None
    second: str | None
    out: str | None

    @property
    def read(self) -> int:
        return (self.first is not None) + (self.second is not None)

    @property
    def written(self) -> int:
        return int(self.out is not None)


# As in STREAM: read sum(a), write a = s, copy c = a, scale b = s c, add c = a + b, triad a = b + s c, dot sum(a b).
ROLES: dict[StreamKernel, Roles] = {
    "read": Roles("a", None, None),
    "write": Roles(None, None, "a"),
    "copy": Roles("a", None, "c"),
    "scale": Roles("c", None, "b"),
    "add": Roles("a", "b", "c"),
    "triad": Roles("b", "c", "a"),
    "dot": Roles("a", "b", None),
}
# The output is constant + first factor x first array + second factor x second array.
RESULTS: dict[StreamKernel, tuple[int, int, int]] = {
    "write": (SCALAR, 0, 0),
    "copy": (0, 1, 0),
    "scale": (0, SCALAR, 0),
    "add": (0, 1, 1),
    "triad": (0, 1, SCALAR),
}


class Arrays:
    """Three arrays of ``count`` whole elements, ``size_bytes`` each. An array is allocated when first needed.

    A rest of ``size_bytes`` that is smaller than an element stays untouched. Values are integers below 16 that depend
    on their place and a seed, so that every result is exact; integers wrap around.
    """

    def __init__(self, case: Case, dtype: DataType, size_bytes: int) -> None:
        self._case = case
        self.dtype = dtype
        self.count = size_bytes // ELEMENT_BYTES[dtype]
        if self.count == 0:
            raise Skip(f"{size_bytes} B hold no element of {dtype}")
        self.size_bytes = self.count * ELEMENT_BYTES[dtype]
        self._addresses: dict[str, int] = {}
        self._seeds = {"a": 1, "b": 2, "c": 3}
        self._word = case.device_memory(WORD_BYTES)

    def counted_bytes(self, kernel: StreamKernel) -> int:
        """Bytes that a call reads and writes."""
        return self.size_bytes * (ROLES[kernel].read + ROLES[kernel].written)

    def address(self, name: str | None) -> int:
        """Address of an array, which is allocated on first use; 0 for None. Raises Skip if it does not fit."""
        if name is None:
            return 0
        if name not in self._addresses:
            self._addresses[name] = self._case.device_memory(self.size_bytes)
        return self._addresses[name]

    def fresh(self, kernel: StreamKernel) -> None:
        """Write new values to the inputs and poison to the output, and wait."""
        roles = ROLES[kernel]
        for name in filter(None, (roles.first, roles.second)):
            self._seeds[name] += 3
            self._run("fill_values", (self.address(name), self.count, self._seeds[name]))
        if roles.out is not None:
            self._run("fill_constant", (self.address(roles.out), self.count, POISON))

    def check(self, kernel: StreamKernel, total: float | None = None, relative: float = 0.0) -> str:
        """Compare the whole output or, for a kernel without an output array, the sum ``total`` that it has computed.

        Raises MeasurementError for the first wrong element, or for a sum that is off by more than the share
        ``relative``.
        """
        roles = ROLES[kernel]
        first, second = (self._seeds[name] if name else 0 for name in (roles.first, roles.second))
        if roles.out is None:
            wanted = self._answer(0, "expected_sum", (self.count, first, second, int(kernel == "dot")))
            if total is None or not abs(total - wanted) <= relative * wanted:  # a NaN is wrong as well
                raise MeasurementError(f"{kernel}: the sum is {total} where {wanted} should be")
            return "the sum compared with one that needs no array"
        constant, by_first, by_second = RESULTS[kernel]
        factors = (first, by_first, second, by_second, constant)
        wrong = self._answer(NOTHING_WRONG, "differs", (self.address(roles.out), self.count, *factors))
        if wrong != NOTHING_WRONG:
            raise MeasurementError(f"{kernel}: element {wrong} of {self.count} is not what it should be")
        return "every element compared on the GPU"

    def add_up(self, parts: int, count: int) -> int:
        """The sum of ``count`` 64-bit words at ``parts``, modulo 2**64."""
        return self._answer(0, "add_up", (parts, count))

    def _answer(self, start: int, kernel: str, arguments: tuple[int, ...]) -> int:
        """The value of a word after a kernel that gets its address as last argument; it was ``start`` before."""
        self._case.upload(self._word, np.array([start], dtype=np.uint64))
        self._run(kernel, (*arguments, self._word))
        return int(self._case.read(self._word, 1, np.uint64)[0])

    def _run(self, kernel: str, arguments: tuple[int, ...]) -> None:
        function = self._case.function("memory_arrays", kernel, ELEMENT=8 * ELEMENT_BYTES[self.dtype])
        run(self._case, function, BLOCKS, BLOCK_THREADS, arguments)
