"""What the link suite says of copies, memory, kernels, latency and pieces, with the run's own numbers."""

from __future__ import annotations

import msgspec
import pytest
from link_evidence import SEVERAL, changed, evidence, scaled, silent, told, with_facts, without
from make_link_run import HOST_FIXED_S, two_switches
from make_run import measurement
from microbench.explain.link_memory import choices, levels, payload_bytes

from microbench.core.model import Outcome
from microbench.explain.link_facts import copies, copy_fit, seconds_at

# -- copies -------------------------------------------------------------------------------------------------------


def test_a_fit_gives_back_fixed_time_and_bandwidth() -> None:
    fit = copy_fit(evidence(), "bandwidth", "h2d", "pinned")
    assert fit is not None
    assert fit.fixed_s == pytest.approx(1.3e-6, rel=0.01)
    assert fit.bandwidth == pytest.approx(55.4e9, rel=0.01)
    assert fit.size_for(0.5) == pytest.approx(1.3e-6 * 55.4e9, rel=0.02)
    assert fit.size_for(0.9) == pytest.approx(9 * fit.size_for(0.5))


def test_sizes_are_told_and_held_against_a_launch() -> None:
    finding = told("link.copy_size")
    assert finding.title == "A copy to the GPU reaches half its bandwidth at 70.3 KiB, 90 % at 633 KiB"
    assert "Up to 109 KiB a copy takes the GPU no longer than a launch takes the host (3.31 µs)." in finding.text
    alone = told("link.copy_size", without("launch_cost"))
    assert "launch" not in alone.text


def test_a_line_that_misses_is_admitted() -> None:
    assert "read the curve" in told("link.copy_size", scaled("link_copy", "bandwidth", 0.4, size_bytes=1 << 20)).text
    assert "read the curve" not in told("link.copy_size").text


def test_times_between_sizes_are_straight() -> None:
    points = copies(evidence(), "bandwidth", "h2d", "pinned")
    assert seconds_at(points, 64 << 20) == pytest.approx(1.3e-6 + (64 << 20) / 55.4e9, rel=0.01)
    assert seconds_at(points, 1 << 30) is None
    assert seconds_at(points[:1], 1) == pytest.approx(1.3e-6, rel=0.01)
    assert seconds_at([], 1) is None


def test_pageable_memory_is_held_against_pinned() -> None:
    finding = told("link.memory")
    assert finding.severity == "advice"
    assert finding.title == "Pageable copies from the GPU reach 27.9 % of pinned ones"
    assert "write-combined 55.3 GB/s" in finding.text
    assert told("link.memory", scaled("link_copy", "bandwidth_host", 3.4, memory="pageable")).severity == "note"


def test_pinning_counts_the_copies_until_it_has_paid() -> None:
    found = {(one.way, one.size_bytes): one for one in choices(evidence())}
    one = found["allocate", 4 << 20]
    extra_s = (30e-6 + 4 * 180e-6) + (20e-6 + 4 * 60e-6) - (3e-6 + 4 * 60e-6) - (2e-6 + 4 * 20e-6)
    assert one.extra_s == pytest.approx(extra_s, rel=0.03)
    pinned_s, pageable_s = 1.3e-6 + HOST_FIXED_S + (4 << 20) / 55.4e9, 9e-6 + (4 << 20) / 15.9e9
    assert one.copies("h2d") == pytest.approx(extra_s / (pageable_s - pinned_s), abs=1)
    assert found["register", 4 << 20].extra_s == pytest.approx(35e-6 + 4 * 140e-6, rel=0.03)
    assert told("link.pin").title == "Pinning pays from 4 copies of 64 MiB on"


def test_pinning_that_saves_nothing_never_pays() -> None:
    run = scaled("link_copy", "bandwidth_host", 9.0, memory="pageable")
    assert told("link.pin", run).title == "Pinning does not pay for copies of 64 MiB"
    assert all(one.copies("h2d") is None for one in choices(evidence(run)))


