"""Chains of nodes of one kind: captured where a stream has such a call, else built node by node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from cuda.bindings import driver

from microbench.errors import Skip
from microbench.gpu.api import SAFE_QUEUE_SLOTS, IntArray, Submit
from microbench.gpu.binding import bind_graph
from microbench.gpu.context import check, check_code, entry_point
from microbench.gpu.graph_api import NodeKind
from microbench.gpu.graphs.base import KERNEL_NODE, Case, as_int64, nodes_of, programmatic_edges, wrong
from microbench.gpu.graphs.changes import RESULT_WORDS, UPDATE_FAILURE, refusal
from microbench.gpu.graphs.effects import Appends, DependentAppends, Effects, Framed, HostAppends, Records, Sets, Waits
from microbench.gpu.graphs.program import CallRow, Program
from microbench.gpu.recording import capture
from microbench.host import call_rows
from microbench.host.native import c_address

BUILT = ("child", "empty", "if_taken", "if_skipped")
ONCE = ("if_taken", "if_skipped")
PROGRAMMATIC = ("pdl", "pdl_trigger", "pdl_prologue", "pdl_trigger_prologue")
PROLOGUE_NS = 1000
# Whose replay takes one slot of the launch queue, however many nodes it has; of other kinds each node may take one.
ONE_SLOT = ("kernel_empty", "kernel", "kernel_prologue", *PROGRAMMATIC, "empty")
_TYPES = driver.CUgraphNodeType
NODE_TYPES: dict[str, driver.CUgraphNodeType] = {
    "memset": _TYPES.CU_GRAPH_NODE_TYPE_MEMSET,
    "copy_h2d": _TYPES.CU_GRAPH_NODE_TYPE_MEMCPY,
    "copy_d2h": _TYPES.CU_GRAPH_NODE_TYPE_MEMCPY,
    "copy_d2d": _TYPES.CU_GRAPH_NODE_TYPE_MEMCPY,
    "host": _TYPES.CU_GRAPH_NODE_TYPE_HOST,
    "event_record": _TYPES.CU_GRAPH_NODE_TYPE_EVENT_RECORD,
    "event_wait": _TYPES.CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    "child": _TYPES.CU_GRAPH_NODE_TYPE_GRAPH,
    "empty": _TYPES.CU_GRAPH_NODE_TYPE_EMPTY,
    "if_taken": _TYPES.CU_GRAPH_NODE_TYPE_CONDITIONAL,
    "if_skipped": _TYPES.CU_GRAPH_NODE_TYPE_CONDITIONAL,
}
# Kinds whose calls leave nothing behind in a stream.
WITHOUT_EFFECT = ("kernel_empty", "event_wait")
CONDITIONAL_VERSION = 12040
PROGRAMMATIC_VERSION = 12030


def effects_of(case: Case, kind: NodeKind, count: int) -> Effects:
    """What shows the effect of that kind. Raises Skip where driver or GPU have no such node."""
    if kind in PROGRAMMATIC:
        case.require_capability(9, 0, "programmatic dependent launch")
        case.require_driver(PROGRAMMATIC_VERSION, "programmatic edges of graphs")
    if kind in PROGRAMMATIC or kind == "kernel_prologue":
        prologue_ns = PROLOGUE_NS if kind.endswith("prologue") else 0
        trigger = kind.startswith("pdl_trigger")
        return DependentAppends(case, count, pdl=kind in PROGRAMMATIC, trigger=trigger, prologue_ns=prologue_ns)
    if kind in ("if_taken", "if_skipped"):
        case.require_driver(CONDITIONAL_VERSION, "conditional nodes")
        return Appends(case, count, skipped=kind == "if_skipped")
    if kind in ("memset", "copy_h2d", "copy_d2h", "copy_d2d"):
        return Sets(case, count, kind)
    others: dict[str, Callable[[Case, int], Effects]] = {
        "host": HostAppends,
        "event_record": Records,
        "event_wait": Waits,
        "kernel_empty": Framed,
        "empty": Framed,
    }
    return others.get(kind, Appends)(case, count)


class CudaChain:
    """See Chain of graph_api.py. Two graphs, each aimed at a target of its own; updates go from one to the other."""

    def __init__(self, case: Case, kind: NodeKind, count: int) -> None:
        self._case = case
        self._kind: NodeKind = kind
        self._count = count
        self._effects = effects_of(case, kind, count)
        self._stream_handle = case.stream(0)
        program = None
        if kind not in BUILT:
            calls = self._effects.rows(0, captured=False)
            self._whole = program = Program(calls)
            self._checks_stream = kind not in WITHOUT_EFFECT
            program(1)  # loads the code, which capture would not
            case.context.synchronize()
        self.stream: Submit | None = Program(calls, single=True) if program else None
        self._kept: list[Any] = []
        self._graphs = [self._graph(kind, count, target) for target in range(2)]
        self._check_nodes()
        for graph in self._graphs:
            case.context.own(partial(driver.cuGraphDestroy, graph))
        self._target = 0
        self._executable = case.executable(self._graphs[0])
        slots = SAFE_QUEUE_SLOTS if kind in ONE_SLOT else max(SAFE_QUEUE_SLOTS // count, 1)
        self.graph: Submit = bind_graph(self._executable, self._stream_handle, slots)
        self._scratch: IntArray = np.zeros(RESULT_WORDS, dtype=np.int64)
        self._clock = c_address("clock_gettime")

    def _check_nodes(self) -> None:
        """The graph has as many nodes of the kind as it should, linked as they should be."""
        kind_type = NODE_TYPES.get(self._kind, KERNEL_NODE)
        frames = 2 if self._kind == "kernel_empty" else 0  # kernels as well, and counted with them
        found = sum(one == kind_type for one in nodes_of(self._graphs[0]))
        if found != self._count + frames:
            raise wrong(f"a chain of {self._kind}", f"{found} such nodes", self._count + frames)
        edges = programmatic_edges(self._graphs[0]) if self._kind in PROGRAMMATIC else self._count - 1
        if edges != self._count - 1:
            raise wrong(f"a chain of {self._kind}", f"{edges} programmatic edges", self._count - 1)

    def _graph(self, kind: NodeKind, count: int, target: int) -> driver.CUgraph:
        if kind not in BUILT:
            program = Program(self._effects.rows(target, captured=True))
            self._kept.append(program)
            if isinstance(self._effects, Framed | Waits):
                Program([self._effects.frame.row(target, 0)])(1)  # loads the code, which capture would not
                self._case.context.synchronize()
            return capture(self._stream_handle, lambda: program(1))
        graph = check(driver.cuGraphCreate(0))
        add = {"child": self._add_child, "empty": self._add_empty}.get(kind, self._add_conditional)
        before: list[Any] = []
        if kind == "empty":
            before = [self._add_kernel(graph, before, self._framed().frame.row(target, 0))]
        for index in range(count):
            before = [add(graph, before, kind, target, index)]
        if kind == "empty":
            self._add_kernel(graph, before, self._framed().frame.row(target, 1))
        return graph

    def _framed(self) -> Framed:
        assert isinstance(self._effects, Framed)
        return self._effects

    def _add_kernel(self, graph: driver.CUgraph, before: list[Any], row: CallRow) -> Any:
        """A kernel node of a launch's arguments."""
        function, gx, gy, gz, bx, by, bz, shared, _, parameters, _ = row.arguments
        params = driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = driver.CUfunction(function)
        params.gridDimX, params.gridDimY, params.gridDimZ = gx, gy, gz
        params.blockDimX, params.blockDimY, params.blockDimZ = bx, by, bz
        params.sharedMemBytes, params.kernelParams = shared, parameters
        return check(driver.cuGraphAddKernelNode(graph, before or None, len(before), params))

    def _append(self, target: int, index: int) -> CallRow:
        assert isinstance(self._effects, Appends)
        return self._effects.row(target, index)

    def _add_child(self, graph: driver.CUgraph, before: list[Any], kind: str, target: int, index: int) -> Any:
        child = check(driver.cuGraphCreate(0))
        self._add_kernel(child, [], self._append(target, index))
        node = check(driver.cuGraphAddChildGraphNode(graph, before or None, len(before), child))  # a copy of it
        check(driver.cuGraphDestroy(child))
        return node

    def _add_empty(self, graph: driver.CUgraph, before: list[Any], kind: str, target: int, index: int) -> Any:
        return check(driver.cuGraphAddEmptyNode(graph, before or None, len(before)))

    def _add_conditional(self, graph: driver.CUgraph, before: list[Any], kind: str, target: int, index: int) -> Any:
        types = driver.CUgraphConditionalNodeType
        node, body, _ = conditional(self._case, graph, before, types.CU_GRAPH_COND_TYPE_IF, int(kind == "if_taken"))
        self._add_kernel(body, [], self._append(target, index))
        return node

    def instantiate_ns(self) -> int:
        """See Chain. A graph with conditional nodes can be instantiated once: of these each time another one."""
        again = self._kind in ONCE
        graph = self._graph(self._kind, self._count, self._target) if again else self._graphs[self._target]
        address, handle = int(self._scratch.ctypes.data), as_int64(int(graph))
        instantiate = entry_point("cuGraphInstantiateWithFlags")
        code, took_ns = call_rows.timed_call(instantiate, address, handle, 0, self._clock)
        check_code(code, "instantiating a graph once more")
        check(driver.cuGraphExecDestroy(int(self._scratch[0])))
        if again:
            check(driver.cuGraphDestroy(graph))
        return int(took_ns)

    def update_ns(self) -> int:
        """See Chain. Each is followed by a replay, so that an update finds no other one still to be carried out."""
        other = 1 - self._target
        graph, executable = as_int64(int(self._graphs[other])), as_int64(self._executable)
        self._scratch[:] = 0
        code, took_ns = call_rows.timed_call(
            entry_point("cuGraphExecUpdate"), executable, graph, int(self._scratch.ctypes.data), self._clock
        )
        if code == UPDATE_FAILURE:
            raise Skip(refusal(self._scratch))
        check_code(code, f"an update of a chain of {self._kind}")
        self._target = other
        self.graph(1)
        self._case.context.synchronize()
        return int(took_ns)

    def check(self) -> str:
        """See Chain; the stream's calls are checked as well."""
        self._effects.observe(self._target, lambda: self.graph(1))
        if self.stream is not None and self._checks_stream:
            self._effects.observe(0, lambda: self._whole(1))
        return self._effects.how


def conditional(
    case: Case, graph: driver.CUgraph, before: list[Any], type_: Any, default: int
) -> tuple[Any, driver.CUgraph, int]:
    """A conditional node whose condition is ``default`` at each launch: the node, its body's graph, the handle."""
    handle = check(
        driver.cuGraphConditionalHandleCreate(graph, case.context.handle, default, driver.CU_GRAPH_COND_ASSIGN_DEFAULT)
    )
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = type_
    params.conditional.size = 1
    params.conditional.ctx = case.context.handle
    node = add_node(graph, before, params)
    return node, params.conditional.phGraph_out[0], int(handle)


def add_node(graph: driver.CUgraph, before: list[Any], params: Any) -> Any:
    """cuGraphAddNode: with edge data since CUDA 13, and by another name before."""
    add = getattr(driver, "cuGraphAddNode_v2", driver.cuGraphAddNode)
    return check(add(graph, before or None, None, len(before), params))
