"""Chains of nodes of one kind, captured or built; and loops whose iterations the host, a node or a kernel decides."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray, Launch
from microbench.experiments.graph import effects
from microbench.experiments.graph.effects import wrong
from microbench.experiments.graph.lives import RESULT_WORDS, UPDATE_FAILURE, refusal, refuses
from microbench.gpu.cuda.context import check, check_code, entry_point
from microbench.gpu.cuda.submit import CallRow, Program, as_int64, capture, executable, loaded, replay
from microbench.gpu.experiment import Case, Parameters, Submit, driver, experiment, launch, loops
from microbench.gpu.fake import machine as sim
from microbench.gpu.layers.base import node_types
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS, require_capability, require_driver
from microbench.host.native import c_address

NodeKind = Literal[
    "kernel_empty", "kernel", "pdl", "pdl_trigger", "kernel_prologue", "pdl_prologue", "pdl_trigger_prologue",
    "memset", "copy_h2d", "copy_d2h", "copy_d2d", "host", "event_record", "event_wait", "child", "empty",
    "if_taken", "if_skipped",
]  # fmt: skip
BUILT = ("child", "empty", "if_taken", "if_skipped")
CONDITIONAL_KINDS = ("if_taken", "if_skipped")
PROGRAMMATIC = ("pdl", "pdl_trigger", "pdl_prologue", "pdl_trigger_prologue")
# A replay of these takes one slot of the launch queue, however many nodes it has; other nodes may take one each.
ONE_SLOT = ("kernel_empty", "kernel", "kernel_prologue", *PROGRAMMATIC, "empty")
# Kinds whose calls leave nothing behind in a stream.
WITHOUT_EFFECT = ("kernel_empty", "event_wait")
PROLOGUE_NS = 1000
CONDITIONAL_VERSION = 12040
PROGRAMMATIC_VERSION = 12030
# Types of nodes by the end of their names in CUgraphNodeType; all other kinds are kernels.
NODE_TYPES: dict[str, str] = {
    "memset": "MEMSET", "copy_h2d": "MEMCPY", "copy_d2h": "MEMCPY", "copy_d2d": "MEMCPY", "host": "HOST",
    "event_record": "EVENT_RECORD", "event_wait": "WAIT_EVENT", "child": "GRAPH", "empty": "EMPTY",
    "if_taken": "CONDITIONAL", "if_skipped": "CONDITIONAL",
}  # fmt: skip


def effects_of(case: Case, kind: NodeKind, count: int) -> effects.Effects:
    """The Effects that show that nodes of that kind ran. Raises Skip if driver or GPU have no such node."""
    if kind in PROGRAMMATIC:
        case.require_capability(9, 0, "programmatic dependent launch")
        case.require_driver(PROGRAMMATIC_VERSION, "programmatic edges of graphs")
    if kind in PROGRAMMATIC or kind == "kernel_prologue":
        prologue_ns = PROLOGUE_NS if kind.endswith("prologue") else 0
        trigger = kind.startswith("pdl_trigger")
        call = partial(effects.append_dependent, pdl=kind in PROGRAMMATIC, trigger=trigger, prologue_ns=prologue_ns)
        return effects.Appends(case, count, call=call)
    if kind in CONDITIONAL_KINDS:
        case.require_driver(CONDITIONAL_VERSION, "conditional nodes")
        return effects.Appends(case, count, skipped=kind == "if_skipped")
    if kind in ("memset", "copy_h2d", "copy_d2h", "copy_d2d"):
        return effects.Sets(case, count, kind)
    others: dict[str, Callable[[Case, int], effects.Effects]] = {
        "host": partial(effects.Appends, pinned=True, call=effects.append_on_host),
        "event_record": effects.Records,
        "event_wait": effects.Waits,
        "kernel_empty": effects.Framed,
        "empty": effects.Framed,
    }
    return others.get(kind, effects.Appends)(case, count)


class NodeChain:
    """A graph of nodes of one kind, each depending on the node before; made twice, with different targets, between
    which updates alternate.

    ``stream`` submits the same work to stream 0, one call for each node; None if only a graph can hold such a node.
    """

    graph: Submit
    stream: Submit | None

    def __init__(self, case: Case, kind: NodeKind, count: int) -> None:
        self._case = case
        self._kind: NodeKind = kind
        self._count = count
        self._effects = effects_of(case, kind, count)
        self._stream_handle = case.stream(0)
        self.stream = None
        self._checked: Submit | None = None  # the calls of the stream, if their effect can be checked
        if kind not in BUILT:
            calls = self._effects.rows(0, captured=False)
            program = loaded(case, calls)
            self._checked = None if kind in WITHOUT_EFFECT else program
            self.stream = Program(calls, single=True)
        self._programs: list[Program] = []  # kept: captured nodes point to them
        self._graphs = [self._graph(target) for target in range(2)]
        self._check_nodes()
        for graph in self._graphs:
            case.own(partial(driver.cuGraphDestroy, graph))
        self._target = 0
        self._executable = executable(case, self._graphs[0], self._stream_handle)
        slots = SAFE_QUEUE_SLOTS if kind in ONE_SLOT else max(SAFE_QUEUE_SLOTS // count, 1)
        self.graph = replay(self._executable, self._stream_handle, slots)
        self._scratch: IntArray = np.zeros(RESULT_WORDS, dtype=np.int64)
        self._clock = c_address("clock_gettime")

    def _check_nodes(self) -> None:
        """Raise MeasurementError for a wrong number of nodes of the kind or of programmatic edges."""
        kind_type = getattr(driver.CUgraphNodeType, f"CU_GRAPH_NODE_TYPE_{NODE_TYPES.get(self._kind, 'KERNEL')}")
        frames = 2 if self._kind == "kernel_empty" else 0  # are kernels as well, and are counted with them
        nodes = sum(node == kind_type for node in node_types(driver, self._graphs[0]))
        if nodes != self._count + frames:
            raise effects.wrong(f"a chain of {self._kind}", f"{nodes} such nodes", self._count + frames)
        if self._kind not in PROGRAMMATIC:
            return
        # With edge data since CUDA 13, under another name before.
        get_edges = getattr(driver, "cuGraphGetEdges_v2", driver.cuGraphGetEdges)
        count = int(check(get_edges(self._graphs[0]))[-1])
        data = check(get_edges(self._graphs[0], count))[2] if count else []
        programmatic = driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
        edges = sum(int(edge.type) == int(programmatic) for edge in data[:count])
        if edges != self._count - 1:
            raise effects.wrong(f"a chain of {self._kind}", f"{edges} programmatic edges", self._count - 1)

    def _graph(self, target: int) -> Any:
        shown = self._effects
        if self._kind not in BUILT:
            program = Program(shown.rows(target, captured=True))
            self._programs.append(program)
            if isinstance(shown, effects.Framed | effects.Waits):
                loaded(self._case, [shown.frame.row(target, 0)])
            return capture(self._stream_handle, lambda: program(1))
        graph = check(driver.cuGraphCreate(0))
        before: list[Any] = []
        if isinstance(shown, effects.Framed):
            before = [add_kernel(graph, before, shown.frame.row(target, 0))]
        for index in range(self._count):
            before = [self._add(graph, before, target, index)]
        if isinstance(shown, effects.Framed):
            add_kernel(graph, before, shown.frame.row(target, 1))
        return graph

    def _add(self, graph: Any, before: list[Any], target: int, index: int) -> Any:
        if self._kind == "empty":
            return check(driver.cuGraphAddEmptyNode(graph, before or None, len(before)))
        assert isinstance(self._effects, effects.Appends)
        row = self._effects.row(target, index)
        if self._kind == "child":
            child = check(driver.cuGraphCreate(0))
            add_kernel(child, [], row)
            node = check(driver.cuGraphAddChildGraphNode(graph, before or None, len(before), child))  # copies it
            check(driver.cuGraphDestroy(child))
            return node
        type_ = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
        node, body, _ = conditional(self._case, graph, before, type_, int(self._kind == "if_taken"))
        add_kernel(body, [], row)
        return node

    def instantiate_ns(self) -> int:
        """Instantiate the graph once more and destroy the result: host time of the instantiation, in ns.

        A graph with conditional nodes can be instantiated once, so a new one is made each time.
        """
        again = self._kind in CONDITIONAL_KINDS
        graph = self._graph(self._target) if again else self._graphs[self._target]
        address, handle = int(self._scratch.ctypes.data), as_int64(int(graph))
        instantiate = entry_point("cuGraphInstantiateWithFlags")
        code, took_ns = loops.timed_call(instantiate, address, handle, 0, self._clock)
        check_code(code, "instantiating a graph once more")
        check(driver.cuGraphExecDestroy(int(self._scratch[0])))
        if again:
            check(driver.cuGraphDestroy(graph))
        return int(took_ns)

    def update_ns(self) -> int:
        """Update the executable graph to one with the same nodes and other values: host time of the call, in ns.

        Later checks expect the new values. A replay follows each update, so that no update is still pending at the
        next one. Raises Skip, with the driver's reason, if it refuses such an update.
        """
        other = 1 - self._target
        graph, handle = as_int64(int(self._graphs[other])), as_int64(self._executable)
        self._scratch[:] = 0
        code, took_ns = loops.timed_call(
            entry_point("cuGraphExecUpdate"), handle, graph, int(self._scratch.ctypes.data), self._clock
        )
        if code == UPDATE_FAILURE:
            raise Skip(refusal(self._scratch))
        check_code(code, f"an update of a chain of {self._kind}")
        self._target = other
        self.graph(1)
        self._case.synchronize()
        return int(took_ns)

    def check(self) -> str:
        """Poison the memory, replay, and inspect the effect and order of every node, in the stream as well.

        Returns how that was done. Raises MeasurementError if an effect is missing, wrong or early.
        """
        self._effects.observe(self._target, lambda: self.graph(1))
        if (program := self._checked) is not None:
            self._effects.observe(0, lambda: program(1))
        return self._effects.how


def add_kernel(graph: Any, before: list[Any], row: CallRow) -> Any:
    """Add a kernel node with the arguments of a cuLaunchKernel call."""
    function, gx, gy, gz, bx, by, bz, shared, _, parameters, _ = row.arguments
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.func = driver.CUfunction(function)
    params.gridDimX, params.gridDimY, params.gridDimZ = gx, gy, gz
    params.blockDimX, params.blockDimY, params.blockDimZ = bx, by, bz
    params.sharedMemBytes, params.kernelParams = shared, parameters
    return check(driver.cuGraphAddKernelNode(graph, before or None, len(before), params))


def conditional(case: Case, graph: Any, before: list[Any], type_: Any, default: int) -> tuple[Any, Any, int]:
    """Add a conditional node whose condition is ``default`` at each launch: the node, its body's graph, the handle."""
    handle = check(
        driver.cuGraphConditionalHandleCreate(graph, case.context.handle, default, driver.CU_GRAPH_COND_ASSIGN_DEFAULT)
    )
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = type_
    params.conditional.size = 1
    params.conditional.ctx = case.context.handle
    # With edge data since CUDA 13, under another name before.
    add = getattr(driver, "cuGraphAddNode_v2", driver.cuGraphAddNode)
    node = check(add(graph, before or None, None, len(before), params))
    return node, params.conditional.phGraph_out[0], int(handle)


