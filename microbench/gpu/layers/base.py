"""What a Python layer is: what its file declares, what it is given and hands back, how its calls are timed."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, cast

from microbench.core.errors import MeasurementError, Skip, UsageError
from microbench.core.model import Fact
from microbench.core.ops import IntArray
from microbench.core.units import plain
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS

Family = Literal["same_kernel", "one_op"]

# The kernels of kernels/launch.cu by number of arguments: none, or three device pointers and one 32-bit integer; and
# the one that spins for as many SM clock cycles as its argument says, a 64-bit integer.
KERNELS = {0: "empty", 4: "four_arguments"}
SPIN_KERNEL = "spin"
BLOCK_THREADS = 32
ARRAY_ELEMENTS = 32

# What a package that is installed but broken raises on import: a missing library, another package's wrong version.
BROKEN_IMPORT = (ImportError, OSError, AttributeError, RuntimeError, ValueError)


@dataclass(frozen=True)
class LayerContext:
    """What a layer is opened with: the worker's primary context is current in the calling thread.

    ``cubin`` is kernels/launch.cu compiled for this GPU, with the extern "C" kernels of KERNELS and SPIN_KERNEL.
    ``stream_handle`` is a non-blocking CUstream of the worker's; it outlives the layer. ``device_index`` is CUDA's
    ordinal of the GPU. ``pointers`` are three device addresses that the kernels take and never touch.
    """

    cubin: bytes
    stream_handle: int
    device_index: int
    pointers: tuple[int, int, int]


@dataclass(frozen=True)
class LayerGraph:
    """Calls that a layer has captured, as a graph: instantiated, and its upload queued.

    ``launch`` replays it once on the layer's stream, as the library's user would write it. ``nodes`` is how many nodes
    it has. ``close`` destroys it, after the last replay has ended.
    """

    launch: Callable[[], object]
    nodes: int
    close: Callable[[], object]


@dataclass(frozen=True)
class LayerHandle:
    """A layer made ready: its kernel is compiled and loaded, and has been submitted once.

    ``call`` makes one library call, as its user would write it. ``stream_handle`` is the CUstream it submits to, None
    when the library keeps it to itself. ``synchronize`` waits for the last call; None when synchronising the stream
    does. ``capture_refused`` says why a call cannot be captured, None where it can. ``close`` sets back what opening
    changed in the library. ``graph`` makes a graph of so many calls by the library's own means, where open_spin gave
    the handle; it raises Skip with the reason where the library refuses, and the stream never stays capturing.
    """

    call: Callable[[], object]
    stream_handle: int | None
    synchronize: Callable[[], object] | None = None
    capture_refused: str | None = None
    close: Callable[[], object] = lambda: None
    graph: Callable[[int], LayerGraph] | None = None


class Layer(Protocol):
    """What a file of this folder declares; the file is the layer.

    A layer that is measured with kernels of a given length as well has ``open_spin(context, cycles)``: the kernel spins
    for that many SM clock cycles, its only argument; 0 is the empty kernel. Its handle can make graphs.

    ``FAMILY`` is ``same_kernel`` (an empty kernel, 0 or 4 arguments) or ``one_op`` (x + 1 on one float32 element),
    ``PACKAGE`` the import name, ``INSTALL`` the pip line, ``ABOUT`` what one call is, ``ARGUMENTS`` how many the
    kernel may have.
    """

    NAME: str
    FAMILY: Family
    PACKAGE: str
    INSTALL: str
    ABOUT: str
    ARGUMENTS: tuple[int, ...]

    def open_layer(self, context: LayerContext, arguments: int) -> LayerHandle:
        """Make the layer ready. Raises Skip when its package is missing or cannot work here."""
        ...


def _layers() -> dict[str, Layer]:
    """Every file of the folder that has a NAME; importing them imports none of the packages they measure."""
    import microbench.gpu.layers as folder

    names = [found.name for found in pkgutil.iter_modules(folder.__path__)]
    modules = [importlib.import_module(f"{folder.__name__}.{name}") for name in names]
    return {module.NAME: cast(Layer, module) for module in modules if hasattr(module, "NAME")}


def layer_names(family: Family | None = None) -> tuple[str, ...]:
    """Names of the layers of a family, or of all, in the order of their files."""
    return tuple(name for name, layer in _layers().items() if family in (None, layer.FAMILY))


def find_layer(name: str) -> Layer:
    """The layer of that name. Raises UsageError for an unknown one."""
    layers = _layers()
    if name not in layers:
        raise UsageError(f"there is no layer {plain(name)!r}", f"choose from: {', '.join(layers)}")
    return layers[name]


def open_named(name: str, context: LayerContext, arguments: int) -> LayerHandle:
    """Open the layer of that name. Raises Skip when it cannot run here or takes no such number of arguments."""
    layer = find_layer(name)
    if arguments not in layer.ARGUMENTS:
        raise Skip(f"{name} is measured with {' or '.join(map(str, layer.ARGUMENTS))} arguments, not {arguments}")
    return layer.open_layer(context, arguments)


def open_spinning(name: str, context: LayerContext, cycles: int) -> LayerHandle:
    """Open the layer of that name with a kernel that spins for so many SM clock cycles; 0: the empty kernel.

    Raises Skip when it cannot run here or is not measured so.
    """
    open_spin = getattr(find_layer(name), "open_spin", None)
    if open_spin is None:
        raise Skip(f"{name} is not measured with kernels of a given length")
    return cast(LayerHandle, open_spin(context, cycles))


def replays(handle: LayerHandle, graph: LayerGraph) -> LayerHandle:
    """A handle of which one call is one replay of a graph that ``handle`` made; closing it closes the graph alone."""
    return replace(handle, call=graph.launch, close=graph.close, graph=None)


def load(package: str, install: str) -> Any:
    """Import a package. Raises Skip with the pip line when it is absent, with the import's error when it is broken."""
    try:
        return importlib.import_module(package)
    except BROKEN_IMPORT as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{package}.".startswith(f"{missing}."):
            raise Skip(f"needs {package}: {install}") from None
        raise Skip(f"{package} does not import here ({type(error).__name__}: {plain(error)})") from error


