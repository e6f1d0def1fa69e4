"""The verdict on the link and its causes: severity, figures and facts of healthy and of broken made runs."""

import pytest
from link_evidence import SEVERAL, WHOLE, changed, evidence, findings, scaled, slower, with_facts, with_gpu, without
from make_link_run import FLAT, Facts, make_link_run, state, two_switches
from msgspec.structs import replace
from read_findings import check

from microbench.core.model import LinkInfo, Run
from microbench.explain.link_causes import causes

RULE = "link.verdict"
METAL = with_facts(two_switches())
SHARED = without("link_numa", with_facts(two_switches(iommu="translated"), slower(0.7, SEVERAL)))
SMALL = changed(
    lambda one: None if one.case.benchmark == "link_copy" and int(one.case.params["size_bytes"]) > 1 << 16 else one,
    METAL,
)
ONE_SIZE = changed(
    lambda one: None if one.case.benchmark == "link_copy" and one.case.params["size_bytes"] != 1 else one, METAL
)
NARROW = two_switches(
    lanes_now=8, lanes_slot_max=8, generation_slot_max=4, generation_now=4, slot_limit_bus_id="0000:3a:00.0"
)
OVER = scaled("link_copy", "bandwidth", 1.1)
BUSY = with_gpu(lambda gpu: replace(gpu, other_processes=("python (1)",)), slower(0.7))

UNREAD_PAYLOAD = with_gpu(lambda gpu: replace(gpu, link=LinkInfo(generation_max=5, lanes_max=16)))


def idle(**other: int) -> Facts:
    return two_switches(read_under_load=False, hop4_generation_now=1, **other)


@pytest.mark.parametrize(("severity", "figures", "cause", "run"), [
    ("good", ("5.0 x16", "to the GPU reach 55.4 GB/s", "94.7 %", "from the GPU reach 54.6 GB/s"), None, WHOLE),
    ("warning", ("from the GPU", "75.8 %"), "hidden", scaled("link_copy", "bandwidth", 0.8, direction="d2h")),
    ("problem", ("47.4 %", "8 of 16", "94.7 %"), "slow link", with_facts(two_switches(lanes_now=8), slower(0.5))),
    ("problem", ("4.0 x16 of 5.0 x16",), "slow link", with_facts(two_switches(generation_now=4), slower(0.5))),
    ("problem", ("3.0 x16", "hidden"), "slow link", with_facts({**FLAT, "generation_now": 3}, slower(0.25))),
    ("problem", ("4.0 x8",), "narrow slot", with_facts(NARROW, slower(0.25))),
    ("problem", ("root port 0000:39:01.0", "5.0 x8 of 5.0 x16"), "slow upstream",
     with_facts(two_switches(hop4_lanes_now=8, hop5_lanes_now=8), slower(0.5))),
    ("problem", ("bridge 0000:3c:00.0", "3.0 x16 of 5.0 x16"), "slow upstream",
     with_facts(two_switches(hop2_generation_now=3), slower(0.2))),
    ("problem", ("power",), "slow link", with_facts(idle(generation_now=4, lanes_now=8), slower(0.1))),
    ("warning", ("--cpunodebind=0",), "far node",
     scaled("link_copy", "bandwidth", 0.7, make_link_run(nodes=2, facts=two_switches()))),
    ("warning", ("51.1 %", "IOMMU"), "shared uplink", SHARED),
    ("warning", ("error counters",), "errors", with_facts(two_switches(pcie_correctable_errors_risen=40))),
    ("warning", ("error counters",), "errors", with_facts(two_switches(pcie_fatal_errors_risen=1))),
    ("warning", ("other processes",), "other processes", BUSY),
    ("warning", ("virtual machine",), "hidden", slower(0.7)),
    ("note", ("64 KiB", "1.24 MiB"), "small copies", SMALL),
    ("note", ("1 B", "4.00 MiB"), "small copies", ONE_SIZE),
    ("problem", ("8 of 16 lanes",), "small copies", with_facts(two_switches(lanes_now=8), SMALL)),
    ("warning", ("66.3 %", "Nothing"), None, with_facts(two_switches(), slower(0.7))),
    ("warning", ("Nothing", f"link_state --into {WHOLE.run_id}`"), None, without("link_state", slower(0.7))),
    ("warning", ("104 %", "256-byte packets"), None, with_facts(two_switches(), OVER)),
    ("good", ("assumes 256-byte packets, size hidden",), None, UNREAD_PAYLOAD),
])  # fmt: skip
def test_a_verdict_has_severity_and_cause(severity: str, figures: tuple[str, ...], cause: str | None, run: Run) -> None:
    check(findings(run)[RULE], severity, *figures)
    assert cause is None or cause in {one.name for one in causes(evidence(run))}


