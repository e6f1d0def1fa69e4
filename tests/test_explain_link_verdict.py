"""The verdict on the link and its causes: healthy, or what is wrong, from copies and facts."""

from __future__ import annotations

import msgspec
import pytest
from link_evidence import SEVERAL, WHOLE, changed, evidence, scaled, silent, slower, told, with_facts, with_gpu, without
from make_link_run import FLAT, make_link_run, state, two_switches

from microbench.core.model import LinkInfo, Run
from microbench.explain.rules import of_suite


def test_a_healthy_link_has_its_ceiling_and_share() -> None:
    finding = told("link.verdict")
    assert finding.severity == "good"
    assert finding.title == (
        "PCIe 5.0 x16, payload 256 B: ceiling 58.4 GB/s to the GPU, measured 55.4 GB/s (94.7 %): healthy"
    )
    assert "from the GPU 55.3 GB/s of 57.6 GB/s (96.0 %) at 256 MiB" in finding.text


def test_the_worse_direction_is_judged() -> None:
    finding = told("link.verdict", scaled("link_copy", "bandwidth", 0.8, direction="d2h"))
    assert finding.severity == "warning"
    assert "ceiling 57.6 GB/s from the GPU, measured 44.2 GB/s (76.8 %)" in finding.title


def test_lost_lanes_are_named_with_what_the_rest_carries() -> None:
    facts = two_switches(lanes_now=8)
    finding = told("link.verdict", with_facts(facts, slower(0.5)))
    assert finding.severity == "problem"
    assert finding.title.endswith("(47.4 %): 8 of 16 lanes in use")
    assert "While busy the link runs at PCIe 5.0 x8; GPU and slot could do 5.0 x16." in finding.text
    assert "Of what PCIe 5.0 x8 carries, 29.2 GB/s, that is 94.7 %." in finding.text
    assert "reseat" in finding.text


def test_a_lower_generation_under_load_is_named() -> None:
    finding = told("link.verdict", with_facts(two_switches(generation_now=4), slower(0.5)))
    assert finding.title.endswith("runs at PCIe 4.0 x16 of 5.0 x16")


def test_a_virtual_machine_hides_the_slot_but_not_a_slow_link() -> None:
    finding = told("link.verdict", with_facts({**FLAT, "generation_now": 3}, slower(0.25)))
    assert "(what the slot can do is hidden)" in finding.text
    assert finding.severity == "problem"


@pytest.mark.parametrize("lanes", [8, 4])
def test_a_link_that_was_read_idle_is_no_fact_against_it(lanes: int) -> None:
    facts = two_switches(generation_now=1, lanes_now=lanes, hop4_generation_now=1, read_under_load=False)
    alone = changed(lambda one: state(facts) if one.case.benchmark == "link_state" else None)
    read = told("link.verdict", alone)
    assert (read.severity, read.title) == (
        "note",
        f"PCIe 1.0 x{lanes}, read when copies had ended; link_copy not measured",
    )
    assert read.text.startswith("An idle link slows down")
    finding = told("link.verdict", with_facts({**facts, "generation_now": 4}, slower(0.1)))
    assert finding.severity == "problem"
    assert "While busy" not in finding.text
    assert "Read after copies had ended, which may be why, the link runs at" in finding.text


def test_a_trained_down_link_between_bridges_is_named() -> None:
    facts = two_switches(hop4_lanes_now=8, hop5_lanes_now=8)
    finding = told("link.verdict", with_facts(facts, slower(0.5)))
    assert finding.title.endswith("the link below root port 0000:39:01.0 runs at PCIe 5.0 x8 of 5.0 x16")
    assert {"hop4_generation_now", "hop4_lanes_now"} <= set(finding.rests_on)
    between = told("link.verdict", with_facts(two_switches(hop2_generation_now=3), slower(0.2)))
    assert between.title.endswith("the link above bridge 0000:3c:00.0 runs at PCIe 3.0 x16 of 5.0 x16")
    # What the GPU could not use anyway, and what copies were faster than, is no cause.
    slow_gpu = two_switches(generation_gpu_max=3, generation_now=3, hop0_generation_max=3, hop4_generation_now=4)
    assert "root port" not in told("link.verdict", with_facts(slow_gpu, slower(0.2))).title
    assert told("link.verdict", with_facts(two_switches(hop4_lanes_now=1))).severity == "good"


