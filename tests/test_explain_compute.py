"""The rules of the compute suite: severity and figures on small made runs, silence without cause, and their facts."""

import pytest
from compute_evidence import HEAT, POWER_CAP, figures, grouped, instructions, made, product, shape
from read_findings import by_rule, check, evidence

from microbench.core.model import Fact, Outcome, Run, Series
from microbench.explain.compute_power import drawn_share, nvml_clock_hz
from microbench.explain.compute_products import bandwidth_roof, compute_roof, fed_sizes, rivals, shaped
from microbench.explain.compute_units import best_products, halves, held_by, reached
from microbench.explain.compute_units import instructions as alu_instructions

SXM = "NVIDIA H200"
EITHER = "hardware slowdown by power brake or thermal limit"


def lasting(burst: float = 700e12, turn: float | None = 0.08, dtype: str = "bf16", duration_s: int = 4) -> Outcome:
    values = {"burst": burst, "sustained": 550e12, "sm_clock": 1.49e9, **({"turn": turn} if turn else {})}
    named = {"power": (300.0, 698.0), "nvml_sm_clock": (1.9e9, 1.65e9)}
    series = tuple(Series(name, tuple(range(10)), (low,) * 5 + (high,) * 5) for name, (low, high) in named.items())
    facts = (Fact("throttle_reasons", f"{POWER_CAP} from 0.10 s on"),)
    params = {"bound": f"gemm:{dtype}", "dtype": dtype, "duration_s": duration_s}
    return figures("gemm_sustained", values, series=series, facts=facts, **params)


def of_data(data: str, rate: float, energy: float = 1.2e-12, dtype: str = "bf16", power: float = 699.0) -> Outcome:
    values = {"rate": rate, "sm_clock": 1.5e9, "power": power, "energy": energy}
    return figures("gemm_data", values, bound=f"gemm:{dtype}", dtype=dtype, size=8192, data=data)


def alu(operation: str, values: dict[str, float]) -> Outcome:
    return figures("alu_ceiling", values, bound=f"alu:{operation}", operation=operation)


def guessed(guess: int) -> tuple[Fact, ...]:
    return (Fact("candidate", "algo66", source=f"the fastest of 8, guess {guess} of the heuristics"),)


def square(words: str, source: str) -> Outcome:
    return product(facts=(Fact("shape", words, source=source),))


def fp16(ratio: float) -> Run:
    """fp16 instructions that are that many times as fast when they accumulate in fp16."""
    return made(instructions("mma", 1000.0 * ratio, "fp16_acc16"), instructions("mma", 1000.0, "fp16"))


ALU = alu("fma_fp32", {"rate": 50e12, "per_clock": 255})
FMA = alu("fma_fp32", {"rate": 50e12, "per_clock": 256, "latency": 4.0})
MAD = alu("mad_int32", {"integer_rate": 6e12, "integer_per_clock": 32})
FP8 = figures(
    "gemm_throughput", {"rate": 0.8 * 1638.4e12 * 0.75, "sm_clock": 1.5e9}, bound="gemm:fp8_e4m3", dtype="fp8_e4m3",
    size=8192, library="cublaslt",
)  # fmt: skip
SEARCH = figures(
    "gemm_search", {"rate": 600e12, "sm_clock": 1.5e9, "power": 699.0}, bound="gemm:bf16", dtype="bf16",
    facts=(Fact("shape", "8448x8192x16384"), Fact("candidate", "algo1")),
)  # fmt: skip
READ = figures(
    "memory_stream", {"bandwidth": 3.7e12}, bound="dram", kernel="read", implementation="cuda", dtype="fp32",
    size_bytes=1 << 30,
)  # fmt: skip
LAUNCH, BANDWIDTH, COMPUTE = shape(1, 9e-6, 25e-6, 10e-6), shape(16, 9e-6, 9e-6, 9e-6), shape(512, 4e-5, 4e-5, 4e-5)
WGMMA, SPARSE_MMA = instructions("wgmma", 4090.0), instructions("mma", 4000.0, sparse=True)
BOARD = {"name": "NVIDIA GeForce RTX 4090", "compute_capability": (8, 9)}
SIZES = (product(0.3, size=1024), product(0.82, size=4096), product(0.9), product(0.85, size=16384))
NORMAL = of_data("normal", 553e12)

