"""How often intervals over rounds hold the truth, by the simulation of lab/intervals.py, and busy rounds of a host."""

import intervals
import pytest

from microbench.analysis.stats import Interval, busy_for_calls, busy_rounds, follows, rounds_interval, rows
from microbench.archive import store
from microbench.report.tables import figure, levels_words

TRIALS = 2000


@pytest.mark.parametrize(
    ("host", "controls"), [("quiet", False), ("loud", False), ("two states", False), ("two states", True)]
)
def test_an_interval_over_five_rounds_holds_the_truth_in_93_to_97_of_100(host: str, controls: bool) -> None:
    rule = intervals.with_controls if controls else intervals.without_controls
    found = intervals.coverage(host, rule, TRIALS)
    assert 0.93 < found.held < 0.975
    assert found.below_zero == 0


def test_the_rule_before_held_it_less_often_and_reached_below_zero() -> None:
    assert intervals.coverage("two states", intervals.before, TRIALS).held < 0.7
    assert intervals.coverage("loud", intervals.before, TRIALS).below_zero > 0.1


def test_a_quiet_host_has_no_wider_intervals_than_before() -> None:
    before, now = (intervals.coverage("quiet", rule, TRIALS) for rule in (intervals.before, intervals.without_controls))
    assert now.width < 1.05 * before.width


def test_the_busy_rounds_of_the_bundled_run_are_told_by_the_controls() -> None:
    """Its Python call took 26, 57, 43, 25 and 29 ns in the five rounds."""
    run = store.read(store.find("nvidia-h200"))
    assert busy_rounds(run) == {0: {1, 2}}
    submit = next(row for row in rows(run) if (row.case_id, row.metric.name) == ("launch_cost", "submit"))
    assert levels_words(submit) == "3.05 µs, 4.18 µs while the host is busy"
    assert figure(submit).note == "4.18 µs busy"
    assert submit.interval.low < submit.value < 4e-6 < 4.52e-6 <= submit.interval.high
    assert not any(row.interval.low < 0 for row in rows(run) if row.metric.kind == "time")


def test_a_figure_that_does_not_feel_the_host_keeps_all_rounds() -> None:
    busy = (False, True, True, False, False)
    assert follows((3.0, 4.0, 4.5, 2.9, 3.1), busy)
    assert not follows((3.0, 2.9, 4.5, 2.9, 3.1), busy)
    assert not follows((3.0, 3.02, 3.03, 2.99, 3.01), busy), "less than levels lie apart"
    assert not follows((3.0, 4.0, 4.5), (False, True, True)), "one quiet round alone"


def test_no_rounds_of_zero_or_below_break_the_interval() -> None:
    zero = rounds_interval([Interval(value, value, value) for value in (0.0, 1.0, 0.0)])
    assert (zero.low, zero.median) == (0, 0)
    below = rounds_interval([Interval(value, value, value) for value in (-1.0, 1.0, 0.5)])
    assert below.low < -1


def test_calls_of_python_layers_tell_their_own_busy_rounds() -> None:
    """PyTorch's call took 8.3, 11.8, 6.7, 11.1 and 7.2 us in rounds of which the controls, minutes before, say else."""
    torch = (8.31, 11.82, 6.69, 11.1, 7.17)
    assert busy_for_calls([torch]) == (True, True, False, True, False)
    assert busy_for_calls([torch, (5.0, 5.1, 5.0, 5.2, 5.1)]) == (True, True, False, True, False)
    assert busy_for_calls([(5.16, 5.49, 5.49, 5.45, 5.27)]) == (), "a quiet host"
    assert busy_for_calls([(5.0, 8.0, 9.0)]) == (), "one quiet round alone"
    assert busy_for_calls([(5.0, 8.0)]) == ()
    assert busy_for_calls([(0.0, 8.0, 9.0)]) == ()