def test_causes_come_with_the_facts_that_they_rest_on() -> None:
    link, upstream = causes(evidence(with_facts(two_switches(lanes_now=8, hop4_lanes_now=8), slower(0.5))))
    assert (link.name, link.certain, link.rests_on) == ("slow link", True, ("generation_now", "lanes_now"))
    assert "copies fill 94.7 %" in link.text
    assert (upstream.name, upstream.rests_on) == ("slow upstream", ("hop4_generation_now", "hop4_lanes_now"))
    (far,) = causes(evidence(scaled("link_copy", "bandwidth", 0.7, make_link_run(nodes=2, facts=two_switches()))))
    assert (far.name, "node 0 copies to the GPU reach 55.3 GB/s" in far.text) == ("far node", True)


@pytest.mark.parametrize("facts", [
    two_switches(generation_now=1, lanes_now=1),  # copies were faster than such a link
    two_switches(hop4_lanes_now=1),
    two_switches(pcie_replays_risen=1),
    two_switches(nvlink_errors_risen=40),
])  # fmt: skip
def test_a_misread_link_and_few_errors_are_no_cause(facts: Facts) -> None:
    check(findings(with_facts(facts))[RULE], "good")


def test_a_slow_link_that_the_gpu_could_not_use_is_no_cause() -> None:
    facts = two_switches(generation_gpu_max=3, generation_now=3, hop0_generation_max=3, hop4_generation_now=4)
    assert causes(evidence(with_facts(facts, slower(0.2)))) == []


@pytest.mark.parametrize("run", [
    with_gpu(lambda gpu: replace(gpu, integrated=True)), with_facts({**FLAT, "c2c": True}),
    with_gpu(lambda gpu: replace(gpu, link=LinkInfo(generation_max=1, lanes_max=1, coherent=True))),
], ids=["integrated", "c2c fact", "coherent link"])  # fmt: skip
def test_a_gpu_that_shares_memory_with_the_host_has_no_verdict(run: Run) -> None:
    check(findings(run)[RULE], "note", "No PCIe verdict")
    assert "link.settings" not in findings(run)


def test_an_unknown_link_and_pageable_copies_have_no_verdict() -> None:
    hidden = with_gpu(lambda gpu: replace(gpu, link=LinkInfo()))
    check(findings(hidden)[RULE], "note", "No verdict", "55.4 GB/s", "256 MiB")
    pageable = changed(
        lambda one: None if one.case.benchmark == "link_copy" and one.case.params["memory"] != "pageable" else one
    )
    check(findings(pageable)[RULE], "note", "No verdict", "pageable", "memory=pinned")


@pytest.mark.parametrize(("severity", "figures", "facts"), [
    ("warning", ("4 of 16 lanes",), two_switches(lanes_now=4)),
    ("note", ("5.0 x16 while busy", "58.4 GB/s", "57.6 GB/s", "no fault", f"link_copy --into {WHOLE.run_id}`"),
     two_switches()),
    ("note", ("!no fault",), two_switches(nvlink_errors_risen=40)),
    ("note", ("unknown",), {**FLAT, "generation_now": None}),
    ("note", ("1.0 x8", "idle", "power"), idle(generation_now=1, lanes_now=8)),
])  # fmt: skip
def test_facts_alone_have_a_verdict(severity: str, figures: tuple[str, ...], facts: Facts) -> None:
    run = changed(lambda one: state(facts) if one.case.benchmark == "link_state" else None)
    check(findings(run)[RULE], severity, *figures)
    assert set(findings(run)) - {"link.errors"} == {RULE}