def test_a_narrower_bridge_is_named() -> None:
    facts = two_switches(
        lanes_now=8, lanes_slot_max=8, generation_slot_max=4, generation_now=4, slot_limit_bus_id="0000:3a:00.0"
    )
    finding = told("link.verdict", with_facts(facts, slower(0.25)))
    assert finding.title.endswith("bridge 0000:3a:00.0 is narrower, PCIe 4.0 x8")
    assert "Another slot" in finding.text


def test_a_link_that_was_misread_is_not_blamed() -> None:
    assert told("link.verdict", with_facts(two_switches(generation_now=1, lanes_now=1))).severity == "good"
    assert "Of what" not in told("link.verdict", with_facts(two_switches(generation_now=1), slower(0.5))).text


def test_a_faster_far_node_is_named() -> None:
    run = make_link_run(nodes=2, facts=two_switches())
    run = scaled("link_copy", "bandwidth", 0.7, run)
    finding = told("link.verdict", run)
    assert finding.title.endswith("the buffers lie on a far NUMA node")
    assert "numactl --cpunodebind=1" in finding.text


def test_a_shared_uplink_translation_and_errors_are_named() -> None:
    run = with_facts(two_switches(iommu="translated", pcie_replays_risen=20), slower(0.7, SEVERAL))
    run = without("link_numa", run)
    finding = told("link.verdict", run)
    assert finding.title.endswith("its error counters rise")
    assert "Its uplink is shared: beside all others it keeps 51.0 %" in finding.text
    assert "The IOMMU translates every address" in finding.text


def test_rising_errors_are_no_healthy_link() -> None:
    rising = told("link.verdict", with_facts(two_switches(pcie_correctable_errors_risen=40)))
    assert (rising.severity, rising.title.endswith("its error counters rise")) == ("warning", True)
    for few in ({"pcie_replays_risen": 1}, {"nvlink_errors_risen": 40}):
        assert told("link.verdict", with_facts(two_switches(**few))).severity == "good"  # type: ignore[arg-type]
    assert told("link.verdict", with_facts(two_switches(pcie_fatal_errors_risen=1))).severity == "warning"


def test_a_good_verdict_on_a_shared_uplink_is_of_copies_alone() -> None:
    assert "Copying alone, nothing holds it back." in told("link.verdict", SEVERAL).text
    assert "Nothing holds it back." in told("link.verdict").text


def test_another_process_and_a_hidden_bus_are_named() -> None:
    busy = with_gpu(lambda gpu: msgspec.structs.replace(gpu, other_processes=("python (1)",)), slower(0.7))
    assert told("link.verdict", busy).title.endswith("other processes use this GPU")
    assert told("link.verdict", slower(0.7)).title.endswith("the virtual machine hides why")


def test_small_copies_are_no_slow_link() -> None:
    run = changed(
        lambda one: None if one.case.benchmark == "link_copy" and int(one.case.params["size_bytes"]) > 1 << 16 else one,
        with_facts(two_switches()),
    )
    finding = told("link.verdict", run)
    assert finding.title.endswith("the copies are small")
    assert finding.severity == "note"
    assert "measure larger ones" in finding.text
    one_size = changed(
        lambda one: None if one.case.benchmark == "link_copy" and one.case.params["size_bytes"] != 1 else one, run
    )
    finding = told("link.verdict", one_size)
    assert (finding.severity, finding.title.endswith("the copies are small")) == ("note", True)
    assert "from 4 MiB on" in finding.text
    assert told("link.verdict", with_facts(two_switches(lanes_now=8), run)).severity == "problem"


