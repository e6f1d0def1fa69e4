"""Which loop's turns are steps, and which window of a recording shows them, on made programs."""

import itertools

import msgspec
import numpy as np
import pytest
from make_trace import Recorder
from test_diagnose import costs

from microbench.diagnosis.diagnosis import diagnose
from microbench.diagnosis.steps import find_steps
from microbench.diagnosis.turns import in_pauses, iterations, loops_of
from microbench.diagnosis.window import between, one_window
from microbench.traces.collector import _number_nodes
from microbench.traces.trace import NONE, Loop, Pause

MS = 1_000_000


def nested(inner: int, around_ns: int, kernel_ns: int = 2000) -> Recorder:
    """An outer loop (train.py:9) that does other things for a time, around an inner one (train.py:5) that launches."""
    made = Recorder()
    for _ in range(12):
        for _ in range(inner):
            made.launches(4, 5000, kernel_ns)
            made.turn()
        made.wait()
        made.runs(around_ns)
        made.turn(1)
    return made


@pytest.mark.parametrize(
    ("around_ns", "kernel_ns", "place"),
    [(100_000, 2000, "train.py:5"), (5 * MS, 2000, "train.py:9"), (100_000, 400_000, "train.py:5")],
)
def test_a_loop_that_only_launches_is_no_step_if_the_gpu_idles_outside(
    around_ns: int, kernel_ns: int, place: str
) -> None:
    """numpy computes between the inner loop's launches, so the GPU idles there. If the GPU is busy, nothing waits."""
    steps = find_steps(nested(20, around_ns, kernel_ns).trace())
    assert (steps.found, steps.name) == ("loop", place)


@pytest.mark.parametrize(("function", "place"), [("run", 5), ("Chain.forward", 9), ("Sampler.__call__", 5)])
def test_a_loop_in_a_models_forward_is_over_layers(function: str, place: int) -> None:
    loops = tuple(
        Loop(f"train.py:{line} {name}", own=True, beneath=False) for line, name in ((5, function), (9, "run"))
    )
    steps = find_steps(nested(20, 100_000).trace(loops=loops))
    assert (steps.found, steps.name.partition(" ")[0]) == ("loop", f"train.py:{place}")


def test_the_programs_own_loop_comes_before_a_librarys_in_a_part_of_a_recording() -> None:
    """A part in which the own loop turns twice, and the library's within it forty times."""
    made = nested(20, 100_000)
    loops = Loop("library.py:5 map", own=False, beneath=False), Loop("train.py:9 run", own=True, beneath=False)
    whole, ends = made.trace(loops=loops), [at for at, loop, *_ in made.turns if loop == 1]
    first = int(whole.work["begin_ns"].min())
    part = between(whole, (ends[3] - first) * 1e-9, (ends[7] - first) * 1e-9)
    steps = find_steps(part)
    assert (steps.name, steps.count) == ("train.py:9 run", 2)
    few = msgspec.structs.replace(
        part, turns=part.turns[np.isin(part.turns["at_ns"], ends[4:7]) | (part.turns["loop"] == 0)]
    )
    assert find_steps(few).name == "library.py:5 map", "three ends in all are no loop"


def ahead(epochs: bool) -> Recorder:
    """A loop whose host runs ahead of the GPU and waits for it in each eighth turn. With ``epochs`` a loop around ends
    there."""
    made = Recorder()
    for turn in range(64):
        made.launch("kernel", 3 * MS, 2000)
        if turn % 8 == 7 and not epochs:
            made.wait()
        made.turn()
        if turn % 8 == 7 and epochs:
            made.launches(30, 5000, 100_000)
            made.turn(1)
    return made


def test_the_loop_around_is_tried_after_the_inner_one() -> None:
    trace = nested(20, 100_000).trace()
    names = np.ones(len(trace.calls), np.int64)
    assert [loop.place for loop in iterations(trace, names, loops_of(trace))] == ["train.py:5", "train.py:9"]


def test_each_eighth_turn_that_waits_is_a_turn_like_others() -> None:
    (loop,) = loops_of(ahead(epochs=False).trace())
    assert len(loop.ends_ns) == 63
    steps = find_steps(ahead(epochs=False).trace())
    assert steps.step_s == pytest.approx(3e-3, rel=0.05)


def test_such_turns_count_in_pauses_of_a_recording_too() -> None:
    trace = ahead(epochs=False).trace()
    pause = Pause(0, 10**12)
    (times_ns,) = in_pauses(trace, [pause], "train.py:5", every=8, stalls=True)
    assert times_ns == pytest.approx(3 * MS, rel=0.05)


def test_a_turn_in_which_an_epoch_ends_does_something_else() -> None:
    inner = next(loop for loop in loops_of(ahead(epochs=True).trace()) if loop.place == "train.py:5")
    assert len(inner.ends_ns) < 10


