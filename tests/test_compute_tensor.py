"""Operands and results of tensor instructions on the host: rounding, layouts, counts."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from microbench.core.errors import MeasurementError
from microbench.gpu.cuda.compute.tensor import (
    KINDS,
    encode,
    mma_plan,
    normal,
    result_type,
    swizzled,
    unpacked,
    wgmma_plan,
)
from microbench.gpu.cuda.context import compile_cubin, target
from microbench.gpu.protocol.compute import TensorType

# Half of the last place of each type, relative to a number's power of two.
HALF_PLACE = {"tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3}


@pytest.mark.parametrize("dtype", HALF_PLACE)
def test_numbers_are_rounded_to_the_nearest(dtype: TensorType) -> None:
    numbers = np.random.default_rng(1).uniform(0.25, 200.0, (50, 40)) * np.random.default_rng(2).choice(
        [-1, 1], (50, 40)
    )
    _, values = encode(dtype, numbers)
    power = 2.0 ** np.floor(np.log2(np.abs(numbers)))
    assert (np.abs(values - numbers) <= HALF_PLACE[dtype] * power * 1.001).all()
    _, again = encode(dtype, values)
    np.testing.assert_array_equal(again, values)


@pytest.mark.parametrize(("dtype", "number", "code"), [
    ("fp8_e4m3", 1.0, 0x38), ("fp8_e4m3", -448.0, 0xFE), ("fp8_e4m3", 2.0**-9, 0x01), ("fp8_e5m2", 1.0, 0x3C),
    ("fp8_e5m2", -2.0**-16, 0x81), ("bf16", 1.0, 0x3F80), ("tf32", -2.0, 0xC0000000), ("int8", 1.0, 40),
    ("int8", 9.0, 127),
])  # fmt: skip
def test_codes_are_those_of_the_types(dtype: TensorType, number: float, code: int) -> None:
    elements, _ = encode(dtype, np.array([[number]]))
    assert int(elements[0, 0]) == code


@pytest.mark.parametrize("dtype", get_args(TensorType))
def test_rows_have_their_bytes(dtype: TensorType) -> None:
    matrix = normal(dtype, 3, 128, seed=7)
    assert matrix.raw.shape == (3, 128)
    assert np.isfinite(matrix.values).all()
    assert not np.array_equal(matrix.values, normal(dtype, 3, 128, seed=8).values)


def test_swizzling_keeps_all_pieces_and_spreads_them_over_banks() -> None:
    raw = np.arange(16 * 128, dtype=np.int64).astype(np.uint8).reshape(16, 128)
    pieces = swizzled(raw).reshape(16, 8, 16)
    for row in range(16):
        for piece in range(8):
            np.testing.assert_array_equal(pieces[row, piece ^ (row % 8)], raw[row, 16 * piece : 16 * piece + 16])
    # The first pieces of eight rows lie in different banks.
    assert len({int(np.flatnonzero((pieces[row] == raw[row, :16]).all(axis=1))[0]) for row in range(8)}) == 8


@pytest.mark.parametrize(("dtype", "threads", "words", "warp_rows", "shape"), [
    ("bf16", 128, 128, 16, (64, 256)), ("fp16_acc16", 128, 64, 16, (64, 256)), ("int8", 32, 32, 16, (16, 64)),
    ("fp64", 32, 16, 16, (16, 32)), ("fp64", 32, 8, 8, (8, 32)), ("fp16_acc16", 32, 16, 16, (16, 64)),
])  # fmt: skip
def test_each_result_has_one_place(
    dtype: TensorType, threads: int, words: int, warp_rows: int, shape: tuple[int, int]
) -> None:
    kind = result_type(dtype)
    count = threads * words * (2 if dtype == "fp16_acc16" else 1)
    halves = np.float16 if dtype == "fp16_acc16" else kind
    numbers = (np.arange(count) % 2048).astype(halves).reshape(threads, -1)
    matrix = unpacked(dtype, numbers.view(kind).reshape(threads, words), warp_rows)
    assert matrix.shape == shape
    np.testing.assert_array_equal(np.sort(matrix.ravel()), np.sort(numbers.ravel().astype(np.float64)))
    # Lane 5 of the first warp: row 1, columns 2 and 3.
    np.testing.assert_array_equal(matrix[1, 2:4], numbers[5, :2].astype(np.float64))


def test_a_multiply_add_counts_as_two_operations() -> None:
    assert wgmma_plan("bf16", 1).operations == 2 * (2 * 64) * 256 * 64 * 4
    assert mma_plan("bf16", 1, (9, 0)).operations == 2 * 16 * (8 * 8) * 16 * 8 * 16
    assert mma_plan("fp64", 1, (8, 0)).operations == 2 * 8 * (8 * 4) * 4 * 2 * 16
    assert mma_plan("fp64", 1, (9, 0)).operations == 2 * 16 * (8 * 4) * 16 * 2 * 16


def test_architecture_specific_code_is_compiled_for_its_architecture() -> None:
    assert target("tensor_wgmma", "90") == "90a"
    assert target("tensor_wgmma", "100") == "100"
    assert target("tensor_mma", "90") == "90"


@pytest.mark.parametrize(
    ("kernel", "architecture"),
    [("tensor_wgmma", "90a"), ("tensor_mma", "90"), pytest.param("tensor_mma", "80", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("dtype", get_args(TensorType))
def test_every_type_compiles(kernel: str, architecture: str, dtype: TensorType) -> None:
    if (kernel, dtype) == ("tensor_wgmma", "fp64") or (architecture == "80" and dtype.startswith("fp8")):
        with pytest.raises(MeasurementError):
            compile_cubin(kernel, architecture, {"KIND": KINDS[dtype]})
    else:
        assert compile_cubin(kernel, architecture, {"KIND": KINDS[dtype]}).startswith(b"\x7fELF")