def check_sum(name: str, value: float) -> None:
    """Raise MeasurementError unless 1 + 1, computed by the layer on the GPU, is 2."""
    if value != 2.0:
        raise MeasurementError(f"{name}: 1 + 1 gave {value}")


class LayerSubmit:
    """A Submit (gpu/protocol/gpu.py) of library calls: a plain Python loop around one call and nothing else.

    Garbage collection stays on, as in the user's program. Stamps are read by time.monotonic_ns: CLOCK_MONOTONIC, as in
    the compiled loops. The wait of a round trip is one call of cuda.bindings, or the library's own. Errors are the
    library's own exceptions.
    """

    queue_slots: int | None = SAFE_QUEUE_SLOTS

    def __init__(self, handle: LayerHandle, driver: Any, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """``driver`` is cuda.bindings.driver, which waits for the stream of layers that do not wait themselves."""
        self._call = handle.call
        self._own_wait = handle.synchronize
        self._now_ns = now_ns
        self._wait: Callable[[], Any]
        if handle.synchronize is not None:
            self._wait = handle.synchronize
        elif handle.stream_handle is not None:
            self._wait = partial(driver.cuStreamSynchronize, driver.CUstream(handle.stream_handle))
        else:
            raise MeasurementError("a layer without a stream must bring its own way to wait")

    def __call__(self, count: int) -> None:
        """Submit ``count`` times."""
        call = self._call
        for _ in range(count):
            call()

    def burst_ns(self, count: int) -> int:
        """Submit ``count`` times; host time from before the first call to after the last, in ns."""
        call, now_ns = self._call, self._now_ns
        self._drain()
        begin_ns = now_ns()
        for _ in range(count):
            call()
        return now_ns() - begin_ns

    def stamps(self, out_ns: IntArray) -> None:
        """Submit ``len(out_ns) - 1`` times; stamp the clock before each call and after the last."""
        call, now_ns = self._call, self._now_ns
        stamps = [0] * len(out_ns)  # storing into a NumPy array would cost more, between stamps
        self._drain()
        stamps[0] = now_ns()
        for index in range(1, len(stamps)):
            call()
            stamps[index] = now_ns()
        out_ns[:] = stamps

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        """``len(out_ns)`` times ``calls`` calls and a wait, in ns each. Raises MeasurementError for a GPU's error.

        Two loops, as one that counts to 1 would add its own start to a single call.
        """
        call, wait, now_ns = self._call, self._wait, self._now_ns
        took_ns = [0] * len(out_ns)
        self._drain()
        for index in range(len(took_ns)):
            if calls == 1:
                begin_ns = now_ns()
                call()
            else:
                begin_ns = now_ns()
                for _ in range(calls):
                    call()
            wait()
            took_ns[index] = now_ns() - begin_ns
        out_ns[:] = took_ns
        if self._own_wait is None:
            _check(wait())

    def _drain(self) -> None:
        """A library that submits from threads of its own may still be doing so when the GPU looks idle."""
        if self._own_wait is not None:
            self._own_wait()


def kernels_of_one_call(handle: LayerHandle, driver: Any) -> Fact:
    """How many kernels one call submits, seen by capturing it; the value is None, with a reason, where that is refused.

    ``driver`` is cuda.bindings.driver. Only this thread and stream are captured, in the mode that forbids nothing:
    libraries may allocate meanwhile.
    """
    unknown = partial(Fact, "kernels_per_call", None, source="stream capture")
    if handle.capture_refused or handle.stream_handle is None:
        return unknown(reason=handle.capture_refused or "the library keeps its stream to itself")
    stream = driver.CUstream(handle.stream_handle)
    (code,) = driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    if int(code) != 0:
        return unknown(reason=f"capture did not begin: {code.name}")
    refusal, graph = _captured(handle.call, stream, driver)
    if refusal is not None:
        return unknown(reason=refusal)
    try:
        return Fact("kernels_per_call", _kernels(graph, driver), source="stream capture")
    finally:
        driver.cuGraphDestroy(graph)


def _captured(call: Callable[[], object], stream: Any, driver: Any) -> tuple[str | None, Any]:
    """Why there is no graph of the call, or None and the graph; the stream no longer captures in either case."""
    refusal = None
    try:
        call()
    except RuntimeError as error:  # what libraries raise when they see the capture, or the driver's refusal
        refusal = plain(error)
    finally:
        code, graph = driver.cuStreamEndCapture(stream)
    if int(code) != 0:
        return refusal or f"capture did not end: {code.name}", None
    if refusal is not None:
        driver.cuGraphDestroy(graph)
    return refusal, graph


def _kernels(graph: Any, driver: Any) -> int:
    """Kernel nodes of a captured graph."""
    code, _, count = driver.cuGraphGetNodes(graph)
    _check((code,))
    if not count:
        return 0
    code, nodes, _ = driver.cuGraphGetNodes(graph, count)
    _check((code,))
    kernel = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
    return sum(driver.cuGraphNodeGetType(node)[1] == kernel for node in nodes[:count])


def _check(result: tuple[Any, ...]) -> None:
    if int(result[0]) != 0:
        raise MeasurementError(f"a layer's stream: {result[0].name}")


# What the layers share to make graphs of their calls: a refusal becomes a Skip, the driver's own graph calls.


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
