"""The link suite's findings on copies, memory and places: severity and figures of made runs."""

import pytest
from changed_run import is_case
from link_evidence import SEVERAL, WHOLE, changed, findings, peer_outcomes, scaled, with_facts, without
from make_link_run import make_link_run, two_switches
from msgspec.structs import replace
from read_findings import check

from microbench.core.model import Fact, Param, Run
from microbench.experiments.link.copies import BUSY_FACT
from microbench.explain.link_facts import OTHERS_BUSY

PAGEABLE_FAST = scaled("link_copy", "bandwidth_host", 9.0, memory="pageable")
PAGEABLE_NEAR = scaled("link_copy", "bandwidth_host", 3.4, memory="pageable")
PAGEABLE_SLOW = scaled("link_copy", "bandwidth_host", 0.2, memory="pageable")
ONE_WAY = scaled("link_copy", "bandwidth_host", 9.0, memory="pageable", direction="d2h")
APART = scaled("link_concurrent", "together", 1 / 0.511, SEVERAL)
PAIRED = make_link_run(gpus=4, nodes=2, preset="full")
for one, other in ((0, "1"), (1, "0"), (2, "3"), (3, "2")):
    PAIRED = scaled("link_concurrent", "together", 0.51, PAIRED, gpu_index=one, beside=other)
SAME_NODES = scaled("link_numa", "bandwidth", 1 / 0.722, SEVERAL, node=1)
SETTINGS = with_facts(two_switches(max_payload_bytes=128, acs=True, relaxed_ordering=False), SEVERAL)
HIDDEN = with_facts(two_switches(numa_node=None), SEVERAL)
TO_GPU = without("link_copy", memory="pageable", direction="d2h")


def partly(run: Run, benchmark: str, **params: Param) -> Run:
    """The run with others that ended before the measured copies did."""
    return changed(
        lambda one: replace(one, facts=(Fact(OTHERS_BUSY, False),)) if is_case(one, benchmark, params) else one, run
    )


def faults(factor: float) -> Run:
    """The run with faults that are that many times as fast, in both directions."""
    even = scaled("link_managed", "bandwidth", factor * 50 / 11, way="fault_to_device")
    return scaled("link_managed", "bandwidth", factor * 49 / 4, even, way="fault_to_host")


@pytest.mark.parametrize(("rule", "severity", "figures", "run"), [
    ("link.pin", "advice", ("27.5 %", "64 MiB instead of a new pageable one", "3 copies", "!never"), WHOLE),
    ("link.pin", "advice", ("64 MiB if they are copied at least 3 times, and smaller ones if they are",), WHOLE),
    ("link.pin", "advice", ("paid after 1 copy.", "64 MiB even for a single copy"), PAGEABLE_SLOW),
    ("link.pin", "advice", ("!never",), TO_GPU),
    ("link.pin", "note", ("93.4 %", "90 copies to the GPU and 159"), PAGEABLE_NEAR),
    ("link.pin", "note", ("does not pay",), PAGEABLE_FAST),
    ("link.pin", "advice", ("27.5 %", "3 copies to the GPU", "never from the GPU"), ONE_WAY),
    ("link.pin", "advice", ("at least 3 times to the GPU.",), ONE_WAY),
    ("link.pin", "advice", ("27.5 %", "256 MiB"), without("link_pinning")),
    ("link.numa", "advice", ("27.8 %", "Node 0 is the fastest, though the GPU reports node 1", "--membind=0"), SEVERAL),
    ("link.numa", "advice", ("Node 0 is near", "--membind=0"), with_facts(two_switches(numa_node=0), SEVERAL)),
    ("link.numa", "good", ("node 1",), SAME_NODES),
    ("link.numa", "advice", ("near",), HIDDEN),
    ("link.numa", "good", ("!near",), scaled("link_numa", "bandwidth", 1 / 0.722, HIDDEN, node=1)),
    ("link.concurrent", "warning", ("0, 1, 2 and 3", "51.1 %", "27.8 GB/s", "!ended"), SEVERAL),
    ("link.concurrent", "warning", ("0–1 and 2–3", "51.0 %"), PAIRED),
    ("link.concurrent", "good", ("99.9 %",), APART),
    ("link.concurrent", "note", ("8 of 8 cases",), partly(APART, "link_concurrent")),
    ("link.concurrent", "warning", ("1 of 8",), partly(SEVERAL, "link_concurrent", direction="h2d", gpu_index=2)),
    ("link.peers", "advice", ("393 GB/s", "196 GB/s from 0 → 2", "7.2×", "0 → 3"), SEVERAL),
    ("link.peers", "good", ("393 GB/s", "7.2×"), make_link_run(gpus=2)),
    ("link.peers", "advice", ("3 pairs not measured", "0 → 1, 2 → 1 and 3 → 1: other root"),
     peer_outcomes(SEVERAL, "skipped", "other root", second=1)),
    ("link.peers", "problem", ("1 pair failed", "0 → 1: byte 3 differs"),
     peer_outcomes(SEVERAL, "failed", "byte 3 differs", first=0, second=1)),
    ("link.peers", "problem", ("No rate", "12 pairs failed"), peer_outcomes(SEVERAL, "failed", "byte 3 differs")),
    ("link.peers", "note", ("No rate", "12 pairs not"), peer_outcomes(SEVERAL, "skipped", "no peer access")),
    ("link.settings", "advice", ("128 B", "relaxed ordering off", "ACS"), SETTINGS),
    ("link.settings", "note", ("BAR",), with_facts(two_switches(resizable_bar=False))),
])  # fmt: skip
def test_a_rule_has_its_severity_and_figures(rule: str, severity: str, figures: tuple[str, ...], run: Run) -> None:
    check(findings(run)[rule], severity, *figures)


@pytest.mark.parametrize(("rule", "run"), [
    ("link.numa", WHOLE),
    ("link.settings", SEVERAL),
    ("link.settings", with_facts(two_switches(acs=True))),  # ACS harms only several GPUs
    # Pageable copies one way, pinned ones the other way: nothing to compare.
    ("link.pin", without("link_copy", TO_GPU, memory="pinned", direction="h2d")),
])  # fmt: skip
def test_a_rule_is_silent_where_nothing_is_wrong(rule: str, run: Run) -> None:
    assert rule not in findings(run)


def test_the_busy_fact_has_one_name() -> None:
    assert OTHERS_BUSY == BUSY_FACT
