"""The interface of Python layers, the list of layers, and how their calls are timed and captured."""

import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import msgspec

from microbench.core.bench import Package
from microbench.core.errors import MeasurementError, Skip, UsageError
from microbench.core.model import Fact
from microbench.core.ops import LOOP_LAYER, IntArray
from microbench.core.units import plain
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS

# same_kernel: an empty kernel with 0 or 4 arguments. one_op: x + 1 on one float32 element.
Family = Literal["same_kernel", "one_op"]
ARGUMENTS: dict[Family, tuple[int, ...]] = {"same_kernel": (0, 4), "one_op": (1,)}
Errors = tuple[type[Exception], ...]

# Kernels of kernels/launch.cu by number of arguments: none, or three device pointers and one 32-bit integer; and the
# kernel that spins for as many SM clock cycles as its only argument says, a 64-bit integer.
KERNELS = {0: "empty", 4: "four_arguments"}
SPIN_KERNEL = "spin"
BLOCK_THREADS = 32
ARRAY_ELEMENTS = 32

# What the import of an installed but broken package raises: a library is missing, another package has a wrong version.
BROKEN_IMPORT = (ImportError, OSError, AttributeError, RuntimeError, ValueError)


@dataclass(frozen=True)
class LayerContext:
    """The arguments that open a layer. The worker's primary context is current in the calling thread.

    ``cubin`` is kernels/launch.cu compiled for this GPU. ``stream_handle`` is a non-blocking CUstream of the worker
    that outlives the layer, ``device_index`` CUDA's number of the GPU. ``pointers`` are three device addresses that the
    kernels take as arguments and never access.
    """

    cubin: bytes
    stream_handle: int
    device_index: int
    pointers: tuple[int, int, int]


@dataclass(frozen=True)
class LayerGraph:
    """Calls that a layer has captured as a graph. The graph is instantiated, and its upload is queued if the library
    has one.

    ``launch`` replays it once on the layer's stream, as a user of the library would write it. ``nodes`` counts its
    nodes and raises MeasurementError or Skip. ``close`` destroys it and is called after the last replay has ended.
    ``instantiated_ns`` and ``captured_ns`` are time.monotonic_ns() after its instantiation, and after its capture;
    ``captured_ns`` is None if the library does both by one call.
    """

    launch: Callable[[], object]
    nodes: Callable[[], int]
    close: Callable[[], object]
    instantiated_ns: int
    captured_ns: int | None = None


@dataclass(frozen=True)
class CompiledCall:
    """A C function that launches once, for the compiled loops: its name, its address and integer arguments.

    ``keep`` holds what the arguments point to.
    """

    name: str
    address: int
    arguments: tuple[int, ...]
    keep: tuple[object, ...] = ()


@dataclass(frozen=True)
class LayerHandle:
    """An opened layer: its kernel is compiled and loaded, and has been submitted once.

    ``call`` makes one library call, as a user of the library would write it. ``stream_handle`` is the CUstream that it
    submits to, None if the library does not show its stream. ``synchronize`` waits for the last call; None if
    synchronising the stream does that. ``capture_refused`` says why a call cannot be captured. ``close`` restores what
    opening has changed in the library. ``graph`` makes a graph of several calls by the library's own means, for handles
    of ``Layer.open_spin``; it raises Skip, with the reason, if the library refuses, and always ends the capture.
    ``compiled`` is timed instead of ``call`` for a library whose users write programs without Python.
    """

    call: Callable[[], object]
    stream_handle: int | None
    synchronize: Callable[[], object] | None = None
    capture_refused: str | None = None
    close: Callable[[], object] = lambda: None
    graph: Callable[[int], LayerGraph] | None = None
    compiled: CompiledCall | None = None


class LayerCosts(msgspec.Struct, frozen=True):
    """Host time of one call through a layer on the simulated GPU, in ns, and the time that each kernel argument adds.

    ``replay_ns`` is how much longer a graph launch takes through the layer than from the compiled loop, ``make_ns``
    what making a graph takes besides its calls and the driver's work. ``one_call`` is True if the library captures and
    instantiates by one call, ``uploads`` False if it leaves the upload to the first replay.
    """

    call_ns: float
    argument_ns: float = 0.0
    replay_ns: float = 1000.0
    make_ns: float = 20_000.0
    one_call: bool = False
    uploads: bool = True


@dataclass(frozen=True, kw_only=True)
class Submitter:
    """A submitter of kernels: the compiled loop or a Python layer.

    ``title`` is its name in reports, ``aliases`` are what people call it on the command line (lower case).
    ``simulated`` is None if the simulated GPU does not have it.
    """

    name: str
    title: str
    family: Family
    aliases: tuple[str, ...] = ()
    simulated: LayerCosts | None = None


