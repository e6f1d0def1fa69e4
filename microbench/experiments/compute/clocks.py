"""The SM clock around a region of work, and NVML's state while the work runs."""

from typing import Any

import numpy as np
import numpy.typing as npt

from microbench.core.model import Telemetry
from microbench.gpu.cuda.timing import NANOSECOND_S, alone_on_its_sm
from microbench.gpu.experiment import Case, Launch, MeasurementError, Parameters, experiment, launch
from microbench.gpu.fake.device import POWER_CAP
from microbench.gpu.fake.machine import FakeEventPair, Machine, call_of

# Tick of kernels/clock_bracket.cu.
TICKS = np.dtype([("clock", "u8"), ("time_ns", "u8"), ("sm", "u4"), ("unused", "u4")])
Ticks = npt.NDArray[Any]


class ClockBracket:
    """Two tiny kernels around a region of stream 0 that read the SMs' own counters.

    After a first call of each, ``begin`` and ``end`` only launch.
    """

    def __init__(self, case: Case) -> None:
        self._case, self._blocks = case, case.sms
        function = case.function("clock_bracket", "tick")
        shared_bytes = alone_on_its_sm(case, function)
        self._ticks = [case.device_memory(TICKS.itemsize * self._blocks) for _ in range(2)]
        # One warp on each SM; its shared memory keeps other warps off.
        op = Launch(grid_blocks=self._blocks, block_threads=32)
        self._begin, self._end = (
            launch(case, function, op, Parameters([(ticks,)]), shared_bytes=shared_bytes) for ticks in self._ticks
        )

    def begin(self) -> None:
        self._begin(1)

    def end(self) -> None:
        self._end(1)

    def hz(self) -> float:
        """The mean SM clock between the two kernels: median over the SMs, in Hz. Call it when both have ended.

        SMs on which only one of the kernels ran do not count.
        """
        first, last = (self._case.read(ticks, self._blocks, TICKS) for ticks in self._ticks)
        return clock_hz(first, last)


def clock_hz(first: Ticks, last: Ticks) -> float:
    """Clock cycles over time, median over the SMs in both. Raises MeasurementError if no time passed on any."""
    _, of_first, of_last = np.intersect1d(first["sm"], last["sm"], return_indices=True)
    elapsed_ns = last["time_ns"][of_last].astype(np.int64) - first["time_ns"][of_first].astype(np.int64)
    cycles = last["clock"][of_last].astype(np.int64) - first["clock"][of_first].astype(np.int64)
    ran = elapsed_ns > 0
    if not ran.any():
        raise MeasurementError("the clock kernels before and after the work have no SM and no time in common")
    return float(np.median(cycles[ran] / elapsed_ns[ran])) / NANOSECOND_S


class SimulatedClockBracket(FakeEventPair, ClockBracket):
    """The mean of the simulated clock between the ends of the two kernels."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine, call_of(Launch(), machine.costs))

    begin = FakeEventPair.start
    end = FakeEventPair.stop

    def hz(self) -> float:
        machine = self._machine
        mean_hz = machine.device.governor.mean_hz(*self._ends_ns())
        return float(np.median(machine.noise.device(mean_hz, machine.costs.sm_count)))


clock_bracket = experiment(ClockBracket, SimulatedClockBracket)


def real_state(case: Case) -> Telemetry:
    """Power, temperature, clocks and throttle reasons by NVML, read while work runs. Takes microseconds."""
    return case.board.nvml.telemetry()


def simulated_state(machine: Machine) -> Telemetry:
    """NVML overstates the clock while the tensor cores work."""
    costs, own = machine.costs, machine.costs.compute
    now = machine.device.governor.at(machine.clock.pass_ns(machine.noise.one(own.state_ns)))
    excess_hz = own.nvml_excess_hz if now.tensor else 0.0
    return Telemetry(
        nvml_sm_clock_hz=min(now.clock_hz + excess_hz, costs.sm_clock_hz),
        temperature_c=float(round(now.temperature_c)),
        power_w=now.power_w,
        throttle_reasons=(POWER_CAP,) if now.capped else (),
    )


state = experiment(real_state, simulated_state)
