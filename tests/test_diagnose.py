"""Diagnoses made-up programs whose times and causes are known."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import cache
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_fit import make_fit
from make_trace import EVENT_NS, GAP_NS, WAY_NS, Recorder, in_turns, steps_of, with_pinned_copies
from msgspec.structs import replace

from microbench.analysis.evidence import Finding
from microbench.core.errors import UsageError
from microbench.core.units import as_time, percent, times
from microbench.diagnosis import lanes, ranks, window, words
from microbench.diagnosis import steps as step_finding
from microbench.diagnosis.advice import program_of
from microbench.diagnosis.communication import kind_of
from microbench.diagnosis.diagnosis import (
    ELSEWHERE,
    PROCESSES,
    Diagnosis,
    Foreseen,
    Graph,
    Remedy,
    Step,
    Without,
    _on_gpu,
    diagnose,
)
from microbench.diagnosis.events import held_by_events
from microbench.diagnosis.gpu_use import pages_s, unfilled_s
from microbench.diagnosis.health import HELD, MOVED, Check, checks
from microbench.diagnosis.host_time import BETWEEN, DOINGS, MANAGED, ON_MANAGED, doing, overlaps, slices
from microbench.diagnosis.idle import CAUSES, idle, owners
from microbench.diagnosis.latencies import recorded_latencies
from microbench.diagnosis.owners import NAMELESS
from microbench.diagnosis.steps import DIFFERENT, find_steps
from microbench.diagnosis.turns import _stretches, loops_of
from microbench.diagnosis.unwatched import OWN_S, USUAL_S, beyond_calls, unwatched
from microbench.library.runs import load
from microbench.model.constants import Constant, Fit
from microbench.model.fit import fit_for
from microbench.model.workload import Copies, Kernels, Wait, Workload
from microbench.report.sheets.diagnosis import MOST_TRACES, answer, ranks_screen, screen
from microbench.traces.trace import MIGRATION, NONE, RANGE_KINDS, Loop, Memory, RangeKind, Thread, Trace


@cache
def costs() -> Fit:
    """The constants of the bundled reference, without those of a profiler."""
    _, run = load("nvidia-h200")
    fit = fit_for(run, Workload((Kernels(10, (1e-6,)), Wait())))[1]
    return replace(fit, constants={name: one for name, one in fit.constants.items() if not name.startswith("watched.")})


def diagnosed(made: Recorder, step_s: float | None = None) -> Diagnosis:
    return diagnose(made.trace(), costs(), step_s)


def line_of(diagnosis: Diagnosis, name: str) -> str:
    """A line of the screen."""
    lines = screen(diagnosis, "", "").blocks[0].lines
    return " · ".join(part.text for line in lines if line.name == name for part in line.parts)


def rules(diagnosis: Diagnosis) -> list[str]:
    return [finding.rule for finding in words.findings(diagnosis)]


# Steps


@pytest.mark.parametrize("marked", [False, True])
def test_steps_are_found_from_annotations_and_from_what_repeats(marked: bool) -> None:
    made = steps_of(count=12, kernels=10, marked=marked)
    steps = find_steps(made.trace())
    assert steps.found == ("annotations" if marked else "repetition")
    assert set(np.diff(steps.calls)) == {10}
    assert steps.step_s == pytest.approx(10 * 23e-6)
    assert (steps.likeness, steps.every) == (1.0, 1)
    assert 8 <= steps.count <= 11


@pytest.mark.parametrize(("named_ns", "nameless_ns", "first"), [
    (20_000, 5_000, "PyTorch's operators 160 µs"), (5_000, 20_000, "host code without a name 200 µs"),
    (0, 20_000, "host code without a name 160 µs"),
])  # fmt: skip
def test_host_code_without_a_name_comes_first_if_it_takes_most(named_ns: int, nameless_ns: int, first: str) -> None:
    made = Recorder()
    for _ in range(12):
        for kernel in range(10):
            if named_ns:
                with made.range("aten::op"):
                    made.runs(named_ns)
            made.runs(nameless_ns)
            made.launch(f"kernel_{kernel}", 2000)
    (whose,) = (line for line in screen(diagnosed(made), "", "").blocks[0].lines if line.name == "whose")
    assert whose.parts[0].text.startswith(first)
    assert ("record CPU activities to name it" in whose.parts[0].text) == (named_ns == 0)


def test_memsets_are_pieces_of_work_but_not_kernels() -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(10, 20_000, 2000)
        made.submit(made.call("cudaMemsetAsync", 2000), "Memset", 1000, kind="memset")
        made.wait()
    step = diagnosed(made).step
    assert (step.kernels, step.work) == (10, 11)


def test_a_step_is_not_taken_for_one_of_its_layers() -> None:
    made = Recorder()
    for _ in range(8):
        made.runs(5000)
        made.launch("embedding", 2000)
        for _ in range(30):
            made.runs(5000)
            made.launch("norm", 2000)
            made.launch("product", 2000)
        made.launch("head", 2000)
    steps = find_steps(made.trace())
    assert set(np.diff(steps.calls)) == {62}


def test_a_step_of_equal_parts_ends_at_its_long_pause() -> None:
    """A training step of four micro-batches that then loads data; a single pause elsewhere changes nothing."""
    made = Recorder()
    for step in range(10):
        made.runs(4_000_000)
        for part in range(4):
            made.runs(3_000_000 if (step, part) == (7, 2) else 9000)
            made.launches(6, 9000, 2000)
    steps = find_steps(made.trace())
    assert set(np.diff(steps.calls)) == {24}
    assert set(steps.calls % 24) == {0}
    found = diagnosed(made)
    assert found.recorded.pauses_s > 4e-3
    assert found.remedies[0].name == "pauses"
    assert found.graph.step_s > 4e-3


def test_pauses_that_come_irregularly_end_no_step() -> None:
    made = Recorder()
    for part in range(60):
        made.runs(4_000_000 if part in (0, 7, 20, 33, 50, 51) else 9000)
        made.launches(6, 9000, 2000)
    steps = find_steps(made.trace())
    assert set(np.diff(steps.calls)) == {6}


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize(("kernels", "also"), [(15, [("15 other CUDA calls that repeat, in", 15 * 23e-6)]), (10, [])])
def test_what_repeats_elsewhere_is_shown_too(windows: bool, kernels: int, also: list[tuple[str, float]]) -> None:
    made, begins_ns = Recorder(), [0]
    for count, length in ((12, 8), (40, 10), (20, kernels)):
        for _ in range(count):
            made.launches(length, 20_000)
        begins_ns.append(made.now_ns)
    ends_ns = itertools.pairwise(begins_ns)
    trace = made.trace(windows=tuple(ends_ns) if windows else (), loops=())
    found = diagnose(trace, costs())
    assert (found.steps.found, found.step.kernels) == ("repetition", 10)
    assert [name for name, _ in found.steps.loops] == [name for name, _ in also]
    assert [seconds for _, seconds in found.steps.loops] == pytest.approx([seconds for _, seconds in also], rel=0.1)
    assert ("also here: 15 other CUDA calls that repeat, in 345 µs" in line_of(found, "repeats")) == bool(also)


def test_a_break_between_two_phases_is_no_step() -> None:
    made = Recorder()
    for phase in range(2):
        for _ in range(10 + phase):
            for kernel in range(6):
                made.runs(20_000)
                made.launch(f"kernel_{kernel}", 5_000)
            made.wait()
        made.runs(300_000_000)
    found = find_steps(made.trace())
    assert found is not None
    assert found.step_s < 300e-6
    assert found.count >= 8


def test_steps_of_several_shapes_take_turns() -> None:
    made = Recorder()
    for step in range(24):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            made.launches(5, 9000, 2000, blocks=1 + step % 4)
    steps = find_steps(made.trace())
    assert (steps.every, steps.likeness) == (4, 1.0)
    assert steps.alike_next < 0.1


def test_a_loop_that_does_two_stretches_of_the_work_is_the_step() -> None:
    """As a loop over batches does that is run once an epoch, where no stretch has half of the recording's work."""
    made = Recorder()
    for _ in range(2):
        for _ in range(12):
            made.launches(5, 9000, 2000)
            made.turn()
        made.runs(2_000_000)
        made.launches(30, 7000, 1000)
    steps = find_steps(made.trace())
    assert (steps.found, steps.name) == ("loop", "train.py:5")
    assert set(np.diff(steps.calls)) == {5}


@pytest.mark.parametrize("waits", [True, False])
def test_of_a_fast_loop_turns_that_were_not_noted_are_steps_where_calls_tell_their_begin(waits: bool) -> None:
    """Every ninth turn submits more. Without a wait all calls are equal, and nothing tells where a turn begins."""
    made = Recorder()
    for turn in range(100):
        for _ in range(3):
            made.launches(1)
        if waits and turn % 9 == 0:
            made.launch("other", 3000)
        if waits:
            made.wait()
        if 10 <= turn < 40:
            made.turn()
    made.turns[-1] = (*made.turns[-1][:3], True)
    made.runs(50_000_000)
    made.launches(20)
    steps = find_steps(made.trace())
    assert (steps.found, steps.name) == ("loop", "train.py:5")
    assert (steps.count, {*np.diff(steps.calls).tolist()}) == ((98, {4, 5}) if waits else (28, {3}))


def test_ranges_with_the_work_are_steps_and_longer_ones_with_little_of_it_are_none() -> None:
    made = Recorder()
    for turn in range(4):
        with made.range("read", "annotation"):
            made.runs(900_000)
            made.launch("upload", 500)
        with made.range("group", "annotation"):
            for kernel in range(5 + turn % 2):
                made.launch(f"kernel_{kernel}", 40_000)
            made.wait()
    steps = find_steps(made.trace())
    assert (steps.found, steps.name) == ("annotations", "group")


def test_equal_steps_are_alike_where_one_makes_a_call_more() -> None:
    made = Recorder()
    for step in range(6):
        with made.range(f"step#{step}", "annotation"):
            for kernel in range(20):
                made.launch(f"kernel_{kernel}", 2000)
                if (kernel, step) == (1, 3):
                    made.call("cudaMalloc", 3000)
    assert find_steps(made.trace()).likeness > 0.95


def test_submitting_calls_that_repeat_are_steps_where_others_come_in_between() -> None:
    made, chance = Recorder(), np.random.default_rng(1)
    for _ in range(5):
        for kernel in range(40):
            for _ in range(chance.integers(3)):
                made.call(f"cudaEventQuery_{chance.integers(100)}", 500)
            made.launch(f"kernel_{kernel}", 2000)
    steps = find_steps(made.trace())
    assert (steps.found, steps.count) == ("repetition", 3)
    for kernel in range(80):
        made.launch(f"other_{kernel}", 2000)
    assert find_steps(made.trace()) is None, "where much else is submitted a part may repeat"


@pytest.mark.parametrize(("waits", "others", "searches"), [(False, False, 1), (True, False, 2), (True, True, 3)])
def test_the_same_calls_are_not_searched_twice_for_steps(waits: bool, others: bool, searches: int) -> None:
    made, chance = Recorder(), np.random.default_rng(1)
    for kernel in chance.integers(0, 50, 5000).tolist():
        made.launch(f"kernel_{kernel}", 2000)
        if waits and kernel < 5:
            made.wait()
        if others and kernel > 45:
            made.call("cudaEventQuery", 500)
    with mock.patch.object(step_finding, "_repeating", side_effect=step_finding._repeating) as looked:
        assert find_steps(made.trace()) is None
    assert looked.call_count == searches


def test_of_many_calls_some_show_which_distances_to_try() -> None:
    """They leave none out that repeats half of the calls."""
    chance = np.random.default_rng(1)
    assert step_finding._period(chance.integers(0, 50, 100_000)) is None
    step = chance.integers(0, 50, 1700)
    noise = np.where(chance.random(100_000) < 0.2, chance.integers(0, 50, 100_000), np.resize(step, 100_000))
    assert step_finding._period(noise) == 1700
    assert step_finding._period(np.append(chance.integers(0, 50, 60_000), np.resize(step, 90_000))) == 1700


def test_calls_that_never_repeat_have_no_steps() -> None:
    made = Recorder()
    for kernel in range(40):
        made.launch(f"kernel_{kernel}", 1000)
    assert find_steps(made.trace()) is None
    found = diagnosed(made)
    assert found.step is None
    assert found.why_no_graph == "no step repeats in this trace"


# Idle time


def whole(trace: Trace) -> tuple[int, int]:
    return int(trace.work["begin_ns"][0]), int(trace.work["end_ns"].max())


def test_the_causes_of_a_launch_bound_step_are_exact() -> None:
    trace = steps_of(count=10, kernels=10, duration_ns=2000, between_ns=20_000, call_ns=3000).trace()
    found = idle(trace, *whole(trace), 0)
    # Between two kernels the host runs for 20 us, of which the first 4 us pass before the first kernel has ended.
    assert found.gaps == 99
    assert found.causes["launch calls"] == pytest.approx(99 * 3e-6)
    assert found.causes["launch latency"] == pytest.approx(99 * WAY_NS * 1e-9)
    assert found.causes["Python and framework time between CUDA calls"] == pytest.approx(99 * 16e-6)
    assert sum(found.causes.values()) == pytest.approx(found.idle_s, rel=1e-12)
    assert found.busy_s == pytest.approx(100 * 2e-6)
    named = {where.name: where.cause for where in found.places}
    assert named["aten::op"] == "Python and framework time between CUDA calls"
    assert named["cudaLaunchKernel in aten::op"] == "launch calls"


def test_kernels_that_wait_in_the_queue_have_gaps_of_the_device() -> None:
    trace = steps_of(count=5, kernels=10, duration_ns=50_000, between_ns=100).trace()
    found = idle(trace, *whole(trace), 0)
    assert found.causes["device gaps"] == pytest.approx(49 * GAP_NS * 1e-9)
    assert found.idle_s == pytest.approx(found.causes["device gaps"])


@pytest.mark.parametrize(("duration_ns", "said"), [(2000, "between kernels in its queue"), (40_000, "of each")])
def test_gaps_in_the_queue_are_in_the_verdict_if_they_are_long(duration_ns: int, said: str) -> None:
    made = steps_of(count=30, kernels=40, duration_ns=duration_ns, between_ns=100, call_ns=500)
    verdict = words.findings(diagnosed(made))[0]
    assert verdict.title.startswith("GPU-bound")
    assert said in verdict.title
    assert verdict.severity == ("warning" if duration_ns == 2000 else "good")


@pytest.mark.parametrize(("call", "cause"), [
    ("cudaMalloc", "allocation"), ("cudaFree", "allocation"), ("cuModuleLoadData", "module load"),
    ("cudaStreamSynchronize", "waits"), ("cudaMemcpyAsync", "copies"), ("cudaEventRecord", "other calls"),
])  # fmt: skip
def test_what_the_host_called_meanwhile_is_the_cause(call: str, cause: str) -> None:
    made = Recorder()
    made.launch("first", 1000)
    made.runs(10_000)
    made.call(call, 40_000)
    made.launch("second", 1000)
    trace = made.trace()
    found = idle(trace, *whole(trace), 0)
    assert found.causes[cause] == pytest.approx(40e-6)  # type: ignore[index]
    assert sum(found.causes.values()) == pytest.approx(found.idle_s)


def test_the_profilers_own_work_counts_before_everything_else() -> None:
    made = Recorder()
    made.launch("first", 1000)
    with made.range("aten::op"), made.range("Buffer Flush", "overhead"):
        made.runs(50_000)
    made.launch("second", 1000)
    trace = made.trace()
    assert idle(trace, *whole(trace), 0).causes["profiler"] == pytest.approx(47e-6)  # 3 us pass during the first


def test_work_without_a_recorded_call_is_unknown() -> None:
    trace = steps_of(count=3, kernels=4).trace()
    trace.work["call"][5] = NONE
    found = idle(trace, *whole(trace), 0)
    assert found.causes["unknown"] == pytest.approx(21e-6)
    assert ("unknown", "work without a recorded call") in {(where.cause, where.name) for where in found.places}


@pytest.mark.parametrize("seed", range(20))
def test_causes_add_up_for_any_program(seed: int) -> None:
    random, made = np.random.default_rng(seed), Recorder()
    for _ in range(200):
        made.thread = int(random.integers(2))
        with made.range("outer", "python"), made.range("inner"):
            made.runs(int(random.integers(30_000)))
            match random.integers(6):
                case 0:
                    made.wait()
                case 1:
                    made.call("cudaMalloc", int(random.integers(9000)))
                case _:
                    made.launch("kernel", int(random.integers(1, 60_000)), stream=int(random.integers(3)))
    trace = made.trace()
    begin, end = whole(trace)
    cut = begin + (end - begin) // 3
    for stretch in ((begin, end), (cut, end), (begin, cut)):
        found = idle(trace, *stretch, 0)
        assert set(found.causes) == set(CAUSES)
        assert sum(found.causes.values()) == pytest.approx(found.idle_s, abs=1e-12)
        assert min(found.causes.values()) >= 0


def test_slices_cover_a_threads_time_once() -> None:
    made = steps_of(count=3, kernels=3, marked=True)
    of = slices(made.trace(), 0)
    assert np.all(np.diff(of.edges_ns) >= 0)
    begins, ends = np.array([0, 5000, 30_000]), np.array([1000, 90_000, 30_000])
    parts = overlaps(of, begins, ends)
    assert [int(parts.ns[parts.interval == place].sum()) for place in range(3)] == [1000, 85_000, 0]


@given(
    st.lists(
        st.tuples(st.sampled_from(("line", "call", "overhead")), st.integers(0, 30), st.integers(0, 12)), max_size=9
    )
)
def test_the_profiler_comes_before_a_call_and_a_call_before_code(several: list[tuple[str, int, int]]) -> None:
    """Wherever they begin and end, also within one another."""
    made, order = Recorder(), ("line", "call", "overhead")
    for kind, begin_ns, length_ns in several:
        made.now_ns = begin_ns
        if kind == "call":
            made.call("cudaLaunchKernel", length_ns)
        else:
            with made.range("code", kind):
                made.runs(length_ns)
    of = slices(made.trace(), 0)
    for moment_ns in range(45):
        here = [kind for kind, begin_ns, length_ns in several if begin_ns <= moment_ns < begin_ns + length_ns]
        found = int(np.searchsorted(of.edges_ns, moment_ns, side="right")) - 1
        last = max(here, key=order.index, default="")
        assert DOINGS[of.doing[found]] == {"call": "launch", "overhead": "profiler"}.get(last, "between")
        if last in ("line", ""):
            assert (of.name[found] != NONE) == bool(last)


def test_calls_are_told_apart_by_their_names() -> None:
    told = {
        "cudaLaunchKernelExC": "launch", "cuLaunchKernelEx": "launch", "cudaGraphLaunch": "launch",
        "cudaMemsetAsync": "launch", "cudaMemcpyAsync": "copy", "cudaDeviceSynchronize": "wait",
        "cudaFree": "allocation", "cudaHostAlloc": "allocation", "cuModuleLoadData": "module",
        "cudaFuncGetAttributes": "other_call", "cudaEventQuery": "other_call",
    }  # fmt: skip
    assert {name: doing(name) for name in told} == told
    assert set(told.values()) < set(DOINGS)


# Events between streams


@pytest.mark.parametrize("through", [None, 13])
def test_streams_that_wait_for_one_another_are_played_in_turn(through: int | None) -> None:
    made = in_turns(between_ns=5000, duration_ns=20_000, through=through)
    found = diagnosed(made)
    assert found.recorded.workload.streams == (2 if through is None else 3)
    assert "too short" not in found.why_no_graph
    assert found.step.unwatched_s == pytest.approx(16 * 21e-6, rel=0.02)
    unsaid = diagnose(made.trace(syncs=made.trace().syncs[:0]), costs())
    assert "too short" in unsaid.why_no_graph


def test_a_graph_of_streams_that_wait_for_one_another_is_one_chain() -> None:
    made = in_turns(between_ns=30_000, duration_ns=5000)
    found, unsaid = diagnosed(made), diagnose(made.trace(syncs=made.trace().syncs[:0]), costs())
    assert found.graph.graphs == unsaid.graph.graphs == 1
    assert found.graph.step_s == pytest.approx(16 * 5.4e-6, rel=0.1)
    assert unsaid.graph.step_s == pytest.approx(8 * 5.4e-6, rel=0.1)


def test_a_gap_before_work_that_waits_for_an_event_is_the_events() -> None:
    made = in_turns(between_ns=100, duration_ns=50_000)
    trace = made.trace()
    found = idle(trace, *whole(trace), 0)
    assert found.causes["another stream's event"] == pytest.approx(47 * EVENT_NS * 1e-9)
    assert found.causes["device gaps"] == pytest.approx(12 * 4 * 3 * GAP_NS * 1e-9)
    assert found.causes["another stream"] == 0
    unsaid = made.trace(syncs=trace.syncs[:0])
    found = idle(unsaid, *whole(unsaid), 0)
    assert found.causes["another stream's event"] == 0
    assert found.causes["device gaps"] == pytest.approx((47 * EVENT_NS + 144 * GAP_NS) * 1e-9)


