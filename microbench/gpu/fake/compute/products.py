"""What a matrix product costs the simulated GPU: tiles in waves over the SMs, bytes from DRAM, joules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from microbench.errors import Skip
from microbench.gpu.compute_api import GemmData, GemmType
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.stream import Item, Load

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
