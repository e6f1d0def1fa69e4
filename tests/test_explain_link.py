"""The link suite's rules: the verdict and its causes, each rule with the run's own numbers, silent without them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_link_run import FLAT, HOST_FIXED_S, MADE, Facts, link_outcomes, machine, make_link_run, state, two_switches
from make_run import make_run, measurement

from microbench.explain import findings, of_suite
from microbench.explain.evidence import Evidence, evidence_by_device
from microbench.explain.finding import Finding
from microbench.explain.link import RULES
from microbench.explain.link_copies import copies, copy_fit, seconds_at
from microbench.explain.link_facts import OTHERS_BUSY, LinkFacts, Speed, link_facts
from microbench.explain.link_latency import levels
from microbench.explain.link_peers import Pair, failures, pairs, refusals
from microbench.explain.link_pinning import choices
from microbench.explain.link_zero_copy import payload_bytes
from microbench.model import Fact, GpuInfo, LinkInfo, Outcome, Param, Run
from microbench.transfers import BUSY_FACT

WHOLE = make_link_run()
SEVERAL = make_link_run(gpus=4, nodes=2, facts=two_switches())
PINNED = {"benchmark": "link_copy", "metrics": ("bandwidth",)}


def evidence(run: Run = WHOLE) -> Evidence:
    return evidence_by_device(run)[0]


def told(rule: str, run: Run = WHOLE) -> Finding:
    return next(finding for finding in of_suite(evidence(run), "link") if finding.rule == rule)


def silent(rule: str, run: Run) -> bool:
    return all(finding.rule != rule for finding in of_suite(evidence(run), "link"))


def changed(change: Callable[[Outcome], Outcome | None], run: Run = WHOLE) -> Run:
    """The run with each outcome changed, or left out for None."""
    return msgspec.structs.replace(run, outcomes=tuple(new for one in run.outcomes if (new := change(one))))


def fits_params(one: Outcome, params: dict[str, Param]) -> bool:
    return all(one.case.params.get(key) == value for key, value in params.items())


def scaled(benchmark: str, metric: str, factor: float, run: Run = WHOLE, **params: Param) -> Run:
    """The run with some rates multiplied."""

    def change(one: Outcome) -> Outcome:
        if one.case.benchmark != benchmark or not fits_params(one, params):
            return one
        found = tuple(
            msgspec.structs.replace(
                old, samples=msgspec.Raw(msgspec.json.encode([value / factor for value in old.values]))
            )
            if old.metric == metric
            else old
            for old in one.measurements
        )
        return msgspec.structs.replace(one, measurements=found)

    return changed(change, run)


def without(benchmark: str, run: Run = WHOLE, **params: Param) -> Run:
    return changed(
        lambda one: None if one.case.benchmark == benchmark and fits_params(one, params) else one,
        run,
    )


def with_facts(facts: Facts, run: Run = WHOLE) -> Run:
    return changed(lambda one: state(facts) if one.case.benchmark == "link_state" else one, run)


def with_gpu(change: Callable[[GpuInfo], GpuInfo], run: Run = WHOLE) -> Run:
    sessions = []
    for session in run.sessions:
        gpus = tuple(change(gpu) for gpu in session.environment.gpus)
        environment = msgspec.structs.replace(session.environment, gpus=gpus)
        sessions.append(msgspec.structs.replace(session, environment=environment))
    return msgspec.structs.replace(run, sessions=tuple(sessions))


def slower(factor: float, run: Run = WHOLE) -> Run:
    return scaled("link_copy", "bandwidth", factor, run)


# -- every rule ---------------------------------------------------------------------------------------------------


def test_every_rule_speaks_somewhere_and_is_of_this_suite() -> None:
    odd = with_facts(two_switches(max_payload_bytes=128, pcie_replays_risen=3), scaled("link_copy", "bandwidth", 1.2))
    spoken = {one.rule for run in (SEVERAL, odd) for one in of_suite(evidence(run), "link")}
    assert spoken == {
        "link.verdict", "link.over_limit", "link.errors", "link.settings", "link.copy_size", "link.memory", "link.pin",
        "link.both", "link.zero_copy", "link.latency", "link.switches", "link.numa", "link.concurrent", "link.peers",
        "link.chunks", "link.managed", "link.rounds",
    }  # fmt: skip
    assert all(one.suite == "link" for one in of_suite(evidence(SEVERAL), "link"))
    assert all(one.threshold and one.text and one.title for one in of_suite(evidence(SEVERAL), "link"))


def test_the_verdict_comes_first() -> None:
    assert of_suite(evidence(), "link")[0].rule == "link.verdict"


def test_nothing_measured_nothing_found() -> None:
    assert of_suite(evidence(make_run()), "link") == []


@pytest.mark.parametrize("benchmark", MADE)
def test_rules_are_silent_without_their_benchmark(benchmark: str) -> None:
    left = without(benchmark, SEVERAL)
    assert all(benchmark not in row for one in of_suite(evidence(left), "link") for row in one.rests_on)
    assert len(of_suite(evidence(left), "link")) > 5


@pytest.mark.parametrize("benchmark", MADE)
def test_each_benchmark_alone_breaks_no_rule(benchmark: str) -> None:
    findings(changed(lambda one: one if one.case.benchmark == benchmark else None, SEVERAL))


@settings(deadline=None)
@given(st.sets(st.integers(0, len(SEVERAL.outcomes) - 1)))
def test_no_rule_raises_whatever_is_missing(dropped: set[int]) -> None:
    outcomes = tuple(one for index, one in enumerate(SEVERAL.outcomes) if index not in dropped)
    findings(msgspec.structs.replace(SEVERAL, outcomes=outcomes))


@settings(deadline=None, max_examples=30)
@given(
    st.sets(st.sampled_from(sorted({old.metric for one in SEVERAL.outcomes for old in one.measurements}))),
    st.sampled_from((0.0, -1e-6, 1e-12, 1e6)),
)
def test_nothing_odd_in_the_figures_makes_a_rule_raise(names: set[str], value: float) -> None:
    def change(one: Outcome) -> Outcome:
        odd = tuple(
            measurement(old.metric, value, work=old.work, bound=old.bound)
            if value > 0
            else measurement("pin", value)
            if old.metric in names
            else old
            for old in one.measurements
        )
        return msgspec.structs.replace(one, measurements=odd)

    findings(changed(change, SEVERAL))


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(two_switches())),
        st.one_of(st.none(), st.booleans(), st.integers(-1, 99), st.text(max_size=5)),
    )
)
def test_nothing_odd_in_the_facts_makes_a_rule_raise(odd: dict[str, bool | int | str | None]) -> None:
    findings(with_facts({**two_switches(), **odd}, SEVERAL))


# -- the verdict --------------------------------------------------------------------------------------------------


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


# -- places -------------------------------------------------------------------------------------------------------


def test_a_far_node_costs() -> None:
    finding = told("link.numa", SEVERAL)
    assert finding.title == "Memory of a far NUMA node costs copies 18.0 %"
    assert finding.text.startswith("Node 1 is near.")
    assert told("link.numa", scaled("link_numa", "bandwidth", 1 / 0.82, SEVERAL, node=0)).severity == "good"
    assert silent("link.numa", WHOLE)


def test_a_near_node_is_named_only_where_something_says_so() -> None:
    hidden = with_facts(two_switches(numa_node=None), SEVERAL)
    assert told("link.numa", hidden).text.startswith("Node 1 is near.")
    same = scaled("link_numa", "bandwidth", 1 / 0.82, hidden, node=0)
    assert told("link.numa", same).severity == "good"
    assert "near" not in told("link.numa", same).text
    wrong = told("link.numa", with_facts(two_switches(numa_node=0), SEVERAL))
    assert wrong.severity == "advice"
    assert wrong.text.startswith("Node 1 is the fastest, though the GPU is said to be on node 0.")
    assert "--membind=1" in wrong.text


def test_gpus_that_share_an_uplink_are_named() -> None:
    assert told("link.concurrent", SEVERAL).title == (
        "An uplink is shared: 51.0 % of a rate is kept while all copy (GPU 0, 1, 2 and 3)"
    )
    apart = scaled("link_concurrent", "together", 1 / 0.51, SEVERAL)
    assert told("link.concurrent", apart).severity == "good"
    paired = make_link_run(gpus=4, nodes=2, preset="full")
    assert told("link.concurrent", paired).title.startswith("Uplinks are shared by GPUs 0 and 1 and GPUs 2 and 3")


def test_others_are_compared_only_where_there_are_any() -> None:
    def only(count: int) -> Run:
        apart = scaled("link_concurrent", "together", 1 / 0.51, make_link_run(gpus=2))
        kept = [one for one in apart.outcomes if one.case.benchmark == "link_concurrent"][:count]
        return changed(lambda one: None if one.case.benchmark == "link_concurrent" and one not in kept else one, apart)

    alone, two = (told("link.concurrent", only(count)).text for count in (1, 2))
    assert alone.endswith("(100 %).")
    assert two.endswith("; no other case keeps less.")
    slower_one = scaled("link_concurrent", "together", 0.95, only(2), gpu_index=1)
    assert told("link.concurrent", slower_one).text.endswith("; every other case keeps more.")


def partly(run: Run, benchmark: str, **params: Param) -> Run:
    """The run with others that ended before what is measured beside them."""
    fact = Fact(OTHERS_BUSY, False)
    return changed(
        lambda one: (
            msgspec.structs.replace(one, facts=(fact,))
            if one.case.benchmark == benchmark and fits_params(one, params)
            else one
        ),
        run,
    )


def test_others_that_ended_first_are_told() -> None:
    assert OTHERS_BUSY == BUSY_FACT
    one = told("link.concurrent", partly(SEVERAL, "link_concurrent", direction="h2d", gpu_index=2))
    assert "In 1 of 8 cases the others ended first" in one.text
    assert OTHERS_BUSY in one.rests_on
    apart = scaled("link_concurrent", "together", 1 / 0.51, SEVERAL)
    assert told("link.concurrent", partly(apart, "link_concurrent")).severity == "note"
    assert "ended first" not in told("link.concurrent", SEVERAL).text
    both = told("link.both", partly(WHOLE, "link_bidirectional", direction="d2h"))
    assert both.severity == "note"
    assert "Beside copies from the GPU the other direction ended first" in both.text
    assert "ended first" not in told("link.both").text


def test_pairs_of_gpus_are_compared() -> None:
    finding = told("link.peers", SEVERAL)
    assert finding.title == "GPU to GPU: 395 GB/s at best, 197 GB/s from 0 → 2"
    assert "A read of another's memory takes 828 ns to 1.66 µs." in finding.text
    assert "Keep what talks much off 0 → 2, 0 → 3" in finding.text
    assert "Without peer access 0 → 1 keeps 27.0 GB/s" in finding.text
    assert len(pairs(evidence(SEVERAL), "engine_write")) == 12
    two = told("link.peers", make_link_run(gpus=2))
    assert two.severity == "good"
    assert "all 2 pairs 395 GB/s" in two.text
    assert "A read of another's memory takes 828 ns." in two.text


def test_pairs_that_cannot_say_why() -> None:
    def refuse(one: Outcome) -> Outcome:
        if one.case.benchmark != "link_peer" or one.case.params["second"] != 1:
            return one
        return msgspec.structs.replace(one, status="skipped", reason="no peer access: other root", measurements=())

    run = changed(refuse, SEVERAL)
    assert refusals(evidence(run)) == {"no peer access: other root": [Pair(0, 1), Pair(2, 1), Pair(3, 1)]}
    finding = told("link.peers", run)
    assert finding.title.endswith("3 pairs not measured")

    def partly(one: Outcome) -> Outcome:
        return refuse(one) if one.case.params.get("way") == "sm_read" or one.case.params.get("first") == 0 else one

    assert told("link.peers", changed(partly, SEVERAL)).title.endswith("; 1 pair not measured")
    assert "0 → 1, 2 → 1 and 3 → 1: no peer access: other root" in finding.text
    none = changed(
        lambda one: (
            msgspec.structs.replace(one, status="skipped", reason="none", measurements=())
            if one.case.benchmark == "link_peer"
            else one
        ),
        SEVERAL,
    )
    assert told("link.peers", none).title == "No rate between GPUs was measured"


def test_a_pair_with_wrong_data_failed() -> None:
    def fail(one: Outcome) -> Outcome:
        if one.case.benchmark != "link_peer" or one.case.params["first"] != 0 or one.case.params["second"] != 1:
            return one
        return msgspec.structs.replace(one, status="failed", reason="byte 3 differs", measurements=())

    run = changed(fail, SEVERAL)
    assert refusals(evidence(run)) == {}
    assert failures(evidence(run)) == {"byte 3 differs": [Pair(0, 1)]}
    finding = told("link.peers", run)
    assert finding.severity == "problem"
    assert finding.title.endswith("; 1 pair failed")
    assert "Failed: 0 → 1: byte 3 differs." in finding.text
    none = changed(lambda one: one if one.status == "failed" or one.case.benchmark != "link_peer" else None, run)
    assert told("link.peers", none).title == "No rate between GPUs was measured; 1 pair failed"


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


# -- facts --------------------------------------------------------------------------------------------------------


def test_facts_are_read_by_kind() -> None:
    facts = link_facts(evidence(SEVERAL))
    assert facts.now == Speed(5, 16)
    assert [hop.kind for hop in facts.hops()][-1] == "root port"
    assert facts.topology() == {"gpu1": "PIX", "mlx5_0": "NODE"}
    odd = LinkFacts([Fact("generation_now", True), Fact("lanes_now", 16), Fact("acs", 1), Fact("root", 3)])
    assert odd.now is None
    assert odd.flag("acs") is None
    assert odd.text("root") is None


def test_the_newest_state_that_went_well_counts() -> None:
    failed = msgspec.structs.replace(state({}), status="failed", reason="x")
    run = msgspec.structs.replace(WHOLE, outcomes=(*WHOLE.outcomes, state(two_switches()), failed))
    assert link_facts(evidence(run)).number("switches") == 2


def test_the_worst_of_all_rounds_counts_against_the_link() -> None:
    def rounds(*facts: Facts, session: int = 0) -> Run:
        told = (state(one) for one in facts)
        outcomes = [msgspec.structs.replace(one, round=at, session=session) for at, one in enumerate(told)]
        sessions = (*WHOLE.sessions, *WHOLE.sessions)
        return msgspec.structs.replace(WHOLE, sessions=sessions, outcomes=(*without("link_state").outcomes, *outcomes))

    busy = two_switches(read_under_load=True)
    found = link_facts(evidence(rounds({**busy, "pcie_replays_risen": 7}, {**busy, "switches": 3}, busy)))
    assert found.risen() == {"pcie_replays": 7}
    assert found.number("switches") == 2, "other facts are the newest round's"
    assert not found.idle
    idle = link_facts(evidence(rounds({**busy, "read_under_load": False, "pcie_replays_risen": None}, busy)))
    assert idle.idle
    assert idle.number("pcie_replays_risen") == 0
    gone = {name: value for name, value in busy.items() if name != "pcie_replays_risen"}
    assert link_facts(evidence(rounds({**busy, "pcie_replays_risen": 7}, gone))).risen() == {"pcie_replays": 7}
    # An earlier session is another day: what rose then says nothing of now.
    both = rounds(busy, session=1)
    earlier = state({**busy, "pcie_replays_risen": 9})
    run = msgspec.structs.replace(both, outcomes=(earlier, *both.outcomes))
    assert link_facts(evidence(run)).risen() == {}


def test_a_run_of_facts_alone_belongs_to_its_gpu() -> None:
    run = changed(lambda one: one if one.case.benchmark == "link_state" else None)
    assert [one.device for one in evidence_by_device(run)] == [WHOLE.sessions[0].environment.gpus[0].uuid]


def test_every_rule_is_listed_once() -> None:
    assert len(set(RULES)) == len(RULES)


def test_the_made_run_has_every_case_that_means_something() -> None:
    one, four = (machine(WHOLE, gpus, 2) for gpus in (1, 4))
    counted = [sum(made.case.benchmark == "link_peer" for made in link_outcomes(where, FLAT)) for where in (one, four)]
    assert counted == [0, 12 * 9]
