"""Matrix products by cuBLASLt, through nvmath-python's bindings: its candidates for a product, and their calls."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core.units import plain
from microbench.gpu.experiment import Case, Skip
from microbench.gpu.layers.base import load
from microbench.gpu.protocol.matrices import Element, GemmType, Matrices

Call = Callable[[], object]

INSTALL = "pip install 'nvmath-python[cu13]' (CUDA 12: 'nvmath-python[cu12]')"
# NVIDIA recommends 32 MiB for Hopper; candidates that split the depth of large products ask for more.
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
    """One scale for this many elements of a row: the name of its mode, and the byte that means 1."""

    mode: str
    elements: int
    unit: int


# A scale of mxfp8 is a power of two with bias 127, a scale of nvfp4 an e4m3 without sign.
BLOCKS: dict[GemmType, Blocks] = {"mxfp8": Blocks("VEC32_UE8M0", 32, 127), "nvfp4": Blocks("VEC16_UE4M3", 16, 0x38)}
# Scales lie in tiles of 128 rows by 4 scales of a row. Source: cuBLAS documentation, 1D block scaling.
SCALE_ROWS, SCALE_COLUMNS = 128, 4
# Attributes of an algorithm that its name is made of, and their words.
NAMED_BY = {
    "ID": "algo", "TILE_ID": "tile", "STAGES_ID": "stages", "CLUSTER_SHAPE_ID": "cluster", "CUSTOM_OPTION": "custom",
    "SPLITK_NUM": "splitk",
}  # fmt: skip


def unique(names: Iterable[str]) -> tuple[str, ...]:
    """The names, repeated ones with their number: a, b, a_2."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(result)


