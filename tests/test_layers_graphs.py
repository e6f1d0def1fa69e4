"""Layers with kernels of a given length and with graphs of their own, against stand-ins."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from capture_stand_ins import BAD, STREAM, CoreBuilder, CoreError, Launches
from layer_stand_ins import CONTEXT, ONE_OP, SAME_KERNEL, SPINNING, NumbaError, put_stand_ins

from microbench.core.errors import MeasurementError, Skip
from microbench.gpu.layers.base import LayerGraph, LayerHandle, LayerSubmit, open_spinning, replays
from microbench.gpu.layers.torch import elements_for

ERRORS = {"cuda_core": CoreError, "cupy_raw": RuntimeError, "numba_configured": NumbaError}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return put_stand_ins(monkeypatch)


def graph_of(handle: LayerHandle, count: int) -> LayerGraph:
    assert handle.graph is not None
    return handle.graph(count)


@pytest.mark.parametrize("name", SPINNING)
@pytest.mark.parametrize(("cycles", "kernel", "arguments"), [(0, "empty", ()), (2**33, "spin", (2**33,))])
def test_a_call_spins_for_the_cycles_it_is_given(
    launches: Launches, name: str, cycles: int, kernel: str, arguments: tuple[int, ...]
) -> None:
    handle = open_spinning(name, CONTEXT, cycles)
    assert len(launches) == 1, "the kernel must be compiled and launched before anything is timed"
    handle.call()
    library, stream, values = launches[1]
    assert library.endswith(f" {kernel}")
    assert (stream, values, len(launches)) == (STREAM, arguments, 2)
    assert all(isinstance(value, np.uint64) for value in values), "launch.cu takes 64 bits without a sign"


@pytest.mark.parametrize("name", sorted(set(SAME_KERNEL + ONE_OP) - {*SPINNING, "torch_eager"}))
def test_other_layers_have_no_kernel_of_a_given_length(launches: Launches, name: str) -> None:
    with pytest.raises(Skip, match=f"^{name} is not measured with kernels of a given length$"):
        open_spinning(name, CONTEXT, 1000)
    assert launches == []


@pytest.mark.parametrize(("wanted_s", "elements"), [(2e-6, 250_000), (50e-6, 12_250_000), (0.5e-6, 1)])
def test_pytorchs_operation_gets_as_many_elements_as_take_that_long(wanted_s: float, elements: int) -> None:
    found = elements_for(wanted_s, lambda count: 1e-6 + count * 4e-12)  # a GPU of 1 us a kernel and 4 ps an element
    assert found == pytest.approx(elements, rel=0.02)


@pytest.mark.parametrize("name", SPINNING)
@pytest.mark.parametrize("cycles", [0, 500])
def test_a_graph_holds_the_calls_and_a_replay_makes_them(launches: Launches, name: str, cycles: int) -> None:
    handle = open_spinning(name, CONTEXT, cycles)
    launches.clear()
    graph = graph_of(handle, 3)
    assert launches == [], "a capture launches nothing"
    assert launches.captured is None
    assert "upload" in launches.graphs
    assert graph.nodes == 3
    graph.launch()
    replayed = list(launches)
    assert len(replayed) == 3
    launches.clear()
    for _ in range(3):
        handle.call()
    assert replayed == list(launches)
    replaying = replays(handle, graph)
    replaying.call()
    assert list(launches) == 2 * replayed
    replaying.close()
    if name != "cupy_raw":  # CuPy destroys its graphs itself
        assert sorted(launches.graphs[:-1]) == ["destroy", "upload"]
        assert launches.graphs[-1] == "destroy executable"


@pytest.mark.parametrize("name", SPINNING)
def test_a_refused_capture_is_a_skip_with_the_librarys_reason(launches: Launches, name: str) -> None:
    handle = open_spinning(name, CONTEXT, 500)
    launches.refusal = ERRORS[name]("operation not permitted\nwhen stream is capturing")
    with pytest.raises(Skip, match=r"cannot capture .*: operation not permitted when stream is capturing$"):
        graph_of(handle, 3)
    assert launches.captured is None, "the stream must not be left capturing"
    launches.refusal = KeyError("bug")
    with pytest.raises(KeyError):
        graph_of(handle, 3)
    assert launches.captured is None
    launches.refusal = None
    launches.clear()
    handle.call()
    assert len(launches) == 1
    assert graph_of(handle, 2).nodes == 2


def test_cuda_core_1_0_is_skipped_as_it_shows_no_nodes(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(CoreBuilder):
        graph_definition = property()  # type: ignore[assignment]  # reading it is an AttributeError

        def __init__(self, stream: Any) -> None:
            self.stream, self.launches, self.building, self.graph = stream, stream.launches, False, None

    handle = open_spinning("cuda_core", CONTEXT, 0)
    monkeypatch.setattr("capture_stand_ins.CoreBuilder", Older)
    with pytest.raises(Skip, match=r"since 1\.1"):
        graph_of(handle, 4)


@pytest.mark.parametrize(("function", "expected", "destroyed"), [
    ("cuStreamBeginCapture", Skip, []), ("cuGraphGetNodes", MeasurementError, ["destroy"]),
    ("cuGraphInstantiate", MeasurementError, ["destroy"]), ("cuGraphUpload", MeasurementError, ["destroy"]),
])  # fmt: skip
def test_numba_graphs_check_each_call_of_the_driver(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, function: str, expected: type[Exception], destroyed: list[str]
) -> None:
    handle = open_spinning("numba_configured", CONTEXT, 500)
    monkeypatch.setattr(sys.modules["cuda.bindings.driver"], function, lambda *arguments: (BAD, None, None))
    with pytest.raises(expected, match="CUDA_ERROR_STAND_IN"):
        graph_of(handle, 3)
    assert launches.graphs == destroyed
    assert launches.captured is None


def test_a_failed_replay_of_a_numba_graph_is_an_error(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cuda.bindings.driver"], "cuGraphLaunch", lambda *arguments: (BAD,))
    graph = graph_of(open_spinning("numba_configured", CONTEXT, 500), 3)
    with pytest.raises(MeasurementError, match="CUDA_ERROR_STAND_IN"):
        graph.launch()


def test_replays_wait_as_the_layer_does_and_close_the_graph_alone() -> None:
    acts: list[str] = []

    def act(name: str) -> Callable[[], object]:
        return lambda: acts.append(name)

    handle = LayerHandle(act("call"), None, synchronize=act("wait"), close=act("close the layer"))
    replaying = replays(handle, LayerGraph(launch=act("replay"), nodes=3, close=act("close the graph")))
    LayerSubmit(replaying, driver=None).round_trips(np.zeros(1, dtype=np.int64))
    replaying.close()
    assert acts == ["wait", "replay", "wait", "close the graph"]
    assert replaying.graph is None


def test_the_error_classes_of_cuda_core_and_numba_exist_where_expected() -> None:
    utilities = pytest.importorskip("cuda.core._utils.cuda_utils")
    assert issubclass(utilities.CUDAError, Exception)
    errors = pytest.importorskip("numba.cuda.cudadrv.error")
    assert issubclass(errors.CudaDriverError, Exception)
