"""Findings on products, libraries, candidates, shapes of models, tensor instructions and ALUs."""

from __future__ import annotations

import pytest
from compute_evidence import evidence, figures, findings, instructions, made, product, shape

from microbench.core.model import Fact, Outcome
from microbench.explain.compute_products import bandwidth_roof, bound_of, compute_roof, fed_sizes, shaped
from microbench.explain.compute_units import instructions as alu_instructions


def named(candidate: str, guess: int) -> tuple[Fact, ...]:
    return (Fact("candidate", candidate, source=f"the fastest of 8, guess {guess} of the heuristics"),)


def test_from_which_size_on_products_are_fed() -> None:
    run = made(product(0.3, size=1024), product(0.82, size=4096), product(0.9), product(0.85, size=16384))
    assert [(one.dtype, one.size) for one in fed_sizes(evidence(run))] == [("bf16", 4096)]
    finding = findings(run)["compute.fed_from"]
    assert finding.title == "bf16 products reach 90 % of their best from size 4096 on"
    assert "33.3 % of its best" in finding.text
    assert "compute.fed_from" not in findings(made(product(0.3, size=1024), product(0.9)))


def test_libraries_stand_beside_cublaslt_at_the_same_size() -> None:
    run = made(product(0.9), product(0.9, size=4096), product(0.9, library="cupy"), product(0.8, library="torch"))
    finding = findings(run)["compute.libraries"]
    assert finding.severity == "advice"
    assert finding.title == "Beside cuBLASLt: CuPy reaches 100 %; PyTorch reaches 88.9 %"
    assert "bf16 492 TFLOP/s of 553 TFLOP/s (88.9 %)" in finding.text
    faster = findings(made(product(0.8), product(0.9, library="cupy")))["compute.libraries"]
    assert "Ahead, though not measured in turn: CuPy in bf16." in faster.text
    assert "one after the other" in faster.threshold
    turns = findings(made(product(0.8), product(0.7, library="cupy", against=1.05)))["compute.libraries"]
    assert turns.title == "Beside cuBLASLt: CuPy reaches 105 %"
    assert "Faster than every candidate that was tried: CuPy in bf16." in turns.text
    assert turns.threshold.startswith("in turn")
    assert findings(made(product(0.9), product(0.89, library="torch")))["compute.libraries"].severity == "note"
    assert "compute.libraries" not in findings(made(product(0.9), product(0.9, size=4096, library="torch")))


def test_the_first_guess_of_the_heuristics() -> None:
    later = made(product(facts=named("algo66", 3)), product(0.8, dtype="fp16", facts=named("algo21", 1)))
    finding = findings(later)["compute.candidate"]
    assert finding.title == "cuBLASLt's first guess was not the fastest for 1 of 2 types"
    assert "bf16 algo66 (guess 3)" in finding.text
    assert "algo21" not in finding.text
    first = findings(made(product(facts=named("algo66", 1))))["compute.candidate"]
    assert first.title == "cuBLASLt's first guess was the fastest for 1 type"
    only = (Fact("candidate", "algo66", source="the only one"),)
    assert "compute.candidate" not in findings(made(product(facts=only)))


def test_the_best_shape_against_the_square_one() -> None:
    facts = (Fact("shape", "8448x8192x16384"), Fact("candidate", "algo1"))
    values = {"rate": 600e12, "sm_clock": 1.5e9, "power": 699.0}
    search = figures("gemm_search", values, bound="gemm:bf16", dtype="bf16", facts=facts)
    finding = findings(made(search, product(0.9)))["compute.search"]
    assert finding.title == "The fastest bf16 product is 8448x8192x16384: 600 TFLOP/s at 1.50 GHz and 699 W"
    assert "8.5 % more than the best square one (553 TFLOP/s)" in finding.text
    assert "by algo1" in finding.text
    alone = findings(made(search))
    assert alone["compute.search"].title == finding.title
    assert "square one" not in alone["compute.search"].text
    assert "gemm_search[dtype=bf16] reaches 600 TFLOP/s" in alone["compute.verdict"].text


def test_halved_shapes_are_named() -> None:
    fact = Fact("shape", "4096x4096x4096", source="halved until it fitted the 1000 B free")
    assert "is 4096x4096x4096" in findings(made(product(facts=(fact,))))["compute.halved"].text
    asked = Fact("shape", "8192x8192x8192", source="as asked")
    assert "compute.halved" not in findings(made(product(facts=(asked,))))


def test_fast_sums_against_promoted_ones() -> None:
    quick = product(0.9, dtype="fp8_e4m3_fast", facts=(Fact("accumulator", "fast, about 14 bits"),))
    values = {"rate": 0.8 * 1638.4e12 * 0.75, "sm_clock": 1.5e9}
    exact = figures(
        "gemm_throughput", values, bound="gemm:fp8_e4m3", dtype="fp8_e4m3", size=8192, library="cublaslt",
        facts=(Fact("accumulator", "fp32, promoted"),),
    )  # fmt: skip
    finding = findings(made(quick, exact))["compute.fast"]
    assert finding.title.startswith("Fast accumulation makes fp8_e4m3 1.13× as fast")
    assert "accumulator fast, about 14 bits" in finding.text
    assert "compute.fast" not in findings(made(quick, product()))


