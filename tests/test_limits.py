"""Ceilings against the reference table of PCIe rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from microbench.limits import ceiling, link_rate, pcie_rate, pcie_raw_rate
from microbench.model import GpuInfo, LinkInfo

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
    assert limit.assumptions == ()
    assert link_rate(LINK) == pytest.approx(63.015e9, rel=1e-4)


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
