"""The rules of the host suite: severity and figures on made runs."""

import msgspec
import pytest
from make_run import changed, figures, is_case, make_run, measurement, outcome, scaled
from msgspec.structs import replace
from read_findings import by_rule, check

from microbench.core.model import Run, Work

WHOLE = make_run(gpu=False)
WIDE = msgspec.Raw(msgspec.json.encode([1e-4 * (1 + place) for place in range(20)]))
SATURATED = scaled(WHOLE, "host_memory", ("rate",), 0.5, threads="one")


@pytest.mark.parametrize(
    ("rule", "run", "severity", "named"),
    [
        ("host.clock", WHOLE, "good", ["22.0 ns", "1.00 ns"]),
        ("host.clock", scaled(WHOLE, "host_timer", ("call",), 60), "warning", ["1.32 µs", "1.00 ns"]),
        ("host.call", WHOLE, "note", ["45.0 ns", "2.01 ns"]),
        ("host.memory", WHOLE, "note", ["11.0 GB/s", "40.9 GB/s", "27.0 %"]),
        ("host.memory", SATURATED, "note", ["22.3 GB/s", "40.9 GB/s", "54.4 %"]),
        ("host.wakeup", WHOLE, "advice", ["11.0 µs", "55×"]),
        ("host.wakeup", scaled(WHOLE, "host_wakeup", ("round_trip",), 50, how="spin"), "note", ["11.0 µs", "1.12×"]),
        ("host.rounds", WHOLE, "note", ["10 %"]),
    ],
)
def test_a_rule_has_its_severity_and_figures(rule: str, run: Run, severity: str, named: list[str]) -> None:
    finding = by_rule(run, "host")[rule]
    check(finding, severity)
    assert figures(finding) == named


def test_a_core_that_saturates_memory_needs_no_advice() -> None:
    assert [by_rule(run, "host")["host.memory"].advice != "" for run in (WHOLE, SATURATED)] == [True, False]


def test_sizes_that_only_one_of_the_two_measured_are_not_compared() -> None:
    rate = measurement("rate", 0.1, work=Work(bytes=10**9))
    alone = outcome("host_memory", [rate], threads="one", size_bytes=1)
    together = outcome("host_memory", [rate], threads="all", size_bytes=2)
    assert "host.memory" not in by_rule(replace(WHOLE, outcomes=(alone, together)), "host")


def test_noise_does_not_make_one_core_faster_than_all() -> None:
    faster = scaled(WHOLE, "host_memory", ("rate",), 0.1, threads="one")
    title = by_rule(faster, "host")["host.memory"].title
    assert "A copy by one core reads and writes 111 GB/s, by all cores 40.9 GB/s" in title
    noisy = changed(
        faster,
        lambda one: (
            replace(one, measurements=tuple(replace(each, samples=WIDE, n=20) for each in one.measurements))
            if is_case(one, "host_memory", {"threads": "all"})
            else one
        ),
    )
    assert "host.memory" not in by_rule(noisy, "host")
