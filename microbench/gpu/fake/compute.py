"""Simulated tensor cores and ALUs: matrix products of libraries, instructions alone, and the SM clock around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Telemetry
from microbench.core.ops import Launch
from microbench.gpu.fake.costs import FakeCosts, ProductLibrary
from microbench.gpu.fake.device import POWER_CAP, Item, Load
from microbench.gpu.fake.machine import Call, FakeEventPair, FakeSubmit, Machine, Scoped, call_of
from microbench.gpu.fake.transfers import Ends
from microbench.gpu.protocol import compute as protocol
from microbench.gpu.protocol.submit import Submit

CHECKED = "SIMULATED: every number compared"

# The first compute capability that has the type or instruction.
SINCE: dict[str, tuple[int, int]] = {
    "tf32": (8, 0), "bf16": (8, 0), "fp8_e4m3": (8, 9), "fp8_e5m2": (8, 9), "mxfp8": (10, 0), "nvfp4": (10, 0),
    "fma_bf16x2": (8, 0),
}  # fmt: skip
TILE_ROWS, TILE_COLUMNS = 128, 256  # of the result, computed by one SM at a time

L2S_OF_COPIES, MOST_COPIES = 4, 64

REPETITION_CYCLES = 512
CHAIN_INSTRUCTIONS = 64
UNIT_RESULT_BYTES = 4096
WGMMA_ARCHITECTURE = 9
SPARSE_SINCE, SPARSE_TYPES = (8, 0), ("bf16", "fp16")


class Answer(Ends):
    """Like Ends, for a result of ``size_bytes`` that is computed instead of moved."""

    def __init__(self, costs: FakeCosts, size_bytes: int, what: str) -> None:
        super().__init__(costs, size_bytes)
        self._what = what

    def check(self) -> str:
        if self._wrong_byte is not None:
            raise MeasurementError(f"SIMULATED: {self._what} is not what its operands give")
        return CHECKED


class FakeBracket(FakeEventPair):
    """Two kernels in stream 0 that read the SMs' clock."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine, call_of(Launch(), machine.costs, {}))

    begin = FakeEventPair.start
    end = FakeEventPair.stop

    def hz(self) -> float:
        machine = self._machine
        mean_hz = machine.device.governor.mean_hz(*self._ends_ns())
        return float(np.median(machine.noise.device(mean_hz, machine.costs.sm_count)))


class Product(NamedTuple):
    """What a call computes: one product, or ``batch`` products. With ``beyond_l2`` each B comes from DRAM."""

    dtype: protocol.GemmType
    rows: int
    columns: int
    depth: int
    data: protocol.GemmData
    beyond_l2: bool
    batch: int = 1

    @property
    def operations(self) -> int:
        return 2 * self.rows * self.columns * self.depth * self.batch

    @property
    def matrices_bytes(self) -> tuple[int, int, int]:
        a, b, d = protocol.ELEMENTS[self.dtype]
        return (
            self.batch * protocol.matrix_bytes(a, self.rows, self.depth),
            self.batch * protocol.matrix_bytes(b, self.columns, self.depth),
            self.batch * protocol.matrix_bytes(d, self.rows, self.columns),
        )

    @property
    def size_bytes(self) -> int:
        return sum(self.matrices_bytes)


def unit_of(dtype: protocol.GemmType) -> str:
    """The tensor cores' type that multiplies this type."""
    return dtype.removesuffix("_fast")


def require_type(costs: FakeCosts, unit: str) -> None:
    """Raise Skip if this GPU has no such type."""
    needed = SINCE.get(unit, (0, 0))
    if costs.compute_capability < needed:
        raise Skip(
            f"{unit} needs compute capability {_dotted(needed)}, the simulated GPU has "
            f"{_dotted(costs.compute_capability)}"
        )


