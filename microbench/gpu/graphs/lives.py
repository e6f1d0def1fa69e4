"""A graph's whole life, from capture or build to its end, and the memory that it takes meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from cuda.bindings import driver

from microbench.errors import MeasurementError
from microbench.gpu.api import IntArray
from microbench.gpu.context import check, check_code
from microbench.gpu.graph_api import Footprint, Life, Made
from microbench.gpu.graphs.base import KERNEL_NODE, KERNEL_NODE_PARAMS, Case, as_int64, entries, launch_row, nodes_of
from microbench.gpu.recording import capture
from microbench.gpu.submit import launch
from microbench.host import graph_loops
from microbench.host.native import c_address
from microbench.ops import Launch


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
        """See Graphs.lives. The first of its kind is lived twice: loop and driver have had their first times."""
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