CASES: list[tuple[str, Run, str, tuple[str, ...]]] = [
    (
        "compute.verdict", made(product(0.92, 1.395e9), product(0.88, 1.4e9, "fp8_e4m3_fast"), name=SXM), "good",
        ("bf16 reaches 526 TFLOP/s, 70.1 % of the data sheet", "the power limit", "92.0 %", "!Try"),
    ),
    ("compute.verdict", made(product(0.9, 1.98e9, reasons=())), "good", ("730 TFLOP/s, 89.1 %", "highest clock")),
    ("compute.verdict", made(product(0.79)), "warning", ("Try other sizes",)),
    ("compute.verdict", made(product(0.49)), "problem", ("Try other sizes",)),
    ("compute.verdict", made(product(1.4)), "warning", ("!Try",)),
    ("compute.verdict", made(product(1.3, 2e9), **BOARD), "warning", ("1040 %",)),
    (
        "compute.verdict", made(product(0.8, library="torch"), product(0.9, library="cupy")), "good",
        ("bf16 by CuPy reaches 553 TFLOP/s",),
    ),
    ("compute.verdict", made(product(), compute_capability=(6, 0)), "note", ("not known", "!run gemm")),
    ("compute.verdict", made(ALU), "note", ("fma_fp32] reaches 50.0 TFLOP/s", "gemm_throughput --into ", "!RUN")),
    ("compute.verdict", made(SEARCH), "note", ("gemm_search[dtype=bf16] reaches 600 TFLOP/s",)),
    ("compute.over_limit", made(product(1.3, 2e9), **BOARD), "warning", ("1040 %", "adds up in fp32 at half the rate")),
    (
        "compute.limited", made(product(), lasting()), "note",
        ("25.5 %", "bf16", "1.49 GHz", f"NVML names {POWER_CAP}, and its own clock reads too high"),
    ),
    ("compute.limited", made(lasting(), power_limit_w=700.0), "note", ("99.7 %", "The power limit takes")),
    ("compute.limited", made(lasting(), power_limit_w=1500.0), "note", ("46.5 %", "Tensor work takes", "!Only")),
    (
        "compute.sustained", made(lasting(), lasting(560e12, None, dtype="fp16")), "note",
        ("bf16", "78.6 %", "700 TFLOP/s", "550 TFLOP/s", "milliseconds"),
    ),
    ("compute.sustained", made(lasting(555e12, None)), "note", ("bf16 lasts", "!milliseconds")),
    ("compute.sustained", made(lasting(duration_s=30), lasting(600e12)), "note", ("78.6 %",)),
    (
        "compute.data", made(NORMAL, of_data("zeros", 650e12, power=450.0)), "advice",
        ("17.5 % faster", "450 W for zeros, 699 W for random numbers"),
    ),
    ("compute.data", made(NORMAL, of_data("zeros", 555e12)), "note", ("0.36 %",)),
    (
        "compute.energy",
        made(of_data("normal", 1e15, 0.6e-12, "fp8_e4m3_fast"), NORMAL, of_data("zeros", 650e12, 1e-13)), "note",
        ("1.20 pJ/FLOP (bf16 at 699 W)", "fp8_e4m3_fast does 2.0×"),
    ),
    ("compute.fast", made(product(0.9, dtype="fp8_e4m3_fast"), FP8), "note", ("1.13×", "Check the precision")),
    ("compute.fast", made(product(0.8, dtype="fp8_e4m3_fast"), FP8), "note", ("Use promoted sums",)),
    ("compute.fed_from", made(*SIZES), "note", ("90 % of their best rate from size 4096", "33.3 %")),
    ("compute.search", made(SEARCH), "note", ("8448x8192x16384: 600 TFLOP/s", "!square")),
    ("compute.search", made(SEARCH, product(0.9)), "note", ("8.5 % more than",)),
    ("compute.search", made(SEARCH, product(0.98)), "note", ("No other shape",)),
    ("compute.search", made(SEARCH, product(1.2)), "note", ("No other shape",)),
    (
        "compute.candidate", made(product(facts=guessed(3)), product(0.8, dtype="fp16", facts=guessed(1))), "note",
        ("1 of 2 types", "Search"),
    ),
    ("compute.candidate", made(product(facts=guessed(1))), "note", ("the fastest for 1 type", "!Search")),
    (
        "compute.libraries", made(product(0.9), product(0.9, library="cupy"), product(0.8, library="torch")), "advice",
        ("CuPy 100 % (bf16), PyTorch 88.9 % (bf16)", "Where bf16"),
    ),
    ("compute.libraries", made(product(0.9), product(0.89, library="torch")), "note", ("!Where",)),
    (
        "compute.libraries", made(product(0.8), product(0.9, library="cupy")), "note",
        ("rate, clock for clock: CuPy 113 %", "Faster than every candidate tried: CuPy in bf16"),
    ),
    (  # an H200's int8: version 2's ratio of batches in turn, 0.571, was neither that of one clock nor a sustained one
        "compute.libraries", made(product(0.8), product(0.55, 1.9e9, library="torch", against=0.571)), "advice",
        ("clock for clock: PyTorch 68.8 %", "--full"),
    ),
    (
        "compute.libraries", made(product(0.8), product(0.7, library="torch", against=0.72, per_clock=0.57)), "advice",
        ("sustained rate: PyTorch 72.0 %", "Clock for clock PyTorch's bf16 kernel reaches 57.0 %.", "!--full"),
    ),
    (
        "compute.libraries", made(product(0.8), product(0.7, library="torch", per_clock=0.57)), "advice",
        ("clock for clock: PyTorch 57.0 %", "gets a higher clock: --full measures that", "!sustained"),
    ),
    ("compute.halved", made(square("64x64x64", "halved until it fits")), "warning", ("1 product", "64x64x64")),
    (
        "compute.shapes", made(WGMMA, LAUNCH, BANDWIDTH, COMPUTE), "note",
        (
            "1 launch-bound, 1 bandwidth-bound, 1 compute-bound",
            "launch-bound at 1 row, bandwidth-bound at 16 rows and compute-bound at 512 rows",
        ),
    ),
    (
        "compute.launches", made(LAUNCH, BANDWIDTH, COMPUTE), "advice",
        ("7b_out of 1 row (bf16) 2.5×", "25.0 µs", "9.00 µs of work"),
    ),
    (
        "compute.grouped", made(grouped(6e-6, 3e-6, 2e-6, 5e-8), grouped(6e-6, 4e-6, 3e-6, 1e-6, size=256)), "advice",
        (
            "128 products of 64 (bf16) take 768 µs one by one, 256 µs as a graph, 6.40 µs as one batch",
            "the GPU waits for the calls from Python", "one batched call",
        ),
    ),
    ("compute.grouped", made(grouped(3.1e-6, 3e-6, 2e-6, 3e-6)), "note", ("never idle for long", "!batched call")),
    (
        "compute.ceiling", made(product(0.9), WGMMA, instructions("wgmma", 4090.0, load="burst")), "good",
        ("654 TFLOP/s (bf16 wgmma), 99.9 %", "84.5 %", "No product of random numbers can be faster"),
    ),
    ("compute.ceiling", made(instructions("mma", 2700.0)), "note", ("!product",)),
    (
        "compute.ceiling", made(product(0.9), instructions("mma", 1000.0)), "note",
        ("A product is faster", "!can be faster for long"),
    ),
    ("compute.path", made(WGMMA, instructions("mma", 2700.0)), "advice", ("66.0 %", "Use wgmma")),
    ("compute.path", made(WGMMA, instructions("mma", 4000.0)), "note", ("!Use",)),
    ("compute.path", made(instructions("mma", 2048.0)), "advice", ("50.0 %",)),
    (
        "compute.sparse",
        made(WGMMA, instructions("wgmma", 7771.0, sparse=True), instructions("mma", 2700.0), SPARSE_MMA), "note",
        ("2:4 sparsity makes wgmma 1.90× as fast (bf16, clock for clock)", "own clock, it is 1.43×", "!Prune"),
    ),
    ("compute.sparse", made(instructions("mma", 2700.0), SPARSE_MMA), "note", ("makes mma 1.48×", "Prune")),
    ("compute.accumulate", fp16(2.0), "advice", ("2.0×", "half the rate")),
    ("compute.accumulate", fp16(1.5), "note", ("1.50×", "!half the rate")),
    (
        "compute.alu", made(FMA, MAD), "note",
        ("fma_fp32 gives 256 FLOP/clk/SM (100 %", "16 warp instructions", "mad_int32 stays below"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "run", "severity", "words"), CASES)
def test_a_rule_has_its_severity_and_figures(rule: str, run: Run, severity: str, words: tuple[str, ...]) -> None:
    check(by_rule(run, "compute")[rule], severity, *words)


@pytest.mark.parametrize(
    ("rule", "run"),
    [
        ("compute.verdict", made(figures("alu_ceiling", {"latency": 4.0}, operation="fma_fp32"))),
        ("compute.over_limit", made(product(0.99, 2e9))),
        ("compute.limited", made(product(0.9, 1.98e9))),
        ("compute.limited", made(lasting(), sm_clock_max_hz=None)),
        ("compute.data", made(NORMAL, of_data("sparse", 600e12))),
        ("compute.fast", made(product(0.9, dtype="fp8_e4m3_fast"), product())),
        ("compute.fed_from", made(product(0.3, size=1024), product(0.9))),
        ("compute.candidate", made(product(facts=(Fact("candidate", "algo66", source="the only one"),)))),
        ("compute.libraries", made(product(0.9), product(0.9, size=4096, library="torch"))),
        ("compute.libraries", made(product(0.8, library="torch"), product(0.9, library="cupy"))),
        ("compute.halved", made(square("8192x8192x8192", "as asked"))),
        ("compute.path", made(instructions("mma", 4090.0))),
        ("compute.sparse", made(WGMMA, SPARSE_MMA)),
        ("compute.accumulate", fp16(1.0)),
        ("compute.launches", made(BANDWIDTH, COMPUTE)),
        ("compute.launches", made(shape(1, 9e-6, 25e-6, 24e-6))),
    ],
)
def test_a_rule_without_cause_is_silent(rule: str, run: Run) -> None:
    assert rule not in by_rule(run, "compute")


@pytest.mark.parametrize(
    ("reasons", "severity", "limited", "words"),
    [
        ((HEAT,), "warning", "warning", "heat lowers the clock"),
        ((POWER_CAP, HEAT), "warning", "warning", "heat lowers the clock"),
        ((POWER_CAP,), "good", "note", "the power limit lowers the clock"),
        ((EITHER, "hardware power brake"), "warning", "warning", "the power brake lowers the clock"),
        ((EITHER,), "warning", "warning", "heat lowers the clock"),
        ((), "good", "note", "the clock stays below its highest"),
    ],
)
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
    assert [(fed.dtype, fed.size) for fed in fed_sizes(evidence(made(*SIZES)))] == [("bf16", 4096)]
    products = (product(0.9), product(0.9, size=4096), product(0.9, library="cupy"), product(0.8, library="torch"))
    ratios = {rival.library: rival.per_clock for rival in rivals(evidence(made(*products)))}
    assert ratios == pytest.approx({"cupy": 1.0, "torch": 0.8 / 0.9})


def test_accumulation_and_instructions_in_flight_are_worked_out() -> None:
    pair = halves(evidence(fp16(1.5)))
    assert pair.ratio == pytest.approx(1.5)
    in_flight = {alu.operation: alu.in_flight for alu in alu_instructions(evidence(made(FMA, MAD)))}
    assert in_flight == {"fma_fp32": pytest.approx(16.0), "mad_int32": None}


def test_what_bounds_a_shape_follows_this_runs_own_roofs() -> None:
    run = made(WGMMA, LAUNCH, BANDWIDTH, COMPUTE)
    assert [one.held for one in shaped(evidence(run))] == ["launch", "bandwidth", "compute"]
    unknown = made(BANDWIDTH, compute_capability=None, memory_bus_bits=None)
    assert [one.held for one in shaped(evidence(unknown))] == [None]


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (made(READ, instructions("mma", 3700.0), product()), ["memory_stream read", "tensor_ceiling mma, sustained"]),
        (made(product()), ["memory clock 2500 MHz x 2 x 6400 bit", "gemm_throughput size 8192"]),
        (made(product(), instructions("mma", 1000.0)), ["x 6400 bit", "gemm_throughput size 8192"]),
        (made(LAUNCH), ["x 6400 bit", "x 100 SMs x SM clock 2000 MHz"]),
        (made(LAUNCH, compute_capability=None, memory_bus_bits=None), []),
    ],
)
def test_roofs_are_measured_ones_first(run: Run, names: list[str]) -> None:
    known = evidence(run)
    roofs = [roof.name for roof in (bandwidth_roof(known), compute_roof(known, "bf16")) if roof is not None]
    assert [name in roof for roof, name in zip(roofs, names, strict=True)] == [True] * len(names)
