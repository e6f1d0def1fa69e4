"""What the layers share to make graphs of their calls: a refusal becomes a Skip, the driver's own graph calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from microbench.errors import MeasurementError, Skip
from microbench.gpu.layers.base import LayerGraph, load
from microbench.text import plain

Errors = tuple[type[Exception], ...]


def load_driver() -> Any:
    """cuda.bindings.driver, for what a library has no call of its own for."""
    return load("cuda.bindings.driver", "pip install cuda-bindings")


@contextmanager
def capturing(library: str, errors: Errors, abandon: Callable[[], object]) -> Iterator[None]:
    """Capture within: one of ``errors`` becomes a Skip with the library's reason.

    ``abandon`` ends the capture after that and after any other error. Ending a broken capture is an error again: which
    is to be expected, and the capture has ended all the same.
    """
    done = False
    try:
        yield
        done = True
    except errors as error:
        raise Skip(f"{library} cannot capture its calls as a graph: {plain(error)}") from error
    finally:
        if not done:
            with suppress(*errors):
                abandon()


def driver_graph(
    library: str, errors: Errors, stream_handle: int, call: Callable[[], object], count: int
) -> LayerGraph:
    """A graph of ``count`` calls of a library that has none: what its user would write with cuda.bindings.

    The capture forbids nothing, as in the libraries that have graphs: a library may free memory meanwhile.
    """
    driver = load_driver()
    stream = driver.CUstream(stream_handle)
    with capturing(library, (*errors, MeasurementError), partial(_end_capture, driver, stream)):
        check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        for _ in range(count):
            call()
        graph = check(driver.cuStreamEndCapture(stream))
    try:
        nodes = node_count(driver, graph)
        executable = check(driver.cuGraphInstantiate(graph, 0))
    finally:
        driver.cuGraphDestroy(graph)
    check(driver.cuGraphUpload(executable, stream))

    def launch() -> None:
        check(driver.cuGraphLaunch(executable, stream))

    return LayerGraph(launch, nodes, close=partial(driver.cuGraphExecDestroy, executable))


def _end_capture(driver: Any, stream: Any) -> None:
    """End a capture that is of no use; the driver keeps nothing of a broken one."""
    code, graph = driver.cuStreamEndCapture(stream)
    if int(code) == 0:
        driver.cuGraphDestroy(graph)


def node_count(driver: Any, graph: Any) -> int:
    """Nodes of a graph. Raises MeasurementError for the driver's error."""
    return int(check(driver.cuGraphGetNodes(graph))[-1])


def check(result: tuple[Any, ...]) -> Any:
    """What a call of cuda.bindings gave beside its code: None, a value, or a tuple. Raises MeasurementError."""
    code, *values = result
    if code:
        raise MeasurementError(f"cuda.bindings: {code.name}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)
