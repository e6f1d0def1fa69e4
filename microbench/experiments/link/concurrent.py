"""Copies between the host and several GPUs at the same time."""

from collections.abc import Sequence

import numpy as np

from microbench.experiments.link.boards import board, require_gpus
from microbench.experiments.link.copies import Ends
from microbench.experiments.link.simulated_wires import Movements, from_gpu, to_gpu
from microbench.gpu.cuda.buffers import HostBuffer
from microbench.gpu.cuda.submit import DriverSubmit
from microbench.gpu.cuda.timing import elapsed_s
from microbench.gpu.experiment import Case, Machine, check, driver, experiment, require_host_memory
from microbench.gpu.protocol.transfer import Direction, FloatArray


class Concurrent:
    """Pinned copies of several GPUs (CUDA indices), each to or from the NUMA node that the GPU is on.

    They are released one right after the other. The first GPU is measured.
    """

    def __init__(self, case: Case, direction: Direction, gpus: Sequence[int], size_bytes: int) -> None:
        self._boards = [board(case, index) for index in gpus]
        self._ends: list[Ends] = []
        self._submits: list[DriverSubmit] = []
        self._events: list[list[int]] = []  # before and after the copies of each GPU
        for gpu in self._boards:
            with gpu.current():
                # Near its own GPU: otherwise several GPUs would share the link between the processors.
                host = HostBuffer(gpu.case, "pinned", size_bytes, gpu.node)
                self._ends.append(Ends(gpu.case, host, size_bytes, direction))
                self._submits.append(self._ends[-1].by_engine(gpu.stream))
                self._events.append([gpu.case.event(timed=True) for _ in range(2)])

    def take_s(self, count: int) -> FloatArray | None:
        """``count`` copies on the first GPU: seconds by each GPU's own events, shape (gpus,); None if a gate timed out.

        The others make twice as many copies, so that the measured GPU never runs alone. Its gate opens last, a
        microsecond after the others.
        """
        gpus = list(zip(self._boards, self._submits, self._events, strict=True))
        for gpu, submit, (begin, end) in (*gpus[1:], gpus[0]):
            with gpu.current():
                gpu.gate.shut()
                check(driver.cuEventRecord(begin, gpu.stream))
                submit(count if gpu is self._boards[0] else 2 * count)
                check(driver.cuEventRecord(end, gpu.stream))
        for gpu in (*self._boards[1:], self._boards[0]):
            gpu.gate.open()
        for gpu in self._boards:
            gpu.synchronize()
        if any(gpu.gate.was_late() for gpu in self._boards):
            return None
        return np.array([elapsed_s(begin, end) for begin, end in self._events], dtype=np.float64)

    def fresh(self) -> None:
        for gpu, ends in zip(self._boards, self._ends, strict=True):
            with gpu.current():
                ends.fresh()

    def check(self) -> str:
        checked = []
        for gpu, ends in zip(self._boards, self._ends, strict=True):
            with gpu.current():
                checked.append(ends.check())
        return "; ".join(dict.fromkeys(checked))


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
