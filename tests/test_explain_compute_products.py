"""Findings on products, libraries, candidates, shapes of models, tensor instructions and ALUs."""

from __future__ import annotations

import pytest
from compute_evidence import evidence, figures, findings, instructions, made, product, shape

from microbench.core.model import Fact, Outcome
from microbench.explain.compute_products import bandwidth_roof, compute_roof, fed_sizes, rivals, shaped
from microbench.explain.compute_units import halves
from microbench.explain.compute_units import instructions as alu_instructions


def named(candidate: str, guess: int) -> tuple[Fact, ...]:
    return (Fact("candidate", candidate, source=f"the fastest of 8, guess {guess} of the heuristics"),)


def test_from_which_size_on_products_are_fed() -> None:
    run = made(product(0.3, size=1024), product(0.82, size=4096), product(0.9), product(0.85, size=16384))
    assert [(fed.dtype, fed.size) for fed in fed_sizes(evidence(run))] == [("bf16", 4096)]
    finding = findings(run)["compute.fed_from"]
    assert finding.severity == "note"
    assert "90 % of their best rate from size 4096" in finding.title
    assert "33.3 %" in finding.text
    assert "compute.fed_from" not in findings(made(product(0.3, size=1024), product(0.9)))


def test_libraries_are_compared_with_cublaslt_at_the_same_size() -> None:
    run = made(product(0.9), product(0.9, size=4096), product(0.9, library="cupy"), product(0.8, library="torch"))
    assert {rival.library: rival.ratio for rival in rivals(evidence(run))} == pytest.approx(
        {"cupy": 1.0, "torch": 0.8 / 0.9}
    )
    finding = findings(run)["compute.libraries"]
    assert finding.severity == "advice"
    assert "CuPy 100 % (bf16), PyTorch 88.9 % (bf16)" in finding.title
    assert "bf16" in finding.advice
    assert findings(made(product(0.9), product(0.89, library="torch")))["compute.libraries"].severity == "note"
    assert "compute.libraries" not in findings(made(product(0.9), product(0.9, size=4096, library="torch")))


def test_a_library_ahead_is_only_faster_if_measured_in_turn() -> None:
    faster = findings(made(product(0.8), product(0.9, library="cupy")))["compute.libraries"]
    assert "not measured in turn: CuPy in bf16" in faster.text
    assert "one after the other" in faster.threshold
    turns = findings(made(product(0.8), product(0.7, library="cupy", against=1.05)))["compute.libraries"]
    assert "CuPy 105 %" in turns.title
    assert "Faster than every candidate tried: CuPy in bf16" in turns.text
    assert turns.threshold.startswith("in turn")


def test_the_first_guess_of_the_heuristics() -> None:
    later = made(product(facts=named("algo66", 3)), product(0.8, dtype="fp16", facts=named("algo21", 1)))
    finding = findings(later)["compute.candidate"]
    assert finding.severity == "note"
    assert "1 of 2 types" in finding.title
    assert finding.advice != ""
    assert len(finding.rests_on) == 2
    first = findings(made(product(facts=named("algo66", 1))))["compute.candidate"]
    assert "the fastest for 1 type" in first.title
    assert first.advice == ""
    only = (Fact("candidate", "algo66", source="the only one"),)
    assert "compute.candidate" not in findings(made(product(facts=only)))


@pytest.mark.parametrize(("share", "words"), [(0.9, "8.5 % more than"), (0.98, "as much as"), (1.2, "less than")])
def test_the_best_shape_against_the_square_one(share: float, words: str) -> None:
    facts = (Fact("shape", "8448x8192x16384"), Fact("candidate", "algo1"))
    values = {"rate": 600e12, "sm_clock": 1.5e9, "power": 699.0}
    search = figures("gemm_search", values, bound="gemm:bf16", dtype="bf16", facts=facts)
    finding = findings(made(search, product(share)))["compute.search"]
    assert finding.severity == "note"
    assert "8448x8192x16384: 600 TFLOP/s" in finding.title
    assert words in finding.text
    alone = findings(made(search))
    assert alone["compute.search"].text == ""
    assert "gemm_search[dtype=bf16] reaches 600 TFLOP/s" in alone["compute.verdict"].text


def test_halved_shapes_are_a_warning() -> None:
    fact = Fact("shape", "4096x4096x4096", source="halved until it fitted the 1000 B free")
    finding = findings(made(product(facts=(fact,))))["compute.halved"]
    assert finding.severity == "warning"
    assert "1 product" in finding.title
    assert "4096x4096x4096" in finding.text
    asked = Fact("shape", "8192x8192x8192", source="as asked")
    assert "compute.halved" not in findings(made(product(facts=(asked,))))


def test_fast_sums_against_promoted_ones() -> None:
    values = {"rate": 0.8 * 1638.4e12 * 0.75, "sm_clock": 1.5e9}
    exact = figures("gemm_throughput", values, bound="gemm:fp8_e4m3", dtype="fp8_e4m3", size=8192, library="cublaslt")
    finding = findings(made(product(0.9, dtype="fp8_e4m3_fast"), exact))["compute.fast"]
    assert finding.severity == "note"
    assert "1.13×" in finding.title
    equal = findings(made(product(0.8, dtype="fp8_e4m3_fast"), exact))["compute.fast"]
    assert equal.advice != finding.advice
    assert "compute.fast" not in findings(made(product(0.9, dtype="fp8_e4m3_fast"), product()))