def test_a_gap_behind_an_event_that_happened_long_before_is_not_the_events() -> None:
    made = Recorder()
    made.launch("short", 5000, stream=20)
    event = made.record_event(20)
    made.launch("long", 500_000)
    made.wait_event(event, 7)
    made.launch("behind", 5000)
    late = made.record_event(7)
    made.wait_event(late, 20)
    made.runs(1_000_000)
    made.launch("late", 5000, stream=20)
    trace = made.trace()
    found = idle(trace, *whole(trace), 0)
    assert found.causes["another stream's event"] == 0
    assert found.causes["device gaps"] == pytest.approx(GAP_NS * 1e-9)
    assert found.causes["Python and framework time between CUDA calls"] > 400e-6


def test_a_stream_without_work_hands_an_event_on() -> None:
    made = Recorder()
    made.launch("first", 90_000)
    made.wait_event(made.record_event(7), 13)
    made.wait_event(made.record_event(13), 20)
    made.launch("second", 5000, stream=20)
    trace = made.trace()
    assert idle(trace, *whole(trace), 0).causes["another stream's event"] == pytest.approx(EVENT_NS * 1e-9)


def test_an_event_that_the_recorder_confused_explains_nothing() -> None:
    """This is a wait for an event that is recorded later, or for work that ended after the waiting work had begun."""
    made = Recorder()
    for stream in (7, 20):
        made.launch("first", 9000, stream=stream)
    made.launch("long", 90_000, stream=20)
    made.wait_event(made.record_event(20), 7)
    made.launch("second", 5000)
    assert held_by_events(made.trace(), 0).any()
    later, contradicted = made.trace(), made.trace()
    later.syncs["on_call"] = later.syncs["call"] + 1
    contradicted.work["begin_ns"][-1] -= 50_000
    for trace in (later, contradicted):
        assert not held_by_events(trace, 0).any()


def test_the_drawn_step_has_the_events_of_a_host_that_ran_ahead() -> None:
    found = diagnosed(in_turns(between_ns=100, duration_ns=50_000))
    assert found.steps is not None
    stretch = lanes.lanes_of(found, *lanes.window(found), threads=2, streams=2, depth=1)
    drawn = [piece for lane in stretch.lanes if lane.name == lanes.IDLE for piece in lane.pieces]
    events = [piece.end_s - piece.begin_s for piece in drawn if piece.what == "another stream's event"]
    assert events == pytest.approx([EVENT_NS * 1e-9] * 4)


# The diagnosis


def test_a_launch_bound_step_gains_what_its_kernels_leave() -> None:
    found = diagnosed(steps_of(count=12, kernels=50, duration_ns=4000, between_ns=20_000))
    assert found.bound == "launch-bound"
    assert found.step.watched_s == pytest.approx(50 * 23e-6, rel=0.01)
    # 50 kernels of 4 us, a gap behind each, and one replay.
    assert found.graph.step_s == pytest.approx(50 * 4.4e-6 + 5e-6, rel=0.1)
    assert found.graph.low_s < found.graph.step_s < found.graph.high_s
    assert rules(found)[0] == "diagnose.bound"
    assert "diagnose.graph" in rules(found)


def test_the_time_of_the_step_may_be_given() -> None:
    made = steps_of(count=12, kernels=50, duration_ns=4000, between_ns=20_000)
    found = diagnosed(made, 800e-6)
    assert found.step.unwatched_s == 800e-6
    assert found.graph.speedup == pytest.approx(800e-6 / found.graph.step_s)
    assert "diagnose.watched" not in rules(found)
    with pytest.raises(UsageError, match="50 kernels that repeats"):
        diagnosed(made, 8e-3)


def turns(kinds: int) -> Recorder:
    """Steps of several kinds that take turns, each behind a longer pause."""
    made = Recorder()
    for _ in range(12):
        for kind in range(kinds):
            made.runs(60_000)
            for kernel in range(8):
                made.runs(20_000)
                made.launch(f"kernel_{kernel}", 2000, blocks=4 + kind)
    return made


@pytest.mark.parametrize(("kinds", "part"), [(2, "half"), (3, "a third"), (4, "a quarter")])
def test_the_time_of_one_of_several_kinds_of_steps_is_a_part_of_what_repeats(kinds: int, part: str) -> None:
    made = turns(kinds)
    found = diagnosed(made, 200e-6)
    assert found.step.watched_s == pytest.approx(kinds * 244e-6)
    assert (found.step.holds, found.step.unwatched_s) == (kinds, pytest.approx(kinds * 200e-6))
    assert found.graph.speedup == pytest.approx(kinds * 200e-6 / found.graph.step_s)
    title = finding(found, "diagnose.given").title
    assert title.startswith(f"200 µs is {part} of the {as_time(kinds * 244e-6)} that repeats: {kinds} kinds of steps")
    (steps,) = (line for line in screen(found, "", "").blocks[0].lines if line.name == "repeats")
    assert steps.parts[-1].text == f"unprofiled step time {as_time(kinds * 200e-6)}, from the 200 µs that were given"


def test_the_time_of_what_repeats_is_no_part_of_it() -> None:
    found = diagnosed(turns(3), 600e-6)
    assert (found.step.holds, found.step.parts, found.step.unwatched_s) == (1, 1, 600e-6)
    assert "diagnose.given" not in rules(found)


def test_a_step_may_hold_several_of_what_repeats() -> None:
    found = diagnosed(steps_of(count=24, kernels=8, duration_ns=4000, between_ns=20_000), 540e-6)
    assert found.step.watched_s == pytest.approx(184e-6)
    assert (found.step.parts, found.step.unwatched_s) == (4, pytest.approx(135e-6))
    assert finding(found, "diagnose.given").title.startswith("540 µs is 4 times the 184 µs that repeats")


def test_a_step_cannot_be_shorter_than_the_work_of_the_gpu() -> None:
    with pytest.raises(UsageError, match="20 kernels that repeats"):
        diagnosed(steps_of(count=12, kernels=20, duration_ns=200_000, between_ns=10_000), 2e-3)


def test_a_gpu_bound_step_is_left_alone() -> None:
    found = diagnosed(steps_of(count=12, kernels=20, duration_ns=200_000, between_ns=10_000))
    assert found.bound == "GPU-bound"
    assert found.graph is None
    title = finding(found, "diagnose.no_graph").title
    assert title == "No graph is advised: a graph would save less than 3 % of the step"
    assert words.findings(found)[0].severity == "good"


def test_a_step_that_only_the_profiler_slows_is_gpu_bound() -> None:
    found = diagnosed(steps_of(count=12, kernels=20, duration_ns=20_400, between_ns=20_000))
    busy = found.idle.busy_s / found.idle.span_s
    assert 0.88 < busy < 0.89
    assert found.bound == "GPU-bound"
    assert words.findings(found)[0].title.endswith("% without the profiler")
    assert "diagnose.pauses" not in rules(found)


def test_the_programs_own_work_beside_a_busy_gpu_is_no_loss() -> None:
    made = Recorder()
    for _ in range(12):
        made.runs(2_000_000)  # the GPU still works on what was submitted before
        for kernel in range(10):
            made.launch(f"kernel_{kernel}", 300_000)
    found = diagnosed(made)
    assert found.recorded.pauses_s > 0.5 * found.step.watched_s
    assert found.bound == "GPU-bound"
    assert "diagnose.pauses" not in rules(found)


def test_a_step_that_replays_a_graph_gets_no_graph() -> None:
    made = Recorder()
    for _ in range(12):
        made.runs(10_000)
        call = made.call("cudaGraphLaunch", 5000)
        for node in range(20):
            made.submit(call, f"kernel_{node}", 3000, node=node, blocks=4)
    found = diagnosed(made)
    assert found.why_no_graph == "the step replays graphs already"
    assert found.step.unwatched_s == found.step.watched_s


@pytest.mark.parametrize(("kind", "graphs"), [("annotation", 2), ("operator", 1)])
def test_a_wait_inside_the_step_parts_its_graph(kind: RangeKind, graphs: int) -> None:
    made = Recorder()
    for step in range(12):
        begin_ns = made.now_ns
        made.launches(20, 15_000, 3000)
        with made.range("aten::_local_scalar_dense"):
            call = made.call("cudaMemcpyAsync", 9000)
            made.submit(call, "Memcpy DtoH", 1000, kind="copy", memories=("device", "pageable"), size=8)
            made.wait()
        for kernel in range(20):
            made.runs(15_000)
            made.launch(f"other_{kernel}", 3000)
        made.ranges.append((begin_ns, made.now_ns, made.name(f"step {step}"), 0, RANGE_KINDS.index(kind)))
    found = diagnosed(made)
    assert found.graph.graphs == graphs  # a step that is not marked begins behind its wait
    named = {(blocker.why, blocker.place) for blocker in found.recorded.blockers}
    assert ("waits for the GPU", "aten::_local_scalar_dense") in named
    assert ("diagnose.blockers" in rules(found)) == (graphs == 2)
    (replayed,) = (one for one in words.findings(found) if one.rule == "diagnose.graph")
    assert (" behind the replay" in replayed.advice) == (graphs == 1)


def test_copies_in_ahead_of_the_kernels_part_no_graph() -> None:
    """As `.to(device)` of pinned inputs does: each copy is waited for. In the midst of the step it parts the graph."""

    def copies_in(made: Recorder) -> None:
        for _ in range(2):
            made.runs(9000)
            call = made.call("cudaMemcpyAsync", 9000)
            made.submit(call, "Memcpy HtoD", 9000, kind="copy", memories=("pinned", "device"), size=1 << 20)
            made.wait()

    ahead, within = Recorder(), Recorder()
    for made in (ahead, within):
        for _ in range(12):
            begin_ns = made.now_ns
            if made is ahead:
                copies_in(made)
            made.launches(20, 15_000, 3000)
            if made is within:
                copies_in(made)
            made.launches(20, 15_000, 3000)
            made.runs(50_000)
            made.ranges.append((begin_ns, made.now_ns, made.name("step 1"), 0, RANGE_KINDS.index("annotation")))
    for made, graphs, where in ((ahead, 1, "ahead"), (within, 2, "within")):
        found = diagnosed(made)
        assert found.graph.graphs == graphs
        (blocker,) = found.recorded.blockers
        assert (blocker.why, blocker.where, blocker.count) == ("waits for a copy to the GPU", where, 2)
    (replayed,) = (one for one in words.findings(diagnosed(ahead)) if one.rule == "diagnose.graph")
    assert (
        "Keep cudaStreamSynchronize in step (2 a step) ahead of the replay: a capture cannot hold it" in replayed.advice
    )
    (blocker,) = diagnosed(ahead).recorded.blockers
    with mock.patch("microbench.diagnosis.advice.of_target", lambda diagnosis, place: place == blocker.place):
        (made,) = (one for one in words.findings(diagnosed(ahead)) if one.rule == "diagnose.graph")
    assert "Make on the GPU what is copied in step, or pass it in: a capture cannot hold it" in made.advice
    (parted,) = (one for one in words.findings(diagnosed(within)) if one.rule == "diagnose.blockers")
    assert "non_blocking=True" in parted.advice


def test_the_programs_own_work_stays_when_the_step_is_a_graph() -> None:
    found = diagnosed(steps_of(count=12, kernels=70, duration_ns=3000, between_ns=25_000, pause_ns=3_000_000))
    assert found.bound == "host-bound"
    assert found.recorded.pauses_s == pytest.approx(3.025e-3, rel=0.01)
    assert found.graph.step_s > 3e-3
    assert "diagnose.pauses" in rules(found)


def test_what_the_recorder_took_makes_no_step_launch_bound() -> None:
    """Without the recorder the program's own 1.5 ms are more than the launches, with it they are less."""
    found = diagnosed(steps_of(count=12, kernels=70, duration_ns=3000, between_ns=25_000, pause_ns=1_500_000))
    assert found.idle.idle_s > 2 * 10 * found.recorded.pauses_s
    assert found.bound == "host-bound"
    names = rules(found)
    assert names.index("diagnose.pauses") < names.index("diagnose.graph"), "the larger cause comes first"


def test_a_host_that_launches_late_because_it_waited_is_wait_bound() -> None:
    """The GPU runs dry at each of six waits. A graph would have to be parted there, so it saves less."""
    made = Recorder()
    for _ in range(12):
        for kernel in range(6):
            made.runs(15_000)
            made.launch(f"kernel_{kernel}", 150_000)
            made.wait()
            made.runs(10_000)
    found = diagnosed(made)
    assert found.idle.causes["waits"] < found.idle.idle_s / 4
    assert found.bound == "wait-bound"
    verdict, *others = words.findings(found)
    assert verdict.title.endswith("because the host waits 6 times in it")
    names = [finding.rule for finding in others]
    assert names.index("diagnose.best") < names.index("diagnose.pieces")
    assert "(6 a step) parts the step into 6 pieces" in others[names.index("diagnose.pieces")].title
    assert "Without waiting for the GPU inside it" in others[names.index("diagnose.best")].title


@pytest.mark.parametrize(("copy_ns", "bound"), [(900_000, "copy-bound"), (100_000, "GPU-bound")])
def test_a_gpu_that_is_busy_with_copies_alone_is_copy_bound(copy_ns: int, bound: str) -> None:
    made = Recorder()
    for _ in range(12):
        memories: tuple[Memory, Memory] = ("pinned", "device")
        made.submit(
            made.call("cudaMemcpyAsync", 3000), "Memcpy HtoD", copy_ns, kind="copy", memories=memories, size=1 << 20
        )
        for kernel in range(10):
            made.launch(f"kernel_{kernel}", 30_000)
    found = diagnosed(made)
    assert found.idle.copies_s == pytest.approx(found.steps.count * copy_ns * 1e-9 if found.steps else 0, rel=0.01)
    assert found.bound == bound


def test_what_was_queued_when_the_recording_began_or_ended_is_no_loss() -> None:
    made = steps_of(count=12, kernels=20, duration_ns=50_000, between_ns=5000)
    whole = made.trace()
    work, calls = whole.work.copy(), whole.calls
    work["call"][:30] = NONE
    begun = replace(whole, work=work)
    assert not [check for check in checks(begun, None) if "without a call" in check.name]
    work = work.copy()
    work["call"][100:130] = NONE
    assert [check.count for check in checks(replace(whole, work=work), None) if "without a call" in check.name] == [30]
    ended = replace(whole, work=whole.work[:-30])
    assert len(ended.calls) == len(calls)
    assert not [check for check in checks(ended, None) if check.name == "launches without work"]


def test_the_call_of_a_pinned_copy_counts_once() -> None:
    found = diagnosed(with_pinned_copies())
    assert found.step.watched_s == pytest.approx(10 * 38e-6)
    # The length of this step comes only from the host's own time, and from the recorder's cost of each call.
    taken_s = found.recorded.calls * USUAL_S["call"] + found.recorded.operators * USUAL_S["operator"]
    assert found.step.unwatched_s == pytest.approx(10 * 38e-6 - taken_s, rel=1e-6)


def test_a_pinned_copy_without_its_costs_in_the_run_is_not_predicted() -> None:
    fit = costs()
    known = {name: constant for name, constant in fit.constants.items() if not name.startswith("h2d")}
    found = diagnose(with_pinned_copies().trace(), msgspec.structs.replace(fit, constants=known))
    assert found.idle is not None
    assert found.step.unwatched_s == found.step.watched_s
    assert "microbench run link_latency link_copy" in found.why_no_graph


# The recorder's costs


def recorded_s(fit: Fit, **changes: object) -> tuple[Diagnosis, Step, list[float]]:
    """Steps of 50 calls and 50 operators: the diagnosis, the step, and the recorder's least, most and likely time."""
    found = diagnose(steps_of(count=12, kernels=50, between_ns=20_000, marked=True).trace(**changes), fit)
    step, recorded = found.step, found.recorded
    assert (recorded.calls, recorded.operators, recorded.functions) == (50, 50, 0)
    free = unwatched(recorded, step.costs)
    assert step.watched_s - step.unwatched_s == pytest.approx(free.cost_s, rel=0.01)
    return found, step, [free.low_s, free.high_s, free.cost_s]


def test_a_step_of_copies_alone_needs_no_launch_call() -> None:
    workload = Workload((Copies("h2d", 4096, 2, host_s=5e-6),), layer="torch_eager")
    (part,) = beyond_calls(workload, {"h2d_call": 3e-6}).parts
    assert isinstance(part, Copies)
    assert part.host_s == pytest.approx(2e-6)


def finding(diagnosis: Diagnosis, rule: str) -> Finding:
    return next(one for one in words.findings(diagnosis) if one.rule == rule)


MEASURED = {
    "watched.call": Constant(1.0e-6, 0.8e-6, 1.2e-6, ("launch_watched[records=torch] call",)),
    "watched.operator": Constant(2.5e-6, 2.4e-6, 2.6e-6, ("launch_watched[records=torch] operator",)),
    "watched.function": Constant(0.3e-6, 0.1e-6, 0.5e-6, ("launch_watched[records=torch_stack] function",)),
}


def test_the_recorders_costs_are_those_of_the_run() -> None:
    found, step, taken_s = recorded_s(replace(costs(), constants={**costs().constants, **MEASURED}))
    assert taken_s == pytest.approx([50 * 3.2e-6, 50 * 3.8e-6, 50 * 3.5e-6], rel=0.01)
    assert step.costs == {"call": MEASURED["watched.call"], "operator": MEASURED["watched.operator"]}
    note = finding(found, "diagnose.watched")
    assert note.text == "Recording takes 1.00 µs a call and 2.50 µs an operator, which launch_watched measured."
    assert "launch_watched" not in note.advice
    assert "unprofiled step time about" in str(screen(found, "", ""))


def test_a_recording_of_our_own_has_the_costs_of_our_recorder() -> None:
    own = Constant(0.6e-6, 0.5e-6, 0.7e-6, ("launch_watched[records=watch] call",))
    for known, expected in (({"watched.own_call": own}, own.value), ({}, OWN_S)):
        fit = replace(costs(), constants={**costs().constants, **MEASURED, **known})
        _, step, _ = recorded_s(fit, format="microbench recording")
        assert step.costs["call"].value == expected
        assert bool(step.costs["call"].assumed) == (not known)


def test_without_them_usual_costs_are_assumed_and_named_so() -> None:
    found, step, taken_s = recorded_s(costs())
    assert taken_s == pytest.approx([25 * 6.5e-6, 75 * 6.5e-6, 50 * 6.5e-6], rel=0.01)
    assert all(cost.assumed and not cost.rests_on for cost in step.costs.values())
    note = finding(found, "diagnose.watched")
    assert note.text.startswith(
        "Recording takes 4.50 µs a call and 2.00 µs an operator. Assumed: the run has no usable figure"
    )
    assert "microbench run launch_watched" in note.advice
    assert "because the recorder's costs are assumed" in str(screen(found, "", ""))


def test_the_step_without_the_recorder_is_as_uncertain_as_its_costs_and_as_processes_differ() -> None:
    found, step, (low_s, high_s, _) = recorded_s(costs())
    assert found.graph is not None
    host_s = PROCESSES * step.unwatched_s  # a launch-bound step is all host time
    half_s = math.hypot((high_s - low_s) / 2, host_s)
    assert step.unwatched_s - step.low_s == pytest.approx(half_s, rel=0.05)
    assert step.high_s - step.unwatched_s == pytest.approx(half_s, rel=0.05)
    graph = found.graph
    ends = (graph.speedup_low / graph.speedup, graph.speedup_high / graph.speedup)
    assert ends == pytest.approx((step.low_s / step.unwatched_s, step.high_s / step.unwatched_s), rel=0.1)
    range_ = f"{graph.speedup_low:.1f} to {graph.speedup_high:.1f}×"
    assert f"), {range_} as fast" in finding(found, "diagnose.graph").title


def test_a_speedup_from_a_known_step_is_one_number() -> None:
    found = diagnose(steps_of(count=12, kernels=50, between_ns=20_000, marked=True).trace(), costs(), 900e-6)
    assert words.speedup(found) == times(found.graph.speedup)


def test_each_cost_that_the_run_lacks_is_assumed_by_itself() -> None:
    known = {"watched.call": MEASURED["watched.call"]}
    found, step, taken_s = recorded_s(replace(costs(), constants={**costs().constants, **known}))
    assert taken_s[2] == pytest.approx(50 * (1.0e-6 + 2.0e-6), rel=0.01)
    assert [bool(cost.assumed) for cost in step.costs.values()] == [False, True]
    assert "Assumed:" in finding(found, "diagnose.watched").text


