"""Matrix products by cuBLASLt through nvmath-python's bindings: the candidates of its heuristics, made ready."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.core.errors import MeasurementError, Skip
from microbench.core.units import plain
from microbench.gpu.cuda import submit as binding
from microbench.gpu.cuda import timing
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.compute.operands import Operands
from microbench.gpu.cuda.compute.types import Element, Matrices, matrix_bytes
from microbench.gpu.cuda.context import check
from microbench.gpu.layers import cupy_shared
from microbench.gpu.layers.base import LayerHandle, LayerSubmit, load
from microbench.gpu.protocol.compute import GemmType
from microbench.gpu.protocol.submit import Submit

# A library's matrix product as a Gemm: its prepared calls in turn, a graph of them, the operands that it works on.


Call = Callable[[], object]


def in_turn(calls: Sequence[Call]) -> Call:
    """One call that makes the next of these each time, from the first again after the last."""
    if len(calls) == 1:
        return calls[0]
    following = cycle(calls).__next__

    def call() -> None:
        following()()

    return call


class LibraryGemm:
    """See Gemm of compute_api.py: ``calls`` are one for each copy of B, and submit to stream 0 of the case.

    Each is made once here, so that its code is loaded and the library's own memory taken: none of that can be done
    behind a gate. ``keep`` is what the calls have addresses of. Raises MeasurementError for one of the library's own
    ``refusals``.
    """

    def __init__(
        self,
        case: Case,
        operands: Operands,
        calls: Sequence[Call],
        keep: object = None,
        refusals: tuple[type[Exception], ...] = (),
    ) -> None:
        self._case, self._operands, self._keep = case, operands, keep
        self._call = in_turn(calls)
        self.submit: Submit = LayerSubmit(LayerHandle(call=self._call, stream_handle=case.stream(0)), driver)
        try:
            for call in calls:
                call()
        except refusals as error:
            raise MeasurementError(f"the library refuses its own guess: {plain(error)}") from error
        case.context.synchronize()

    def graph(self, calls: int) -> Submit:
        """See Gemm. Raises Skip for a library that lets nobody capture its calls, MeasurementError for a driver that
        refuses."""
        stream = self._case.stream(0)

        def submit() -> None:
            for _ in range(calls):
                self._call()

        try:
            executable, _ = timing.instantiate(self._case.context, stream, submit)
        except NotImplementedError as error:
            raise Skip(f"these calls are not for graphs: {plain(error)}") from error
        return binding.bind_graph(executable, stream)

    def fresh(self) -> None:
        self._operands.fresh()

    def check(self) -> str:
        return self._operands.check()


INSTALL = "pip install 'nvmath-python[cu13]' (CUDA 12: 'nvmath-python[cu12]')"
# What NVIDIA recommends for Hopper is 32 MiB; candidates that split the depth of large products ask for more.
WORKSPACE_BYTES = 64 << 20
ASKED = 8
TRANSPOSED = 1

# cudaDataType of library_types.h.
DATA_TYPES: dict[Element, int] = {
    "fp32": 0, "fp64": 1, "fp16": 2, "int8": 3, "int32": 10, "bf16": 14, "e4m3": 28, "e5m2": 29, "e2m1": 33,
}  # fmt: skip


class Arithmetic(NamedTuple):
    """Name of a cublasComputeType_t, and the type of alpha and beta."""

    compute: str
    scalar: Element


SINGLE = Arithmetic("COMPUTE_32F", "fp32")
ARITHMETIC: dict[GemmType, Arithmetic] = {
    "fp64": Arithmetic("COMPUTE_64F", "fp64"),
    "tf32": Arithmetic("COMPUTE_32F_FAST_TF32", "fp32"),
    "fp16_acc16": Arithmetic("COMPUTE_16F", "fp16"),
    "int8": Arithmetic("COMPUTE_32I", "int32"),
}
SCALARS: dict[Element, npt.DTypeLike] = {
    "fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "int32": np.int32,
}  # fmt: skip


class Blocks(NamedTuple):
    """One scale for so many elements of a row: the name of its mode, and the byte that stands for 1."""

    mode: str
    elements: int
    one: int


# A scale of mxfp8 is a power of two with bias 127, one of nvfp4 an e4m3 without sign.
BLOCKS: dict[GemmType, Blocks] = {"mxfp8": Blocks("VEC32_UE8M0", 32, 127), "nvfp4": Blocks("VEC16_UE4M3", 16, 0x38)}
# Scales lie in tiles of 128 rows by 4 of a row's scales. Source: cuBLAS documentation, 1D block scaling.
SCALE_ROWS, SCALE_COLUMNS = 128, 4
# Attributes of an algorithm that its name is made of, and their words.
NAMED_BY = {
    "ID": "algo", "TILE_ID": "tile", "STAGES_ID": "stages", "CLUSTER_SHAPE_ID": "cluster", "CUSTOM_OPTION": "custom",
    "SPLITK_NUM": "splitk",
}  # fmt: skip


def unique(names: Iterable[str]) -> tuple[str, ...]:
    """The names, those seen before with their number: a, b, a_2."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(result)


