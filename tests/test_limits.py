"""Ceilings against the reference table of PCIe rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from microbench.analysis.limits import CACHE_NAMES, PCIE_BOUNDS, cache_rate, ceiling, mover, pcie_both_rate, pcie_rate
from microbench.core.model import GpuInfo, LinkInfo, link_rate, pcie_raw_rate

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "pcie.json").read_text())["rows"]
LINK = LinkInfo(generation_now=1, generation_max=5, lanes_now=16, lanes_max=16, max_payload_bytes=256)
GPU = GpuInfo("SIMULATED GPU", "GPU-0", link=LINK)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['generation']}x{row['lanes']}/{row['max_payload_bytes']}")
def test_rates_are_the_tables(row: dict[str, Any]) -> None:
    generation, lanes, payload = row["generation"], row["lanes"], row["max_payload_bytes"]
    raw = pcie_raw_rate(generation, lanes)
    assert raw is not None
    assert raw / 1e9 == pytest.approx(row["raw_GBps"], abs=6e-4)
    for direction in ("h2d", "d2h"):
        rate = pcie_rate(generation, lanes, direction, payload)
        assert rate is not None
        assert rate / 1e9 == pytest.approx(row[f"{direction}_GBps"], abs=6e-4)


def test_the_table_has_every_generation() -> None:
    assert {row["generation"] for row in ROWS} == {1, 2, 3, 4, 5, 6}


def test_a_link_is_judged_at_its_full_speed_though_it_is_trained_down() -> None:
    limit = ceiling("pcie_h2d", GPU)
    assert limit is not None
    assert limit.value == pytest.approx(58.449e9, rel=1e-4)
    assert limit.unit == "B/s"
    assert limit.source == "PCIe 5 x16 to the GPU, 256-byte packets"
    assert limit.assumptions == ()
    assert link_rate(LINK) == pytest.approx(63.015e9, rel=1e-4)


@pytest.mark.parametrize(
    ("bound", "gigabytes_per_s"),
    [
        ("pcie_h2d", 58.449),
        ("pcie_d2h", 57.614),
        # 63.015 x 128/148 and x 128/152: by the byte counters of an H200.
        ("pcie_sm_read", 54.500),
        ("pcie_sm_write", 53.066),
        # 58.449 down; up (63.015 - 58.449 x 24/256) x 256/280.
        ("pcie_both", 58.449 + 52.604),
    ],
)
def test_ceilings_of_a_full_link(bound: str, gigabytes_per_s: float) -> None:
    limit = ceiling(bound, GPU)
    assert limit is not None
    assert limit.value / 1e9 == pytest.approx(gigabytes_per_s, abs=1e-3)
    assert limit.unit == "B/s"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['generation']}x{row['lanes']}/{row['max_payload_bytes']}")
def test_both_ways_at_once_are_less_than_twice_one_way(row: dict[str, Any]) -> None:
    both = pcie_both_rate(row["generation"], row["lanes"], row["max_payload_bytes"])
    assert both is not None
    assert 0.9 * (row["h2d_GBps"] + row["d2h_GBps"]) < both / 1e9 < row["h2d_GBps"] + row["d2h_GBps"]


def test_the_gpu_that_moves_the_data_is_the_one_that_counts() -> None:
    gpus = [GpuInfo("SIMULATED GPU", f"GPU-{index}", index=index) for index in (0, 1, 3)]
    assert mover({"first": 3, "second": 1}, GPU, gpus) == gpus[2]
    assert mover({"gpu_index": 1}, GPU, gpus) == gpus[1]
    assert mover({"direction": "h2d"}, GPU, gpus) == GPU
    assert mover({"first": 2}, GPU, gpus) == GPU, "one that nobody knows of"
    assert mover({"first": "x"}, None, gpus) is None


def test_kernels_keep_their_packets_whatever_the_payload_size() -> None:
    for payload_bytes in (128, 512, None):
        link = msgspec.structs.replace(LINK, max_payload_bytes=payload_bytes)
        limit = ceiling("pcie_sm_write", msgspec.structs.replace(GPU, link=link))
        assert limit is not None
        assert limit.value == pytest.approx(53.066e9, rel=1e-4)
        assert limit.source == "PCIe 5 x16 from the GPU, 128-byte packets"
        assert limit.assumptions == ("SMs move host memory in cache lines, as an H200's do",)


def test_nvlinks_carry_their_line_rate_together() -> None:
    board = msgspec.structs.replace(GPU, link=LinkInfo(nvlinks=18, nvlink_bytes_per_s=26.562e9))
    one, both = ceiling("nvlink", board), ceiling("nvlink_both", board)
    assert one is not None
    assert both is not None
    assert one.value == pytest.approx(478.116e9)
    assert both.value == 2 * one.value
    assert one.source == "18 NVLinks of 26.6 GB/s"
    assert "headers" in one.assumptions[0]


@pytest.mark.parametrize("link", [LinkInfo(), LinkInfo(nvlinks=0), LinkInfo(nvlinks=18), LINK])
def test_no_ceiling_without_nvlink(link: LinkInfo) -> None:
    assert ceiling("nvlink", msgspec.structs.replace(GPU, link=link)) is None


@pytest.mark.parametrize("bound", PCIE_BOUNDS)
def test_memory_shared_with_the_host_has_no_pcie_ceiling(bound: str) -> None:
    assert ceiling(bound, GPU) is not None
    assert ceiling(bound, msgspec.structs.replace(GPU, integrated=True)) is None
    assert ceiling(bound, msgspec.structs.replace(GPU, link=msgspec.structs.replace(LINK, coherent=True))) is None
    assert ceiling(bound, msgspec.structs.replace(GPU, link=LinkInfo())) is None


def test_a_hidden_payload_size_is_assumed_and_said() -> None:
    hidden = msgspec.structs.replace(GPU, link=msgspec.structs.replace(LINK, max_payload_bytes=None))
    limit = ceiling("pcie_d2h", hidden)
    assert limit is not None
    assert limit.value == pytest.approx(57.614e9, rel=1e-4)
    assert "256-byte" in limit.assumptions[0]


def test_no_ceiling_where_none_is_known() -> None:
    assert ceiling(None, GPU) is None
    assert ceiling("dram", GPU) is None
    assert ceiling("pcie_h2d", None) is None
    assert ceiling("pcie_h2d", msgspec.structs.replace(GPU, integrated=True)) is None
    assert ceiling("pcie_h2d", GpuInfo("SIMULATED GPU", "GPU-0")) is None
    assert ceiling("pcie_h2d", msgspec.structs.replace(GPU, link=LinkInfo(generation_max=9, lanes_max=16))) is None
    assert link_rate(LinkInfo()) is None


def test_generation_six_says_how_sure_it_is() -> None:
    limit = ceiling("pcie_h2d", msgspec.structs.replace(GPU, link=msgspec.structs.replace(LINK, generation_max=6)))
    assert limit is not None
    assert "low confidence" in limit.assumptions[0]


# -- memory -------------------------------------------------------------------------------------------------------

BOARD = msgspec.structs.replace(
    GPU, compute_capability=(9, 0), sm_count=132, sm_clock_max_hz=1.98e9, memory_clock_max_hz=3.201e9,
    memory_bus_bits=6016, l2_bytes=50 << 20,
)  # fmt: skip


def test_dram_is_memory_clock_times_two_times_bus_width() -> None:
    limit = ceiling("dram", BOARD)
    assert limit is not None
    assert limit.value == pytest.approx(4.814304e12)
    assert (limit.unit, limit.clock) == ("B/s", "memory clock 3201 MHz")
    assert limit.source == "memory clock 3201 MHz x 2 x 6016 bit"
    assert limit.assumptions == ()


@pytest.mark.parametrize(
    ("megahertz", "bits", "gigabytes_per_s"),
    # A100 80 GB, RTX 4090, B200 as their vendors state them.
    [(1593, 5120, 2039.0), (10501, 384, 1008.1), (3996, 8192, 8183.8)],
)
def test_dram_of_known_boards(megahertz: float, bits: int, gigabytes_per_s: float) -> None:
    limit = ceiling("dram", msgspec.structs.replace(BOARD, memory_clock_max_hz=megahertz * 1e6, memory_bus_bits=bits))
    assert limit is not None
    assert limit.value / 1e9 == pytest.approx(gigabytes_per_s, abs=0.1)


def test_dram_stands_for_integrated_memory_too_and_a_mig_instance_says_so() -> None:
    assert ceiling("dram", msgspec.structs.replace(BOARD, integrated=True)) == ceiling("dram", BOARD)
    shared = ceiling("dram", msgspec.structs.replace(BOARD, mig=True))
    assert shared is not None
    assert "MIG" in shared.assumptions[0]


@pytest.mark.parametrize("missing", ["memory_clock_max_hz", "memory_bus_bits"])
def test_no_dram_ceiling_without_clock_or_width(missing: str) -> None:
    assert ceiling("dram", msgspec.structs.replace(BOARD, **{missing: None})) is None


@pytest.mark.parametrize(("level", "each"), [("shared", 128), ("l1", 128), ("l2", 64)])
def test_caches_by_the_clock_and_in_all(level: str, each: int) -> None:
    by_clock, total = ceiling(f"{level}_per_clock", BOARD), ceiling(level, BOARD)
    assert by_clock is not None
    assert total is not None
    assert (by_clock.value, by_clock.unit, by_clock.clock) == (each, "B/clk/SM", "any SM clock")
    assert total.value == pytest.approx(each * 132 * 1.98e9)
    assert (total.unit, total.clock) == ("B/s", "SM clock 1980 MHz")
    assert ("low confidence" in " ".join(total.assumptions)) is (level == "l2")


def test_the_l1_of_turing_is_half_as_wide() -> None:
    limit = ceiling("l1_per_clock", msgspec.structs.replace(BOARD, compute_capability=(7, 5)))
    assert limit is not None
    assert limit.value == 64


def test_caches_of_unknown_architectures_have_no_ceiling() -> None:
    for level in CACHE_NAMES:
        for unknown in (None, (6, 1), (99, 0)):
            gpu = msgspec.structs.replace(BOARD, compute_capability=unknown)
            assert cache_rate(level, gpu) is None
            assert ceiling(level, gpu) is None
            assert ceiling(f"{level}_per_clock", gpu) is None
    assert ceiling("l2", msgspec.structs.replace(BOARD, sm_clock_max_hz=None)) is None
    assert ceiling("l2", msgspec.structs.replace(BOARD, sm_count=None)) is None
    assert ceiling("l2_per_clock", msgspec.structs.replace(BOARD, sm_count=None)) is not None
    assert ceiling("l3", BOARD) is None