def test_another_profiler_is_assumed_to_cost_what_pytorchs_does() -> None:
    _, step, taken_s = recorded_s(
        replace(costs(), constants={**costs().constants, **MEASURED}), format="Nsight Systems"
    )
    assert taken_s == pytest.approx([25 * 3.5e-6, 75 * 3.5e-6, 50 * 3.5e-6], rel=0.01)
    assert {cost.assumed for cost in step.costs.values()} == {"this profiler costs what PyTorch's does"}


def test_a_range_of_xla_costs_what_a_python_function_does() -> None:
    _, step, taken_s = recorded_s(replace(costs(), constants={**costs().constants, **MEASURED}), format="XLA profiler")
    assert taken_s[2] == pytest.approx(50 * (1.0e-6 + 0.3e-6), rel=0.01)
    assert step.costs["operator"].value == MEASURED["watched.function"].value
    assert step.costs["operator"].low <= 0.15e-6
    _, step, _ = recorded_s(costs(), format="XLA profiler")
    assert step.costs["operator"].value == USUAL_S["function"]


@pytest.mark.parametrize(("call", "ns", "rule"), [
    ("cudaMalloc", 200_000, "diagnose.allocation"), ("cudaMemcpyAsync", 200_000, "diagnose.copies"),
    ("cuModuleLoadData", 200_000, "diagnose.module_load"), ("cudaEventSynchronize", 200_000, "diagnose.waits"),
])  # fmt: skip
def test_a_call_that_takes_a_tenth_of_the_time_is_named(call: str, ns: int, rule: str) -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(10, 10_000, 3000)
        made.call(call, ns)
    found = diagnosed(made)
    titles = {finding.rule: finding.title for finding in words.findings(found)}
    assert " % of the time for " in titles[rule]


