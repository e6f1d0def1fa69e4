"""A graph launched by the host, or by a kernel of another graph: when the call returns, and when the graph begins."""

from typing import Literal

import numpy as np

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray
from microbench.experiments.graph.nodes import DEVICE_LAUNCH_VERSION
from microbench.experiments.launch.exchanges import clock_tie, on_host_clock
from microbench.gpu.cuda import driver, loops
from microbench.gpu.cuda.context import check, check_code, entry_point
from microbench.gpu.cuda.submit import DriverSubmit, capture, executable, replay
from microbench.gpu.cuda.timing import globaltimer_step_ns
from microbench.gpu.experiment import Case, Launch, Machine, Parameters, Scoped, experiment, launch
from microbench.gpu.fake import machine as sim
from microbench.gpu.protocol.gpu import require_driver
from microbench.host.native import c_address

LaunchedBy = Literal["host", "fire_and_forget", "tail"]
# The device runtime's streams (cuda_device_runtime_api.h): cudaStreamGraphFireAndForget, cudaStreamGraphTailLaunch.
STREAMS: dict[LaunchedBy, int] = {"fire_and_forget": 2 << 56, "tail": 1 << 56}
WHAT = "graphs launched from the device"
CALL_WORDS = 4  # of launch_graph
SIMULATED_CALL_NS, SIMULATED_START_NS = 500.0, 2500.0  # of a launch from the device that waits for nothing


class DeviceLaunch:
    """A graph of ``nodes`` kernels, one after another, and what launches it. ``step_ns`` is that of the device's clock.

    Raises Skip if the driver has no graphs launched from the device.
    """

    step_ns: int

    def __init__(self, case: Case, by: LaunchedBy, nodes: int) -> None:
        case.require_driver(DEVICE_LAUNCH_VERSION, WHAT)
        self._case, self._by, self._nodes, self.step_ns = case, by, nodes, case.once(globaltimer_step_ns)
        self._out = case.device_memory(8 * (2 * nodes + CALL_WORDS))
        one = Launch(block_threads=1)
        rows = Parameters([(self._out, index, 0) for index in range(nodes)])
        record = launch(case, case.function("launch", "record"), one, rows)
        record(nodes)  # loads the code, which capture would not
        case.synchronize()
        flags = int(driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
        graph = self._executable(record, nodes, flags)
        if by in STREAMS:
            row = Parameters([(graph, STREAMS[by], self._out + 16 * nodes)])
            kernel = launch(case, case.function("graph_device", "launch_graph"), one, row)
            graph = self._executable(kernel, 1)  # such a kernel can be launched in a graph only
        self._submit = replay(graph, case.stream(0))

    def _executable(self, submit: DriverSubmit, count: int, flags: int = 0) -> int:
        graph = capture(submit.stream, lambda: submit(count))
        handle = executable(self._case, graph, submit.stream, flags)
        check(driver.cuGraphDestroy(graph))
        return handle

    def stamps(self, count: int) -> IntArray:
        """``count`` launches: before the call, after it, and when the first kernel began. ns, shape (count, 3).

        They are of the caller's clock: %globaltimer, or the host's clock, to which the kernel's begin is converted as
        in launch_cost. Raises MeasurementError if the launch was refused, or a kernel did not run or began early.
        """
        case, clock, wait = self._case, c_address("clock_gettime"), entry_point("cuStreamSynchronize")
        host_ns: IntArray = np.zeros((count, 3), dtype=np.int64)
        words: IntArray = np.zeros((count, 2 * self._nodes + CALL_WORDS), dtype=np.int64)
        before = clock_tie(case)
        for index in range(count):
            case.clear(self._out, words.itemsize * words.shape[1])
            call = self._submit.address, self._submit.arguments, 0, 0, 0, wait, self._submit.stream, clock
            check_code(loops.launch_and_wait(*call, host_ns[index : index + 1]), "a graph that launches a graph")
            words[index] = case.read(self._out, words.shape[1], np.int64)
        after = clock_tie(case)
        begins, ends, called = words[:, :-CALL_WORDS:2], words[:, 1:-CALL_WORDS:2], words[:, -CALL_WORDS:]
        if called[:, 2].any():
            raise MeasurementError(f"the device refused to launch a graph: error {called[:, 2].max()}")
        if not (begins.all() and ends.all()):
            raise MeasurementError("a kernel of the launched graph did not run")
        if (begins[:, 1:] < ends[:, :-1]).any() or (begins[:, 0] < called[:, int(self._by == "tail")]).any():
            raise MeasurementError("a kernel of the launched graph began before what comes first")
        if self._by == "host":
            return np.column_stack([host_ns[:, :2], on_host_clock(begins[:, 0], before, after)])
        return np.column_stack([called[:, :2], begins[:, 0]])


class SimulatedDeviceLaunch(Scoped, DeviceLaunch):
    """SIMULATED: a launch from the device begins after a constant, a tail launch after that of an iteration."""

    def __init__(self, machine: Machine, by: LaunchedBy, nodes: int) -> None:
        super().__init__(machine)
        costs = machine.costs
        require_driver(costs.cuda_driver_version, DEVICE_LAUNCH_VERSION, WHAT)
        self.step_ns = costs.globaltimer_step_ns
        host_ns = sim.replay_of(sim.empty_chain(nodes, costs), costs).host_ns
        self._call_ns = host_ns if by == "host" else SIMULATED_CALL_NS
        start_ns = {"fire_and_forget": SIMULATED_START_NS, "tail": costs.graphs.tail_iteration_ns}
        self._start_ns = start_ns.get(by, host_ns + costs.launch_to_start_ns)

    def stamps(self, count: int) -> IntArray:
        noise = self._machine.noise.device
        call_ns, start_ns = (self._open().spent(noise(cost, count)) for cost in (self._call_ns, self._start_ns))
        return np.column_stack([0 * call_ns, call_ns, start_ns])


device_launch = experiment(DeviceLaunch, SimulatedDeviceLaunch)
