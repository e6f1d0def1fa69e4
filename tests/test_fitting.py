"""The fit of the model to a run: constants and their rows, stand-ins, missing benchmarks, misfits."""

import math
import re
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import pytest
import snapshots
from changed_run import with_metrics, without
from hypothesis import given, settings
from hypothesis import strategies as st
from make_fake_run import for_a_fit
from make_link_run import make_link_run
from make_run import make_run, measurement, outcome, with_suite
from msgspec.structs import replace
from read_findings import evidence as evidence_of

from microbench.analysis.evidence import Evidence, row_name
from microbench.core.model import Fact, Measurement, Outcome, Run, Work
from microbench.gpu.fake.costs import FakeCosts
from microbench.model.constants import (
    Constant,
    Fit,
    Misfit,
    _spread,
    combined,
    making_of,
    middle,
    of_row,
    of_rows,
    own_s,
    straight,
)
from microbench.model.fit import (
    ASSUMED,
    Calibrated,
    TimedStep,
    call_constant,
    fit,
    misfit,
    misfits,
    missing,
    with_calls,
)
from microbench.model.model import WAYS, Way, acts, needed, play
from microbench.model.workload import Copies, Kernels, Wait, Workload

PROFILED_LONGER = FakeCosts().profiler_ns * 1e-9
STEP = Workload((Kernels(100, (2e-6,)), Wait()))


def with_outcomes(run: Run, *more: Outcome) -> Run:
    return replace(run, outcomes=(*run.outcomes, *more))


@pytest.fixture(scope="module")
def run() -> Run:
    return for_a_fit()


@pytest.fixture(scope="module")
def fitted(run: Run) -> Fit:
    return fit(evidence_of(run))


TIMES = st.floats(1e-8, 3e-5)


def with_watched(run: Run, *models: float) -> Run:
    """The run with what a profiler's calls cost, and what they cost in each of these models."""
    call = measurement("call", 2e-6, spread=0.001, calls=1000)
    facts = tuple(Fact(f"call_model_{place}", value) for place, value in enumerate(models))
    made = outcome("launch_watched", (call, measurement("node", 1e-6)), records="torch")
    of_cupti = outcome("launch_watched", (measurement("call", 1e-6),), records="cupti")
    return with_suite(run, ["launch_watched"], "default", (of_cupti, replace(made, facts=facts)))


def law_s(step: TimedStep, values: Mapping[str, float]) -> float:
    paced = step.gpu_paced(values)
    return step.kernels_s(paced) + sum(factor * values[name] for name, factor in step.terms(paced).items())


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(WAYS), st.integers(1, 40), TIMES, st.lists(TIMES, min_size=8, max_size=8))
def test_the_law_is_what_the_model_plays(way: str, kernels: int, own_seconds: float, values: list[float]) -> None:
    names = ("call.loop.0", "way", "complete", "gap_stream", "gap_graph", "replay.loop", "replay_node", "replay_way")
    unused = ("one_stream_stream", "one_stream_graph")
    constants = dict(zip(names, values, strict=True)) | dict.fromkeys(unused, 0.0) | {"sync": 1e-9, "empty": 1e-9}
    step = TimedStep(way, "loop", 0, kernels, own_seconds, 1.0, 0.01, "")
    workload = Workload((Kernels(kernels, (own_seconds,), writes=False), Wait()))
    played_s = play(acts(workload, constants, way)).end_s
    assert law_s(step, constants) == pytest.approx(played_s, rel=1e-9)


def test_intervals_hold_their_values_and_rows_are_named(run: Run, fitted: Fit) -> None:
    rows = {row_name(row) for suite in ("launch", "graph") for row in evidence_of(run).suite(suite)}
    for name, constant in fitted.constants.items():
        assert constant.low <= constant.value <= constant.high, name
        assert constant.low >= 0 or name in ("gap_graph", "write_stream", "write_graph", "wide_graph"), name
        assert constant.rests_on or constant.assumed, name
        assert set(constant.rests_on) <= rows, name


def longer(old: Measurement) -> Measurement:
    samples = [value * 1.5 for value in old.values]
    return replace(old, samples=msgspec.Raw(msgspec.json.encode(samples)))


def copied(size_bytes: int, rate: float) -> Outcome:
    made = measurement("bandwidth", size_bytes / rate, work=Work(bytes=size_bytes))
    return outcome("link_copy", [made], memory="pinned", direction="h2d", size_bytes=size_bytes)