def test_a_step_that_is_played_too_long_is_predicted_with_a_wider_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it is no more than 5 % too long; beyond, the graph is unknown, not advised against."""
    made = steps_of(count=12, kernels=20, between_ns=20_000, waits=True)
    latencies, right = recorded_latencies(made.trace(), 0), diagnosed(made)

    def too_long(share: float) -> Diagnosis:
        way_s = latencies["way"] + share * right.step.watched_s
        monkeypatch.setattr("microbench.diagnosis.diagnosis.recorded_latencies", lambda *_: {**latencies, "way": way_s})
        return diagnosed(made)

    off = too_long(0.04)
    assert right.step is not None
    assert off.step is not None
    assert right.graph is not None
    assert off.graph is not None
    for exact, wider in ((right.step, off.step), (right.graph, off.graph)):
        own_s = exact.step_s if isinstance(exact, Graph) else exact.unwatched_s
        low_s = own_s - math.hypot(own_s - exact.low_s, 0.04 * own_s)
        assert wider.low_s == pytest.approx(low_s, rel=1e-3)
        assert wider.low_s < 0.998 * exact.low_s
        assert wider.high_s > 1.001 * exact.high_s
    title = finding(too_long(0.07), "diagnose.no_graph").title
    expected = "What a graph would give is not predicted: microbench plays the recorded step 7.0 % too long (limit 5 %)"
    assert title == expected


def test_a_trace_without_gpu_work_is_refused() -> None:
    made = Recorder()
    made.call("cudaMalloc", 1000)
    with pytest.raises(UsageError, match="no work of a GPU"):
        diagnosed(made)


# Health


def test_a_sound_trace_has_nothing_odd() -> None:
    trace = steps_of(marked=True).trace()
    assert checks(trace, find_steps(trace)) == ()


def test_launches_without_their_kernels_forbid_idle_time() -> None:
    made = steps_of(count=12, kernels=10)
    trace = made.trace(work=made.trace().work[::2])
    found = diagnose(trace, costs())
    assert found.idle is None
    assert "launches without work" in found.why_no_idle
    assert "diagnose.health" in rules(found)
    assert found.graph is None


def test_a_recording_without_its_kernels_asks_for_a_new_start_of_the_program() -> None:
    made = steps_of(count=12, kernels=10)
    whole = made.trace()
    for work, advice in ((whole.work[::2], "shorter windows"), (whole.work[-1:], "Start the program again")):
        trace = msgspec.structs.replace(made.trace(work=work), format="microbench recording")
        (found,) = (check for check in checks(trace, None) if check.name == "launches without work")
        assert advice in found.advice


@pytest.mark.parametrize(("changes", "name", "forbids"), [
    ({"lost": {"GPU records": 7}}, "lost: GPU records", "idle time"),
    ({"lost": {"cut tail": 1}}, "lost: cut tail", "idle time"),
    ({"resolution_ns": 1000}, "times in whole microseconds", "prediction"),
    ({"unread": {"operators": 5}}, "left out: operators", None),
])  # fmt: skip
def test_what_the_recorder_says_of_itself_is_heard(changes: dict[str, object], name: str, forbids: str | None) -> None:
    (check,) = checks(steps_of().trace(**changes), None)
    assert check.name == name
    assert (forbids in check.forbids) if forbids else not check.forbids
    assert ("copy it again" in check.meaning) == ("cut" in name)


def overlapped(program: Recorder, how: str) -> Trace:
    """The trace of a program with times that contradict each other."""
    trace = program.trace()
    work, calls = trace.work, trace.calls
    if how == "at one instant":
        length = work["end_ns"] - work["begin_ns"]
        work["begin_ns"] = work["begin_ns"][-1]
        work["end_ns"] = work["begin_ns"] + length
    elif how == "into the next one":
        work["end_ns"][:-1] = work["begin_ns"][1:] + 500
    elif how == "one around the others":
        work["end_ns"][0] = work["end_ns"][-1]
    elif how == "calls":
        calls["end_ns"][:-1] = calls["begin_ns"][1:] + 500
    elif how == "after a wait":
        work["end_ns"][-1] += 3600 * 10**9
    return trace


@pytest.mark.parametrize(
    "how", ["at one instant", "into the next one", "one around the others", "calls", "after a wait"]
)
@pytest.mark.parametrize("duration_ns", [2000, 60_000])
def test_times_that_contradict_each_other_forbid_the_verdict(how: str, duration_ns: int) -> None:
    program = Recorder()
    for _ in range(60):
        program.launches(10, between_ns=5000, duration_ns=duration_ns)
    program.wait("cudaDeviceSynchronize")
    found = diagnose(overlapped(program, how), make_fit())
    assert found.bound is None
    assert any(
        words in found.why_no_idle
        for words in (
            "of one stream that overlap",
            "overlapping calls",
            "after the host waited for them",
            "before their call",
        )
    )
    assert not any(one.severity == "good" for one in words.findings(found))
    assert diagnose(program.trace(), make_fit()).bound == ("GPU-bound" if duration_ns == 60_000 else "launch-bound")


def test_kernels_that_were_launched_to_begin_early_may_overlap() -> None:
    program = Recorder()
    for kernel in range(600):
        program.submit(program.call("cudaLaunchKernelExC", 3000), f"kernel_{kernel}", 60_000)
    trace = program.trace()
    trace.work["end_ns"][:-1] = trace.work["begin_ns"][1:] + 500
    found = diagnose(trace, make_fit())
    assert found.bound == "GPU-bound"
    assert [(check.name, check.count) for check in found.health] == [("kernels that begin early", 599)]
    trace.work["end_ns"][0] = trace.work["end_ns"][-1]  # it would end before those that began early
    assert diagnose(trace, make_fit()).bound is None


def test_streams_of_two_processes_may_have_one_number() -> None:
    program = steps_of(12, 10, duration_ns=60_000)
    trace = program.trace(threads=(Thread(1, 1), Thread(2, 2)))
    other = trace.work.copy()
    other["call"] = len(trace.calls) + np.arange(len(other))
    calls = np.concatenate([trace.calls, trace.calls])
    calls["thread"][len(trace.calls) :] = 1
    both = msgspec.structs.replace(trace, work=np.concatenate([trace.work, other]), calls=calls)
    assert not any("overlapping" in check.name for check in checks(both, None))


def test_of_processes_that_have_a_gpu_each_one_is_diagnosed() -> None:
    alone = steps_of(12, 10, duration_ns=60_000).trace(threads=(Thread(1, 1), Thread(2, 2)))
    calls, work = alone.calls.copy(), alone.work.copy()
    for table in (calls, work):  # the other process is a little slower
        for field in ("begin_ns", "end_ns"):
            table[field] = (table[field] * 1.037).astype(np.int64)
    calls["thread"], work["device"], work["call"] = 1, 1, work["call"] + len(alone.calls)
    both = np.concatenate([alone.calls, calls])
    order = np.argsort(both["begin_ns"], kind="stable")
    all_work = np.concatenate([alone.work, work[:-10]])
    all_work["call"] = np.argsort(order)[all_work["call"]]
    all_work = all_work[np.argsort(all_work["begin_ns"], kind="stable")]
    found = diagnose(msgspec.structs.replace(alone, calls=both[order], work=all_work), costs())
    expected = diagnose(alone, costs())
    assert (found.steps.count, found.steps.step_s) == (expected.steps.count, expected.steps.step_s)
    assert found.idle.causes == expected.idle.causes
    assert [check.count for check in found.health if "on other GPUs" in check.name] == [len(work) - 10]
    assert "GPU 0, of several" in screen(found, "", "").blocks[0].about


def test_ranges_of_nccl_are_no_steps() -> None:
    made = Recorder()
    for _ in range(12):
        for half, kernels in (("one", 4), ("other", 9)):
            with made.range("ncclGroupEnd", "annotation"):
                for kernel in range(kernels):
                    made.runs(20_000)
                    made.launch(f"{half}_{kernel}", 30_000)
    steps = find_steps(made.trace())
    assert (steps.found, steps.likeness) == ("repetition", 1.0)


def test_overlapping_and_early_work_is_counted() -> None:
    trace = steps_of(count=4, kernels=5).trace()
    trace.work["end_ns"][3] = trace.work["begin_ns"][4] + 10
    trace.work["begin_ns"][7] = trace.calls["begin_ns"][7] - 5
    names = {check.name: check.count for check in checks(trace, None)}
    assert names == {"kernels and copies of one stream that overlap": 1, "kernels and copies before their call": 1}


def test_costs_of_another_gpu_are_said() -> None:
    made = steps_of(count=12, kernels=50, duration_ns=4000)
    assert "diagnose.machine" not in rules(diagnose(made.trace(), costs(), costs_of="NVIDIA H200"))
    assert "diagnose.machine" in rules(diagnose(made.trace(), costs(), costs_of="NVIDIA B200"))
    several = made.trace(gpus={0: "NVIDIA H200", 1: "Intel(R) UHD Graphics", 2: "NVIDIA B200"})
    found = diagnose(several, costs(), costs_of="NVIDIA B200")
    assert finding(found, "diagnose.machine").title == "The trace is of NVIDIA H200, the costs are of NVIDIA B200"


def test_a_few_pieces_of_work_have_no_verdict() -> None:
    made = Recorder()
    made.launch("kernel", 1760)
    found = diagnosed(made)
    assert (found.bound, found.idle) == (None, None)
    assert found.why_no_idle == "the trace has only 1 piece of work of the GPU"
    assert [finding.rule for finding in words.findings(found)] == ["diagnose.health"]
    lines = {line.name: [part.text for part in line.parts] for line in screen(found, "", "").blocks[0].lines}
    assert lines["GPU works"] == ["kernel 1.76 µs"]
    assert lines["host calls"] == ["cudaLaunchKernel 3.00 µs"]


def test_a_trace_that_is_too_short_tells_how_fast_its_copies_were() -> None:
    made = Recorder()
    for _ in range(2):
        call = made.call("cudaMemcpyAsync", 3000)
        made.submit(call, "Memcpy HtoD (Pageable -> Device)", 1_000_000, kind="copy", size=4 << 20)
    assert dict(words.each_longest(made.trace()))["GPU works"] == [
        "Memcpy HtoD (Pageable -> Device) 2.00 ms at 4.19 GB/s, 2 times"
    ]


def test_steps_that_differ_are_not_predicted() -> None:
    made = Recorder()
    for step in range(6):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            made.runs(20_000)
            for kernel in range(20):
                made.runs(20_000)
                made.launch(f"kernel_{kernel}" if kernel < 4 else f"kernel_{kernel}_of_{step}", 2000)
    found = diagnosed(made)
    assert found.step.likeness == pytest.approx(0.2, abs=0.01)
    assert found.graph is None
    assert "steps differ: only 20" in found.why_no_graph
    assert found.bound == "launch-bound"


def test_of_steps_of_two_speeds_the_typical_one_is_their_mean_though_one_has_another_call() -> None:
    """A busy host has two speeds, so no single step lasts as long as the mean of all."""
    made = Recorder()
    for step in range(60):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            for kernel in range(20):
                made.runs(20_000 if step % 7 in (0, 2, 3) else 60_000)
                made.launch(f"kernel_{kernel}", 2000)
            if step == 30:
                made.launch("another", 2000)
    found = diagnosed(made)
    assert found.step.likeness < 1
    assert found.why_no_graph == ""
    assert found.graph is not None


@pytest.mark.parametrize(("idle_ns", "bound", "severity"), [
    (5_000, "GPU-bound", "good"), (25_000, "GPU-bound", "warning"), (60_000, "launch-bound", "warning"),
])  # fmt: skip
def test_a_trace_without_steps_is_gpu_bound_from_three_quarters_on(idle_ns: int, bound: str, severity: str) -> None:
    made = Recorder()
    for kernel in range(40):
        made.runs(100_000 + idle_ns + 13 * kernel**2 % 7000)
        made.launch(f"kernel_{kernel}", 100_000)
    found = diagnosed(made)
    assert (found.step, found.bound, words.findings(found)[0].severity) == (None, bound, severity)


@pytest.mark.parametrize(("gpu", "rate"), [
    ("Tesla V100-SXM2-16GB", 13.6e9), ("NVIDIA GeForce RTX 3090", 27.2e9), ("NVIDIA H100 80GB HBM3", None),
    ("NVIDIA H200", None),
])  # fmt: skip
def test_pinned_copies_are_no_faster_than_the_link_of_the_traces_gpu(gpu: str, rate: float | None) -> None:
    own_rate, size = costs().constants["h2d_rate"].value, 50_000_000
    made = Recorder()
    for _ in range(8):
        for _ in range(2):
            call = made.call("cudaMemcpyAsync", 9_000_000)
            made.work_at(call, made.now_ns - 8_900_000, 8_900_000, size, ("pageable", "device"))
        made.launch("kernel", 100_000)
        made.wait()
    found = diagnose(made.trace(gpus={0: gpu}), costs(), costs_of="NVIDIA H200")
    (pinned,) = (one for one in found.remedies if one.name == "pinned")
    assert pinned.step_s == pytest.approx(2 * size / (rate or own_rate), rel=0.07)


def test_no_owner_has_most_of_the_pauses_of_steps_that_differ_if_several_have_as_much() -> None:
    made = Recorder()
    for step in range(6):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            made.launch(f"first_{step}", 2000)
            for owner in ("Torch-Compiled Region: 0/0", "loads", "checks", "saves"):
                with made.range(owner, "annotation"):
                    made.runs(9_000_000)
                for kernel in range(10):
                    made.runs(20_000)
                    made.launch(f"kernel_{kernel}_{step}", 2000)
    told = finding(diagnosed(made), "diagnose.pauses")
    assert told.title == "The program's own work between launches takes 36.1 ms of each step"
    assert "TORCH_LOGS" not in told.advice


def test_only_pauses_of_the_host_are_counted_and_named_as_such() -> None:
    made = Recorder()
    for kernel in range(60):
        made.runs(5000 + 400 * kernel)
        if kernel % 2:
            made.call("cudaFree", 1_100_000)
        if kernel in (20, 40):
            made.runs(6_000_000 + 5000 * kernel)
        made.launch(f"kernel_{kernel}", 2_000)
    found = diagnosed(made)
    told = finding(replace(found, bound="mixed"), "diagnose.one_pause")
    assert told.title.startswith("2 pauses of more than 1 ms take 12.3 ms")
    assert len(re.findall(r" 6\.\d\d ms behind", told.title)) == 2


def test_a_function_that_calls_itself_before_the_first_work_has_its_time_once() -> None:
    made = Recorder()
    with made.range("call_impl", "python"), made.range("call_impl", "python"), made.range("call_impl", "python"):
        made.runs(400_000)
    for kernel in range(30):
        made.runs(20_000 + 500 * kernel)
        made.launch(f"kernel_{kernel}", 2000)
    told = finding(diagnosed(made), "diagnose.before")
    assert told.title.endswith("of which call_impl takes 400 µs")


def test_a_call_of_another_thread_does_not_take_what_is_behind_all_work() -> None:
    made = Recorder()
    with made.range("model_inference", "annotation"):
        for kernel in range(20):
            made.runs(5000 + 400 * kernel)
            made.launch(f"kernel_{kernel}", 2000)
        with made.range("aten::expand"):
            made.runs(10_000_000)
    made.wait("cudaDeviceSynchronize")
    made.thread = 1
    made.call("cudaPointerGetAttributes", 500)
    assert "PyTorch's operators 10.0 ms" in line_of(diagnosed(made), "whose")


@pytest.mark.parametrize("named", [True, False])
def test_a_marked_part_behind_the_programs_start_is_offered(named: bool) -> None:
    made = Recorder()
    for kernel in range(20):
        made.runs(3000 + 700 * kernel)
        made.launch(f"first_{kernel}", 3000)
    made.call("cudaMalloc", 30_000_000)
    with made.range("measurement", "annotation") if named else nullcontext():
        for kernel in range(30):
            made.runs(2000 + 900 * kernel)
            made.launch(f"late_{kernel}", 3000)
    found = diagnosed(made)
    assert found.bound == "start-up"
    assert ("--step 'measurement'" in finding(found, "diagnose.start_up").advice) is named


def test_a_long_memset_is_among_the_largest_kernels() -> None:
    made = Recorder()
    made.submit(made.call("cudaMemset", 4000), "Memset (Device)", 6_000_000, kind="memset")
    for kernel in range(30):
        made.launch(f"kernel_{kernel}", 50_000)
    assert "Memset 6.00 ms" in finding(diagnosed(made), "diagnose.kernels").title


def test_annotated_steps_behind_a_long_warm_up_are_steps() -> None:
    made = Recorder()
    with made.range("WARM_UP", "annotation"):
        for kernel in range(30):
            made.runs(900_000)
            made.launch(f"first_{kernel}", 3000)
    for _ in range(8):
        with made.range("FULL_RUN", "annotation"):
            made.launches(20)
    steps = find_steps(made.trace())
    assert (steps.found, steps.name, steps.count) == ("annotations", "FULL_RUN", 6)


@pytest.mark.parametrize(("name", "said"), [("Optimizer.step#Adam.step", "annotations"), ("region", "repetition")])
def test_parameters_of_one_step_of_an_optimizer_are_no_steps(name: str, said: str) -> None:
    made = Recorder()
    with made.range(name, "annotation"):
        for _ in range(20):
            made.launches(8)
    steps = find_steps(made.trace())
    assert (steps.found, steps.count) == (said, 1 if said == "annotations" else 18)


@pytest.mark.parametrize(("name", "loads_ns", "found"), [
    ("model_inference", 0, "region"), ("", 0, None), ("whole_program", 4_000_000, None),
])  # fmt: skip
def test_a_single_region_that_holds_the_work_is_the_step_with_what_is_around_the_work(
    name: str, loads_ns: int, found: str
) -> None:
    made = Recorder()
    with made.range(name, "annotation") if name else nullcontext():
        made.runs(3_000_000)
        if loads_ns:
            made.call("cudaMalloc", loads_ns)
        for kernel in range(20):
            made.runs(5000 + 400 * kernel)
            made.launch(f"kernel_{kernel}", 2000)
        with made.range("aten::expand"):
            made.runs(10_000_000)
    made.wait("cudaDeviceSynchronize")
    one = diagnosed(made)
    assert (one.steps and one.steps.found) == found
    if found:
        assert words.findings(one)[0].title.startswith("Host-bound: the GPU works 0.30 % of model_inference of 13.2 ms")
        assert (one.bound, one.step.kernels) == ("host-bound", 20)
        assert one.idle.span_s == pytest.approx(13.2e-3, rel=0.01)
        whose = line_of(one, "whose")
        assert "PyTorch's operators 10.0 ms" in whose
        assert "most of it in PyTorch's operators: aten::expand" in finding(one, "diagnose.pauses").title


def test_pauses_of_steps_that_differ_are_those_of_all() -> None:
    made = Recorder()
    for step, pause_ns in enumerate((0, 90_000_000, 0)):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            made.launch(f"first_{step}", 2000)
            with made.range("Torch-Compiled Region: 0/0", "annotation"):
                made.runs(pause_ns)
            for kernel in range(60):
                made.runs(20_000)
                made.launch(f"kernel_{kernel}_{step}", 2000)
    found = diagnosed(made)
    assert found.bound == "host-bound"
    assert found.recorded.pauses_s == pytest.approx(90e-3 / found.steps.count, rel=0.02)
    advice = finding(found, "diagnose.pauses")
    assert "of each step, most of it in torch.compile" in advice.title
    assert "TORCH_LOGS=recompiles" in advice.advice


@pytest.mark.parametrize(("package", "whose"), [("torch", "a graph"), ("jax", "XLA's command buffer")])
def test_a_recording_says_what_was_captured_without_the_calls_of_a_capture(package: str, whose: str) -> None:
    made = Recorder()
    made.launches(30)
    made.call("cudaLaunchKernel", 3000)  # its record is lost
    made.wait()
    for thread in (0, 1):  # as of forward and backward
        made.thread = thread
        for _ in range(20):
            made.call("cudaLaunchKernel", 3000)
    made.call("cudaGraphInstantiateWithFlags", 100_000)
    for _ in range(90):
        call = made.call("cudaGraphLaunch", 5000)
        for node in range(40):
            made.submit(call, f"kernel_{node % 3}", 3000, node=node)
        made.wait()
    made.launch("kernel", 3000)
    trace = made.trace(format="microbench recording", versions={package: "1"}, loops=())
    found = diagnose(trace, costs())
    told = {check.name: check.count for check in found.health}
    assert (told[f"launches captured into {whose}"], told["launches without work"]) == (40, 1)
    assert found.idle is not None
    said = finding(found, "diagnose.no_graph").title
    assert ("XLA's command buffers are graphs, and each step replays 1 graph" in said) == (package == "jax")


def test_launches_into_a_capture_have_no_work() -> None:
    """PyTorch warms up in a stream of its own, which the other waits for, captures, and replays."""
    made = Recorder()
    for stream in (7, 20):
        made.wait_event(made.record_event(27 - stream), stream)
        for kernel in range(3):
            made.launch(f"kernel_{kernel}", 3000, stream=stream)
    made.call("cudaStreamBeginCapture", 3000)
    for _ in range(30):
        made.call("cudaLaunchKernel", 3000)
    made.call("cudaStreamEndCapture", 9000)
    for _ in range(12):
        call = made.call("cudaGraphLaunch", 5000)
        for node in range(30):
            made.submit(call, f"kernel_{node % 3}", 3000, node=node)
        made.wait()
    trace = made.trace()
    assert "launches without work" not in {check.name for check in checks(trace, find_steps(trace))}
    assert diagnosed(made).idle is not None
    made.call("cudaLaunchKernel", 3000)
    made.launch("kernel", 3000)
    assert [one.count for one in checks(made.trace(), None) if one.name == "launches without work"] == [1]


@pytest.mark.parametrize(("slower_ns", "said"), [(10_000, " in the mean, "), (500, "")])
def test_steps_of_unequal_length_are_said_with_both_ends(slower_ns: int, said: str) -> None:
    made = Recorder()
    for step in range(6):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            made.launches(20, between_ns=10_000 + slower_ns * step)
    line = line_of(diagnosed(made), "steps")
    assert said in line
    assert ("in the mean" in line) == bool(said)


@pytest.mark.parametrize(("kernel", "between_ns", "told"), [
    ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)", 2000, True),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)", 900_000, False),
    ("triton_poi_fused_add_3", 2000, False),
    ("void at::native::reduce_kernel<512, 1>(int)", 2000, False),
])  # fmt: skip
def test_elementwise_kernels_that_take_long_are_to_be_fused(kernel: str, between_ns: int, told: bool) -> None:
    made = Recorder()
    for _ in range(8):
        made.runs(between_ns)
        made.launch("matrix", 200_000)
        for _ in range(2):
            made.launch(kernel, 60_000)
    found = [one for one in words.findings(diagnosed(made)) if one.rule == "diagnose.unfused"]
    assert len(found) == told
    assert all(one.title.startswith("2 elementwise kernels take 120 µs, 37") for one in found)


def test_pauses_of_a_trace_without_steps_are_said_with_their_places() -> None:
    made = Recorder()
    for kernel in range(60):
        made.runs(5000 + 400 * kernel)
        if kernel in (20, 40):
            with made.range("aten::cat"):
                made.launch(f"joins_{kernel}", 3000)
            made.runs(3_000_000 + 5000 * kernel)
        made.launch(f"kernel_{kernel}", 2_000)
    found = diagnosed(made)
    (told,) = (one for one in words.findings(found) if one.rule == "diagnose.one_pause")
    assert told.title.startswith("2 pauses of more than 1 ms take 6.30 ms, 84.1 % of the time, the longest 3.2")
    assert re.search(
        r" 3.\d+ ms behind aten::cat, \S+ ms after the first work; 3.\d+ ms behind aten::cat, ", told.title
    )


def test_a_single_pause_says_nothing_of_how_work_is_submitted() -> None:
    made = Recorder()
    for kernel in range(40):
        made.runs(5000 + 1000 * kernel + 700_000_000 * (kernel == 10))
        made.launch(f"kernel_{kernel}", 3000)
    found = diagnosed(made)
    assert (found.step, found.bound) == (None, "host-bound")
    (told,) = (one for one in words.findings(found) if one.severity == "advice")
    assert told.rule == "diagnose.one_pause"
    assert (
        told.title
        == "A single pause of 700 ms between two cudaLaunchKernel is most of the idle time, and no step repeats"
    )
    assert told.advice.startswith("Record for longer")
    copied = Recorder()  # a program without Python, whose largest cause is the host's own time
    copied.launch("kernel", 3000)
    for _ in range(30):
        copied.runs(4_000_000)
        at = copied.call("cudaMemcpyAsync", 2_000_000)
        copied.work_at(at, copied.now_ns - 1000, 900, 4096, ("pageable", "device"))
        copied.launch(f"kernel_{copied.now_ns}", 3000)
    native = diagnose(copied.trace(format="Nsight Systems"), costs())
    assert (native.step, native.bound) == (None, "host-bound")
    first, *rest = (one for one in words.findings(native) if one.severity == "advice")
    assert (first.rule, "diagnose.copies" in {one.rule for one in rest}) == ("diagnose.one_pause", True)
    assert first.advice.startswith("If the host computes there, do it on the GPU")


@pytest.mark.parametrize("place", ["jax/_src/compiler.py", "torch/_inductor/compile_fx.py"])
def test_what_a_compiler_does_again_and_again_is_the_programs_start(place: str) -> None:
    def program(function: str) -> Diagnosis:
        made = Recorder()
        for _ in range(12):
            with made.range(f"{place} {function}" if function else "step", "python"):
                made.runs(30_000_000)
            made.launches(10, 9000, 2000)
        return diagnosed(made)

    found = program("compile")
    assert (found.step, found.bound) == (None, "start-up")
    assert program("").step is not None


def test_what_happens_once_is_the_programs_start() -> None:
    def program(*, first: bool) -> Recorder:
        made = Recorder()
        for kernel in range(40):
            if (kernel < 8) == first:
                made.call("cudaMalloc", 4_000_000)
            made.runs(5000 + 1000 * kernel)
            made.launch(f"kernel_{kernel}", 3000)
        return made

    found = diagnosed(program(first=True))
    assert found.bound == "start-up"
    assert "diagnose.start_up" in rules(found)
    assert "diagnose.allocation" not in rules(found)
    assert diagnosed(program(first=False)).bound == "allocation-bound"


def test_idle_time_that_the_recorder_does_not_explain_makes_no_gpu_busy() -> None:
    """A GPU that works 87 % waits for something unknown; the played step lacks that time, but no record took it."""
    made = Recorder()
    for _ in range(12):
        call = made.call("cudaLaunchKernel", 3000)
        made.submit(call, "kernel", 870_000)
        made.ends_ns[7] += 130_000
        made.wait()
    found = diagnosed(made)
    assert found.idle.busy_s / found.idle.span_s == pytest.approx(0.87, abs=0.01)
    assert found.bound != "GPU-bound"


def test_a_gpu_that_only_copies_is_told_what_to_do() -> None:
    made = Recorder()
    for step in range(12):
        with made.range(f"step#{step}", "annotation"):
            call = made.call("cudaMemcpyAsync", 3000)
            made.submit(call, "Memcpy", 900_000, kind="copy", memories=("pinned", "device"), size=1 << 24)
            made.launch("kernel", 50_000)
    found = diagnosed(made)
    assert (found.bound, words.findings(found)[0].severity) == ("copy-bound", "problem")
    advice = finding(found, "diagnose.copies_alone")
    assert advice.title.startswith("The GPU does nothing but copy for 900 µs (94")
    assert "pinned" not in advice.advice


@pytest.mark.parametrize(("size", "advice"), [(4, "Read values back less often"), (1 << 20, "Pin the memory")])
def test_a_value_that_the_host_reads_is_not_to_be_copied_ahead(size: int, advice: str) -> None:
    made = Recorder()
    for _ in range(12):
        made.launch("kernel", 3000)
        call, begin_ns = made.call("cudaMemcpy", 30_000), made.now_ns - 12_000
        made.work_at(call, begin_ns, 2000, size, ("device", "pageable"))
    assert finding(diagnosed(made), "diagnose.copies").advice.startswith(advice)


def test_launches_without_any_record_of_the_gpu_say_so() -> None:
    made = steps_of(count=2, kernels=3)
    made.work.clear()
    with pytest.raises(UsageError, match="6 launches, but the profiler got no record of what the GPU did"):
        diagnosed(made)


def test_records_that_only_name_host_code_and_the_drivers_own_copies_forbid_nothing() -> None:
    made = steps_of()
    trace = made.trace(lost={"NVTX events": 1})
    assert [check.forbids for check in checks(trace, None) if check.name == "lost: NVTX events"] == [()]
    for place in range(40):
        made.work.append(
            (1000 * place, 1000 * place + 400, 7, 4096, 0, NONE, NONE, made.name(MIGRATION), 0, 0, 1, 0, 0)
        )
    assert "pieces of work without a call" not in {check.name for check in checks(made.trace(), None)}


def test_pages_that_the_driver_moves_are_named() -> None:
    made = Recorder()
    for step in range(12):
        made.launch("kernel", 3000)
        name = made.name(f"{MIGRATION}Memcpy HtoD")
        for page in range(10):
            begin_ns = made.now_ns + 8000 + 3000 * page
            made.work.append((begin_ns, begin_ns + 2000, 7, 65536, 0, NONE, NONE, name, 0, 0, 1, 0, 0))
        made.runs(50_000 + step)
    advice = finding(diagnosed(made), "diagnose.migrations")
    beginning = "The driver moves pages of 655 kB of managed memory 10 times a step, when they are touched: "
    assert advice.title.startswith(beginning)
    begin_ns, end_ns, *more = made.work[-1]  # as many again behind the last whole step
    made.work.extend((begin_ns + 3000 * page, end_ns + 3000 * page, *more) for page in range(1, 100))
    assert finding(diagnosed(made), "diagnose.migrations").title.startswith(beginning)
    assert "diagnose.migrations" not in rules(diagnosed(steps_of()))
    assert "diagnose.migrations" not in rules(moving_pages("HtoD", 100_000, "prefetched "))


def test_a_gpu_that_is_busy_but_for_what_happens_once_is_the_limit() -> None:
    made = Recorder()
    for kernel in range(12):
        made.launch(f"kernel_{kernel}", 600_000)
        if kernel == 2:
            made.wait()
            made.call("cudaMalloc", 1_000_000)
    assert diagnosed(made).bound == "GPU-bound"
    made.work = [(begin, begin + (end - begin) // 2, *more) for begin, end, *more in made.work]
    assert diagnosed(made).bound != "GPU-bound"


def test_work_of_unknown_streams_may_overlap() -> None:
    trace = steps_of(duration_ns=50_000, between_ns=1000).trace()
    for stream, wrong in ((7, True), (NONE, False)):
        work = trace.work.copy()
        work["stream"], work["begin_ns"] = stream, work["begin_ns"] - 20_000
        found = {check.name for check in checks(replace(trace, work=work), None)}
        assert ("kernels and copies of one stream that overlap" in found) == wrong


def test_a_pageable_copy_that_begins_long_after_its_call_has_waited_for_nothing() -> None:
    def copying(behind_ns: int) -> Diagnosis:
        made = Recorder()
        for _ in range(12):
            made.runs(300_000)
            made.launch("kernel_0", behind_ns)
            call = made.call("cudaMemcpyAsync", 20_000)
            made.submit(call, "Memcpy", 10_000, kind="copy", memories=("pageable", "device"), size=131_072)
            for kernel in range(1, 10):
                made.runs(20_000)
                made.launch(f"kernel_{kernel}", 40_000)
            made.wait()
        return diagnosed(made)

    for behind_ns, waits in ((100_000, 1), (2000, 2)):  # the host waits at the end of the step, too
        found = copying(behind_ns)
        assert sum(isinstance(part, Wait) for part in found.recorded.workload.parts) == waits


def test_where_the_gpu_makes_the_step_long_only_faster_copies_help_and_no_more_than_they_take() -> None:
    step = replace(diagnosed(steps_of()).step, watched_s=0.95, unwatched_s=0.7, low_s=0.6, high_s=0.8)
    foreseen = Foreseen(step, "", None, tuple(Remedy(name, name, 0.5, 1.4) for name in ("pinned", "fuse", "graph")))
    foreseen = foreseen._replace(without={"fuse": Without(0.5, 1.4, 1.0, 1.5)})
    limited = _on_gpu(foreseen, 0.9, 0.1)
    assert (limited.step.unwatched_s, limited.step.low_s, limited.step.high_s) == (0.9, 0.9, 0.95)
    (pinned,) = limited.remedies
    assert (pinned.name, pinned.step_s, pinned.speedup) == ("pinned", pytest.approx(0.8), pytest.approx(9 / 8))
    assert limited.why_no_graph == "a graph would save less than 3 % of the step"
    assert _on_gpu(foreseen, 0.9, 0.02).remedies == ()
    others = replace(foreseen.without["fuse"], step_s=0.65, speedup=14 / 13, speedup_high=14 / 13)
    short = _on_gpu(foreseen, 0.65, 0.1)
    assert [(one.name, one.step_s) for one in short.remedies] == [("pinned", 0.55), ("fuse", 0.65), ("graph", 0.5)]
    assert short.without == {"fuse": others}  # no owner of host time makes the step shorter than the GPU's work


def test_prefetched_pages_that_take_longer_than_kernels_are_copies_and_no_launches() -> None:
    made = Recorder()
    for kernel in range(4):
        made.launch(f"kernel_{kernel}", 1_250_000)
    made.wait("cudaDeviceSynchronize")
    name = made.name(f"{MIGRATION}prefetched Memcpy DtoH")
    call = made.call("cudaMemPrefetchAsync", 64 * 200_000)
    for page in range(64):
        begin_ns = made.calls[call][0] + 200_000 * page + 30_000
        made.work.append((begin_ns, begin_ns + 165_000, 7, 2 << 20, 0, NONE, NONE, name, 0, 0, 1, 0, 0))
    found = diagnosed(made)
    assert (found.bound, found.share("other calls")) == ("copy-bound", 0)
    assert finding(found, "diagnose.copies_alone").title == "The GPU does nothing but copy for 10.6 ms (59.3 %)"
    assert finding(found, "diagnose.copies").advice.startswith("Prefetch only what is read next")


def moving_pages(way: str, apart_ns: int, cause: str = "") -> Diagnosis:
    """A kernel, then 200 pages of managed memory that take 5 us each."""
    made = Recorder()
    made.launch("add", 1_000_000)
    made.wait("cudaDeviceSynchronize")
    name = made.name(f"{MIGRATION}{cause}Memcpy {way}")
    for page in range(200):
        begin_ns = made.now_ns + apart_ns * (page + 1)
        made.work.append((begin_ns, begin_ns + 5000, 7, 65536, 0, NONE, NONE, name, 0, 0, 1, 0, 0))
    return diagnosed(made)


@pytest.mark.parametrize("way", ["DtoH", "HtoD"])
def test_the_host_that_touches_managed_memory_has_the_time_before_its_pages(way: str) -> None:
    found = moving_pages(way, 100_000)
    touched = {one.name: one for one in owners(found.idle)}[MANAGED if way == "DtoH" else NAMELESS]
    assert touched.seconds == pytest.approx(200 * 95e-6, rel=0.01)
    assert "diagnose.migrations" in rules(found)
    if way == "DtoH":
        assert found.bound == "host-bound"
        assert "cudaMemPrefetchAsync" in touched.helps
    assert pages_s(found) == pytest.approx(200 * 100e-6, rel=0.01)


def test_a_loop_of_the_host_over_managed_memory_is_not_the_drivers() -> None:
    """The program reads each page for 700 us before it touches the next one."""
    found = moving_pages("DtoH", 800_000)
    owned = {one.name: one.seconds for one in owners(found.idle)}
    assert owned[ON_MANAGED] == pytest.approx(200 * 695e-6, rel=0.01)
    assert owned[MANAGED] == pytest.approx(200 * 100e-6, rel=0.01)
    assert pages_s(found) == pytest.approx(200 * 105e-6, rel=0.01)
    assert found.bound == "host-bound"
    assert "do it on the GPU" in words.owner_words(found, owners(found.idle)[0])[1]
    assert "The host works on managed memory for 139 ms, 86" in finding(found, "diagnose.on_managed").title


@pytest.mark.parametrize(("name", "advice"), [("add", "Launch more blocks"), ("at::native::sum", "larger batch")])
def test_a_gpu_that_is_busy_with_one_block_is_no_good_news(name: str, advice: str) -> None:
    made = Recorder()
    for _ in range(12):
        made.launch(name, 400_000, blocks=1)
        made.launch("others", 100_000)
        made.wait("cudaDeviceSynchronize")
    found = diagnosed(made)
    told = finding(found, "diagnose.unfilled")
    assert (found.bound, words.findings(found)[0].severity) == ("GPU-bound", "warning")
    assert told.title.startswith(f"{name} runs as 1 block of ")
    assert advice in told.advice
    assert unfilled_s(found) / found.idle.span_s == pytest.approx(0.8, abs=0.03)


def test_a_kernel_that_began_before_the_steps_is_not_one_of_them() -> None:
    made = Recorder()
    made.launch("keeps_on", 60_000_000, stream=9, blocks=1)
    for step in range(12):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            for kernel in range(10):
                made.launch(f"kernel_{kernel}", 40_000)
            made.runs(5_000_000)
    found = diagnosed(made)
    assert unfilled_s(found) > 0
    assert "diagnose.unfilled" not in rules(found)


def test_blocks_smaller_than_a_warp_leave_lanes_idle() -> None:
    made = Recorder()
    for _ in range(12):
        made.launch("Fan2", 700_000, blocks=1 << 20)
        made.wait("cudaDeviceSynchronize")
    trace = made.trace()
    for threads, told in ((4, True), (256, False)):
        trace.work["threads"] = threads
        found = {one.rule: one for one in words.findings(diagnose(trace, costs()))}
        assert ("diagnose.unfilled" in found) == told
        if told:
            assert "1048576 blocks of 4 threads" in found["diagnose.unfilled"].title
            assert "whole warps" in found["diagnose.unfilled"].advice


@pytest.mark.parametrize(("resolution_ns", "forbids"), [(1, ("idle time", "prediction")), (1000, ())])
def test_work_of_no_length_is_short_in_whole_microseconds(resolution_ns: int, forbids: tuple[str, ...]) -> None:
    trace = steps_of(duration_ns=0).trace(resolution_ns=resolution_ns)
    assert [one.forbids for one in checks(trace, None) if one.name == "pieces of work without a length"] == [forbids]


def test_a_cut_file_is_called_cut() -> None:
    found = diagnose(steps_of().trace(lost={"cut tail": 1}), costs())
    (cut,) = (one for one in words.findings(found) if one.rule == "diagnose.health")
    assert cut.title == "The file is cut off inside an event"
    assert cut.advice == "Copy the file again, or let the program end its profiler"
    assert found.why_no_idle == found.why_no_graph == "the file is cut off inside an event"


def test_the_costs_of_another_machine_widen_the_interval_of_the_graph() -> None:
    trace = steps_of(count=12, kernels=50, duration_ns=2000).trace()
    own, *others = (
        diagnose(trace, costs(), None, gpu, elsewhere=elsewhere)
        for gpu, elsewhere in (("NVIDIA H200", False), ("NVIDIA H200", True), ("NVIDIA B200", False))
    )
    for other in others:
        assert other.graph.step_s == own.graph.step_s
        beyond_s = own.graph.low_s - other.graph.low_s, other.graph.high_s - own.graph.high_s
        assert beyond_s == pytest.approx([ELSEWHERE * own.graph.step_s] * 2)
        assert other.graph.speedup_low < own.graph.speedup_low
        assert other.step == own.step


def phases(seed: int) -> Recorder:
    """Up to three loops, each of other kernels, of which some come out of turn."""
    random, made = np.random.default_rng(seed), Recorder()
    for phase in range(int(random.integers(1, 4))):
        kinds = int(random.integers(1, 30))
        for _ in range(int(random.integers(1, 12))):
            for kind in range(kinds):
                made.runs(int(random.integers(50_000)))
                name = int(random.integers(kinds)) if random.random() < 0.2 else kind
                made.launch(f"kernel_{phase}_{name}", int(random.integers(9000)))
            if random.random() < 0.5:
                made.wait()
    return made


@pytest.mark.parametrize("seed", [*range(40, 55), 114, 184])
def test_no_trace_makes_numpy_warn(seed: int) -> None:
    found = diagnosed(phases(seed))  # warnings are errors in tests
    assert answer(found)
    assert screen(found, "", "", everything=True).blocks


# Communication


@pytest.mark.parametrize(("name", "kind"), [
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-reduce"),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send and receive"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce-scatter"),
    ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)", "all-gather"),
    ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "all-reduce"),
    ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true>(AllReduceParams)", "all-reduce"),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, long*)", "all-to-all"),
    ("void nvshmemi_transfer_rma_kernel()", "communication"),
    ("void mscclpp::allgather(char*)", "all-gather"),
    ("triton_poi_fused_all_reduce_relu_0", ""),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", ""),
    ("void softmax_warp_forward<WarpAllReduce>", ""),
    ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n", ""),
])  # fmt: skip
def test_communication_is_told_by_the_names_of_kernels(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def training(
    *, comes_ns: int = 0, collective_ns: int = 400_000, beside_ns: int = 0, stream: int = 20, computes_ns: int = 100_000
) -> Recorder:
    """Steps of ten kernels and one collective, beside which the last of them runs for ``beside_ns``."""
    made = Recorder()
    for _ in range(12):
        made.runs(comes_ns)
        for kernel in range(10):
            made.launch(f"kernel_{kernel}", computes_ns)
        made.runs(max(made.ends_ns[7] - made.now_ns, 0))
        made.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", collective_ns, stream=stream)
        if beside_ns:
            made.launch("beside", beside_ns)
        made.wait(ns=2000)
    return made


def test_communication_that_nothing_hides_is_no_work() -> None:
    found = diagnosed(training())
    assert found.bound == "communication-bound"
    assert (
        found.idle.exposed_s
        == pytest.approx(found.idle.communication_s)
        == pytest.approx(400e-6 * found.steps.count, rel=0.01)
    )
    (all_reduce,) = found.idle.collectives
    assert (all_reduce.name, all_reduce.pieces, all_reduce.in_turn) == ("all-reduce", found.steps.count, False)
    assert all_reduce.exposed_s == pytest.approx(found.idle.exposed_s)
    verdict, advice = words.findings(found)[0], finding(found, "diagnose.communication")
    assert (verdict.severity, verdict.rule) == ("warning", "diagnose.bound")
    assert "communication that no other work hides" in verdict.title
    assert advice.title == "No other work hides 400 µs of 400 µs of communication: all-reduce 400 µs"
    assert advice.advice.startswith("Start it sooner, so that it runs beside other work. Give the files of all ranks")


def test_communication_is_the_bound_only_if_it_takes_more_than_all_that_the_host_causes() -> None:
    def bound(late_ns: int, pause_ns: int) -> str:
        made = Recorder()
        for _ in range(12):
            made.runs(pause_ns)
            for kernel in range(10):
                made.runs(late_ns)
                made.launch(f"kernel_{kernel}", 1000)
            made.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1_900_000, stream=20)
            made.wait(ns=2000)
        found: str = diagnosed(made).bound
        return found

    assert bound(20_000, 1_500_000) == "communication-bound"
    assert bound(100_000, 1_500_000) == "host-bound"  # of 1.5 + 1.0 ms, each less than the collective


@pytest.mark.parametrize(("slow_ns", "waits"), [(1_000_000_000, True), (300_000_000, False)])
def test_a_collective_of_unknown_size_waits_if_it_takes_longer_than_any_needs(slow_ns: int, waits: bool) -> None:
    """A transfer takes 25 or 7.5 times as long as the median one."""
    made = Recorder()
    for _ in range(6):
        made.launches(10)
        for ns in (40_000_000, 40_000_000, slow_ns):
            made.launch("ncclDevKernel_SendRecv", ns, stream=20)
        made.wait()
    advice = finding(diagnosed(made), "diagnose.communication").advice
    assert ("probably waits for another rank" in advice) is waits


@pytest.mark.parametrize(("computes_ns", "bound"), [(100_000, "communication-bound"), (200_000, "GPU-bound")])
def test_a_step_that_mostly_computes_is_gpu_bound_but_not_well(computes_ns: int, bound: str) -> None:
    found = diagnosed(training(computes_ns=computes_ns))  # 400 us of communication beside ten kernels
    verdict = words.findings(found)[0]
    assert (found.bound, verdict.severity) == (bound, "warning")
    assert "is communication that no other work hides" in verdict.title


@pytest.mark.parametrize(("gpu", "kernel", "says"), [
    ("NVIDIA A100", "ampere_sgemm_128x64_tn", "set_float32_matmul_precision"),
    ("NVIDIA A100", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_ffma", "set_float32_matmul_precision"),
    ("Tesla V100-SXM2-16GB", "volta_sgemm_128x64_nn", "Compute in FP16"),
    ("NVIDIA A100", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x8", ""),
    ("NVIDIA A100", "cutlass_80_tensorop_s1688gemm_128x64", ""),
    ("Tesla P100", "maxwell_sgemm_128x64_nn", ""),
])  # fmt: skip
def test_products_in_fp32_are_named_where_tensor_cores_could_do_them(gpu: str, kernel: str, says: str) -> None:
    def advised(between_ns: int) -> list[Finding]:
        made = Recorder()
        for _ in range(6):
            for kernel_ in (kernel, "other"):
                made.runs(between_ns)
                made.launch(kernel_, 400_000)
        found = diagnose(made.trace(gpus={0: gpu}), costs())
        return [one for one in words.findings(found) if one.rule == "diagnose.fp32"]

    named = advised(5000)
    assert len(named) == bool(says)
    for one in named:
        assert one.advice.startswith(("Accept TF32", "Compute in FP16"))
        assert says in one.advice
        assert "2.40 ms, 49.9 % of the time" in one.title or "400 µs" in one.title
    assert not advised(900_000)  # then the GPU waits for the host


@pytest.mark.parametrize(("name", "around", "says"), [
    ("AllReduce", ("DistributedDataParallel.forward",), "DDP's bucket_cap_mb"),
    ("AllGather", ("FSDP::pre_forward (0)",), "FSDP's forward_prefetch"),
    ("ReduceScatter", ("autograd::engine::evaluate_function: M", "FSDP::post_backward"), "FSDP's backward_prefetch"),
    ("AllReduce", ("_ReduceFromModelParallelRegion", "c10d::allreduce_", "nccl:all_reduce"),
     "_ReduceFromModelParallelRegion launches most of it: tensor parallelism needs each at once"),
    ("AllGather", ("ProfilerStep#", "Optimizer.step#DistAdam.step", "Torch-Compiled Region: 1/0"),
     "Optimizer.step#DistAdam.step launches most of it: start each reduction as soon as its gradient is ready"),
    ("ReduceScatter", ("autograd::engine::evaluate_function: M", "torch::autograd::AccumulateGrad"),
     "torch::autograd::AccumulateGrad launches most of it: start each reduction as soon as"),
    ("AllGather", ("aten::op",), "Start it sooner"),
])  # fmt: skip
def test_advice_on_communication_names_who_launches_it_and_only_libraries_in_the_trace(
    name: str, around: tuple[str, ...], says: str
) -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(10, duration_ns=20_000)
        with ExitStack() as code:
            for one in around:
                code.enter_context(made.range(one, "operator"))
            made.launch(f"ncclDevKernel_{name}_Sum_f32_RING_LL", 400_000, stream=20)
        made.wait()
    advice = finding(diagnosed(made), "diagnose.communication").advice
    assert says in advice
    assert ("DDP" in advice or "FSDP" in advice) == ("DDP" in says or "FSDP" in says)


def test_communication_beside_other_work_is_hidden() -> None:
    found = diagnosed(training(beside_ns=380_000))
    assert found.idle.communication_s == pytest.approx(400e-6 * found.steps.count, rel=0.01)
    assert found.idle.exposed_s == pytest.approx(20e-6 * found.steps.count, rel=0.01)
    assert found.bound == "GPU-bound"
    assert "diagnose.communication" not in rules(found)


def test_communication_in_the_stream_of_other_work_needs_a_stream_of_its_own() -> None:
    found = diagnosed(training(stream=7))
    assert "a stream of its own" in finding(found, "diagnose.communication").advice


def test_copies_in_a_stream_of_collectives_are_communication() -> None:
    made = training()
    made.submit(made.call("cudaMemcpyAsync", 3000), "Memcpy DtoD", 50_000, 20, kind="copy")
    trace = made.trace()
    assert sorted(one.name for one in idle(trace, 0, int(trace.work["end_ns"].max()), 0).collectives) == [
        "all-reduce", "communication"
    ]  # fmt: skip


def test_work_in_a_stream_of_long_collectives_is_no_communication() -> None:
    """They may take nearly all of its time because they wait."""
    made = training(stream=7, collective_ns=20_000_000, computes_ns=50_000)
    made.submit(made.call("cudaMemcpyAsync", 3000), "Memcpy HtoD", 9_000_000, 7, kind="copy")
    trace = made.trace()
    found = idle(trace, 0, int(trace.work["end_ns"].max()), 0)
    (all_reduce,) = found.collectives
    assert found.communication_s == found.exposed_s == pytest.approx(all_reduce.seconds) == pytest.approx(12 * 0.02)
    assert found.busy_s - found.exposed_s == pytest.approx(120 * 50e-6 + 9e-3)
    assert all_reduce.in_turn


def test_a_helper_does_not_make_a_stream_of_collectives_one_that_computes() -> None:
    made = training()
    made.launch("fill", 2_000, stream=20)
    trace = made.trace()
    assert [one.in_turn for one in idle(trace, 0, int(trace.work["end_ns"].max()), 0).collectives] == [False]


@pytest.mark.parametrize(("took_ns", "size", "waits"), [
    ((4_500_000, 12_000), 8192, "one takes 4.50 ms, and needs about 12.0 µs"),
    ((4_500_000, 4_600_000), 8192, "one takes 4.60 ms, and needs about 166 µs"),  # at 1 Gbit/s
    ((4_500_000, 4_600_000), 100_000_000, ""),
    ((4_500_000, 4_600_000), 0, ""),
    ((450_000, 100_000), 8192, ""),
    ((4_500_000, 12_000), 0, ""),  # half of each, which may be of two sizes
    ((4_500_000, 12_000, 13_000, 12_500), 0, "one takes 4.50 ms, and needs about 13.0 µs"),
])  # fmt: skip
def test_collectives_that_take_far_longer_than_they_need_wait_for_a_rank(
    took_ns: tuple[int, ...], size: int, waits: str
) -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(4)
        for one in took_ns:
            made.submit(made.call("cudaLaunchKernel", 3000), "ncclDevKernel_SendRecv", one, 20, blocks=2, size=size)
        made.wait()
    advice = finding(diagnosed(made), "diagnose.communication").advice
    assert f"to see {'which' if waits else 'whether one'} comes late: `microbench diagnose FOLDER`" in advice
    assert (waits or "Split the batch in two") in advice
    together = finding(diagnose(made.trace(unread={window.OTHERS: 9}), costs()), "diagnose.communication").advice
    assert "Record each rank in a file of its own, and give all" in together


def test_collectives_of_other_sizes_each_time_are_of_like_steps() -> None:
    made = Recorder()
    for step in range(12):
        made.launches(4)
        made.submit(made.call("cudaLaunchKernel", 3000), "ncclDevKernel_SendRecv", 9000, 20, size=1000 + step)
        made.wait()
    found = diagnosed(made)
    assert found.steps is not None
    assert found.steps.likeness == 1


def late(several: list[Diagnosis]) -> tuple[list[str], float] | None:
    """The late ranks and how long the others wait for them; None if none is late, or they cannot be compared."""
    found = ranks.compared(several)
    return ([rank.name for rank in found.late], found.late_s) if found is not None and found.late else None


def test_the_rank_whose_collectives_are_shortest_comes_late() -> None:
    def rank(number: int, late_ns: int) -> Diagnosis:
        made = training(comes_ns=late_ns, collective_ns=500_000 - late_ns)
        return diagnose(made.trace(rank=number), costs())

    several = [rank(0, 0), rank(1, 0), rank(2, 300_000), rank(3, 10_000)]
    assert late(several) == (["rank 2"], pytest.approx(300e-6, rel=0.01))
    found = ranks.finding(several)
    assert (found.rule, found.severity) == ("diagnose.late_rank", "warning")
    assert "rank 2 comes late: the others wait about 300 µs of each step for it" in found.title
    assert late(several[1:3]) is not None
    assert late([*several, rank(4, 290_000)]) == (["rank 2", "rank 4"], pytest.approx(295e-6, rel=0.01))
    assert late([*several, rank(4, 290_000), rank(5, 290_000)]) is None  # half of them
    assert late([several[0], several[1], several[3]]) is None
    assert late([diagnosed(training()), *several]) is None  # which rank that is nobody knows


def test_the_calls_of_a_named_function_are_the_steps_of_a_trace_with_functions() -> None:
    made = Recorder()
    for _ in range(6):
        made.runs(100_000)
        for _ in range(2):
            with made.range("/home/me/train.py(20): step", "python"):
                made.launches(4)
    trace = made.trace()
    whole, named = (diagnose(trace, costs(), asked=asked) for asked in ("", "train.py:step"))
    assert named.step.kernels == 4
    assert "10 calls of train.py:step, each of 4 kernels" in line_of(named, "steps")
    assert find_steps(trace, "me/train.py:20").calls_of == "me/train.py:20"
    for asked in ("train.py:evaluate", "rain.py:step", "train.py:21"):
        missed = diagnose(trace, costs(), asked=asked)
        assert missed.step == whole.step
        (told,) = (one for one in words.findings(missed) if one.rule == "diagnose.asked")
        assert told.title == f"The trace does not tell when {asked} is called: it has no calls of it"


def together(
    extra: int = 0, slower: float = 1.0, host_ns: int = 5000, pause_ns: int = 0, once_ns: int = 0
) -> list[Trace]:
    """Recordings of two ranks that begin at different steps, of a program that communicates in half of them: rank 1
    runs more kernels, slower ones, has a slower host, or pauses (rank 0 below 0), once longer. Clocks differ: 3 us."""
    both, begins_ns = (Recorder(), Recorder()), []
    for step in range(32):
        for number, made in enumerate(both):
            begins_ns += [made.now_ns] * number
            made.runs(max(pause_ns + once_ns * (step == 9) if number else -pause_ns, 0))
            for kernel in range(10 + extra * number):
                made.runs(host_ns if number else 5000)
                made.launch(f"kernel_{kernel}", round(60_000 * (slower if number else 1.0)))
            made.record_event(7)
            made.runs(max(made.ends_ns[7] - made.now_ns, 0))
            if step < 16:
                made.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100_000, stream=20)
        end_ns = max(max(made.ends_ns.values()) for made in both)
        for made in both:
            if step < 16:
                made.work[-1] = (made.work[-1][0], end_ns, *made.work[-1][2:])
                made.ends_ns[20] = end_ns
            made.wait()
    first, second = (
        made.trace(rank=number, epoch_ns=10**18 + 3000 * number, source=f"{number}.rows")
        for number, made in enumerate(both)
    )
    return [window.between(first, None, begins_ns[20] * 1e-9), window.between(second, begins_ns[3] * 1e-9, None)]


@pytest.mark.parametrize(("changed", "late_ns", "severity", "why"), [
    ({"extra": 4}, 244_000, "warning", "It runs 4 kernels more a step, and computes 240 µs longer: give"),
    ({"slower": 1.5}, 300_000, "warning", "Its kernels take 900 µs of a step, others' 600 µs: look for larger batches"),
    ({"host_ns": 90_000}, 374_000, "warning", "Its host takes 93.0 µs a launch, others 56.5 µs: look for"),
    ({"pause_ns": 300_000}, 300_000, "warning", "Most of that is no work of its GPU: look at what its host"),
    ({"extra": 4, "pause_ns": 300_000}, 540_000, "warning", "Most of that is no work of its GPU: look at what its"),
    ({}, 0, "note", ""),
])  # fmt: skip
def test_the_late_one_of_two_ranks_is_named_and_why(
    changed: dict[str, int], late_ns: int, severity: str, why: str
) -> None:
    several = [diagnose(trace, costs()) for trace in together(**changed)]
    found = ranks.finding(several)
    assert found.severity == severity
    if late_ns:
        assert late(several) == (["rank 1"], pytest.approx(late_ns * 1e-9, rel=0.05))
        assert found.title.startswith("rank 1 comes late: rank 0 waits about ")
        assert why in found.advice
    else:
        assert found.title.endswith("to say which one is odd; neither is late beyond chance")


@pytest.mark.parametrize("late_ones", [(1,), (1, 2), (0, 2, 4)])
def test_ranks_that_come_late_in_turn_are_named_and_what_the_collectives_need(late_ones: tuple[int, ...]) -> None:
    made, annotation = [Recorder() for _ in range(5)], RANGE_KINDS.index("annotation")
    for turn in range(48):
        for number, one in enumerate(made):
            if turn % 12 == 0:
                one.ranges.append((one.now_ns, one.now_ns + 10**9, one.name(f"step#{turn}"), 0, annotation))
                one.ranges[-2:-1] = [(*row[:1], one.now_ns, *row[2:]) for row in one.ranges[-2:-1]]
            one.runs(400_000 * (number == late_ones[turn % len(late_ones)]))
            one.launches(8)
            one.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30_000, stream=20)
        end_ns = max(one.ends_ns[20] for one in made)
        for one in made:
            one.work[-1] = (one.work[-1][0], end_ns, *one.work[-1][2:])
            one.ends_ns[20] = end_ns
            one.wait()
    several = [diagnose(one.trace(rank=number, epoch_ns=10**18), costs()) for number, one in enumerate(made)]
    if len(late_ones) == 3:
        assert late(several) is None
        return
    names, late_s = late(several)
    assert (sorted(names), late_s) == ([f"rank {one}" for one in late_ones], pytest.approx(12 * 400e-6, rel=0.05))
    title = ranks.finding(several).title
    assert ("rank 1 comes late: the others wait" in title) == (len(late_ones) == 1)
    assert ("come late: the others wait about 4.8" in title) == (len(late_ones) == 2)
    assert "and the collectives themselves need 36" in title


def test_one_long_stall_is_not_of_each_step() -> None:
    found = ranks.finding([diagnose(trace, costs()) for trace in together(pause_ns=40_000, once_ns=600_000)])
    title, _, needs = found.title.partition(", and the collectives")
    assert (title, bool(needs)) == (
        "rank 1 comes late: rank 0 waits about 1.08 ms in 12 steps for it, most of that in one",
        True,
    )
    assert late([diagnose(trace, costs()) for trace in together(once_ns=600_000)]) is None


def named_late(begins_ns: np.ndarray, in_step: int = 1) -> list[int]:
    lost_ns = ranks.lost(begins_ns, begins_ns.max(axis=0) - begins_ns)
    return sorted(ranks.late_places(lost_ns, lost_ns.mean(axis=1).tolist(), in_step))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_ranks_that_come_late_by_chance_are_not_named(count: int) -> None:
    random, steps = np.random.default_rng(count), (6, 8, 12, 24)
    named = [bool(named_late(random.exponential(60e3, (count, number)))) for number in steps for _ in range(100)]
    assert sum(named) <= 0.05 * len(named)
    in_each = [np.repeat(random.exponential(60e3, (count, number)), 4, axis=1) for number in steps for _ in range(25)]
    assert sum(bool(named_late(begins_ns, 4)) for begins_ns in in_each) <= 0.05 * len(in_each)


@pytest.mark.parametrize(("count", "late_ones"), [(2, (1,)), (4, (2,)), (8, (5,)), (8, (0, 6))])
def test_ranks_that_come_late_are_told_from_chance(count: int, late_ones: tuple[int, ...]) -> None:
    random, found = np.random.default_rng(count), []
    for number in (6, 8, 12, 24) * 10:
        begins_ns = random.exponential(60e3, (count, number))
        for turn, place in enumerate(late_ones):
            begins_ns[place, turn :: len(late_ones)] += 400e3
        found.append(named_late(begins_ns) == list(late_ones))
    assert sum(found) >= 0.95 * len(found)


def test_a_rank_with_more_work_that_hides_behind_a_slow_host_is_named() -> None:
    several = [diagnose(trace, costs()) for trace in together(extra=4, pause_ns=-240_000)]
    assert late(several) is None
    found = ranks.finding(several)
    assert (found.rule, found.title) == (
        "diagnose.ranks", "rank 1 has more work than rank 0, but nobody waits for it yet",
    )  # fmt: skip
    assert "It runs 4 kernels more a step, and computes 240 µs longer" in found.advice


@pytest.mark.parametrize(("pause_ns", "slower", "title"), [
    (2_000_000, 1.0, "rank 1 is host-bound. The program's own work between launches takes 2.01 ms of each step"),
    (0, 1.5, ""),  # what its GPU does makes it late
])  # fmt: skip
def test_a_rank_that_its_host_makes_late_has_its_own_advice(pause_ns: int, slower: float, title: str) -> None:
    found = list(ranks.to_do([diagnose(one, costs()) for one in together(slower=slower, pause_ns=pause_ns)]))
    assert len(found) == bool(title)
    assert all(one.severity == "advice" and one.title.startswith(title) and one.advice for one in found)


def test_a_late_rank_whose_gpu_others_use_is_told_so_and_waits_are_no_longer_than_collectives() -> None:
    several = [diagnose(one, costs()) for one in together(pause_ns=2_000_000)]
    waited_s, late_s = ranks.communication_s(several[0]), ranks.compared(several).late_s
    assert waited_s is not None
    assert 0 < late_s <= waited_s
    used = Check(HELD, 10, 0.9, "what held them back is not in the trace")
    shared = [several[0], replace(several[1], health=(*several[1].health, used))]
    assert "another program probably uses that GPU" in ranks.finding(shared).advice
    assert not list(ranks.to_do(shared))


# Ranks


def test_the_rank_with_a_slow_host_is_named() -> None:
    several = [
        diagnose(steps_of(between_ns=20_000 + 100 * rank + 9000 * (rank == 5)).trace(rank=rank), costs())
        for rank in range(8)
    ]
    odd = ranks.odd_ranks(several)
    assert {one.name for one in odd} == {"rank 5"}
    assert {one.what for one in odd} == {"a step", "host time for a launch"}
    found = ranks.finding(several)
    assert found.rule == "diagnose.ranks"
    assert "rank 5" in found.title
    assert ranks.finding(several[:5]).severity == "good"
    (usual,) = ranks.to_do(several)
    assert usual.title.startswith("8 of 8 ranks are launch-bound. rank 0, for one: Replayed as a graph a step takes ")
    assert not list(ranks.to_do([diagnosed(steps_of()), *several]))  # whose rank nobody knows
    less = [diagnose(steps_of(duration_ns=9000 - 4000 * (rank == 5)).trace(rank=rank), costs()) for rank in range(8)]
    assert ranks.finding(less).advice.endswith("It has less to do: give every rank the same work")
    fast = [diagnose(steps_of(between_ns=20_000 - 9000 * (rank == 5)).trace(rank=rank), costs()) for rank in range(8)]
    assert ranks.finding(fast).advice.startswith("rank 5 takes ")
    assert "host" not in ranks.finding(fast).advice
    for rank, what in ((8, "The ranks do different work"), (None, "The traces are of different programs")):
        unlike = ranks.finding([*several, diagnose(steps_of(kernels=30).trace(rank=rank), costs())])
        assert (unlike.severity, unlike.advice) == ("note", "")
        assert unlike.title == f"{what}: a step has 10 to 30 kernels"
    assert "at least 3" in ranks.finding(several[:2]).title


def test_a_long_trace_is_diagnosed_in_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MOST_CALLS", 200)
    found = diagnosed(steps_of(count=60, kernels=10))
    assert found.steps.count < 20
    assert found.step.watched_s == pytest.approx(10 * 23e-6)
    repetition, check = found.health
    assert (repetition.name, repetition.count) == ("steps found by repetition", found.steps.count)
    assert check.name.startswith("left out: calls before")
    assert check.count == pytest.approx(400, abs=2)


def test_the_middle_of_a_long_trace_lies_where_its_operators_were_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MOST_CALLS", 200)
    trace = steps_of(count=60, kernels=10).trace()
    operators = np.cumsum(trace.ranges["kind"] == RANGE_KINDS.index("operator"))
    cut = replace(trace, ranges=trace.ranges[operators <= 330], unread={"operator": 330})
    calls = window.middle(cut).calls
    assert len(calls) == pytest.approx(200, abs=2)
    assert calls["begin_ns"].max() < cut.ranges["begin_ns"].max()


def one_step(count: int = 1) -> Recorder:
    """A schedule that records one step of three equal layers, behind data that takes a while to prepare."""
    made = Recorder()
    for step in range(count):
        with made.range(f"ProfilerStep#{step + 5}", "annotation"):
            made.runs(9_000_000)
            for _ in range(3):
                made.launches(12, between_ns=20_000)
        made.wait()
    return made


@pytest.mark.parametrize("count", [1, 2])
def test_few_numbered_annotations_are_the_steps_and_not_the_layers_in_them(count: int) -> None:
    found = diagnosed(one_step(count))
    assert (found.steps.found, found.steps.name, found.steps.count) == ("annotations", "ProfilerStep", count)
    assert found.step.kernels == 36
    assert found.step.watched_s == pytest.approx(9e-3 + 36 * 23e-6, rel=0.01)
    ((name, seconds),) = found.steps.loops
    assert (name, seconds) == ("a part that repeats", pytest.approx(12 * 23e-6, rel=0.05))
    assert found.bound == "host-bound", "the data is prepared before the step's first work"


@pytest.mark.parametrize("kernels", [1, 3, 7])
def test_an_annotation_around_a_few_kernels_is_no_step(kernels: int) -> None:
    made = Recorder()
    with made.range("ProfilerStep#5", "annotation"):
        made.launches(kernels)
    found = diagnosed(made)
    assert (found.steps, found.graph) == (None, None)


def test_an_annotation_without_a_number_may_be_anything() -> None:
    made = one_step()
    changed = {name.replace("#5", ""): place for name, place in made.names.items()}
    made.names = changed
    assert diagnosed(made).steps.found == "repetition"


def test_a_step_is_no_shorter_than_its_work() -> None:
    """A profiler's costs are assumed, and may be more than the host time that a step of long kernels has."""
    found = diagnosed(steps_of(kernels=30, duration_ns=60_000, between_ns=5000))
    assert found.idle.busy_s / found.step.count <= found.step.low_s <= found.step.unwatched_s <= found.step.watched_s


