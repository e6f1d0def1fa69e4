"""The link suite's section: its pictures, its path, its matrices, its facts, and that nothing leaves the page."""

import itertools

import pytest
from changed_run import changed, with_gpu
from link_evidence import SEVERAL, WHOLE, peer_outcomes
from make_link_run import FLAT, make_link_run, measured_batches, rate, state, two_switches, with_batches
from make_run import make_run, outcome
from msgspec.structs import replace
from read_findings import evidence
from sections import drawn, lines_of, section, some, study, suite_report

from microbench.analysis.stats import rows
from microbench.core.model import Fact, LinkInfo, Outcome
from microbench.report.document import Way
from microbench.report.suites import link
from microbench.report.suites.link import path
from microbench.report.tables import figure
from microbench.report.terminal.charts import way


def made_path(**other: object) -> Way:
    facts = two_switches(**other)  # type: ignore[arg-type]
    return some(path(evidence(make_link_run(facts=facts))))


def test_a_link_below_what_both_ends_can_do_stands_out_unless_it_was_idle() -> None:
    one = made_path(hop0_generation_now=3, hop2_lanes_now=8)
    assert [(stretch.text, stretch.tone) for stretch in one.stretches][1:] == [
        ("5.0 x16", "good"), ("5.0 x8 of 5.0 x16", "problem"), ("3.0 x16 of 5.0 x16", "problem"),
    ]  # fmt: skip
    limited = made_path(slot_limit_bus_id="0000:3c:00.0")
    assert [station.tone for station in limited.stations][3] == "warning"
    idle = made_path(hop0_generation_now=1, read_under_load=False)
    assert (idle.stretches[-1].text, idle.stretches[-1].tone) == ("1.0 x16 of 5.0 x16", "quiet")
    assert "after copies had ended" in idle.about
    assert "while copies ran" in made_path().about


def test_without_root_two_unnamed_bridges_are_a_switch() -> None:
    unnamed = {f"hop{index}_kind": "bridge" for index in range(1, 5)}
    assert made_path(**unnamed).stations == made_path().stations
    assert [stretch.text for stretch in made_path(**unnamed).stretches] == ["", "5.0 x16", "5.0 x16", "5.0 x16"]
    other = made_path(**unnamed, switches=None)
    assert [station.name for station in other.stations][1:-1] == ["root port", *["bridge"] * 4]


def test_a_virtual_machine_hides_the_path() -> None:
    one = some(path(evidence(WHOLE)))
    assert [station.name for station in one.stations] == ["CPU", "GPU 0"]
    assert one.stretches[0].hidden
    assert one.stretches[0].text == "hidden by the virtual machine"
    assert "5.0 x16" in one.about


def test_no_path_where_nothing_is_known_or_memory_is_shared() -> None:
    assert path(evidence(make_run())) is None
    assert path(evidence(make_link_run(facts={**FLAT, "c2c": True}))) is None
    unknown = made_path(hop0_generation_now=None, hop0_generation_max=None, hop1_generation_now=None)
    assert unknown.stretches[-1].text in ("?", "5.0 x16")


def test_a_path_is_one_line_where_it_fits_and_down_the_page_where_not() -> None:
    one = made_path()
    across, wider, down = (lines_of(way(one, width)) for width in (80, 120, 60))
    assert (len(across), {len(line) for line in across}) == (4, {80})
    assert across[2].startswith("│ NUMA 1 ├───┤ 39:01.0   ├───────┤")
    assert "│5.0 x16│" in across[1]
    assert " 5.0 x16 " in wider[1]
    assert (down[0], down[3], len(down)) == ("• CPU  NUMA 1", "│   5.0 x16", 9)


def test_a_fit_ends_with_the_copies_it_was_made_from() -> None:
    """Pageable copies go on to sizes that no pinned copy has: the fit ends before them, the ceiling does not."""
    few = changed(
        WHOLE,
        lambda one: (
            None if one.case.params.get("memory") == "pinned" and int(one.case.params["size_bytes"]) > 1 << 17 else one
        ),
    )
    picture = some(link.rates(evidence(few), "h2d"))
    ends = {line.name.split()[0]: (line.points[0][0], line.points[-1][0]) for line in picture.lines}
    whole = (1, 256 << 20)
    assert ends["pageable"] == ends["ceiling"] == whole
    assert (ends["pinned"], ends["fit"]) == ((1, 64 << 10), pytest.approx(ends["pinned"]))
    assert picture.marks == ()  # half of b is reached at 141 KiB, as the words still say
    assert "half of b at" in picture.about


