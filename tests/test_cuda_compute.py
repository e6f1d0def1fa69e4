"""Products, tensor and ALU instructions on a real GPU: right results, wrong work noticed, plausible rates."""

from typing import get_args

import numpy as np
import pytest
from cuda.bindings import driver
from gpu_checks import may_skip, proven

from microbench.analysis.rates import alu_rate, rate_of
from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import Launch
from microbench.experiments.compute import alu
from microbench.experiments.compute.alu import AluOperation, Bits, Operands, arithmetic, chain, expected
from microbench.experiments.compute.cublaslt import Call, CublasLt
from microbench.experiments.compute.instructions import clock_bracket, state
from microbench.experiments.compute.products import Gemm, GemmData, Library, Problem, free_bytes, needed_bytes, problem
from microbench.experiments.compute.tensor import TensorInstructions, TensorPath, TensorType, tensor
from microbench.gpu.cuda.device import CudaGpu
from microbench.gpu.protocol.gpu import Gpu, Submit
from microbench.gpu.protocol.matrices import FORMATS, GemmType, Matrices

pytestmark = pytest.mark.gpu

LIBRARIES: tuple[Library, ...] = get_args(Library)
DATA: tuple[GemmData, ...] = get_args(GemmData)
TYPES: tuple[GemmType, ...] = get_args(GemmType)
AWKWARD = (272, 1040, 528)
OFF = "D is off by"


def made(
    gpu: Gpu,
    dtype: GemmType,
    shape: tuple[int, int, int] = AWKWARD,
    data: GemmData = "normal",
    *,
    beyond_l2: bool = False,
) -> Problem:
    return problem(gpu, dtype, *shape, data, beyond_l2=beyond_l2)


def first_way(product: Problem, library: Library = "cublaslt") -> Gemm:
    with may_skip():
        return product.gemm(library, product.ways(library)[0])


def check_after(gpu: Gpu, gemm: Gemm, submit: Submit, calls: int = 1) -> str:
    """The check of the product's result once ``submit`` has made it."""
    submit(calls)
    gpu.synchronize()
    return gemm.check()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_candidate_multiplies(gpu: Gpu, library: Library, dtype: GemmType) -> None:
    product = made(gpu, dtype)
    first_way(product, library)
    ways = product.ways(library)
    assert len(set(ways)) == len(ways)
    for way in ways:
        proven(gpu, product.gemm(library, way), OFF)


@pytest.mark.parametrize("shape", [(1, 4096, 4096), (17, 1024, 4096), (1, 22016, 4096), (4096, 4096, 4096)])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8_e4m3_fast", "int8"])
def test_thin_and_large_products_are_right(gpu: Gpu, dtype: GemmType, shape: tuple[int, int, int]) -> None:
    proven(gpu, first_way(made(gpu, dtype, shape)), OFF)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("dtype", TYPES)
def test_any_data_are_within_the_bound(gpu: Gpu, dtype: GemmType, data: GemmData) -> None:
    gemm = first_way(made(gpu, dtype, (1024, 1024, 8192), data))
    gemm.fresh()
    assert check_after(gpu, gemm, gemm.submit)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_factor_of_1_02_is_noticed(gpu: Gpu, dtype: GemmType) -> None:
    product = made(gpu, dtype, (1024, 1024, 8192))
    gemm = first_way(product)
    gemm.fresh()
    product.cublaslt.alpha[0] = 0 if dtype == "int8" else 1.02  # cuBLASLt takes no other factor for integers
    with pytest.raises(MeasurementError, match=OFF):
        check_after(gpu, gemm, gemm.submit)
    product.cublaslt.alpha[0] = 1
    assert check_after(gpu, gemm, gemm.submit)


def call_of(gpu: Gpu, matrices: Matrices) -> Call:
    assert isinstance(gpu, CudaGpu)
    library = CublasLt(gpu._case, matrices)
    call = library.calls(library.ways[0])[0]

    def keeping() -> None:
        assert library  # the call has addresses of its alpha and algorithm
        call()

    return keeping


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "tf32", "fp16", "bf16", "fp8_e4m3", "fp8_e4m3_fast", "int8"])
def test_wrong_operands_are_noticed(gpu: Gpu, dtype: GemmType) -> None:
    product = made(gpu, dtype, (528, 512, 512))
    gemm = first_way(product)
    whole = product.operands.matrices
    row_bytes = 512 * FORMATS[whole.elements.a].bits // 8
    square = whole._replace(rows=512)  # what these calls write over the right result
    wrong = {
        "A and B exchanged": square._replace(a=whole.b[0], b=(whole.a,)),
        "rows of A shifted": square._replace(a=whole.a + 16 * row_bytes),
        "A for B": square._replace(b=(whole.a,)),
    }
    for matrices in wrong.values():
        call = call_of(gpu, matrices)
        gemm.fresh()
        assert check_after(gpu, gemm, gemm.submit)
        call()
        gpu.synchronize()
        with pytest.raises(MeasurementError, match=OFF):
            gemm.check()


