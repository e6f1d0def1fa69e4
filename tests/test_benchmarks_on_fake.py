"""Every benchmark on the simulated GPU: its words, its grids, and that each case yields what the file declares."""

import inspect
import re
from collections import Counter

import msgspec
import numpy as np
import pytest
from fake_session import run_case

from microbench.analysis.stats import summarize
from microbench.core.bench import PRESETS, Benchmark, Preset, discover
from microbench.core.errors import Skip
from microbench.core.model import Case, Fact, Measurement
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.gpu import fake_environment
from microbench.meter.sampling import SamplingLimits

BENCHMARKS = list(discover().values())
each_benchmark = pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
# Own benchmarks get their grids from `microbench measure` (tests/test_measure.py).
WITH_GRID = [benchmark for benchmark in BENCHMARKS if benchmark.suite != "own"]
each_with_a_grid = pytest.mark.parametrize("benchmark", WITH_GRID, ids=lambda benchmark: benchmark.name)
COSTS = FakeCosts(gpus=2)  # benchmarks of several GPUs find two
HERE = fake_environment(COSTS)
FEW = SamplingLimits(seconds=0.001, minimum=3)  # the shape of results is looked at, not their figures
TIME_UNITS = {"s", "s/launch", "cycle"}
UNITS = TIME_UNITS | {
    "B/s", "FLOP/s", "OP/s", "1/s", "Hz", "B/clk/SM", "FLOP/clk/SM", "OP/clk/SM", "B", "B/launch", "J/B", "J/FLOP",
    "J/OP", "W", "launch", "1",
}  # fmt: skip


@each_benchmark
def test_the_text_begins_with_its_question(benchmark: Benchmark) -> None:
    question, *rest = benchmark.about.splitlines() or [""]
    assert question.endswith("?"), f"{benchmark.name}: make the first line of the module's docstring its question"
    assert [line for line in rest if line and not line.startswith(" ")] == ["Question", "Method", "Reading"], (
        f"{benchmark.name}: divide the docstring into Question, Method and Reading, their text indented"
    )


@each_benchmark
def test_metrics_have_a_name_a_unit_and_a_sentence(benchmark: Benchmark) -> None:
    names = Counter(metric.name for metric in benchmark.metrics)
    assert max(names.values(), default=1) == 1, f"{benchmark.name}: declare each metric once: {names}"
    assert benchmark.title, f"{benchmark.name}: give it a title for its table"
    assert benchmark.version >= 1
    for metric in benchmark.metrics:
        where = f"{benchmark.name} metric {metric.name}"
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name), f"{where}: name it in small letters, digits and _"
        assert metric.unit in UNITS, f"{where}: use one of the units {sorted(UNITS)}"
        assert metric.about, f"{where}: say in one line what it is"
        assert (metric.kind == "time") == (metric.unit in TIME_UNITS), f"{where}: kind and unit disagree"


@each_with_a_grid
def test_grids_are_nested_and_their_values_fit_a_case_id(benchmark: Benchmark) -> None:
    _, _, *parameters = inspect.signature(benchmark.measure).parameters
    assert sorted(parameters) == sorted(benchmark.axes), f"{benchmark.name}: give measure a parameter for each axis"
    for name, axis in benchmark.axes.items():
        where = f"{benchmark.name} axis {name}"
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), f"{where}: name it in small letters, digits and _"
        assert axis.about, f"{where}: say in one line what it is"
        assert set(axis.quick) <= set(axis.default) <= set(axis.full), f"{where}: put quick in default and that in full"
        for preset in PRESETS:
            values = axis.values(preset)
            assert values or preset == "quick", f"{where}: only the quick grid may be empty"
            assert len(set(values)) == len(values), f"{where}: list each value once in {preset}"
            assert len({type(value) for value in values}) <= 1, f"{where}: use either names or whole numbers"
            if axis.numeric:
                assert list(values) == sorted(values), f"{where}: sort the {preset} grid"
                inside = [axis.minimum <= value <= axis.maximum for value in values]  # type: ignore[operator]
                assert all(inside), f"{where}: set minimum and maximum around the {preset} grid"
        for value in axis.full:
            assert re.fullmatch(r"[a-z0-9_.+-]+", str(value)), f"{where}: {value!r} does not fit a case id"


