"""Streaming kernels in CUDA C++: which shapes there are on an architecture, and one of them bound to its arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import LEGACY_STREAM, Launch
from microbench.core.units import plain
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import Context, check
from microbench.gpu.cuda.links.buffers import LEGACY_STREAM_HANDLE, NOTHING_WRONG
from microbench.gpu.cuda.submit import Parameters, launch
from microbench.gpu.layers import cupy_shared, numba_shared
from microbench.gpu.layers.base import LayerHandle, LayerSubmit, load
from microbench.gpu.protocol.links import Transfer
from microbench.gpu.protocol.memory import ELEMENT_BYTES, READ_ARRAYS, WRITTEN_ARRAYS, DataType, StreamKernel
from microbench.gpu.protocol.submit import Submit

# The arrays a, b and c that streaming kernels work on: made, poisoned and compared on the GPU.


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


# A streaming kernel that a Python library launches: its calls as a Submit, its output or its sum compared.


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
        self._arrays.fresh(self._kernel)
        if self._found is not None:
            self._found.poison()

    def check(self) -> str:
        if self._found is None:
            return self._arrays.check(self._kernel)
        return self._arrays.check(self._kernel, self._found.total(), RELATIVE[self._arrays.dtype])


# Streaming kernels as a CuPy user writes them: one library call each.


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
        self._last = None

    def total(self) -> float | None:
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


# Streaming kernels as a Numba user writes them: the kernels of kernels/numba_stream.py, configured once.


# A grid-stride loop over as many blocks as NVIDIA's own introduction to such loops takes.
BLOCKS_PER_SM = 32
NOT_A_NUMBER_BYTE = 0xFF  # eight of them are no number as a float64, and the largest one as a uint64
SUM_TYPES: dict[DataType, type[np.float64] | type[np.uint64]] = {
    "fp64": np.float64, "fp32": np.float64, "fp16": np.float64, "int8": np.uint64,
}  # fmt: skip


class DeviceVector:
    """Device memory as the CUDA array interface has it; it names no stream, so that nobody waits for one."""

    def __init__(self, address: int, count: int, dtype: npt.DTypeLike) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": np.dtype(dtype).str,
            "data": (address, False),
            "version": 3,
        }


class AtomicSum:
    """A call that clears one element and then has every block add to it: a Sum of python_stream.py."""

    def __init__(self, case: Case, dtype: DataType) -> None:
        self._case = case
        self._dtype = SUM_TYPES[dtype]
        self._address = case.context.device_memory(np.dtype(self._dtype).itemsize)
        self.vector = DeviceVector(self._address, 1, self._dtype)

    def poison(self) -> None:
        check(driver.cuMemsetD8(self._address, NOT_A_NUMBER_BYTE, np.dtype(self._dtype).itemsize))
        self._case.context.synchronize()

    def total(self) -> float:
        value: float = self._case.context.read(self._address, 1, self._dtype)[0].item()
        return value


def numba_stream(case: Case, arrays: Arrays, kernel: StreamKernel) -> Transfer:
    """``kernel`` over ``arrays`` by Numba: threads take one element at a time, in the array's own type.

    A sum takes two launches a call: one clears the total, one adds to it, by shared memory and an atomic addition a
    block. Raises Skip where Numba is missing or sees no GPU.
    """
    cuda = numba_shared.load_numba_cuda()
    kernels = load("microbench._kernels.numba_stream", numba_shared.INSTALL)
    stream = cuda.external_stream(case.stream(0))
    blocks = BLOCKS_PER_SM * case.context.attribute("MULTIPROCESSOR_COUNT")
    dtype, roles = NUMPY_TYPES[arrays.dtype], ROLES[kernel]
    names = [name for name in (roles.out, roles.first, roles.second) if name is not None]
    vectors = [cuda.as_cuda_array(DeviceVector(arrays.address(name), arrays.count, dtype)) for name in names]
    if roles.out is None:
        found = AtomicSum(case, arrays.dtype)
        total = cuda.as_cuda_array(found.vector)
        with numba_shared.few_blocks():
            clear = partial(kernels.clear[1, 1, stream], total)
        add_up = getattr(kernels.SUMS[arrays.dtype], kernel)
        launch = partial(add_up[blocks, kernels.BLOCK_THREADS, stream], total, *vectors)
        return PythonStream(case, arrays, kernel, partial(_both, clear, launch), found)
    scalars = [np.dtype(dtype).type(SCALAR)] if kernel in ("write", "scale", "triad") else []
    configured = getattr(kernels, kernel)[blocks, kernels.BLOCK_THREADS, stream]
    return PythonStream(case, arrays, kernel, partial(configured, *vectors, *scalars), None)


def _both(clear: Callable[[], Any], launch: Callable[[], Any]) -> None:
    clear()
    launch()


KINDS: tuple[StreamKernel, ...] = ("read", "write", "copy", "scale", "add", "triad", "dot")
POISON_BYTE = 0xA5
MOST_BLOCKS = (1 << 31) - 1
NAME = re.compile(r"(grid|past|steps|bulk)_(\d+)B_x(\d+)_t(\d+)(?:_b(\d+))?")


class Shape(NamedTuple):
    """How a kernel goes through its arrays.

    ``grid``: as many blocks as there are tiles, each thread with ``ahead`` (1, 4, 8) vectors of ``width_bytes`` (16,
    32) under way. ``steps``: ``blocks_per_sm`` blocks on each SM that step through the tiles. ``bulk``: those blocks,
    with ``ahead`` stages of ``width_bytes`` filled and emptied by bulk copies. ``past``: like ``grid`` with one vector,
    whose loads leave the L1 alone (those of kernels that only read always do).
    """

    style: str
    width_bytes: int
    ahead: int
    threads: int
    blocks_per_sm: int = 0

    @property
    def name(self) -> str:
        """As results name it: grid_16B_x4_t256, steps_16B_x4_t256_b8, bulk_8192B_x4_t128_b4."""
        blocks = f"_b{self.blocks_per_sm}" if self.blocks_per_sm else ""
        return f"{self.style}_{self.width_bytes}B_x{self.ahead}_t{self.threads}{blocks}"

    @classmethod
    def named(cls, name: str) -> Shape:
        """The shape of that name. Raises MeasurementError for none."""
        found = NAME.fullmatch(name)
        if found is None:
            raise MeasurementError(f"{name} is no shape of a streaming kernel")
        return cls(found[1], int(found[2]), int(found[3]), int(found[4]), int(found[5] or 0))

    @property
    def bulk(self) -> bool:
        """True if the data go through shared memory by bulk copies."""
        return self.style == "bulk"

    @property
    def function(self) -> str:
        """Its kernel in kernels/memory_stream.cu."""
        name = f"tiles{self.ahead}"
        return "bulk" if self.bulk else f"{name}_past_l1" if self.style == "past" else name


# Of 130 shapes tried on an H200 those that were first for some kernel, or near it. One vector a thread won for kernels
# that write: blocks of 128 past the L1 for copy and scale, of 1024 for add and triad, of 256 for write. More under way
# won for those that only read; bulk copies came within 1 % for reads.
ANYWHERE = (
    Shape("past", 16, 1, 128), Shape("grid", 16, 1, 256), Shape("grid", 16, 1, 1024), Shape("grid", 16, 4, 512),
    Shape("grid", 16, 8, 256), Shape("steps", 16, 4, 512, 4),
)  # fmt: skip
BY_BULK = (Shape("bulk", 4096, 4, 128, 2), Shape("bulk", 16384, 2, 128, 4))
BY_32_BYTES = (Shape("grid", 32, 1, 128), Shape("grid", 32, 4, 256))
BULK_SINCE, WIDE_SINCE = (9, 0), (10, 0)
RESERVED_BYTES = 2048  # what the driver and the kernel's own barriers take of a block's shared memory


class CudaStream:
    """See DeviceMemory.stream of memory_api.py: a Transfer."""

    blocks = False

    def __init__(self, case: Case, arrays: Arrays, kernel: StreamKernel, shape_name: str) -> None:
        self._context = case.context
        self._arrays = arrays
        self._kernel: StreamKernel = kernel
        self.size_bytes = arrays.size_bytes * (READ_ARRAYS[kernel] + WRITTEN_ARRAYS[kernel])
        shape = Shape.named(shape_name)
        blocks = self._blocks(shape)
        self._blocks_launched = blocks
        self._parts = case.context.device_memory(WORD_BYTES * blocks) if kernel in ("read", "dot") else 0
        roles = ROLES[kernel]
        addresses = [arrays.address(name) for name in roles]
        of_bulk = (shape.width_bytes, shape.ahead) if shape.bulk else ()
        row = Parameters([(*addresses, arrays.size_bytes, self._parts, *of_bulk)])
        defines = {"KIND": KINDS.index(kernel), "ELEMENT": 8 * ELEMENT_BYTES[arrays.dtype]}
        wide = 16 if shape.bulk else shape.width_bytes
        function = case.modules.function("memory_stream", shape.function, WIDE=wide, **defines)
        shared_bytes = self._shared_bytes(shape)
        if shared_bytes:
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(function, most, shared_bytes))
        launched = Launch(grid_blocks=blocks, block_threads=shape.threads)
        self.submit: Submit = launch(function, launched, case.stream(0), row, shared_bytes=shared_bytes)

    def _blocks(self, shape: Shape) -> int:
        if shape.blocks_per_sm:
            return shape.blocks_per_sm * self._context.attribute("MULTIPROCESSOR_COUNT")
        tile_bytes = shape.threads * shape.ahead * shape.width_bytes
        return min(max(self._arrays.size_bytes // tile_bytes, 1), MOST_BLOCKS)

    def _shared_bytes(self, shape: Shape) -> int:
        if not shape.bulk:
            return 0
        return max(READ_ARRAYS[self._kernel], 1) * shape.width_bytes * shape.ahead

    def fresh(self) -> None:
        self._arrays.fresh(self._kernel)
        if self._parts:
            check(driver.cuMemsetD8(self._parts, POISON_BYTE, WORD_BYTES * self._blocks_launched))
            self._context.synchronize()

    def check(self) -> str:
        total = self._arrays.add_up(self._parts, self._blocks_launched) if self._parts else None
        return self._arrays.check(self._kernel, total)


def shapes_of(context: Context, kernel: StreamKernel) -> Sequence[str]:
    """Names of the shapes worth trying on this GPU for that kernel."""
    capability = (context.attribute("COMPUTE_CAPABILITY_MAJOR"), context.attribute("COMPUTE_CAPABILITY_MINOR"))
    shapes = [*ANYWHERE]
    if capability >= BULK_SINCE:
        shapes += BY_BULK
    if capability >= WIDE_SINCE:
        shapes += BY_32_BYTES
    return [shape.name for shape in shapes if _fits(context, shape, kernel)]


def _fits(context: Context, shape: Shape, kernel: StreamKernel) -> bool:
    """Whether an SM has the threads, and the shared memory of all its blocks."""
    most_threads = context.attribute("MAX_THREADS_PER_MULTIPROCESSOR")
    most_bytes = context.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
    if not shape.bulk:
        return shape.threads * max(shape.blocks_per_sm, 1) <= most_threads
    block_bytes = max(READ_ARRAYS[kernel], 1) * shape.width_bytes * shape.ahead
    within_block = block_bytes < context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    return within_block and (block_bytes + RESERVED_BYTES) * shape.blocks_per_sm <= most_bytes
