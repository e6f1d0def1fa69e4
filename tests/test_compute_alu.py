"""ALU instructions and clock brackets without a GPU: exact reference arithmetic, counts, times from stamps."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
from host_case import HostCase

from microbench.core.errors import MeasurementError, Skip
from microbench.gpu.cuda.compute.alu import (
    CHAIN_STEPS,
    CHAINS,
    FUNCTIONS,
    KINDS,
    STEPS,
    THREADS,
    CudaChain,
    changed,
    compare,
    decode,
    draw,
    encode,
    encode_constants,
    expected,
    fused,
    operations_of,
    rounded,
)
from microbench.gpu.cuda.compute.problem import TICKS, clock_hz
from microbench.gpu.cuda.context import compile_cubin, kernel_source
from microbench.gpu.cuda.timing import STAMPS, pass_of
from microbench.gpu.protocol.compute import AluOperation

OPERATIONS = get_args(AluOperation)


def results(operation: AluOperation, seed: int, repeats: int, sms: int = 2) -> np.ndarray[Any, Any]:
    """What the kernel would leave: words of every SM, decoded."""
    x, y = expected(operation, draw(operation, seed), repeats)
    return np.stack([np.concatenate((x, y))] * sms)


def test_a_double_multiply_add_is_rounded_once() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.uniform(-2, 2, (2, 4000))
    # Sums that nearly vanish, are far apart, or lie beside the middle of two numbers.
    third = np.concatenate((-(first * second)[:2000], generator.uniform(-1, 1, 1000) * 2.0**-60, np.ones(1000)))
    wanted = [
        float(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))
        for a, b, c in zip(first, second, third, strict=True)
    ]
    np.testing.assert_array_equal(fused(first, second, third), wanted)
    assert not np.array_equal(first * second + third, wanted)


@pytest.mark.parametrize(("third", "wanted"), [(0.0, 0.0), (2.0**-70, 2.0**-23), (-(2.0**-70), 0.0)])
def test_a_single_multiply_add_near_a_tie_is_rounded_once(third: float, wanted: float) -> None:
    # The product is 1 + 2**-11 + 2**-24: half way between two numbers.
    factor = np.array([1 + 2.0**-12])
    found = changed("fma_fp32", np.array([third]), factor, factor)
    assert found[0] == 1 + 2.0**-11 + wanted


@pytest.mark.parametrize(
    ("operation", "fraction_bits"), [("fma_fp32", 23), ("fma_fp16x2", 10), ("fma_bf16x2", 7), ("fma_fp64", 52)]
)
def test_numbers_are_rounded_to_the_nearest_even(operation: AluOperation, fraction_bits: int) -> None:
    numbers = np.random.default_rng(2).uniform(-1.999, 1.999, 2000)
    ties = 1 + (np.arange(8) + 0.5) * 2.0**-fraction_bits
    both = np.concatenate((numbers, ties, -ties))
    place = 2.0 ** (np.floor(np.log2(np.abs(both))) - fraction_bits)
    np.testing.assert_array_equal(rounded(operation, both), np.rint(both / place) * place)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_encoded_operands_decode_to_the_same_numbers(operation: AluOperation) -> None:
    operands = draw(operation, 3)
    words = encode(operation, operands)
    assert words.shape == (2 * CHAINS, THREADS)
    numbers = decode(operation, words)
    for rows, wanted in ((slice(0, 8), operands.x), (slice(8, 16), operands.y)):
        np.testing.assert_array_equal(numbers[rows], wanted)
    constants = encode_constants(operation, operands).astype("<u8").view(words.dtype)[:: 8 // words.itemsize]
    for constant, wanted in zip(decode(operation, constants), (operands.k, operands.other_k), strict=True):
        np.testing.assert_array_equal(constant, wanted)
    assert not np.array_equal(operands.x, draw(operation, 4).x)


@pytest.mark.parametrize("repeats", [10, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_numbers_stay_finite_and_differ(operation: AluOperation, repeats: int) -> None:
    x, _ = expected(operation, draw(operation, 5), repeats)
    assert np.isfinite(x).all()
    assert len(np.unique(x)) > 500  # bfloat16 has no more
    if operation.startswith("fma"):
        assert 0.3 < np.median(np.abs(x)) < 3
        assert np.abs(x).max() < 8


@pytest.mark.parametrize("operation", OPERATIONS)
def test_right_results_pass_and_wrong_ones_do_not(operation: AluOperation) -> None:
    operands = draw(operation, 6)
    compare(operation, operands, 2, results(operation, 6, 2))
    for wrong in (results(operation, 6, 1), results(operation, 7, 2), results(operation, 6, 3)):
        with pytest.raises(MeasurementError, match=f"{operation}: .* results are wrong"):
            compare(operation, operands, 2, wrong)
    spoilt = results(operation, 6, 2)
    spoilt[1, 3, 77, 0] = np.nan if operation in FUNCTIONS else spoilt[1, 3, 77, 0] + 1
    with pytest.raises(MeasurementError, match=f"{operation}: 1 of {spoilt.size} results"):
        compare(operation, operands, 2, spoilt)


@pytest.mark.parametrize("operation", FUNCTIONS)
def test_a_missing_special_function_is_noticed(operation: AluOperation, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = draw(operation, 8)
    right = results(operation, 8, 1)
    monkeypatch.setitem(STEPS, operation, STEPS[operation] - 2)
    with pytest.raises(MeasurementError, match="results are wrong"):
        compare(operation, operands, 1, right)


def test_operations_are_counted_as_in_the_programming_guide() -> None:
    pairs = 1024 * 8
    assert operations_of("fma_fp32") == operations_of("fma_fp64") == pairs * 64 * 2
    assert operations_of("fma_fp16x2") == operations_of("fma_bf16x2") == pairs * 64 * 4
    assert operations_of("mad_int32") == operations_of("add_int32") == pairs * 64
    assert operations_of("exp2_fp32") == operations_of("rsqrt_fp32") == pairs * 4


def test_the_kernel_source_has_the_same_counts() -> None:
    source = kernel_source("alu")
    special, other = STEPS["exp2_fp32"], STEPS["fma_fp32"]
    assert f"THREADS = {THREADS}, CHAINS = {CHAINS}, STEPS = SPECIAL ? {special} : {other}" in source
    assert f"CHAIN_STEPS = {CHAIN_STEPS};" in source


@pytest.mark.parametrize(
    "architecture", ["90", *(pytest.param(name, marks=pytest.mark.slow) for name in ("75", "80", "120"))]
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_compiles(operation: AluOperation, architecture: str) -> None:
    if (operation, architecture) == ("fma_bf16x2", "75"):
        with pytest.raises(MeasurementError):
            compile_cubin("alu", architecture, {"KIND": KINDS[operation]})
    else:
        assert compile_cubin("alu", architecture, {"KIND": KINDS[operation]}).startswith(b"\x7fELF")


def test_bfloat16_is_skipped_before_8_0() -> None:
    with pytest.raises(Skip, match=r"bfloat16 needs compute capability 8\.0; this GPU has 7\.5"):
        CudaChain(HostCase((7, 5)), "fma_bf16x2")


def stamps(*blocks: tuple[int, int, int, int]) -> np.ndarray[Any, Any]:
    return np.array([(*block, 0) for block in blocks], dtype=STAMPS)


def test_a_pass_lasts_from_the_first_begin_to_the_last_end() -> None:
    taken = pass_of(stamps((100, 200, 150, 4), (90, 190, 170, 7), (120, 260, 160, 1)))
    assert taken.seconds == pytest.approx(170e-9)
    assert taken.cycles == 160


def test_two_blocks_on_one_sm_are_an_error() -> None:
    with pytest.raises(MeasurementError, match="two blocks shared an SM"):
        pass_of(stamps((0, 1, 1, 4), (0, 1, 1, 4)))


def ticks(*blocks: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    return np.array([(*block, 0) for block in blocks], dtype=TICKS)


def test_a_clock_is_the_median_over_the_sms_in_both() -> None:
    first = ticks((1000, 0, 0), (5000, 32, 1), (7000, 0, 2), (10, 0, 9))
    last = ticks((9500, 1000, 2), (2500, 1000, 0), (6936, 1000, 1), (99, 1000, 8))
    assert clock_hz(first, last) == pytest.approx(2.0e9)  # 1.5, 2.0 and 2.5 cycles a nanosecond


def test_a_clock_without_a_common_sm_or_without_time_is_an_error() -> None:
    for last in (ticks((2000, 1000, 1)), ticks((2000, 500, 0))):
        with pytest.raises(MeasurementError, match="no SM and no time in common"):
            clock_hz(ticks((1000, 500, 0)), last)


def test_counters_of_an_sm_may_be_large() -> None:
    first, last = ticks((1 << 62, 1 << 61, 0)), ticks(((1 << 62) + 3, (1 << 61) + 2, 0))
    assert clock_hz(first, last) == pytest.approx(1.5e9)
