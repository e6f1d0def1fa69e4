"""Physical ceilings: PCIe against the reference table, NVLink, memory and caches."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from microbench.analysis import limits
from microbench.core.model import GpuInfo, LinkInfo, link_rate, pcie_raw_rate

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "pcie.json").read_text())["rows"]
LINK = LinkInfo(generation_now=1, generation_max=5, lanes_now=16, lanes_max=16, max_payload_bytes=256)
GPU = GpuInfo("SIMULATED GPU", "GPU-0", link=LINK)
BOARD = replace(
    GPU, compute_capability=(9, 0), sm_count=132, sm_clock_max_hz=1.98e9, memory_clock_max_hz=3.201e9,
    memory_bus_bits=6016, l2_bytes=50 << 20,
)  # fmt: skip


def limit_of(bound: str, gpu: GpuInfo = BOARD, **link: Any) -> limits.Ceiling:
    """The ceiling of that name on that GPU, with other properties of its link."""
    limit = limits.ceiling(bound, replace(gpu, link=replace(gpu.link, **link)))
    assert limit is not None
    return limit


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['generation']}x{row['lanes']}/{row['max_payload_bytes']}")
def test_pcie_rates_are_those_of_the_table(row: dict[str, Any]) -> None:
    link = row["generation"], row["lanes"]
    payload, h2d, d2h = (row[name] for name in ("max_payload_bytes", "h2d_GBps", "d2h_GBps"))
    rates = pcie_raw_rate(*link), limits.pcie_rate(*link, "h2d", payload), limits.pcie_rate(*link, "d2h", payload)
    for rate, expected in zip(rates, (row["raw_GBps"], h2d, d2h), strict=True):
        assert rate is not None
        assert rate / 1e9 == pytest.approx(expected, abs=6e-4)
    both = limits.pcie_both_rate(*link, payload)
    assert both is not None
    assert 0.9 * (h2d + d2h) < both / 1e9 < h2d + d2h


def test_the_table_has_every_generation() -> None:
    assert {row["generation"] for row in ROWS} == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(("bound", "gigabytes_per_s"), [
    ("pcie_h2d", 58.449),
    ("pcie_d2h", 57.614),
    # 63.015 x 128/148 and x 128/152: by the byte counters of an H200.
    ("pcie_sm_read", 54.500),
    ("pcie_sm_write", 53.066),
    # 58.449 down; up (63.015 - 58.449 x 24/256) x 256/280.
    ("pcie_both", 58.449 + 52.604),
])  # fmt: skip
def test_a_link_is_judged_at_its_full_speed_even_if_it_is_trained_down(bound: str, gigabytes_per_s: float) -> None:
    limit = limit_of(bound)
    assert limit.value / 1e9 == pytest.approx(gigabytes_per_s, abs=1e-3)
    assert limit.unit == "B/s"
    assert link_rate(LINK) == pytest.approx(63.015e9, rel=1e-4)


def test_a_ceiling_names_its_source_and_assumptions() -> None:
    known = limit_of("pcie_h2d")
    assert (known.source, known.assumptions) == ("PCIe 5 x16 to the GPU, 256-byte packets", ())
    hidden = limit_of("pcie_d2h", max_payload_bytes=None)
    assert hidden.value == pytest.approx(57.614e9, rel=1e-4)
    assert "256-byte" in hidden.assumptions[0]
    assert "low confidence" in limit_of("pcie_h2d", generation_max=6).assumptions[0]


def test_the_gpu_that_moves_the_data_is_the_one_that_counts() -> None:
    gpus = [GpuInfo("SIMULATED GPU", f"GPU-{index}", index=index) for index in (0, 1, 3)]
    assert limits.mover({"first": 3, "second": 1}, GPU, gpus) == gpus[2]
    assert limits.mover({"gpu_index": 1}, GPU, gpus) == gpus[1]
    assert limits.mover({"direction": "h2d"}, GPU, gpus) == GPU
    assert limits.mover({"first": 2}, GPU, gpus) == GPU, "an unknown index"
    assert limits.mover({"first": "x"}, None, gpus) is None


@pytest.mark.parametrize("payload_bytes", [128, 512, None])
def test_kernels_use_packets_of_a_cache_line_whatever_the_payload_size(payload_bytes: int | None) -> None:
    limit = limit_of("pcie_sm_write", max_payload_bytes=payload_bytes)
    assert limit.value == pytest.approx(53.066e9, rel=1e-4)
    assert limit.source == "PCIe 5 x16 from the GPU, 128-byte packets"
    assert limit.assumptions == ("SMs move host memory in cache lines, as an H200's do",)


def test_nvlinks_add_up_their_line_rate() -> None:
    one, both = (limit_of(bound, nvlinks=18, nvlink_bytes_per_s=26.562e9) for bound in ("nvlink", "nvlink_both"))
    assert one.value == pytest.approx(478.116e9)
    assert both.value == 2 * one.value
    assert one.source == "18 NVLinks of 26.6 GB/s"
    assert "headers" in one.assumptions[0]


@pytest.mark.parametrize("bound", limits.PCIE_BOUNDS)
@pytest.mark.parametrize("gpu", [
    None, replace(GPU, integrated=True), replace(GPU, link=replace(LINK, coherent=True)), replace(GPU, link=LinkInfo()),
    replace(GPU, link=LinkInfo(generation_max=9, lanes_max=16)),
], ids=["no GPU", "integrated", "coherent", "unknown link", "unknown generation"])  # fmt: skip
def test_no_pcie_ceiling_without_a_known_pcie_link(bound: str, gpu: GpuInfo | None) -> None:
    assert limits.ceiling(bound, gpu) is None


@pytest.mark.parametrize(("bound", "gpu"), [
    (None, GPU),
    ("l3", BOARD),
    ("dram", replace(BOARD, memory_clock_max_hz=None)),
    ("dram", replace(BOARD, memory_bus_bits=None)),
    ("l2", BOARD),  # no source states one
    ("l2_per_clock", BOARD),
    ("l1", replace(BOARD, sm_clock_max_hz=None)),
    ("l1", replace(BOARD, sm_count=None)),
    *(("nvlink", replace(GPU, link=link)) for link in (LINK, LinkInfo(nvlinks=0), LinkInfo(nvlinks=18))),
])  # fmt: skip
def test_no_ceiling_without_what_it_is_computed_from(bound: str | None, gpu: GpuInfo) -> None:
    assert limits.ceiling(bound, gpu) is None
    assert link_rate(LinkInfo()) is None


def test_dram_is_memory_clock_times_two_times_bus_width() -> None:
    limit = limit_of("dram")
    assert limit.value == pytest.approx(4.814304e12)
    assert (limit.unit, limit.clock) == ("B/s", "memory clock 3201 MHz")
    assert (limit.source, limit.assumptions) == ("memory clock 3201 MHz x 2 x 6016 bit", ())
    assert limit_of("dram", replace(BOARD, integrated=True)) == limit
    assert "MIG" in limit_of("dram", replace(BOARD, mig=True)).assumptions[0]


@pytest.mark.parametrize(
    ("megahertz", "bits", "gigabytes_per_s"),
    # A100 80 GB, RTX 4090, B200 as their vendors state them.
    [(1593, 5120, 2039.0), (10501, 384, 1008.1), (3996, 8192, 8183.8)],
)
def test_dram_of_known_boards(megahertz: float, bits: int, gigabytes_per_s: float) -> None:
    limit = limit_of("dram", replace(BOARD, memory_clock_max_hz=megahertz * 1e6, memory_bus_bits=bits))
    assert limit.value / 1e9 == pytest.approx(gigabytes_per_s, abs=0.1)


@pytest.mark.parametrize(("level", "each"), [("shared", 128), ("l1", 128)])
def test_caches_have_a_ceiling_per_clock_and_in_total(level: str, each: int) -> None:
    by_clock, total = limit_of(f"{level}_per_clock"), limit_of(level)
    assert (by_clock.value, by_clock.unit, by_clock.clock) == (each, "B/clk/SM", "any SM clock")
    assert total.value == pytest.approx(each * 132 * 1.98e9)
    assert (total.unit, total.clock) == ("B/s", "SM clock 1980 MHz")
    assert limit_of(f"{level}_per_clock", replace(BOARD, sm_count=None)).value == each


def test_the_l1_of_turing_is_half_as_wide() -> None:
    assert limit_of("l1_per_clock", replace(BOARD, compute_capability=(7, 5))).value == 64


@pytest.mark.parametrize("capability", [None, (6, 1), (99, 0)])
@pytest.mark.parametrize("level", ["shared", "l1"])
def test_caches_of_unknown_architectures_have_no_ceiling(level: str, capability: tuple[int, int] | None) -> None:
    gpu = replace(BOARD, compute_capability=capability)
    assert limits.cache_rate(level, gpu) is None
    assert limits.ceiling(level, gpu) is None
    assert limits.ceiling(f"{level}_per_clock", gpu) is None