def item_of(costs: FakeCosts, product: Product, library: ProductLibrary, way: str, calls: int = 1) -> Item:
    """``calls`` products in a row as one item, computed by one of a library's kernels.

    A kernel that is n times as slow takes n times the energy. Between the products of one item there is the gap of a
    graph.
    """
    share = library.kernels[way]
    own, memory, tensor = costs.compute, costs.memory, product.dtype != "fp32"
    unit = unit_of(product.dtype)
    per_clock = own.tensor_per_clock[unit] if tensor else own.alu_per_clock["fma_fp32"]
    if product.dtype in ("fp8_e4m3", "fp8_e5m2"):
        per_clock *= own.promoted_share
    joules = own.tensor_joules[unit] if tensor else own.alu_joules["fma_fp32"]
    joules *= own.moving_energy_share * own.data_energy_share[product.data] * library.energy_share / share
    # Tiles run in whole waves over the SMs. If there are fewer tiles than SMs, each tile is split evenly along the
    # depth.
    tiles = product.batch * math.ceil(product.rows / TILE_ROWS) * math.ceil(product.columns / TILE_COLUMNS)
    waves = tiles / costs.sm_count
    tile_cycles = 2 * TILE_ROWS * TILE_COLUMNS * product.depth / per_clock
    cycles = (math.ceil(waves) if waves > 1 else waves) * tile_cycles
    if product.beyond_l2 or product.size_bytes > memory.l2_bytes:
        least_ns = product.size_bytes / memory.dram_bytes_per_s.read * 1e9
        dram_j = product.size_bytes * memory.joules_per_byte
    else:
        least_ns = product.size_bytes / (memory.l2_bytes_per_clock * costs.sm_count * costs.sm_clock_hz) * 1e9
        dram_j = 0.0
    return Item(
        gap_ns=costs.gap_stream_ns,
        duration_ns=calls * (costs.empty_kernel_ns + own.product_fixed_ns) + (calls - 1) * costs.gap_graph_ns,
        traffic=costs.traffic["launch"],
        energy_j=calls * (product.operations * joules + dram_j),
        load=Load(calls * cycles / share, calls * least_ns, tensor),
    )


class FakeGemm:
    """One product by one kernel of a library."""

    submit: Submit

    def __init__(self, machine: Machine, product: Product, answer: Answer, library: ProductLibrary, way: str) -> None:
        self._machine = machine
        self._product = product
        self._answer = answer
        self._kernel = library, way
        item = item_of(machine.costs, product, library, way)
        self.submit = FakeSubmit(machine, Call(library.submit_ns, item), answer.move)
        self.fresh = answer.fresh
        self.check = answer.check

    def graph(self, calls: int) -> Submit:
        costs, graphs = self._machine.costs, self._machine.costs.graphs
        for act in (graphs.capture, graphs.instantiate, graphs.upload):
            self._machine.clock.pass_ns(act.at(calls))
        item = item_of(costs, self._product, *self._kernel, calls)
        call = Call(costs.graph_submit_ns + calls * costs.graph_node_submit_ns, item)
        return FakeSubmit(self._machine, call, self._answer.move)