def test_no_cause_seen_is_said() -> None:
    finding = told("link.verdict", with_facts(two_switches(), slower(0.7)))
    assert finding.title.endswith("no cause seen")
    assert "Nothing that this run looked at explains it." in finding.text
    unlooked = told("link.verdict", without("link_state", slower(0.7)))
    assert "link_state --into RUN" in unlooked.text


@pytest.mark.parametrize(
    "run",
    [
        with_gpu(lambda gpu: msgspec.structs.replace(gpu, integrated=True)),
        with_facts({**FLAT, "c2c": True}),
        with_gpu(lambda gpu: msgspec.structs.replace(gpu, link=LinkInfo(generation_max=1, lanes_max=1, coherent=True))),
    ],
    ids=["integrated", "c2c fact", "coherent link"],
)
def test_memory_that_is_the_hosts_has_no_verdict(run: Run) -> None:
    finding = told("link.verdict", run)
    assert finding.title == "No PCIe verdict for this GPU"
    assert finding.severity == "note"
    assert silent("link.settings", run)


def test_an_unknown_link_and_pageable_copies_have_no_verdict() -> None:
    hidden = with_gpu(lambda gpu: msgspec.structs.replace(gpu, link=LinkInfo()))
    assert told("link.verdict", hidden).title == "No verdict: generation and width of the link are not known"
    assert "`microbench run link_state` say what hides them" in told("link.verdict", hidden).text
    pageable = changed(
        lambda one: None if one.case.benchmark == "link_copy" and one.case.params["memory"] != "pageable" else one
    )
    assert told("link.verdict", pageable).title == "No verdict: only pageable copies were measured"


def test_facts_alone_tell_a_link_that_is_less_than_it_could_be() -> None:
    run = changed(lambda one: state(two_switches(lanes_now=4)) if one.case.benchmark == "link_state" else None)
    finding = told("link.verdict", run)
    assert finding.title == "The link is less than it could be: 4 of 16 lanes in use"
    assert [one.rule for one in of_suite(evidence(run), "link")] == ["link.verdict"]


def test_a_sound_link_alone_has_a_short_word() -> None:
    run = changed(lambda one: one if one.case.benchmark == "link_state" else None, SEVERAL)
    assert [one.rule for one in of_suite(evidence(run), "link")] == ["link.verdict"]
    finding = told("link.verdict", run)
    assert (finding.severity, finding.title) == (
        "note",
        "PCIe 5.0 x16 while busy, all that the GPU can do; link_copy not measured",
    )
    assert "It could carry 58.4 GB/s to the GPU and 57.6 GB/s from the GPU." in finding.text
    assert "no fault" in finding.text
    hidden = told("link.verdict", with_facts({**FLAT, "generation_now": None}, run))
    assert hidden.title == "Generation and width of the link are not known; link_copy not measured"
    assert "no fault" not in told("link.verdict", with_facts(two_switches(nvlink_errors_risen=40), run)).text


def test_a_hidden_payload_is_an_assumption() -> None:
    run = with_gpu(lambda gpu: msgspec.structs.replace(gpu, link=LinkInfo(generation_max=5, lanes_max=16)))
    finding = told("link.verdict", run)
    assert finding.title.startswith("PCIe 5.0 x16, payload 256 B assumed: ceiling")
    assert finding.text.endswith("The ceiling assumes: 256-byte packets, size hidden.")


def test_more_than_the_ceiling_doubts_the_ceiling() -> None:
    run = scaled("link_copy", "bandwidth", 1.1)
    assert told("link.verdict", run).title.endswith("more than this ceiling allows")
    translated = with_facts(two_switches(iommu="translated"), run)
    assert "slow" not in told("link.verdict", translated).text
    finding = told("link.over_limit", run)
    assert finding.title == "A figure is 106 % of its ceiling, so the ceiling is wrong"
    assert "256-byte packets" in finding.text
    assert silent("link.over_limit", WHOLE)