@dataclass(frozen=True, kw_only=True)
class Layer(Submitter):
    """A Python layer, as its library's file in this folder declares it in LAYERS.

    ``package`` is the import name, ``install`` the pip line, ``about`` what one call is. ``open(context, arguments)``
    makes the layer ready; it raises Skip if the package is missing or cannot work here. A layer that is also measured
    with kernels of a given length, and in graphs, has ``open_spin(context, cycles)``: its kernel spins for that many SM
    clock cycles, 0 is the empty kernel. ``environment`` is what its process needs. Layers of equal ``process`` are
    measured in one process, by default those of one package. Layers are listed by family, then by ``order``, then by
    file.
    """

    package: str
    install: str
    about: str
    open: Callable[[LayerContext, int], LayerHandle]
    open_spin: Callable[[LayerContext, int], LayerHandle] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    order: int = 0
    process: str = ""


COMPILED_LOOP = Submitter(
    name=LOOP_LAYER,
    title="compiled loop",
    family="same_kernel",
    aliases=("c", "c++", "cpp", "compiled"),
    simulated=LayerCosts(3200, 10, replay_ns=0),
)


def layers(family: Family | None = None) -> list[Layer]:
    """The layers that the files of this folder declare, of one family or of both. Imports no measured package."""
    import microbench.gpu.layers as folder

    files = [
        importlib.import_module(f"{folder.__name__}.{file.name}") for file in pkgutil.iter_modules(folder.__path__)
    ]
    declared: list[Layer] = [layer for file in files for layer in getattr(file, "LAYERS", ())]
    chosen = [layer for layer in declared if family in (None, layer.family)]
    return sorted(chosen, key=lambda layer: (list(ARGUMENTS).index(layer.family), layer.order))


def submitters() -> list[Submitter]:
    """The compiled loop, then the Python layers."""
    return [COMPILED_LOOP, *layers()]


def spinning() -> tuple[str, ...]:
    """Names of the submitters that are measured with kernels of a given length, and in graphs."""
    return (LOOP_LAYER, *(layer.name for layer in layers() if layer.open_spin is not None))


def process_of(name: str) -> str:
    """The name of the process that measures a submitter: "" is the main one, which measures the compiled loop."""
    if name == LOOP_LAYER:
        return ""
    chosen = find_layer(name)
    return f"layers of {chosen.process or chosen.package}"


def package_of(name: str) -> Package | None:
    """The package that a submitter needs; None for the compiled loop."""
    if name == LOOP_LAYER:
        return None
    chosen = find_layer(name)
    return Package(chosen.package, chosen.install)


def layer_titles() -> dict[str, str]:
    """The title of each submitter by its name."""
    return {submitter.name: submitter.title for submitter in submitters()}


def layer_names() -> dict[str, str]:
    """The name of each submitter by its name and by its aliases."""
    known = submitters()
    return {word: submitter.name for submitter in known for word in (submitter.name, *submitter.aliases)}


def find_layer(name: str) -> Layer:
    """The Python layer of that name. Raises UsageError for an unknown one."""
    known = {layer.name: layer for layer in layers()}
    if name not in known:
        raise UsageError(f"there is no layer {plain(name)!r}", f"choose from: {', '.join(known)}")
    return known[name]


def open_layer(name: str, context: LayerContext, arguments: int) -> LayerHandle:
    """Open a layer. Raises Skip if it cannot run here or is not measured with this number of arguments."""
    layer = find_layer(name)
    if arguments not in (known := ARGUMENTS[layer.family]):
        raise Skip(f"{name} is measured with {' or '.join(map(str, known))} arguments, not {arguments}")
    return layer.open(context, arguments)


def open_spinning(name: str, context: LayerContext, cycles: int) -> LayerHandle:
    """Open a layer with a kernel that spins for ``cycles`` SM clock cycles; 0 is the empty kernel.

    Raises Skip if it cannot run here or is not measured in this way.
    """
    open_spin = find_layer(name).open_spin
    if open_spin is None:
        raise Skip(f"{name} is not measured with kernels of a given length")
    return open_spin(context, cycles)


def load(package: str, install: str) -> Any:
    """Import a package. Raises Skip with the pip line if it is absent, with the import's error if it is broken."""
    try:
        return importlib.import_module(package)
    except BROKEN_IMPORT as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{package}.".startswith(f"{missing}."):
            raise Skip(f"needs {package}: {install}") from None
        raise Skip(f"{package} does not import here ({type(error).__name__}: {plain(error)})") from error


def load_driver() -> Any:
    """cuda.bindings.driver, for operations that a library has no call for."""
    return load("cuda.bindings.driver", "pip install cuda-bindings")


def check_sum(name: str, value: float) -> None:
    """Raise MeasurementError unless 1 + 1, computed by the layer on the GPU, is 2."""
    if value != 2.0:
        raise MeasurementError(f"{name}: 1 + 1 gave {value}")


