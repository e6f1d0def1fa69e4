"""What the link suite says of places: NUMA nodes, shared uplinks, pairs of GPUs."""

from __future__ import annotations

import msgspec
from link_evidence import SEVERAL, WHOLE, changed, evidence, fits_params, scaled, silent, told, with_facts
from make_link_run import make_link_run, two_switches

from microbench.core.model import Fact, Outcome, Param, Run
from microbench.explain.link_facts import OTHERS_BUSY
from microbench.explain.link_gpus import Pair, failures, pairs, refusals
from microbench.measure.transfers import BUSY_FACT


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
