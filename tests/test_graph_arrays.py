"""`microbench graph` of functions of CuPy, whose graphs are played on the CPU. On a GPU: lab/array_traps.py."""

import contextlib
import gc
import importlib
import os
import random
import re
import subprocess
import sys
import threading
import weakref
from collections import Counter, UserDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from played_cupy import installed

with installed():
    array_traps: Any = importlib.import_module("array_traps")
    from traps import notices, report_of, said

    from microbench.capture import blockers, making, proof, suspects
    from microbench.capture.graphed import Graphed
    from microbench.capture.handover import helper

OF_A_GPU = {
    name
    for name in (*array_traps.TRAPS, *array_traps.SOUND)
    if name.startswith(("numba", "cuda_core", "raw_", "elementwise_k", "reduction_k", "fused", "own_generator"))
} | {"adds_at_indices"}


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(proof, "CALLS", 24)
    monkeypatch.setattr(making, "ROUND_S", 0.001)
    monkeypatch.setattr(blockers, "broken", lambda stream: False)
    monkeypatch.setattr(suspects, "operations", lambda call, **_: Counter({1: 1}))  # which the driver counts
    with installed() as package:
        monkeypatch.setattr(array_traps, "cp", package)
        yield package


@pytest.mark.parametrize("name", [one for one in array_traps.TRAPS if one not in OF_A_GPU])
def test_a_function_whose_graph_is_wrong_is_refused_with_its_reason(name: str) -> None:
    maker, wanted = array_traps.TRAPS[name]
    report = report_of(maker)
    assert not report.proved
    assert re.search(wanted, said(report)), said(report)


@pytest.mark.parametrize("name", [one for one in array_traps.SOUND if one not in OF_A_GPU])
def test_a_sound_function_is_proved(name: str) -> None:
    report = report_of(array_traps.SOUND[name])
    assert report.proved, said(report)
    assert report.counts["replays"] >= 20


@pytest.mark.parametrize("name", array_traps.SETTINGS)
def test_a_setting_that_the_caller_changes_between_calls_is_noticed(name: str) -> None:
    report = report_of(array_traps.SETTINGS[name])
    assert report.proved, said(report)
    assert notices(array_traps.SETTINGS[name])


def test_a_graph_of_cupy_needs_no_pytorch(tmp_path: Path) -> None:
    """The helper is handed over to programs that have CuPy alone."""
    text = "import sys; sys.modules['torch'] = None\nfrom played_cupy import installed\nwith installed() as cp:\n"
    text += "    import cuda_graph\n    step = cuda_graph.graphed(lambda a: a * 2 + 1)\n"
    text += "    del sys.modules['torch']\n    found = [float(step(cp.asarray([i]))[0]) for i in range(8)]\n"
    text += "    print(found, cuda_graph.torch, step.counts['replays'])\n"
    (tmp_path / "cuda_graph.py").write_text(helper())
    folders = os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])
    said = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60,
                          env=os.environ | {"PYTHONPATH": folders})  # fmt: skip
    assert said.stdout.split() == [*str([1.0 + 2 * each for each in range(8)]).split(), "None", "5"], said.stderr


def test_where_a_function_writes_to_its_input_the_times_are_of_one_tensor(cupy: Any) -> None:
    sets = [((cupy.asarray([1.0]), cupy.asarray([float(number)])), {}) for number in range(3)]

    def step(total: Any, a: Any) -> None:
        total += a

    kept = making._kept_where_written(step, sets)
    assert all(one[0][0] is sets[0][0][0] for one in kept)
    assert [float(one[0][1][0]) for one in kept] == [0.0, 1.0, 2.0]


def test_sizes_that_kernels_of_ones_own_trust_are_not_made_larger() -> None:
    assert proof.another(256) == 255
    assert proof.another(0) == 1


def test_a_swap_leaves_the_same_two_arrays(cupy: Any) -> None:
    """In the attributes of a function whose graph is not replayed, as it changes what it reads."""
    held = SimpleNamespace(u=cupy.asarray([1.0]), v=cupy.asarray([2.0]))

    def step() -> None:
        held.v[...] = held.u * 3
        held.u, held.v = held.v, held.u

    first, second = held.u, held.v
    graph = Graphed(step)
    for _ in range(6):
        graph()
    assert {id(held.u), id(held.v)} == {id(first), id(second)}
    assert float(held.u[0]) == 3.0**6
    assert graph.counts == {"warm-ups": 3, "captures": 1, "eager": 2}


