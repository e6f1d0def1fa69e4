"""Two kernels side by side in a graph, each of which fills the GPU: which one ends first, by the nodes' priorities."""

from typing import Literal

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray
from microbench.experiments.graph.nodes import add_kernel
from microbench.experiments.launch.green import BLOCK_NS, BLOCK_THREADS, WAVES
from microbench.gpu.cuda import driver
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.submit import CallRow, executable, replay
from microbench.gpu.experiment import Case, Launch, Machine, Parameters, Scoped, experiment, launch

# Which of the two nodes has the highest priority. In ignored it is the second one, but the graph is made without
# CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.
Prior = Literal["neither", "first", "second", "ignored"]


class TwoNodes:
    """A graph of two kernels without an edge. Raises Skip on a GPU without priorities."""

    def __init__(self, case: Case, prior: Prior) -> None:
        lowest, highest = check(driver.cuCtxGetStreamPriorityRange())
        if lowest == highest:
            raise Skip("this GPU has no priorities")
        self._case = case
        blocks = WAVES * case.sms * (case.context.attribute("MAX_THREADS_PER_MULTIPROCESSOR") // BLOCK_THREADS)
        self._shape, op = (2, blocks, 2), Launch(grid_blocks=blocks, block_threads=BLOCK_THREADS)
        self._out, record = case.device_memory(8 * 4 * blocks), case.function("launch", "record")
        graph, which = check(driver.cuGraphCreate(0)), driver.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_PRIORITY
        for index, name in enumerate(("first", "second")):
            submit = launch(case, record, op, Parameters([(self._out, index, case.cycles(BLOCK_NS))]))
            submit(1)  # loads the code
            value = driver.CUkernelNodeAttrValue()
            value.priority = highest if name == prior or (prior, index) == ("ignored", 1) else lowest
            check(driver.cuGraphKernelNodeSetAttribute(add_kernel(graph, [], CallRow.of(submit)), which, value))
        flag = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
        handle = executable(case, graph, case.stream(0), 0 if prior == "ignored" else int(flag))
        check(driver.cuGraphDestroy(graph))
        self._replay = replay(handle, case.stream(0))

    def stamps(self, count: int) -> IntArray:
        """``count`` replays: when the first block began, and when each kernel's last one ended, shape (count, 3).

        ns of %globaltimer. Raises MeasurementError if a block did not run.
        """
        return np.array([self._run() for _ in range(count)], dtype=np.int64)

    def _run(self) -> tuple[int, int, int]:
        words = int(np.prod(self._shape))
        self._case.clear(self._out, 8 * words)
        self._replay(1)
        self._case.synchronize()
        stamps = self._case.read(self._out, words, np.int64).reshape(self._shape)
        if not stamps.all():
            raise MeasurementError("a block of a graph's kernel did not run")
        return int(stamps[:, :, 0].min()), int(stamps[0, :, 1].max()), int(stamps[1, :, 1].max())


class SimulatedTwoNodes(Scoped, TwoNodes):
    """SIMULATED: the first kernel runs before the second one, unless that has priority once blocks have ended."""

    def __init__(self, machine: Machine, prior: Prior) -> None:
        super().__init__(machine)
        self._waves = (2 * WAVES, WAVES + 1) if prior == "second" else (WAVES, 2 * WAVES)

    def _run(self) -> tuple[int, int, int]:
        machine = self._open()
        first, second = (round(waves * machine.noise.device(BLOCK_NS, 1)[0]) for waves in self._waves)
        machine.clock.pass_ns(max(first, second))
        return 0, first, second


two_nodes = experiment(TwoNodes, SimulatedTwoNodes)