def test_of_a_thousand_traces_those_with_the_most_work_are_shown_and_the_others_counted() -> None:
    fit = make_fit()
    short, long = (diagnose(steps_of(count=count, kernels=20).trace(), fit) for count in (12, 24))
    several = [short] * 500 + [long] + [short] * 499
    (table,) = ranks_screen(several, "costs").tables
    assert len(table.rows) == MOST_TRACES
    assert table.notes[0].startswith(f"{1000 - MOST_TRACES} traces more, with no more work than these")
    shown = [row[0] for row in table.rows]
    assert shown[-1] == ranks_screen(several, "costs", everything=True).tables[0].rows[500][0]
    assert len(ranks_screen(several, "costs", everything=True).tables[0].rows) == 1000
    assert ranks_screen(several[:3], "costs").tables[0].notes == ()


def test_a_loop_that_turns_once_a_visit_is_no_iteration_and_one_that_submits_seldom_is_named_besides() -> None:
    made, loops = Recorder(), (Loop("train.py:5 main", True, False), Loop("train.py:9 main", True, False))
    for turn in range(240):
        made.runs(100_000)
        if turn % 10 == 9:
            made.launches(8)
        if turn % 6 == 5:  # a loop with one turn, in some turns of the loop around it
            made.turns.append((made.now_ns, 1, made.thread, False))
        made.turn()
    trace = made.trace(loops=loops)
    assert [(loop.place, len(loop.submits)) for loop in loops_of(trace)] == [("train.py:5 main", 0)]
    found = diagnose(trace, costs()).steps
    assert found is not None
    assert (found.found, found.count) == ("repetition", 22)
    assert [place for place, _ in found.loops] == ["train.py:5 main"]
    other = made.trace(loops=(loops[0], Loop("lib.py:9 walk", True, False)))
    assert {loop.place for loop in loops_of(other)} == {"train.py:5 main", "lib.py:9 walk"}