def test_only_one_stream_is_captured(cupy: Any) -> None:
    one, two = cupy.cuda.Stream(), cupy.cuda.Stream()
    into = cupy.asarray([0.0])

    def step() -> None:
        for stream in (one, two)[: held.streams]:
            with stream:
                cupy.add(into, 1, out=into)

    held = SimpleNamespace(streams=1)
    two_streams = Graphed(step)
    for _ in range(6):
        two_streams()
    assert "2 streams" in " ".join(two_streams.reasons)

    def in_one() -> None:
        with one:
            cupy.add(into, 1, out=into)

    graph, before = Graphed(in_one), float(into[0])
    for _ in range(7):
        graph()
    assert cupy.cuda.Event.waits[-2:] == [(one.ptr, 0), (0, one.ptr)], "before and after a replay"
    assert float(into[0]) == before + 7
    assert graph.counts["replays"] == 4


def test_a_library_without_a_stream_of_its_own_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from microbench.capture import graphed

    monkeypatch.setattr(graphed, "torch", None)
    monkeypatch.delitem(sys.modules, "cupy")
    with pytest.raises(RuntimeError, match="default stream"):
        graphed.Captured(lambda: None)


def test_a_graph_keeps_the_memory_and_the_plans_that_it_uses(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = SimpleNamespace()
    cache = UserDict({"a shape": plan})
    monkeypatch.setattr(cupy, "fft", SimpleNamespace(config=SimpleNamespace(get_plan_cache=lambda: Cache(cache))))
    monkeypatch.setitem(sys.modules, "cupy.fft", cupy.fft)
    made: list[Any] = []
    pools: list[Any] = []

    class Pool:
        malloc = None

        def __init__(self) -> None:
            pools.append(weakref.ref(self))

    monkeypatch.setattr(cupy.cuda, "MemoryPool", Pool)
    graph = Graphed(lambda a: a * 2)
    for number in range(6):
        made.append(graph(cupy.asarray([float(number)])))
    gc.collect()
    assert pools[-1]() is not None
    assert any(one is plan for one in graph._last._captured._kept)
    del graph
    gc.collect()
    assert pools[-1]() is None


class Cache:
    """As CuPy's: it yields keys with nodes that hold a plan."""

    def __init__(self, entries: Any) -> None:
        self._entries = entries

    def __iter__(self) -> Any:
        return iter([(key, SimpleNamespace(plan=one)) for key, one in self._entries.items()])

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("reading an entry moves it to the end, so that a loop over all never ends")


def test_an_array_whose_shape_is_set_is_an_error_some_calls_later(cupy: Any) -> None:
    weight = cupy.asarray([1.0, 2.0, 3.0, 4.0])
    graph = Graphed(lambda a: (weight * a).sum(axis=0))
    for _ in range(6):
        graph(cupy.asarray([2.0]))
    weight.shape = (2, 2)
    with pytest.raises(RuntimeError, match="the memory of weight has changed"):
        _ = [graph(cupy.asarray([2.0])) for _ in range(100)]


def test_a_graph_may_not_write_to_memory_that_others_have(cupy: Any) -> None:
    taken = proof.take(np.random.default_rng(1))
    assert proof.untouched(taken)
    taken[3][5] = 0.0
    assert not proof.untouched(taken)


def test_what_a_kernel_of_numba_gets_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream, and arrays of the host, which each launch copies."""
    from microbench.capture import graphed

    class Configured:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __call__(self, *_: Any) -> str:
            return "launched"

    monkeypatch.setitem(sys.modules, "numba.cuda.dispatcher", SimpleNamespace(_LaunchConfiguration=Configured))
    own, other, said = Configured(SimpleNamespace(handle=7)), Configured(0), list[str]()
    with graphed._nowhere_else(7):
        assert own(1.0) == "launched"
        with pytest.raises(RuntimeError, match="another stream"):
            other(1.0)
        for host in (np.ones(2), SimpleNamespace(value=np.ones(2)), (1.0, np.ones(2))):
            with pytest.raises(RuntimeError, match="array of the host"):
                own(host)
        elsewhere = threading.Thread(target=lambda: said.append(other(np.ones(2))))
        elsewhere.start()
        elsewhere.join()
        assert own(np.float32(1)) == "launched"
    assert said == [other(np.ones(2))] == ["launched"], "another thread's kernels are its own"


class Configured:
    """As kernel[grid, block, stream] of Numba."""

    def __init__(self, stream: Any, ran: list[float]) -> None:
        self.stream, self._ran = stream, ran

    def __call__(self, rate: float) -> None:
        self._ran.append(rate)


Configured.__module__ = "numba.cuda.dispatcher"


def test_a_kernel_of_numba_without_a_stream_is_in_the_way(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[float] = []
    monkeypatch.setitem(sys.modules, "numba.cuda.dispatcher", SimpleNamespace(_LaunchConfiguration=Configured))
    kernel = Configured(0, ran)

    def step() -> None:
        kernel(0.5)

    looked = blockers.blockers(step, step, [])
    (one,) = looked.blockers
    assert (one.kind, one.call) == ("stream", "a kernel")
    assert "kernel(0.5)" in one.line
    assert ran == [0.5]


class Builder:
    """As cuda.core's: once an error has broken what is built, only close() ends that."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def begin_building(self) -> None:
        self._log.append("begin")

    def end_building(self) -> None:
        self._log.append("end")

    def close(self) -> None:
        self._log.append("close")

    def complete(self) -> Any:
        return SimpleNamespace(launch=lambda stream: self._log.append("launch"))


@pytest.mark.parametrize(("fails", "log"), [(False, ["begin", "end", "launch"]), (True, ["begin", "close"])])
def test_a_stream_of_cuda_core_is_captured_by_its_own_means(
    fails: bool, log: list[str], cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from microbench.capture import graphed

    done: list[str] = []
    of_core = SimpleNamespace(create_graph_builder=lambda: Builder(done))
    device = SimpleNamespace(set_current=lambda: None, create_stream=lambda stream: of_core)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(core=SimpleNamespace(Device=lambda: device)))
    monkeypatch.setitem(sys.modules, "cuda.core", SimpleNamespace(Device=lambda: device))

    def call() -> None:
        if fails:
            raise ValueError("a wait")

    with contextlib.suppress(ValueError):
        graphed.Captured(call, SimpleNamespace(handle=7)).launch()
    assert done == log


def test_a_default_stream_that_is_only_waited_for_is_a_wait(cupy: Any) -> None:
    null = cupy.cuda.Stream.null

    def step(a: Any) -> Any:
        null.synchronize()
        return a * 2

    report = report_of(lambda: (step, (cupy.asarray([1.0, 2.0]),)))
    assert [(one.kind, one.call) for one in report.blockers] == [("wait", "synchronize")]


def test_a_stream_may_be_an_argument(cupy: Any) -> None:
    into, streams = cupy.asarray([0.0]), [cupy.cuda.Stream.null] * 5 + [cupy.cuda.Stream()] * 8

    def step(stream: Any) -> None:
        with stream:
            cupy.add(into, 1, out=into)

    graph = Graphed(step)
    for stream in streams:
        graph(stream)
    assert float(into[0]) == 13
    assert graph.counts["replays"] == 5


def test_captures_in_two_threads_leave_streams_as_they_were(cupy: Any) -> None:
    from microbench.capture import graphed

    before = cupy.cuda.Stream.__enter__
    first, second = threading.Event(), threading.Event()

    def captures(mine: threading.Event, other: threading.Event) -> None:
        with graphed._nowhere_else(7):
            mine.set()
            other.wait(0.2)

    threads = [threading.Thread(target=captures, args=one) for one in ((first, second), (second, first))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert cupy.cuda.Stream.__enter__ is before


class Quantity(float):
    """A number with a unit."""

    unit = 1.0


class Batch(list[Any]):
    """A list with a setting."""

    scale = 1.0


class Listener:
    def __init__(self) -> None:
        self.weight = 1.0

    def doubled(self, a: Any) -> Any:
        return a * 2


def with_unit(value: float, unit: float) -> Quantity:
    one = Quantity(value)
    one.unit = unit
    return one


def batch(one: Any, scale: float) -> Batch:
    made = Batch([one])
    made.scale = scale
    return made


class State:
    """Holds the arrays and attributes that the cases below read and write."""

    def __init__(self, cupy: Any) -> None:
        self.u, self.last, self.inner = cupy.asarray([1.0, 2.0, 3.0, 4.0]), 0.0, None
        self.listeners = {Listener()}


def same_object(cupy: Any, s: State, number: int) -> Any:
    def pair(x: Any, y: Any) -> Any:
        return x + y + (100.0 if x is y else 0.0)

    one = cupy.asarray([float(number)])
    return pair, ((one, one) if number % 3 == 2 else (one, one + 1))


def read_elsewhere(cupy: Any, s: State, number: int) -> Any:
    def step(a: Any) -> Any:
        s.u[...] += 1
        return a * s.u

    return step, ((s.u,) if number == 8 else (cupy.asarray([float(number)] * 4),))


def left_for_the_caller(cupy: Any, s: State, number: int) -> Any:
    def step(rate: float) -> Any:
        s.u[...] *= rate
        s.last = rate
        return s.u * 1

    return step, (0.5 if number % 2 else 0.25,)


def a_view_is_left(cupy: Any, s: State, number: int) -> Any:
    def step() -> Any:
        s.u[...] += 1
        s.inner = s.u[1:-1]
        return s.u * 1

    if number == 9 and s.inner is not None:
        s.inner[...] = 50.0
    return step, ()


def a_number_with_a_unit(cupy: Any, s: State, number: int) -> Any:
    return lambda a, q: a * float(q) * q.unit, (cupy.asarray([2.0]), with_unit(3.0, 1.0 if number < 7 else 1000.0))


def a_list_with_a_setting(cupy: Any, s: State, number: int) -> Any:
    return lambda b: b[0] * b.scale, (batch(cupy.asarray([2.0]), 1.0 if number < 7 else 9.0),)


def elements_of_a_set(cupy: Any, s: State, number: int) -> Any:
    if number == 7:
        next(iter(s.listeners)).weight = 4.0
    return lambda a: a * sum(one.weight for one in s.listeners), (cupy.asarray([2.0]),)


def read_elsewhere_at_the_capture(cupy: Any, s: State, number: int) -> Any:
    return read_elsewhere(cupy, s, 8 if number == 3 else number if number != 8 else 7)


@pytest.mark.parametrize(
    "case",
    [same_object, read_elsewhere, read_elsewhere_at_the_capture, left_for_the_caller, a_view_is_left,
     a_number_with_a_unit, a_list_with_a_setting, elements_of_a_set],
)  # fmt: skip
def test_a_graph_does_in_twelve_calls_what_the_function_does(case: Any, cupy: Any) -> None:
    """Cases in which a replay once used values of an earlier call."""
    plain, graphed = State(cupy), State(cupy)
    graph: Any = None
    for number in range(12):
        function, arguments = case(cupy, plain, number)
        wanted = function(*arguments)
        function, arguments = case(cupy, graphed, number)
        graph = graph or Graphed(function)
        got = graph(*arguments)
        assert np.array_equal(np.asarray(got.get()), np.asarray(wanted.get())), number
        assert np.array_equal(graphed.u.get(), plain.u.get()), number
        assert graphed.last == plain.last, number
    assert graph.counts["replays"] >= 2


def test_a_bound_method_may_be_an_argument(cupy: Any) -> None:
    model = Listener()
    graph = Graphed(lambda a, way: way(a))
    for number in range(8):
        assert float(graph(cupy.asarray([float(number)]), model.doubled)[0]) == 2.0 * number
    assert graph.counts["replays"] == 5


def test_random_numbers_of_the_system_are_never_replayed(cupy: Any) -> None:
    system = random.SystemRandom()
    graph = Graphed(lambda a: a * system.random())
    found = {float(graph(cupy.asarray([1.0]))[0]) for _ in range(8)}
    assert len(found) == 8
