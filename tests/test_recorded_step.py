"""What a trace says of its typical step: pauses, waits, copies, latencies and blockers of made-up programs."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import make_trace
import msgspec
import numpy as np
import pytest
from make_trace import GAP_NS, WAY_NS, Recorder, in_turns, steps_of, with_pinned_copies
from test_diagnose import costs, diagnosed

from microbench.core.units import as_time
from microbench.diagnosis import recorded as recording
from microbench.diagnosis import words
from microbench.diagnosis.diagnosis import Diagnosis, diagnose
from microbench.diagnosis.host_time import called_from, doing
from microbench.diagnosis.latencies import recorded_latencies
from microbench.diagnosis.recorded import Recorded, recorded
from microbench.diagnosis.steps import find_steps
from microbench.diagnosis.turns import in_pauses
from microbench.diagnosis.unwatched import between_windows
from microbench.diagnosis.window import one_window
from microbench.model.workload import KERNEL_MEMSET, Copies, HostWork, Kernels, Part, Wait
from microbench.traces.trace import NONE, RANGE_KINDS, STACKS, Memory, Pause, Processor

TO_GPU: tuple[Memory, Memory] = ("pageable", "device")
FROM_GPU: tuple[Memory, Memory] = ("device", "pageable")


def recorded_of(made: Recorder) -> Recorded:
    found = diagnosed(made).recorded
    assert found is not None
    return found


def parts_of(made: Recorder, *kinds: type[Part]) -> list[Part]:
    return [part for part in recorded_of(made).workload.parts if isinstance(part, kinds)]


# Pauses


def test_a_pause_while_another_thread_begins_is_the_programs_own() -> None:
    """A loader between the thread of the backward pass and the main one keeps the GPU waiting as any loader does."""
    made = Recorder()
    for _ in range(12):
        for thread in (0, 1):
            made.thread = thread
            made.runs(1_500_000)
            for kernel in range(20):
                made.runs(10_000)
                made.launch(f"kernel_{thread}_{kernel}", 3000)
    found = recorded_of(made)
    assert found.threads == 2
    assert found.pauses_s == pytest.approx(2 * 1.51e-3)
    assert found.changes["pauses"] == {0: None, 21: None}
    assert diagnosed(made).bound == "host-bound"


def fed(every_ns: int, rests_ns: Iterator[int] | Sequence[int], kernels: int = 10) -> Recorder:
    """Steps that wait for a batch, which comes every so often, and then take ``rests_ns``."""
    made = Recorder()
    for step, rest_ns in enumerate(rests_ns):
        made.runs(max((step + 1) * every_ns - made.now_ns, 0))
        made.launches(kernels, rest_ns // kernels - 3000)
    return made


def rests_ns(count: int = 40) -> list[int]:
    return np.random.default_rng(3).integers(1_000_000, 3_000_000, count).tolist()


def test_a_step_that_waits_for_its_batch_takes_as_long_as_the_batch() -> None:
    """A graph would make the rest of the step shorter and the wait longer."""
    found = diagnosed(fed(5_000_000, rests_ns()))
    assert found.recorded.paced_s == pytest.approx(5e-3, rel=0.01)
    assert found.step.unwatched_s == found.step.low_s == found.step.high_s == found.recorded.paced_s
    assert (found.graph, found.remedies) == (None, ())
    assert found.why_no_graph.startswith("the step waits for something that comes every 5.01 ms")


def test_steps_whose_batch_was_ready_say_nothing_of_its_pace() -> None:
    """Every third step takes longer than a batch, so the next one finds its batch ready."""
    late = [5_500_000 if step % 3 == 0 else rest for step, rest in enumerate(rests_ns(60))]
    assert recorded_of(fed(5_000_000, late)).paced_s == pytest.approx(5e-3, rel=0.15)


def test_pauses_of_one_length_are_no_pace() -> None:
    """The program's own work before a step stays what it is, however long the rest takes."""
    made = Recorder()
    for rest_ns in rests_ns():
        made.runs(3_000_000)
        made.launches(10, rest_ns // 10)
    assert recorded_of(made).paced_s is None
    assert diagnosed(made).graph is not None


def test_a_few_odd_steps_hide_no_pace_and_make_none() -> None:
    rest_s = np.linspace(1e-3, 3e-3, 30)
    waits_s = 5e-3 - rest_s
    waits_s[[4, 17, 25]] += 40e-3
    assert recording._paced(waits_s, waits_s + rest_s) == pytest.approx(5e-3)
    own_s = np.full(30, 3e-3)
    own_s[[0, 29]] = 50e-3, 1.5e-3
    assert recording._paced(own_s, own_s + rest_s) is None
    assert recording._paced(waits_s[:5], (waits_s + rest_s)[:5]) is None, "five steps show nothing"
    ready_s = np.full(30, 0.1e-3)
    assert recording._paced(ready_s, ready_s + rest_s) is None, "no step waits"
    mostly_ready_s = np.where(np.arange(60) % 3, np.linspace(5.2e-3, 9e-3, 60), np.linspace(1e-3, 3e-3, 60))
    waits_s = np.maximum(5e-3 - mostly_ready_s, 0)
    assert recording._paced(waits_s, waits_s + mostly_ready_s) == pytest.approx(5e-3)


def test_a_clock_whose_ticks_are_late_and_then_early_is_a_pace() -> None:
    """Each tick comes late by a random time. Half of that lies in pauses."""
    random, count = np.random.default_rng(1), 200
    own_s, late_s = 2e-3 + random.normal(0, 2e-4, count), random.normal(0, 1.6e-4, count + 1)
    for ticks, paced in ((np.diff(late_s), True), (random.permutation(np.diff(late_s)), False)):
        period_s = 6e-3 + ticks
        waits_s = period_s - own_s - ticks / 2
        found = recording._paced(waits_s, period_s)
        assert found == (pytest.approx(6e-3, rel=0.01) if paced else None)


def test_steps_that_differ_have_a_pace_too() -> None:
    """A training step has now and then a kernel more. The loader's batch comes every 10 ms all the same."""
    made, comes_ns = Recorder(), 0
    for step in range(24):
        comes_ns += 10_000_000
        begin_ns = made.now_ns
        made.launches(30 + step % 3 + (step % 7 == 0), 20_000 + 40_000 * (step % 5), 2_000)
        made.runs(max(comes_ns - made.now_ns, 0))
        made.ranges.append((begin_ns, made.now_ns, made.name(f"step {step}"), 0, RANGE_KINDS.index("annotation")))
    assert recorded_of(made).paced_s == pytest.approx(10e-3, rel=0.01)


def test_of_steps_of_about_one_length_the_typical_one_has_the_usual_owners() -> None:
    made = Recorder()
    for step in range(24):
        begin_ns = made.now_ns
        with made.range("json/decoder.py(3): load" if step < 2 else "train.py(3): load", "python"):
            made.runs(2_000_000)
        made.launches(30 + step % 2, 9000, 2000)
        made.ranges.append((begin_ns, made.now_ns, made.name(f"step {step}"), 0, RANGE_KINDS.index("annotation")))
    found = recorded_of(made)
    assert "Python's json" not in found.owned
    assert sum(found.owned["your own code"].values()) == pytest.approx(2e-3 * found.steps)


# Copies and waits


def copying(size: int, memories: tuple[Memory, Memory], *, ends: bool) -> Recorder:
    """Ten kernels of 100 us that are launched at once, and a copy whose call ends with it, or returns at once."""
    made = Recorder()
    for _ in range(12):
        made.launches(10, 1000, 100_000)
        until_ns = made.ends_ns[7] + 50_000 if ends else made.now_ns + 5000
        call = made.call("cudaMemcpyAsync", until_ns - made.now_ns)
        made.work_at(call, until_ns - 40_000 if ends else made.ends_ns[7] + GAP_NS, 30_000, size, memories)
        made.runs(200_000)
    return made


def test_a_large_pageable_copy_waits_for_the_work_before_it() -> None:
    """Its own time is that after this work, which a graph or another order of the work leaves as it is."""
    parts = recorded_of(copying(4 << 20, TO_GPU, ends=True)).workload.parts
    place = next(place for place, part in enumerate(parts) if isinstance(part, Wait))
    copy = parts[place + 1]
    assert isinstance(copy, HostWork)
    assert copy.seconds == pytest.approx(50e-6)


def test_a_small_pageable_copy_to_the_gpu_does_not_wait() -> None:
    small, large = copying(64 << 10, TO_GPU, ends=False), copying((64 << 10) + 1, TO_GPU, ends=True)
    assert parts_of(small, Wait) == []
    assert len(parts_of(large, Wait)) == 1
    assert parts_of(copying(4 << 20, TO_GPU, ends=False), Wait) == [], "its call returned long before it began"
    (copy,) = [part for part in parts_of(small, HostWork) if part == HostWork(5e-6)]
    assert copy == HostWork(5e-6)


def test_a_pageable_copy_from_the_gpu_waits_whatever_its_size() -> None:
    found = recorded_of(copying(8, FROM_GPU, ends=True))
    assert sum(isinstance(part, Wait) for part in found.workload.parts) == 1
    assert set(found.changes) == {"waits"}


def test_a_pageable_copy_is_compared_with_a_pinned_one() -> None:
    made = Recorder()
    for _ in range(12):
        call = made.call("cudaMemcpyAsync", 900_000)
        made.submit(call, "Memcpy HtoD", 100_000, kind="copy", memories=TO_GPU, size=4 << 20)
        made.launches()
    found = diagnosed(made)
    wait, copy = found.recorded.changes["pinned"].values()
    assert wait is None, "a pinned copy waits for nothing"
    assert isinstance(copy, Copies)
    assert copy.size_bytes == 4 << 20
    pinned = next(remedy for remedy in found.remedies if remedy.name == "pinned")
    # The host no longer stages 4 MiB for 0.9 ms; the link takes 76 us for them, while the host launches.
    assert pinned.step_s == pytest.approx(10 * 12.3e-6 + 10e-6, rel=0.2)


def test_the_hosts_time_for_a_copy_stays_with_the_copy() -> None:
    copies = [part for part in parts_of(with_pinned_copies(), Copies) if isinstance(part, Copies)]
    assert [copy.host_s for copy in copies] == pytest.approx([26e-6] * 10)
    kernels = [part for part in parts_of(with_pinned_copies(), Kernels) if isinstance(part, Kernels)]
    assert [kernel.host_s for kernel in kernels] == pytest.approx([12e-6] * 10)


def test_memory_from_a_pool_leaves_the_time_around_the_allocation() -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(5)
        made.runs(20_000)
        made.call("cudaMalloc", 300_000)
        made.launches(5)
    found = diagnosed(made)
    ((place, part),) = found.recorded.changes["allocation"].items()
    assert part == HostWork(pytest.approx(20e-6))
    assert found.recorded.workload.parts[place] == HostWork(pytest.approx(320e-6))
    pool = next(remedy for remedy in found.remedies if remedy.name == "allocation")
    assert found.step.unwatched_s - pool.step_s == pytest.approx(300e-6, rel=0.02)
    assert pool.what == "keep memory in a pool instead of allocating it in each step"
    assert found.bound == "allocation-bound"


# Latencies


def test_the_trace_itself_shows_how_long_work_and_waits_take_to_follow() -> None:
    free = recorded_latencies(steps_of(waits=True).trace(), 0)
    assert free == pytest.approx({"way": WAY_NS * 1e-9, "complete": 1.5e-6})
    made = steps_of(duration_ns=50_000, between_ns=100)
    assert recorded_latencies(made.trace(), 0) == pytest.approx({"gap_stream": GAP_NS * 1e-9})
    behind = Recorder()
    for _ in range(12):
        behind.launches(2, 100, 50_000)
        copy = behind.call("cudaMemcpyAsync", 3000)
        behind.submit(copy, "Memcpy HtoD", 3000, kind="copy", memories=("pinned", "device"), size=4096)
    assert recorded_latencies(behind.trace(), 0)["gap_copy"] == pytest.approx(GAP_NS * 1e-9)


def test_what_a_trace_shows_only_a_few_times_is_left_out() -> None:
    made = steps_of(count=1, kernels=7, waits=True)
    assert recorded_latencies(made.trace(), 0) == {}


def test_the_recorded_step_is_played_with_its_own_latencies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait pays the way, and this recorder made it three times as long as the run's."""
    monkeypatch.setattr(make_trace, "WAY_NS", 15_000)
    made = Recorder()
    for _ in range(12):
        for kernel in range(6):
            made.runs(15_000)
            made.launch(f"kernel_{kernel}", 20_000)
            made.wait(ns=9000)
    assert "model" not in diagnosed(made).why_no_graph
    monkeypatch.setattr("microbench.diagnosis.diagnosis.recorded_latencies", lambda trace, device: {})
    assert "too short" in diagnosed(made).why_no_graph


# What belongs to a step


def test_a_program_of_the_default_stream_needs_a_second_one_for_its_graph() -> None:
    def second(*streams: int) -> bool:
        made = Recorder()
        for _ in range(12):
            for kernel in range(6):
                made.runs(9000)
                made.launch(f"kernel_{kernel}", 2000, stream=streams[kernel % len(streams)])
        return recorded_of(made).workload.second_stream

    assert [second(7), second(13), second(13, 20)] == [True, False, True]


def test_a_stream_of_copies_alone_is_no_second_one() -> None:
    made = Recorder()
    for _ in range(12):
        copy = made.call("cudaMemcpyAsync", 3000)
        made.submit(copy, "Memcpy HtoD", 3000, 20, kind="copy", memories=("pinned", "device"), size=4096)
        made.launches(6, 9000, 2000, stream=13)
    assert not recorded_of(made).workload.second_stream


def blockers(made: Recorder) -> dict[str, float]:
    return {f"{one.call} in {one.place}": one.count for one in recorded_of(made).blockers}


def waiting(places: Sequence[str], once: int | None = None) -> Recorder:
    """Steps that wait in these places, and one of which waits a second time."""
    made = Recorder()
    for step, place in enumerate(places):
        with made.range(f"step#{step}", "annotation"):
            made.launches()
            with made.range(place):
                made.wait()
            if step == once:
                made.wait("cudaDeviceSynchronize")
    return made


def test_what_comes_once_in_a_trace_is_no_part_of_a_step() -> None:
    assert blockers(waiting(["aten::item"] * 12, once=8)) == {"cudaStreamSynchronize in aten::item": 1.0}


def test_a_blocker_has_the_place_that_most_steps_name() -> None:
    places = ["aten::item"] * 12
    places[5] = "aten::other"
    assert blockers(waiting(places)) == {"cudaStreamSynchronize in aten::item": 1.0}


def test_a_function_of_the_host_is_no_launch() -> None:
    """CUDA calls it when the stream comes to it; no work of the GPU belongs to it."""
    assert doing("cuLaunchHostFunc") == doing("cudaLaunchHostFunc") == "other_call"
    made = Recorder()
    for _ in range(12):
        made.launches()
        made.call("cuLaunchHostFunc", 3000)
    found = diagnosed(made)
    assert [check.name for check in found.health] == ["steps found by repetition"]
    assert found.recorded.launches == 10


def test_a_step_is_not_three_because_loading_happens_to_repeat() -> None:
    """Calls before the steps are alike 39 calls later, which says nothing of the steps."""
    made = Recorder()
    for call in range(80):
        made.call(("cuModuleLoadData", "cuModuleGetFunction", f"load_{call % 39}")[call % 3], 1000)
    for _ in range(60):
        made.launches(13)
    steps = find_steps(made.trace())
    assert set(np.diff(steps.calls)) == {13}


@pytest.mark.parametrize(("turns", "looks", "found"), [(100, True, 98), (100, False, 0), (20, True, 0)])
def test_a_long_loop_behind_a_longer_start_has_steps_if_it_looks(turns: int, looks: bool, found: int) -> None:
    """The layers of a model repeat as often, but the host does not wait in each."""
    made = Recorder()
    for kernel in range(40):
        made.launch(f"begins_{kernel}", 1_000_000)
    for _ in range(turns):
        for kernel in range(4):
            made.launch(f"kernel_{kernel}", 5000)
        if looks:
            made.wait()
    steps = find_steps(made.trace())
    assert (steps.count if steps is not None else 0) == found


@pytest.mark.parametrize(("kernels", "looks", "found"), [(1, True, 10), (1, False, 0), (40, True, 0)])
def test_copies_before_them_do_not_hide_calls_that_look_each_time(kernels: int, looks: bool, found: int) -> None:
    """A program copies its data first. Steps read a result each time; layers of a model do not."""
    made = Recorder()
    for _ in range(3):
        made.submit(made.call("cudaMemcpyAsync", 3000), "Memcpy", 30_000_000, kind="copy")
    for kernel in range(kernels):
        made.launch(f"begins_{kernel}", 1_000_000)
    for _ in range(13):
        made.launches(4, 50_000, 30_000)
        if looks:
            made.wait()
    steps = find_steps(made.trace())
    assert (steps.count if steps is not None else 0) == pytest.approx(found, abs=1 if found else 0)


@pytest.mark.parametrize(("nested", "found"), [(False, "annotations"), (True, "repetition")])
def test_ranges_without_work_are_turns_of_an_idle_server(nested: bool, found: str) -> None:
    made = Recorder()
    for step in range(12):
        with made.range(f"execute_{step}", "annotation"):
            made.launches(5, 5000)
    for step in range(3):
        inner = made.range(f"execute_{step}{step}", "annotation") if nested else nullcontext()
        with made.range(f"execute_{step}", "annotation"), inner:
            made.runs(5000)
    steps = find_steps(made.trace())
    assert (steps.found, steps.count) == (found, 10)


@pytest.mark.parametrize(("start_ns", "found"), [(1_000_000, 4), (100_000_000, 0)])
def test_a_few_repetitions_within_a_long_start_are_no_steps(start_ns: int, found: int) -> None:
    made = Recorder()
    for call in range(20):
        made.call(f"cuModuleLoad{call}", start_ns // 20)
        made.launch(f"begins_{call}", 1000)
    for _ in range(6):
        made.launches(12)
        made.wait()
    steps = find_steps(made.trace())
    assert (steps.count if steps is not None else 0) == found


# What the answer claims


def beside(blocks: int) -> Recorder:
    """Kernels of 20 us in two streams, launched 60 us apart, so that none runs beside another as it was recorded."""
    made = Recorder()
    for _ in range(12):
        for kernel in range(10):
            made.runs(57_000)
            made.launch(f"kernel_{kernel}", 20_000, stream=(13, 20)[kernel % 2], blocks=blocks)
    return made


def test_kernels_side_by_side_share_the_sms_and_the_interval_says_how_unsure_that_is() -> None:
    several = [diagnosed(beside(blocks)) for blocks in (4, 132)]
    small, large = (found.graph for found in several)
    for found, graph in zip(several, (small, large), strict=True):
        assert {one.name: one.step_s for one in found.remedies}["graph"] == pytest.approx(graph.step_s)
    assert small.step_s == pytest.approx(5 * 20.5e-6, rel=0.15)
    assert large.step_s == pytest.approx(10 * 20.5e-6, rel=0.15), "each fills the GPU"
    assert large.low_s < (small.step_s + large.step_s) / 2
    assert small.high_s - small.low_s < (large.high_s - large.low_s) / 2


def test_kernels_that_were_recorded_side_by_side_are_as_slow_as_they_were() -> None:
    """Each has a block for every SM, and yet they took no longer together: not all SMs are theirs all the time."""
    made = Recorder()
    for _ in range(12):
        for kernel in range(10):
            made.runs(12_000)
            made.launch(f"kernel_{kernel}", 20_000, stream=(13, 20)[kernel % 2], blocks=132)
    step = diagnosed(made).step
    assert step.watched_s == pytest.approx(150e-6)
    assert step.unwatched_s < step.watched_s


def test_host_time_behind_a_wait_may_stay_in_front_of_the_next_graph() -> None:
    def found(between_ns: int) -> Diagnosis:
        made = Recorder()
        for _ in made.steps(12):
            made.launches()
            made.wait()
            made.runs(between_ns)
            made.launches()
        step = diagnosed(made).step
        return diagnosed(made, step.watched_s)

    short, long = (found(between_ns).graph for between_ns in (0, 80_000))
    assert long.step_s - short.step_s == pytest.approx(40e-6, rel=0.1), "half of it is likely"
    assert long.high_s - short.high_s == pytest.approx(80e-6, rel=0.2)
    assert long.low_s == pytest.approx(short.low_s, rel=0.1)


@pytest.mark.parametrize(("other_ns", "stays"), [(700_000, 1.0), (800_000, 0.5)])
def test_a_pause_like_other_times_between_calls_may_be_the_frameworks(other_ns: int, stays: float) -> None:
    """A graph removes the framework's host time. A pause twice as long as the others is the program's own work."""
    made = Recorder()
    for _ in range(12):
        made.runs(1_500_000)
        made.launches(5, duration_ns=20_000)
        made.runs(other_ns)
        made.launches(5, duration_ns=20_000)
    found = diagnosed(made)
    assert found.recorded.pauses_s == pytest.approx(1.51e-3)
    assert found.graph.step_s == pytest.approx(stays * 1.51e-3, rel=0.05)
    assert found.graph.high_s > 1.5e-3
    assert (found.graph.low_s > 1e-3) == (stays == 1.0)


def test_a_pageable_copy_beside_graphs_takes_what_the_gpu_recorded_or_longer() -> None:
    made = copying(4 << 20, TO_GPU, ends=True)
    found = recorded_of(made)
    ((place, (likely_s, least_s)),) = found.unsure.items()
    assert found.workload.parts[place] == HostWork(pytest.approx(50e-6))
    assert likely_s == least_s == pytest.approx(30e-6)


def test_a_memset_is_a_node_of_its_own_up_to_the_size_at_which_it_is_a_kernel() -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(3)
        for size in (KERNEL_MEMSET - 1, KERNEL_MEMSET):
            made.submit(made.call("cudaMemsetAsync", 2000), "Memset (Device)", 1000, kind="memset", size=size)
    kernels = parts_of(made, Kernels)
    assert [part.memset for part in kernels if isinstance(part, Kernels)] == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("name", "kind", "layer", "replaceable"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", "kernel", "torch_eager", True),
        ("Memset (Device)", "memset", "torch_eager", True),
        ("vectorized_elementwise_kernel", "kernel", "torch_eager", False),
        ("flash_fwd_kernel", "kernel", "loop", False),
    ],
)
def test_a_capture_of_pytorch_may_replace_attention(name: str, kind: str, layer: str, replaceable: bool) -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(3)
        made.submit(made.call("cudaLaunchKernel", 2000), name, 1000, kind=kind)
    trace = made.trace()
    steps = find_steps(trace)
    assert steps is not None
    assert recorded(trace, steps, layer, 0).replaceable is replaceable
    said = [finding for finding in words.findings(diagnosed(made)) if finding.rule == "diagnose.graph"]
    assert (words.REPLACED in said[0].text) is (replaceable or layer == "loop")


def test_no_graph_is_advised_if_it_saves_less_than_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    made = steps_of(count=12, kernels=50, duration_ns=10_000, between_ns=20_000)
    assert diagnosed(made).graph is not None
    monkeypatch.setattr("microbench.diagnosis.diagnosis._unknown", lambda workload, fit, step_s: (0.0, 300e-6))
    found = diagnosed(made)
    assert found.graph is None
    assert found.why_no_graph == "what a graph would save is less than the prediction's uncertainty"
    assert "graph" not in {remedy.name for remedy in found.remedies}


def test_a_host_that_waits_and_launches_late_because_of_it_is_wait_bound() -> None:
    """Neither the waits nor the launches have half of the idle time alone, but less waiting saves both."""
    made = Recorder()
    for _ in range(12):
        for kernel in range(6):
            made.runs(6000)
            made.launch(f"kernel_{kernel}", 50_000)
            made.wait(ns=9000)
    found = diagnosed(made)
    assert found.idle.causes["waits"] < found.idle.idle_s / 2
    assert found.remedies[0].name == "waits"
    assert found.bound == "wait-bound"


def test_what_a_graph_saves_of_the_devices_gaps_is_no_launching() -> None:
    """The host is always ahead of the GPU."""
    made = Recorder()
    for _ in range(12):
        for kernel in range(100):
            made.runs(600)
            made.launch(f"kernel_{kernel}", 2500 if kernel % 2 else 6400, 3500)
    found = diagnose(made.trace(), costs())
    assert found.idle is not None
    assert found.remedies[0].name == "graph"
    assert found.bound == "GPU-bound"


@pytest.mark.parametrize(("works_ns", "pause_ns", "bound"), [
    (400_000, 0, "wait-bound"), (8000, 0, "launch-bound"), (400_000, 1_500_000, "host-bound"),
])  # fmt: skip
def test_launches_that_are_late_because_the_host_waited_long_are_no_launch_bound_step(
    works_ns: int, pause_ns: int, bound: str
) -> None:
    """The host has submitted a step long before the GPU ends it, waits, and then submits the next one."""
    made = Recorder()
    for _ in made.steps(12):
        made.runs(60_000 + pause_ns)
        replay = made.call("cudaGraphLaunch", 9000)
        for node in range(20):
            made.submit(replay, f"node_{node}", works_ns // 20, node=node + 1)
        made.wait()
    found = diagnosed(made)
    assert found.idle.causes["waits"] < found.idle.idle_s / 4
    assert found.bound == bound
    advised = any(one.rule == "diagnose.waits" and "what they delay" in one.title for one in words.findings(found))
    assert advised is (bound == "wait-bound")


def test_a_step_has_its_events_whatever_its_streams_are_called() -> None:
    assert recorded_of(in_turns(between_ns=5000, duration_ns=20_000)).work == 16


# Turns of the program's own loop


def in_a_loop(own_ns: int, framework_ns: int, noted: bool = True) -> Recorder:
    """Steps that end with a wait and the program's own work; the framework's comes when the next turn begins."""
    made = Recorder()
    for _ in range(12):
        made.runs(framework_ns)
        made.launches(20, between_ns=12_000)
        made.wait()
        made.runs(own_ns)
        if noted:
            made.turn()
    return made


def test_a_graph_keeps_what_the_program_does_before_its_turn_ends() -> None:
    found = {own_ns: diagnosed(in_a_loop(own_ns, 100_000)) for own_ns in (5000, 60_000)}
    for own_ns, one in found.items():
        assert one.steps.found == "loop"
        assert one.recorded.turning_s == pytest.approx(own_ns * 1e-9)
    shorter, longer = (one.graph for one in found.values())
    assert longer.step_s - shorter.step_s == pytest.approx(55e-6, rel=0.01)
    assert shorter.high_s - shorter.step_s > 35e-6, "half of it may be the program's"


def test_without_turns_half_of_what_comes_behind_a_wait_stays() -> None:
    found = diagnosed(in_a_loop(5000, 100_000, noted=False))
    known = diagnosed(in_a_loop(5000, 100_000))
    assert (found.recorded.turning_s, found.steps.found) == (None, "repetition")
    more_s = found.graph.step_s - known.graph.step_s
    assert 0.7 * 105e-6 / 2 < more_s + 5e-6 < 105e-6 / 2, "some of the 105 us is the recorder's"


def test_a_step_that_was_slower_while_nothing_recorded_has_a_slower_host() -> None:
    """A host that is 1.15 times as slow by then makes no kernel longer, so the graph stays as long."""
    made = in_a_loop(5000, 20_000)
    given = diagnosed(made).steps.step_s * 1.15
    slower, usual = diagnosed(made, given), diagnosed(made)
    assert slower.step.unwatched_s == pytest.approx(given, rel=0.01)
    assert slower.graph.step_s == pytest.approx(usual.graph.step_s, rel=0.02)


@pytest.mark.parametrize(("ran", "found"), [(0.9, True), (0.7, False), (0.2, False)])
def test_a_program_that_spins_in_cuda_calls_does_not_compute(ran: float, found: bool) -> None:
    """It spends half of its time in CUDA calls, which spin."""
    made = Recorder()
    for _ in range(10):
        made.runs(10_000)
        made.call("cudaStreamSynchronize", 10_000)
    processor = Processor(1000, round(1000 * ran), 0, 2.0, 2)
    assert recording.computes(msgspec.structs.replace(made.trace(), processor=processor)) == found


@pytest.mark.parametrize(
    ("owned_s", "before_s", "wanted_s", "found_s"),
    [
        ({"a": [4.0], "b": [4.0]}, [8.0], {"a": 3.0, "b": 7.0}, {"a": 3.0, "b": 5.0}),
        ({"a": [4.0, 0.0]}, [4.0, 1.0], {"a": 2.0, "b": 10.0}, {"a": 2.0, "b": 3.0}),
        ({"a": [2.0, 1.0]}, [4.0, 2.0], {"a": 4.0, "b": 1.0}, {"a": 4.0, "b": 1.0}),
    ],
)
def test_a_step_has_the_owners_of_all_steps(
    owned_s: dict[str, list[float]], before_s: list[float], wanted_s: dict[str, float], found_s: dict[str, float]
) -> None:
    made = {owner: np.array(each) for owner, each in owned_s.items()}
    found = recording._as_in_all(made, wanted_s, np.array(before_s))
    assert {owner: float(each.sum()) for owner, each in found.items()} == pytest.approx(found_s)
    assert (sum(found.values()) <= np.array(before_s) + 1e-12).all()


def test_what_the_program_does_between_two_epochs_is_no_step() -> None:
    made = Recorder()
    for step in range(60):
        made.runs(5_000_000 if step != 30 else 400_000_000)
        made.turn()
    pause = Pause(0, made.now_ns + 1)
    times_ns = np.concatenate(in_pauses(made.trace(pauses=(pause,)), [pause], "train.py:5", 1, stalls=False))
    assert len(times_ns) > 10
    assert set(times_ns) == {5_000_000}


@pytest.mark.parametrize(
    ("recorded_ms", "works_ms", "known_ms"),
    [(8, 1, 5), (4, 1, 4), (2, 1, 5), (8, 5, 5), (8, 6, None)],
    ids=["what is near counts", "no longer than recorded", "the host was slower", "GPU-bound", "it ran ahead"],
)
def test_a_step_in_pauses(recorded_ms: int, works_ms: float, known_ms: float | None) -> None:
    made = Recorder()
    pauses, windows_ns = list[Pause](), list[tuple[int, int]]()
    for turn_ms in (20, 4, 6):  # the window lies between the last two
        began_ns = made.now_ns + 1
        for _ in range(20):
            made.runs(turn_ms * 1_000_000)
            made.turn()
        pauses.append(Pause(began_ns, made.now_ns + 1))
        windows_ns.append((made.now_ns + 2, made.now_ns + 100_000_000))
        made.runs(100_000_000)
    whole = made.trace(pauses=tuple(pauses))
    known = between_windows(whole, *recorded_in(windows_ns[1], recorded_ms * 1e-3, [200]), works_ms * 1e-3)
    idle_ms = known_ms and known_ms - works_ms  # while the GPU works, nothing waits for calls
    taken_ms = 0.0975 + 0.0325 * idle_ms / known_ms if known_ms and idle_ms else 0.0
    assert (known_ms and known_ms - taken_ms) == (known and pytest.approx(known.step_s * 1e3))


def recorded_in(window_ns: tuple[int, int], step_s: float, calls: Sequence[int]) -> tuple[Any, Any]:
    """The window and the steps of two of them, in which each thread has so many calls."""
    threads = np.repeat(np.arange(len(calls)), calls)
    steps = SimpleNamespace(
        found="loop", name="train.py:5", every=1, begins_ns=window_ns, step_s=step_s, calls=[0, len(threads)], count=2
    )
    return SimpleNamespace(calls={"thread": threads}), steps


@pytest.mark.parametrize(
    ("turn_us", "works_us", "calls", "least_us", "most_us"),
    [
        (2000, 500, [4000], 0.75 * 1300, 0.8 * 1500),
        (5000, 3000, [2000], 0.4 * 650, 0.8 * 2000),
        (5000, 5000, [2000], 0, 0),
        (5000, 5200, [2000], 0, 0),
        (5000, 0, [200, 100, 100], 65, 390),
        (0, 0, [200], None, None),
    ],
    ids=["no less than the GPU's work", "kernels beside launches", "GPU-bound", "ahead", "threads", "no time"],
)
def test_what_cupti_takes_in_pauses(
    turn_us: int, works_us: int, calls: list[int], least_us: float | None, most_us: float | None
) -> None:
    made = Recorder()
    for _ in range(20):
        made.runs(turn_us * 1000)
        made.turn()
    window_ns = made.now_ns + 2, made.now_ns + 100_000_000
    whole = made.trace(pauses=(Pause(0, made.now_ns + 1),))
    known = between_windows(whole, *recorded_in(window_ns, 1.0, calls), works_us * 1e-6)
    if least_us is None or most_us is None:
        assert known is None
    else:
        ends = [turn_us - (least_us + most_us) / 2, turn_us - most_us, turn_us - least_us]
        assert known is not None
        assert [known.step_s, known.low_s, known.high_s] == pytest.approx([one * 1e-6 for one in ends])
        assert known.low_s >= min(works_us, turn_us) * 1e-6


def test_a_window_whose_work_was_submitted_before_it_is_no_example() -> None:
    made = steps_of(count=12, kernels=4, duration_ns=1_000_000, between_ns=5000)
    whole = made.trace()
    begins_ns, last_ns = whole.calls["begin_ns"], int(whole.work["end_ns"].max())
    submitted_ns, ended_ns = int(begins_ns[-1]) + 1, int(whole.work["begin_ns"][20])
    assert submitted_ns < ended_ns
    windows = ((0, int(begins_ns[8])), (int(begins_ns[8]), submitted_ns), (ended_ns, last_ns))
    found = one_window(msgspec.structs.replace(whole, windows=windows))
    assert list(found.calls["begin_ns"]) == list(begins_ns[8:])


def test_kernels_without_a_call_belong_to_no_window() -> None:
    whole = steps_of(count=3, kernels=4, duration_ns=1000, between_ns=5000).trace()
    work = whole.work.copy()
    work["call"] = NONE
    whole = msgspec.structs.replace(whole, calls=whole.calls[:0], work=work, windows=((-1000, 10_000_000),))
    assert one_window(whole) is whole


@pytest.mark.parametrize(
    ("windows", "lost", "said"), [(3, 300, True), (3, 240, True), (3, 12, False), (3, 0, False), (2, 300, True)]
)
def test_a_later_window_that_lacks_records_is_named(windows: int, lost: int, said: bool) -> None:
    made, ends_ns = Recorder(), [0]
    for steps in (10, 20, 30)[-windows:]:
        for _ in range(steps):
            made.launches(10, 20_000)
            made.wait()
        ends_ns.append(made.now_ns)
    whole = made.trace(format="microbench recording", windows=tuple(itertools.pairwise(ends_ns)), loops=())
    found = diagnose(msgspec.structs.replace(whole, work=whole.work[: len(whole.work) - lost]), costs())
    assert (found.trace.calls["begin_ns"][0] < ends_ns[-2]) == said
    assert (found.trace.calls["begin_ns"][0] >= ends_ns[1]) == (windows > 2), "the first window is the last choice"
    titles = [one.title for one in words.findings(found) if one.rule == "diagnose.window"]
    begin, end = (as_time((at_ns - 20_000) * 1e-9) for at_ns in (ends_ns[-2] + 20_000, whole.calls["begin_ns"][-2]))
    assert titles == [f"A later window is left out: {lost} launches between {begin} and {end} without a record"] * said


def test_steps_that_wait_in_turn_for_the_same_kernels_need_one_graph() -> None:
    """Like a loop that reads its loss in every fourth step."""

    def turns(*, kernels: int) -> Recorded:
        made = Recorder()
        for step in made.steps(24):
            made.launches(20 + kernels * (step % 4 == 0), 9000, 2000)
            if step % 4 == 0:
                made.wait()
        return recorded_of(made)

    assert (turns(kernels=0).steps, turns(kernels=0).shapes) == (4, 1)
    assert (turns(kernels=3).steps, turns(kernels=3).shapes) == (4, 2)


def test_cupy_refuses_products_in_a_capture() -> None:
    def refused(kernel: str, **packages: str) -> str:
        made = Recorder()
        for _ in range(12):
            made.launches(5, 9000, 2000)
            made.launch(kernel, 5000)
        found = diagnose(made.trace(versions=packages), costs()).recorded
        assert found is not None
        return found.refused

    assert "cuBLAS" in refused("gemmSN_NN_kernel", cupy="14")
    assert refused("cupy_add__float32_float32_float32", cupy="14") == ""
    assert refused("gemmSN_NN_kernel", cupy="14", torch="2") == ""


def test_a_wait_right_behind_a_copy_is_of_its_line() -> None:
    made = Recorder()
    for _ in range(12):
        made.launches(20, 9000, 2000)
        copy = made.call("cudaMemcpyAsync", 9000)
        made.submit(copy, "Memcpy DtoH", 1000, kind="copy", memories=("device", "pinned"), size=4)
        made.runs(2000)
        made.wait()
        made.runs(500_000)
        made.wait()
    line, begins_ns = made.name("train.py:9 step"), [begin for begin, _, name, _ in made.calls]
    asked = [place for place in range(len(made.calls)) if place % 23 == 20]
    stacks = np.array([(begins_ns[place], line, NONE, 0) for place in asked], STACKS)
    found = called_from(made.trace(stacks=stacks))
    assert set(found) == {*asked, *(place + 1 for place in asked)}
    assert set(found.values()) == {line}
