"""Changes of an executable graph: its nodes' arguments or grids, the whole by an update, or made anew."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from cuda.bindings import driver

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda.case import (
    KERNEL_NODE,
    KERNEL_NODE_PARAMS,
    Case,
    as_int64,
    entries,
    launch_row,
    nodes_of,
    wrong,
)
from microbench.gpu.cuda.context import check, check_code, error_name
from microbench.gpu.cuda.submit import Parameters, launch
from microbench.gpu.cuda.timing import capture
from microbench.gpu.protocol.graphs import Change, ChangeWay, Footprint, Life, Made
from microbench.host import graph_loops
from microbench.host.native import c_address

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


# A graph's whole life, from capture or build to its end, and the memory that it takes meanwhile.


class Lives:
    """Lives of chains of ``nodes`` empty kernels."""

    def __init__(self, case: Case, nodes: int) -> None:
        self._case = case
        self._function = case.modules.function("launch", "empty")
        self._stream = case.stream(0)
        self._submit = launch(self._function, Launch(), self._stream, None)
        self._row = launch_row(self._submit)
        self._entries = entries()
        self._nodes: IntArray = np.zeros(nodes, dtype=np.int64)
        self._scratch: IntArray = np.zeros(2, dtype=np.int64)
        self._addresses: IntArray = np.array([self._scratch.ctypes.data, self._nodes.ctypes.data], dtype=np.int64)
        self._params = np.zeros(1, dtype=KERNEL_NODE_PARAMS)
        self._params["function"] = self._function
        self._params["grid"], self._params["block"] = (1, 1, 1), (32, 1, 1)
        self._clock = c_address("clock_gettime")
        self._warm: set[Made] = set()

    def stamps(self, count: int, made: Made) -> IntArray:
        """The first of its kind is lived twice: loop and driver have had their first times."""
        if made not in self._warm:
            self._warm.add(made)
            self.stamps(1, made)
        out: IntArray = np.zeros((count, len(Life)), dtype=np.int64)
        for row in out:
            code = graph_loops.live(
                self._entries,
                self._row,
                int(self._params.ctypes.data),
                self._nodes,
                self._addresses,
                self._scratch,
                made == "capture",
                as_int64(self._stream),
                self._clock,
                row,
            )
            check_code(code, f"the life of a graph of {len(self._nodes)} nodes")
        return out

    def footprint(self, copies: int) -> Footprint:
        """See Graphs.footprint: the driver keeps what graphs before these took, and these may live in it."""
        self._submit(1)
        graph = capture(self._stream, lambda: self._submit(len(self._nodes)))
        if nodes_of(graph) != [KERNEL_NODE] * len(self._nodes):
            raise MeasurementError(f"a capture of {len(self._nodes)} launches has other nodes than these kernels")
        held: IntArray = np.zeros(copies, dtype=np.int64)
        self._case.context.own(lambda: [driver.cuGraphExecDestroy(int(one)) for one in held if one])
        free_before, resident_before = _free_bytes(), _resident_bytes()
        for index in range(copies):
            executable = check(driver.cuGraphInstantiate(graph, 0))
            held[index] = int(executable)
            check(driver.cuGraphUpload(executable, self._stream))
            check(driver.cuGraphLaunch(executable, self._stream))
            self._case.context.synchronize()
        free_after, resident_after = _free_bytes(), _resident_bytes()
        check(driver.cuGraphDestroy(graph))
        return Footprint((free_before - free_after) / copies, (resident_after - resident_before) / copies)


def _free_bytes() -> int:
    return int(check(driver.cuMemGetInfo())[0])


def _resident_bytes() -> int:
    """Resident memory of this process (Linux: the second field of statm, in pages)."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