def changed_runs(run: Run) -> dict[str, tuple[Run, Run]]:
    """Runs that lack something, or have something else, each with what it was made of."""
    graph_gain = [one for one in run.outcomes if one.case.benchmark == "graph_gain"]
    steps = replace(run, outcomes=tuple(graph_gain))
    one_size = replace(run, outcomes=tuple(
        one for one in run.outcomes if one.case.benchmark != "graph_lifecycle" or one.case.params["nodes"] == 100
    ))  # fmt: skip
    far_off = with_metrics(run, "graph_gain", longer, duration_ns=2000, kernels=100, submitter="loop")
    around = [
        outcome("graph_transitions", [measurement("around", seconds)], transition=kind, submitted="graph")
        for kind, seconds in (("kernel", 0.8e-6), ("memset", 2.7e-6), ("copy_h2d", 4.9e-6))
    ]
    launches, link = make_run(), make_link_run()
    round_trip = outcome("launch_cost", [measurement("submit", 3.3e-6), measurement("round_trip", 8.4e-6)])
    unsynchronised = without(launches, "launch_sync")
    floors = replace(launches.sessions[0].floors, idle_sync_s=0.3e-6)
    slower_large = [copied(1 << 20, 50e9), copied(1 << 24, 49e9), copied(1 << 28, 48e9)]
    return {
        **{f"without {name}": (run, without(run, name)) for name in (
            "launch_gap", "launch_layers", "launch_queue", "launch_sync", "launch_duration", "graph_gain",
            "graph_lifecycle",
        )},
        "graphs of one size": (without(run, "graph_gain"), without(one_size, "graph_gain")),
        "steps alone, which leave out what only sums show": (run, steps),
        "a single step shows nothing by itself": (run, replace(run, outcomes=tuple(graph_gain[:1]))),
        "one step far off moves nothing": (run, far_off),
        "recorded calls of one model": (run, with_watched(run, 2e-6)),
        "recorded calls are known as well as models agree": (run, with_watched(run, 2.1e-6, 3e-6, 1.9e-6)),
        "one model's were as short as unrecorded ones": (run, with_watched(run, 2e-6, 0.1e-6)),
        "on average shorter: left out": (run, with_watched(run, 2e-6, -1.4e-6)),
        "with graph_transitions": (run, with_suite(run, ["graph_transitions"], "full", around)),
        "without a watcher way and completion share the round trip": (
            launches, with_outcomes(without(launches, "launch_cost"), round_trip),
        ),
        "an idle synchronise can be the run's floor": (
            unsynchronised, replace(unsynchronised, sessions=(replace(launches.sessions[0], floors=floors),)),
        ),
        "no GPU": (launches, make_run(gpu=False)),
        "copies whose line begins below nothing have no latency and a rate": (
            link, with_outcomes(without(link, "link_copy"), *slower_large),
        ),
        "a copy's call that was not timed takes no more than is left": (link, without(link, "link_latency")),
    }  # fmt: skip


def shown(found: Fit) -> dict[str, str]:
    """The constants in words, in us where they are times, with the first of the rows that they rest on."""

    def told(one: Constant) -> str:
        value, low, high = (f"{round(number * 1e6, 4) + 0.0:.3g}" for number in (one.value, one.low, one.high))
        first = "".join(one.rests_on[:1]) + (f" and {len(one.rests_on) - 1} more" if one.rests_on[1:] else "")
        return "; ".join(filter(None, (f"{value} ({low} to {high})", one.assumed, first)))

    words = {name: told(one) for name, one in found.constants.items()}
    words |= {f"misfit {way} {pace}": f"of {one.steps} steps" for (way, pace), one in found.misfit.items()}
    return words | {"missing": ", ".join(missing(found, STEP, WAYS)) or "nothing"}


def test_what_a_run_lacks_is_assumed_left_out_or_missing(run: Run, fitted: Fit) -> None:
    """Of each changed run what is not said of the run that it was made of."""
    texts = [f"== {fitted.run_id} {fitted.device} {fitted.reach}"]
    texts[0] += "".join(f"\n{name}: {words}" for name, words in shown(fitted).items())
    for what, (before, after) in changed_runs(run).items():
        known, found = (shown(fit(evidence_of(one))) for one in (before, after))
        lines = [f"{name}: {words}" for name, words in found.items() if known.get(name) != words]
        gone = sorted(known.keys() - found.keys())
        texts.append("\n".join([f"== {what}", *lines, *([f"gone: {', '.join(gone)}"] if gone else [])]))
    snapshots.same("fits", "\n\n".join(texts))