@pytest.mark.parametrize("validates", [0, 60, 100])
@pytest.mark.parametrize("function", ["main", "train_one_epoch", "run"])
def test_batches_are_steps_beside_a_validation_and_within_few_long_epochs(validates: int, function: str) -> None:
    made = Recorder()
    loops = [Loop(f"train.py:{line}", True, False) for line in ("5 main", f"9 {function}", "30 validate")]
    for _ in range(5):
        for _ in range(100):
            made.launches(12)
            made.wait()
            made.runs(5_000_000)
            made.turn(1)
        for _ in range(validates):
            made.launches(8)
            made.wait()
            made.runs(2_000_000)
            made.turn(2)
        made.turn(0)
    found = diagnose(made.trace(loops=tuple(loops)), costs()).steps
    assert found is not None
    assert found.name == loops[1].place


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_loop_of_few_epochs_does_not_hide_the_batches_within(epochs: int) -> None:
    """As two epochs for each fold."""
    made, loops = Recorder(), [Loop(f"cv.py:{line}", True, False) for line in ("5 main", "19 train", "20 train")]
    for _ in range(6):
        made.launches(5)
        for _ in range(epochs):
            for _ in range(40):
                made.launches(12)
                made.wait()
                made.runs(20_000_000)
                made.turn(2)
            made.turn(1)
        made.turn(0)
    found = diagnose(made.trace(loops=tuple(loops)), costs()).steps
    assert found is not None
    assert found.name == loops[2].place


def test_steps_that_are_launched_beside_an_autotuner_are_steps() -> None:
    made = Recorder()
    for _ in range(30):
        made.launches(12)
        made.wait()
        with made.range("triton/runtime/autotuner.py Autotuner._bench", "function"):
            made.runs(50_000_000)
    steps = diagnosed(made).steps
    assert steps is not None
    assert steps.count > 20


def test_what_an_autotuner_launches_again_and_again_is_no_step() -> None:
    made = Recorder()
    made.launches(12)
    with made.range("triton/runtime/autotuner.py Autotuner._bench", "function"):
        for _ in range(200):
            made.launches(2)
    assert diagnosed(made).steps is None
    made.names = {name.replace("autotuner", "jit"): place for name, place in made.names.items()}
    assert diagnosed(made).steps is not None


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(("inner", "others", "function", "is_step"), [
    (30, 20, "rollout", False), (60, 6, "main", True), (60, 6, "rollout", False), (60, 1, "generate", True),
    (60, 1, "Guard.__call__", False),
])  # fmt: skip
def test_a_loop_that_turns_within_another_is_the_step_only_if_it_makes_most_of_the_calls(
    cut: bool, inner: int, others: int, function: str, is_step: bool
) -> None:
    """The recorder notes only the first turns of a fast loop. It notes all turns of a slower one."""
    made, places = Recorder(), ("train.py:5 main", f"train.py:9 {function}")
    loops = tuple(Loop(place, True, False) for place in places)
    for visit in range(8):
        for turn in range(inner):
            made.submit(made.call("cudaLaunchKernel", 3000), "check", 2000)
            made.wait()
            if not cut or (not visit and turn < 50):
                made.turns.append((made.now_ns, 1, made.thread, cut and turn == min(inner, 50) - 1))
        for _ in range(others):
            made.submit(made.call("cudaLaunchKernel", 9000), "update", 8000)
        made.runs(80_000)
        made.turn()
    found = diagnose(made.trace(loops=loops), costs()).steps
    assert found is not None
    assert (found.found, found.name) == ("loop", places[is_step])


@pytest.mark.parametrize(("function", "step"), [
    ("handle", "serve.py:5 main"), ("train_epoch", "serve.py:9 train_epoch"), ("main", "serve.py:9 main"),
    ("Server.solve_constraints", "serve.py:5 main"), ("Retrieval.latest", "serve.py:5 main"),
    ("Model.generate", "serve.py:9 Model.generate"),
])  # fmt: skip
def test_a_function_that_goes_over_the_parts_of_an_iteration_has_no_steps_of_its_own(function: str, step: str) -> None:
    """Such as eight cameras of a frame. An epoch has turns that are steps, and so has a loop beside the outer one."""
    made = Recorder()
    loops = tuple(Loop(place, True, False) for place in ("serve.py:5 main", f"serve.py:9 {function}"))
    for _ in range(12):
        for _ in range(8):
            made.launches(6)
            made.wait()
            made.turn(1)
        made.turn(0)
    found = diagnose(made.trace(loops=loops), costs()).steps
    assert found is not None
    assert found.name == step


@pytest.mark.parametrize(("call", "kernel", "program"), [
    ("cudaLaunchKernel", "kernel", "torch"), ("cuLaunchKernelEx", "loop_fusion", "jax"),
    ("cuLaunchKernelEx", "triton_poi_fused_add_0", "torch"),
])  # fmt: skip
def test_of_two_frameworks_that_are_imported_the_one_that_launches_is_the_programs(
    call: str, kernel: str, program: str
) -> None:
    made = Recorder()
    for _ in range(20):
        made.submit(made.call(call, 3000), kernel, 2000)
    versions = {"torch": "2.11", "jax": "0.11"}
    trace = made.trace(format="microbench recording", versions=versions)
    assert program_of(trace) == program


def test_the_first_calls_of_a_trace_keep_their_lines_where_steps_differ() -> None:
    made = Recorder()
    for step in range(40):
        with made.range(f"step {step}", "annotation"):
            for line in (5, 9):
                with made.range(f"train.py:{line} step", "line"):
                    made.wait()
            made.launches(4 + step * step * 7919 % 101 % 6)
    recorded = diagnose(made.trace(), costs()).recorded
    assert recorded is not None
    assert {one.place: round(one.count, 2) for one in recorded.blockers} == {"train.py:5 step": 1, "train.py:9 step": 1}


def test_steps_whose_sizes_never_recur_are_compared_without_them() -> None:
    made = Recorder()
    for step in range(40):
        with made.range(f"step {step}", "annotation"):
            for kernel in range(4 + step * step * 7919 % 101 % 6):
                made.runs(9000)
                made.launch(f"kernel_{kernel % 2}", 2000, blocks=100 * step + kernel)
            with made.range("train.py:7 step", "line"):
                made.wait()
    recorded = diagnose(made.trace(), costs()).recorded
    assert recorded is not None
    assert [(one.place, round(one.count, 2)) for one in recorded.blockers] == [("train.py:7 step", 1)]


def test_very_many_loops_of_a_function_are_read_quickly() -> None:
    made, loops = Recorder(), []
    for loop in range(2000):
        loops.append(Loop(f"train.py:{loop + 1} main", True, False))
        for _ in range(4):
            made.launches(1)
            made.turns.append((made.now_ns, loop, made.thread, False))
    looked = []
    with mock.patch("microbench.diagnosis.turns._stretches", lambda *all_: looked.append(1) or _stretches(*all_)):
        assert loops_of(made.trace(loops=tuple(loops)))
    assert len(looked) <= 2000 * (2 + 8)


@pytest.mark.parametrize(("once_ns", "parts"), [(200_000, False), (3000, True)])
def test_a_layer_that_repeats_is_the_step_only_if_it_is_much_of_the_work(once_ns: int, parts: bool) -> None:
    made = Recorder()
    for kernel in range(100):
        made.launch(f"once_{kernel}", once_ns)
    for _ in range(12):
        made.launches(10, duration_ns=2000)
    found = diagnosed(made)
    assert (found.steps is not None) == parts
    shown = "".join(str(line) for block in screen(found, "costs", "").blocks for line in block.lines)
    assert ("of the GPU's work in the trace" in shown) == parts


def test_copies_that_repeat_at_the_start_are_no_steps_of_a_program_with_kernels() -> None:
    made = Recorder()
    for _ in range(8):
        made.submit(made.call("cudaMemcpyAsync", 3000), "Memcpy HtoD", 20_000, kind="copy")
        made.runs(10_000)
    made.runs(50_000_000)
    for kernel in range(5):
        made.launch(f"kernel_{kernel}", 2000)
    assert diagnosed(made).steps is None


def test_two_steps_of_pytorchs_profiler_may_be_short() -> None:
    made = Recorder()
    for step in range(2):
        with made.range(f"ProfilerStep#{step + 1}", "annotation"):
            with made.range("aten::normal_"):
                made.runs(60_000_000)
            made.launches(2)
        made.wait()
    found = diagnosed(made)
    assert (found.steps.found, found.steps.count) == ("annotations", 2)
    assert "do on the GPU what of it computes on the CPU" in words.owner_words(found, owners(found.idle)[0])[1]


def test_without_waits_streams_still_follow_each_other() -> None:
    """A host wait between two streams orders them; without it the second one waits on the GPU."""
    made = Recorder()
    for _ in range(12):
        for stream in (7, 8, 9):
            made.launch(f"level_{stream}", 400_000, stream=stream)
            made.wait()
    found = diagnosed(made)
    assert all(one.step_s > 1.1e-3 for one in found.remedies if one.name == "waits")


def test_a_gpu_that_pauses_between_queued_kernels_is_the_limit() -> None:
    made = Recorder()
    for _ in range(12):
        replay = made.call("cudaGraphLaunch", 3000)
        for node in range(200):
            made.submit(replay, f"kernel_{node % 7}", 4000, node=node)
        made.wait()
    found = diagnosed(made)
    assert found.idle is not None
    assert found.idle.causes["device gaps"] > found.idle.idle_s / 2
    assert found.bound == "GPU-bound"


@pytest.mark.parametrize(("loads_ns", "told"), [(400_000, True), (30_000, False)])
def test_what_the_host_does_before_the_work_of_a_trace_without_steps_is_said(loads_ns: int, told: bool) -> None:
    made = Recorder()
    with made.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "annotation"):
        made.runs(loads_ns)
    for kernel in range(30):
        made.runs(20_000 + 500 * kernel)
        made.launch(f"kernel_{kernel}", 2000)
    titles = [one.title for one in words.findings(diagnosed(made)) if one.rule == "diagnose.before"]
    assert len(titles) == told
    assert all("first 42" in title and "_SingleProcessDataLoaderIter" in title for title in titles)


def test_host_time_before_the_gpus_first_work_is_told() -> None:
    made = Recorder()
    with made.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
        made.runs(5_000_000_000)
    for _ in range(12):
        made.launches(10)
    found = diagnosed(made)
    told = next(one for one in words.findings(found) if one.rule == "diagnose.before")
    assert "nothing in the first 5.00 s" in told.title
    assert "DataLoaderIter.__next__ takes 5.00 s" in told.title
    assert told.severity == "warning"


def test_a_call_of_another_thread_does_not_take_the_time_before_it_from_who_submits() -> None:
    """A thread that pins memory asks for pointers while the main thread waits for the loader."""
    made = Recorder()
    for _ in range(12):
        made.launches(10)
        with made.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
            made.runs(20_000_000)
            made.thread = 1
            made.call("cudaPointerGetAttributes", 2000)
            made.thread = 0
            made.runs(10_000)
    found = diagnosed(made)
    owner = owners(found.idle)[0]
    assert owner.name == "waiting for the data loader"
    assert sum(found.recorded.owned[owner.name].values()) == pytest.approx(0.020, rel=0.02)


@pytest.mark.parametrize(("early_ns", "drifts_ns", "bound"), [
    (10_000, 0, "host-bound"), (1_500_000, 0, "host-bound"), (1_500_000, 2000, None),
])  # fmt: skip
def test_clocks_that_differ_by_little_or_always_the_same_forbid_no_verdict(
    early_ns: int, drifts_ns: int, bound: str | None
) -> None:
    made = steps_of(count=12, between_ns=2_000_000, waits=True)
    trace = made.trace()
    early_ = early_ns + drifts_ns * np.arange(len(trace.work))
    trace.work["begin_ns"] = trace.calls["begin_ns"][trace.work["call"]] - early_
    trace.work["end_ns"] = trace.work["begin_ns"] + 2000
    found = diagnose(trace, costs())
    assert found.bound == bound
    if bound and early_ns > 10_000:
        assert "The GPU's clock is 1.50 ms behind the host's" in finding(found, "diagnose.health").title
        busy = 120 * 2e-6 / 12
        assert found.idle.busy_s / found.steps.count == pytest.approx(busy, rel=0.01)