def test_one_wrong_integer_is_noticed(gpu: Gpu) -> None:
    product = made(gpu, "int8", (512, 512, 512))
    gemm = first_way(product)
    gemm.fresh()
    assert check_after(gpu, gemm, gemm.submit)
    assert not int(driver.cuMemsetD8(product.operands.matrices.d + 4 * 1234, 0x5A, 4)[0])
    with pytest.raises(MeasurementError, match=OFF):
        gemm.check()


def test_operands_are_new_each_time(gpu: Gpu) -> None:
    product = made(gpu, "fp32", (64, 64, 64))
    assert isinstance(gpu, CudaGpu)
    seen = []
    for _ in range(3):
        product.operands.fresh()
        seen.append(gpu._case.read(product.operands.matrices.a, 64 * 64, np.float32))
        assert 0.9 < float(seen[-1].std()) < 1.1
    assert not np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[1], seen[2])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_graph_of_calls_multiplies(gpu: Gpu, library: Library) -> None:
    gemm = first_way(made(gpu, "fp16"), library)
    if library == "cupy":
        with pytest.raises(Skip, match="cannot be captured"):
            gemm.graph(5)
        return
    replay = gemm.graph(5)
    gemm.fresh()
    with pytest.raises(MeasurementError, match=OFF):
        gemm.check()
    assert check_after(gpu, gemm, replay, 2)


def test_copies_of_b_are_used_in_turn(gpu: Gpu) -> None:
    product = made(gpu, "bf16", (16, 4096, 4096), beyond_l2=True)
    copies = len(product.operands.matrices.b)
    assert gpu.info.l2_bytes is None or copies * 4096 * 4096 * 2 > 3 * gpu.info.l2_bytes
    gemm = first_way(product)
    gemm.fresh()
    for call in range(copies + 2):
        assert check_after(gpu, gemm, gemm.submit)
        assert int(np.argmin(product.operands.errors())) == call % copies
    replay = gemm.graph(3)
    assert check_after(gpu, gemm, replay)
    assert int(np.argmin(product.operands.errors())) == (copies + 4) % copies


# Measured on an H200 with a busy host: 128 products of 64 in bf16 take 1.00 ms one by one from Python, 279 us as a
# graph and 7.3 us as a batch, whose call takes longer than its work.
@pytest.mark.parametrize(("size", "products"), [(64, 128), (48, 5), (100, 3), (256, 16)])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_several_products_are_right_one_by_one_as_a_graph_and_as_a_batch(
    gpu: Gpu, dtype: GemmType, size: int, products: int
) -> None:
    alone = first_way(problem(gpu, dtype, size, size, size, products=products))
    together = problem(gpu, dtype, size, size, size, products=products, batched=True)
    for way in together.ways("cublaslt"):
        proven(gpu, together.gemm("cublaslt", way), OFF)
    proven(gpu, alone, OFF, (products, 2 * products + 1))
    alone.fresh()
    with pytest.raises(MeasurementError, match=OFF):
        check_after(gpu, alone, alone.submit, products - 1)
    replay = alone.graph(products)
    alone.fresh()
    assert check_after(gpu, alone, replay)


def test_operands_that_do_not_fit_are_a_skip(gpu: Gpu) -> None:
    assert needed_bytes(gpu, "fp64", 1 << 18, 1 << 18, 1 << 18) > free_bytes(gpu)
    with pytest.raises(Skip, match="of device memory asked for fp64"):
        problem(gpu, "fp64", 1 << 18, 1 << 18, 1 << 18)


def test_a_problem_takes_the_memory_that_it_announces(gpu: Gpu) -> None:
    before = free_bytes(gpu)
    needed = needed_bytes(gpu, "fp32", 4096, 4096, 4096)
    first_way(made(gpu, "fp32", (4096, 4096, 4096)))
    taken = before - free_bytes(gpu)
    assert 0.8 * needed < taken < needed + (256 << 20)  # the reserve is for the library's own


def test_the_state_is_plausible(gpu: Gpu) -> None:
    seen = state(gpu)
    assert seen.power_w is None or 10 < seen.power_w < 2000
    assert seen.temperature_c is None or 5 < seen.temperature_c < 110


