"""A user's function: warmed up on one stream, captured into a graph whose nodes are read, replayed and compared."""

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from time import monotonic_ns  # the function may replace the names in the module
from typing import Any, NamedTuple

import numpy as np

from microbench.core.units import plain
from microbench.experiments.own import callables
from microbench.experiments.own.callables import JAX, OwnCall
from microbench.experiments.own.culprit import Followed, attempt, called, follow, said
from microbench.gpu.cuda.context import check, error_name
from microbench.gpu.experiment import Case, IntArray, Item, MeasurementError, Submit, driver, experiment
from microbench.gpu.fake import machine as sim
from microbench.gpu.layers import base
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS
from microbench.host.affinity import pinned

MOST_ARGUMENTS = 1024


class GraphNode(NamedTuple):
    """A node of a captured graph: its kind (kernel, memcpy, memset, …), and a kernel's name, grid, block and the bytes
    of its arguments, addresses included."""

    kind: str
    name: str = ""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    arguments: bytes = b""


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


# Calls before anything is measured: PyTorch asks for three before a capture; compilers and tuners may need one more.
WARM_UPS = 4
STREAM_DEFAULT_FLAGS = 0
EMPTY = "the graph is empty: nothing was submitted to the captured stream; pass the function its stream as an argument"
OF_JAX = "JAX submits to streams of its own and makes graphs of its own (XLA's command buffers)"
MOST_WORDS = 200
# On the simulated GPU a function that takes this long, or makes no call, takes its own time; another that of its calls.
SLOW_NS = 5_000_000  # the simulation of many calls takes some time itself


class Blocker(NamedTuple):
    """Why a capture stopped: the CUDA error, the function that was called, and the user's line. "" is unknown."""

    error: str
    call: str = ""
    line: str = ""


class NotCapturedError(MeasurementError):
    """The function cannot be captured into a graph."""

    def __init__(self, blocker: Blocker) -> None:
        super().__init__(f"{blocker.error} {blocker.line}".strip())
        self.blocker = blocker


@dataclass
class OwnGraph:
    """A captured step, instantiated. ``capture_s`` and ``instantiate_s`` are the host's time to make it.

    ``result`` is what the captured function returned; replays write to it.
    """

    nodes: tuple[GraphNode, ...]
    result: object
    capture_s: float
    instantiate_s: float
    replay: Submit
    reset: Callable[[], object] = lambda: None

    def forget(self) -> None:
        """Release the graph's outputs and memory."""
        self.result = None
        self.reset()


