"""The link suite's rules together, and the facts that they rest on."""

import re
from pathlib import Path

import pytest
from changed_run import changed, scaled, without
from hypothesis import given, settings
from hypothesis import strategies as st
from link_evidence import SEVERAL, WHOLE, findings, peer_outcomes, with_facts
from make_link_run import Facts, measured_batches, state, two_switches, with_batches
from make_run import measurement
from msgspec.structs import replace
from read_findings import evidence

from microbench.analysis.evidence import evidence_by_device
from microbench.analysis.stats import rows
from microbench.core.model import Outcome, Run
from microbench.explain import link_facts as links
from microbench.explain import rules
from microbench.explain.constants import constants
from microbench.gpu.fake.costs import FakeCosts, LinkCosts

ROWS = rows(SEVERAL)
FIXED_S = (FakeCosts().gap_stream_ns + FakeCosts().copy_fixed_ns) * 1e-9


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(two_switches())),
        st.one_of(st.none(), st.booleans(), st.integers(-1, 99), st.text(max_size=5)),
    )
)
def test_no_rule_raises_for_odd_facts(odd: dict[str, bool | int | str | None]) -> None:
    rules.findings(with_facts({**two_switches(), **odd}, SEVERAL), ROWS)  # link_state has no rows


def test_no_file_imports_a_file_of_link_findings() -> None:
    folder = Path(links.link_facts.__code__.co_filename).parent
    paths = [path for path in folder.rglob("*.py") if path.stem not in ("rules", "answer")]  # they collect findings
    sources = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    words = [name for name, text in sources.items() if name.startswith("link_") and re.search(r"Finding\(|@rule", text)]
    assert words
    imported = r"explain\.{0} import|explain import [^\n]*\b{0}\b"
    wrong = [(name, word) for name, text in sources.items() for word in words if re.search(imported.format(word), text)]
    assert wrong == [], "these files import a file of link findings: move what they share to link_facts.py"


def test_facts_are_read_by_kind() -> None:
    facts = links.link_facts(evidence(SEVERAL))
    assert facts.now == links.Speed(5, 16)
    assert [hop.kind for hop in facts.hops()][-1] == "root port"
    assert facts.topology() == {"gpu1": "PIX", "mlx5_0": "NODE"}
    odd = links.LinkFacts(generation_now=True, lanes_now=16, acs=1, root=3)
    assert odd.now is None
    assert odd.flag("acs") is None
    assert odd.text("root") is None


def test_the_newest_state_that_went_well_counts() -> None:
    failed = replace(state({}), status="failed", reason="x")
    run = replace(WHOLE, outcomes=(*WHOLE.outcomes, state(two_switches()), failed))
    assert links.link_facts(evidence(run)).number("switches") == 2


def test_the_worst_of_all_rounds_counts_against_the_link() -> None:
    def rounds(*facts: Facts, session: int = 0) -> Run:
        states = (state(one) for one in facts)
        outcomes = [replace(one, round=at, session=session) for at, one in enumerate(states)]
        sessions = (*WHOLE.sessions, *WHOLE.sessions)
        return replace(WHOLE, sessions=sessions, outcomes=(*without(WHOLE, "link_state").outcomes, *outcomes))

    busy = two_switches(read_under_load=True)
    facts = links.link_facts(evidence(rounds({**busy, "pcie_replays_risen": 7}, {**busy, "switches": 3}, busy)))
    assert facts.risen() == {"pcie_replays": 7}
    assert facts.number("switches") == 2, "other facts are the newest round's"
    assert not facts.idle
    idle = links.link_facts(evidence(rounds({**busy, "read_under_load": False, "pcie_replays_risen": None}, busy)))
    assert idle.idle
    assert idle.number("pcie_replays_risen") == 0
    gone = {name: value for name, value in busy.items() if name != "pcie_replays_risen"}
    assert links.link_facts(evidence(rounds({**busy, "pcie_replays_risen": 7}, gone))).risen() == {"pcie_replays": 7}
    # Errors of an earlier session say nothing about now.
    both = rounds(busy, session=1)
    earlier = state({**busy, "pcie_replays_risen": 9})
    run = replace(both, outcomes=(earlier, *both.outcomes))
    assert links.link_facts(evidence(run)).risen() == {}


def test_a_run_of_facts_alone_belongs_to_its_gpu() -> None:
    run = changed(WHOLE, lambda one: one if one.case.benchmark == "link_state" else None)
    assert [one.device for one in evidence_by_device(run)] == [WHOLE.sessions[0].environment.gpus[0].uuid]


def test_a_fit_gives_back_fixed_time_and_bandwidth() -> None:
    fit = links.copy_fit(evidence(WHOLE), "bandwidth", "h2d", "pinned")
    assert fit.fixed_s == pytest.approx(FIXED_S, rel=0.01)
    assert fit.bandwidth == pytest.approx(55.4e9, rel=0.01)
    assert fit.size_for(0.5) == pytest.approx(FIXED_S * 55.4e9, rel=0.02)
    assert fit.size_for(0.9) == pytest.approx(9 * fit.size_for(0.5))


def test_times_between_sizes_are_straight() -> None:
    points = links.copies(evidence(WHOLE), "bandwidth", "h2d", "pinned")
    assert links.seconds_at(points, 64 << 20) == pytest.approx(FIXED_S + (64 << 20) / 55.4e9, rel=0.01)
    assert links.seconds_at(points, 1 << 30) is None
    assert links.seconds_at(points[:1], 1) == pytest.approx(FIXED_S, rel=0.01)
    assert links.seconds_at([], 1) is None