def test_pinning_that_pays_one_way_only_says_each() -> None:
    run = scaled("link_copy", "bandwidth_host", 9.0, memory="pageable", direction="d2h")
    finding = told("link.pin", run)
    assert finding.title == "Pinning pays from 4 copies of 64 MiB to the GPU on, never from the GPU"
    assert "has paid after 4 copies to the GPU but never from the GPU" in finding.text
    assert "Pin what is copied in a direction and size that pays" in finding.text
    both = told("link.pin")
    assert "never" not in both.text + both.title


def test_directions_that_were_not_both_measured_are_no_never() -> None:
    to_gpu = without("link_copy", memory="pageable", direction="d2h")
    assert all(one.directions == ["h2d"] for one in choices(evidence(to_gpu)))
    finding = told("link.pin", to_gpu)
    assert finding.title == "Pinning pays from 4 copies of 64 MiB on"
    assert "never" not in finding.text
    # Pageable copies one way, pinned ones the other way: nothing to compare.
    assert silent("link.pin", without("link_copy", to_gpu, memory="pinned", direction="h2d"))


def test_pinned_memory_that_costs_no_more_pays_at_once() -> None:
    def free(one: Outcome) -> Outcome:
        if one.case.benchmark != "link_pinning" or one.case.params["way"] != "allocate":
            return one
        return msgspec.structs.replace(one, measurements=(measurement("pin", 1e-9), measurement("release", 1e-9)))

    one = next(one for one in choices(evidence(changed(free))) if one.way == "allocate")
    assert one.extra_s < 0
    assert one.copies("h2d") == 1


# -- both ways, kernels, latency ----------------------------------------------------------------------------------


def test_both_directions_are_held_against_each_alone() -> None:
    finding = told("link.both")
    assert finding.title == "Both directions at once carry 98.0 GB/s, 88.6 % of twice one alone"
    assert "to the GPU 46.0 GB/s of 55.4 GB/s (83.0 %)" in finding.text
    assert "the one to the GPU gives way" in finding.text
    alike = scaled("link_bidirectional", "bandwidth", 51 / 46, direction="h2d")
    assert "both give way by about as much" in told("link.both", alike).text
    free = scaled("link_bidirectional", "bandwidth", 1.07, scaled("link_bidirectional", "bandwidth", 55 / 51, alike))
    assert "neither gives way" in told("link.both", scaled("link_bidirectional", "bandwidth", 1 / 1.07, free)).text
    turns = told("link.both", scaled("link_bidirectional", "sum_bandwidth", 0.6))
    assert turns.severity == "warning"
    assert "take turns" in turns.text


def test_packets_are_read_off_the_counters() -> None:
    assert payload_bytes("read", 1 + 20 / 128) == pytest.approx(128)
    assert payload_bytes("write", 1 + 24 / 256) == pytest.approx(256)
    assert payload_bytes("read", 1.0) is None
    assert payload_bytes("write", 1 + 24 / 4096) == pytest.approx(4096)
    assert payload_bytes("write", 1 + 24 / 8192) is None, "no PCIe packet carries as much"
    text = told("link.zero_copy").text
    assert "Reads count 1.155 bytes on the wire for each byte of payload: packets of 128 bytes with 20" in text
    assert "split lines cost reads 20.0 % (32 bytes off, 16 wide)" in text
    assert "92.7 % of the ceiling for its packets" in text


def test_narrow_accesses_are_named() -> None:
    run = scaled("link_zero_copy", "bandwidth", 0.5, width_bytes=4, access="write")
    assert "writes 4 bytes wide lose 51.5 %" in told("link.zero_copy", run).text


def test_latency_has_percentiles_and_footprints() -> None:
    finding = told("link.latency")
    assert finding.title == "A GPU thread waits 1.12 µs for a word of host memory"
    assert finding.text.startswith(
        "A dependent read within 2 MiB, a line every 128 B, takes 1.12 µs, the mean over reads by all SMs in turn. "
        "Single reads of one SM: p50 1.12 µs, p99 1.79 µs."
    )
    unstated = changed(lambda one: msgspec.structs.replace(one, facts=()))
    assert "within 2 MiB takes 1.12 µs" in told("link.latency", unstated).text
    assert "Within 64 MiB, random, it takes 1.68 µs (1.50×)" in finding.text
    flags = told("link.latency", without("link_latency", what="host_read"))
    assert flags.title.startswith("A flag answered by a running kernel takes")


