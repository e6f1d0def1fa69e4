"""Chains of kernels of any grid, as a graph and in a stream, and their durations as profilers report them."""

from typing import Literal

import numpy as np

from microbench.experiments.graph.effects import CHECKED
from microbench.gpu.cuda.submit import CallRow, Parameters, captured, launch, loaded, replay
from microbench.gpu.experiment import Case, IntArray, Launch, MeasurementError, Submit, experiment
from microbench.gpu.fake.machine import FakeProgram, FakeSubmit, Machine, Node, Scoped, call_of, graph_of, replay_of

KernelWork = Literal["empty", "spin", "add"]
SPIN_NS = 2000  # how long a kernel spins
# A block adds to a line of the L2 in 0.75 to 0.87 us, depending on how far the line lies from its SM (H200). Kernels of
# one block therefore add at this many places in turn.
PLACES, PLACE_BYTES = 64, 65 << 10


class KernelChain:
    """``count`` kernels one after another that do nothing, spin for SPIN_NS, or add to a word of each thread.

    ``graph`` replays all of them by one call, ``stream`` launches all of them. Kernels that add share one array;
    ``alternating`` ones are of two functions in turn.
    """

    graph: Submit
    stream: Submit

    def __init__(
        self, case: Case, work: KernelWork, count: int, *, blocks: int, block_threads: int, alternating: bool
    ) -> None:
        self._case, self._count = case, count
        self._words, self._places = blocks * block_threads, PLACES if blocks == 1 else 1
        self._bytes = 4 * self._words + PLACE_BYTES * (self._places - 1)
        self._array = case.once(Case.device_memory, self._bytes) if work == "add" else 0
        rows: dict[KernelWork, list[tuple[int, ...]]] = {
            "empty": [()],
            "spin": [(case.cycles(SPIN_NS),)],
            "add": [(self._array + place * PLACE_BYTES,) for place in range(self._places)],
        }
        names = {"empty": ["empty"], "spin": ["spin"], "add": ["add_1", "add_2"][: 1 + alternating]}[work]
        grid = Launch(grid_blocks=blocks, block_threads=block_threads)
        calls = [
            CallRow.of(launch(case, case.function("launch", name), grid, Parameters([row]) if row else None))
            for row in rows[work]
            for name in names
        ]
        self._sums = np.zeros(self._places, dtype=np.uint32)
        np.add.at(self._sums, np.arange(count) // len(names) % self._places, 1 + np.arange(count) % len(names))
        self.stream = program = loaded(case, [calls[index % len(calls)] for index in range(count)])
        executable, nodes = captured(case, case.stream(0), lambda: program(1))
        if nodes != count:
            raise MeasurementError(f"{count} launches became a graph of {nodes} nodes")
        self.graph = replay(executable, case.stream(0))
        self.graph(1)  # several graphs uploaded and not launched lengthen later gaps, as a second stream does
        case.synchronize()

    def profiled_ns(self) -> IntArray:
        """Duration of each kernel of one pass through the stream as profilers report it (CUPTI's kernel record), in ns.

        Raises Skip without CUPTI, and MeasurementError unless each kernel left one record.
        """
        durations_ns = self._case.context.kernel_records.durations_ns(self._once)
        if len(durations_ns) != self._count:
            raise MeasurementError(f"CUPTI recorded {len(durations_ns)} of {self._count} kernels")
        return durations_ns

    def _once(self) -> None:
        self.stream(1)
        self._case.synchronize()

    def check(self) -> str:
        """Run the graph and the stream once. Returns how that was verified. Raises MeasurementError for a wrong sum."""
        if not self._array:
            return "the graph has a node for each launch"
        self._case.clear(self._array, self._bytes)
        self.graph(1)
        self._once()
        words = self._case.read(self._array, self._bytes // 4, np.uint32)
        for place, added in enumerate(self._sums):
            sums = words[place * PLACE_BYTES // 4 :][: self._words]
            wrong = np.flatnonzero(sums != 2 * added)
            if wrong.size:
                raise MeasurementError(
                    f"word {wrong[0]} of place {place} is {sums[wrong[0]]} where {2 * added} should be"
                )
        return "each thread's word is the sum of what the kernels added"


class SimulatedKernelChain(Scoped, KernelChain):
    """Equal kernels, as a graph and in a stream. Profilers report durations that are longer by a constant."""

    def __init__(
        self,
        machine: Machine,
        work: KernelWork,
        count: int,
        *,
        blocks: int,
        block_threads: int,
        alternating: bool,
    ) -> None:
        super().__init__(machine)
        costs = machine.costs
        nominal_ns = {"empty": 0.0, "spin": float(SPIN_NS), "add": costs.empty_kernel_ns + costs.add_ns}[work]
        self._count, self._kernel_ns = count, costs.kernel_ns(nominal_ns, blocks, block_threads)
        nodes = [Node(costs.gap_graph_ns, self._kernel_ns)] * count
        self.graph = FakeSubmit(machine, replay_of(graph_of(nodes), costs))
        call = call_of(Launch(), costs).with_item(duration_ns=self._kernel_ns)
        self.stream = FakeProgram(
            machine, lambda: machine.make(call, count), max(costs.queue_slots // 2 // count, 1), stream=0
        )

    def profiled_ns(self) -> IntArray:
        machine = self._open()
        self.stream(1)
        machine.synchronize()
        durations_ns = machine.noise.device(self._kernel_ns + machine.costs.profiler_ns, self._count)
        return machine.globaltimer_ns(durations_ns)

    def check(self) -> str:
        self.graph(1)
        self.stream(1)
        self._machine.synchronize()
        return CHECKED


kernel_chain = experiment(KernelChain, SimulatedKernelChain)
