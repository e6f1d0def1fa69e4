"""Two levels are told apart, over processes and within one, and figures at two levels say so wherever they show."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from changed_run import with_metrics
from make_run import make_run, measurement
from msgspec.structs import replace

from microbench.analysis import quantiles
from microbench.analysis.evidence import evidence_by_device
from microbench.analysis.stats import Interval, Summary, combined_trust, rounds_interval, rows
from microbench.archive import store
from microbench.archive.export import to_csv, to_json
from microbench.core.model import Measurement
from microbench.report.page.details import Detail, details
from microbench.report.sheets import view
from microbench.report.tables import levels_words


@pytest.mark.parametrize(("medians", "width", "found"), [
    ((1.608, 1.569, 1.579, 1.56, 1.827), 0.001, (1.574, 1.827)),  # the flag round trip of an H200, in us
    ((1.0, 1.2), 0.01, None),  # any two values lie at two places
    ((1.0, 1.2, 1.2), 0.01, (1.0, 1.2)),
    ((1.0, 1.01, 1.2, 1.21, 1.22), 0.01, (1.005, 1.21)),
    ((1.0, 1.01, 1.2, 1.21, 1.22), 0.1, None),  # the rounds themselves are not known better than that
    ((1.0, 1.01, 1.02, 1.03, 1.06), 0.001, None),  # near each other
    ((1.0, 1.06, 1.12, 1.18, 1.24), 0.001, None),  # spread evenly
    ((5.0,), 0.0, None),
    ((1.0, float("nan"), 2.0), 0.0, None),
])  # fmt: skip
def test_rounds_at_two_levels(medians: Sequence[float], width: float, found: tuple[float, float] | None) -> None:
    assert quantiles.levels_of_rounds(medians, width) == (None if found is None else pytest.approx(found))


def samples_at(values: np.ndarray) -> quantiles.Levels | None:
    ordered = np.sort(values)[None, :]
    (found,) = quantiles.levels_of_samples(ordered, np.median(ordered, axis=1), np.zeros(1), np.array([len(values)]))
    return found


def test_samples_at_two_levels_and_outliers_of_one() -> None:
    random = np.random.default_rng(1)
    one = random.normal(1.0, 0.01, 100)
    assert samples_at(one) is None
    assert samples_at(np.concatenate((one, random.normal(1.2, 0.01, 100)))) == pytest.approx((1.0, 1.2), rel=0.01)
    assert samples_at(np.concatenate((one, random.normal(1.2, 0.01, 15)))) == pytest.approx((1.0, 1.2), rel=0.01)
    assert samples_at(np.concatenate((one, random.normal(5.0, 0.01, 5)))) is None, "a few outliers are no level"
    assert samples_at(np.array([1.0] * 5 + [2.0] * 4)) is None, "too few samples"


@pytest.mark.parametrize(("scatter", "rounds"), [(0.01, 3), (0.01, 5), (0.02, 5)])
def test_rounds_of_one_level_seldom_look_like_two(scatter: float, rounds: int) -> None:
    drawn = np.random.default_rng(2).normal(1.0, scatter, (2000, rounds))
    assert np.mean([quantiles.levels_of_rounds(list(medians), 0.0) is not None for medians in drawn]) < 0.02


def graded(medians: Sequence[float], width: float = 0.002, n: int = 40) -> str:
    intervals = [Interval(median, median - width / 2, median + width / 2) for median in medians]
    summaries = [Summary(n, each, 1, 1, 1, 1, 1, 1, "steady") for each in intervals]
    return combined_trust(summaries, rounds_interval(intervals))


def test_rounds_at_two_levels_or_far_from_their_median_are_not_stable() -> None:
    assert graded((1.57, 1.58, 1.59, 1.60, 1.61)) == "stable"
    assert graded((1.608, 1.569, 1.579, 1.56, 1.827)) == "noisy", "one round beyond 10 %"
    assert graded((1.0, 1.0, 1.0, 1.07, 1.07)) == "noisy", "two levels"
    assert graded((0.96, 0.98, 1.0, 1.05, 1.11)) == "noisy", "a round beyond 10 %"
    assert graded((1.0, 1.0, 1.0, 1.07, 1.07), n=1) == "stable", "single samples have no levels"
    assert graded((1.0, 1.2)) == "noisy"
    assert graded((1.0, 1.08)) == graded((1.0, 1.01)) == "steady"


def test_the_flag_round_trip_of_a_recorded_run_is_at_two_levels() -> None:
    run = store.read(Path(__file__).parent / "data" / "quiet-h200.json.xz")
    found = {(row.benchmark, row.metric.name, row.params.get("what")): row for row in rows(run)}
    flag = found["launch_cost", "flag_round_trip", None]
    assert flag.trust == "noisy"
    assert levels_words(flag) == "1.57 and 1.83 µs"
    assert found["link_latency", "latency", "flag"].trust == "noisy"


def both_levels(old: Measurement) -> Measurement:
    """The measurement of submit with every third sample a quarter longer."""
    if old.metric != "submit":
        return old
    longer = (value * (1.25 if place % 3 == 0 else 1.0) for place, value in enumerate(old.values))
    samples = measurement("", 1.0).samples.__class__(json.dumps(list(longer)).encode())
    return replace(old, samples=samples)


def test_one_process_at_two_levels_says_so_in_tables_details_and_exports() -> None:
    run = with_metrics(make_run(), "launch_cost", both_levels)
    row = next(row for row in rows(run) if row.benchmark == "launch_cost" and row.metric.name == "submit")
    assert row.trust == "noisy"
    words = levels_words(row)
    low, high = (float(number) for number in words.removesuffix(" µs").split(" and "))
    assert high / low == pytest.approx(1.25, rel=0.02)
    studies = [study for section in view.build(run).sections for study in section.studies]
    (table,) = next(study for study in studies if study.benchmark == "launch_cost").tables
    cells = [cell for line in table.rows for cell in line if cell.of == "launch_cost submit"]
    assert [cell.note for cell in cells] == ["two levels"]
    assert f"two levels: submit {words}" in table.notes
    found: list[Detail] = []
    details(evidence_by_device(run), found)
    shown = next(each for each in found if each["title"] == "launch_cost: submit")
    assert dict(shown["words"])["two levels"] == words
    cells = csv.DictReader(io.StringIO(to_csv(run)))
    written = next(line for line in cells if (line["benchmark"], line["metric"]) == ("launch_cost", "submit"))
    assert row.levels == (float(written["low_level"]), float(written["high_level"]))
    objects = json.loads(to_json(run))["rows"]
    assert [row.levels[0]] == [one["low_level"] for one in objects if one["low_level"] is not None]
