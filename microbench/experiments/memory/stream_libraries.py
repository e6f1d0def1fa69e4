"""Kernels of STREAM as users of CuPy and Numba write them, on the same arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core.units import plain
from microbench.gpu.cuda.buffers import NOTHING_WRONG
from microbench.gpu.experiment import Case, MeasurementError, Skip, Submit, check, driver, run
from microbench.gpu.layers import cupy as cupy_layer
from microbench.gpu.layers import numba as numba_layer
from microbench.gpu.layers.base import LayerHandle, LayerSubmit, load
from microbench.gpu.protocol.gpu import Transfer

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
    """Names of the arrays that a kernel reads first and second, and of the array that it writes: a constant + a factor
    x the first array + a factor x the second array."""

    first: str | None
    second: str | None
    out: str | None
    constant: int = 0
    by_first: int = 0
    by_second: int = 0

    @property
    def read(self) -> int:
        return (self.first is not None) + (self.second is not None)

    @property
    def written(self) -> int:
        return int(self.out is not None)


# As in STREAM: read sum(a), write a = s, copy c = a, scale b = s c, add c = a + b, triad a = b + s c, dot sum(a b).
ROLES: dict[StreamKernel, Roles] = {
    "read": Roles("a", None, None),
    "write": Roles(None, None, "a", constant=SCALAR),
    "copy": Roles("a", None, "c", by_first=1),
    "scale": Roles("c", None, "b", by_first=SCALAR),
    "add": Roles("a", "b", "c", by_first=1, by_second=1),
    "triad": Roles("b", "c", "a", by_first=1, by_second=SCALAR),
    "dot": Roles("a", "b", None),
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
        factors = (first, roles.by_first, second, roles.by_second, roles.constant)
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


# Types of the elements as libraries know them; integers wrap around, so they are unsigned.
NUMPY_TYPES: dict[DataType, npt.DTypeLike] = {
    "fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "int8": np.uint8,
}  # fmt: skip


class Streaming:
    """A Transfer by a kernel of STREAM on the arrays.

    A kernel that writes no array leaves a sum, which ``total`` reads and ``poison`` overwrites. It may be off by the
    share ``relative``.
    """

    blocks = False

    def __init__(
        self,
        arrays: Arrays,
        kernel: StreamKernel,
        submit: Submit,
        poison: Callable[[], object] = lambda: None,
        total: Callable[[], float | None] = lambda: None,
        relative: float = 0.0,
    ) -> None:
        self.size_bytes, self.submit = arrays.size_bytes * (ROLES[kernel].read + ROLES[kernel].written), submit
        self._arrays, self._kernel, self._poison, self._total, self._relative = arrays, kernel, poison, total, relative

    def fresh(self) -> None:
        self._arrays.fresh(self._kernel)
        self._poison()

    def check(self) -> str:
        return self._arrays.check(self._kernel, self._total(), self._relative)


def python_stream(
    case: Case, arrays: Arrays, kernel: StreamKernel, call: Callable[[], object], result: LastSum | AtomicSum | None
) -> Streaming:
    """One call of a library, which submits to stream 0 of the case; ``result`` is where the sum is, if any.

    The call is made once here, because compiling, loading code and allocating the library's memory are impossible
    behind a gate.
    """
    submit = LayerSubmit(LayerHandle(call=call, stream_handle=case.stream(0)), driver)
    call()
    case.synchronize()
    if result is None:
        return Streaming(arrays, kernel, submit)
    # Elements are small integers, so sums of fp64 and of integers are exact in any order, while sums in fp32 (of fp32
    # and fp16) are rounded from 2**24 on, in a tree of unknown form.
    relative = 1e-5 if arrays.dtype in ("fp32", "fp16") else 0.0
    return Streaming(arrays, kernel, submit, result.poison, result.total, relative)


DOT_REFUSED: dict[DataType, str] = {
    "fp16": "cupy.dot of fp16 gives its sum as fp16, whose largest number is 65504",
    "int8": "cupy.dot of 8-bit integers gives its sum as an 8-bit integer, which wraps around",
}


class LastSum:
    """The sum of a call that returns a CuPy array of one element, which is kept."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute = compute
        self._last: Any = None

    def __call__(self) -> None:
        """Make the call. Its result takes memory from CuPy's pool; the previous result's memory goes back to it."""
        self._last = self._compute()

    def poison(self) -> None:
        self._last = None

    def total(self) -> float | None:
        """The sum of the last call, which has ended; None before the first call."""
        return None if self._last is None else self._last.item()