@each_with_a_grid
def test_cases_are_nested_unique_and_sorted_by_axis_name(benchmark: Benchmark) -> None:
    before: set[str] = set()
    for preset in PRESETS:
        cases = benchmark.cases(preset)
        ids = {case.id for case in cases}
        assert len(ids) == len(cases)
        assert ids or (preset == "quick" and not benchmark.core), f"{benchmark.name}: the core needs a case in {preset}"
        assert before <= ids, f"{benchmark.name}: keep the smaller presets' cases in {preset}"
        before = ids
        assert all(list(case.params) == sorted(benchmark.axes) for case in cases)
    for case in benchmark.cases("full"):
        assert all(isinstance(value, str) for value in benchmark.process_environment(case).values())


def cases_here(benchmark: Benchmark, preset: Preset) -> list[Case]:
    return [case for case in benchmark.cases(preset) if benchmark.here(HERE, case.params) is None]


def of_other_types(benchmark: Benchmark) -> list[Case]:
    """One case of each type that only the full grid has: integers have metrics of their own."""
    known = {case.params.get("dtype") for case in benchmark.cases("default")}
    by_type = {case.params.get("dtype"): case for case in reversed(cases_here(benchmark, "full"))}
    return [case for dtype, case in by_type.items() if dtype not in known]


@pytest.mark.parametrize("preset", ["quick", pytest.param("default", marks=pytest.mark.slow)])
@each_with_a_grid
def test_every_case_yields_what_is_declared(benchmark: Benchmark, preset: Preset) -> None:
    declared = {metric.name: metric for metric in benchmark.metrics}
    seen: set[str] = set()
    for case in (*cases_here(benchmark, preset), *(of_other_types(benchmark) if preset == "default" else ())):
        try:
            yielded = run_case(benchmark, case, COSTS, limits=FEW)
        except Skip:
            continue
        measurements = [one for one in yielded if isinstance(one, Measurement)]
        names = [measurement.metric for measurement in measurements]
        assert names or any(isinstance(one, Fact) for one in yielded), f"{case.id} yields neither figures nor facts"
        assert len(set(names)) == len(names), f"{case.id} yields a metric twice: {names}"
        assert set(names) <= set(declared), f"declare the metrics that {case.id} yields: {set(names) - set(declared)}"
        seen |= set(names)
        for measurement in measurements:
            check(measurement, f"{case.id} {measurement.metric}", on_gpu=benchmark.gpus != 0)
            summary = summarize(declared[measurement.metric], measurement)
            assert np.isfinite([summary.interval.low, summary.interval.high, summary.tail]).all(), case.id
            nothing_is_held = (measurement.metric, case.params.get("way")) == ("held", "stream_released")
            assert (summary.interval.median > 0) != nothing_is_held, (case.id, measurement.metric)
    missing = set(declared) - seen - {"against"}  # libraries against each other for a second or longer: --full
    assert preset == "quick" or not missing, f"no default case yields {missing}"


def check(measurement: Measurement, where: str, *, on_gpu: bool) -> None:
    """Raw samples are finite and positive, their counts are right, and data that were moved or computed are checked."""
    assert 1 <= len(measurement.values) <= 512, f"{where}: keep at most 512 samples"
    assert measurement.n >= len(measurement.values)
    assert measurement.calls_per_sample >= 1
    assert np.isfinite(measurement.values).all(), f"{where}: a sample is not finite"
    assert min(measurement.values) >= 0, f"{where}: a sample is negative"
    if measurement.per_call is not None:
        assert sum(measurement.per_call.counts) == measurement.per_call.n
    work = measurement.work
    if on_gpu and (work.bytes or work.flops or work.operations):
        assert measurement.verified, f"{where} moves or computes data but yields verified=None: pass verified=…"
        assert measurement.needs_verification, f"{where}: pass needs_verification=True"
    msgspec.json.encode(measurement)