class OwnStep:
    """A user's function, warmed up.

    ``library`` names the library that submits its work. ``stream`` is the index of the stream that a gate must hold.

    While the function runs, a stream of microbench is the current stream of PyTorch and CuPy, unless the function takes
    a stream as an argument. It is a blocking stream, so that work in the legacy default stream behaves as if it were in
    this stream: a gate holds that work, an event waits for it, and a capture raises an error instead of losing it.
    """

    library: str
    stream: int
    submit: Submit

    def __init__(self, case: Case, own: OwnCall) -> None:
        self._case, self._own = case, own
        self._handle = callables.stream_of(own.arguments) or 0
        if not self._handle:
            stream = check(driver.cuStreamCreate(STREAM_DEFAULT_FLAGS))
            case.own(lambda: driver.cuStreamDestroy(stream))
            self._handle = int(stream)
        self.stream = case.adopt(self._handle)
        result = None
        for _ in range(WARM_UPS):  # the function may import a library at its first call
            restore = callables.use_stream(self._handle, int(case.context.device))
            case.synchronize()
            result = called(own.call, own.file)
            callables.refuse_unrun(result)
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
        self.submit = base.LayerSubmit(handle, driver)
        self.submit.queue_slots = self._slots()
        torch = sys.modules.get("torch")
        self._torch = torch is not None and torch.cuda.is_initialized()
        self._torch_captures: callables.TorchCaptures | None = None
        self._graphs: list[OwnGraph] = []
        case.own(self._graphs.clear)

    def _slots(self) -> int:
        """Calls that surely fit the launch queue before the launches of a call are counted: a launch takes 1 µs or
        more."""
        began_ns = monotonic_ns()
        self._call()
        launches = max((monotonic_ns() - began_ns) // 1000, 1)
        self._case.synchronize()
        return max(SAFE_QUEUE_SLOTS // int(launches), 1)

    def capture(self, *, follow: bool = False) -> OwnGraph:
        """Capture one call into a graph. With ``follow`` the interpreter is traced, which takes time, to find the
        user's line that stops the capture. Raises NotCapturedError."""
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
        return follow(self._own.call, self._broken, self._own.file) if traced else attempt(self._own.call)

    def _broken(self) -> bool:
        code, status, *_ = driver.cuStreamGetCaptureInfo(self._handle)
        return int(code) != 0 or status == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED

    def _captured(self, traced: bool) -> OwnGraph:
        began_ns = monotonic_ns()
        thread_local = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(driver.cuStreamBeginCapture(self._handle, thread_local))
        ran = Followed()
        try:
            ran = self._run(traced)
        finally:
            code, graph = driver.cuStreamEndCapture(self._handle)
        captured_ns = monotonic_ns()
        if int(code) != 0 or ran.error is not None:
            if int(code) == 0:
                driver.cuGraphDestroy(graph)
            raise NotCapturedError(_blocker(ran, int(code)))
        nodes = read_nodes(graph)
        began_making_ns = monotonic_ns()
        executable = check(driver.cuGraphInstantiate(graph, 0))
        times_s = (captured_ns - began_ns) * 1e-9, (monotonic_ns() - began_making_ns) * 1e-9
        self._case.own(lambda: driver.cuGraphExecDestroy(executable))
        check(driver.cuGraphDestroy(graph))
        function, handle, stream = driver.cuGraphLaunch, driver.CUgraphExec(int(executable)), self._handle
        return OwnGraph(nodes, ran.result, *times_s, self._replaying(lambda: check(function(handle, stream))))

    def _captured_by_torch(self, traced: bool) -> OwnGraph:
        captures = self._torch_captures = self._torch_captures or callables.TorchCaptures(self._handle)
        graph, ran = captures.begin(), Followed()

        def whole() -> None:
            nonlocal ran
            with captures.scope(graph):
                ran = self._run(traced)
                if ran.error is not None:
                    raise ran.error

        began_ns = monotonic_ns()
        ended = attempt(whole)
        captured_ns = monotonic_ns()
        if ended.error is not None:
            raise NotCapturedError(_blocker(ran._replace(error=ran.error or ended.error), 0))
        nodes = read_nodes(driver.CUgraph(graph.raw_cuda_graph()))
        began_making_ns = monotonic_ns()
        graph.instantiate()
        times_s = (captured_ns - began_ns) * 1e-9, (monotonic_ns() - began_making_ns) * 1e-9
        return OwnGraph(nodes, ran.result, *times_s, self._replaying(graph.replay), graph.reset)

    def _replaying(self, launch: Callable[[], object]) -> Submit:
        handle = base.LayerHandle(launch, self._handle, synchronize=self._case.synchronize)
        return base.LayerSubmit(handle, driver)

    def compare(self, graph: OwnGraph) -> str:
        """How the outputs of replays were compared with those of calls, or why they could not be.

        Raises MeasurementError, naming the first output that differs, if the graph computes something else.
        """
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
        """Duration of each kernel of one call, as profilers report it (CUPTI), in ns. Raises Skip without CUPTI.

        A process that was recorded replays graphs more slowly from then on.
        """
        ended = Followed()

        def run() -> None:
            nonlocal ended
            ended = attempt(self._call)
            self._wait()

        durations_ns = self._case.context.kernel_records.durations_ns(run)
        if ended.error is not None:
            raise MeasurementError(f"a call after the capture failed: {plain(said(ended.error), MOST_WORDS)}")
        return durations_ns


def _packed(leaf: Any) -> bool:
    """Whether an array is contiguous and, if known, writable."""
    if hasattr(leaf, "is_contiguous"):
        return bool(leaf.is_contiguous())
    interface = getattr(leaf, "__cuda_array_interface__", {})
    return interface.get("strides") is None and not interface.get("data", (0, True))[1]


def _blocker(ran: Followed, code: int) -> Blocker:
    """The reason why a capture stopped: the library's own words, else the driver's."""
    words = said(ran.error) if ran.error is not None else error_name(code)
    first = next((line.strip() for line in words.splitlines() if line.strip()), words)
    return Blocker(plain(first, MOST_WORDS), plain(ran.called, 80), ran.line)


class SimulatedOwnStep(OwnStep):
    """Its function uses Submits of the simulated GPU."""

    library = "the simulated GPU"
    stream = 0

    def __init__(self, machine: sim.Machine, own: OwnCall) -> None:
        self._machine, self._own = machine, own
        shortest_ns, before_ns = monotonic_ns(), machine.clock.time_ns
        for _ in range(WARM_UPS):
            began_ns = monotonic_ns()
            callables.refuse_unrun(called(own.call, own.file))
            shortest_ns = min(shortest_ns, monotonic_ns() - began_ns)
        self._own_ns = shortest_ns if shortest_ns >= SLOW_NS or machine.clock.time_ns == before_ns else 0
        machine.synchronize()
        self.submit = sim.FakeProgram(machine, self._take, SAFE_QUEUE_SLOTS, stream=0)

    def _take(self) -> None:
        self._own.call()
        if self._own_ns:
            self._machine.spend(self._own_ns)

    def capture(self, *, follow: bool = False) -> OwnGraph:
        machine = self._machine
        began_ns = machine.clock.time_ns
        captured = machine.capturing = sim.Captured()
        ran = Followed()
        try:
            ran = self._run(follow)
        finally:
            machine.capturing = None
        error = captured.broken or (said(ran.error) if ran.error is not None else "")
        if error:
            raise NotCapturedError(Blocker(error, ran.called, ran.line))
        if not captured.calls:
            raise NotCapturedError(Blocker(EMPTY.partition(";")[0]))
        items = [call.item for call, count in captured.calls for _ in range(count)]
        chain = sim.graph_of([sim.Node(machine.costs.gap_graph_ns, item.duration_ns) for item in items])
        machine.spend(machine.costs.graphs.capture.at(chain.nodes))
        captured_ns = machine.clock.time_ns
        machine.spend(machine.costs.graphs.instantiate.at(chain.nodes))
        self.submit.queue_slots = max(SAFE_QUEUE_SLOTS // chain.nodes, 1)
        times_s = (captured_ns - began_ns) * 1e-9, (machine.clock.time_ns - captured_ns) * 1e-9
        replay = sim.FakeSubmit(machine, sim.replay_of(chain, machine.costs))
        return OwnGraph(tuple(map(_simulated_node, items)), None, *times_s, replay)

    def _broken(self) -> bool:
        return bool(self._machine.capturing and self._machine.capturing.broken)

    def compare(self, graph: OwnGraph) -> str:
        return "SIMULATED: nothing is computed"

    def profiled_ns(self) -> IntArray:
        machine = self._machine
        durations_ns = [
            call.item.duration_ns + machine.costs.profiler_ns
            for call, count in self._seen().calls
            if call.item.engine is None
            for _ in range(count)
        ]
        return machine.globaltimer_ns(np.array(durations_ns))

    def submitted(self) -> tuple[list[GraphNode], list[str]]:
        """The work of one call, and the names of the calls in it that wait."""
        seen = self._seen()
        return [_simulated_node(call.item) for call, count in seen.calls for _ in range(count)], seen.waits

    def _seen(self) -> sim.Captured:
        machine = self._machine
        seen = machine.capturing = sim.Captured(lenient=True)
        try:
            attempt(self._own.call)
        finally:
            machine.capturing = None
        return seen


def _simulated_node(item: Item) -> GraphNode:
    name = f"simulated_{item.duration_ns:.0f}ns" if item.engine is None else ""
    return GraphNode("kernel" if item.engine is None else "memcpy", name, (1, 1, 1), (32, 1, 1))


def real_own_step(case: Case, make: Callable[[], OwnCall]) -> OwnStep:
    """Warm up the user's function that ``make`` loads, on a stream; it is usable until the case ends.

    Its threads may use all cores meanwhile, because the first calls may compile. Raises MeasurementError, with the
    user's line, if the function raises an exception.
    """
    with pinned(case.board.cores.allowed):
        return OwnStep(case, make())


own_step = experiment(real_own_step, lambda machine, make: SimulatedOwnStep(machine, make()))