class SimulatedNodeChain(sim.Scoped, NodeChain):
    """``count`` nodes of a kind. Raises Skip where the simulated GPU or its driver has no such nodes."""

    def __init__(self, machine: sim.Machine, kind: NodeKind, count: int) -> None:
        costs = machine.costs
        if kind.startswith("pdl"):
            require_capability(costs.compute_capability, 9, 0, "programmatic dependent launch")
            require_driver(costs.cuda_driver_version, PROGRAMMATIC_VERSION, "programmatic edges")
        if kind in ("if_taken", "if_skipped"):
            require_driver(costs.cuda_driver_version, CONDITIONAL_VERSION, "conditional nodes")
        super().__init__(machine)
        self._node = costs.graphs.node(kind)
        self._count = count
        machine.clock.pass_ns(costs.graphs.build.at(count))
        self.instantiate_ns()
        self.graph = sim.FakeSubmit(machine, sim.replay_of(sim.graph_of([sim.node_of(kind, costs)] * count), costs))
        call = sim.call_of_kind(kind, costs)
        self.stream = sim.FakeSubmit(machine, call, records=kind == "event_record") if call else None

    def instantiate_ns(self) -> int:
        graphs = self._machine.costs.graphs
        return self._call_ns(graphs.instantiate.at(self._count) + self._count * self._node.instantiate_ns)

    def update_ns(self) -> int:
        costs, own_ns = self._machine.costs, self._node.update_ns
        refused = refuses(costs, own_ns)
        if refused or own_ns is None:
            raise Skip(refused)
        return self._call_ns(costs.graphs.exec_update.at(self._count) + self._count * own_ns)

    def _call_ns(self, cost_ns: float) -> int:
        began_ns = self._open().clock.now_ns()
        return self._machine.stamped(cost_ns) - began_ns

    def check(self) -> str:
        return self._machine.ran(effects.CHECKED, self.graph)