def test_pinning_counts_the_copies_until_it_has_paid() -> None:
    found = {(choice.way, choice.size_bytes): choice for choice in links.choices(evidence(WHOLE))}
    allocated = found["allocate", 4 << 20]
    pages, costs = 1024, LinkCosts().pinning
    own_s = {way: (cost.take.at(pages) + cost.release.at(pages)) * 1e-9 for way, cost in costs.items()}
    extra_s = own_s["allocate"] - own_s["touch"]
    assert allocated.extra_s == pytest.approx(extra_s, rel=0.03)
    pinned_s, pageable_s = (
        links.seconds_at(links.copies(evidence(WHOLE), "bandwidth_host", "h2d", memory), 4 << 20)
        for memory in ("pinned", "pageable")
    )
    assert allocated.saved_s["h2d"] == pytest.approx(pageable_s - pinned_s, rel=0.03)
    assert allocated.paid["h2d"] == pytest.approx(extra_s / (pageable_s - pinned_s), abs=1)
    assert found["register", 4 << 20].extra_s == pytest.approx(own_s["register"], rel=0.03)


def test_pinned_memory_that_costs_no_more_pays_at_once() -> None:
    def free(one: Outcome) -> Outcome:
        if one.case.benchmark != "link_pinning" or one.case.params["way"] != "allocate":
            return one
        return replace(one, measurements=(measurement("pin", 1e-9), measurement("release", 1e-9)))

    allocated = next(choice for choice in links.choices(evidence(changed(WHOLE, free))) if choice.way == "allocate")
    assert allocated.extra_s < 0
    assert allocated.paid["h2d"] == 1


def test_a_direction_that_was_not_measured_both_ways_has_no_choice() -> None:
    to_gpu = without(WHOLE, "link_copy", memory="pageable", direction="d2h")
    assert all(list(choice.saved_s) == ["h2d"] and not choice.never for choice in links.choices(evidence(to_gpu)))


def test_packets_follow_from_the_byte_counters() -> None:
    assert links.payload_bytes("read", 1 + 20 / 128) == pytest.approx(128)
    assert links.payload_bytes("write", 1 + 24 / 256) == pytest.approx(256)
    assert links.payload_bytes("read", 1.0) is None
    assert links.payload_bytes("write", 1 + 24 / 4096) == pytest.approx(4096)
    assert links.payload_bytes("write", 1 + 24 / 8192) is None, "no PCIe packet carries as much"


@pytest.mark.parametrize(("numa_node", "near"), [(1, 0), (None, 0), (0, 0)])
def test_the_fastest_node_is_near_whatever_the_gpu_reports(numa_node: int | None, near: int) -> None:
    run = evidence(with_facts(two_switches(numa_node=numa_node), SEVERAL))
    rates = links.nodes(run, "h2d")
    assert list(rates) == [0, 1]
    assert links.near_node(run, rates) == near


def test_shared_uplinks_list_the_worst_of_each_gpu() -> None:
    lost = links.shared_uplinks(evidence(SEVERAL))
    assert [(one.gpu_index, one.others) for one in lost if one.direction == "h2d"] == [(gpu, "all") for gpu in range(4)]
    assert all(one.share == pytest.approx(0.51, rel=0.01) for one in lost)


def test_pairs_are_measured_refused_or_failed() -> None:
    assert len(links.pairs(evidence(SEVERAL), "engine_write")) == 12
    refused = evidence(peer_outcomes(SEVERAL, "skipped", "no peer access", second=1))
    assert links.lacking(refused)[0] == {"no peer access": [links.Pair(0, 1), links.Pair(2, 1), links.Pair(3, 1)]}
    failed = evidence(peer_outcomes(SEVERAL, "failed", "byte 3 differs", first=0, second=1))
    assert links.lacking(failed) == ({}, {"byte 3 differs": [links.Pair(0, 1)]})


def test_many_small_copies_are_faster_where_constants_say_so() -> None:
    """On this H100 one call loses at 16 KiB and wins again beyond."""
    run = with_batches(without(WHOLE, "link_batch"), measured_batches("H100"))
    found, known = findings(run)["link.batch"], {one.name: one.constant.value for one in constants(evidence(run))}
    gathered = [known[f"link.h2d_gathered_up_to.{pieces}"] for pieces in (16, 256, 1024)]
    assert 64 << 10 < gathered[0] < gathered[1] == gathered[2] == 256 << 10
    assert 4 << 10 < known["link.h2d_batched_up_to.1024"] < 16 << 10 < known["link.h2d_batched_from.1024"] < 28 << 10
    assert "one gathering kernel at every tested size" in found.text
    assert "one batched call at 1 KiB, 4 KiB, 28 KiB, 64 KiB and 256 KiB" in found.text
    assert "With pieces of 1 KiB, one gathering kernel is faster from 16 pieces on" in found.text
    few = scaled(run, "link_batch", "bandwidth", 0.1, way="gather", piece_bytes=1024, pieces_copied=16)
    assert "from 256 pieces on" in findings(few)["link.batch"].text
    assert {row.split("[")[0] for row in found.rests_on} == {"link_batch"}
