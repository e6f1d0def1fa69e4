"""The host suite's rules: each with the run's own numbers and its threshold."""

from __future__ import annotations

import msgspec
import pytest
from make_run import make_run, measurement, outcome

from microbench.analysis.evidence import Finding, evidence_by_device
from microbench.core.model import Outcome, Run, Work
from microbench.explain.rules import findings, of_suite


def told(run: Run) -> dict[str, Finding]:
    return {finding.rule: finding for finding in of_suite(evidence_by_device(run)[0], "host")}


def run_of(*outcomes: Outcome) -> Run:
    return msgspec.structs.replace(make_run(gpu=False), outcomes=outcomes)


def test_every_rule_speaks_with_its_numbers() -> None:
    found = told(make_run(gpu=False))
    assert set(found) == {"host.clock", "host.call", "host.memory", "host.wakeup", "host.rounds"}
    assert "22.0 ns" in found["host.clock"].text
    assert "45.0 ns, compiled 2.01 ns" in found["host.call"].title
    assert found["host.memory"].title == "One core copies 11.0 GB/s, all cores 40.9 GB/s"
    assert "pinned memory is worth" in found["host.memory"].text
    assert found["host.wakeup"].severity == "advice"


@pytest.mark.parametrize("call_s", [22e-9, 1.4e-6])
def test_a_slow_clock_is_a_warning(call_s: float) -> None:
    found = told(run_of(outcome("host_timer", [measurement("call", call_s), measurement("step", 1e-9)])))
    assert found["host.clock"].severity == ("warning" if call_s > 1e-6 else "good")


def test_a_core_that_saturates_memory_is_said() -> None:
    cases = [
        outcome("host_memory", [measurement("rate", 1e9 / rate, work=Work(bytes=10**9))], threads=who, size_bytes=10**9)
        for who, rate in (("one", 20e9), ("all", 25e9))
    ]
    assert "nearly enough" in told(run_of(*cases))["host.memory"].text


def test_sizes_that_only_one_of_the_two_measured_are_not_compared() -> None:
    one = outcome("host_memory", [measurement("rate", 0.1, work=Work(bytes=10**9))], threads="one", size_bytes=1)
    other = outcome("host_memory", [measurement("rate", 0.1, work=Work(bytes=10**9))], threads="all", size_bytes=2)
    assert "host.memory" not in told(run_of(one, other))


def test_nothing_measured_is_nothing_told() -> None:
    assert told(run_of()) == {}
    assert all(finding.suite == "environment" for finding in findings(run_of()))