@pytest.mark.parametrize(
    ("ratio", "like"), [(2.0, ": GeForce-like"), (1.0, ": not GeForce-like"), (1.5, ": unclear")]
)  # fmt: skip
def test_boards_for_games_are_told_by_their_sums(ratio: float, like: str) -> None:
    run = made(instructions("mma", 1000.0 * ratio, "fp16_acc16"), instructions("mma", 1000.0, "fp16"))
    assert findings(run)["compute.accumulate"].title.endswith(like)


def test_the_path_that_leaves_the_rate_behind() -> None:
    both = findings(made(instructions("wgmma", 4090.0), instructions("mma", 2700.0)))
    assert both["compute.path"].severity == "advice"
    assert both["compute.path"].title == "mma.sync gives 66.0 % of what wgmma gives (bf16, clock for clock)"
    equal = findings(made(instructions("wgmma", 4090.0), instructions("mma", 4000.0)))
    assert equal["compute.path"].severity == "note"
    alone = findings(made(instructions("mma", 2048.0)))["compute.path"]
    assert alone.title.startswith("mma.sync reaches 50.0 % of the tensor cores' rate")
    assert "compute.path" not in findings(made(instructions("mma", 4090.0)))


def test_tensor_cores_alone_and_what_products_keep() -> None:
    run = made(product(0.9), instructions("wgmma", 4090.0), instructions("wgmma", 4090.0, load="burst"))
    finding = findings(run)["compute.ceiling"]
    assert finding.severity == "good"
    assert finding.title == (
        "Tensor cores alone sustain 654 TFLOP/s at 1.60 GHz (bf16 wgmma), 99.9 % of their rate a cycle"
    )
    assert "burst 736 TFLOP/s, of which a product reaches 84.5 %" in finding.text
    assert "No product of random numbers can be faster" in finding.text
    assert findings(made(instructions("mma", 2700.0)))["compute.ceiling"].severity == "note"


def test_instructions_that_a_product_beats_are_no_roof() -> None:
    run = made(product(0.9), instructions("mma", 1000.0), LAUNCH, BANDWIDTH, COMPUTE)
    found = findings(run)
    assert "A product is faster" in found["compute.ceiling"].text
    assert "can be faster for long" not in found["compute.ceiling"].text
    assert "gemm_throughput size 8192" in found["compute.shapes"].text
    assert "can be faster" not in findings(made(instructions("mma", 2700.0)))["compute.ceiling"].text


def test_alus_and_how_much_must_be_under_way() -> None:
    fma = figures(
        "alu_ceiling", {"rate": 50e12, "per_clock": 256, "latency": 4.0}, bound="alu:fma_fp32", operation="fma_fp32"
    )
    mad = figures(
        "alu_ceiling", {"integer_rate": 6e12, "integer_per_clock": 32}, bound="alu:mad_int32", operation="mad_int32"
    )
    run = made(fma, mad)
    under_way = {one.operation: one.under_way for one in alu_instructions(evidence(run))}
    assert under_way == {"fma_fp32": pytest.approx(16.0), "mad_int32": None}
    finding = findings(run)["compute.alu"]
    assert (
        finding.title == "fma_fp32 gives 256 FLOP/clk/SM (100 % of the rate), 16 warp instructions under way fill an SM"
    )
    assert "Below the table's rate: mad_int32." in finding.text


LAUNCH, BANDWIDTH, COMPUTE = shape(1, 9e-6, 25e-6, 10e-6), shape(16, 9e-6, 9e-6, 9e-6), shape(512, 4e-5, 4e-5, 4e-5)


def test_shapes_are_named_by_this_runs_own_roofs() -> None:
    run = made(instructions("wgmma", 4090.0), LAUNCH, BANDWIDTH, COMPUTE)
    one = evidence(run)
    assert [found.held for found in shaped(one)] == ["launch", "bandwidth", "compute"]
    assert [bound_of(one, found.row) for found in shaped(one)] == ["launch", "bandwidth", "compute"]
    finding = findings(run)["compute.shapes"]
    assert finding.title == "Of 3 products of models: 1 launch-bound, 1 bandwidth-bound, 1 compute-bound"
    assert "Launch-bound at 1 row:" in finding.text
    assert "tensor_ceiling wgmma, sustained 654 TFLOP/s" in finding.text


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
    assert [found.held for found in shaped(unknown)] == [None]


def test_launches_in_disguise_and_what_a_graph_gives() -> None:
    finding = findings(made(LAUNCH, BANDWIDTH, COMPUTE))["compute.launches"]
    assert finding.title == (
        "1 launch in disguise among the products: a graph makes 7b_out of 1 row (bf16) 2.5× as fast"
    )
    assert "25.0 µs a call, 10.0 µs in a graph, 9.00 µs of work" in finding.text
    assert "compute.launches" not in findings(made(BANDWIDTH, COMPUTE))
    assert "compute.launches" not in findings(made(shape(1, 9e-6, 25e-6, 24e-6)))
