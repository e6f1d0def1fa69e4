"""Operands of matrix products without a GPU: the device code runs on the CPU; the allowed error of a result."""

import ctypes
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from c_library import compiled
from host_case import HostCase, at

from microbench.core.errors import MeasurementError
from microbench.experiments.compute import products as gemm_products
from microbench.experiments.compute.products import (
    DATA_CODES,
    VECTORS,
    GemmData,
    allowed_error,
    bytes_of,
    relative_error,
    row_error,
)
from microbench.experiments.compute.tensor import TensorType, encode
from microbench.gpu.cuda.context import kernel_source
from microbench.gpu.protocol.matrices import ELEMENTS, FORMATS, Element, GemmType, Matrices, matrix_bytes

HEADER = Path(__file__).parent / "twin" / "cuda_on_cpu.h"
COUNT = 40_000
Bytes = npt.NDArray[np.uint8]
# The same rounding in NumPy, written for the tensor kernels.
KNOWN: dict[Element, TensorType] = {
    "fp16": "fp16", "bf16": "bf16", "e4m3": "fp8_e4m3", "e5m2": "fp8_e5m2",
}  # fmt: skip
OPERANDS: tuple[Element, ...] = ("fp64", "fp32", "fp16", "bf16", "e4m3", "e5m2", "e2m1", "int8")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("kernels")
    source = folder / "kernels.cpp"
    source.write_text(f'#include "{HEADER}"\n{kernel_source("gemm_operands")}', encoding="utf-8")
    return compiled(source, folder, "-O1", "-w", "-std=c++17")


def pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def draw(kernels: ctypes.CDLL, element: Element, data: GemmData = "normal", seed: int = 1, count: int = COUNT) -> Bytes:
    matrix: Bytes = np.zeros(matrix_bytes(element, 1, count), dtype=np.uint8)
    kernels.draw(pointer(matrix), ctypes.c_uint64(count), seed, DATA_CODES[data], *FORMATS[element])
    return matrix


