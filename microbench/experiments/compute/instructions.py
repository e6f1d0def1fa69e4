"""Instructions without memory traffic and the rates that they reach; the SM clock around work, and NVML's state."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError
from microbench.core.model import Measurement, Telemetry, Work
from microbench.gpu.cuda.timing import UnitPass, alone_on_its_sm
from microbench.gpu.experiment import Case, Launch, Machine, Parameters, Scoped, experiment, launch
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.device import POWER_CAP, Item, Load
from microbench.gpu.fake.machine import FakeEventPair, call_of
from microbench.gpu.fake.transfers import Ends
from microbench.gpu.protocol.gpu import require_capability
from microbench.meter.sampling import NANOSECOND_S, Sample, now_s
from microbench.meter.timer import Meter
from microbench.meter.transfers import verified

BURST_S = 1e-3
# The GPU rests before each burst, so that a burst runs at the clock of an idle GPU.
REST_S = 0.05
LASTING_S = 0.02
# Tensor work pulls an H200's clock down within 70 to 120 ms.
SETTLING_S = 0.4
FIRST_REPEATS = 64


class Resident(ABC):
    """Instructions on the contents of registers or shared memory, on every SM and without memory traffic.

    ``operations`` are those of one SM in one repetition. A multiply-add counts as two, but an integer one on the ALUs
    as one, as in the throughput table of the CUDA programming guide.
    """

    sms: int
    operations: int

    @abstractmethod
    def take(self, repeats: int) -> UnitPass:
        """Run ``repeats`` repetitions on every SM. Raises MeasurementError if two blocks shared an SM."""

    @abstractmethod
    def check(self) -> str:
        """Compare the results on fresh operands. Returns how; raises MeasurementError for a wrong result."""


def instruction_rate(
    meter: Meter, unit: Resident, integer: bool, bound: str, load: Literal["plain", "burst", "sustained"] = "plain"
) -> Iterator[Measurement]:
    """Rate, rate of a clock cycle and SM, and SM clock.

    ``plain``: launches of BURST_S back to back; ``burst``: each of them after REST_S of rest; ``sustained``: launches
    of LASTING_S back to back, after SETTLING_S of them.
    """
    unit.take(FIRST_REPEATS)  # the first launch loads the code
    wanted_s = LASTING_S if load == "sustained" else BURST_S
    repeats = max(round(FIRST_REPEATS * wanted_s / max(unit.take(FIRST_REPEATS).seconds, NANOSECOND_S)), 1)
    if load == "sustained":
        until_s = now_s(meter.clock) + SETTLING_S
        while now_s(meter.clock) < until_s:
            unit.take(repeats)
    names = ("integer_rate", "integer_per_clock") if integer else ("rate", "per_clock")

    def take() -> Sample:
        if load == "burst":
            meter.gpu.pause(REST_S)
        taken = unit.take(repeats)
        return {names[0]: taken.seconds, names[1]: taken.cycles, "sm_clock": taken.clock_hz}

    def work(operations: int) -> Work:
        return Work(operations=operations) if integer else Work(flops=operations)

    measured = meter.collect_each((*names, "sm_clock"), take, clock="device", calls=repeats)
    rate, per_clock, clock = verified(measured, unit.check())
    yield msgspec.structs.replace(rate, work=work(unit.operations * unit.sms), bound=bound)
    yield msgspec.structs.replace(per_clock, work=work(unit.operations), bound=f"{bound}_per_clock", resolution=1.0)
    yield as_clock(clock)


def as_clock(measured: Measurement) -> Measurement:
    """A metric that the SMs' counters gave along with a time: it covers a whole sample, not a call."""
    return msgspec.structs.replace(measured, clock="counter", calls_per_sample=1, floor_s=None, resolution=None)


# On the simulated GPU.

# The first compute capability that has the type or instruction.
SINCE: dict[str, tuple[int, int]] = {
    "tf32": (8, 0), "bf16": (8, 0), "fp8_e4m3": (8, 9), "fp8_e5m2": (8, 9), "mxfp8": (10, 0), "nvfp4": (10, 0),
    "fma_bf16x2": (8, 0),
}  # fmt: skip
REPETITION_CYCLES = 512


def prepare(machine: Machine, unit: str) -> None:
    """Let the end of the case take the time to free operands and libraries. Raises Skip for a type that is missing."""
    machine.release_ns = machine.costs.compute.release_ns
    require_capability(machine.costs.compute_capability, *SINCE.get(unit, (0, 0)), unit)


class Answer(Ends):
    """Like Ends, for a result that is computed instead of moved."""

    def __init__(self, costs: FakeCosts, what: str) -> None:
        super().__init__(costs, 1, f"{what} is not what its operands give", "SIMULATED: every number compared")


class SimulatedResident(Scoped, Resident):
    """Given by the cycles and joules of one repetition, and the operations of one SM in it."""

    def __init__(
        self, machine: Machine, cycles: float, operations: int = 0, joules: float = 0.0, *, tensor: bool = False
    ) -> None:
        super().__init__(machine)
        self.sms = machine.costs.sm_count
        self.operations = operations
        self._cycles = cycles
        self._joules = joules
        self._tensor = tensor
        self._answer = Answer(machine.costs, "the result")

    def take(self, repeats: int) -> UnitPass:
        """One launch on every SM, by both clocks; each SM counts slightly different cycles."""
        machine, load = self._open(), Load(repeats * self._cycles, tensor=self._tensor)
        item = Item(gap_ns=machine.costs.gap_stream_ns, energy_j=repeats * self._joules, load=load)
        seconds = machine.globaltimer_s(*machine.run(item))
        cycles = float(np.median(machine.noise.device(load.cycles, self.sms)))
        self._answer.move()
        return UnitPass(seconds, cycles, cycles / seconds)

    def check(self) -> str:
        self._answer.fresh()
        self.take(1)
        return self._answer.check()


def simulated_resident(machine: Machine, per_clock: float, joules: float, *, tensor: bool) -> SimulatedResident:
    """Instructions by the operations of one SM in a clock cycle, and the joules of an operation."""
    operations = round(REPETITION_CYCLES * per_clock)
    joules *= operations * machine.costs.sm_count
    return SimulatedResident(machine, operations / per_clock, operations, joules, tensor=tensor)


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


def simulated_state(machine: Machine) -> Telemetry:
    """What a query of NVML answers: a clock that is too high while the tensor cores work, as on real GPUs."""
    costs, own = machine.costs, machine.costs.compute
    now = machine.device.governor.at(machine.clock.pass_ns(machine.noise.one(own.state_ns)))
    excess_hz = own.nvml_excess_hz if now.tensor else 0.0
    return Telemetry(
        nvml_sm_clock_hz=min(now.clock_hz + excess_hz, costs.sm_clock_hz),
        temperature_c=float(round(now.temperature_c)),
        power_w=now.power_w,
        throttle_reasons=(POWER_CAP,) if now.capped else (),
    )


# Power, temperature, clocks and throttle reasons by NVML, read while work runs. Takes microseconds.
state = experiment(lambda case: case.board.nvml.telemetry(), simulated_state)