def test_many_small_copies_are_a_line_for_each_way() -> None:
    known = measured_batches("H200")
    run = with_batches(WHOLE, known)
    picture = some(link.batches(evidence(run)))
    names = {"a copy each": "loop", "one batched call": "batched", "one gathering kernel": "gather"}
    assert [line.name for line in picture.lines] == [*names, "ceiling 58.4 GB/s"]
    assert picture.about.startswith("1024 pieces")
    for line in picture.lines[:-1]:
        own = {at: value for (way, at, pieces), value in known.items() if (way, pieces) == (names[line.name], 1024)}
        assert dict(line.points) == pytest.approx(own, rel=0.001)
    assert picture in section(run, "link").pictures
    assert study(run, "link_batch").curve is None
    two = {at: value for at, value in known.items() if at[1] in (1024, 4096)}
    assert link.batches(evidence(with_batches(WHOLE, two))) is None


def test_a_figure_above_its_limit_says_so() -> None:
    size_bytes = 1 << 28
    case = {"direction": "h2d", "memory": "registered", "size_bytes": size_bytes}
    over = outcome("link_copy", [rate("bandwidth", 70e9, size_bytes, "pcie_h2d")], **case)
    made = replace(WHOLE, outcomes=(over,))
    assert figure(rows(made)[0], evidence(made).ceiling(rows(made)[0])).text == "70.0 GB/s, over limit"
    assert figure(rows(WHOLE)[0], evidence(WHOLE).ceiling(rows(WHOLE)[0])).tone == "strong"


def test_peers_are_a_matrix_with_reasons_and_topology() -> None:
    run = peer_outcomes(SEVERAL, "skipped", "no peer access", first=3, second=0)
    rates, _ = link.peers(evidence(run))
    assert (rates.rows[3][1].text, rates.notes[0]) == ("–", "3 → 0: no peer access")
    failed = peer_outcomes(SEVERAL, "failed", "wrong data", first=3, second=0)
    assert link.peers(evidence(failed))[0].notes[0] == "failed, 3 → 0: wrong data"


def test_each_gpu_is_held_against_its_own_link() -> None:
    """GPU 1 has half as many lanes and NVLinks, so its rates are twice the share of its limit."""
    wide = LinkInfo(generation_max=5, lanes_max=16, max_payload_bytes=256, nvlinks=18, nvlink_bytes_per_s=25e9)
    half = replace(wide, lanes_max=8, nvlinks=9)
    run = with_gpu(SEVERAL, lambda gpu: replace(gpu, link=half if gpu.index == 1 else wide))
    for benchmark, name in (("link_concurrent", "gpu_index"), ("link_peer", "first")):
        limits = [note for table in study(run, benchmark).tables for note in table.notes if note.startswith("limit:")]
        assert len(limits) == len({note.split(",")[0] for note in limits}) > 1
        bounded = [row for row in evidence(run).rows(benchmark) if row.measurement.bound is not None]
        own = {int(row.params[name]): evidence(run).ceiling(row) for row in bounded}
        assert (some(own[1]).value, own[2]) == (pytest.approx(some(own[0]).value / 2), own[0])


def test_a_fact_that_is_hidden_has_its_reason() -> None:
    hidden = {row[0].text: row[1] for row in study(suite_report("link"), "link_state").tables[0].rows}
    assert hidden["switches"].text == "unknown (a virtual machine hides the real ports above the GPU)"
    assert hidden["switches"].tone == "quiet"


def test_a_fact_that_is_no_says_why() -> None:
    one = next(outcome for outcome in WHOLE.outcomes if outcome.case.benchmark == "link_zero_copy")
    fact = Fact("pcie_bytes_counted", False, "NVML", reason="sampled rates only")
    run = replace(WHOLE, outcomes=(replace(one, facts=(fact,)),))
    assert "pcie bytes counted: no (sampled rates only)" in "".join(drawn(run).split("\n"))


def test_a_run_of_facts_alone_is_shown() -> None:
    run = replace(WHOLE, outcomes=(state(two_switches()),))
    shown = section(run, "link")
    assert [one.benchmark for one in shown.studies] == ["link_state"]
    assert isinstance(shown.pictures[0], Way)


def test_rounds_that_disagree_on_a_fact_are_all_shown() -> None:
    first, second = state(two_switches(pcie_replays_risen=7)), state(two_switches(pcie_replays_risen=0))
    table = study(replace(WHOLE, outcomes=(first, replace(second, round=1))), "link_state").tables[0]
    facts = {row[0].text: row[1].text for row in table.rows}
    assert (facts["pcie_replays_risen"], facts["hops"]) == ("7, 0", "6")


def test_many_values_of_a_fact_are_a_range() -> None:
    lengths_ns = itertools.count(1_200_000, 15_000)

    def lasting(one: Outcome) -> Outcome:
        facts = tuple(replace(fact, value=next(lengths_ns)) for fact in one.facts if fact.name == "kernel_ns")
        return replace(one, facts=facts) if one.case.benchmark == "link_chunks" else one

    notes = study(changed(make_link_run(preset="full"), lasting), "link_chunks").tables[-1].notes
    assert any(note.startswith("kernel: 1.20 ms to 1.59 ms (") for note in notes), notes