def problem(
    machine: Machine,
    dtype: protocol.GemmType,
    rows: int,
    columns: int,
    depth: int,
    data: protocol.GemmData = "normal",
    *,
    beyond_l2: bool = False,
    products: int = 1,
    batched: bool = False,
) -> FakeProblem:
    """With ``beyond_l2`` there are enough copies of B to fill the L2 several times, if memory allows."""
    require_type(machine.costs, unit_of(dtype))
    product = Product(dtype, rows, columns, depth, data, beyond_l2, products if batched else 1)
    several = product._replace(batch=products)
    copies = 1
    if beyond_l2:
        _, b_bytes, _ = product.matrices_bytes
        wanted = -(-L2S_OF_COPIES * machine.costs.memory.l2_bytes // b_bytes)
        more_fit = (machine.room.free_bytes - _held_bytes(machine, several)) // machine.room.whole(b_bytes)
        copies = max(min(wanted, MOST_COPIES, 1 + more_fit), 1)
    machine.room.hold((product, products), _held_bytes(machine, several, copies))
    return FakeProblem(machine, product)


def needed_bytes(machine: Machine, dtype: protocol.GemmType, rows: int, columns: int, depth: int) -> int:
    return _held_bytes(machine, Product(dtype, rows, columns, depth, "normal", beyond_l2=False))


def _held_bytes(machine: Machine, product: Product, copies: int = 1) -> int:
    a_bytes, b_bytes, d_bytes = product.matrices_bytes
    blocks = (a_bytes, copies * b_bytes, d_bytes)
    return sum(map(machine.room.whole, blocks)) + machine.costs.compute.workspace_bytes


def free_bytes(machine: Machine) -> int:
    return machine.room.free_bytes


def state(machine: Machine) -> Telemetry:
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


class FakeProblem:
    """The operands of one product; all its kernels write the same result."""

    def __init__(self, machine: Machine, product: Product) -> None:
        self._machine = machine
        self._product = product
        self._answer = Answer(machine.costs, product.matrices_bytes[-1], "D times random signs")
        self.dtype = product.dtype
        self.rows, self.columns, self.depth = product.rows, product.columns, product.depth
        self.operations = product.operations
        self.size_bytes = product.size_bytes

    def ways(self, library: protocol.Library) -> Sequence[str]:
        return tuple(self._library(library).kernels)

    def gemm(self, library: protocol.Library, way: str) -> FakeGemm:
        own = self._library(library)
        if way not in own.kernels:
            raise Skip(f"the simulated {library} has no kernel {way}")
        return FakeGemm(self._machine, self._product, self._answer, own, way)

    def _library(self, library: protocol.Library) -> ProductLibrary:
        own = self._machine.costs.compute.libraries.get(library)
        if own is None:
            raise Skip(f"the simulated machine has no {library}")
        if self._product.dtype not in own.dtypes:
            raise Skip(f"the simulated {library} has no {self._product.dtype}")
        return own


class FakeUnit(Scoped):
    """A Resident or a Chain, given by the cycles and joules of one repetition and the operations of one SM in it."""

    instructions = CHAIN_INSTRUCTIONS

    def __init__(
        self, machine: Machine, cycles: float, operations: int = 0, joules: float = 0.0, *, tensor: bool = False
    ) -> None:
        super().__init__(machine)
        self.sms = machine.costs.sm_count
        self.operations = operations
        self._cycles = cycles
        self._joules = joules
        self._tensor = tensor
        self._answer = Answer(machine.costs, UNIT_RESULT_BYTES, "the result")

    def take(self, repeats: int) -> protocol.UnitPass:
        """One launch on every SM, by both clocks; each SM counts slightly different cycles."""
        machine, load = self._open(), Load(repeats * self._cycles, tensor=self._tensor)
        item = Item(gap_ns=machine.costs.gap_stream_ns, energy_j=repeats * self._joules, load=load)
        seconds = machine.globaltimer_s(*machine.run(item))
        cycles = float(np.median(machine.noise.device(load.cycles, self.sms)))
        self._answer.move()
        return protocol.UnitPass(seconds, cycles, cycles / seconds)

    def check(self) -> str:
        self._answer.fresh()
        self.take(1)
        return self._answer.check()


def tensor(
    machine: Machine, path: protocol.TensorPath, dtype: protocol.TensorType, *, sparse: bool = False
) -> FakeUnit:
    """mma reaches the full rate if the type has no wgmma."""
    costs, own = machine.costs, machine.costs.compute
    require_type(costs, dtype)
    if sparse and dtype not in SPARSE_TYPES:
        raise Skip(f"the simulated GPU has no sparse {dtype}")
    if sparse and costs.compute_capability < SPARSE_SINCE:
        raise Skip(f"sparse tensor instructions need compute capability {_dotted(SPARSE_SINCE)}")
    has_wgmma = costs.compute_capability[0] == WGMMA_ARCHITECTURE and dtype != "fp64"
    if path == "wgmma" and not has_wgmma:
        capability = _dotted(costs.compute_capability)
        raise Skip(f"the simulated GPU of compute capability {capability} has no wgmma of {dtype}")
    share = own.mma_share if path == "mma" and has_wgmma else 1.0
    gain, joules = (own.sparse_gain, own.sparse_energy_share) if sparse else (1.0, 1.0)
    per_clock = gain * share * own.tensor_per_clock[dtype]
    return _resident(machine, per_clock, joules * own.tensor_joules[dtype], tensor=True)


def arithmetic(machine: Machine, operation: protocol.AluOperation) -> FakeUnit:
    require_type(machine.costs, operation)
    own = machine.costs.compute
    return _resident(machine, own.alu_per_clock[operation], own.alu_joules[operation], tensor=False)


def chain(machine: Machine, operation: protocol.AluOperation) -> FakeUnit:
    require_type(machine.costs, operation)
    return FakeUnit(machine, machine.costs.compute.alu_cycles[operation] * CHAIN_INSTRUCTIONS)


def _resident(machine: Machine, per_clock: float, joules: float, *, tensor: bool) -> FakeUnit:
    operations = round(REPETITION_CYCLES * per_clock)
    joules *= operations * machine.costs.sm_count
    return FakeUnit(machine, operations / per_clock, operations, joules, tensor=tensor)


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
