"""A user's function on the real GPU: warmed up on one stream, captured into a graph, replayed and compared."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray
from microbench.core.units import plain
from microbench.gpu.cuda import driver
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check, error_name
from microbench.gpu.layers import base, callables
from microbench.gpu.layers.culprit import Followed, attempt, called, follow
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS
from microbench.gpu.protocol.own import JAX, Blocker, GraphNode, NotCapturedError, OwnCall, OwnGraph
from microbench.gpu.protocol.submit import Submit

# Calls before anything is measured: PyTorch asks for three before a capture; compilers and tuners may need one more.
WARM_UPS = 4
STREAM_DEFAULT_FLAGS = 0
EMPTY = "the graph is empty: nothing was submitted to the captured stream; pass the function its stream as an argument"
OF_JAX = "JAX submits to streams of its own and makes graphs of its own (XLA's command buffers)"
MOST_WORDS = 200


class CudaStep:
    """An OwnStep.

    While the function runs, a stream of microbench is the current stream of PyTorch and CuPy, unless the function takes
    a stream as an argument. It is a blocking stream, so that work in the legacy default stream behaves as if it were in
    this stream: a gate holds that work, an event waits for it, and a capture raises an error instead of losing it.
    """

    def __init__(self, case: Case, own: OwnCall, record: Callable[[Callable[[], object]], IntArray]) -> None:
        """``record`` returns the durations of the kernels."""
        self._case, self._own, self._record = case, own, record
        given = callables.stream_of(own.arguments)
        self._handle = given if given else self._new_stream()
        self.stream = case.adopt(self._handle)
        result = None
        for _ in range(WARM_UPS):  # the function may import a library at its first call
            restore = callables.use_stream(self._handle, int(case.context.device))
            case.synchronize()
            result = called(own.call, own.file)
            callables.ready(result)
            case.synchronize()
            restore()
        case.own(callables.use_stream(self._handle, int(case.context.device)))
        self.library = callables.library_of(result, own.arguments)
        self._call, ready = callables.with_wait(self.library, own.call)

        def wait() -> None:
            ready()
            case.synchronize()

        self._wait = wait
        handle = base.LayerHandle(self._call, self._handle, synchronize=wait)
        self.submit: Submit = base.LayerSubmit(handle, driver)
        self.submit.queue_slots = self._slots()
        torch = sys.modules.get("torch")
        self._torch = torch is not None and torch.cuda.is_initialized()
        self._torch_captures: callables.TorchCaptures | None = None
        self._graphs: list[CudaOwnGraph] = []
        case.own(self._graphs.clear)

    def _new_stream(self) -> int:
        stream = check(driver.cuStreamCreate(STREAM_DEFAULT_FLAGS))
        self._case.own(lambda: driver.cuStreamDestroy(stream))
        return int(stream)

    def _slots(self) -> int:
        """Calls that surely fit the launch queue before the launches of a call are counted: a launch takes 1 µs or
        more."""
        began_ns = time.monotonic_ns()
        self._call()
        launches = max((time.monotonic_ns() - began_ns) // 1000, 1)
        self._case.synchronize()
        return max(SAFE_QUEUE_SLOTS // int(launches), 1)

    def capture(self, *, follow: bool = False) -> OwnGraph:
        if self.library == JAX:
            raise NotCapturedError(Blocker(OF_JAX))
        self._case.synchronize()
        if self._graphs:
            self._graphs.pop().forget()  # its memory is free again for the next capture
        try:
            captured = self._captured_by_torch(follow) if self._torch else self._captured(follow)
        except NotCapturedError:
            raise
        except MeasurementError as error:  # an old PyTorch, or a stream that cannot be captured
            raise NotCapturedError(Blocker(plain(error, MOST_WORDS))) from error
        if not captured.nodes:
            raise NotCapturedError(Blocker(EMPTY))
        self._graphs.append(captured)
        launches = max(len(captured.nodes), 1)
        self.submit.queue_slots = max(SAFE_QUEUE_SLOTS // launches, 1)
        return captured

    def _run(self, traced: bool) -> Followed:
        """One call during a capture."""
        return follow(self._own.call, self._broken, self._own.file) if traced else attempt(self._own.call)

    def _broken(self) -> bool:
        code, status, *_ = driver.cuStreamGetCaptureInfo(self._handle)
        return int(code) != 0 or status == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED

    def _captured(self, traced: bool) -> CudaOwnGraph:
        began_ns = time.monotonic_ns()
        thread_local = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(driver.cuStreamBeginCapture(self._handle, thread_local))
        ran = Followed()
        try:
            ran = self._run(traced)
        finally:
            code, graph = driver.cuStreamEndCapture(self._handle)
        captured_ns = time.monotonic_ns()
        if int(code) != 0 or ran.error is not None:
            if int(code) == 0:
                driver.cuGraphDestroy(graph)
            raise NotCapturedError(_blocker(ran, int(code)))
        nodes = read_nodes(graph)
        began_making_ns = time.monotonic_ns()
        executable = check(driver.cuGraphInstantiate(graph, 0))
        made_ns = time.monotonic_ns()
        self._case.own(lambda: driver.cuGraphExecDestroy(executable))
        check(driver.cuGraphDestroy(graph))
        function, handle, stream = driver.cuGraphLaunch, driver.CUgraphExec(int(executable)), self._handle
        return CudaOwnGraph(
            nodes, ran.result, (captured_ns - began_ns) * 1e-9, (made_ns - began_making_ns) * 1e-9,
            self._replaying(lambda: check(function(handle, stream))), lambda: None,
        )  # fmt: skip

    def _captured_by_torch(self, traced: bool) -> CudaOwnGraph:
        captures = self._torch_captures = self._torch_captures or callables.TorchCaptures(self._handle)
        graph, ran = captures.begin(), Followed()

        def whole() -> None:
            nonlocal ran
            with captures.scope(graph):
                ran = self._run(traced)
                if ran.error is not None:
                    raise ran.error

        began_ns = time.monotonic_ns()
        ended = attempt(whole)
        captured_ns = time.monotonic_ns()
        if ended.error is not None:
            raise NotCapturedError(_blocker(ran._replace(error=ran.error or ended.error), 0))
        nodes = read_nodes(driver.CUgraph(graph.raw_cuda_graph()))
        began_making_ns = time.monotonic_ns()
        graph.instantiate()
        made_ns = time.monotonic_ns()
        return CudaOwnGraph(
            nodes, ran.result, (captured_ns - began_ns) * 1e-9, (made_ns - began_making_ns) * 1e-9,
            self._replaying(graph.replay), graph.reset,
        )  # fmt: skip

    def _replaying(self, launch: Callable[[], object]) -> Submit:
        handle = base.LayerHandle(launch, self._handle, synchronize=self._case.synchronize)
        return base.LayerSubmit(handle, driver)

    def compare(self, graph: OwnGraph) -> str:
        assert isinstance(graph, CudaOwnGraph)
        if not list(callables.leaves(graph.result)):  # the function may write into its arguments
            graph.result = self._own.arguments
        kept = list(callables.leaves(graph.result))
        if not kept:
            return callables.judged([[], []], [], [])
        calls, before = [], set()
        for _ in range(2):
            result = self._own.call()
            result = result if list(callables.leaves(result)) else self._own.arguments
            self._case.synchronize()
            before |= {callables.address_of(leaf) for _, leaf in callables.leaves(result)}
            calls.append(callables.outputs(result))
            self._results = result  # kept, so that no other output gets its memory
        replays = []
        for _ in range(2):
            self._spoil([leaf for _, leaf in kept if callables.address_of(leaf) not in before])
            graph.replay(1)
            self._case.synchronize()
            replays.append(callables.outputs(graph.result))
        leaves = [leaf for _, leaf in kept]
        relative = [callables.tolerance(one.values, leaf) for one, leaf in zip(replays[0], leaves, strict=True)]
        return callables.judged(calls, replays, relative)

    def _spoil(self, leaves: list[Any]) -> None:
        """Overwrite outputs that only the graph writes, so that results of an earlier call cannot pass."""
        for leaf in leaves:
            address = callables.address_of(leaf)
            size_bytes = int(getattr(leaf, "nbytes", 0))
            if address and size_bytes and _packed(leaf):
                check(driver.cuMemsetD8(address, 0xA5, size_bytes))
        self._case.synchronize()

    def profiled_ns(self) -> IntArray:
        ended = Followed()

        def run() -> None:
            nonlocal ended
            ended = attempt(self._call)
            self._wait()

        durations_ns = self._record(run)
        if ended.error is not None:
            raise MeasurementError(f"a call after the capture failed: {plain(ended.error, MOST_WORDS)}")
        return durations_ns


def _packed(leaf: Any) -> bool:
    """Whether an array is contiguous and, if known, writable."""
    if hasattr(leaf, "is_contiguous"):
        return bool(leaf.is_contiguous())
    interface = getattr(leaf, "__cuda_array_interface__", {})
    return interface.get("strides") is None and not interface.get("data", (0, True))[1]


class CudaOwnGraph:
    """An OwnGraph; ``result`` is what the captured function returned. Replays write to it."""

    def __init__(
        self,
        nodes: tuple[GraphNode, ...],
        result: object,
        capture_s: float,
        instantiate_s: float,
        replay: Submit,
        reset: Callable[[], object],
    ) -> None:
        self.nodes, self.result = nodes, result
        self.capture_s, self.instantiate_s = capture_s, instantiate_s
        self.replay = replay
        self._reset = reset

    def forget(self) -> None:
        """Release the graph's outputs and memory."""
        self.result = None
        self._reset()


