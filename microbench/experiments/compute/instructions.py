"""Instructions without memory traffic: what those of tensor cores and of ALUs share, and the rates that they reach."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal

import msgspec
import numpy as np

from microbench.core.model import Measurement, Work
from microbench.gpu.cuda.timing import UnitPass
from microbench.gpu.experiment import Machine, Scoped, Skip
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.device import Item, Load
from microbench.gpu.fake.transfers import Ends
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
    costs, needed = machine.costs, SINCE.get(unit, (0, 0))
    machine.release_ns = costs.compute.release_ns
    if costs.compute_capability < needed:
        raise Skip(
            f"{unit} needs compute capability {dotted(needed)}, the simulated GPU has "
            f"{dotted(costs.compute_capability)}"
        )


def dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


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