def test_a_clock_that_is_ahead_and_behind_is_not_moved() -> None:
    """Moved behind its call, the work would end after the host had waited for it."""
    made = Recorder()
    for _ in range(40):
        made.launch("kernel", 500_000)
        made.wait("cudaDeviceSynchronize")
    trace = made.trace()
    trace.work["begin_ns"] -= 100_000
    trace.work["end_ns"] += 100_000
    found = diagnose(trace, costs())
    assert found.idle is None
    assert MOVED not in {check.name for check in found.health}


def test_work_without_a_call_outside_of_the_steps_forbids_no_verdict() -> None:
    trace = steps_of(count=12, marked=True).trace()
    lost = np.repeat(trace.work[:1], 30)
    lost["begin_ns"] += 3000 + 100 * np.arange(30)
    lost["end_ns"], lost["call"], lost["stream"] = lost["begin_ns"] + 50, NONE, 99
    work = np.concatenate([trace.work, lost])
    found = diagnose(replace(trace, work=work[np.argsort(work["begin_ns"], kind="stable")]), costs())
    assert (found.bound, found.steps is not None) == ("launch-bound", True)


@pytest.mark.parametrize(("counts", "found"), [((7, 248, 593), False), ((60, 80, 100), True), ((40, 40, 10, 40), True)])
def test_annotations_of_parts_that_submit_far_more_than_others_are_no_steps(counts: tuple[int], found: bool) -> None:
    made, chance = Recorder(), np.random.default_rng(1)
    for step, count in enumerate(counts):
        with made.range(f"batch {step}", "annotation"):
            for _ in range(count):
                made.launch(f"kernel_{chance.integers(1000)}", 2000)
            made.runs(100_000)
    steps = find_steps(made.trace())
    assert (steps is not None and steps.found == "annotations") is found


def test_runs_without_ranks_have_each_their_own_advice() -> None:
    def run(blocks: int) -> Diagnosis:
        made = Recorder()
        for number in range(10 + blocks):
            made.submit(made.call("cudaLaunchKernel", 3000), f"add_{number}", 2_000_000, blocks=blocks)
            made.runs(2_000_000 + 8_000_000 * (blocks > 1))
        return diagnose(made.trace(source=f"report{blocks}.sqlite"), costs())

    several = [run(1), run(16), run(17)]
    assert ranks.finding(several).title == "3 runs: 2 host-bound and 1 GPU-bound"
    titles = [one.title for one in ranks.to_do(several)]
    assert titles[0].startswith("report1: add_0 runs as 1 block of 128 threads")
    assert titles[1].startswith("report16, like 1 other: ")
    assert len(titles) == 2


def test_traces_are_alike_only_where_each_says_what_it_waits_for() -> None:
    made = [steps_of(waits=True, pause_ns=5_000_000 * (number == 2)) for number in range(4)]
    several = [diagnosed(one) for one in made]
    found = ranks.finding(several)
    assert (found.severity, found.title) == ("warning", "The others are launch-bound, but made is host-bound")
    assert ranks.finding([several[0]] * 4).severity == "good"
    busy = [diagnosed(steps_of(duration_ns=ns, between_ns=0, waits=True)) for ns in (40_000, 40_000, 40_000, 41_000)]
    assert ranks.finding(busy).severity == "good"
    nothing = diagnose(made[0].trace(lost={"records": 9}), costs())
    assert ranks.finding([nothing] * 4).title.startswith("4 of 4 traces have no idle time")


def test_what_comes_behind_the_last_step_is_no_part_of_it() -> None:
    made = steps_of(count=12, waits=True)
    made.runs(500_000_000)
    made.call("cudaFree", 3000)
    found = diagnosed(made)
    assert found.recorded.pauses_s == 0
    assert found.graph is not None


def test_a_pause_beside_the_steps_that_is_longer_than_all_of_them_is_told() -> None:
    made = steps_of(count=12, waits=True)
    assert "diagnose.before" not in rules(diagnosed(made))
    made.runs(12_000_000)
    made.launch("other", 2000)
    (told,) = (one for one in words.findings(diagnosed(made)) if one.rule == "diagnose.before")
    assert told.title.startswith("Beside the 10 steps the GPU once does nothing for 12.0 ms of the trace of ")
    made = steps_of(count=12, waits=True)
    for other in range(20):
        made.runs(1_000_000)
        made.launch(f"other_{other}", 2000)
    (told,) = (one for one in words.findings(diagnosed(made)) if one.rule == "diagnose.before")
    assert told.title.startswith("After the 11 steps the GPU idles longer than during them: 19.0 ms of the last ")


@pytest.mark.parametrize(("pause_ns", "bound"), [(3_000_000, "host-bound"), (600_000, "launch-bound")])
def test_without_steps_pauses_of_more_than_a_millisecond_are_the_programs_own(pause_ns: int, bound: str) -> None:
    made = Recorder()
    for kernel in range(20):
        made.runs(pause_ns)
        made.launch(f"kernel_{kernel}", 2000)
    found = diagnosed(made)
    assert (found.step, found.bound) == (None, bound)
    assert ("diagnose.one_pause" in rules(found)) == (bound == "host-bound")


@pytest.mark.parametrize(("pauses", "bound"), [(9, "host-bound"), (7, "launch-bound")])
def test_without_steps_pauses_and_launches_together_are_the_hosts(pauses: int, bound: str) -> None:
    made = Recorder()
    for kernel in range(40):
        made.runs(3_000_000 if kernel < pauses else 700_000)
        made.launch(f"kernel_{kernel}", 2000)
        if kernel % 13 == 12:
            made.call("cudaFree", 4_000_000)
    found = diagnosed(made)
    assert found.step is None
    assert max(found.idle.pauses_s, found.idle.causes[BETWEEN] - found.idle.pauses_s) < found.idle.idle_s / 2
    assert found.bound == bound


@pytest.mark.parametrize(("long_ns", "bound"), [(10_000_000, "start-up"), (700_000, "launch-bound")])
def test_a_launch_that_takes_hundreds_of_times_as_long_as_others_loads_code(long_ns: int, bound: str) -> None:
    made = Recorder()
    for kernel in range(20):
        made.launch(f"kernel_{kernel}", 2000, long_ns if kernel in {15, 16} else 12_000)
        made.runs(1000 * kernel)
    found = diagnosed(made)
    assert (found.step, found.bound) == (None, bound)


@pytest.mark.parametrize("name", ["cudaLaunchKernel", "cudaGraphLaunch"])
def test_a_launch_that_takes_as_long_in_each_step_loads_no_code(name: str) -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(30)
        made.submit(made.call(name, 2_500_000), "slow", 2000)
    found = diagnosed(made)
    assert (found.step is not None, found.bound) == (True, "launch-bound")


@pytest.mark.parametrize(("works_ns", "bound"), [(1_000_000, "start-up"), (20_000_000, "communication-bound")])
def test_communication_that_nothing_hides_is_no_start_up(works_ns: int, bound: str) -> None:
    made = Recorder()
    for kernel in range(40):
        if kernel < 3:
            made.call("cudaMalloc", 4_000_000)
        made.runs(1000 * kernel)
        made.launch(f"kernel_{kernel}", 3000)
    made.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", works_ns)
    assert diagnosed(made).bound == bound


def test_ranges_of_which_only_one_submits_are_no_steps() -> None:
    made = Recorder()
    for step in range(3):
        with made.range(f"step {step}", "annotation"):
            made.launches(int(step == 1))
            made.runs(50_000)
    assert find_steps(made.trace()) is None


def test_compilation_by_nvrtc_is_the_programs_start() -> None:
    made = Recorder()
    for kernel in range(20):
        with made.range("executor_utils::Nvrtc::CompileProgram", "annotation"):
            made.runs(20_000_000)
        made.launch(f"fused_{kernel}", 2000)
    assert diagnosed(made).bound == "start-up"


def pausing(paused: tuple[int, ...], ms: int = 90, count: int = 18) -> Recorder:
    """Steps with 10 ms of work for the GPU. Some of them also allocate memory, for so long."""
    made = Recorder()
    for step in range(count):
        with made.range(f"step#{step}", "annotation"):
            made.launches(10, 10_000, 1_000_000)
            if step in paused:
                made.wait()
                made.call("cudaMalloc", ms * 1_000_000)
    return made


@pytest.mark.parametrize(("paused", "apart"), [((5, 12), True), ((), False), ((2, 5, 8, 11, 14), False)])
def test_few_steps_that_hold_most_of_the_idle_time_are_told_apart(paused: tuple[int, ...], apart: bool) -> None:
    found = diagnosed(pausing(paused, 70))
    verdict, *others = words.findings(found)
    assert (found.paused is not None) is apart
    if apart:
        assert (found.bound, found.paused.steps, found.paused.of) == ("GPU-bound", 2, 16)
        assert found.idle.idle_s < 0.1 * found.idle.span_s
        assert verdict.title.endswith(", but 2 of 16 steps pause")
        assert verdict.severity == "warning"
        told = next(one for one in others if one.rule == "diagnose.paused_steps")
        assert told.title == (
            "2 of 16 steps pause for 70.0 ms, 46.6 % of the time; in the longest the GPU idles most for allocation: "
            "cudaMalloc in step"
        )
        assert next(one for one in others if one.severity == "advice") == told
    else:
        assert found.bound == ("allocation-bound" if paused else "GPU-bound")


@pytest.mark.parametrize("optimized", [range(3, 20, 4), (5, 12)])
def test_steps_that_do_other_work_do_not_pause(optimized: Sequence[int]) -> None:
    """Gradients are accumulated, and some steps alone have an optimizer."""
    made = Recorder()
    for step in range(20):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            made.launches(10, 10_000, 40_000)
            if step in optimized:
                made.wait()
                with made.range("Optimizer.step#AdamW.step"):
                    for kernel in range(400):
                        made.runs(10_000)
                        made.launch(f"elementwise_{kernel % 4}", 3000)
    found = diagnosed(made)
    assert (found.paused, found.bound) == (None, "launch-bound")
    assert finding(found, "diagnose.optimizer").title.startswith("The optimizer AdamW launches 400 kernels each time")


@pytest.mark.parametrize(("rest_ms", "steps"), [(2, True), (20, False)])
def test_a_few_repetitions_in_a_small_part_of_the_time_are_no_steps(rest_ms: int, steps: bool) -> None:
    """As where a program fails in its first step: modules are made one after another, and then nothing follows."""
    made = Recorder()
    for kernel in range(6):
        made.runs(rest_ms * 500_000)
        made.launch(f"first_{kernel}", 3000)
    for _ in range(4):
        made.launches(20, 10_000)
        made.wait()
    made.runs(rest_ms * 500_000)
    made.launch("last", 3000)
    assert (diagnosed(made).steps is not None) is steps


@pytest.mark.parametrize(("others", "ms", "apart"), [((50,), 30, True), ((30, 61), 30, True), ((50,), 1, False),
    ((20, 45, 70, 95), 30, True), ((50,), 300, False), ((20, 30, 45, 50, 70, 81), 30, False),
], ids=["once", "twice", "short", "regular", "most of the time", "not rare"])  # fmt: skip
def test_rare_steps_that_do_other_work_for_long_are_told_apart(others: Sequence[int], ms: int, apart: bool) -> None:
    """An evaluation is left out of the step, also where it comes regularly."""
    made = Recorder()
    for step in made.steps(101):
        made.launches(20, 100_000, 3000)
        if step in others:
            made.launches(100, ms * 10_000, 3000)
        made.wait()
    found = diagnosed(made)
    assert (found.paused is not None) is apart
    assert found.steps is not None
    if apart:
        assert found.paused.other
        assert found.steps.step_s == pytest.approx(20 * 103e-6, rel=0.03)
        assert found.graph is not None
        told = finding(found, "diagnose.other_steps").title
        verb = "does" if len(others) == 1 else "do"
        assert told.startswith(f"{len(others)} of 99 steps {verb} other work, {30.3 * len(others):.3g} ms in all, ")


def test_rare_steps_that_leave_the_gpu_idle_hide_behind_no_good_verdict() -> None:
    made = Recorder()
    for turn in range(400):
        made.launch("kernel", 2_000_000)
        if turn % 21 == 20:
            made.launches(170, 100_000, 2000)
        made.wait()
        made.turn()
    found = diagnosed(made)
    assert found.idle is not None
    assert found.idle.idle_s > 0.2 * found.idle.span_s
    assert finding(found, "diagnose.bound").severity != "good"


@pytest.mark.parametrize(("stall_ms", "apart"), [(8, True), (1, False)])
def test_rare_stalls_are_not_spread_over_all_steps(stall_ms: int, apart: bool) -> None:
    made = Recorder()
    for turn in range(300):
        made.launches(10, 25_000, 2000)
        made.wait()
        if turn % 70 == 69:
            made.runs(stall_ms * 1_000_000)
        made.turn()
    found = diagnosed(made)
    assert found.bound == "launch-bound"
    assert (found.paused is not None) is apart


def test_a_few_steps_of_a_busy_gpu_behind_long_uploads_are_steps() -> None:
    made = Recorder()
    for _ in range(20):
        made.runs(10_000_000)
        made.launch("upload", 900)
    for _ in range(4):
        made.launches(20, 10_000, 300_000)
        made.wait()
    assert diagnosed(made).steps is not None


@pytest.mark.parametrize(("every", "stalls"), [(3, 0), (10, 29), (50, 5)])
def test_a_stall_in_some_turns_of_a_loop_is_the_first_that_is_said(every: int, stalls: int) -> None:
    """A frequent stall is part of the mean step, and a rare one is told apart."""
    made, turns = Recorder(), 300
    for turn in range(turns):
        for _ in range(10):
            made.launch("kernel", 20_000, 2000)
        made.wait()
        if turn % every == every - 1:
            made.runs(40_000_000)
        made.turn()
    found = diagnosed(made)
    assert found.steps is not None
    assert found.steps.found == "loop"
    assert (found.paused.steps if found.paused is not None else 0) == stalls
    title = finding(found, "diagnose.bound").title
    assert title.startswith(f"Host-bound: {stalls} of 297 steps pause" if stalls else "Host-bound: the GPU works 1.5 %")


@pytest.mark.parametrize("also", [(), (7,)])
def test_pauses_that_come_regularly_belong_to_the_program(also: tuple[int, ...]) -> None:
    made = Recorder()
    for step in range(32):
        with made.range(f"step#{step}", "annotation"):
            made.launches(10, 1000, 30_000)
            if step % 5 == 4 or step in also:
                made.wait()
                made.runs(8_000_000)
    found = diagnosed(made)
    assert (found.paused, found.bound) == (None, "host-bound")
    assert found.idle.idle_s > 0.8 * found.idle.span_s


@pytest.mark.parametrize("paused", [(5, 12), (5, 6, 7), (3, 5, 12)])
def test_pauses_that_take_most_of_the_time_are_the_bound(paused: tuple[int, ...]) -> None:
    found = diagnosed(pausing(paused, 90))
    assert (found.bound, found.paused.steps) == ("allocation-bound", len(paused))
    verdict = words.findings(found)[0]
    assert verdict.severity == "problem"
    assert verdict.title == (
        f"Allocation-bound: {len(paused)} of 16 steps pause for {percent(found.paused.share)} of the time; the GPU "
        "works 99.9 % of each other step of 10.0 ms"
    )
    assert verdict.text == "In short, the GPU waits for memory to be allocated and freed in the longest pause."


def test_few_pauses_beside_as_much_other_idle_time_are_not_told_apart() -> None:
    made = Recorder()
    for step in range(18):
        with made.range(f"step#{step}", "annotation"):
            made.wait()
            made.runs(8_000_000 if step in (5, 12) else 2_000_000)
            made.launches(10, 10_000, 1_000_000)
    assert diagnosed(made).paused is None


@pytest.mark.parametrize(("paused", "apart"), [((3, 6), False), ((3, 7), True)])
def test_too_few_steps_between_pauses_are_no_repetition(paused: tuple[int, ...], apart: bool) -> None:
    assert (diagnosed(pausing(paused, 90, count=10)).paused is not None) is apart


@pytest.mark.parametrize(("step_s", "usual_s"), [(19.5e-3, 9.18e-3), (20e-3, 9.42e-3), (18e-3, 9.09e-3)])
def test_a_given_time_may_be_the_mean_with_steps_that_pause(step_s: float, usual_s: float) -> None:
    found = diagnosed(pausing((5, 12), 90), step_s)
    assert (found.step.holds, found.step.parts) == (1, 1)
    assert found.step.unwatched_s == pytest.approx(usual_s, rel=0.001)
    assert found.step.unwatched_s * found.step.mean == pytest.approx(step_s)
    title = finding(found, "diagnose.given").title
    assert title.startswith(f"{as_time(step_s)} is taken as the mean of all steps, those that pause included")
    (steps,) = (line for line in screen(found, "", "").blocks[0].lines if line.name == "steps")
    assert (
        steps.parts[-1].text == f"unprofiled step time {as_time(usual_s)}, from the {as_time(step_s)} that were given"
    )


@pytest.mark.parametrize(("step_s", "parts"), [(10e-3, 1), (12e-3, 1), (40e-3, 4)])
def test_another_given_time_is_not_the_mean_with_steps_that_pause(step_s: float, parts: int) -> None:
    found = diagnosed(pausing((5, 12), 90), step_s)
    assert (found.step.mean, found.step.parts, found.step.unwatched_s) == (1, parts, step_s / parts)


def test_a_cold_first_pass_is_said_apart_and_not_averaged_into_the_others() -> None:
    made = Recorder()
    for step in range(4):
        with made.range(f"forward {step}", "annotation"):
            for kernel in range(40):
                if step == 0 and kernel % 4 == 0:
                    made.wait()
                    made.call("cuLibraryLoadData", 700_000)
                made.launch(f"kernel_{kernel}", 200_000)
    found = diagnosed(made)
    assert (found.steps.count, found.steps.likeness, found.bound) == (2, 1.0, "GPU-bound")
    assert found.step.watched_s == pytest.approx(40 * 201e-6, rel=0.01)
    ((name, seconds),) = found.steps.loops
    assert (name, seconds) == ("the first step, left out,", pytest.approx(15e-3, rel=0.1))


def test_a_first_step_whose_work_ends_a_full_queue_is_no_usual_step() -> None:
    made = Recorder()
    made.launch("before", 5_000_000)
    for step in range(4):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            made.launches(30, between_ns=297_000, duration_ns=100_000)
    found = diagnosed(made)
    assert (found.steps.found, found.steps.count) == ("annotations", 2)
    assert found.step.watched_s == pytest.approx(9e-3, rel=0.01)
    assert found.step.unwatched_s <= found.step.watched_s


@pytest.mark.parametrize("each_ms", [(10, 12, 14, 16), (30, 10, 20, 15), (20, 19, 21, 20)])
def test_first_steps_of_which_others_differ_as_much_are_steps(each_ms: tuple[int]) -> None:
    made = Recorder()
    for step, ms in enumerate([*each_ms, 1]):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            made.launches(12, between_ns=ms * 80_000)
    assert find_steps(made.trace()).loops == ()


def test_the_stretch_with_most_of_the_work_is_the_step_and_not_the_layers_of_one_prefill() -> None:
    made, chance = Recorder(), np.random.default_rng(1)
    for _ in range(150):
        made.launches(20, between_ns=1000, duration_ns=5000)
    made.runs(2_000_000)
    for _ in range(10):
        for kernel in range(100):
            for _ in range(chance.integers(3)):
                made.call(f"cudaEventQuery_{chance.integers(100)}", 500)
            made.runs(21_000)
            made.launch(f"decode_{kernel}", 20_000)
    found = diagnosed(made)
    assert found.step.kernels == 100
    ((name, seconds),) = found.steps.loops
    assert (name, seconds) == ("20 other CUDA calls that repeat, in", pytest.approx(20 * 5.9e-6, rel=0.05))


def test_a_single_step_far_behind_the_host_lasts_as_long_as_its_own_work() -> None:
    made = Recorder()
    made.launch("before", 20_000_000)
    with made.range("ProfilerStep#3", "annotation"):
        made.launches(40, between_ns=5000, duration_ns=300_000)
    made.call("cudaProfilerStop", 5000)
    found = diagnosed(made)
    assert (found.steps.count, found.bound) == (1, "GPU-bound")
    assert found.step.watched_s == pytest.approx(40 * 300.9e-6, rel=0.01)
    assert found.step.unwatched_s <= found.step.watched_s


