"""Results of the simulated units: what was computed from fresh data, what became of it, and how that is compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.gpu.fake.costs import FakeCosts, ProductLibrary
from microbench.gpu.fake.device import Batch, Item, Load
from microbench.gpu.fake.links import Ends, MovingSubmit
from microbench.gpu.fake.machine import Call, Machine
from microbench.gpu.protocol.compute import AluOperation, GemmData, GemmType, Library, TensorPath, TensorType, UnitPass
from microbench.gpu.protocol.submit import Submit

CHECKED = "SIMULATED: every number that is kept compared"


class Answer(Ends):
    """A result of ``size_bytes``: right when what is computed is what the operands give."""

    def __init__(self, costs: FakeCosts, size_bytes: int, what: str) -> None:
        super().__init__(costs, size_bytes)
        self._what = what

    def check(self) -> str:
        """See Gemm and Resident."""
        if (self.target != self.source).any():
            raise MeasurementError(f"SIMULATED: {self._what} is not what its operands give")
        return CHECKED


# Kernels that read the simulated SMs' clock before and behind a region of stream 0.


class FakeBracket:
    """See ClockBracket."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._first: Batch | None = None
        self._last: Batch | None = None

    def begin(self) -> None:
        self._first = self._put()

    def end(self) -> None:
        self._last = self._put()

    def hz(self) -> float:
        if self._first is None or self._last is None or self._first.ends_ns is None or self._last.ends_ns is None:
            raise MeasurementError("both kernels must have ended before the clock between them is asked for")
        machine = self._machine
        mean_hz = machine.device.governor.mean_hz(float(self._first.ends_ns[0]), float(self._last.ends_ns[0]))
        return float(np.median(machine.noise.device(mean_hz, machine.costs.sm_count)))

    def _put(self) -> Batch:
        machine, costs = self._machine, self._machine.costs
        machine.check(self._scope)
        item = Item(gap_ns=costs.gap_stream_ns, duration_ns=costs.empty_kernel_ns, traffic=costs.traffic["launch"])
        return machine.make(Call(costs.submit_ns, item), 1).batches[0]


# What a matrix product costs the simulated GPU: tiles in waves over the SMs, bytes from DRAM, joules.


# Bits of an element of the operands, and bytes of one of the result.
ELEMENT_BITS: dict[GemmType, int] = {
    "fp64": 64, "fp32": 32, "tf32": 32, "fp16": 16, "fp16_acc16": 16, "bf16": 16, "fp8_e4m3": 8, "fp8_e4m3_fast": 8,
    "fp8_e5m2": 8, "fp8_e5m2_fast": 8, "int8": 8, "mxfp8": 8, "nvfp4": 4,
}  # fmt: skip
RESULT_BYTES: dict[GemmType, int] = {"fp64": 8, "fp32": 4, "tf32": 4, "int8": 4}
OTHER_RESULT_BYTES = 2
# From which compute capability on there is such a type.
SINCE: dict[str, tuple[int, int]] = {
    "tf32": (8, 0), "bf16": (8, 0), "fp8_e4m3": (8, 9), "fp8_e5m2": (8, 9), "mxfp8": (10, 0), "nvfp4": (10, 0),
}  # fmt: skip
SPLITS = (1, 2, 4, 8, 16, 32)
SHORTEST_SPLIT = 256


class Product(NamedTuple):
    """One product, and whether each of its B comes from DRAM."""

    dtype: GemmType
    rows: int
    columns: int
    depth: int
    data: GemmData
    beyond_l2: bool

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.columns * self.depth

    @property
    def result_bytes(self) -> int:
        """Of D."""
        return self.rows * self.columns * RESULT_BYTES.get(self.dtype, OTHER_RESULT_BYTES)

    @property
    def a_bytes(self) -> int:
        """Of A."""
        return self.rows * self.depth * ELEMENT_BITS[self.dtype] // 8

    @property
    def b_bytes(self) -> int:
        """Of one B."""
        return self.columns * self.depth * ELEMENT_BITS[self.dtype] // 8

    @property
    def size_bytes(self) -> int:
        """Operands and result, each once."""
        return self.a_bytes + self.b_bytes + self.result_bytes