class CublasLt:
    """The candidates for D = alpha A B with alpha = 1, one name each in ``ways``, the library's best guess first.

    cuBLASLt is column-major, so it computes D^T = B^T A^T: its first operand is the stored B, transposed. A call
    computes one product, or all of them if ``batched``. Raises Skip if nvmath-python or the library is missing, or has
    no algorithm for the type, the shape and the GPU.
    """

    def __init__(self, case: Case, matrices: Matrices, *, batched: bool = False) -> None:
        if matrices.dtype in BLOCKS:
            case.require_capability(10, 0, matrices.dtype)
        elif matrices.dtype.startswith("fp8"):
            case.require_capability(8, 9, matrices.dtype)
        self._case, self._matrices, self._batched = case, matrices, batched
        load("nvmath", INSTALL)  # by itself, to tell its absence from a broken binding
        self._lt = load("nvmath.bindings.cublasLt", INSTALL)
        self._cublas = load("nvmath.bindings.cublas", INSTALL)
        # The errors of a call for an algorithm that cuBLASLt suggested and then does not run.
        self.refusals: tuple[type[Exception], ...] = (self._lt.cuBLASLtError,)
        arithmetic = ARITHMETIC.get(matrices.dtype, SINGLE)
        self.alpha = np.ones(1, dtype=SCALARS[arithmetic.scalar])
        self._beta = np.zeros_like(self.alpha)
        try:
            self._handle = self._owned(self._lt.create(), self._lt.destroy)
            self._description = self._describe(arithmetic)
            self._layouts = self._lay_out()
            self._workspace = case.device_memory(WORKSPACE_BYTES)
            self._candidates = self._ask()
            self.ways = unique(self._name(index) for index in range(len(self._candidates)))
        except (RuntimeError, OSError, self._lt.cuBLASLtError) as error:  # RuntimeError: nvmath finds no library
            reason = plain(error).partition(". You can set")[0]
            raise Skip(f"cuBLASLt, {matrices.dtype}: {reason}") from error

    def _owned(self, handle: int, destroy: Any) -> int:
        self._case.own(partial(destroy, handle))
        return int(handle)

    def _set(self, kind: str, handle: int, attribute: Any, value: int) -> None:
        held = np.array([value], dtype=getattr(self._lt, f"get_{kind}_attribute_dtype")(attribute))
        getattr(self._lt, f"{kind}_set_attribute")(handle, attribute, held.ctypes.data, held.itemsize)

    def _describe(self, arithmetic: Arithmetic) -> int:
        compute = getattr(self._cublas.ComputeType, arithmetic.compute)
        made = self._lt.matmul_desc_create(compute, DATA_TYPES[arithmetic.scalar])
        description = self._owned(made, self._lt.matmul_desc_destroy)
        attributes, matrices = self._lt.MatmulDescAttribute, self._matrices
        self._set("matmul_desc", description, attributes.TRANSA, TRANSPOSED)
        if matrices.dtype.startswith("fp8"):
            scale = self._case.array(np.array([1.0], dtype=np.float32))
            self._set("matmul_desc", description, attributes.A_SCALE_POINTER, scale)
            self._set("matmul_desc", description, attributes.B_SCALE_POINTER, scale)
            self._set("matmul_desc", description, attributes.FAST_ACCUM, int(matrices.dtype.endswith("_fast")))
        if matrices.dtype in BLOCKS:
            blocks = BLOCKS[matrices.dtype]
            mode = getattr(self._lt.MatmulMatrixScale, blocks.mode)
            for name, rows in (("A", matrices.columns), ("B", matrices.rows)):
                count = _up(rows, SCALE_ROWS) * _up(-(-matrices.depth // blocks.elements), SCALE_COLUMNS)
                scales = self._case.array(np.full(count, blocks.unit, dtype=np.uint8))
                self._set("matmul_desc", description, getattr(attributes, f"{name}_SCALE_MODE"), mode)
                self._set("matmul_desc", description, getattr(attributes, f"{name}_SCALE_POINTER"), scales)
        return description

    def _lay_out(self) -> tuple[int, int, int]:
        """Layouts of B, A and D in cuBLASLt's own order: each of its columns is a row of ours."""
        rows, columns, depth = self._matrices.rows, self._matrices.columns, self._matrices.depth
        a, b, d = (DATA_TYPES[element] for element in self._matrices.elements)
        create, destroy = self._lt.matrix_layout_create, self._lt.matrix_layout_destroy
        layouts = (
            self._owned(create(b, depth, columns, depth), destroy),
            self._owned(create(a, depth, rows, depth), destroy),
            self._owned(create(d, columns, rows, columns), destroy),
        )
        if self._batched:
            attributes, (a_apart, b_apart, d_apart) = self._lt.MatrixLayoutAttribute, self._matrices.apart
            for layout, apart in zip(layouts, (b_apart, a_apart, d_apart), strict=True):
                self._set("matrix_layout", layout, attributes.BATCH_COUNT, self._matrices.products)
                self._set("matrix_layout", layout, attributes.STRIDED_BATCH_OFFSET, apart)
        return layouts

    def _ask(self) -> npt.NDArray[Any]:
        """The heuristics' results whose state is success."""
        preference = self._owned(self._lt.matmul_preference_create(), self._lt.matmul_preference_destroy)
        most = self._lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        self._set("matmul_preference", preference, most, WORKSPACE_BYTES)
        results, count = np.zeros(ASKED, dtype=self._lt.matmul_heuristic_result_dtype), np.zeros(1, dtype=np.int32)
        b, a, d = self._layouts
        self._lt.matmul_algo_get_heuristic(
            self._handle, self._description, b, a, d, d, preference, ASKED, results.ctypes.data, count.ctypes.data
        )
        candidates: npt.NDArray[Any] = results[: int(count[0])]
        candidates = candidates[candidates["state"] == 0]
        if len(candidates) == 0:
            shape = f"{self._matrices.rows} x {self._matrices.columns} x {self._matrices.depth}"
            batch = f"a batch of {self._matrices.products} in " if self._batched else ""
            raise Skip(f"cuBLASLt suggests no algorithm for {batch}{self._matrices.dtype} of {shape} on this GPU")
        return candidates

    def _name(self, index: int) -> str:
        return "_".join(f"{word}{self._configured(index, name)}" for name, word in NAMED_BY.items())

    def _configured(self, index: int, name: str) -> int:
        attribute = getattr(self._lt.MatmulAlgoConfigAttribute, name)
        held = np.zeros(1, dtype=self._lt.get_matmul_algo_config_attribute_dtype(attribute))
        written = np.zeros(1, dtype=np.uint64)
        self._lt.matmul_algo_config_get_attribute(
            self._algorithm(index), attribute, held.ctypes.data, held.itemsize, written.ctypes.data
        )
        return int(held[0])

    def _algorithm(self, index: int) -> int:
        """Address of a candidate's algorithm, with which a heuristic's result begins."""
        return int(self._candidates.ctypes.data) + index * self._candidates.itemsize

    def calls(self, way: str) -> tuple[Call, ...]:
        """The call of one of ``ways`` for each product and copy of B (one for all products if batched), with function
        and arguments already looked up.

        The calls use addresses of this object's data, so they work as long as it exists.
        """
        b, a, d = self._layouts
        each = [self._matrices] if self._batched else [self._matrices.one(i) for i in range(self._matrices.products)]
        algorithm, stream = self._algorithm(self.ways.index(way)), self._case.stream(0)
        alpha, beta = int(self.alpha.ctypes.data), int(self._beta.ctypes.data)
        return tuple(
            partial(
                self._lt.matmul, self._handle, self._description, alpha, copy, b, matrices.a, a, beta,
                matrices.d, d, matrices.d, d, algorithm, self._workspace, WORKSPACE_BYTES, stream,
            )
            for matrices in each
            for copy in matrices.b
        )  # fmt: skip


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