@pytest.mark.parametrize(("ratio", "severity"), [(2.0, "advice"), (1.5, "note"), (1.0, None)])
def test_boards_for_games_are_recognised_by_their_accumulation(ratio: float, severity: str | None) -> None:
    run = made(instructions("mma", 1000.0 * ratio, "fp16_acc16"), instructions("mma", 1000.0, "fp16"))
    pair = halves(evidence(run))
    assert pair is not None
    assert pair.ratio == pytest.approx(ratio)
    finding = findings(run).get("compute.accumulate")
    assert (finding.severity if finding is not None else None) == severity


def test_the_path_that_leaves_the_rate_behind() -> None:
    both = findings(made(instructions("wgmma", 4090.0), instructions("mma", 2700.0)))["compute.path"]
    assert both.severity == "advice"
    assert "66.0 %" in both.title
    equal = findings(made(instructions("wgmma", 4090.0), instructions("mma", 4000.0)))["compute.path"]
    assert (equal.severity, equal.advice) == ("note", "")
    alone = findings(made(instructions("mma", 2048.0)))["compute.path"]
    assert alone.severity == "advice"
    assert "50.0 %" in alone.title
    assert "compute.path" not in findings(made(instructions("mma", 4090.0)))


def test_tensor_cores_alone_and_the_share_that_products_reach() -> None:
    run = made(product(0.9), instructions("wgmma", 4090.0), instructions("wgmma", 4090.0, load="burst"))
    finding = findings(run)["compute.ceiling"]
    assert finding.severity == "good"
    assert "654 TFLOP/s (bf16 wgmma), 99.9 %" in finding.title
    assert "84.5 %" in finding.text
    assert "No product of random numbers can be faster" in finding.text
    slow = findings(made(instructions("mma", 2700.0)))["compute.ceiling"]
    assert (slow.severity, slow.text) == ("note", "")


def test_instructions_that_a_product_beats_are_no_roof() -> None:
    run = made(product(0.9), instructions("mma", 1000.0), LAUNCH, BANDWIDTH, COMPUTE)
    text = findings(run)["compute.ceiling"].text
    assert "A product is faster" in text
    assert "can be faster for long" not in text
    roof = compute_roof(evidence(run), "bf16")
    assert roof is not None
    assert roof.name == "gemm_throughput size 8192"


def test_alus_and_how_much_must_be_in_flight() -> None:
    fma = figures(
        "alu_ceiling", {"rate": 50e12, "per_clock": 256, "latency": 4.0}, bound="alu:fma_fp32", operation="fma_fp32"
    )
    mad = figures(
        "alu_ceiling", {"integer_rate": 6e12, "integer_per_clock": 32}, bound="alu:mad_int32", operation="mad_int32"
    )
    run = made(fma, mad)
    in_flight = {alu.operation: alu.in_flight for alu in alu_instructions(evidence(run))}
    assert in_flight == {"fma_fp32": pytest.approx(16.0), "mad_int32": None}
    finding = findings(run)["compute.alu"]
    assert finding.severity == "note"
    assert "fma_fp32 gives 256 FLOP/clk/SM (100 %" in finding.title
    assert "16 warp instructions" in finding.text
    assert "mad_int32 stays below" in finding.text


LAUNCH, BANDWIDTH, COMPUTE = shape(1, 9e-6, 25e-6, 10e-6), shape(16, 9e-6, 9e-6, 9e-6), shape(512, 4e-5, 4e-5, 4e-5)


def test_what_bounds_a_shape_follows_this_runs_own_roofs() -> None:
    run = made(instructions("wgmma", 4090.0), LAUNCH, BANDWIDTH, COMPUTE)
    assert [one.held for one in shaped(evidence(run))] == ["launch", "bandwidth", "compute"]
    finding = findings(run)["compute.shapes"]
    assert finding.severity == "note"
    assert finding.title.endswith("1 launch-bound, 1 bandwidth-bound, 1 compute-bound")
    assert "launch-bound at 1 row, bandwidth-bound at 16 rows and compute-bound at 512 rows" in finding.text


def roof_names(*outcomes: Outcome, **gpu: object) -> list[str]:
    one = evidence(made(*outcomes, **gpu))
    return [roof.name for roof in (bandwidth_roof(one), compute_roof(one, "bf16")) if roof is not None]


def test_roofs_are_measured_ones_first() -> None:
    read = figures(
        "memory_stream", {"bandwidth": 3.7e12}, bound="dram", kernel="read", implementation="cuda", dtype="fp32",
        size_bytes=1 << 30,
    )  # fmt: skip
    assert roof_names(LAUNCH, read, instructions("mma", 3700.0), product()) == [
        "memory_stream read", "tensor_ceiling mma, sustained",
    ]  # fmt: skip
    assert roof_names(LAUNCH, product()) == ["memory clock 2500 MHz x 2 x 6400 bit", "gemm_throughput size 8192"]
    assert "x 100 SMs x SM clock 2000 MHz" in roof_names(LAUNCH)[1]
    assert roof_names(LAUNCH, compute_capability=None, memory_bus_bits=None) == []
    unknown = evidence(made(BANDWIDTH, compute_capability=None, memory_bus_bits=None))
    assert [one.held for one in shaped(unknown)] == [None]


def test_launch_bound_products_and_what_a_graph_gains() -> None:
    finding = findings(made(LAUNCH, BANDWIDTH, COMPUTE))["compute.launches"]
    assert finding.severity == "advice"
    assert "7b_out of 1 row (bf16) 2.5×" in finding.title
    assert "25.0 µs" in finding.text
    assert "9.00 µs of work" in finding.text
    assert "compute.launches" not in findings(made(BANDWIDTH, COMPUTE))
    assert "compute.launches" not in findings(made(shape(1, 9e-6, 25e-6, 24e-6)))