def unit_of(dtype: GemmType) -> str:
    """The tensor cores' type that multiplies it."""
    return dtype.removesuffix("_fast")


def require_type(costs: FakeCosts, unit: str) -> None:
    """Raise Skip where this GPU has no such type."""
    since = SINCE.get(unit, (0, 0))
    if costs.compute_capability < since:
        have = ".".join(str(one) for one in costs.compute_capability)
        needed = ".".join(str(one) for one in since)
        raise Skip(f"{unit} needs compute capability {needed}, the simulated GPU has {have}")


def item_of(costs: FakeCosts, product: Product, share: float, calls: int = 1) -> Item:
    """So many products one after the other as one item, by a kernel that gets that share of the rate.

    A kernel that needs more cycles takes as much more energy. Between products of one item lies a graph's gap.
    """
    own, tensor = costs.compute, product.dtype != "fp32"
    joules = own.tensor_joules[unit_of(product.dtype)] if tensor else own.alu_joules["fma_fp32"]
    joules *= own.moving_energy_share * own.data_energy_share[product.data] / share
    from_dram = _from_dram(costs, product)
    dram_j = product.size_bytes * costs.memory.joules_per_byte if from_dram else 0.0
    fixed_ns = costs.empty_kernel_ns + own.product_fixed_ns
    return Item(
        gap_ns=costs.gap_stream_ns,
        duration_ns=calls * fixed_ns + (calls - 1) * costs.gap_graph_ns,
        traffic=costs.traffic["launch"],
        energy_j=calls * (product.operations * joules + dram_j),
        load=Load(calls * _cycles(costs, product) / share, calls * _least_ns(costs, product, from_dram), tensor),
    )


def _cycles(costs: FakeCosts, product: Product) -> float:
    """Of the best way to cut the result into tiles and the depth into pieces."""
    per_clock = _per_clock(costs, product.dtype)
    return min(_ways(costs, product, per_clock))


def _ways(costs: FakeCosts, product: Product, per_clock: float) -> Iterator[float]:
    """Cycles of each: whole waves of tiles over the SMs."""
    for tile in costs.compute.tiles:
        tiles = math.ceil(product.rows / tile.rows) * math.ceil(product.columns / tile.columns)
        for split in SPLITS:
            depth = product.depth / split
            if split > 1 and depth < SHORTEST_SPLIT:
                break
            one = 2 * tile.rows * tile.columns * depth / (per_clock * tile.share) + costs.compute.tile_cycles
            yield math.ceil(tiles * split / costs.sm_count) * one


def _per_clock(costs: FakeCosts, dtype: GemmType) -> float:
    own = costs.compute
    if dtype == "fp32":
        return own.alu_per_clock["fma_fp32"]
    share = own.promoted_share if dtype in ("fp8_e4m3", "fp8_e5m2") else 1.0
    return share * own.tensor_per_clock[unit_of(dtype)]


def _from_dram(costs: FakeCosts, product: Product) -> bool:
    return product.beyond_l2 or product.size_bytes > costs.memory.l2_bytes


def _least_ns(costs: FakeCosts, product: Product, from_dram: bool) -> float:
    """How long its bytes are on their way."""
    if from_dram:
        return product.size_bytes / costs.memory.dram_bytes_per_s.read * 1e9
    return product.size_bytes / (costs.memory.l2_bytes_per_clock * costs.sm_count * costs.sm_clock_hz) * 1e9


# Matrix products of the simulated GPU by the kernels of simulated libraries.


class FakeGemm:
    """See Gemm."""

    submit: Submit

    def __init__(self, machine: Machine, product: Product, answer: Answer, library: ProductLibrary, way: str) -> None:
        self._machine = machine
        self._product = product
        self._answer = answer
        self._share = library.kernels[way]
        self.submit = MovingSubmit(machine, Call(library.submit_ns, self._item(1)), answer)
        self.fresh = answer.fresh
        self.check = answer.check

    def _item(self, calls: int) -> Item:
        return item_of(self._machine.costs, self._product, self._share, calls)

    def graph(self, calls: int) -> Submit:
        costs, graphs = self._machine.costs, self._machine.costs.graphs
        for part in (graphs.capture, graphs.instantiate, graphs.upload):
            self._machine.clock.pass_ns(part.at(calls))
        call = Call(costs.graph_submit_ns + calls * costs.graph_node_submit_ns, self._item(calls))
        return MovingSubmit(self._machine, call, self._answer)


