"""Changes of an executable graph: new arguments, a new grid, an update of the whole, or a rebuild."""

from enum import IntEnum
from typing import Literal

import numpy as np

from microbench.experiments.graph.effects import wrong
from microbench.experiments.graph.launches import KERNEL_NODE_PARAMS, entries, kernel_params, launch_row
from microbench.experiments.graph.lives import replayed
from microbench.gpu.cuda.context import check, check_code, error_name
from microbench.gpu.cuda.submit import Parameters, as_int64, launch
from microbench.gpu.experiment import Case, IntArray, Launch, MeasurementError, driver, experiment, loops
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.machine import Machine, empty_chain
from microbench.host.native import c_address

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
        self._build()

    def _prepare(self) -> None:
        self._parameters = Parameters([(self._out, index, int(value)) for index, value in enumerate(self._values)])
        stride = self._parameters.stride or 8 * 3
        self._params = kernel_params(self._function, self._count)
        self._params["grid"][:, 0] = self._grids
        self._params["parameters"] = self._parameters.address + stride * np.arange(self._count)
        self._submit = launch(self._case, self._function, Launch(), self._parameters)
        self._row = launch_row(self._submit)

    def _build(self) -> None:
        self._submit(1)
        params, nodes, scratch = (int(array.ctypes.data) for array in (self._params, self._nodes, self._scratch))
        code = loops.build(
            self._entries, params, KERNEL_NODE_PARAMS.itemsize, self._count, self._nodes, nodes, scratch, self._scratch
        )
        check_code(code, f"building a graph of {self._count} nodes")
        graph = int(self._scratch[loops.GRAPH])
        executable = check(driver.cuGraphInstantiate(graph, 0))
        self._scratch[loops.EXECUTABLE] = int(executable)
        check(driver.cuGraphLaunch(executable, self._stream))
        self._case.synchronize()
        self._case.own(lambda: driver.cuGraphDestroy(graph))
        self._case.own(lambda: driver.cuGraphExecDestroy(int(self._scratch[loops.EXECUTABLE])))

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
                self._change_whole(row)
            else:
                executable, stream = int(self._scratch[loops.EXECUTABLE]), as_int64(self._stream)
                fixed = (executable, self._nodes, int(self._params.ctypes.data), KERNEL_NODE_PARAMS.itemsize)
                code = loops.change_nodes(self._entries, *fixed, changed, stream, self._clock, row)
                check_code(code, f"setting the parameters of {changed} nodes")
            self._check()
        return out

    def _change_whole(self, row: IntArray) -> None:
        self._result[:] = 0
        scratch, result = int(self._scratch.ctypes.data), int(self._result.ctypes.data)
        fixed = (self._entries, self._row, self._parameters.stride, self._count, self._scratch, scratch, result)
        code = loops.change_whole(*fixed, self._way == "rebuild", as_int64(self._stream), self._clock, row)
        if code == UPDATE_FAILURE:
            raise MeasurementError(refusal(self._result))
        check_code(code, f"a {self._way.replace('_', ' ')} of {self._count} nodes")

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