@pytest.mark.parametrize(
    ("latency_s", "expected"), [(0.5e-6, (0, 0)), (0.75e-6, (0, 1)), (1.2e-6, (1, 6)), (2.1e-6, (4, 15))]
)
def test_levels_of_switches_are_a_range(latency_s: float, expected: tuple[int, int]) -> None:
    assert levels(latency_s) == expected
    assert levels(latency_s, translated=True) == (0, expected[1])


def test_an_estimate_of_switches_stands_beside_what_sysfs_shows() -> None:
    title = "Read latency leaves room for up to 5 levels of switches; the virtual machine hides how many there are"
    assert told("link.switches").title == title
    metal = told("link.switches", SEVERAL)
    assert metal.title == "Read latency leaves room for 1 to 5 levels of switches; sysfs shows 2"
    assert "translation" not in metal.text
    translated = told("link.switches", with_facts(two_switches(iommu="translated"), SEVERAL))
    assert translated.title == "Read latency leaves room for up to 5 levels of switches; sysfs shows 2"
    assert "translation of addresses alone may explain" in translated.text
    assert all("no source" in one.text and "no source" in one.threshold for one in (metal, translated))
    direct = changed(
        lambda one: (
            msgspec.structs.replace(one, measurements=(measurement("latency", 0.6e-6),))
            if one.case.benchmark == "link_latency"
            else one
        )
    )
    assert told("link.switches", direct).title.startswith("Read latency leaves no room for switches;")


# -- pieces, managed memory, settings -----------------------------------------------------------------------------


def test_overlap_is_a_share_of_the_half_that_can_be_saved() -> None:
    finding = told("link.chunks")
    assert finding.title == "Overlap saves 45.4 % of a step of copy and kernels, in 16 pieces on 2 streams"
    assert "90.9 % of the half" in finding.text
    none = changed(lambda one: None if one.case.benchmark == "link_chunks" and one.case.params["streams"] == 2 else one)
    assert told("link.chunks", none).title.startswith("Pieces do not pay in one stream")
    lost = scaled("link_chunks", "bandwidth", 0.5, streams=2)
    lost = changed(
        lambda one: None if one.case.params.get("streams") == 1 and one.case.params.get("chunks") != 1 else one, lost
    )
    assert told("link.chunks", lost).title == "Pieces do not pay: copies hardly overlap with kernels"


def test_faults_are_held_against_a_prefetch() -> None:
    finding = told("link.managed")
    assert finding.title == "Managed memory takes 12× as long by faults as by a prefetch"
    even = scaled("link_managed", "bandwidth", 50 / 11, way="fault_to_device")
    even = scaled("link_managed", "bandwidth", 49 / 4, even, way="fault_to_host")
    assert told("link.managed", even).severity == "note"


def test_settings_that_cost_are_named_and_errors_are_a_problem() -> None:
    facts = two_switches(max_payload_bytes=128, acs=True, relaxed_ordering=False, pcie_replays_risen=7)
    run = with_facts(facts, SEVERAL)
    finding = told("link.settings", run)
    assert finding.title == "On the way to the GPU: a payload of 128 B, relaxed ordering off and ACS redirects peers"
    errors = told("link.errors", run)
    assert errors.severity == "problem"
    assert "pcie replays rose by 7" in errors.text
    few = told("link.errors", with_facts(two_switches(pcie_replays_risen=1)))
    assert (few.severity, few.title) == ("note", "Few errors on the link, as many as a sound one may have")
    assert silent("link.errors", SEVERAL)
    assert silent("link.settings", SEVERAL)
    alone = with_facts(two_switches(acs=True))
    assert silent("link.settings", alone)
