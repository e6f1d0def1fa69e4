"""The rules of the compute suite: severity and figures on small made runs, silence without cause, and their facts."""

import pytest
from compute_evidence import HEAT, POWER_CAP, figures, instructions, made, product, shape
from read_findings import by_rule, check, evidence

from microbench.core.model import Fact, Outcome, Run, Series
from microbench.explain.compute_products import bandwidth_roof, compute_roof, fed_sizes, rivals, shaped
from microbench.explain.compute_units import ALUS, PER_CLOCK, best_products, halves, held_by, in_flight, rates, reached
from microbench.explain.compute_verdict import drawn_share, nvml_clock_hz

EITHER = "hardware slowdown by power brake or thermal limit"


def lasting(burst: float = 700e12, turn: float | None = 0.08, dtype: str = "bf16", duration_s: int = 4) -> Outcome:
    values = {"burst": burst, "sustained": 550e12, "sm_clock": 1.49e9, **({"turn": turn} if turn else {})}
    named = {"power": (300.0, 698.0), "nvml_sm_clock": (1.9e9, 1.65e9)}
    series = tuple(Series(name, tuple(range(10)), (low,) * 5 + (high,) * 5) for name, (low, high) in named.items())
    facts = (Fact("throttle_reasons", f"{POWER_CAP} from 0.10 s on"),)
    params = {"bound": f"gemm:{dtype}", "dtype": dtype, "duration_s": duration_s}
    return figures("gemm_sustained", values, series=series, facts=facts, **params)


def alu(operation: str, values: dict[str, float]) -> Outcome:
    return figures("alu_ceiling", values, bound=f"alu:{operation}", operation=operation)


def fp16(ratio: float) -> Run:
    """fp16 instructions that are that many times as fast when they accumulate in fp16."""
    return made(instructions("mma", 1000.0 * ratio, "fp16_acc16"), instructions("mma", 1000.0, "fp16"))


FMA = alu("fma_fp32", {"rate": 50e12, "per_clock": 256, "latency": 4.0})
MAD = alu("mad_int32", {"integer_rate": 6e12, "integer_per_clock": 32})
READ = figures(
    "memory_stream", {"bandwidth": 3.7e12}, bound="dram", kernel="read", implementation="cuda", dtype="fp32",
    size_bytes=1 << 30,
)  # fmt: skip
LAUNCH, BANDWIDTH, COMPUTE = shape(1, 9e-6, 25e-6, 10e-6), shape(16, 9e-6, 9e-6, 9e-6), shape(512, 4e-5, 4e-5, 4e-5)
WGMMA, SPARSE_MMA = instructions("wgmma", 4090.0), instructions("mma", 4000.0, sparse=True)
SIZES = (product(0.3, size=1024), product(0.82, size=4096), product(0.9), product(0.85, size=16384))


@pytest.mark.parametrize(("reasons", "severity", "limited", "words"), [
    ((HEAT,), "warning", "warning", "heat lowers the clock"),
    ((POWER_CAP, HEAT), "warning", "warning", "heat lowers the clock"),
    ((POWER_CAP,), "good", "note", "the power limit lowers the clock"),
    ((EITHER, "hardware power brake"), "warning", "warning", "the power brake lowers the clock"),
    ((EITHER,), "warning", "warning", "heat lowers the clock"),
    ((), "good", "note", "the clock stays below its highest"),
])  # fmt: skip
def test_what_lowers_the_clock_decides_whether_to_warn(
    reasons: tuple[str, ...], severity: str, limited: str, words: str
) -> None:
    findings = by_rule(made(product(reasons=reasons)), "compute")
    check(findings["compute.verdict"], severity, words)
    check(findings["compute.limited"], limited)
    assert (findings["compute.limited"].advice != "") == bool(reasons)


def test_shares_are_none_without_a_clock() -> None:
    params = {"bound": "gemm:bf16", "dtype": "bf16", "size": 8192, "library": "cublaslt"}
    known = evidence(made(figures("gemm_throughput", {"rate": 5e14}, **params)))
    (row,) = best_products(known)
    result = reached(known, row)
    assert (result.fed, result.clock_share, result.of_data_sheet) == (None, None, None)
    assert result.of_highest == pytest.approx(5e14 / 819.2e12)
    assert held_by(known, row) is None


def test_nvmls_clock_and_the_power_drawn_are_those_of_the_case() -> None:
    known = evidence(made(product(), lasting()))
    (row,) = best_products(known)
    assert nvml_clock_hz(known, row) == 1.9e9
    assert drawn_share(known, row) is None


def test_sizes_and_libraries_are_compared_within_a_type() -> None:
    assert {dtype: size for dtype, (size, _) in fed_sizes(evidence(made(*SIZES))).items()} == {"bf16": 4096}
    products = (product(0.9), product(0.9, size=4096), product(0.9, library="cupy"), product(0.8, library="torch"))
    ratios = {rival.library: rival.per_clock for rival in rivals(evidence(made(*products)))}
    assert ratios == pytest.approx({"cupy": 1.0, "torch": 0.8 / 0.9})


def test_accumulation_and_instructions_in_flight_are_worked_out() -> None:
    short, long = halves(evidence(fp16(1.5)))
    assert short.value / long.value == pytest.approx(1.5)
    one = evidence(made(FMA, MAD))
    flying = {row.params["operation"]: in_flight(one, row) for row in rates(one, ALUS, PER_CLOCK)}
    assert flying == {"fma_fp32": 16, "mad_int32": None}


def test_what_bounds_a_shape_follows_this_runs_own_roofs() -> None:
    run = made(WGMMA, LAUNCH, BANDWIDTH, COMPUTE)
    assert [one.held for one in shaped(evidence(run))] == ["launch", "bandwidth", "compute"]
    unknown = made(BANDWIDTH, compute_capability=None, memory_bus_bits=None)
    assert [one.held for one in shaped(evidence(unknown))] == [None]


@pytest.mark.parametrize(("run", "names"), [
    (made(READ, instructions("mma", 3700.0), product()), ["memory_stream read", "tensor_ceiling mma, sustained"]),
    (made(product()), ["memory clock 2500 MHz x 2 x 6400 bit", "gemm_throughput size 8192"]),
    (made(product(), instructions("mma", 1000.0)), ["x 6400 bit", "gemm_throughput size 8192"]),
    (made(LAUNCH), ["x 6400 bit", "x 100 SMs x SM clock 2000 MHz"]),
    (made(LAUNCH, compute_capability=None, memory_bus_bits=None), []),
])  # fmt: skip
def test_roofs_are_measured_ones_first(run: Run, names: list[str]) -> None:
    known = evidence(run)
    roofs = [roof.name for roof in (bandwidth_roof(known), compute_roof(known, "bf16")) if roof is not None]
    assert [name in roof for roof, name in zip(roofs, names, strict=True)] == [True] * len(names)
