"""The life of a graph from capture or build to its end, its memory, and changes of an executable graph."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda import driver, loops
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check, check_code, entry_point, error_name
from microbench.gpu.cuda.graphs.effects import wrong
from microbench.gpu.cuda.submit import DriverSubmit, Parameters, as_int64, capture, launch
from microbench.gpu.protocol.graphs import Change, ChangeWay, Footprint, Life, Made
from microbench.host.native import c_address

UPDATE_FAILURE = 910  # CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
# The driver's CUgraphExecUpdateResultInfo: a 32-bit result, and two handles of 8 bytes.
RESULT_WORDS = 3
REPLAYS = 2

# In the order of Entry in host/graph_loops.py.
ENTRY_NAMES = (
    "cuStreamBeginCapture",
    "cuStreamEndCapture",
    "cuGraphCreate",
    "cuGraphAddKernelNode",
    "cuGraphInstantiateWithFlags",
    "cuGraphUpload",
    "cuGraphLaunch",
    "cuStreamSynchronize",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuGraphExecUpdate",
    "cuGraphExecKernelNodeSetParams",
)

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
    """The addresses that host/graph_loops.py calls, by Entry."""
    return np.array([entry_point(name) for name in ENTRY_NAMES], dtype=np.uint64).astype(np.int64)


def launch_row(submit: DriverSubmit) -> IntArray:
    """The arguments of a launch and the address of its call, as host/graph_loops.py captures it."""
    return np.append(submit.arguments, np.uint64(submit.address).astype(np.int64))


def kernel_params(function: int, count: int) -> npt.NDArray[Any]:
    """Parameters of ``count`` kernel nodes of one block."""
    params = np.zeros(count, dtype=KERNEL_NODE_PARAMS)
    params["function"], params["grid"], params["block"] = function, (1, 1, 1), (32, 1, 1)
    return params


def nodes_of(graph: Any) -> list[Any]:
    """The type of each node of a graph."""
    count = int(check(driver.cuGraphGetNodes(graph))[1])
    nodes = check(driver.cuGraphGetNodes(graph, count))[0] if count else []
    return [check(driver.cuGraphNodeGetType(node)) for node in nodes[:count]]


def lives(case: Case, nodes: int, count: int, made: Made) -> IntArray:
    return case.once(Lives, nodes).stamps(count, made)


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


def footprint(case: Case, nodes: int, copies: int) -> Footprint:
    """The driver may keep the memory of earlier graphs and reuse it for these."""
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


def changes(case: Case, way: ChangeWay, nodes: int, changed: int, count: int) -> IntArray:
    return case.once(Changes, way, nodes).stamps(changed, count)


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
            if self._way in ("exec_update", "rebuild"):
                self._change_whole(row)
            else:
                self._change_nodes(changed, row)
            self._check()
        return out

    def _change_nodes(self, changed: int, row: IntArray) -> None:
        executable, stream = int(self._scratch[loops.EXECUTABLE]), as_int64(self._stream)
        params = (int(self._params.ctypes.data), KERNEL_NODE_PARAMS.itemsize)
        code = loops.change_nodes(self._entries, executable, self._nodes, *params, changed, stream, self._clock, row)
        check_code(code, f"setting the parameters of {changed} nodes")

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
