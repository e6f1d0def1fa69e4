"""Copies between host and device in both directions at the same time."""

import numpy as np

from microbench.experiments.link.copies import DIRECTIONS, Ends
from microbench.experiments.link.simulated_wires import Movements, from_gpu, to_gpu
from microbench.gpu.cuda.buffers import HostBuffer
from microbench.gpu.cuda.submit import DriverSubmit
from microbench.gpu.cuda.timing import SpinGate, elapsed_s
from microbench.gpu.experiment import Case, Machine, check, driver, experiment, require_host_memory
from microbench.gpu.protocol.transfer import Direction, FloatArray


class Duplex:
    """Copies of ``size_bytes`` of pinned memory both ways at the same time: h2d in stream 0, d2h in stream 1."""

    def __init__(self, case: Case, size_bytes: int) -> None:
        self._case = case
        self._ends: dict[Direction, Ends] = {}
        self._submits: dict[Direction, DriverSubmit] = {}
        for index, direction in enumerate(DIRECTIONS):
            self._ends[direction] = ends = Ends(case, HostBuffer(case, "pinned", size_bytes), size_bytes, direction)
            self._submits[direction] = ends.by_engine(case.stream(index))
        self._begin = case.event(timed=True)
        self._events: dict[Direction, list[int]] = {"h2d": [], "d2h": []}

    def ends_s(self, h2d: int, d2h: int) -> tuple[FloatArray, FloatArray] | None:
        """Start ``h2d`` and ``d2h`` copies together. Returns when each ended, in s since the start.

        Shapes (h2d,) and (d2h,), by the device's clock; None if the gate timed out. There is an event after every copy,
        which costs its stream about a microsecond.
        """
        case, counts = self._case, {"h2d": h2d, "d2h": d2h}
        for direction, events in self._events.items():
            events.extend(case.event(timed=True) for _ in range(counts[direction] - len(events)))
        gate = case.once(SpinGate)
        gate.shut((0,))
        check(driver.cuEventRecord(self._begin, case.stream(0)))
        check(driver.cuStreamWaitEvent(case.stream(1), self._begin, 0))
        for direction, submit in self._submits.items():
            for event in self._events[direction][: counts[direction]]:
                submit(1)
                check(driver.cuEventRecord(event, submit.stream))
        gate.open()
        case.synchronize()
        if gate.was_late():
            return None
        return self._since_begin("h2d", h2d), self._since_begin("d2h", d2h)

    def _since_begin(self, direction: Direction, count: int) -> FloatArray:
        return np.array([elapsed_s(self._begin, event) for event in self._events[direction][:count]], dtype=np.float64)

    def fresh(self) -> None:
        for ends in self._ends.values():
            ends.fresh()

    def check(self) -> str:
        return "; ".join(f"{direction}: {ends.check()}" for direction, ends in self._ends.items())


class SimulatedDuplex(Movements, Duplex):
    """An event is recorded after each copy."""

    def __init__(self, machine: Machine, size_bytes: int) -> None:
        costs = machine.costs
        require_host_memory(costs, "pinned", 2 * size_bytes)
        before_ns = costs.gap_stream_ns + costs.copy_fixed_ns + costs.gap_event_ns
        Movements.__init__(self, machine, [to_gpu(costs, 0), from_gpu(costs, 0)], size_bytes, before_ns)

    def ends_s(self, h2d: int, d2h: int) -> tuple[FloatArray, FloatArray] | None:
        ends_s = self._take_s((h2d, d2h))
        return None if ends_s is None else (ends_s[0], ends_s[1])


duplex_copies = experiment(Duplex, SimulatedDuplex)
