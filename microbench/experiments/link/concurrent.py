"""Copies between the host and several GPUs at the same time."""

from collections.abc import Sequence

import numpy as np

from microbench.experiments.link.boards import Boards, LinkedGpu, require_gpus
from microbench.experiments.link.copies import Ends, copy_submit
from microbench.experiments.link.simulated_wires import Movements, from_gpu, to_gpu
from microbench.gpu.cuda.buffers import HostBuffer
from microbench.gpu.cuda.timing import elapsed_s
from microbench.gpu.experiment import Case, Machine, check, driver, experiment, require_host_memory
from microbench.gpu.protocol.transfer import Direction, FloatArray


class Traveller:
    """One GPU's copies, with buffers, stream, events and gate of its own."""

    def __init__(self, board: LinkedGpu, direction: Direction, size_bytes: int) -> None:
        self.board = board
        with board.current():
            # Near its own GPU: otherwise several GPUs would share the link between the processors.
            host = HostBuffer(board.case, "pinned", size_bytes, board.node)
            self._ends = Ends(board.case, host, size_bytes, to_device=direction == "h2d")
            self._submit = copy_submit(self._ends, direction, board.stream)
            self._begin, self._end = (board.case.event(timed=True) for _ in range(2))

    def queue(self, count: int) -> None:
        with self.board.current():
            self.board.gate.shut()
            check(driver.cuEventRecord(self._begin, self.board.stream))
            self._submit(count)
            check(driver.cuEventRecord(self._end, self.board.stream))

    def elapsed_s(self) -> float:
        return elapsed_s(self._begin, self._end)

    def fresh(self) -> None:
        with self.board.current():
            self._ends.fresh()

    def check(self) -> str:
        with self.board.current():
            return self._ends.check()


class Concurrent:
    """Pinned copies of several GPUs (CUDA indices), each to or from the NUMA node that the GPU is on.

    They are released one right after the other. The first GPU is measured.
    """

    def __init__(self, case: Case, direction: Direction, gpus: Sequence[int], size_bytes: int) -> None:
        boards = case.once(Boards)
        self._travellers = [Traveller(boards.board(index), direction, size_bytes) for index in gpus]

    def take_s(self, count: int) -> FloatArray | None:
        """``count`` copies on the first GPU: seconds by each GPU's own events, shape (gpus,); None if a gate timed out.

        The others make twice as many copies, so that the measured GPU never runs alone. Its gate opens last, a
        microsecond after the others.
        """
        first, *others = self._travellers
        for traveller in others:
            traveller.queue(2 * count)
        first.queue(count)
        for traveller in (*others, first):
            traveller.board.gate.open()
        for traveller in self._travellers:
            traveller.board.synchronize()
        if any(traveller.board.gate.was_late() for traveller in self._travellers):
            return None
        return np.array([traveller.elapsed_s() for traveller in self._travellers], dtype=np.float64)

    def fresh(self) -> None:
        for traveller in self._travellers:
            traveller.fresh()

    def check(self) -> str:
        return "; ".join(dict.fromkeys(traveller.check() for traveller in self._travellers))


class SimulatedConcurrent(Movements, Concurrent):
    """GPUs that copy the same way share the uplink."""

    def __init__(self, machine: Machine, direction: Direction, gpus: Sequence[int], size_bytes: int) -> None:
        costs = machine.costs
        require_gpus(machine, gpus)
        require_host_memory(costs, "pinned", len(gpus) * size_bytes)
        ways = [to_gpu(costs, gpu) if direction == "h2d" else from_gpu(costs, gpu) for gpu in gpus]
        Movements.__init__(self, machine, ways, size_bytes, costs.gap_stream_ns + costs.copy_fixed_ns)

    def take_s(self, count: int) -> FloatArray | None:
        ends_s = self._take_s([count, *[2 * count] * (len(self._ways) - 1)])
        if ends_s is None:
            return None
        return np.array([way_s[-1] for way_s in ends_s]) + self._machine.costs.gap_event_ns * 1e-9


concurrent_copies = experiment(Concurrent, SimulatedConcurrent)