node_chain = experiment(NodeChain, SimulatedNodeChain)


Decider = Literal["host_sync", "host_poll", "while", "tail_launch"]
DEVICE_LAUNCH_VERSION = 12000
COUNTER_WORDS = 3


def decided_by_host(case: Case, *, polls: bool) -> Callable[[int], int]:
    """Launch, wait (or watch a flag in mapped memory), look at the flag, and launch again."""
    counter, flag = case.device_memory(4), case.pinned(1)
    flag_address = int(flag.ctypes.data)
    row = Parameters([(counter, flag_address)])
    submit = launch(case, case.function("graph", "count_up"), Launch(block_threads=1), row)
    synchronize, clock = 0 if polls else entry_point("cuStreamSynchronize"), c_address("clock_gettime")

    def run_ns(iterations: int) -> int:
        case.clear(counter, 4)
        flag[0] = 0
        arguments = (submit.address, submit.arguments, synchronize, submit.stream, flag_address, iterations, clock)
        code, took_ns = loops.iterate(*arguments)
        case.synchronize()  # raises the GPU's error, which says more than a missing flag
        check_code(code, "an iteration decided on the host")
        counted = int(case.read(counter, 1, np.uint32)[0])
        if counted != iterations:
            raise wrong("iterations decided on the host", counted, iterations)
        return int(took_ns)

    return run_ns


