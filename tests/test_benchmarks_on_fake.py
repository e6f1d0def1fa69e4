"""Every benchmark on the simulated GPU: grids, words, and that each quick case gives what the file declares."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import numpy as np
import pytest
from fake_session import run_case

from microbench.analysis.stats import summarize
from microbench.core.bench import PRESETS, SUITES, Benchmark, Preset, discover
from microbench.core.errors import Skip
from microbench.core.model import Case, Fact, Measurement
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.environment import fake_environment

BENCHMARKS = list(discover().values())
each_benchmark = pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
COSTS = FakeCosts(gpus=2)  # what needs several GPUs finds two
HERE = fake_environment(COSTS)
UNITS = {
    "s", "s/launch", "cycle", "B/s", "FLOP/s", "OP/s", "1/s", "Hz", "B/clk/SM", "FLOP/clk/SM", "OP/clk/SM", "B",
    "B/launch", "J/B", "J/FLOP", "J/OP", "W", "launch", "1",
}  # fmt: skip
TIME_UNITS = {"s", "s/launch", "cycle"}
OF_FACTS = {"link_state", "memory_capacity"}


def test_the_suites_of_the_main_job_are_there() -> None:
    assert {"host", "launch", "graph", "link", "memory", "compute"} <= {benchmark.suite for benchmark in BENCHMARKS}
    assert [benchmark.suite for benchmark in BENCHMARKS] == sorted(
        (benchmark.suite for benchmark in BENCHMARKS), key=SUITES.index
    )


@each_benchmark
def test_the_about_text_asks_answers_and_explains(benchmark: Benchmark) -> None:
    for heading in ("Question", "Method", "Reading"):
        assert re.search(rf"^{heading}$", benchmark.about, re.MULTILINE), heading
    assert benchmark.title
    assert benchmark.version >= 1


@each_benchmark
def test_metrics_have_names_units_and_words(benchmark: Benchmark) -> None:
    names = Counter(metric.name for metric in benchmark.metrics)
    assert (max(names.values(), default=0) == 1) == (benchmark.name not in OF_FACTS), "which are of facts alone"
    for metric in benchmark.metrics:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
        assert metric.unit in UNITS
        assert metric.about
        assert (metric.kind == "time") == (metric.unit in TIME_UNITS)


@each_benchmark
def test_grids_are_nested_and_their_values_can_stand_in_a_case_id(benchmark: Benchmark) -> None:
    for name, axis in benchmark.axes.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert axis.about
        assert set(axis.quick) <= set(axis.default) <= set(axis.full), name
        for preset in PRESETS:
            values = axis.values(preset)
            assert values or preset == "quick", "what is not essential may be left out there"
            assert len(set(values)) == len(values)
            assert len({type(value) for value in values}) <= 1
            if axis.numeric:
                assert list(values) == sorted(values)
                assert all(axis.minimum <= value <= axis.maximum for value in values)  # type: ignore[operator]
        for value in axis.full:
            assert re.fullmatch(r"[a-z0-9_.+-]+", str(value))


@each_benchmark
def test_cases_are_nested_unique_and_sorted_by_axis_name(benchmark: Benchmark) -> None:
    before: set[str] = set()
    for preset in PRESETS:
        ids = [case.id for case in benchmark.cases(preset)]
        assert len(set(ids)) == len(ids)
        assert ids or (preset == "quick" and not benchmark.essential)
        assert before <= set(ids)
        before = set(ids)
        for case in benchmark.cases(preset):
            assert list(case.params) == sorted(benchmark.axes)
    assert set(benchmark.fresh_process_by) <= set(benchmark.axes)
    for case in benchmark.cases("full"):
        assert all(isinstance(value, str) for value in benchmark.process_environment(case).values())


def cases_here(benchmark: Benchmark, preset: Preset) -> list[Case]:
    """Those that mean something on the simulated machine."""
    return [case for case in benchmark.cases(preset) if benchmark.here(HERE, case.params) is None]


def of_other_types(benchmark: Benchmark) -> list[Case]:
    """One case of each type that only the full grid has: integers have metrics of their own."""
    known = {case.params.get("dtype") for case in benchmark.cases("default")}
    found = {case.params.get("dtype"): case for case in reversed(cases_here(benchmark, "full"))}
    return [case for dtype, case in found.items() if dtype not in known]


@pytest.mark.parametrize("preset", ["quick", pytest.param("default", marks=pytest.mark.slow)])
@each_benchmark
def test_every_case_gives_what_is_declared(benchmark: Benchmark, preset: Preset) -> None:
    declared = {metric.name: metric for metric in benchmark.metrics}
    seen: set[str] = set()
    for case in (*cases_here(benchmark, preset), *(of_other_types(benchmark) if preset == "default" else ())):
        try:
            found = run_case(benchmark, case, COSTS)
        except Skip:
            continue
        measurements = [one for one in found if isinstance(one, Measurement)]
        names = [measurement.metric for measurement in measurements]
        assert names or any(isinstance(one, Fact) for one in found), case.id
        assert len(set(names)) == len(names), case.id
        assert set(names) <= set(declared), case.id
        seen |= set(names)
        for measurement in measurements:
            check(measurement)
            summary = summarize(declared[measurement.metric], measurement)
            assert np.isfinite([summary.interval.low, summary.interval.high, summary.tail]).all(), case.id
            nothing_is_held = (measurement.metric, case.params.get("way")) == ("held", "stream_released")
            assert (summary.interval.median > 0) != nothing_is_held, (case.id, measurement.metric)
    assert preset == "quick" or seen == set(declared), "declare only metrics that a default case yields"


def check(measurement: Measurement) -> None:
    """Raw samples are finite, positive and what the counts beside them say."""
    assert 1 <= len(measurement.values) <= 512
    assert measurement.n >= len(measurement.values)
    assert measurement.calls_per_sample >= 1
    assert np.isfinite(measurement.values).all()
    assert min(measurement.values) >= 0
    if measurement.per_call is not None:
        assert sum(measurement.per_call.counts) == measurement.per_call.n
    msgspec.json.encode(measurement)


@each_benchmark
def test_one_seed_gives_one_result(benchmark: Benchmark) -> None:
    case = (cases_here(benchmark, "quick") or cases_here(benchmark, "default"))[0]
    first, again = run_case(benchmark, case, COSTS), run_case(benchmark, case, COSTS)
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