def test_gaps_behind_kernels_that_write_and_of_one_stream_are_measured(fitted: Fit) -> None:
    values = fitted.values
    assert values["one_stream_graph"] == pytest.approx(FakeCosts().one_stream_gap_ns * 1e-9, abs=0.01e-6)

    def gap_s(layer: str, **kernels: bool) -> float:
        step = Workload((Kernels(100, (2e-6,), **kernels), Wait()), layer=layer)
        return acts(step, with_calls(fitted, step).values, "graph")[0].work[1].gap_s

    assert gap_s("cupy_raw") - gap_s("loop") == pytest.approx(values["one_stream_graph"], abs=0.01e-6)
    assert gap_s("torch_eager") - gap_s("cupy_raw") == pytest.approx(values["code_graph"] - values["write_graph"])
    assert gap_s("loop") - gap_s("loop", writes=False) == pytest.approx(values["write_graph"])


def test_gaps_of_model_code_lie_between_those_of_its_examples() -> None:
    """The chain of equal kernels says nothing of them, and another program may lie beside all examples."""
    own, examples = Constant(0.1e-6, 0.1e-6, 0.1e-6), [Constant(gap, gap, gap) for gap in (0.3e-6, 0.2e-6)]
    found = _spread(examples, own)
    assert [found.value, found.low, found.high] == pytest.approx([0.15e-6, 0.05e-6, 0.25e-6])


def test_a_large_grid_is_eight_blocks_for_each_sm(run: Run, fitted: Fit) -> None:
    sms = evidence_of(run).gpu.sm_count  # type: ignore[union-attr]
    assert fitted.values["wide_blocks"] == 8 * sms
    unmeasured = fit(evidence_of(without(run, "launch_gap"))).constants["wide_graph"]
    assert (unmeasured.value, bool(unmeasured.assumed)) == (0.0, True)


def test_graphs_of_one_size_say_that_the_rest_is_assumed(run: Run, fitted: Fit) -> None:
    sizes = {one.case.params["nodes"] for one in run.outcomes if one.case.benchmark == "graph_lifecycle"} - {100}
    for nodes in sizes:
        run = without(run, "graph_lifecycle", nodes=nodes)
    found = fit(evidence_of(without(run, "graph_gain")))
    for name in ("replay.loop", "replay_node"):
        assert "one size" in found.constants[name].assumed, name
    every = [making_of([nodes], found.made) for nodes in (100, 200)]
    assert [each and "one size" in each.assumed for each in every] == [False, True]
    assert every[1] is not None
    assert every[1].value == pytest.approx(2 * found.made[0][1].value)


def test_nothing_is_missing_in_a_whole_run(fitted: Fit) -> None:
    assert missing(fitted, STEP, WAYS) == []
    for layer in fitted.layers:
        step = Workload((Kernels(100, arguments=7), Wait()), layer=layer)
        assert missing(fitted, step, WAYS) == []
        assert set(needed(step, "graph")) <= set(with_calls(fitted, step).constants)


def test_missing_names_benchmarks_once_in_the_order_of_need() -> None:
    found = fit(evidence_of(make_run(gpu=False)))
    step = Workload((Copies("h2d", 4096), Kernels(10, bytes=1e6), Wait()), streams=2)
    assert missing(found, step, ("stream",)) == [
        "launch_cost", "launch_sync", "launch_gap", "launch_queue", "graph_shape", "link_latency", "link_copy",
        "launch_layers", "memory_stream",
    ]  # fmt: skip
    assert missing(found, STEP, ("graph",))[-2:] == ["graph_lifecycle", "graph_gain"]


def test_an_unknown_layer_is_missing(fitted: Fit) -> None:
    step = Workload((Kernels(1), Wait()), layer="forth")
    assert call_constant(fitted.constants, "forth", 0) is None
    assert missing(fitted, step, ("stream",)) == ["launch_layers"]


@pytest.mark.parametrize(("calls", "arguments", "interval", "how"), [
    ({0: 4.0, 4: 8.0}, 0, (3.96, 4.0, 4.04), ""),
    ({0: 4.0, 4: 8.0}, 1, (3.96, 5.0, 6.08), "a call with 1 argument lies on the line through those with 0 and 4"),
    ({0: 4.0, 4: 8.0}, 2, (3.96, 6.0, 8.08), "a call with 2 arguments lies on the line through those with 0 and 4"),
    ({0: 4.0, 4: 8.0}, 6, (7.92, 10.0, 12.08), "a call with 6 arguments lies on the line through those with 0 and 4"),
    ({0: 4.0, 1: 8.0, 4: 11.0}, 2, (7.89, 9.0, 10.11),
     "a call with 2 arguments lies on the line through those with 1 and 4"),
    ({4: 5.0}, 0, (4.5, 5.0, 5.5), "a call with 0 arguments takes as long as one with 4"),
    # No argument makes a call shorter.
    *(({1: 4.0, 4: 3.8}, count, (3.6, 4.0, 4.4), f"a call with {count} arguments takes as long as one with 1")
      for count in (2, 16, 64, 128)),
])  # fmt: skip
def test_a_call_lies_on_the_line_through_the_nearest_counts_measured(
    calls: dict[int, float], arguments: int, interval: tuple[float, ...], how: str
) -> None:
    """The calls of a layer by their counts of arguments, in microseconds."""
    found = call_constant(
        {
            f"call.x.{count}": Constant(us * 1e-6, us * 0.99e-6, us * 1.01e-6, (str(count),))
            for count, us in calls.items()
        },
        "x",
        arguments,
    )
    assert found is not None
    assert [found.low, found.value, found.high] == pytest.approx([us * 1e-6 for us in interval])
    assert found.assumed == how
    used = re.sub(r"a call with \d+", "", how) or str(arguments)
    assert list(found.rests_on) == re.findall(r"\d+", used)


