"""Iterations until a counter is full, decided by the host, a WHILE node, or a graph that launches itself again."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from microbench.experiments.graph.effects import wrong
from microbench.experiments.graph.nodes import CONDITIONAL_VERSION, add_kernel, conditional
from microbench.gpu.cuda.context import check, check_code, entry_point
from microbench.gpu.cuda.submit import CallRow, Parameters, capture, executable, launch, replay
from microbench.gpu.experiment import Case, IntArray, Launch, MeasurementError, driver, experiment, loops
from microbench.gpu.fake.machine import Graph, Machine, call_of, replay_of
from microbench.gpu.protocol.gpu import require_driver
from microbench.host.native import c_address

Decider = Literal["host_sync", "host_poll", "while", "tail_launch"]
DEVICE_LAUNCH_VERSION = 12000
COUNTER_WORDS = 3


def decided_by_host(case: Case, *, polls: bool) -> Callable[[int], int]:
    """Launch, wait (or watch a flag in mapped memory), look at the flag, and launch again."""
    counter, flag = case.device_memory(4), case.pinned(1)
    flag_address = int(flag.ctypes.data)
    row = Parameters([(counter, flag_address)])
    submit = launch(case, case.function("graph", "count_up"), Launch(block_threads=1), row)
    synchronize, clock = 0 if polls else entry_point("cuStreamSynchronize"), c_address("clock_gettime")

    def run_ns(iterations: int) -> int:
        case.clear(counter, 4)
        flag[0] = 0
        arguments = (submit.address, submit.arguments, synchronize, submit.stream, flag_address, iterations, clock)
        code, took_ns = loops.iterate(*arguments)
        case.synchronize()  # raises the GPU's error, which says more than a missing flag
        check_code(code, "an iteration decided on the host")
        counted = int(case.read(counter, 1, np.uint32)[0])
        if counted != iterations:
            raise wrong("iterations decided on the host", counted, iterations)
        return int(took_ns)

    return run_ns


def decided_by_device(case: Case, decider: Decider) -> Callable[[int], int]:
    """One launch of a graph whose kernel decides whether there is another iteration."""
    counter, flags, one_thread = case.device_memory(COUNTER_WORDS * 4), 0, Launch(block_threads=1)
    if decider == "while":
        case.require_driver(CONDITIONAL_VERSION, "conditional nodes")
        function = case.function("graph_while", "count_while")
        graph = check(driver.cuGraphCreate(0))
        kind = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
        _, body, handle = conditional(case, graph, [], kind, 1)
        add_kernel(body, [], CallRow.of(launch(case, function, one_thread, Parameters([(handle, counter)]))))
    else:
        case.require_driver(DEVICE_LAUNCH_VERSION, "graphs launched from the device")
        function = case.function("graph_tail", "count_tail")
        submit = launch(case, function, one_thread, Parameters([(counter,)]))
        graph = capture(submit.stream, lambda: submit(1))  # such a kernel can be launched in a graph only
        flags = int(driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
    replayed = replay(executable(case, graph, case.stream(0), flags), case.stream(0))
    check(driver.cuGraphDestroy(graph))
    out: IntArray = np.zeros(1, dtype=np.int64)

    def run_ns(iterations: int) -> int:
        case.upload(counter, np.array([0, iterations, 0], dtype=np.uint32))
        case.synchronize()
        replayed.round_trips(out)
        counted, _, error = (int(word) for word in case.read(counter, COUNTER_WORDS, np.uint32))
        if error:
            raise MeasurementError(f"the device refused to launch the graph: error {error}")
        if counted != iterations:
            raise wrong("iterations decided on the device", counted, iterations)
        return int(out[0])

    return run_ns


def simulated_loop(machine: Machine, decider: Decider) -> Callable[[int], int]:
    """The same loop. Raises Skip if the driver does not support the decider."""
    costs, graphs, scope = machine.costs, machine.costs.graphs, machine.scope
    if decider == "while":
        require_driver(costs.cuda_driver_version, CONDITIONAL_VERSION, "conditional nodes")
    if decider == "tail_launch":
        require_driver(costs.cuda_driver_version, DEVICE_LAUNCH_VERSION, "graph launches from the device")

    def run_ns(iterations: int) -> int:
        machine.check(scope)
        began_ns = machine.clock.now_ns()
        if decider in ("while", "tail_launch"):
            each_ns = graphs.while_iteration_ns if decider == "while" else graphs.tail_iteration_ns
            machine.make(replay_of(Graph(1, iterations * each_ns), costs), 1)
            machine.synchronize(0)
            return machine.clock.now_ns() - began_ns
        launch = call_of(Launch(duration_ns=graphs.dependent_kernel_ns), costs)
        for _ in range(iterations):
            ends_ns = machine.make(launch, 1).batches[-1].ends_ns
            if decider == "host_sync":
                machine.synchronize(0)
            else:
                assert ends_ns is not None, "nothing may hold the stream here"
                machine.clock.wait_until(float(ends_ns[-1]) + costs.flag_to_host_ns)
            machine.clock.pass_ns(graphs.look_ns)
        return machine.clock.now_ns() - began_ns

    return run_ns


def decided(case: Case, decider: Decider) -> Callable[[int], int]:
    """A kernel that is repeated until a counter is full. ``decider`` says who decides whether to repeat it.

    Returns a function of the number of iterations: host time, in ns, from before the first call until the host knows
    that the loop has ended. It raises MeasurementError if a different number of iterations ran.
    """
    if decider in ("host_sync", "host_poll"):
        return decided_by_host(case, polls=decider == "host_poll")
    return decided_by_device(case, decider)


decided_loop = experiment(decided, simulated_loop)
