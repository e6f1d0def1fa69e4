"""Every rule of the host suite: its severity and figures on a made run, and silence without its measurements."""

from __future__ import annotations

import msgspec
import pytest
from make_run import figures, make_run, measurement, outcome, scaled

from microbench.analysis.evidence import Finding, evidence_by_device
from microbench.core.model import Outcome, Run, Work
from microbench.explain.rules import findings, of_suite

WHOLE = make_run(gpu=False)


def by_rule(run: Run) -> dict[str, Finding]:
    return {finding.rule: finding for finding in of_suite(evidence_by_device(run)[0], "host")}


def run_of(*outcomes: Outcome) -> Run:
    return msgspec.structs.replace(WHOLE, outcomes=outcomes)


@pytest.mark.parametrize(
    ("rule", "run", "severity", "named"),
    [
        ("host.clock", WHOLE, "good", ["22.0 ns", "1.00 ns"]),
        ("host.clock", scaled(WHOLE, "host_timer", ("call",), 60), "warning", ["1.32 µs", "1.00 ns"]),
        ("host.call", WHOLE, "note", ["45.0 ns", "2.01 ns"]),
        ("host.memory", WHOLE, "note", ["11.0 GB/s", "40.9 GB/s", "27.0 %"]),
        (
            "host.memory",
            scaled(WHOLE, "host_memory", ("rate",), 0.5, threads="one"),
            "note",
            ["22.3 GB/s", "40.9 GB/s", "54.4 %"],
        ),
        ("host.wakeup", WHOLE, "advice", ["11.0 µs", "55×"]),
        ("host.wakeup", scaled(WHOLE, "host_wakeup", ("round_trip",), 50, how="spin"), "note", ["11.0 µs", "1.12×"]),
        ("host.rounds", WHOLE, "note", []),
    ],
)
def test_a_rule_has_its_severity_and_figures(rule: str, run: Run, severity: str, named: list[str]) -> None:
    finding = by_rule(run)[rule]
    assert (finding.severity, figures(finding)) == (severity, named)


def test_a_core_that_saturates_memory_needs_no_advice() -> None:
    assert by_rule(WHOLE)["host.memory"].advice
    assert not by_rule(scaled(WHOLE, "host_memory", ("rate",), 0.5, threads="one"))["host.memory"].advice


def test_sizes_that_only_one_of_the_two_measured_are_not_compared() -> None:
    rate = measurement("rate", 0.1, work=Work(bytes=10**9))
    alone = outcome("host_memory", [rate], threads="one", size_bytes=1)
    together = outcome("host_memory", [rate], threads="all", size_bytes=2)
    assert "host.memory" not in by_rule(run_of(alone, together))


def test_a_run_without_measurements_has_no_findings() -> None:
    assert by_rule(run_of()) == {}
    assert all(finding.suite == "environment" for finding in findings(run_of()))
