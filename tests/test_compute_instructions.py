"""ALU and tensor instructions without a GPU: exact references, rounding, layouts, counts, stamps."""

from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
from host_case import HostCase

from microbench.core.errors import MeasurementError, Skip
from microbench.experiments.compute import alu, tensor
from microbench.experiments.compute.alu import AluOperation
from microbench.experiments.compute.instructions import TICKS, clock_hz
from microbench.experiments.compute.tensor import TensorType
from microbench.gpu.cuda.context import compile_cubin, kernel_source, target
from microbench.gpu.cuda.timing import STAMPS, pass_of

OPERATIONS = get_args(AluOperation)


def results(operation: AluOperation, seed: int, repeats: int, sms: int = 2) -> np.ndarray[Any, Any]:
    x, y = alu.expected(operation, alu.draw(operation, seed), repeats)
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
    np.testing.assert_array_equal(alu.fused(first, second, third), wanted)
    assert not np.array_equal(first * second + third, wanted)


@pytest.mark.parametrize(("third", "wanted"), [(0.0, 0.0), (2.0**-70, 2.0**-23), (-(2.0**-70), 0.0)])
def test_a_single_multiply_add_near_a_tie_is_rounded_once(third: float, wanted: float) -> None:
    # The product is 1 + 2**-11 + 2**-24: half way between two numbers.
    factor = np.array([1 + 2.0**-12])
    found = alu.changed("fma_fp32", np.array([third]), factor, factor)
    assert found[0] == 1 + 2.0**-11 + wanted


