"""Graphs from their capture or build to their end, their memory, and changes of an executable graph."""

import os
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core.ops import IntArray, Launch, LayerCall
from microbench.experiments.graph.effects import wrong
from microbench.gpu.cuda.context import check, check_code, entry_point, error_name
from microbench.gpu.cuda.submit import DriverSubmit, Parameters, as_int64, capture, launch
from microbench.gpu.experiment import Case, Item, MeasurementError, Skip, driver, experiment, loops
from microbench.gpu.fake import machine as fake
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.machine import Machine, empty_chain
from microbench.gpu.layers import base
from microbench.host.native import c_address

# CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h: 72 bytes on 64-bit hosts.
KERNEL_NODE_PARAMS = np.dtype(
    {
        "names": ["function", "grid", "block", "shared_bytes", "parameters", "extra", "kernel", "context"],
        "formats": ["u8", ("u4", 3), ("u4", 3), "u4", "u8", "u8", "u8", "u8"],
        "offsets": [0, 8, 20, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)


def entries() -> IntArray:
    """The addresses that host/graph_loops.py calls."""
    return np.array([entry_point(name) for name in loops.ENTRY_NAMES], dtype=np.uint64).astype(np.int64)


def launch_row(submit: DriverSubmit) -> IntArray:
    """The arguments of a launch and the address of its call, as host/graph_loops.py captures it."""
    return np.append(submit.arguments, np.uint64(submit.address).astype(np.int64))


def kernel_params(function: int, count: int) -> npt.NDArray[Any]:
    """Parameters of ``count`` kernel nodes of one block."""
    params = np.zeros(count, dtype=KERNEL_NODE_PARAMS)
    params["function"], params["grid"], params["block"] = function, (1, 1, 1), (32, 1, 1)
    return params


Made = Literal["capture", "build"]


class Life(IntEnum):
    """Columns of ``graph_lives``: the host clock after each phase of a graph's life."""

    BEGIN = 0
    MADE = 1
    INSTANTIATED = 2
    UPLOADED = 3
    READY = 4
    CALLED = 5
    DONE = 6
    DESTROYED = 7


class Footprint(NamedTuple):
    """Bytes that one instantiated and uploaded graph takes of device memory and of the process's resident memory."""

    device_bytes: float
    host_bytes: float


class Lives:
    """Lives of chains of ``nodes`` empty kernels, made and ended by a compiled loop."""

    def __init__(self, case: Case, nodes: int) -> None:
        function = case.function("launch", "empty")
        self._stream = case.stream(0)
        self.submit = launch(case, function, Launch())
        self._row = launch_row(self.submit)
        self._entries = entries()
        self._nodes: IntArray = np.zeros(nodes, dtype=np.int64)
        self._scratch: IntArray = np.zeros(2, dtype=np.int64)
        self._addresses: IntArray = np.array([self._scratch.ctypes.data, self._nodes.ctypes.data], dtype=np.int64)
        self._params = kernel_params(function, 1)
        self._clock = c_address("clock_gettime")
        self._warm: set[Made] = set()

    def stamps(self, count: int, made: Made) -> IntArray:
        """The first life of its kind is dropped: it loads the loop and the driver's code."""
        if made not in self._warm:
            self._warm.add(made)
            self.stamps(1, made)
        out: IntArray = np.zeros((count, len(Life)), dtype=np.int64)
        fixed = (self._entries, self._row, int(self._params.ctypes.data), self._nodes, self._addresses, self._scratch)
        for row in out:
            code = loops.live(*fixed, made == "capture", as_int64(self._stream), self._clock, row)
            check_code(code, f"the life of a graph of {len(self._nodes)} nodes")
        return out


def lives(case: Case, nodes: int, count: int, made: Made) -> IntArray:
    """Make, launch and destroy a chain of empty kernels ``count`` times, by stream capture or node by node.

    Returns ns, shape (count, len(Life)). A captured graph is uploaded, and READY is when the GPU has done so. A built
    graph is not: UPLOADED and READY equal INSTANTIATED, and its first launch uploads it.
    """
    return case.once(Lives, nodes).stamps(count, made)


def footprint(case: Case, nodes: int, copies: int) -> Footprint:
    """Memory of a chain of empty kernels, instantiated, uploaded and run once: the mean over ``copies`` copies.

    The copies are held until the case ends, so that a later call cannot reuse their memory. The driver may keep the
    memory of earlier graphs and reuse it for these.
    """
    submit, stream = case.once(Lives, nodes).submit, case.stream(0)
    submit(1)
    graph = capture(stream, lambda: submit(nodes))
    if base.node_types(driver, graph) != [driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL] * nodes:
        raise MeasurementError(f"a capture of {nodes} launches has other nodes than these kernels")
    held: IntArray = np.zeros(copies, dtype=np.int64)
    case.own(lambda: [driver.cuGraphExecDestroy(int(handle)) for handle in held if handle])
    free_before, resident_before = _free_bytes(), _resident_bytes()
    for index in range(copies):
        executable = check(driver.cuGraphInstantiate(graph, 0))
        held[index] = int(executable)
        check(driver.cuGraphUpload(executable, stream))
        check(driver.cuGraphLaunch(executable, stream))
        case.synchronize()
    free_after, resident_after = _free_bytes(), _resident_bytes()
    check(driver.cuGraphDestroy(graph))
    return Footprint((free_before - free_after) / copies, (resident_after - resident_before) / copies)


def _free_bytes() -> int:
    return int(check(driver.cuMemGetInfo())[0])


def _resident_bytes() -> int:
    """Resident memory of this process (Linux: the second field of statm, in pages)."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def simulated_lives(machine: fake.Machine, nodes: int, count: int, made: Made) -> IntArray:
    clock, costs, graph = machine.clock, machine.costs.graphs, fake.empty_chain(nodes, machine.costs)
    out_ns: IntArray = np.zeros((count, len(Life)), dtype=np.int64)
    for row in out_ns:
        row[Life.BEGIN] = clock.now_ns()
        row[Life.MADE] = machine.stamped((costs.capture if made == "capture" else costs.build).at(nodes))
        row[Life.INSTANTIATED : Life.CALLED] = machine.stamped(costs.instantiate.at(nodes))
        if made == "capture":
            upload(machine, nodes)
            row[Life.UPLOADED] = clock.now_ns()
            machine.synchronize(0)
            row[Life.READY] = clock.now_ns()
        replayed(machine, graph, row[Life.CALLED : Life.DESTROYED], uploads=made == "build")
        row[Life.DESTROYED] = machine.stamped(costs.destroy.at(nodes))
    return out_ns


def simulated_footprint(machine: fake.Machine, nodes: int, copies: int) -> Footprint:
    costs = machine.costs.graphs
    machine.clock.pass_ns(copies * sum(act.at(nodes) for act in (costs.instantiate, costs.upload, costs.destroy)))
    return Footprint(costs.device_memory.at(nodes), costs.host_memory.at(nodes))


def upload(machine: fake.Machine, nodes: int) -> None:
    """The call returns before the GPU is ready."""
    costs = machine.costs.graphs
    machine.make(fake.Call(costs.upload.at(nodes), Item(duration_ns=costs.upload_on_gpu.at(nodes))), 1)


def replayed(
    machine: fake.Machine, graph: fake.Graph, row: IntArray, extra_ns: float = 0.0, *, uploads: bool = False
) -> None:
    """Launch and wait. Writes when the call and when the wait returned into ``row`` of shape (2,)."""
    call, costs = fake.replay_of(graph, machine.costs), machine.costs.graphs
    if uploads:
        extra_ns += costs.upload.at(graph.nodes)
        call = call.with_item(duration_ns=call.item.duration_ns + costs.upload_on_gpu.at(graph.nodes))
    machine.make(fake.Call(call.host_ns + extra_ns, call.item), 1)
    row[0] = machine.clock.now_ns()
    machine.synchronize(0)
    row[1] = machine.clock.now_ns()


def layer_lives(case: Case, op: LayerCall, nodes: int, count: int) -> IntArray:
    """Make, replay and destroy a graph of ``nodes`` calls of a bound Python layer ``count`` times, by its own API.

    Returns ns, shape (count, Life.DESTROYED): the columns of Life up to DONE. MADE is 0 for a library that captures
    and instantiates by one call. A library without an upload call uploads at the first replay. Each graph is
    destroyed before the next is made. Raises Skip, with the library's reason, if it makes no graphs, and
    MeasurementError if a graph has other than ``nodes`` nodes.
    """
    handle = case.layers[op].handle
    if handle is None:
        raise MeasurementError("the compiled loop is not a layer: graph_lives measures its graphs")
    if handle.graph is None or handle.stream_handle is None:
        raise Skip("this layer captures no graphs")
    stream = driver.CUstream(handle.stream_handle)
    lives = [_layer_life(handle.graph, nodes, lambda: check(driver.cuStreamSynchronize(stream))) for _ in range(count)]
    return np.array(lives, dtype=np.int64)


def _layer_life(make: Callable[[int], base.LayerGraph], nodes: int, wait: Callable[[], object]) -> tuple[int, ...]:
    """The stamps of one life. The graph ends here: CuPy destroys it with the last reference to it."""
    now_ns = time.monotonic_ns
    wait()
    begin_ns = now_ns()
    graph = make(nodes)
    uploaded_ns = now_ns()
    try:
        wait()
        ready_ns = now_ns()
        graph.launch()
        called_ns = now_ns()
        wait()
        done_ns = now_ns()
        if (found := graph.nodes()) != nodes:
            raise MeasurementError(f"{nodes} calls became a graph of {found} nodes")
    finally:
        graph.close()
    return (
        begin_ns, graph.captured_ns or 0, graph.instantiated_ns, uploaded_ns, ready_ns, called_ns, done_ns
    )  # fmt: skip


def simulated_layer_lives(machine: fake.Machine, op: LayerCall, nodes: int, count: int) -> IntArray:
    """A captured call costs the library's usual time and the driver's time of a capture."""
    clock, all_costs = machine.clock, machine.costs
    layer, costs = fake.layer_costs(op.layer, all_costs), all_costs.graphs
    graph = fake.graph_of(fake.chain_of([op] * nodes, all_costs))
    library_ns = fake.call_of(op, all_costs).host_ns - all_costs.submit_ns
    out_ns: IntArray = np.zeros((count, Life.DESTROYED), dtype=np.int64)
    for row in out_ns:
        row[Life.BEGIN] = clock.now_ns()
        captured_ns = machine.stamped(layer.make_ns + costs.capture.at(nodes) + nodes * library_ns)
        row[Life.MADE] = 0 if layer.one_call else captured_ns
        row[Life.INSTANTIATED] = machine.stamped(costs.instantiate.at(nodes))
        if layer.uploads:
            upload(machine, nodes)
        row[Life.UPLOADED] = clock.now_ns()
        machine.synchronize(0)
        row[Life.READY] = clock.now_ns()
        replayed(machine, graph, row[Life.CALLED :], layer.replay_ns, uploads=not layer.uploads)
        machine.spend(costs.destroy.at(nodes))
    return out_ns


graph_lives = experiment(lives, simulated_lives)
graph_footprint = experiment(footprint, simulated_footprint)
graph_layer_lives = experiment(layer_lives, simulated_layer_lives)


ChangeWay = Literal["set_params", "set_grid", "exec_update", "rebuild"]
RECORDED: tuple[ChangeWay, ...] = ("exec_update", "rebuild")  # ways that need a new capture
UPDATE_FAILURE = 910  # CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
# The driver's CUgraphExecUpdateResultInfo: a 32-bit result, and two handles of 8 bytes.
RESULT_WORDS = 3
REPLAYS = 2


class Change(IntEnum):
    """Columns of ``graph_changes``: the host clock after each phase of a change and of the two replays after it.

    DISPOSED is when the leftovers of the change are destroyed: the captured graph and, after a rebuild, the old
    executable graph.
    """

    BEGIN = 0
    RECORDED = 1
    CHANGED = 2
    CALLED = 3
    DONE = 4
    AGAIN = 5
    AGAIN_CALLED = 6
    AGAIN_DONE = 7
    DISPOSED = 8


class Changes:
    """A chain of ``nodes`` kernels that each write their argument and their grid; changed in one way."""

    def __init__(self, case: Case, way: ChangeWay, nodes: int) -> None:
        self._case = case
        self._way: ChangeWay = way
        self._count = nodes
        self._stream = case.stream(0)
        self._function = case.function("graph", "note")
        self._out = case.device_memory(nodes * 8)
        self._values: IntArray = np.zeros(nodes, dtype=np.int64)
        self._grids: IntArray = np.ones(nodes, dtype=np.int64)
        self._entries = entries()
        self._scratch: IntArray = np.zeros(2, dtype=np.int64)
        self._nodes: IntArray = np.zeros(nodes, dtype=np.int64)
        self._result: IntArray = np.zeros(RESULT_WORDS, dtype=np.int64)
        self._clock = c_address("clock_gettime")
        self._random = np.random.default_rng()
        self._warm = False
        self._prepare()
        self._submit(1)
        params, nodes_at, scratch = (int(array.ctypes.data) for array in (self._params, self._nodes, self._scratch))
        code = loops.build(
            self._entries, params, KERNEL_NODE_PARAMS.itemsize, nodes, self._nodes, nodes_at, scratch, self._scratch
        )
        check_code(code, f"building a graph of {nodes} nodes")
        graph = int(self._scratch[loops.GRAPH])
        executable = check(driver.cuGraphInstantiate(graph, 0))
        self._scratch[loops.EXECUTABLE] = int(executable)
        check(driver.cuGraphLaunch(executable, self._stream))
        case.synchronize()
        case.own(lambda: driver.cuGraphDestroy(graph))
        case.own(lambda: driver.cuGraphExecDestroy(int(self._scratch[loops.EXECUTABLE])))

    def _prepare(self) -> None:
        self._parameters = Parameters([(self._out, index, int(value)) for index, value in enumerate(self._values)])
        stride = self._parameters.stride or 8 * 3
        self._params = kernel_params(self._function, self._count)
        self._params["grid"][:, 0] = self._grids
        self._params["parameters"] = self._parameters.address + stride * np.arange(self._count)
        self._submit = launch(self._case, self._function, Launch(), self._parameters)
        self._row = launch_row(self._submit)

    def stamps(self, changed: int, count: int) -> IntArray:
        """The very first change is dropped: it loads the loop."""
        if not self._warm:
            self._warm = True
            self.stamps(changed, 1)
        out: IntArray = np.zeros((count, len(Change)), dtype=np.int64)
        for row in out:
            if self._way == "set_grid":
                self._grids[:changed] = self._grids[:changed] % 3 + 1
            else:
                self._values[:changed] += self._random.integers(1, 1 << 20, changed)
            self._prepare()
            self._case.clear(self._out, self._count * 8)
            if self._way in RECORDED:
                self._result[:] = 0
                scratch, result = int(self._scratch.ctypes.data), int(self._result.ctypes.data)
                whole = (self._entries, self._row, self._parameters.stride, self._count, self._scratch, scratch, result)
                code = loops.change_whole(*whole, self._way == "rebuild", as_int64(self._stream), self._clock, row)
                if code == UPDATE_FAILURE:
                    raise MeasurementError(refusal(self._result))
                check_code(code, f"a {self._way.replace('_', ' ')} of {self._count} nodes")
            else:
                executable, stream = int(self._scratch[loops.EXECUTABLE]), as_int64(self._stream)
                fixed = (executable, self._nodes, int(self._params.ctypes.data), KERNEL_NODE_PARAMS.itemsize)
                code = loops.change_nodes(self._entries, *fixed, changed, stream, self._clock, row)
                check_code(code, f"setting the parameters of {changed} nodes")
            self._check()
        return out

    def _check(self) -> None:
        """Raise unless both replays added their new values; a first replay with old values is noticed."""
        seen = self._case.read(self._out, 2 * self._count, np.uint32).reshape(self._count, 2)
        wanted = np.stack([self._values, self._grids], axis=1) * REPLAYS
        if not (seen == wanted).all():
            node = int(np.argmax((seen != wanted).any(axis=1)))
            raise wrong(f"node {node} after the change", seen[node].tolist(), wanted[node].tolist())


def refusal(result: IntArray) -> str:
    """Why the driver refused an update: its error, and the name in CUgraphExecUpdateResult."""
    number = int(result[0]) & 0xFFFFFFFF
    try:
        why = driver.CUgraphExecUpdateResult(number).name.removeprefix("CU_GRAPH_EXEC_UPDATE_")
    except ValueError:
        why = f"result {number}"
    return f"the driver refused the update: {error_name(UPDATE_FAILURE)} ({why})"


REFUSED = "the driver refused the update: CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"


def simulated_changes(machine: Machine, way: ChangeWay, nodes: int, changed: int, count: int) -> IntArray:
    if not 1 <= changed <= nodes:
        raise MeasurementError(f"{changed} of {nodes} nodes cannot be changed")
    refused = refuses(machine.costs)
    if way == "exec_update" and refused:
        raise MeasurementError(refused)
    clock, costs, graph = machine.clock, machine.costs.graphs, empty_chain(nodes, machine.costs)
    calls = {"set_params": costs.set_params, "set_grid": costs.set_grid, "exec_update": costs.exec_update}
    if way == "exec_update":
        changed = nodes
    out_ns: IntArray = np.zeros((count, len(Change)), dtype=np.int64)
    for row in out_ns:
        row[Change.BEGIN] = row[Change.RECORDED] = clock.now_ns()
        if way in RECORDED:
            row[Change.RECORDED] = machine.stamped(costs.capture.at(nodes))
        call_ns = costs.instantiate.at(nodes) if way == "rebuild" else calls[way].at(changed)
        row[Change.CHANGED] = machine.stamped(call_ns)
        later_ns = 0.0 if way == "rebuild" else changed * costs.changed_launch_ns
        replayed(machine, graph, row[Change.CALLED : Change.AGAIN], later_ns, uploads=way == "rebuild")
        row[Change.AGAIN] = clock.now_ns()
        replayed(machine, graph, row[Change.AGAIN_CALLED : Change.DISPOSED])
        row[Change.DISPOSED] = row[Change.AGAIN_DONE]
        if way in RECORDED:
            disposed = costs.destroy if way == "rebuild" else costs.destroy_captured
            row[Change.DISPOSED] = machine.stamped(disposed.at(nodes))
    return out_ns


def refuses(costs: FakeCosts, update_ns: float | None = 0.0) -> str | None:
    """Why the simulated driver refuses to update a graph, or None. A node that adds no ``update_ns`` is refused."""
    if update_ns is None:
        return f"{REFUSED} (ERROR_NOT_SUPPORTED)"
    return f"{REFUSED} (ERROR_TOPOLOGY_CHANGED)" if costs.refuses_updates else None


def changes(case: Case, way: ChangeWay, nodes: int, changed: int, count: int) -> IntArray:
    """``count`` times: give ``changed`` nodes of a chain new arguments or a new grid, then replay it twice.

    Returns ns, shape (count, len(Change)). In ways that need a new graph, RECORDED is after its capture; the other
    ways have nothing to dispose of. Every changed node gets a new value, and both replays are checked to have used
    it. Raises MeasurementError, with the driver's reason, if the driver refuses the change, and if the new values
    did not arrive.
    """
    return case.once(Changes, way, nodes).stamps(changed, count)


graph_changes = experiment(changes, simulated_changes)
