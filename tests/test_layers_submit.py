"""How a layer's calls are timed and counted: on a clock that only they move, and on a real GPU."""

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu_checks import may_skip
from layer_stand_ins import BAD, CASES, CONTEXT, GRAPHING, OK, SPINNING, STREAM, Code, put_stand_ins

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import LayerCall
from microbench.experiments.graph import lives
from microbench.experiments.graph.lives import Life
from microbench.gpu.layers.base import LayerHandle, LayerSubmit, kernels_of_one_call, open_spinning
from microbench.gpu.protocol.gpu import Gpu


class Clockwork:
    """A clock that only calls and waits move: a call takes 10 ns, a wait 100 ns."""

    def __init__(self, code: Code = OK) -> None:
        self.now, self.calls, self.waits, self.code = 0, 0, 0, code
        self.waited_on: set[int] = set()

    def now_ns(self) -> int:
        return self.now

    def call(self) -> None:
        self.now, self.calls = self.now + 10, self.calls + 1

    def wait(self, stream: int = 0) -> tuple[Code]:
        self.now, self.waits = self.now + 100, self.waits + 1
        self.waited_on.add(stream)
        return (self.code,)

    def submit(self, *, own_wait: bool = False) -> LayerSubmit:
        driver = SimpleNamespace(CUstream=int, cuStreamSynchronize=self.wait)
        stream, synchronize = (None, self.wait) if own_wait else (STREAM, None)
        return LayerSubmit(LayerHandle(self.call, stream, synchronize), driver, self.now_ns)


def test_bursts_and_stamps_time_the_calls_alone() -> None:
    clockwork, out_ns = Clockwork(), np.zeros(5, dtype=np.int64)
    submit = clockwork.submit()
    submit(7)
    assert submit.burst_ns(5) == 50
    assert (clockwork.calls, clockwork.waits) == (12, 0)
    assert submit.queue_slots == 510
    submit.stamps(out_ns)
    assert np.diff(out_ns).tolist() == [10, 10, 10, 10]
    assert clockwork.calls == 16
    threaded = Clockwork()
    assert threaded.submit(own_wait=True).burst_ns(5) == 50
    assert threaded.waits == 1, "a library with threads of its own is drained before a burst"
    assert time.get_clock_info("monotonic").implementation == "clock_gettime(CLOCK_MONOTONIC)"


def test_a_round_trip_is_a_call_and_a_wait_for_the_stream() -> None:
    clockwork, out_ns = Clockwork(), np.zeros(3, dtype=np.int64)
    clockwork.submit().round_trips(out_ns)
    assert out_ns.tolist() == [110, 110, 110]
    assert clockwork.waited_on == {STREAM}
    with pytest.raises(MeasurementError, match="STAND_IN"):
        Clockwork(BAD).submit().round_trips(out_ns)
    with pytest.raises(MeasurementError, match="way to wait"):
        LayerSubmit(LayerHandle(lambda: None, None), driver=None)


OP = LayerCall("a layer")


def bound(handle: LayerHandle) -> Any:
    """A case in which OP is bound to this handle."""
    return SimpleNamespace(layers={OP: SimpleNamespace(handle=handle)})


