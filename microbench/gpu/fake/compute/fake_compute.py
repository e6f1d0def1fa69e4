"""Tensor cores and ALUs of the simulated GPU: every method of the protocol Compute, in the scope of one case."""

from __future__ import annotations

from microbench.gpu.compute_api import AluOperation, GemmData, GemmType, TensorPath, TensorType
from microbench.gpu.fake.compute import units
from microbench.gpu.fake.compute.bracket import FakeBracket
from microbench.gpu.fake.compute.gemm import FakeProblem
from microbench.gpu.fake.compute.products import Product, require_type, unit_of
from microbench.gpu.fake.compute.units import FakeChain, FakeResident
from microbench.gpu.fake.governor import POWER_CAP
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.memory.room import Room
from microbench.model import Telemetry

L2S_OF_COPIES = 4
MOST_COPIES = 64


class FakeCompute:
    """See Compute. Problems hold their room until the case ends."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._room = Room(machine.costs.memory)

    def _open(self) -> Machine:
        self._machine.check(self._scope)
        return self._machine

    def problem(
        self,
        dtype: GemmType,
        rows: int,
        columns: int,
        depth: int,
        data: GemmData = "normal",
        *,
        beyond_l2: bool = False,
    ) -> FakeProblem:
        """See Compute."""
        machine = self._open()
        require_type(machine.costs, unit_of(dtype))
        product = Product(dtype, rows, columns, depth, data, beyond_l2)
        self._room.hold(product, self._needed_bytes(product, self._copies(product)))
        return FakeProblem(machine, product)

    def _copies(self, product: Product) -> int:
        """Of B: so many that none is in the L2 when its turn comes, as far as the room goes."""
        if not product.beyond_l2:
            return 1
        wanted = -(-L2S_OF_COPIES * self._machine.costs.memory.l2_bytes // product.b_bytes)
        more_fit = (self._room.free_bytes - self._needed_bytes(product, 1)) // self._whole(product.b_bytes)
        return max(min(wanted, MOST_COPIES, 1 + more_fit), 1)

    def needed_bytes(self, dtype: GemmType, rows: int, columns: int, depth: int) -> int:
        """See Compute."""
        return self._needed_bytes(Product(dtype, rows, columns, depth, "normal", beyond_l2=False), 1)

    def _needed_bytes(self, product: Product, copies: int) -> int:
        blocks = (product.a_bytes, copies * product.b_bytes, product.result_bytes)
        return sum(self._whole(one) for one in blocks) + self._machine.costs.compute.workspace_bytes

    def _whole(self, size_bytes: int) -> int:
        step_bytes = self._machine.costs.memory.block_step_bytes
        return -(-size_bytes // step_bytes) * step_bytes

    def free_bytes(self) -> int:
        """See Compute."""
        self._open()
        return self._room.free_bytes

    def bracket(self) -> FakeBracket:
        """See Compute."""
        return FakeBracket(self._open())

    def state(self) -> Telemetry:
        """See Compute. NVML overstates the clock while the tensor cores work."""
        machine = self._open()
        costs, own = machine.costs, machine.costs.compute
        seen = machine.device.governor.at(machine.clock.pass_ns(machine.noise.one(own.state_ns)))
        excess_hz = own.nvml_excess_hz if seen.tensor else 0.0
        return Telemetry(
            nvml_sm_clock_hz=min(seen.clock_hz + excess_hz, costs.sm_clock_hz),
            temperature_c=float(round(seen.temperature_c)),
            power_w=seen.power_w,
            throttle_reasons=(POWER_CAP,) if seen.capped else (),
        )

    def tensor(self, path: TensorPath, dtype: TensorType) -> FakeResident:
        """See Compute."""
        return units.tensor(self._open(), path, dtype)

    def arithmetic(self, operation: AluOperation) -> FakeResident:
        """See Compute."""
        return units.arithmetic(self._open(), operation)

    def chain(self, operation: AluOperation) -> FakeChain:
        """See Compute."""
        return units.chain(self._open(), operation)