def _blocker(ran: Followed, code: int) -> Blocker:
    """The reason why a capture stopped: the library's own words, else the driver's."""
    words = f"{type(ran.error).__name__}: {ran.error}" if ran.error is not None else error_name(code)
    first = next((line.strip() for line in words.splitlines() if line.strip()), words)
    return Blocker(plain(first, MOST_WORDS), plain(ran.called, 80), ran.line)


def read_nodes(graph: Any) -> tuple[GraphNode, ...]:
    """The nodes of a graph in the driver's order; a child graph is replaced by its nodes."""
    count = int(check(driver.cuGraphGetNodes(graph))[-1])
    found = check(driver.cuGraphGetNodes(graph, count))[0][:count] if count else []
    nodes: list[GraphNode] = []
    for node in found:
        kind = check(driver.cuGraphNodeGetType(node))
        if kind == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_GRAPH:
            nodes += read_nodes(check(driver.cuGraphChildGraphNodeGetGraph(node)))
        elif kind == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            nodes.append(_kernel_node(check(driver.cuGraphKernelNodeGetParams(node))))
        else:
            nodes.append(GraphNode(kind.name.removeprefix("CU_GRAPH_NODE_TYPE_").lower()))
    return tuple(nodes)


def _kernel_node(given: Any) -> GraphNode:
    function, kernel = int(given.func or 0), int(given.kern or 0)
    name_of, size_of, handle = (
        (driver.cuFuncGetName, driver.cuFuncGetParamInfo, driver.CUfunction(function))
        if function
        else (driver.cuKernelGetName, driver.cuKernelGetParamInfo, driver.CUkernel(kernel))
    )
    code, name = name_of(handle)
    return GraphNode(
        "kernel",
        demangled(name.decode(errors="replace")) if int(code) == 0 and name else "a kernel",
        (given.gridDimX, given.gridDimY, given.gridDimZ),
        (given.blockDimX, given.blockDimY, given.blockDimZ),
        _argument_bytes(int(given.kernelParams or 0), lambda place: size_of(handle, place)),
    )


MOST_ARGUMENTS = 1024


def _argument_bytes(parameters: int, info: Callable[[int], Any]) -> bytes:
    """The bytes of a kernel's arguments; b"" if they are passed by ``extra`` or the driver is too old."""
    values = b""
    for place in range(MOST_ARGUMENTS if parameters else 0):
        code, *found = info(place)
        if int(code) != 0:
            break
        address = ctypes.c_void_p.from_address(parameters + place * ctypes.sizeof(ctypes.c_void_p)).value
        if address is None:
            break
        values += ctypes.string_at(address, int(found[1]))
    return values


@cache
def demangled(name: str) -> str:
    """A C++ name demangled and without its arguments; any other name unchanged."""
    if not name.startswith("_Z"):
        return name
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return name
    library.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    address = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not address:
        return name
    text = ctypes.string_at(address).decode(errors="replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(address))
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and place and not text.startswith("(anonymous namespace)", place):
            text = text[:place]
            break
    return text.removeprefix("void ").strip()