@pytest.mark.parametrize("name", GRAPHING)
def test_a_librarys_graph_is_stamped_counted_and_destroyed_before_the_next(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    launches = put_stand_ins(monkeypatch)
    acts = launches.graphs

    def synchronize(stream: int) -> tuple[Code]:
        assert stream == STREAM
        acts.append("wait")
        return (OK,)

    monkeypatch.setattr(lives, "driver", SimpleNamespace(CUstream=int, cuStreamSynchronize=synchronize))
    handle = open_spinning(name, CONTEXT, 0)
    launches.clear()
    stamps = lives.layer_lives(bound(handle), OP, 3, 2)
    assert len(launches) == 2 * 3, "one replay of each graph"
    assert stamps.shape == (2, Life.DESTROYED)
    assert (stamps[:, Life.MADE] == 0).all() == (name == "cupy_raw")
    assert (np.diff(np.delete(stamps, Life.MADE, axis=1), axis=1) >= 0).all()
    upload = [] if name == "torch_eager" else ["upload"]
    destroy = {"cupy_raw": [], "torch_eager": ["reset", "empty cache"]}.get(name, ["destroy executable", "destroy"])
    assert acts == ["wait", *upload, "wait", "wait", *destroy] * 2
    acts.clear()
    make = handle.graph
    assert make is not None
    wrong = replace(handle, graph=lambda nodes: replace(make(nodes), nodes=lambda: nodes + 1))
    with pytest.raises(MeasurementError, match="3 calls became a graph of 4 nodes"):
        lives.layer_lives(bound(wrong), OP, 3, 1)
    assert acts[len(acts) - len(destroy) :] == destroy, "a graph is destroyed after an error too"
    with pytest.raises(Skip, match="no graphs"):
        lives.layer_lives(bound(replace(handle, graph=None)), OP, 3, 1)


class CaptureDriver:
    """Stream capture that returns a graph of ``nodes``, which are node types."""

    CUstream = int
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL="kernel")

    def __init__(self, nodes: tuple[str, ...] = (), begin: Code = OK, end: Code = OK) -> None:
        self.nodes, self.begin, self.end = nodes, begin, end
        self.capturing, self.graphs = False, 0

    def cuStreamBeginCapture(self, stream: int, mode: int) -> tuple[Code]:  # noqa: N802
        assert (stream, mode) == (STREAM, 2)
        self.capturing = self.begin == 0
        return (self.begin,)

    def cuStreamEndCapture(self, stream: int) -> tuple[Code, object]:  # noqa: N802
        assert self.capturing
        self.capturing = False
        self.graphs += self.end == 0
        return self.end, "graph" if self.end == 0 else None

    def cuGraphGetNodes(self, graph: str, count: int = 0) -> tuple[Code, list[str] | None, int]:  # noqa: N802
        return OK, list(self.nodes[:count]) or None, len(self.nodes)

    def cuGraphNodeGetType(self, node: str) -> tuple[Code, str]:  # noqa: N802
        return OK, node

    def cuGraphDestroy(self, graph: str) -> tuple[Code]:  # noqa: N802
        self.graphs -= 1
        return (OK,)


@pytest.mark.parametrize(("nodes", "kernels"), [(("kernel",), 1), (("memset", "kernel", "kernel"), 2), ((), 0)])
def test_kernels_are_counted_among_the_captured_nodes(nodes: tuple[str, ...], kernels: int) -> None:
    driver, calls = CaptureDriver(nodes), []
    fact = kernels_of_one_call(LayerHandle(lambda: calls.append(driver.capturing), STREAM), driver)
    assert (fact.name, fact.value) == ("kernels_per_call", kernels)
    assert calls == [True]
    assert driver.graphs == 0


def refuse() -> None:
    raise RuntimeError("operation not permitted\nwhen stream is capturing")


def fail() -> None:
    raise KeyError("bug")


@pytest.mark.parametrize(("driver", "call", "words"), [
    (CaptureDriver(begin=BAD), lambda: None, "did not begin"), (CaptureDriver(end=BAD), lambda: None, "did not end"),
    (CaptureDriver(("kernel",)), refuse, "operation not permitted when stream is capturing"),
    (CaptureDriver(end=BAD), refuse, "operation not permitted when stream is capturing"),
])  # fmt: skip
def test_a_refused_capture_leaves_the_count_open(driver: CaptureDriver, call: Callable[[], None], words: str) -> None:
    fact = kernels_of_one_call(LayerHandle(call, STREAM), driver)
    assert fact.value is None
    assert words in (fact.reason or "")
    assert not driver.capturing
    assert driver.graphs == 0
    if driver.begin == OK:
        with pytest.raises(KeyError):
            kernels_of_one_call(LayerHandle(fail, STREAM), driver)
        assert not driver.capturing, "an unexpected error still ends the capture"


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "arguments"), CASES)
@pytest.mark.filterwarnings("default")
def test_a_call_of_each_layer_is_one_kernel(gpu: Gpu, name: str, arguments: int) -> None:
    operation = LayerCall(name, arguments)
    with may_skip():
        submit = gpu.bind(operation)
    assert submit.burst_ns(50) > 0
    gpu.synchronize()
    out_ns = np.zeros(5, dtype=np.int64)
    submit.round_trips(out_ns)
    assert (out_ns > 0).all()
    assert gpu.layer_kernels(operation).value in ((1,) if name != "jax_jit" else (None,))


@pytest.mark.gpu
@pytest.mark.parametrize("name", SPINNING)
@pytest.mark.parametrize("duration_ns", [0, 20_000])
@pytest.mark.filterwarnings("default")
def test_a_layers_kernels_keep_their_length_in_its_own_graph(gpu: Gpu, name: str, duration_ns: int) -> None:
    operation = LayerCall(name, duration_ns=duration_ns)
    with may_skip():
        submit, graph = gpu.bind(operation), gpu.graph([operation] * 10)
    assert (graph.nodes, graph.layer) == (10, name)
    out_ns = np.zeros(5, dtype=np.int64)
    for bound, calls in ((submit, 10), (gpu.bind(graph), 1)):
        bound.round_trips(out_ns, calls)
        assert (out_ns > 0.8 * 10 * duration_ns).all(), "ten kernels must last ten times as long as one"