def test_an_array_operation_is_one_call_whatever_its_kernel_takes() -> None:
    operation = {"call.torch_eager.1": Constant(5e-6, 5e-6, 5e-6)}
    for arguments in (0, 1):
        assert call_constant(operation, "torch_eager", arguments) == operation["call.torch_eager.1"]


def test_with_calls_adds_what_a_workload_needs(fitted: Fit) -> None:
    step = Workload((Kernels(1, arguments=3), Kernels(1, layer="torch_eager"), Wait()), layer="triton")
    more = with_calls(fitted, step)
    added = {"call.triton.3", "call.torch_eager.0", "replay.triton", "make"}
    assert set(more.constants) - set(fitted.constants) == added
    assert "compiled loop" in more.constants["replay.triton"].assumed
    assert with_calls(more, step).values == more.values


def test_a_spin_kernels_own_length_is_its_record() -> None:
    recorded = {0: 130.0, 1000: 1100.0, 3000: 3200.0}
    rows = [
        outcome("launch_duration", [measurement("duration", own * 1e-9, spread=0)], duration_ns=duration)
        for duration, own in recorded.items()
    ]
    evidence = evidence_of(with_outcomes(without(make_run(), "launch_duration"), *rows))
    expected = {**recorded, 50: 150.0, 100: 200.0, 2000: 2150.0, 9000: 9200.0}
    for duration_ns, own_ns in expected.items():
        profiled_s = own_ns * 1e-9 + PROFILED_LONGER
        assert own_s(evidence, duration_ns) == pytest.approx(profiled_s, abs=20e-9), duration_ns
    unrecorded = evidence_of(without(make_run(), "launch_duration"))
    assert own_s(unrecorded, 700) == pytest.approx(700e-9 + PROFILED_LONGER, abs=20e-9)


def rows_of(*figures: dict[str, float]) -> Evidence:
    """launch_cost with these figures, a dict a round."""
    made = [
        outcome("launch_cost", [measurement(name, value, spread=0.001) for name, value in one.items()], round=at)
        for at, one in enumerate(figures)
    ]
    return evidence_of(with_outcomes(without(make_run(), "launch_cost"), *made))


def test_what_differs_between_processes_differs_once_in_a_difference() -> None:
    evidence = rows_of(*({"submit": base, "start": base + 3e-6} for base in (2e-6, 2.5e-6, 3e-6, 3.5e-6)))
    submit, start = evidence.row("launch_cost", "submit"), evidence.row("launch_cost", "start")
    found = of_rows(((1, start), (-1, submit)))
    assert found.value == pytest.approx(3e-6, rel=0.01)
    assert found.high - found.low < 0.1e-6
    apart = combined([(1, of_row(start)), (-1, of_row(submit))])
    assert apart.high - apart.low > 2e-6


def constants(*values: float, half: float = 0.1) -> list[Constant]:
    return [Constant(value, value - half, value + half, (f"row {value}",)) for value in values]


def test_the_interval_of_a_middle_covers_most_of_the_other_constants() -> None:
    one = middle(constants(1.0, 1.2, 1.1, 1.3, 1.4, 1.25, 9.0))
    assert (one.value, one.low) == (1.25, pytest.approx(1.25 - (1.4 - 1.1) / 2, abs=0.11))
    assert middle([*constants(1.0, half=0.5), *constants(2.0, half=0.1)]).value == 2.0


def points(pairs: Iterable[tuple[int, float]]) -> list[tuple[int, Constant]]:
    return [(x, *constants(y, half=0.01 * y)) for x, y in pairs]


