"""Iterations until a counter is full: decided by the host, by a WHILE node, by a graph that launches itself again."""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver

from microbench.errors import MeasurementError
from microbench.gpu.api import IntArray
from microbench.gpu.binding import bind_graph
from microbench.gpu.context import check, check_code, entry_point
from microbench.gpu.graph_api import Decider
from microbench.gpu.graphs.base import Case, wrong
from microbench.gpu.graphs.chains import CONDITIONAL_VERSION, conditional
from microbench.gpu.recording import capture
from microbench.gpu.submit import DriverSubmit, Parameters, launch
from microbench.host import call_rows
from microbench.host.native import c_address
from microbench.ops import Launch

DEVICE_LAUNCH_VERSION = 12000
COUNTER_WORDS = 3


class HostDecides:
    """Launch, wait (or watch the flag in mapped memory), look, and launch again."""

    def __init__(self, case: Case, *, polls: bool) -> None:
        self._case = case
        self._stream = case.stream(0)
        self._counter = case.context.device_memory(4)
        self._flag = case.context.pinned(1)
        row = (self._counter, int(self._flag.ctypes.data))
        self._submit = launch(
            case.modules.function("graph", "count_up"), Launch(block_threads=1), self._stream, Parameters([row])
        )
        self._synchronize = 0 if polls else entry_point("cuStreamSynchronize")
        self._clock = c_address("clock_gettime")

    def run_ns(self, iterations: int) -> int:
        """See Loop."""
        self._case.context.clear(self._counter, 4)
        self._flag[0] = 0
        code, took_ns = call_rows.iterate(
            self._submit.address, self._submit.arguments, self._synchronize, self._stream, int(self._flag.ctypes.data),
            iterations, self._clock,
        )  # fmt: skip
        self._case.context.synchronize()  # an error of the GPU says more than a flag that never came
        check_code(code, "an iteration decided on the host")
        counted = int(self._case.context.read(self._counter, 1, np.uint32)[0])
        if counted != iterations:
            raise wrong("iterations decided on the host", counted, iterations)
        return int(took_ns)


class DeviceDecides:
    """One launch of a graph; the kernel in it decides whether there is another iteration."""

    def __init__(self, case: Case, decider: Decider) -> None:
        self._case = case
        self._stream = case.stream(0)
        self._counter = case.context.device_memory(COUNTER_WORDS * 4)
        self._made = self._while_graph() if decider == "while" else self._tail_graph()
        self._out: IntArray = np.zeros(1, dtype=np.int64)

    def _submit(self, graph: driver.CUgraph, flags: int = 0) -> DriverSubmit:
        executable = self._case.executable(graph, flags)
        check(driver.cuGraphDestroy(graph))
        return bind_graph(executable, self._stream)

    def _while_graph(self) -> DriverSubmit:
        self._case.require_driver(CONDITIONAL_VERSION, "conditional nodes")
        function = self._case.modules.function("graph_while", "count_while")
        graph = check(driver.cuGraphCreate(0))
        kind = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
        _, body, handle = conditional(self._case, graph, [], kind, 1)
        parameters = Parameters([(handle, self._counter)])
        params = driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = driver.CUfunction(function)
        params.gridDimX = params.gridDimY = params.gridDimZ = 1
        params.blockDimX = params.blockDimY = params.blockDimZ = 1
        params.kernelParams = parameters.address
        check(driver.cuGraphAddKernelNode(body, None, 0, params))
        return self._submit(graph)

    def _tail_graph(self) -> DriverSubmit:
        self._case.require_driver(DEVICE_LAUNCH_VERSION, "graphs launched from the device")
        function = self._case.modules.function("graph_tail", "count_tail")
        one = launch(function, Launch(block_threads=1), self._stream, Parameters([(self._counter,)]))
        graph = capture(self._stream, lambda: one(1))  # such a kernel cannot be launched but in a graph
        flag = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
        return self._submit(graph, int(flag))

    def run_ns(self, iterations: int) -> int:
        """See Loop."""
        start = np.array([0, iterations, 0], dtype=np.uint32)
        check(driver.cuMemcpyHtoD(self._counter, start.ctypes.data, start.nbytes))
        self._case.context.synchronize()
        self._made.round_trips(self._out)
        counted, _, error = (int(word) for word in self._case.context.read(self._counter, COUNTER_WORDS, np.uint32))
        if error:
            raise MeasurementError(f"the device refused to launch the graph: error {error}")
        if counted != iterations:
            raise wrong("iterations decided on the device", counted, iterations)
        return int(self._out[0])