def cupy_stream(case: Case, arrays: Arrays, kernel: StreamKernel) -> Transfer:
    """One call of CuPy, whose current stream is the case's stream 0 until the case ends.

    read ``x.sum()`` (of fp16 with ``dtype=float32``: its own type overflows), write ``out.fill(s)``, copy
    ``cupy.copyto(out, x)``, scale ``cupy.multiply(x, s, out=out)``, add ``cupy.add(x, y, out=out)``, dot
    ``cupy.dot(x, y)``. triad is an ElementwiseKernel: ufuncs take two passes and memory in between. So does cupy.dot,
    whose products fill an array from CuPy's pool; the pool is emptied when the case ends.

    Raises Skip if CuPy is missing, lacks a library or memory, or has no such kernel for the type.
    """
    if kernel == "dot" and arrays.dtype in DOT_REFUSED:
        raise Skip(DOT_REFUSED[arrays.dtype])
    cupy = cupy_layer.load_cupy()
    device_index = int(case.context.device)
    case.own(cupy.get_default_memory_pool().free_all_blocks)
    case.own(cupy_layer.use_stream(cupy, case.stream(0), device_index))

    def viewed(name: str | None) -> Any:
        """CuPy's view of an array, which stays the case's."""
        if name is None:
            return None
        memory = cupy.cuda.UnownedMemory(arrays.address(name), arrays.size_bytes, arrays, device_index)
        return cupy.ndarray((arrays.count,), NUMPY_TYPES[arrays.dtype], cupy.cuda.MemoryPointer(memory, 0))

    first, second, out = (viewed(name) for name in ROLES[kernel][:3])
    call = _cupy_call(cupy, arrays.dtype, kernel, first, second, out)
    result = LastSum(call) if out is None else None
    try:
        return python_stream(case, arrays, kernel, result or call, result)
    except MemoryError as error:
        raise Skip(f"CuPy's own memory for {kernel}: {plain(error)}") from error
    except (ImportError, OSError) as error:  # cupy.dot looks for cuBLAS, even if it then works without it
        raise Skip(f"CuPy {cupy.__version__} lacks a library for {kernel}: {plain(error)}") from error


def _cupy_call(
    cupy: Any, dtype: DataType, kernel: StreamKernel, first: Any, second: Any, out: Any
) -> Callable[[], Any]:
    """One call of the library, whose function and arguments are already looked up."""
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


# A grid-stride loop over as many blocks as in NVIDIA's own introduction to such loops.
BLOCKS_PER_SM = 32
NOT_A_NUMBER_BYTE = 0xFF  # eight of them are a NaN as float64, and the largest number as uint64
SUM_TYPES: dict[DataType, type[np.float64] | type[np.uint64]] = {
    "fp64": np.float64, "fp32": np.float64, "fp16": np.float64, "int8": np.uint64,
}  # fmt: skip


class DeviceVector:
    """Device memory in the CUDA array interface. It names no stream, so that libraries synchronise with none."""

    def __init__(self, address: int, count: int, dtype: npt.DTypeLike) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": np.dtype(dtype).str,
            "data": (address, False),
            "version": 3,
        }


class AtomicSum:
    """The sum of a call that clears one element, to which every block then adds."""

    def __init__(self, case: Case, dtype: DataType) -> None:
        self._case = case
        self._dtype = SUM_TYPES[dtype]
        self._address = case.device_memory(np.dtype(self._dtype).itemsize)
        self.vector = DeviceVector(self._address, 1, self._dtype)

    def poison(self) -> None:
        check(driver.cuMemsetD8(self._address, NOT_A_NUMBER_BYTE, np.dtype(self._dtype).itemsize))
        self._case.synchronize()

    def total(self) -> float:
        value: float = self._case.read(self._address, 1, self._dtype)[0].item()
        return value


def numba_stream(case: Case, arrays: Arrays, kernel: StreamKernel) -> Transfer:
    """A kernel of kernels/numba_stream.py, configured once: threads take one element at a time, in the array's type.

    A sum takes two launches a call: the first clears the total, the second adds to it, by shared memory and one atomic
    addition a block. Raises Skip if Numba is missing or sees no GPU.
    """
    cuda = numba_layer.load_numba_cuda()
    kernels = load("microbench._kernels.numba_stream", numba_layer.INSTALL)
    stream = cuda.external_stream(case.stream(0))
    blocks = BLOCKS_PER_SM * case.sms
    dtype, roles = NUMPY_TYPES[arrays.dtype], ROLES[kernel]
    names = [name for name in (roles.out, roles.first, roles.second) if name is not None]
    vectors = [cuda.as_cuda_array(DeviceVector(arrays.address(name), arrays.count, dtype)) for name in names]
    if roles.out is None:
        result = AtomicSum(case, arrays.dtype)
        total = cuda.as_cuda_array(result.vector)
        with numba_layer.few_blocks():
            clear = partial(kernels.clear[1, 1, stream], total)
        add_up = getattr(kernels.SUMS[arrays.dtype], kernel)
        add = partial(add_up[blocks, kernels.BLOCK_THREADS, stream], total, *vectors)

        def both() -> None:
            clear()
            add()

        return python_stream(case, arrays, kernel, both, result)
    scalars = [np.dtype(dtype).type(SCALAR)] if kernel in ("write", "scale", "triad") else []
    configured = getattr(kernels, kernel)[blocks, kernels.BLOCK_THREADS, stream]
    return python_stream(case, arrays, kernel, partial(configured, *vectors, *scalars), None)
