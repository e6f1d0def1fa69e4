"""The link suite's rules together: each speaks of its own rows and facts, none raises, none is listed twice."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_evidence import SEVERAL, WHOLE, changed, evidence, scaled, with_facts, without
from make_link_run import FLAT, MADE, Facts, link_outcomes, machine, state, two_switches
from make_run import make_run, measurement

from microbench.analysis.evidence import evidence_by_device
from microbench.core.model import Fact, Outcome, Run
from microbench.explain.link_facts import LinkFacts, Speed, link_facts
from microbench.explain.rules import LINK_RULES, findings, of_suite

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
    assert len(set(LINK_RULES)) == len(LINK_RULES)


def test_the_made_run_has_every_case_that_means_something() -> None:
    one, four = (machine(WHOLE, gpus, 2) for gpus in (1, 4))
    counted = [sum(made.case.benchmark == "link_peer" for made in link_outcomes(where, FLAT)) for where in (one, four)]
    assert counted == [0, 12 * 9]