def check(result: tuple[Any, ...]) -> Any:
    """The value of a cuda.bindings call without its error code: None, a value or a tuple. Raises MeasurementError."""
    code, *values = result
    if int(code) != 0:
        raise MeasurementError(f"cuda.bindings: {code.name}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


class LayerSubmit:
    """A Submit of library calls: a plain Python loop around one call and nothing else.

    Garbage collection stays on, as in a user's program. Stamps come from time.monotonic_ns, which is CLOCK_MONOTONIC as
    in the compiled loops. A round trip waits by one call of cuda.bindings, or in the library's own way. Errors are the
    library's own exceptions.
    """

    queue_slots: int | None = SAFE_QUEUE_SLOTS

    def __init__(self, handle: LayerHandle, driver: Any, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """``driver`` is cuda.bindings.driver; it waits for the stream of layers without a wait of their own."""
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
        call = self._call
        for _ in range(count):
            call()

    def burst_ns(self, count: int) -> int:
        call, now_ns = self._call, self._now_ns
        self._drain()
        begin_ns = now_ns()
        for _ in range(count):
            call()
        return now_ns() - begin_ns

    def stamps(self, out_ns: IntArray) -> None:
        call, now_ns = self._call, self._now_ns
        stamps = [0] * len(out_ns)  # storing into a NumPy array would take longer between the stamps
        self._drain()
        stamps[0] = now_ns()
        for index in range(1, len(stamps)):
            call()
            stamps[index] = now_ns()
        out_ns[:] = stamps

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        """There are two loops because an inner loop over one call would add its own overhead to that call."""
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
            check(wait())

    def _drain(self) -> None:
        """Wait in the library's own way: its threads may still be submitting when the GPU looks idle."""
        if self._own_wait is not None:
            self._own_wait()


def replays(handle: LayerHandle, graph: LayerGraph) -> LayerHandle:
    """A handle whose call is one replay of a graph that ``handle`` made. Closing it closes only the graph."""
    return replace(handle, call=graph.launch, close=graph.close, graph=None)


def kernels_of_one_call(handle: LayerHandle, driver: Any) -> Fact:
    """Number of kernels that one call submits, seen by capturing it; None with a reason if that is refused.

    ``driver`` is cuda.bindings.driver. The capture mode forbids nothing, as libraries may allocate during the call.
    """
    unknown = partial(Fact, "kernels_per_call", None, source="stream capture")
    if handle.capture_refused or handle.stream_handle is None:
        return unknown(reason=handle.capture_refused or "the library does not show its stream")
    stream = driver.CUstream(handle.stream_handle)
    (code,) = driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    if int(code) != 0:
        return unknown(reason=f"capture did not begin: {code.name}")
    refusal = None
    try:
        handle.call()
    except RuntimeError as error:  # the library has noticed the capture, or the driver refuses
        refusal = plain(error)
    finally:
        code, graph = driver.cuStreamEndCapture(stream)
    if int(code) != 0:
        return unknown(reason=refusal or f"capture did not end: {code.name}")
    try:
        if refusal is not None:
            return unknown(reason=refusal)
        kernels = node_types(driver, graph).count(driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL)
        return Fact("kernels_per_call", kernels, source="stream capture")
    finally:
        driver.cuGraphDestroy(graph)


def node_count(driver: Any, graph: Any) -> int:
    """Number of nodes of a graph. Raises MeasurementError for the driver's error."""
    return int(check(driver.cuGraphGetNodes(graph))[-1])


def node_types(driver: Any, graph: Any) -> list[Any]:
    """The CUgraphNodeType of each node of a graph. Raises MeasurementError for the driver's error."""
    count = node_count(driver, graph)
    nodes = check(driver.cuGraphGetNodes(graph, count))[0][:count] if count else []
    return [check(driver.cuGraphNodeGetType(node)) for node in nodes]


@contextmanager
def capturing(library: str, errors: Errors, abandon: Callable[[], object]) -> Iterator[None]:
    """The scope of a capture. One of ``errors`` becomes a Skip with the library's reason.

    After any error ``abandon`` ends the capture. It may raise one of ``errors`` again, as the capture is broken; the
    capture has ended all the same.
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
    """A graph of ``count`` calls of a library without graphs, as its user would write it with cuda.bindings.

    The capture mode forbids nothing, as in libraries with graphs: a library may free memory during the capture.
    """
    driver = load_driver()
    stream = driver.CUstream(stream_handle)

    def abandon() -> None:
        code, graph = driver.cuStreamEndCapture(stream)
        if int(code) == 0:  # a broken capture leaves no graph
            driver.cuGraphDestroy(graph)

    with capturing(library, (*errors, MeasurementError), abandon):
        check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        for _ in range(count):
            call()
        graph = check(driver.cuStreamEndCapture(stream))
    captured_ns = time.monotonic_ns()
    with ExitStack() as made:
        made.callback(driver.cuGraphDestroy, graph)
        executable = check(driver.cuGraphInstantiate(graph, 0))
        instantiated_ns = time.monotonic_ns()
        made.callback(driver.cuGraphExecDestroy, executable)
        check(driver.cuGraphUpload(executable, stream))
        close = made.pop_all().close

    def launch() -> None:
        check(driver.cuGraphLaunch(executable, stream))

    return LayerGraph(launch, partial(node_count, driver, graph), close, instantiated_ns, captured_ns)