OPERATIONS = get_args(AluOperation)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_are_right(gpu: Gpu, operation: AluOperation) -> None:
    unit = arithmetic(gpu, operation)
    assert "every thread's results on every SM" in unit.check()
    unit.take(1000)
    unit.check()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_missing_repetition_is_noticed(gpu: Gpu, operation: AluOperation, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = arithmetic(gpu, operation)

    def of_one_more(operation: AluOperation, operands: Operands, repeats: int) -> tuple[Bits, Bits]:
        return expected(operation, operands, repeats + 1)

    monkeypatch.setattr(alu, "expected", of_one_more)
    with pytest.raises(MeasurementError, match="results are wrong"):
        unit.check()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_rates_are_near_those_of_the_architecture(gpu: Gpu, operation: AluOperation) -> None:
    unit = arithmetic(gpu, operation)
    unit.take(100)
    few, many = unit.take(1000), unit.take(4000)
    assert 3.6 < many.cycles / few.cycles < 4.4
    assert 0.2e9 < many.cycles / many.seconds < 4e9
    rate = alu_rate(operation, gpu.info)
    if rate is not None:
        assert 0.5 < unit.operations * 4000 / many.cycles / rate.value < 1.01


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_latency_of_an_instruction_is_plausible(gpu: Gpu, operation: AluOperation) -> None:
    dependent = chain(gpu, operation)
    dependent.take(16)
    taken = dependent.take(100)
    assert 2 < taken.cycles / (100 * dependent.instructions) < 100
    assert 1.9 < dependent.take(200).cycles / taken.cycles < 2.1


def test_a_bracket_gives_the_clock_that_the_sms_count(gpu: Gpu) -> None:
    bracket = clock_bracket(gpu)
    spin = gpu.bind(Launch(duration_ns=5_000_000))
    for _ in range(2):  # the first round loads the code
        bracket.begin()
        spin(1)
        bracket.end()
        gpu.synchronize()
    assert bracket.hz() == pytest.approx(gpu.telemetry().sm_clock_begin_hz, rel=0.02)


def test_a_bracket_can_be_queued_behind_a_gate(gpu: Gpu) -> None:
    bracket, spin, gate = clock_bracket(gpu), gpu.bind(Launch(duration_ns=100_000)), gpu.gate()
    bracket.begin()
    spin(1)
    bracket.end()
    gpu.synchronize()
    gate.shut()
    bracket.begin()
    spin(1)
    bracket.end()
    gate.open()
    gpu.synchronize()
    assert not gate.was_late()
    assert 0.2e9 < bracket.hz() < 4e9


NO_SUCH: tuple[TensorPath, TensorType] = ("wgmma", "fp64")


def unit_of(gpu: Gpu, path: TensorPath, dtype: TensorType, *, sparse: bool = False) -> TensorInstructions:
    unit = tensor(gpu, path, dtype, sparse=sparse)
    assert isinstance(unit, TensorInstructions)
    return unit


def expect_zeros_to_be_noticed(unit: TensorInstructions) -> None:
    (code,) = driver.cuMemsetD8(unit.operands, 0, 64)
    assert int(code) == 0
    unit.take(1)
    with pytest.raises(MeasurementError, match="is off by"):
        unit.check()


CASES = [(path, dtype) for path in get_args(TensorPath) for dtype in get_args(TensorType) if (path, dtype) != NO_SUCH]


def test_there_is_no_fp64_of_warpgroups(gpu: Gpu) -> None:
    with pytest.raises(Skip, match="mma does"):
        tensor(gpu, *NO_SUCH)


@pytest.mark.parametrize(("path", "dtype"), CASES)
def test_results_are_right_after_any_number_of_repetitions(gpu: Gpu, path: TensorPath, dtype: TensorType) -> None:
    unit = unit_of(gpu, path, dtype)
    for repeats in (1, 2, 100):
        unit.take(repeats)
        assert "compared in float64" in unit.check()


@pytest.mark.parametrize(("path", "dtype"), CASES)
def test_a_wrong_operand_is_noticed(gpu: Gpu, path: TensorPath, dtype: TensorType) -> None:
    unit = unit_of(gpu, path, dtype)
    with pytest.raises(MeasurementError, match="is off by"):
        unit.check()  # nothing was computed yet
    unit.take(1)
    unit.check()
    expect_zeros_to_be_noticed(unit)


# Measured on an H200, in FLOP/clk/SM: wgmma.sp 8192 (dense 4096), mma.sp 4054 (dense 2716).
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("path", get_args(TensorPath))
def test_sparse_results_are_right_and_faster(gpu: Gpu, path: TensorPath, dtype: TensorType) -> None:
    unit, dense = unit_of(gpu, path, dtype, sparse=True), unit_of(gpu, path, dtype)
    for repeats in (1, 2, 100):
        unit.take(repeats)
        assert "compared in float64" in unit.check()
    rates = [one.operations * 4000 / one.take(4000).cycles for one in (unit, dense)]
    assert 1.2 < rates[0] / rates[1] < 2.02
    limit = rate_of(f"sparse:{dtype}", gpu.info)
    assert limit is None or 0.4 < rates[0] / limit.value < 1.01
    expect_zeros_to_be_noticed(unit)


@pytest.mark.parametrize("path", get_args(TensorPath))
def test_more_repetitions_take_as_much_longer(gpu: Gpu, path: TensorPath) -> None:
    unit = unit_of(gpu, path, "bf16")
    unit.take(10)
    few, many = unit.take(2000), unit.take(20000)
    assert 8 < many.cycles / few.cycles < 12
    assert 0.5e9 < many.cycles / many.seconds < 4e9