@pytest.mark.parametrize(("longer", "count"), [((5, 9, 20, 33, 35, 50), 64), ((5, 33), 30), ((1, 5, 9, 33, 50), 62)])
def test_turns_that_are_longer_now_and_then_belong_to_the_loop_if_they_are_several(
    longer: tuple[int, ...], count: int
) -> None:
    made = Recorder()
    for turn in range(64):
        made.launch("kernel", 3 * MS, 2000)
        if turn in longer:
            made.runs(40 * MS)
            for _ in range(5):  # such as batches of an evaluation
                made.turn(1)
        made.turn()
    loop = next(loop for loop in loops_of(made.trace()) if loop.place == "train.py:5")
    assert len(loop.ends_ns) == pytest.approx(count, abs=2)


def test_a_window_in_which_the_loop_only_begins_is_not_shown() -> None:
    """The loop turns in its last part, behind much other work."""
    made, edges = Recorder(), [0]
    made.launches(50)
    edges.append(made.now_ns)
    for launches, turns in ((4000, 6), (20, 30)):
        made.launches(launches, 1000, 1000)
        for _ in range(turns):
            made.launches(20)
            made.turn()
        edges.append(made.now_ns + 1)
    assert len(one_window(made.trace(windows=tuple(itertools.pairwise(edges)))).work) == 620


def test_the_window_in_which_the_loop_turns_is_shown() -> None:
    """Libraries try kernels at first, which is more work than the program does then."""
    made = Recorder()
    made.launches(50)
    edges = [0, made.now_ns]
    made.launches(4000, 1000, 1000)
    edges.append(made.now_ns)
    for _ in range(30):
        made.launches(20)
        made.turn()
    edges.append(made.now_ns + 1)
    trace = made.trace(windows=tuple(itertools.pairwise(edges)))
    assert len(one_window(trace).work) == 600
    without = msgspec.structs.replace(trace, turns=trace.turns[:0])
    assert len(one_window(without).work) == 4000


@pytest.mark.parametrize(("turns", "shown"), [(5, 100), (60, 60)])
def test_a_last_window_that_the_programs_end_has_cut_is_not_shown(turns: int, shown: int) -> None:
    made = Recorder()
    for _ in range(100):
        made.launches(20)
        made.turn()
    begin_ns = made.now_ns
    for _ in range(turns):
        made.launches(20)
        made.turn()
    windows = ((0, begin_ns), (begin_ns, 10**15))
    assert len(one_window(made.trace(windows=windows)).work) == 20 * shown


def test_a_window_full_of_an_evaluation_is_not_shown() -> None:
    """The evaluation's loop turns in no other window. The program's loop does."""
    made = Recorder()
    made.launches(50)
    edges = [0, made.now_ns]
    for evaluations, turns in ((100, 6), (0, 30)):
        for turn in range(turns):
            made.launches(20)
            for _ in range(evaluations if turn == turns - 1 else 0):
                made.launches(20)
                made.turn(1)
            made.turn()
        edges.append(made.now_ns + 1)
    assert len(one_window(made.trace(windows=tuple(itertools.pairwise(edges)))).work) == 600


def test_a_loop_of_a_warm_up_in_two_windows_comes_not_before_the_programs_own() -> None:
    made = Recorder()
    made.launches(50)
    edges = [0, made.now_ns]
    for loop, turns in ((1, 30), (1, 60), (0, 200)):
        for _ in range(turns):
            made.launches(10)
            made.turn(loop)
        edges.append(made.now_ns + 1)
    assert len(one_window(made.trace(windows=tuple(itertools.pairwise(edges)))).work) == 2000


@pytest.mark.parametrize("replayed", [True, False])
def test_bodies_of_conditional_nodes_make_no_stream_wait(replayed: bool) -> None:
    """XLA's loops on the GPU: each body follows the last one after 20 us, in the same replay. Between launches nothing
    explains such a time."""
    made = Recorder()
    for _ in range(12):
        made.runs(50_000)
        call = made.call("cuGraphLaunch", 8000)
        for node in range(20):
            call = call if replayed else made.call("cuLaunchKernel", 1000)
            made.submit(call, f"body_{node}", 3000, node=node)
            made.ends_ns[7] += 20_000
        made.wait()
        made.turn()
    idle = diagnose(made.trace(), costs()).idle
    nine_s = 9 * 19 * 20e-6  # of nine whole steps
    assert (idle.causes["device gaps"] > nine_s, idle.causes["unknown"] > nine_s) == (replayed, not replayed)


def test_work_of_a_conditional_nodes_body_has_the_replay_that_runs_it() -> None:
    """CUPTI gives bodies a number that no call has. The nodes of a replay whose call is lost are known from others."""
    made = Recorder()
    for lost in (False, False, True):
        call = made.call("cuGraphLaunch", 8000)
        for node, body in ((1, False), (2, False), (50, True), (51, True)):
            made.submit(call, "kernel", 3000, node=node)
            if body or lost:
                made.work[-1] = (*made.work[-1][:6], NONE, *made.work[-1][7:])
    trace = made.trace()
    _number_nodes(trace.work, trace.calls, trace.names)
    assert trace.work["call"].tolist() == [0] * 4 + [1] * 4 + [NONE, NONE, 1, 1]