class FakeProblem:
    """See Problem."""

    def __init__(self, machine: Machine, product: Product) -> None:
        self._machine = machine
        self._product = product
        self._answer = Answer(machine.costs, product.result_bytes, "D times random signs")
        self.dtype = product.dtype
        self.rows, self.columns, self.depth = product.rows, product.columns, product.depth
        self.operations = product.operations
        self.size_bytes = product.size_bytes

    def ways(self, library: Library) -> Sequence[str]:
        return tuple(self._library(library).kernels)

    def gemm(self, library: Library, way: str) -> FakeGemm:
        found = self._library(library)
        if way not in found.kernels:
            raise Skip(f"the simulated {library} has no kernel {way}")
        return FakeGemm(self._machine, self._product, self._answer, found, way)

    def _library(self, library: Library) -> ProductLibrary:
        found = self._machine.costs.compute.libraries.get(library)
        if found is None:
            raise Skip(f"the simulated machine has no {library}")
        if self._product.dtype not in found.dtypes:
            raise Skip(f"the simulated {library} has no {self._product.dtype}")
        return found


# Instructions on what registers and shared memory of the simulated GPU hold, independent or each after the other.


REPETITION_CYCLES = 512
CHAIN_INSTRUCTIONS = 64
UNIT_RESULT_BYTES = 4096
WGMMA_ARCHITECTURE = 9


class FakeResident:
    """``joules`` is what an operation takes."""

    def __init__(self, machine: Machine, per_clock: float, joules: float, *, tensor: bool) -> None:
        self.sms = machine.costs.sm_count
        self.operations = round(REPETITION_CYCLES * per_clock)
        self._machine = machine
        self._scope = machine.scope
        self._cycles = self.operations / per_clock
        self._energy_j = self.operations * self.sms * joules
        self._tensor = tensor
        self._answer = Answer(machine.costs, UNIT_RESULT_BYTES, "the result")

    def take(self, repeats: int) -> UnitPass:
        self._machine.check(self._scope)
        load = Load(repeats * self._cycles, tensor=self._tensor)
        taken = _taken(self._machine, load, repeats * self._energy_j)
        self._answer.move()
        return taken

    def check(self) -> str:
        self._answer.fresh()
        self.take(1)
        return self._answer.check()


class FakeInstructionChain:
    """See Chain."""

    instructions = CHAIN_INSTRUCTIONS

    def __init__(self, machine: Machine, latency_cycles: float) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._cycles = latency_cycles * CHAIN_INSTRUCTIONS

    def take(self, repeats: int) -> UnitPass:
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
    """Warps' instructions get the whole rate where there are no warpgroups' for that type."""
    costs = machine.costs
    require_type(costs, dtype)
    has_wgmma = costs.compute_capability[0] == WGMMA_ARCHITECTURE and dtype != "fp64"
    if path == "wgmma" and not has_wgmma:
        raise Skip(f"the simulated GPU of compute capability {_words(costs)} has no wgmma of {dtype}")
    share = costs.compute.mma_share if path == "mma" and has_wgmma else 1.0
    per_clock, joules = costs.compute.tensor_per_clock[dtype], costs.compute.tensor_joules[dtype]
    return FakeResident(machine, share * per_clock, joules, tensor=True)


def arithmetic(machine: Machine, operation: AluOperation) -> FakeResident:
    _require_operation(machine.costs, operation)
    own = machine.costs.compute
    return FakeResident(machine, own.alu_per_clock[operation], own.alu_joules[operation], tensor=False)


def chain(machine: Machine, operation: AluOperation) -> FakeInstructionChain:
    _require_operation(machine.costs, operation)
    return FakeInstructionChain(machine, machine.costs.compute.alu_cycles[operation])


def _require_operation(costs: FakeCosts, operation: AluOperation) -> None:
    if operation == "fma_bf16x2":
        require_type(costs, "bf16")


def _words(costs: FakeCosts) -> str:
    return ".".join(str(one) for one in costs.compute_capability)