def test_the_kernel_before_which_the_gpu_waits_is_named() -> None:
    made = Recorder()
    for _ in range(12):
        for part in range(4):
            made.launches(30)
            made.launch(f"part_{part}", 2000)
            made.runs(2_500_000)
            made.launch("linear_relu_square_kernel", 50_000)
        made.wait()
    (told,) = (one for one in words.findings(diagnosed(made)) if one.rule == "diagnose.pauses")
    assert "before linear_relu_square_kernel, 4 times a step" in told.title
    assert told.advice == "See what the host does each time before it launches that kernel, and do it once, or ahead"


def test_pinned_copies_take_as_long_without_the_profiler() -> None:
    made = Recorder()
    for _ in range(12):
        call = made.call("cudaMemcpyAsync", 3000)
        made.submit(call, "Memcpy HtoD", 900_000, kind="copy", memories=("pinned", "device"), size=1 << 24)
        made.wait()
    found = diagnosed(made)
    assert found.idle.busy_s / found.step.count <= found.step.low_s <= found.step.unwatched_s <= found.step.watched_s


def test_a_single_replay_of_a_graph_is_no_start_up() -> None:
    made = Recorder()
    made.launch("before", 3000)
    call = made.call("cudaGraphLaunch", 1_600_000)
    for node in range(100):
        made.submit(call, f"kernel_{node}", 110_000, node=node)
    found = diagnosed(made)
    assert (found.step, found.bound) == (None, "GPU-bound")
    assert 0.85 < found.idle.busy_s / found.idle.span_s < 0.9
    assert "2 calls, of which 1 replays a graph" in line_of(found, "trace")


def test_launches_at_the_end_without_a_record_are_said_and_no_clock_is_blamed() -> None:
    made = steps_of(count=30, kernels=20, duration_ns=50_000, between_ns=5000)
    made.call("cudaDeviceSynchronize", 6000)
    whole = made.trace()
    found = diagnose(replace(whole, work=whole.work[:250]), costs())
    assert found.bound == "GPU-bound"
    titles = [one.title for one in words.findings(found)]
    assert "The last 350 of 600 launches have no record: the recording ended before the GPU, or lost them" in titles
    late = diagnose(whole, costs())  # the clocks of a wait behind recorded work are
    assert "after the host waited for them" in late.why_no_idle
    assert max(check.share for check in late.health) <= 1


def test_a_short_copy_beside_kernels_with_gaps_is_no_copy_bound_trace() -> None:
    made, chance = Recorder(), np.random.default_rng(3)
    made.launch("before", 200_000)
    for _ in range(900):
        made.launch(f"kernel_{chance.integers(900)}", 2200, call_ns=500)
    call = made.call("cudaMemcpyAsync", 1000)
    made.submit(call, "Memcpy HtoD", 1500, kind="copy", memories=("pinned", "device"), size=64)
    found = diagnosed(made)
    assert (found.steps, found.bound) == (None, "GPU-bound")


@pytest.mark.parametrize("gap_us", [10, 100])
def test_a_busy_gpu_that_copies_for_nearly_half_of_the_time_is_copy_bound(gap_us: int) -> None:
    made, chance = Recorder(), np.random.default_rng(3)
    for _ in range(40):
        made.launch(f"kernel_{chance.integers(1000)}", 500_000)
        call = made.call(f"cudaMemcpyAsync_{chance.integers(1000)}", 1000)
        made.submit(call, "Memcpy HtoD", 480_000, kind="copy", memories=("pinned", "device"), size=1 << 24)
        made.wait()
        made.runs(gap_us * 1000)
    found = diagnosed(made)
    assert (found.steps, found.bound) == (None, "copy-bound")


def test_launches_in_front_of_a_long_kernel_and_a_wait_stay_launch_bound() -> None:
    made = Recorder()
    for _ in range(12):
        for _ in range(100):
            made.launch("small", 3000)
            made.runs(11_000)
        made.launch("long", 1_000_000)
        made.wait()
    assert diagnosed(made).bound == "launch-bound"


def test_the_gpu_waits_before_a_kernel_as_often_as_it_idles_there_and_never_before_a_copy() -> None:
    made, copying = Recorder(), Recorder()
    for _ in range(12):
        for part in range(4):
            made.launches(30)
            copying.launches(30)
            if part == 0:
                made.runs(10_000_000)
            made.launch("linear_relu_square_kernel", 50_000)
            copying.runs(2_500_000)
            call = copying.call("cudaMemcpyAsync", 3000)
            copying.submit(call, "Memcpy HtoD", 9000, kind="copy", memories=("pinned", "device"), size=1 << 16)
        made.wait()
        copying.wait()
    for one in (made, copying):
        (told,) = (finding for finding in words.findings(diagnosed(one)) if finding.rule == "diagnose.pauses")
        assert "times a step" not in told.title
        assert told.advice.startswith("Do it once")


def test_a_trace_whose_work_has_no_calls_says_nothing_of_its_clocks() -> None:
    made = steps_of()
    made.wait("cudaDeviceSynchronize")
    trace = made.trace()
    work = trace.work.copy()
    work["call"] = NONE
    assert not any("clocks" in str(one) for one in diagnose(replace(trace, work=work), costs()).health)


def test_the_last_of_a_few_marked_steps_counts_and_a_cold_first_one_does_not() -> None:
    made = Recorder()
    for step in range(3):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            made.launches(16, between_ns=45_000 + 40_000 * (step == 0))
    made.call("cudaDeviceSynchronize", 5000)
    found = diagnosed(made)
    assert (found.steps.found, found.steps.count) == ("annotations", 2)
    assert found.steps.step_s == pytest.approx(16 * 48e-6, rel=0.02)
    ((name, first_s),) = found.steps.loops
    assert (name, first_s) == ("the first step, left out,", pytest.approx(16 * 88e-6, rel=0.05))
    assert words.launch_time(found) <= found.step.watched_s / 16


def test_two_marked_steps_that_begin_with_work_of_the_host_are_as_long_as_their_marks() -> None:
    made = Recorder()
    for step in range(2):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            with made.range("aten::randn"):
                made.runs(500_000_000)
            made.runs(50_000_000)
            for kernel in range(DIFFERENT):
                made.launch(f"kernel_{kernel}", 2_000_000)
    made.wait("cudaDeviceSynchronize")
    found = diagnosed(made)
    lasts_s = np.diff(found.steps.begins_ns) * 1e-9
    assert lasts_s == pytest.approx([0.566, 0.55], rel=0.01)
    (operators,) = (one for one in owners(found.idle) if one.most == "aten::randn")
    assert 8 < found.without[operators.name].speedup < 12


def test_lost_calls_forbid_no_verdict_where_the_gpu_is_busy() -> None:
    def found(between_ns: int) -> Diagnosis:
        made = Recorder()
        for kernel in range(40):
            made.launch(f"ampere_sgemm_{kernel}", 100_000 - between_ns)
            made.ends_ns[7] += between_ns
        trace = made.trace()
        work = trace.work.copy()
        work["call"][1:] = NONE
        return diagnose(replace(trace, work=work), costs())

    busy = found(1000)
    assert (busy.bound, busy.graph) == ("GPU-bound", None)
    assert busy.idle.causes["unknown"] == pytest.approx(busy.idle.idle_s, rel=0.1)
    idle_ = found(50_000)
    assert idle_.idle is None
    assert "without a call" in idle_.why_no_idle


def test_the_first_use_of_a_library_is_the_programs_start() -> None:
    made = Recorder()
    for number, name in enumerate(("aten::cudnn_convolution", "aten::mm")):
        for kernel in range(6):
            made.launch(f"other_{number}_{kernel}", 3000)
        with made.range(name):
            made.runs(80_000_000)
            made.launch(f"product_{number}", 20_000)
    assert diagnosed(made).bound == "start-up"
    on_cpu = Recorder()
    for number in range(2):
        for kernel in range(6):
            on_cpu.launch(f"other_{number}_{kernel}", 3000)
        with on_cpu.range("aten::mm"):
            on_cpu.runs(80_000_000)
        on_cpu.runs(1000)
        on_cpu.launch(f"copies_{number}", 20_000)
    assert diagnosed(on_cpu).bound == "host-bound"


def test_a_step_has_none_of_the_profilers_own_time() -> None:
    made = Recorder()
    with made.range("ProfilerStep#7", "annotation"):
        for kernel in range(12):
            made.runs(30_000)
            if kernel == 2:
                with made.range("Unrecognized", "overhead"):
                    made.runs(2_000_000)
            made.launch(f"kernel_{kernel}", 3000)
    made.call("cudaDeviceSynchronize", 5000)
    found = diagnosed(made)
    assert found.idle.causes["profiler"] == pytest.approx(2e-3, rel=0.01)
    assert found.step.high_s <= found.step.watched_s - found.idle.causes["profiler"]
    assert found.bound == "launch-bound"
    assert words.launch_time(found) < 50e-6


def test_a_pause_that_an_operator_fills_waits_for_nothing() -> None:
    """The host computes for as long as the GPU's work leaves of a fixed time: as a loader's batch would come."""
    made = Recorder()
    for step in range(24):
        begin_ns = made.now_ns
        made.launches(30, 20_000 + 40_000 * (step % 5), 2_000)
        with made.range("aten::randn"):
            made.runs(10_000_000 - (made.now_ns - begin_ns))
        made.wait()
    found = diagnosed(made)
    assert found.recorded.paced_s is None
    assert "sets the pace" not in finding(found, "diagnose.pauses").advice


def test_the_layers_of_a_single_backward_pass_are_no_steps() -> None:
    made = Recorder()
    for layer in range(8):
        for kernel in range(10):
            made.launch(f"forward_{kernel}_{layer % 3}", 20_000)
    forward = len(made.calls)
    for _ in range(12):
        for kernel in range(10):
            made.launch(f"backward_{kernel}", 20_000)
    trace = made.trace()
    found = find_steps(trace)
    assert found is not None
    assert found.count > 6
    calls = trace.calls.copy()
    calls["thread"][forward:] = 1
    first, process = trace.threads[0], trace.threads[0].process
    named = (first, Thread(process=process, number=2, name="pt_autograd_0"))
    assert find_steps(replace(trace, calls=calls, threads=named)) is None
    worker = find_steps(replace(trace, calls=calls, threads=(first, Thread(process=process, number=2))))
    assert worker is not None, "a loop of another thread behind a warm-up"


def test_a_backward_pass_without_a_name_has_as_many_layers_as_the_forward_pass() -> None:
    made = Recorder()
    for _ in range(12):
        for kernel in range(6):
            made.launch(f"forward_{kernel}", 20_000)
    forward = len(made.calls)
    for _ in range(12):
        for kernel in range(10):
            made.launch(f"backward_{kernel}", 20_000)
    trace = made.trace()
    calls = trace.calls.copy()
    calls["thread"][forward:] = 1
    assert find_steps(replace(trace, calls=calls)) is None


def test_gpus_that_work_one_after_another_are_told_apart() -> None:
    made = Recorder()
    for device in range(4):
        for number in range(12):
            call = made.call("cudaMemcpyAsync", 3000)
            made.submit(
                call, f"copy {device} {number}", 900_000, kind="copy", memories=("pageable", "device"), size=1 << 24
            )
            made.wait()
    trace = made.trace()
    work = trace.work.copy()
    work["device"] = np.arange(48) // 12
    found = diagnose(replace(trace, work=work), costs())
    told = finding(found, "diagnose.in_turn")
    assert told.title == f"The 4 GPUs work one after another: at once, that takes {as_time(36 * 900e-6)} less"
    verdict = words.findings(found)[0].title
    assert verdict.startswith(f"Copy-bound: GPU {found.idle.device} works 9")
    assert verdict.endswith(" from its first work to its last")
    at_once = work.copy()
    for field in ("begin_ns", "end_ns"):
        at_once[field] = np.tile(work[field][:12], 4)
    at_once = at_once[np.argsort(at_once["begin_ns"], kind="stable")]
    assert "diagnose.in_turn" not in rules(diagnose(replace(trace, work=at_once), costs()))


def test_a_trace_that_is_too_short_says_what_most_of_its_work_is() -> None:
    copies = Recorder()
    for _ in range(2):
        call = copies.call("cudaMemcpy", 3000)
        memories = "pageable", "device"
        copies.submit(call, "Memcpy HtoD (Pageable -> Device)", 900_000, kind="copy", memories=memories, size=1 << 22)
    copies.launch("kernel", 200_000)
    told = finding(diagnosed(copies), "diagnose.copies_alone")
    assert told.title == "Copies from and to pageable memory are 90.0 % of the GPU's work"
    for _ in range(3):
        copies.call("cudaLaunchKernel", 3000)  # its kernel is lost
    copies.launch("kernel", 200_000)
    assert "diagnose.copies_alone" not in rules(diagnosed(copies))
    small = Recorder()
    small.launch("add", 1_440_000, blocks=1)
    assert finding(diagnosed(small), "diagnose.unfilled").title.endswith(" for 100 % of the GPU's work")
    large = Recorder()
    large.launch("add", 1_440_000, blocks=5000)
    assert rules(diagnosed(large)) == ["diagnose.health"]


def test_steps_of_two_streams_that_begin_in_pairs_are_steps() -> None:
    made = Recorder()
    for step in range(21):
        if step % 2:
            made.wait()
        for kernel in range(12):
            made.launch(f"kernel_{kernel}", 5_000_000 if step < 4 else 25_000_000, stream=7 + step % 2)
    found = find_steps(made.trace())
    assert found is not None
    assert found.count >= 15


def test_a_slow_library_in_each_step_is_no_start_up() -> None:
    made = Recorder()
    for step in range(12):
        with made.range("aten::cudnn_convolution"):
            made.runs(8_000_000)
            made.launch("convolution", 20_000)
        for kernel in range(9):
            made.launch(f"kernel_{kernel}_{step % 5}", 3000)
    assert diagnosed(made).bound == "host-bound"


def test_an_empty_last_mark_takes_no_step_away() -> None:
    made = Recorder()
    for step in range(3):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            made.runs(20_000)
            made.launches(12 * (step < 2))
    made.wait("cudaDeviceSynchronize")
    found = diagnosed(made)
    assert (found.steps.found, found.steps.count) == ("annotations", 2)


def test_a_profiler_that_writes_in_each_step_is_not_what_the_step_waits_for() -> None:
    made = Recorder()
    for step in range(8):
        with made.range(f"ProfilerStep#{step}", "annotation"):
            for kernel in range(12):
                made.launch(f"kernel_{kernel}", 100_000)
                made.wait()
            with made.range("Activity Buffer Request", "overhead"):
                made.runs(40_000_000)
    found = diagnosed(made)
    assert found.idle.causes["profiler"] > 0.9 * found.idle.idle_s
    assert found.bound == "GPU-bound"


def test_a_copy_without_a_length_has_no_rate() -> None:
    made = Recorder()
    made.submit(made.call("cudaMemcpy", 3000), "Memcpy HtoD", 0, kind="copy", size=1 << 24)
    assert dict(words.each_longest(made.trace()))["GPU works"] == ["Memcpy HtoD 0 s"]


def test_launches_that_come_late_are_no_device_gaps() -> None:
    """Each arrives as long behind its call as a launch at an idle GPU does, although its call returned a moment before
    the kernel ahead of it had ended."""
    made = Recorder()
    for _ in range(200):
        call = made.call("cuLaunchKernel", 3000)
        made.submit(call, "kernel", 3500)
        made.now_ns = made.ends_ns[7] - 100 - 3000
    found = diagnosed(made)
    assert found.bound == "launch-bound"
    assert found.idle.causes["launch latency"] > 10 * found.idle.causes["device gaps"]


def test_iterations_behind_equal_kernels_and_with_other_calls_between_are_steps() -> None:
    made = Recorder()
    for _ in range(600):
        made.launch("prepares", 1000)
    for step in range(60):
        for _ in range(step % 3):
            made.call("cuPointerGetAttribute", 500)
        made.launch("solves", 900_000)
        made.launch("sums", 100_000)
        call = made.call("cuMemcpyDtoHAsync", 1000)
        made.submit(call, "Memcpy DtoH", 1000, kind="copy", memories=("device", "pinned"), size=8)
        made.wait()
    found = find_steps(made.trace())
    assert found is not None
    assert found.count > 50
    assert found.step_s == pytest.approx(1e-3, rel=0.05)


def test_a_few_steps_that_are_shorter_than_their_kernels_are_no_steps() -> None:
    made = Recorder()
    for _ in range(4):
        call = made.call("cudaMemcpyAsync", 3000)
        memories = "pinned", "device"
        made.submit(call, "Memcpy HtoD", 11_000_000, kind="copy", memories=memories, size=1 << 24, stream=8)
        made.submit(made.call("cudaLaunchKernel", 3000), "busy", 34_000_000)
    assert find_steps(made.trace()) is None


def test_a_compiler_before_loads_is_the_programs_start() -> None:
    made = Recorder()
    for kernel in range(12):
        made.launch(f"kernel_{kernel}", 3000)
        made.runs(60_000_000)
        made.call("cuLinkCreate", 5000)
        made.call("cuModuleLoadData", 20_000)
    assert diagnosed(made).bound == "start-up"


@pytest.mark.parametrize(
    ("percent_", "memory", "named"), [(7, "pageable", True), (7, "pinned", False), (4, "pageable", False)]
)
def test_copies_of_pageable_memory_are_named_from_a_twentieth_of_the_time_on(
    percent_: int, memory: Any, named: bool
) -> None:
    made = Recorder()
    for kernel in range(20):
        call = made.call("cudaMemcpyAsync", 3000)
        memories = memory, "device"
        made.submit(call, f"Memcpy {kernel}", 10_000 * percent_, kind="copy", memories=memories, size=1 << 20)
        made.launch(f"kernel_{kernel}", 10_000 * (100 - percent_))
    assert ("diagnose.copies_alone" in rules(diagnosed(made))) is named


def test_an_operator_that_submits_after_a_short_time_loads_no_library() -> None:
    made = Recorder()
    for number in range(3):
        with made.range("aten::mm"):
            made.runs(3_000_000)
            made.launch(f"product_{number}", 20_000)
        for kernel in range(6):
            made.launch(f"other_{number}_{kernel}", 3000)
    assert diagnosed(made).bound == "host-bound"


@pytest.mark.parametrize(("size", "there"), [(4 << 20, True), (4096, False)])
def test_what_the_program_computes_with_data_of_the_gpu_is_better_done_there(size: int, there: bool) -> None:
    made = Recorder()
    for _ in range(30):
        made.launches(5)
        call = made.call("cudaMemcpyAsync", 400_000)
        made.submit(call, "Memcpy DtoH", 300_000, kind="copy", memories=("device", "pageable"), size=size)
        made.wait()
        with made.range("train.py:8 look", "line"):
            made.runs(8_000_000)
    said = finding(diagnosed(made), "diagnose.pauses")
    assert ("compute that there" in said.advice) == there
    assert "own code" in said.title


@pytest.mark.parametrize("source", ["device", "pageable"])
def test_copies_within_the_gpus_memory_make_no_step_copy_bound(source: Any) -> None:
    made = Recorder()
    for _ in range(30):
        made.launches(2, 4000, 1000)
        call = made.call("cudaMemcpyAsync", 60_000)
        made.submit(call, "Memcpy", 1000, kind="copy", memories=(source, "device"), size=200)
    assert diagnosed(made).bound == ("launch-bound" if source == "device" else "copy-bound")


def test_streams_that_did_not_run_side_by_side_on_a_busy_gpu_are_no_shorter_unprofiled() -> None:
    """Two streams whose kernels fill the GPU in turn."""
    made, free_ns = Recorder(), 0
    for _ in range(12):
        for kernel in range(8):
            stream = (7, 20)[kernel % 2]
            made.ends_ns[stream] = max(made.ends_ns.get(stream, 0), free_ns)
            made.launch(f"kernel_{kernel}", 2_000_000, stream=stream)
            free_ns = made.ends_ns[stream]
    found = diagnosed(made)
    assert found.bound == "GPU-bound"
    assert found.step.low_s >= 8 * 2e-3


def test_work_that_another_program_holds_back_waits_for_no_stream_of_its_own() -> None:
    """Half of the time work waits in its queue, in a program in which a stream waits for an event now and then."""
    made = Recorder()
    for _ in range(30):
        made.launches(4, 4000, 20_000)
        made.wait_event(made.record_event(7), 20)
        made.launch("other", 20_000, stream=20)
        made.ends_ns = {stream: end_ns + 300_000 for stream, end_ns in made.ends_ns.items()}
        made.launch("late", 20_000)
        made.wait()
    found = diagnosed(made)
    assert any(check.name == HELD for check in found.health)
    assert found.idle.causes["another stream"] == 0
    assert found.idle.causes["unknown"] > 0.3 * found.idle.span_s
