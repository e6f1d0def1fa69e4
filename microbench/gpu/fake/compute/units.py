"""Instructions on what registers and shared memory of the simulated GPU hold, independent or each after the other."""

from __future__ import annotations

import numpy as np

from microbench.errors import Skip
from microbench.gpu.compute_api import AluOperation, TensorPath, TensorType, UnitPass
from microbench.gpu.fake.calls import Call
from microbench.gpu.fake.compute.answers import Answer
from microbench.gpu.fake.compute.products import require_type
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.stream import Item, Load

REPETITION_CYCLES = 512
CHAIN_INSTRUCTIONS = 64
RESULT_BYTES = 4096
WGMMA_ARCHITECTURE = 9


class FakeResident:
    """See Resident. ``joules`` is what an operation takes."""

    def __init__(self, machine: Machine, per_clock: float, joules: float, *, tensor: bool) -> None:
        self.sms = machine.costs.sm_count
        self.operations = round(REPETITION_CYCLES * per_clock)
        self._machine = machine
        self._scope = machine.scope
        self._cycles = self.operations / per_clock
        self._energy_j = self.operations * self.sms * joules
        self._tensor = tensor
        self._answer = Answer(machine.costs, RESULT_BYTES, "the result")

    def take(self, repeats: int) -> UnitPass:
        """See Resident."""
        self._machine.check(self._scope)
        load = Load(repeats * self._cycles, tensor=self._tensor)
        taken = _taken(self._machine, load, repeats * self._energy_j)
        self._answer.move()
        return taken

    def check(self) -> str:
        """See Resident."""
        self._answer.fresh()
        self.take(1)
        return self._answer.check()


class FakeChain:
    """See Chain."""

    instructions = CHAIN_INSTRUCTIONS

    def __init__(self, machine: Machine, latency_cycles: float) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._cycles = latency_cycles * CHAIN_INSTRUCTIONS

    def take(self, repeats: int) -> UnitPass:
        """See Chain."""
        self._machine.check(self._scope)
        return _taken(self._machine, Load(repeats * self._cycles), 0.0)


def _taken(machine: Machine, load: Load, energy_j: float) -> UnitPass:
    """One launch on every SM that does this and nothing else, by both clocks. Each SM's own count differs a little."""
    item = Item(gap_ns=machine.costs.gap_stream_ns, energy_j=energy_j, load=load)
    batch = machine.make(Call(machine.costs.submit_ns, item), 1).batches[0]
    machine.synchronize(0)
    assert batch.starts_ns is not None, "a synchronised stream has nothing to come"
    assert batch.ends_ns is not None
    begin, end = machine.globaltimer_ns(np.array([batch.starts_ns[0], batch.ends_ns[0]]))
    seconds = float(end - begin) * 1e-9
    cycles = float(np.median(machine.noise.device(load.cycles, machine.costs.sm_count)))
    return UnitPass(seconds, cycles, cycles / seconds)


def tensor(machine: Machine, path: TensorPath, dtype: TensorType) -> FakeResident:
    """See Compute. Warps' instructions get the whole rate where there are no warpgroups' for that type."""
    costs = machine.costs
    require_type(costs, dtype)
    has_wgmma = costs.compute_capability[0] == WGMMA_ARCHITECTURE and dtype != "fp64"
    if path == "wgmma" and not has_wgmma:
        raise Skip(f"the simulated GPU of compute capability {_words(costs)} has no wgmma of {dtype}")
    share = costs.compute.mma_share if path == "mma" and has_wgmma else 1.0
    per_clock, joules = costs.compute.tensor_per_clock[dtype], costs.compute.tensor_joules[dtype]
    return FakeResident(machine, share * per_clock, joules, tensor=True)


def arithmetic(machine: Machine, operation: AluOperation) -> FakeResident:
    """See Compute."""
    _require_operation(machine.costs, operation)
    own = machine.costs.compute
    return FakeResident(machine, own.alu_per_clock[operation], own.alu_joules[operation], tensor=False)


def chain(machine: Machine, operation: AluOperation) -> FakeChain:
    """See Compute."""
    _require_operation(machine.costs, operation)
    return FakeChain(machine, machine.costs.compute.alu_cycles[operation])


def _require_operation(costs: FakeCosts, operation: AluOperation) -> None:
    if operation == "fma_bf16x2":
        require_type(costs, "bf16")


def _words(costs: FakeCosts) -> str:
    return ".".join(str(one) for one in costs.compute_capability)