def decided_by_device(case: Case, decider: Decider) -> Callable[[int], int]:
    """One launch of a graph whose kernel decides whether there is another iteration."""
    counter, flags, one_thread = case.device_memory(COUNTER_WORDS * 4), 0, Launch(block_threads=1)
    if decider == "while":
        case.require_driver(CONDITIONAL_VERSION, "conditional nodes")
        function = case.function("graph_while", "count_while")
        graph = check(driver.cuGraphCreate(0))
        kind = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
        _, body, handle = conditional(case, graph, [], kind, 1)
        add_kernel(body, [], CallRow.of(launch(case, function, one_thread, Parameters([(handle, counter)]))))
    else:
        case.require_driver(DEVICE_LAUNCH_VERSION, "graphs launched from the device")
        function = case.function("graph_tail", "count_tail")
        submit = launch(case, function, one_thread, Parameters([(counter,)]))
        graph = capture(submit.stream, lambda: submit(1))  # such a kernel can be launched in a graph only
        flags = int(driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
    replayed = replay(executable(case, graph, case.stream(0), flags), case.stream(0))
    check(driver.cuGraphDestroy(graph))
    out: IntArray = np.zeros(1, dtype=np.int64)

    def run_ns(iterations: int) -> int:
        case.upload(counter, np.array([0, iterations, 0], dtype=np.uint32))
        case.synchronize()
        replayed.round_trips(out)
        counted, _, error = (int(word) for word in case.read(counter, COUNTER_WORDS, np.uint32))
        if error:
            raise MeasurementError(f"the device refused to launch the graph: error {error}")
        if counted != iterations:
            raise wrong("iterations decided on the device", counted, iterations)
        return int(out[0])

    return run_ns


def simulated_loop(machine: sim.Machine, decider: Decider) -> Callable[[int], int]:
    """The same loop. Raises Skip if the driver does not support the decider."""
    costs, graphs, scope = machine.costs, machine.costs.graphs, machine.scope
    if decider == "while":
        require_driver(costs.cuda_driver_version, CONDITIONAL_VERSION, "conditional nodes")
    if decider == "tail_launch":
        require_driver(costs.cuda_driver_version, DEVICE_LAUNCH_VERSION, "graph launches from the device")

    def run_ns(iterations: int) -> int:
        machine.check(scope)
        began_ns = machine.clock.now_ns()
        if decider in ("while", "tail_launch"):
            each_ns = graphs.while_iteration_ns if decider == "while" else graphs.tail_iteration_ns
            machine.make(sim.replay_of(sim.Graph(1, iterations * each_ns), costs), 1)
            machine.synchronize(0)
            return machine.clock.now_ns() - began_ns
        launch = sim.call_of(Launch(duration_ns=graphs.dependent_kernel_ns), costs)
        for _ in range(iterations):
            ends_ns = machine.make(launch, 1).batches[-1].ends_ns
            if decider == "host_sync":
                machine.synchronize(0)
            else:
                assert ends_ns is not None, "nothing may hold the stream here"
                machine.clock.wait_until(float(ends_ns[-1]) + costs.flag_to_host_ns)
            machine.clock.pass_ns(graphs.look_ns)
        return machine.clock.now_ns() - began_ns

    return run_ns


def decided(case: Case, decider: Decider) -> Callable[[int], int]:
    """A kernel that is repeated until a counter is full. ``decider`` says who decides whether to repeat it.

    Returns a function of the number of iterations: host time, in ns, from before the first call until the host knows
    that the loop has ended. It raises MeasurementError if a different number of iterations ran.
    """
    if decider in ("host_sync", "host_poll"):
        return decided_by_host(case, polls=decider == "host_poll")
    return decided_by_device(case, decider)


decided_loop = experiment(decided, simulated_loop)
