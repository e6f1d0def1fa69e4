"""Makes chains of kernels of any grid, as a graph and in a stream, and reads their durations from CUPTI."""

from __future__ import annotations

import numpy as np

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.submit import CallRow, Parameters, Program, captured, launch, replay
from microbench.gpu.protocol.graphs import SPIN_NS, KernelWork
from microbench.gpu.protocol.submit import Submit


class CudaKernelChain:
    """A KernelChain. Kernels that add share one array, a word for each thread."""

    def __init__(
        self, case: Case, work: KernelWork, count: int, *, blocks: int, block_threads: int, alternating: bool
    ) -> None:
        self._case, self._count = case, count
        self._words = blocks * block_threads
        self._array = case.once(Case.device_memory, 4 * self._words) if work == "add" else 0
        row = {"empty": (), "spin": (case.cycles(SPIN_NS),), "add": (self._array,)}[work]
        names = {"empty": ("empty",), "spin": ("spin",), "add": ("add_1", "add_2") if alternating else ("add_1",)}[work]
        grid, parameters = Launch(grid_blocks=blocks, block_threads=block_threads), Parameters([row]) if row else None
        calls = [CallRow.of(launch(case, case.function("launch", name), grid, parameters)) for name in names]
        self._sum = 0 if work != "add" else sum(1 + index % len(names) for index in range(count))
        program = Program([calls[index % len(calls)] for index in range(count)])
        program(1)  # loads the code, which capture would not
        case.synchronize()
        self.stream: Submit = program
        executable, nodes = captured(case, case.stream(0), lambda: program(1))
        if nodes != count:
            raise MeasurementError(f"{count} launches became a graph of {nodes} nodes")
        self.graph: Submit = replay(executable, case.stream(0))
        self.graph(1)  # several graphs uploaded and not launched lengthen later gaps, as a second stream does
        case.synchronize()

    def profiled_ns(self) -> IntArray:
        durations_ns = self._case.context.kernel_records.durations_ns(self._once)
        if len(durations_ns) != self._count:
            raise MeasurementError(f"CUPTI recorded {len(durations_ns)} of {self._count} kernels")
        return durations_ns

    def _once(self) -> None:
        self.stream(1)
        self._case.synchronize()

    def check(self) -> str:
        if not self._array:
            return "the graph has a node for each launch"
        self._case.clear(self._array, 4 * self._words)
        self.graph(1)
        self._once()
        sums = self._case.read(self._array, self._words, np.uint32)
        wrong = np.flatnonzero(sums != 2 * self._sum)
        if wrong.size:
            raise MeasurementError(f"word {wrong[0]} is {sums[wrong[0]]} where {2 * self._sum} should be")
        return "each thread's word is the sum of what the kernels added"