def products(
    kernels: ctypes.CDLL,
    element: Element,
    matrix: Bytes,
    width: int,
    vectors: npt.NDArray[np.float64],
    block_rows: int,
) -> npt.NDArray[np.float64]:
    rows = vectors.shape[1]
    sums = np.zeros((VECTORS, width))
    arguments = (pointer(matrix), ctypes.c_uint64(rows), ctypes.c_uint64(width), pointer(vectors), pointer(sums))
    for block in range(width * -(-rows // block_rows)):
        block_index(kernels).value = block
        kernels.transposed_times(*arguments, ctypes.c_uint64(block_rows), *FORMATS[element])
    block_index(kernels).value = 0
    return sums


def block_index(kernels: ctypes.CDLL) -> ctypes.c_uint:
    return ctypes.c_uint.in_dll(kernels, "blockIdx")


def read(kernels: ctypes.CDLL, element: Element, matrix: Bytes, count: int) -> npt.NDArray[np.float64]:
    numbers: npt.NDArray[np.float64] = products(kernels, element, matrix, count, np.ones((VECTORS, 1)), 1)[0]
    return numbers


def values(element: Element, matrix: Bytes) -> npt.NDArray[np.float64]:
    """The numbers that the bytes stand for, without the device code."""
    match element:
        case "bf16":
            return (matrix.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        case "e4m3" | "e5m2":
            steps = np.arange(1.0, 2.0, 0.125)
            sizes = np.concatenate([steps * 2.0**exponent for exponent in range(-18, 4)])
            numbers = np.concatenate([sizes, -sizes, np.zeros(1)])
            codes, worth = encode(KNOWN[element], numbers)
            table = np.full(256, np.nan)
            table[codes.astype(np.intp)] = worth
            table[0x80] = 0.0
            return table[matrix]
        case "e2m1":
            table = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
            both = np.concatenate([table, -table])
            return both[np.stack([matrix & 15, matrix >> 4], axis=1).reshape(-1)]
        case _:
            numpy_type = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "int8": np.int8}[element]
            return matrix.view(numpy_type).astype(np.float64)


@pytest.mark.parametrize("element", OPERANDS)
def test_normal_numbers_have_their_mean_deviation_and_tails(kernels: ctypes.CDLL, element: Element) -> None:
    numbers = values(element, draw(kernels, element)) / (40 if element == "int8" else 1)
    far = float(np.mean(np.abs(numbers) > 2.6))  # between the steps of every type
    assert abs(numbers.mean()) < 5 / sqrt(COUNT)
    assert abs(numbers.std() - 1) < 0.02
    assert 0.004 < far < 0.025  # 0.0093, of e2m1 0.0124
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / sqrt(COUNT)


@pytest.mark.parametrize("element", ["fp16", "bf16", "e4m3", "e5m2"])
def test_numbers_are_rounded_to_the_nearest(kernels: ctypes.CDLL, element: Element) -> None:
    exact = draw(kernels, "fp32").view(np.float32).astype(np.float64)
    codes, _ = encode(KNOWN[element], exact)
    wanted = codes.view(np.uint8) if codes.dtype != np.uint8 else codes
    found = draw(kernels, element)
    if element in ("e4m3", "e5m2"):  # of a tie NumPy's takes the upper one; and there is a zero with a sign
        assert np.array_equal(values(element, found), values(element, wanted.astype(np.uint8)))
    else:
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("element", ["fp16", "bf16", "e4m3", "e5m2", "e2m1", "int8", "fp32", "fp64"])
def test_the_device_code_reads_each_type_right(kernels: ctypes.CDLL, element: Element) -> None:
    matrix = draw(kernels, element, count=400)
    assert np.array_equal(read(kernels, element, matrix, 400), values(element, matrix))
    if element in ("fp16", "bf16", "fp32", "fp64"):
        assert np.isnan(read(kernels, element, np.full(8, 0xFF, dtype=np.uint8), 1)).all(), "poison"


@pytest.mark.parametrize(("rows", "block_rows"), [(1, 1), (40, 7), (40, 40)])
@pytest.mark.parametrize("element", ["bf16", "e4m3", "int8"])
def test_a_matrix_times_vectors(kernels: ctypes.CDLL, element: Element, rows: int, block_rows: int) -> None:
    matrix, vectors = draw(kernels, element, count=24 * rows), np.random.default_rng(2).standard_normal((VECTORS, rows))
    wanted = vectors @ values(element, matrix).reshape(rows, 24)
    assert products(kernels, element, matrix, 24, vectors, block_rows) == pytest.approx(wanted, abs=1e-10)


@pytest.mark.parametrize("element", ["fp32", "e5m2", "int32"])
def test_rows_of_a_matrix_times_a_vector(kernels: ctypes.CDLL, element: Element) -> None:
    matrix = np.arange(-150, 150, dtype=np.int32).view(np.uint8)
    if element != "int32":
        matrix = draw(kernels, element, count=300)
    numbers = matrix.view(np.int32).astype(np.float64) if element == "int32" else values(element, matrix)
    vectors, sums = np.random.default_rng(2).standard_normal((VECTORS, 100)), np.zeros((VECTORS, 3))
    arguments = (pointer(matrix), ctypes.c_uint64(3), ctypes.c_uint64(100), pointer(vectors), pointer(sums))
    for row in range(3):
        block_index(kernels).value = row
        kernels.times(*arguments, *FORMATS[element])
    block_index(kernels).value = 0
    assert sums[0] == pytest.approx(numbers.reshape(3, 100) @ vectors[0])  # lane 0 of a warp, the only one here


class KernelCase(HostCase):
    """A Case whose functions are the kernels' own names, for ``run_on_cpu``."""

    def function(self, name: str, kernel: str, **defines: int) -> Any:
        return kernel

    def clear(self, pointer: int, size_bytes: int) -> None:
        ctypes.memset(pointer, 0, size_bytes)


def test_a_check_is_of_every_product(kernels: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_on_cpu(case: KernelCase, kernel: str, blocks: int, threads: int, arguments: tuple[int, ...]) -> None:
        if kernel == "transposed_times":  # a block here has one thread, so it takes a stripe of one column
            blocks = arguments[2] * -(-arguments[1] // arguments[5])
        for block in range(1 if kernel == "draw" else blocks):
            block_index(kernels).value = block
            getattr(kernels, kernel)(*map(ctypes.c_uint64, arguments))
        block_index(kernels).value = 0

    def poison(address: int, value: int, size_bytes: int) -> tuple[int]:
        ctypes.memset(address, value, size_bytes)
        return (0,)

    monkeypatch.setattr(gemm_products, "run", run_on_cpu)
    monkeypatch.setattr(gemm_products, "driver", SimpleNamespace(cuMemsetD8=poison))
    several = gemm_products.Operands(KernelCase(), Matrices("fp32", 5, 7, 12, 0, (), 0, products=3), "normal")
    several.fresh()
    with pytest.raises(MeasurementError, match="D is off by"):
        several.check()
    of_d = []
    for number in range(3):
        one = several.matrices.one(number)
        a, b = (at(address, rows * 12, np.float32).reshape(rows, 12) for address, rows in ((one.a, 5), (one.b[0], 7)))
        of_d.append(at(one.d, 35, np.float32))
        of_d[-1][:] = (a @ b.T).ravel()
        if number < 2:
            with pytest.raises(MeasurementError, match="D is off by"):
                several.check()
    assert "compared in float64" in several.check()
    of_d[1][:] = of_d[2]
    with pytest.raises(MeasurementError, match="D is off by"):
        several.check()


def test_seeds_and_places_give_other_numbers(kernels: ctypes.CDLL) -> None:
    first, second = (values("fp32", draw(kernels, "fp32", seed=seed)) for seed in (1, 2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / sqrt(COUNT)
    assert len(np.unique(first)) > 0.99 * COUNT
    assert not set(first[:1000]) & set(second)  # not the same sequence from another place on


@pytest.mark.parametrize(
    ("data", "element", "number"),
    [("ones", "bf16", 1), ("ones", "int8", 1), ("zeros", "e4m3", 0), ("constant", "e5m2", 0.75),
     ("constant", "int8", 48), ("constant", "fp16", 0.75), ("constant", "e2m1", 1)],
)  # fmt: skip
def test_constant_data_are_one_number(kernels: ctypes.CDLL, data: GemmData, element: Element, number: float) -> None:
    assert (values(element, draw(kernels, element, data)) == number).all()


@pytest.mark.parametrize(("element", "most"), [("fp64", 1.0), ("bf16", 1.0), ("int8", 127.0)])
def test_uniform_numbers_fill_their_range(kernels: ctypes.CDLL, element: Element, most: float) -> None:
    numbers = values(element, draw(kernels, element, "uniform"))
    assert -most <= numbers.min() < -0.98 * most
    assert 0.98 * most < numbers.max() <= most
    assert abs(numbers.std() / most - 1 / sqrt(3)) < 0.01


@pytest.mark.parametrize("element", ["bf16", "fp64"])
def test_two_of_four_sparse_elements_are_zero(kernels: ctypes.CDLL, element: Element) -> None:
    numbers = values(element, draw(kernels, element, "sparse"))
    fours = numbers.reshape(-1, 4) == 0
    assert (fours.sum(axis=1) == 2).all()
    assert len(np.unique(fours, axis=0)) == 6
    assert abs(np.std(numbers[numbers != 0]) - 1) < 0.02


def test_every_digit_of_a_double_is_drawn(kernels: ctypes.CDLL) -> None:
    bits = draw(kernels, "fp64").view(np.uint64)
    shares = [float(np.mean(bits >> np.uint64(bit) & np.uint64(1))) for bit in range(52)]
    assert min(shares) > 0.3
    assert max(shares) < 0.7


CENTRED: tuple[GemmData, ...] = ("normal", "uniform", "sparse")


@pytest.mark.parametrize("dtype", get_args(GemmType))
@pytest.mark.parametrize("data", CENTRED)
def test_the_allowed_error_is_below_a_fiftieth(dtype: GemmType, data: GemmData) -> None:
    for depth in (256, 4096, 8192, 8192 if dtype == "fp16_acc16" else 16384):
        assert allowed_error(dtype, depth, data) < 0.02
    assert all(allowed_error(dtype, 65536, any_data) < 1 for any_data in get_args(GemmData))


def test_the_allowed_error_grows_with_depth_and_one_sided_data() -> None:
    for dtype in ("fp16_acc16", "fp8_e4m3_fast"):
        assert allowed_error(dtype, 512, "normal") < allowed_error(dtype, 8192, "normal")
        assert allowed_error(dtype, 8192, "normal") < allowed_error(dtype, 8192, "ones")
    assert allowed_error("bf16", 512, "normal") == allowed_error("bf16", 8192, "ones")
    assert allowed_error("int8", 8192, "normal") == 0.0


@pytest.mark.parametrize(("dtype", "numpy_type"), [("fp16", np.float16), ("fp32", np.float32)])
def test_numpys_products_are_within_the_allowed_error(dtype: GemmType, numpy_type: npt.DTypeLike) -> None:
    random = np.random.default_rng(5)
    a, b = (random.standard_normal((60, 2000)).astype(numpy_type) for _ in "ab")
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    found = (a.astype(np.float32) @ b.astype(np.float32).T).astype(numpy_type).astype(np.float64)
    signs = random.choice([-1.0, 1.0], (60, VECTORS))
    for rows in (1, 60):
        error = relative_error(found[:rows] @ signs, exact[:rows] @ signs)
        assert 0 < error < allowed_error(dtype, 2000, "normal")
        assert relative_error(1.02 * found[:rows] @ signs, exact[:rows] @ signs) > allowed_error(dtype, 2000, "normal")


def test_one_wrong_row_of_many_is_noticed() -> None:
    wanted = np.random.default_rng(3).standard_normal((VECTORS, 60_000))
    found = wanted * (1 + 1e-3)
    assert row_error(found, wanted) < 3e-3
    found[:, 77] = wanted[:, 78]
    assert relative_error(found, wanted) < 8.1e-3  # what bf16 may be off by: the norm of all does not tell
    assert row_error(found, wanted) > 1
    found[5, 77] = np.nan
    assert row_error(found, wanted) == np.inf
    assert row_error(0 * wanted, 0 * wanted) == 0


@pytest.mark.parametrize(
    ("found", "wanted", "error"),
    [(1, 1, 0), (1.5, 1, 0.5), (0, 0, 0), (1, 0, np.inf), (np.nan, 1, np.inf), (np.nan, 0, np.inf)],
)
def test_relative_errors_are_finite_or_infinite_but_never_nan(found: float, wanted: float, error: float) -> None:
    assert relative_error(np.full((2, 3), found), np.full((2, 3), wanted)) == pytest.approx(error)


def test_bytes_of_a_product() -> None:
    assert bytes_of("bf16", 10, 20, 30) == (600, 1200, 400)
    assert bytes_of("fp8_e4m3", 10, 20, 30) == (300, 600, 400)
    assert bytes_of("int8", 10, 20, 30) == (300, 600, 800)
    assert bytes_of("nvfp4", 10, 20, 30) == (150, 300, 400)
    assert set(ELEMENTS) == set(get_args(GemmType))