def require(case: Case, dtype: GemmType) -> None:
    """Raise Skip for a type that this GPU's tensor cores do not have."""
    if dtype in BLOCKS:
        case.require_capability(10, 0, dtype)
    elif dtype.startswith("fp8"):
        case.require_capability(8, 9, dtype)


class CublasLt:
    """The candidates for D = alpha A B, alpha being 1, one name each in ``ways``, the best guess first.

    cuBLASLt counts columns first, so it is asked for D^T = B^T A^T: its first operand is B, as stored, transposed.
    Raises Skip where nvmath-python or the library is missing, or has nothing for the type, the shape and the GPU.
    """

    def __init__(self, case: Case, matrices: Matrices) -> None:
        require(case, matrices.dtype)
        self._case, self._matrices = case, matrices
        load("nvmath", INSTALL)  # named by itself, so that its absence is told from a broken binding
        self._lt = load("nvmath.bindings.cublasLt", INSTALL)
        self._cublas = load("nvmath.bindings.cublas", INSTALL)
        arithmetic = ARITHMETIC.get(matrices.dtype, SINGLE)
        self.alpha = np.ones(1, dtype=SCALARS[arithmetic.scalar])
        self._beta = np.zeros_like(self.alpha)
        with self._refusals():
            self._handle = self._owned(self._lt.create(), self._lt.destroy)
            self._description = self._describe(arithmetic)
            self._layouts = self._lay_out()
            self._workspace = case.context.device_memory(WORKSPACE_BYTES)
            self._found = self._candidates()
            self.ways = unique(self._name(index) for index in range(len(self._found)))

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Errors of the bindings as Skip: nvmath raises RuntimeError where a library or function is not found."""
        try:
            yield
        except (RuntimeError, OSError, self._lt.cuBLASLtError) as error:
            reason = plain(error).partition(". You can set")[0]
            raise Skip(f"cuBLASLt, {self._matrices.dtype}: {reason}") from error

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        """What a call raises for an algorithm that cuBLASLt guessed and then does not run."""
        return (self._lt.cuBLASLtError,)

    def _owned(self, handle: int, destroy: Any) -> int:
        self._case.context.own(partial(destroy, handle))
        return int(handle)

    def _set(self, kind: str, handle: int, attribute: Any, value: int) -> None:
        """Set an attribute of a matmul_desc or a matmul_preference."""
        held = np.array([value], dtype=getattr(self._lt, f"get_{kind}_attribute_dtype")(attribute))
        getattr(self._lt, f"{kind}_set_attribute")(handle, attribute, held.ctypes.data, held.itemsize)

    def _describe(self, arithmetic: Arithmetic) -> int:
        compute = getattr(self._cublas.ComputeType, arithmetic.compute)
        made = self._lt.matmul_desc_create(compute, DATA_TYPES[arithmetic.scalar])
        description = self._owned(made, self._lt.matmul_desc_destroy)
        attributes, dtype = self._lt.MatmulDescAttribute, self._matrices.dtype
        self._set("matmul_desc", description, attributes.TRANSA, TRANSPOSED)
        if dtype.startswith("fp8"):
            one = self._scales(np.array([1.0], dtype=np.float32).tobytes())
            self._set("matmul_desc", description, attributes.A_SCALE_POINTER, one)
            self._set("matmul_desc", description, attributes.B_SCALE_POINTER, one)
            self._set("matmul_desc", description, attributes.FAST_ACCUM, int(dtype.endswith("_fast")))
        if dtype in BLOCKS:
            self._scale_blocks(description, BLOCKS[dtype])
        return description

    def _scale_blocks(self, description: int, blocks: Blocks) -> None:
        attributes, matrices = self._lt.MatmulDescAttribute, self._matrices
        mode = getattr(self._lt.MatmulMatrixScale, blocks.mode)
        for name, rows in (("A", matrices.columns), ("B", matrices.rows)):
            count = _up(rows, SCALE_ROWS) * _up(-(-matrices.depth // blocks.elements), SCALE_COLUMNS)
            scales = self._scales(bytes([blocks.one]) * count)
            self._set("matmul_desc", description, getattr(attributes, f"{name}_SCALE_MODE"), mode)
            self._set("matmul_desc", description, getattr(attributes, f"{name}_SCALE_POINTER"), scales)

    def _scales(self, raw: bytes) -> int:
        """Address of these bytes in device memory."""
        address = self._case.context.device_memory(len(raw))
        held = np.frombuffer(raw, dtype=np.uint8)
        check(driver.cuMemcpyHtoD(address, held.ctypes.data, held.nbytes))
        return address

    def _lay_out(self) -> tuple[int, int, int]:
        """Layouts of B, A and D in cuBLASLt's own order: each column of theirs is a row of ours."""
        rows, columns, depth = self._matrices.rows, self._matrices.columns, self._matrices.depth
        a, b, d = (DATA_TYPES[element] for element in self._matrices.elements)
        create, destroy = self._lt.matrix_layout_create, self._lt.matrix_layout_destroy
        return (
            self._owned(create(b, depth, columns, depth), destroy),
            self._owned(create(a, depth, rows, depth), destroy),
            self._owned(create(d, columns, rows, columns), destroy),
        )

    def _candidates(self) -> npt.NDArray[Any]:
        preference = self._owned(self._lt.matmul_preference_create(), self._lt.matmul_preference_destroy)
        most = self._lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        self._set("matmul_preference", preference, most, WORKSPACE_BYTES)
        found, count = np.zeros(ASKED, dtype=self._lt.matmul_heuristic_result_dtype), np.zeros(1, dtype=np.int32)
        b, a, d = self._layouts
        self._lt.matmul_algo_get_heuristic(
            self._handle, self._description, b, a, d, d, preference, ASKED, found.ctypes.data, count.ctypes.data
        )
        candidates: npt.NDArray[Any] = found[: int(count[0])]
        candidates = candidates[candidates["state"] == 0]  # the others do not run after all
        if len(candidates) == 0:
            shape = f"{self._matrices.rows} x {self._matrices.columns} x {self._matrices.depth}"
            raise Skip(f"cuBLASLt's heuristics have nothing for {self._matrices.dtype} of {shape} on this GPU")
        return candidates

    def _name(self, index: int) -> str:
        return "_".join(f"{word}{self._configured(index, name)}" for name, word in NAMED_BY.items())

    def _configured(self, index: int, name: str) -> int:
        """An attribute of a candidate's algorithm, which is what a heuristic's result begins with."""
        attribute = getattr(self._lt.MatmulAlgoConfigAttribute, name)
        held = np.zeros(1, dtype=self._lt.get_matmul_algo_config_attribute_dtype(attribute))
        written = np.zeros(1, dtype=np.uint64)
        algorithm = self._algorithm(index)
        self._lt.matmul_algo_config_get_attribute(
            algorithm, attribute, held.ctypes.data, held.itemsize, written.ctypes.data
        )
        return int(held[0])

    def _algorithm(self, index: int) -> int:
        return int(self._found.ctypes.data) + index * self._found.itemsize

    def calls(self, way: str) -> tuple[Call, ...]:
        """The call of one of ``ways`` for each copy of B, of arguments that are looked up already.

        They have addresses of what this object holds, and work as long as it is there.
        """
        matrices, (b, a, d) = self._matrices, self._layouts
        algorithm, stream = self._algorithm(self.ways.index(way)), self._case.stream(0)
        alpha, beta = int(self.alpha.ctypes.data), int(self._beta.ctypes.data)
        return tuple(
            partial(
                self._lt.matmul, self._handle, self._description, alpha, copy, b, matrices.a, a, beta,
                matrices.d, d, matrices.d, d, algorithm, self._workspace, WORKSPACE_BYTES, stream,
            )
            for copy in matrices.b
        )  # fmt: skip


def _up(count: int, step: int) -> int:
    """The next multiple of ``step``."""
    return -(-count // step) * step


# Matrix products as a CuPy user writes them: cupy.matmul.


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
