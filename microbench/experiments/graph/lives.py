"""Graphs from their capture or build to their end, through the driver and through Python layers, and their memory."""

import os
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from microbench.core.ops import IntArray, Launch, LayerCall
from microbench.experiments.graph.launches import entries, kernel_params, launch_row, nodes_of
from microbench.gpu.cuda.context import check, check_code
from microbench.gpu.cuda.submit import as_int64, capture, launch
from microbench.gpu.experiment import Case, Item, MeasurementError, Skip, driver, experiment, loops
from microbench.gpu.fake import machine as fake
from microbench.gpu.layers import base
from microbench.host.native import c_address

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
    if nodes_of(graph) != [driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL] * nodes:
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