@pytest.mark.parametrize(
    ("operation", "fraction_bits"), [("fma_fp32", 23), ("fma_fp16x2", 10), ("fma_bf16x2", 7), ("fma_fp64", 52)]
)
def test_numbers_are_rounded_to_the_nearest_even(operation: AluOperation, fraction_bits: int) -> None:
    numbers = np.random.default_rng(2).uniform(-1.999, 1.999, 2000)
    ties = 1 + (np.arange(8) + 0.5) * 2.0**-fraction_bits
    both = np.concatenate((numbers, ties, -ties))
    place = 2.0 ** (np.floor(np.log2(np.abs(both))) - fraction_bits)
    np.testing.assert_array_equal(alu.rounded(operation, both), np.rint(both / place) * place)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_encoded_operands_decode_to_the_same_numbers(operation: AluOperation) -> None:
    operands = alu.draw(operation, 3)
    words = alu.encode(operation, operands)
    assert words.shape == (2 * alu.CHAINS, alu.THREADS)
    numbers = alu.decode(operation, words)
    for rows, wanted in ((slice(0, 8), operands.x), (slice(8, 16), operands.y)):
        np.testing.assert_array_equal(numbers[rows], wanted)
    constants = alu.encode_constants(operation, operands).astype("<u8").view(words.dtype)[:: 8 // words.itemsize]
    for constant, wanted in zip(alu.decode(operation, constants), (operands.k, operands.other_k), strict=True):
        np.testing.assert_array_equal(constant, wanted)
    assert not np.array_equal(operands.x, alu.draw(operation, 4).x)


@pytest.mark.parametrize("repeats", [10, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_numbers_stay_finite_and_differ(operation: AluOperation, repeats: int) -> None:
    x, _ = alu.expected(operation, alu.draw(operation, 5), repeats)
    assert np.isfinite(x).all()
    assert len(np.unique(x)) > 500  # bfloat16 has no more
    if operation.startswith("fma"):
        assert 0.3 < np.median(np.abs(x)) < 3
        assert np.abs(x).max() < 8


@pytest.mark.parametrize("operation", OPERATIONS)
def test_right_results_pass_and_wrong_ones_do_not(operation: AluOperation) -> None:
    operands = alu.draw(operation, 6)
    alu.compare(operation, operands, 2, results(operation, 6, 2))
    for wrong in (results(operation, 6, 1), results(operation, 7, 2), results(operation, 6, 3)):
        with pytest.raises(MeasurementError, match=f"{operation}: .* results are wrong"):
            alu.compare(operation, operands, 2, wrong)
    spoilt = results(operation, 6, 2)
    spoilt[1, 3, 77, 0] = np.nan if operation in alu.FUNCTIONS else spoilt[1, 3, 77, 0] + 1
    with pytest.raises(MeasurementError, match=f"{operation}: 1 of {spoilt.size} results"):
        alu.compare(operation, operands, 2, spoilt)


@pytest.mark.parametrize("operation", alu.FUNCTIONS)
def test_a_missing_special_function_is_noticed(operation: AluOperation, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = alu.draw(operation, 8)
    right = results(operation, 8, 1)
    fewer = alu.steps_of(operation) - 2
    monkeypatch.setattr(alu, "steps_of", lambda operation: fewer)
    with pytest.raises(MeasurementError, match="results are wrong"):
        alu.compare(operation, operands, 1, right)


def test_operations_are_counted_as_in_the_programming_guide() -> None:
    pairs = 1024 * 8
    assert alu.operations_of("fma_fp32") == alu.operations_of("fma_fp64") == pairs * 64 * 2
    assert alu.operations_of("fma_fp16x2") == alu.operations_of("fma_bf16x2") == pairs * 64 * 4
    assert alu.operations_of("mad_int32") == alu.operations_of("add_int32") == pairs * 64
    assert alu.operations_of("exp2_fp32") == alu.operations_of("rsqrt_fp32") == pairs * 4


def test_the_kernel_source_has_the_same_counts() -> None:
    source = kernel_source("alu")
    special, other = alu.steps_of("exp2_fp32"), alu.steps_of("fma_fp32")
    assert f"THREADS = {alu.THREADS}, CHAINS = {alu.CHAINS}, STEPS = SPECIAL ? {special} : {other}" in source
    assert f"CHAIN_STEPS = {alu.CHAIN_STEPS};" in source


def test_bfloat16_is_skipped_before_8_0() -> None:
    with pytest.raises(Skip, match=r"bfloat16 needs compute capability 8\.0; this GPU has 7\.5"):
        alu.Chain(HostCase((7, 5)), "fma_bf16x2")


def stamps(*blocks: tuple[int, int, int, int]) -> np.ndarray[Any, Any]:
    return np.array([(*block, 0) for block in blocks], dtype=STAMPS)


def test_a_pass_lasts_from_the_first_begin_to_the_last_end() -> None:
    taken = pass_of(stamps((100, 200, 150, 4), (90, 190, 170, 7), (120, 260, 160, 1)))
    assert taken.seconds == pytest.approx(170e-9)
    assert taken.cycles == 160
    with pytest.raises(MeasurementError, match="two blocks shared an SM"):
        pass_of(stamps((0, 1, 1, 4), (0, 1, 1, 4)))


def ticks(*blocks: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    return np.array([(*block, 0) for block in blocks], dtype=TICKS)


def test_a_clock_is_the_median_over_the_sms_in_both() -> None:
    first = ticks((1000, 0, 0), (5000, 32, 1), (7000, 0, 2), (10, 0, 9))
    last = ticks((9500, 1000, 2), (2500, 1000, 0), (6936, 1000, 1), (99, 1000, 8))
    assert clock_hz(first, last) == pytest.approx(2.0e9)  # 1.5, 2.0 and 2.5 cycles a nanosecond
    first, last = ticks((1 << 62, 1 << 61, 0)), ticks(((1 << 62) + 3, (1 << 61) + 2, 0))
    assert clock_hz(first, last) == pytest.approx(1.5e9)  # counters may be large


def test_a_clock_without_a_common_sm_or_without_time_is_an_error() -> None:
    for last in (ticks((2000, 1000, 1)), ticks((2000, 500, 0))):
        with pytest.raises(MeasurementError, match="no SM and no time in common"):
            clock_hz(ticks((1000, 500, 0)), last)


# Half of the last place of each type, relative to a number's power of two.
HALF_PLACE = {"tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3}


@pytest.mark.parametrize("dtype", HALF_PLACE)
def test_numbers_are_rounded_to_the_nearest(dtype: TensorType) -> None:
    numbers = np.random.default_rng(1).uniform(0.25, 200.0, (50, 40)) * np.random.default_rng(2).choice(
        [-1, 1], (50, 40)
    )
    _, values = tensor.encode(dtype, numbers)
    power = 2.0 ** np.floor(np.log2(np.abs(numbers)))
    assert (np.abs(values - numbers) <= HALF_PLACE[dtype] * power * 1.001).all()
    _, again = tensor.encode(dtype, values)
    np.testing.assert_array_equal(again, values)


@pytest.mark.parametrize(("dtype", "number", "code"), [
    ("fp8_e4m3", 1.0, 0x38), ("fp8_e4m3", -448.0, 0xFE), ("fp8_e4m3", 2.0**-9, 0x01), ("fp8_e5m2", 1.0, 0x3C),
    ("fp8_e5m2", -2.0**-16, 0x81), ("bf16", 1.0, 0x3F80), ("tf32", -2.0, 0xC0000000), ("int8", 1.0, 40),
    ("int8", 9.0, 127),
])  # fmt: skip
def test_codes_are_those_of_the_types(dtype: TensorType, number: float, code: int) -> None:
    elements, _ = tensor.encode(dtype, np.array([[number]]))
    assert int(elements[0, 0]) == code


@pytest.mark.parametrize("dtype", get_args(TensorType))
def test_rows_have_their_bytes(dtype: TensorType) -> None:
    matrix = tensor.normal(dtype, 3, 128, seed=7)
    assert matrix.raw.shape == (3, 128)
    assert np.isfinite(matrix.values).all()
    assert not np.array_equal(matrix.values, tensor.normal(dtype, 3, 128, seed=8).values)


def test_swizzling_keeps_all_pieces_and_spreads_them_over_banks() -> None:
    raw = np.arange(16 * 128, dtype=np.int64).astype(np.uint8).reshape(16, 128)
    pieces = tensor.swizzled(raw).reshape(16, 8, 16)
    for row in range(16):
        for piece in range(8):
            np.testing.assert_array_equal(pieces[row, piece ^ (row % 8)], raw[row, 16 * piece : 16 * piece + 16])
    # The first pieces of eight rows lie in different banks.
    assert len({int(np.flatnonzero((pieces[row] == raw[row, :16]).all(axis=1))[0]) for row in range(8)}) == 8


@pytest.mark.parametrize(("dtype", "threads", "words", "warp_rows", "shape"), [
    ("bf16", 128, 128, 16, (64, 256)), ("fp16_acc16", 128, 64, 16, (64, 256)), ("int8", 32, 32, 16, (16, 64)),
    ("fp64", 32, 16, 16, (16, 32)), ("fp64", 32, 8, 8, (8, 32)), ("fp16_acc16", 32, 16, 16, (16, 64)),
])  # fmt: skip
def test_places_of_results(dtype: TensorType, threads: int, words: int, warp_rows: int, shape: tuple[int, int]) -> None:
    kind = tensor.RESULT_TYPES.get(dtype, np.float32)
    count = threads * words * (2 if dtype == "fp16_acc16" else 1)
    halves = np.float16 if dtype == "fp16_acc16" else kind
    numbers = (np.arange(count) % 2048).astype(halves).reshape(threads, -1)
    matrix = tensor.unpacked(dtype, numbers.view(kind).reshape(threads, words), warp_rows)
    assert matrix.shape == shape
    np.testing.assert_array_equal(np.sort(matrix.ravel()), np.sort(numbers.ravel().astype(np.float64)))
    # Lane 5 of the first warp: row 1, columns 2 and 3.
    np.testing.assert_array_equal(matrix[1, 2:4], numbers[5, :2].astype(np.float64))


def whole(raw: np.ndarray[Any, Any], places: np.ndarray[Any, Any], dtype: TensorType) -> np.ndarray[Any, Any]:
    """16 x 32 numbers of rows of 16 stored ones, by the places that lanes 4 g and 4 g + 1 hold, as PTX ISA draws it."""
    stored = tensor.encode(dtype, np.zeros((1, 1)))[0].dtype
    numbers = raw.view(stored).reshape(16, 16)
    result = np.zeros((16, 32))
    for row in range(16):
        for column in range(16):
            word = int(places[4 * (row % 8) + column // 8])
            chunk = word >> 16 * (row // 8) >> 4 * (column // 2 % 4) & 0b1111
            place = chunk & 0b11 if column % 2 == 0 else chunk >> 2
            value = numbers[row, column]
            if dtype == "bf16":
                value = (np.array([value]).astype(np.uint32) << np.uint32(16)).view(np.float32)[0]
            result[row, column // 2 * 4 + place] = value
    return result


@pytest.mark.parametrize("dtype", tensor.SPARSE_KINDS)
def test_sparse_operands_of_warps_give_the_expected_product(dtype: TensorType) -> None:
    plan = tensor.mma_plan(dtype, 5, (9, 0), skips=True)
    times = tiles = 8
    first, rest = plan.operands[: times * 512].reshape(times, 512), plan.operands[times * 512 :]
    second, places = rest[: tiles * 512].reshape(tiles * 8, 64), rest[tiles * 512 :].view(np.uint32).reshape(times, 32)
    assert (places % 16 != 0).all()
    together = sum(whole(raw, words, dtype) for raw, words in zip(first, places, strict=True))
    decoded = second.view(np.float16) if dtype == "fp16" else np.zeros((0, 0))
    if dtype == "bf16":
        decoded = (second.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    np.testing.assert_allclose(together @ decoded.astype(float).T, plan.expected[0], atol=1e-12)
    assert plan.operations == 2 * tensor.mma_plan(dtype, 5, (9, 0)).operations


@pytest.mark.parametrize("dtype", tensor.SPARSE_KINDS)
def test_sparse_operands_of_warpgroups_give_the_expected_product(dtype: TensorType) -> None:
    plan = tensor.wgmma_plan(dtype, 6, skips=True)
    tile = 256 * 128
    pieces = plan.operands[: 2 * tile].reshape(2, 256, 8, 16)
    row = np.arange(256)[:, None]
    second = np.concatenate([one[row, np.arange(8)[None] ^ row % 8].reshape(256, 128) for one in pieces], axis=1)
    decoded = second.view(np.float16) if dtype == "fp16" else np.zeros((0, 0))
    if dtype == "bf16":
        decoded = (second.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    rows = plan.operands[2 * tile : 2 * tile + 2 * 64 * 128].reshape(2, 4, 16, 4, 32)  # group, warp, row, quarter
    places = plan.operands[2 * tile + 2 * 64 * 128 :].view(np.uint32).reshape(2, 4, 4, 32)  # group, quarter, warp
    for group in range(2):
        for warp in range(4):
            quarters = [
                whole(np.ascontiguousarray(rows[group, warp, :, one]), places[group, one, warp], dtype)
                for one in range(4)
            ]
            product = tensor.WGMMA_TIMES * np.concatenate(quarters, axis=1) @ decoded.astype(float).T
            np.testing.assert_allclose(product, plan.expected[group, 16 * warp : 16 * warp + 16], atol=1e-11)
    assert plan.operations == 2 * tensor.wgmma_plan(dtype, 6).operations
    assert plan.shared_bytes == 2 * tile + 1024


def test_two_of_every_four_elements_are_zero() -> None:
    matrix = tensor.sparse("bf16", 64, 128, 3)
    chunks = matrix.values.reshape(-1, 4) != 0
    assert (chunks.sum(axis=1) == 2).all()
    assert len(np.unique(chunks, axis=0)) == 6


def test_a_type_without_a_sparse_kernel_is_skipped() -> None:
    with pytest.raises(Skip, match="kernels for sparse bf16 and fp16, none for int8"):
        tensor.real_tensor(HostCase(), "mma", "int8", sparse=True)


def test_a_multiply_add_counts_as_two_operations() -> None:
    assert tensor.wgmma_plan("bf16", 1).operations == 2 * (2 * 64) * 256 * 64 * 4
    assert tensor.mma_plan("bf16", 1, (9, 0)).operations == 2 * 16 * (8 * 8) * 16 * 8 * 16
    assert tensor.mma_plan("fp64", 1, (8, 0)).operations == 2 * 8 * (8 * 4) * 4 * 2 * 16
    assert tensor.mma_plan("fp64", 1, (9, 0)).operations == 2 * 16 * (8 * 4) * 16 * 2 * 16


def test_architecture_specific_code_is_compiled_for_its_architecture() -> None:
    assert target("tensor_wgmma", "90") == "90a"
    assert target("tensor_wgmma", "100") == "100"
    assert target("tensor_mma", "90") == "90"


TENSOR = tensor.KINDS | {f"sparse {dtype}": kind for dtype, kind in tensor.SPARSE_KINDS.items()}
REFUSED = {("alu", "75", "fma_bf16x2"), ("tensor_wgmma", "90a", "fp64")}
REFUSED |= {("tensor_mma", "80", dtype) for dtype in ("fp8_e4m3", "fp8_e5m2")}


@pytest.mark.parametrize(("kernel", "architecture", "kinds"), [
    ("alu", "90", alu.KINDS), ("tensor_wgmma", "90a", TENSOR), ("tensor_mma", "90", TENSOR),
    *(pytest.param("alu", name, alu.KINDS, marks=pytest.mark.slow) for name in ("75", "80", "120")),
    pytest.param("tensor_mma", "80", TENSOR, marks=pytest.mark.slow),
    *(pytest.param("tensor_mma", name, tensor.SPARSE_KINDS, marks=pytest.mark.slow) for name in ("100", "120")),
])  # fmt: skip
def test_every_kind_compiles_where_it_exists(kernel: str, architecture: str, kinds: dict[str, int]) -> None:
    for name, kind in kinds.items():
        if (kernel, architecture, name) in REFUSED:
            with pytest.raises(MeasurementError):
                compile_cubin(kernel, architecture, {"KIND": kind})
        else:
            assert compile_cubin(kernel, architecture, {"KIND": kind}).startswith(b"\x7fELF"), name
