"""Matrix products by libraries without a GPU: the calls of cuBLASLt, CuPy and PyTorch, skips, and room for operands."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from cublaslt_stand_in import ALGORITHMS, Bindings, CublasLtError, install
from host_case import DEVICE, STREAM, HostCase, at, cupy_on_host

from microbench.core.errors import MeasurementError, Skip
from microbench.experiments.compute import products
from microbench.experiments.compute.cublaslt import WORKSPACE_BYTES, CublasLt, unique
from microbench.experiments.compute.products import Problem, copies_beyond, in_turn
from microbench.gpu.layers.cupy import cupy_calls
from microbench.gpu.layers.torch import torch_calls
from microbench.gpu.protocol.matrices import GemmType, Matrices

ROWS, COLUMNS, DEPTH = 5, 7, 12
NUMPY_TYPES: dict[GemmType, tuple[type, type]] = {
    "fp64": (np.float64, np.float64), "fp32": (np.float32, np.float32), "tf32": (np.float32, np.float32),
    "fp16": (np.float16, np.float16), "fp16_acc16": (np.float16, np.float16), "int8": (np.int8, np.int32),
}  # fmt: skip


COMPUTE_TYPES = {
    "fp64": "COMPUTE_64F", "tf32": "COMPUTE_32F_FAST_TF32", "fp16_acc16": "COMPUTE_16F", "int8": "COMPUTE_32I",
}  # fmt: skip


class HostProduct:
    """Operands in host memory, small whole numbers, and how D should be."""

    def __init__(self, case: HostCase, dtype: GemmType, copies: int = 1) -> None:
        element, result = NUMPY_TYPES.get(dtype, (np.uint16, np.uint16))
        size = np.dtype(element).itemsize
        take, random = case.device_memory, np.random.default_rng(3)
        addresses = [take(ROWS * DEPTH * size), *(take(COLUMNS * DEPTH * size) for _ in range(copies))]
        d = take(ROWS * COLUMNS * np.dtype(result).itemsize)
        self.matrices = Matrices(dtype, ROWS, COLUMNS, DEPTH, addresses[0], tuple(addresses[1:]), d)
        self.a = at(addresses[0], ROWS * DEPTH, element).reshape(ROWS, DEPTH)
        self.b = [at(one, COLUMNS * DEPTH, element).reshape(COLUMNS, DEPTH) for one in addresses[1:]]
        self.d = at(d, ROWS * COLUMNS, result).reshape(ROWS, COLUMNS)
        for matrix in (self.a, *self.b):
            matrix[:] = random.integers(0, 9, matrix.shape)

    def right(self, copy: int = 0) -> bool:
        return bool((self.d == self.a.astype(np.int64) @ self.b[copy].astype(np.int64).T).all())


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Bindings:
    made = Bindings()
    install(monkeypatch, made)
    return made


@pytest.mark.parametrize("dtype", list(NUMPY_TYPES))
def test_cublaslt_is_asked_for_the_product(bindings: Bindings, dtype: GemmType) -> None:
    case = HostCase()
    product = HostProduct(case, dtype)
    made = CublasLt(case, product.matrices)
    description = next(one for one in bindings.made if one.kind == "matmul_desc")
    assert description.arguments[0] == COMPUTE_TYPES.get(dtype, "COMPUTE_32F")
    assert made.ways == (
        "algo66_tile0_stages0_cluster0_custom0_splitk1",
        "algo21_tile0_stages0_cluster0_custom0_splitk4",
        "algo21_tile0_stages0_cluster0_custom0_splitk4_2",
    )
    for way in made.ways:
        product.d[:] = 99
        made.calls(way)[0]()
        assert product.right()
    assert bindings.used == [66, 21, 21]
    made.alpha[0] *= 2
    made.calls(made.ways[0])[0]()
    assert not product.right()
    case.end()
    assert bindings.made == [None] * len(bindings.made)


def attributes(bindings: Bindings, dtype: GemmType) -> tuple[Any, HostCase]:
    case = HostCase((10, 0))
    CublasLt(case, Matrices(dtype, 130, 256, 96, 0, (0,), 0))
    return next(made.attributes for made in bindings.made if made.kind == "matmul_desc"), case


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_fp8_is_scaled_by_one(bindings: Bindings, monkeypatch: pytest.MonkeyPatch, dtype: str, fast: bool) -> None:
    set_to, case = attributes(bindings, f"{dtype}_fast" if fast else dtype)  # type: ignore[arg-type]
    assert set_to["FAST_ACCUM"] == fast
    assert set_to["TRANSA"] == 1
    assert [at(set_to[f"{side}_SCALE_POINTER"], 1, np.float32)[0] for side in "AB"] == [1.0, 1.0]
    assert [one.arguments[0] for one in bindings.made if one.kind == "matrix_layout"] == [
        28, 28 if "e4m3" in dtype else 29, 14,
    ]  # fmt: skip
    assert case.memory


@pytest.mark.parametrize(("dtype", "one", "sizes"), [("mxfp8", 127, (256 * 4, 256 * 4)), ("nvfp4", 56, (2048, 2048))])
def test_blocks_are_scaled_by_one(
    bindings: Bindings, monkeypatch: pytest.MonkeyPatch, dtype: GemmType, one: int, sizes: tuple[int, int]
) -> None:
    monkeypatch.setattr(Bindings, "MatmulMatrixScale", SimpleNamespace(VEC32_UE8M0=2, VEC16_UE4M3=1))
    set_to, case = attributes(bindings, dtype)
    assert [set_to[f"{side}_SCALE_MODE"] for side in "AB"] == [2 if dtype == "mxfp8" else 1] * 2
    held = {int(one.ctypes.data): one for one in case.memory}
    scales = [held[set_to[f"{side}_SCALE_POINTER"]] for side in "AB"]
    assert tuple(len(each) for each in scales) == sizes  # rows to 128, scales of a row to 4
    assert all((each == one).all() for each in scales)


@pytest.mark.parametrize(
    ("dtype", "needs"), [("fp8_e4m3", "8.9"), ("fp8_e5m2_fast", "8.9"), ("mxfp8", "10.0"), ("nvfp4", "10.0")]
)
def test_types_that_the_gpu_lacks_are_skipped(bindings: Bindings, dtype: GemmType, needs: str) -> None:
    with pytest.raises(Skip, match=f"{dtype} needs compute capability {needs}; this GPU has 8.6"):
        CublasLt(HostCase((8, 6)), Matrices(dtype, 16, 16, 32, 0, (0,), 0))
    assert not bindings.made


def test_a_skip_gives_the_shape_without_a_candidate_or_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Bindings(given=0))
    with pytest.raises(Skip, match=r"no algorithm for int8 of 1 x 16 x 20"):
        CublasLt(HostCase(), Matrices("int8", 1, 16, 20, 0, (0,), 0))
    monkeypatch.setitem(sys.modules, "nvmath", None)
    with pytest.raises(Skip, match=r"needs nvmath: pip install 'nvmath-python\[cu13\]'"):
        CublasLt(HostCase(), Matrices("bf16", 16, 16, 16, 0, (0,), 0))


@pytest.mark.parametrize(
    "error", [RuntimeError("libcublasLt is not found"), CublasLtError("NOT_SUPPORTED. You can set X")]
)
def test_an_error_of_the_library_is_the_reason_of_the_skip(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuses() -> int:
        raise error

    install(monkeypatch, made := Bindings())
    made.create = refuses
    with pytest.raises(Skip, match=r"^cuBLASLt, bf16: (libcublasLt is not found|NOT_SUPPORTED)$"):
        CublasLt(HostCase(), Matrices("bf16", 16, 16, 16, 0, (0,), 0))


def test_copies_are_used_in_turn(bindings: Bindings) -> None:
    case = HostCase()
    product = HostProduct(case, "fp32", copies=3)
    made = CublasLt(case, product.matrices)
    call = in_turn(made.calls(made.ways[0]))
    for copy in (0, 1, 2, 0, 1):
        call()
        assert product.right(copy)
        assert not product.right((copy + 1) % 3)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_several_products_are_computed_one_by_one_or_in_one_call(
    bindings: Bindings, dtype: GemmType, batched: bool
) -> None:
    case, products = HostCase(), 3
    shape = Matrices(dtype, ROWS, COLUMNS, DEPTH, 0, (0,), 0, products)
    element, result = NUMPY_TYPES[dtype]
    size = np.dtype(element).itemsize
    assert all(apart * size % 256 == 0 for apart in shape.apart)
    a, b, d = (case.device_memory(products * apart * size) for apart in shape.apart)
    matrices = shape._replace(a=a, b=(b,), d=d)
    of_a, of_b, of_d = (
        [at(address + i * apart * size, rows * columns, element).reshape(rows, columns) for i in range(products)]
        for address, apart, rows, columns in zip(
            (a, b, d), shape.apart, (ROWS, COLUMNS, ROWS), (DEPTH, DEPTH, COLUMNS), strict=True
        )
    )
    random = np.random.default_rng(4)
    for matrix in (*of_a, *of_b):
        matrix[:] = random.integers(0, 9, matrix.shape)

    def right(i: int) -> bool:
        return np.array_equal(of_d[i], (of_a[i].astype(int) @ of_b[i].astype(int).T).astype(result))

    made = CublasLt(case, matrices, batched=batched)
    calls = made.calls(made.ways[0])
    assert len(calls) == (1 if batched else products)
    assert not any(map(right, range(products)))
    for number, call in enumerate(calls):
        call()
        assert [right(i) for i in range(products)] == [batched or i <= number for i in range(products)]
    operands: Any = SimpleNamespace(matrices=matrices, fresh=None, check=None)
    problem = Problem(case, operands, batched=batched)
    assert problem.operations == 2 * ROWS * COLUMNS * DEPTH * (products if batched else 1)
    with pytest.raises(Skip, match="by cuBLASLt only, not by torch"):
        problem.ways("torch")


def test_ways_that_do_not_exist_or_do_not_run_are_errors(bindings: Bindings) -> None:
    assert unique(["a", "b", "a", "a"]) == ("a", "b", "a_2", "a_3")
    case = HostCase()
    operands: Any = SimpleNamespace(matrices=HostProduct(case, "fp32").matrices, fresh=None, check=None)
    problem = Problem(case, operands)
    assert problem.operations == 2 * ROWS * COLUMNS * DEPTH
    assert problem.size_bytes == 4 * (ROWS * DEPTH + COLUMNS * DEPTH + ROWS * COLUMNS)
    ways = problem.ways("cublaslt")
    assert len(ways) == 3
    with pytest.raises(MeasurementError, match="cublaslt has no way 'sideways'"):
        problem.gemm("cublaslt", "sideways")
    bindings.refused = {ALGORITHMS[1][0]}
    with pytest.raises(MeasurementError, match="refuses the algorithm that it suggested: CUBLAS_STATUS_INTERNAL_ERROR"):
        problem.gemm("cublaslt", ways[1])


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16"])
def test_cupy_multiplies_on_the_stream(monkeypatch: pytest.MonkeyPatch, dtype: GemmType) -> None:
    acts: list[str] = []
    monkeypatch.setitem(sys.modules, "cupy", cupy_on_host(acts))
    case = HostCase()
    product = HostProduct(case, dtype, copies=2)
    for copy, call in enumerate(cupy_calls(STREAM, DEVICE, product.matrices, case.own)):
        call()
        assert product.right(copy)
    case.end()
    assert acts == [f"device {DEVICE}", f"stream {STREAM}", "stream restored", "pool emptied"]


def test_types_that_a_library_lacks_or_refuses_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def multiply(calls: Callable[..., object], dtype: str) -> None:
        calls(STREAM, DEVICE, Matrices(dtype, 8, 8, 8, 0, (0,), 0), print)  # type: ignore[arg-type]

    for dtype in set(get_args(GemmType)) - {"fp64", "fp32", "fp16"}:
        with pytest.raises(Skip, match=r"CuPy|cupy"):
            multiply(cupy_calls, dtype)
    monkeypatch.setenv("CUPY_TF32", "1")
    with pytest.raises(Skip, match="multiplies fp32 in tf32"):
        multiply(cupy_calls, "fp32")
    for dtype in ("fp16_acc16", "mxfp8", "nvfp4"):
        with pytest.raises(Skip, match="PyTorch"):
            multiply(torch_calls, dtype)


@pytest.mark.parametrize(("l2_bytes", "copy_bytes", "free_bytes", "copies"), [
    (50, 100, 10_000, 2), (50, 201, 10_000, 1), (50, 30, 10_000, 7), (50, 1, 10_000, 64), (50, 30, 100, 4),
    (50, 30, 0, 1), (50, 30, -5, 1), (0, 1 << 30, 1 << 40, 2),
])  # fmt: skip
def test_copies_go_beyond_the_l2_as_memory_allows(l2_bytes: int, copy_bytes: int, free_bytes: int, copies: int) -> None:
    assert copies_beyond(l2_bytes, copy_bytes, free_bytes) == copies


def test_operands_that_do_not_fit_are_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(cuMemGetInfo=lambda: (0, 1 << 30, 2 << 30))
    monkeypatch.setattr(products, "driver", free)
    case = HostCase()
    assert products.real_free_bytes(case) == (1 << 30) - products.RESERVE_BYTES
    assert products.real_needed_bytes(case, "fp64", 4096, 4096, 4096) > 3 * (128 << 20) + WORKSPACE_BYTES
    with pytest.raises(Skip, match=r"of device memory asked for fp64 of 8192 x 8192 x 8192, .* are free"):
        products.real_problem(case, Matrices("fp64", 8192, 8192, 8192, 0, (), 0), "normal", False, False)