def test_a_straight_line_through_two_and_through_many() -> None:
    for several in ([(10, 3.0), (100, 12.0)], [(10, 3.0), (100, 12.0), (1000, 102.0)]):
        found = straight(points(several), "?")
        assert (found[0].value, found[1].value) == (pytest.approx(2.0), pytest.approx(0.1))
        assert found[1].low < 0.1 < found[1].high
    assert straight([], "?") is None


def test_costs_do_not_go_below_nothing() -> None:
    one = combined([(1, constants(1.0)[0]), (-1, constants(2.0)[0])])
    assert (one.value, one.low) == (0.0, 0.0)


def test_a_misfit_is_the_order_statistic_that_holds_the_next_step() -> None:
    off = [rank / 1000 for rank in range(1, 100)]
    found = misfit(reversed(off))
    assert (found.median, found.most, found.steps) == (0.05, 0.095, 99)


def test_few_steps_promise_less() -> None:
    few, none = misfit([0.02, 0.03, 0.01]), misfit([])
    assert (few.steps, none.steps) == (3, 0)
    assert few.most > 0.06
    assert none == ASSUMED
    assert misfit([0.0] * 50).most == 0.01


def test_a_misfit_holds_the_next_of_a_kind() -> None:
    """Of a thousand samples of residuals, 95 % of those that follow lie within."""
    generator = np.random.default_rng(1)
    for size in (5, 30):
        held = 0
        for _ in range(1000):
            off = np.abs(generator.normal(0, 0.02, size + 1))
            held += off[-1] <= misfit(off[:-1].tolist()).most
        assert held > 1000 * 0.95 - 3 * math.sqrt(1000 * 0.05 * 0.95)


SIMPLE = {"call.loop.0": 2e-6, "gap_stream": 1e-6, "way": 3e-6, "complete": 2e-6}


def in_a_stream(own_s: float) -> TimedStep:
    """100 kernels in as long as the law says for those constants."""
    seconds = law_s(TimedStep("stream", "loop", 0, 100, own_s, 1.0, 0.01, ""), SIMPLE)
    return TimedStep("stream", "loop", 0, 100, own_s, seconds, 0.01 * seconds, "")


def misfits_of(several: list[TimedStep], off: list[float]) -> Mapping[tuple[Way, str], Misfit]:
    """Of steps off by those shares of the whole."""
    paces = tuple(step.gpu_paced(SIMPLE) for step in several)
    found = Calibrated(values=SIMPLE, pace=paces, off=tuple(off))
    return misfits(several, found, {name: Constant(one, one, one) for name, one in SIMPLE.items()})


def test_a_misfit_is_a_share_of_the_overhead_and_of_little_of_the_kernels() -> None:
    slow, quick = in_a_stream(4e-6), in_a_stream(0.2e-6)
    found = misfits_of([slow, quick] * 20, [0.01] * 40)
    overhead_s = 2e-6 + 3e-6 + 99 * 1e-6 + 2e-6
    assert slow.seconds == pytest.approx(overhead_s + 100 * 4e-6)
    assert found["stream", "gpu"].most == pytest.approx(0.01 * slow.seconds / (overhead_s + 0.15 * 100 * 4e-6))
    # All but its last kernel is hidden behind calls.
    assert found["stream", "host"].most == pytest.approx(0.01, rel=0.001)
    assert {one.steps for key, one in found.items() if key[0] == "stream"} == {20}


def test_steps_of_little_but_kernels_are_no_test_of_the_law() -> None:
    found = misfits_of([in_a_stream(4e-6)] * 20 + [in_a_stream(50e-6)] * 20, [0.01] * 20 + [0.3] * 20)
    assert found["stream", "gpu"].steps == 20
    assert found["stream", "gpu"].most < 0.1


def test_a_misfit_of_some_lengths_holds_for_others() -> None:
    """Overhead off by 3 %, kernels by 0.4 %: intervals made of lengths of 1.5 to 6 us hold each of three others."""
    generator = np.random.default_rng(2)

    def off(step: TimedStep) -> float:
        own_s = 100 * step.own_s
        return float(generator.normal(0, 0.03 * (step.seconds - own_s)) + generator.normal(0, 0.004 * own_s))

    fitted_to = [in_a_stream(seconds) for seconds in np.linspace(1.5e-6, 6e-6, 60)]
    most = misfits_of(fitted_to, [off(step) / step.seconds for step in fitted_to])["stream", "gpu"].most
    for seconds in (1.2e-6, 5e-6, 30e-6):
        step = in_a_stream(seconds)
        within_s = most * (step.seconds - 0.85 * 100 * seconds)
        held = np.mean([abs(off(step)) <= within_s for _ in range(2000)])
        assert 0.90 <= held <= 0.995, seconds
