"""Iterations until a counter is full, decided by the host, a WHILE node, or a graph that launches itself again."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from microbench.experiments.graph.effects import wrong
from microbench.experiments.graph.nodes import CONDITIONAL_VERSION, add_kernel, conditional
from microbench.gpu.cuda.context import check, check_code, entry_point
from microbench.gpu.cuda.submit import CallRow, Parameters, capture, executable, launch, replay
from microbench.gpu.experiment import Case, IntArray, Launch, MeasurementError, driver, experiment, loops
from microbench.gpu.fake.machine import Graph, Machine, Scoped, call_of, replay_of
from microbench.gpu.protocol.gpu import require_driver
from microbench.host.native import c_address

Decider = Literal["host_sync", "host_poll", "while", "tail_launch"]
DEVICE_LAUNCH_VERSION = 12000
COUNTER_WORDS = 3


class HostDecides:
    """Launch, wait (or watch a flag in mapped memory), look at the flag, and launch again."""

    def __init__(self, case: Case, *, polls: bool) -> None:
        self._case = case
        self._counter = case.device_memory(4)
        self._flag = case.pinned(1)
        row = (self._counter, int(self._flag.ctypes.data))
        self._submit = launch(case, case.function("graph", "count_up"), Launch(block_threads=1), Parameters([row]))
        self._synchronize = 0 if polls else entry_point("cuStreamSynchronize")
        self._clock = c_address("clock_gettime")

    def run_ns(self, iterations: int) -> int:
        self._case.clear(self._counter, 4)
        self._flag[0] = 0
        code, took_ns = loops.iterate(
            self._submit.address, self._submit.arguments, self._synchronize, self._submit.stream,
            int(self._flag.ctypes.data), iterations, self._clock,
        )  # fmt: skip
        self._case.synchronize()  # raises the GPU's error, which says more than a missing flag
        check_code(code, "an iteration decided on the host")
        counted = int(self._case.read(self._counter, 1, np.uint32)[0])
        if counted != iterations:
            raise wrong("iterations decided on the host", counted, iterations)
        return int(took_ns)


class DeviceDecides:
    """One launch of a graph whose kernel decides whether there is another iteration."""

    def __init__(self, case: Case, decider: Decider) -> None:
        self._case = case
        self._counter = case.device_memory(COUNTER_WORDS * 4)
        graph, flags = self._while_graph() if decider == "while" else self._tail_graph()
        self._replay = replay(executable(case, graph, case.stream(0), flags), case.stream(0))
        check(driver.cuGraphDestroy(graph))
        self._out: IntArray = np.zeros(1, dtype=np.int64)

    def _while_graph(self) -> tuple[Any, int]:
        self._case.require_driver(CONDITIONAL_VERSION, "conditional nodes")
        function = self._case.function("graph_while", "count_while")
        graph = check(driver.cuGraphCreate(0))
        kind = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
        _, body, handle = conditional(self._case, graph, [], kind, 1)
        row = launch(self._case, function, Launch(block_threads=1), Parameters([(handle, self._counter)]))
        add_kernel(body, [], CallRow.of(row))
        return graph, 0

    def _tail_graph(self) -> tuple[Any, int]:
        self._case.require_driver(DEVICE_LAUNCH_VERSION, "graphs launched from the device")
        function = self._case.function("graph_tail", "count_tail")
        submit = launch(self._case, function, Launch(block_threads=1), Parameters([(self._counter,)]))
        graph = capture(submit.stream, lambda: submit(1))  # such a kernel can be launched in a graph only
        return graph, int(driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)

    def run_ns(self, iterations: int) -> int:
        self._case.upload(self._counter, np.array([0, iterations, 0], dtype=np.uint32))
        self._case.synchronize()
        self._replay.round_trips(self._out)
        counted, _, error = (int(word) for word in self._case.read(self._counter, COUNTER_WORDS, np.uint32))
        if error:
            raise MeasurementError(f"the device refused to launch the graph: error {error}")
        if counted != iterations:
            raise wrong("iterations decided on the device", counted, iterations)
        return int(self._out[0])


class SimulatedLoop(Scoped):
    """The same loop. Raises Skip if the driver does not support the decider."""

    def __init__(self, machine: Machine, decider: Decider) -> None:
        if decider == "while":
            require_driver(machine.costs.cuda_driver_version, CONDITIONAL_VERSION, "conditional nodes")
        if decider == "tail_launch":
            require_driver(machine.costs.cuda_driver_version, DEVICE_LAUNCH_VERSION, "graph launches from the device")
        super().__init__(machine)
        self._decider = decider

    def run_ns(self, iterations: int) -> int:
        machine, costs, graphs = self._open(), self._machine.costs, self._machine.costs.graphs
        began_ns = machine.clock.now_ns()
        if self._decider in ("while", "tail_launch"):
            each_ns = graphs.while_iteration_ns if self._decider == "while" else graphs.tail_iteration_ns
            machine.make(replay_of(Graph(1, iterations * each_ns), costs), 1)
            machine.synchronize(0)
            return machine.clock.now_ns() - began_ns
        launch = call_of(Launch(duration_ns=graphs.dependent_kernel_ns), costs, {})
        for _ in range(iterations):
            ends_ns = machine.make(launch, 1).batches[-1].ends_ns
            if self._decider == "host_sync":
                machine.synchronize(0)
            else:
                assert ends_ns is not None, "nothing may hold the stream here"
                machine.clock.wait_until(float(ends_ns[-1]) + costs.flag_to_host_ns)
            machine.clock.pass_ns(graphs.look_ns)
        return machine.clock.now_ns() - began_ns


def decided(case: Case, decider: Decider) -> Callable[[int], int]:
    """A kernel that is repeated until a counter is full. ``decider`` says who decides whether to repeat it.

    Returns a function of the number of iterations: host time, in ns, from before the first call until the host knows
    that the loop has ended. It raises MeasurementError if a different number of iterations ran.
    """
    if decider in ("host_sync", "host_poll"):
        return HostDecides(case, polls=decider == "host_poll").run_ns
    return DeviceDecides(case, decider).run_ns


decided_loop = experiment(decided, lambda machine, decider: SimulatedLoop(machine, decider).run_ns)
