"""Changes of an executable graph: its nodes' arguments or grids, the whole by an update, or made anew."""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver

from microbench.errors import MeasurementError
from microbench.gpu.api import IntArray
from microbench.gpu.context import check, check_code, error_name
from microbench.gpu.graph_api import Change, ChangeWay
from microbench.gpu.graphs.base import KERNEL_NODE_PARAMS, Case, as_int64, entries, launch_row, wrong
from microbench.gpu.submit import Parameters, launch
from microbench.host import graph_loops
from microbench.host.native import c_address
from microbench.ops import Launch

REPLAYS = 2
UPDATE_FAILURE = int(driver.CUresult.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
# The driver's CUgraphExecUpdateResultInfo: a 32-bit result, and two handles of 8 bytes.
RESULT_WORDS = 3


class Changes:
    """A chain of ``nodes`` kernels that each note the argument and the grid they were given."""

    def __init__(self, case: Case, nodes: int) -> None:
        self._case = case
        self._count = nodes
        self._stream = case.stream(0)
        self._function = case.modules.function("graph", "note")
        self._out = case.context.device_memory(nodes * 8)
        self._values: IntArray = np.zeros(nodes, dtype=np.int64)
        self._grids: IntArray = np.ones(nodes, dtype=np.int64)
        self._entries = entries()
        self._scratch: IntArray = np.zeros(2, dtype=np.int64)
        self._nodes: IntArray = np.zeros(nodes, dtype=np.int64)
        self._result: IntArray = np.zeros(RESULT_WORDS, dtype=np.int64)
        self._clock = c_address("clock_gettime")
        self._random = np.random.default_rng()
        self._prepare()
        self._build()

    def _prepare(self) -> None:
        """The records of nodes and launches for the values and grids as they now are."""
        rows: list[tuple[int, ...]] = [(self._out, index, int(value)) for index, value in enumerate(self._values)]
        self._parameters = Parameters(rows)
        stride = self._parameters.stride or 8 * len(rows[0])
        self._params = np.zeros(self._count, dtype=KERNEL_NODE_PARAMS)
        self._params["function"] = self._function
        self._params["grid"] = 1
        self._params["grid"][:, 0] = self._grids
        self._params["block"] = (32, 1, 1)
        self._params["parameters"] = self._parameters.address + stride * np.arange(self._count)
        self._submit = launch(self._function, Launch(), self._stream, self._parameters)
        self._row = launch_row(self._submit)

    def _build(self) -> None:
        self._submit(1)
        code = graph_loops.build(
            self._entries,
            int(self._params.ctypes.data),
            KERNEL_NODE_PARAMS.itemsize,
            self._count,
            self._nodes,
            int(self._nodes.ctypes.data),
            int(self._scratch.ctypes.data),
            self._scratch,
        )
        check_code(code, f"building a graph of {self._count} nodes")
        graph = int(self._scratch[graph_loops.GRAPH])
        executable = check(driver.cuGraphInstantiate(graph, 0))
        self._scratch[graph_loops.EXECUTABLE] = int(executable)
        check(driver.cuGraphLaunch(executable, self._stream))
        self._case.context.synchronize()
        self._case.context.own(lambda: driver.cuGraphDestroy(graph))
        self._case.context.own(lambda: driver.cuGraphExecDestroy(int(self._scratch[graph_loops.EXECUTABLE])))

    def stamps(self, way: ChangeWay, changed: int, count: int) -> IntArray:
        """See Graphs.changes."""
        out: IntArray = np.zeros((count, len(Change)), dtype=np.int64)
        for row in out:
            if way == "set_grid":
                self._grids[:changed] = self._grids[:changed] % 3 + 1
            else:
                self._values[:changed] += self._random.integers(1, 1 << 20, changed)
            self._prepare()
            self._case.context.clear(self._out, self._count * 8)
            if way in ("exec_update", "rebuild"):
                self._whole(way, row)
            else:
                self._each(changed, row)
            self._check()
        return out

    def _each(self, changed: int, row: IntArray) -> None:
        code = graph_loops.change_nodes(
            self._entries,
            int(self._scratch[graph_loops.EXECUTABLE]),
            self._nodes,
            int(self._params.ctypes.data),
            KERNEL_NODE_PARAMS.itemsize,
            changed,
            as_int64(self._stream),
            self._clock,
            row,
        )
        check_code(code, f"setting the parameters of {changed} nodes")

    def _whole(self, way: ChangeWay, row: IntArray) -> None:
        self._result[:] = 0
        code = graph_loops.change_whole(
            self._entries,
            self._row,
            self._parameters.stride,
            self._count,
            self._scratch,
            int(self._scratch.ctypes.data),
            int(self._result.ctypes.data),
            way == "rebuild",
            as_int64(self._stream),
            self._clock,
            row,
        )
        if code == UPDATE_FAILURE:
            raise MeasurementError(refusal(self._result))
        check_code(code, f"a {way.replace('_', ' ')} of {self._count} nodes")

    def _check(self) -> None:
        """Both replays have added what they were given: a first one with old values would show."""
        found = self._case.context.read(self._out, 2 * self._count, np.uint32).reshape(self._count, 2)
        wanted = np.stack([self._values, self._grids], axis=1) * REPLAYS
        if not (found == wanted).all():
            node = int(np.argmax((found != wanted).any(axis=1)))
            raise wrong(f"node {node} after the change", found[node].tolist(), wanted[node].tolist())


def refusal(result: IntArray) -> str:
    """Why the driver refused an update, in its own words: the error, and CUgraphExecUpdateResult's name."""
    number = int(result[0]) & 0xFFFFFFFF
    try:
        why = driver.CUgraphExecUpdateResult(number).name.removeprefix("CU_GRAPH_EXEC_UPDATE_")
    except ValueError:
        why = f"result {number}"
    return f"the driver refused the update: {error_name(UPDATE_FAILURE)} ({why})"
