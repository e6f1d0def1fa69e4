"""Tensor instructions alone: fresh operands in registers or shared memory, results compared in float64."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import Launch
from microbench.gpu.cuda.case import STAMPS, Case, pass_of
from microbench.gpu.cuda.compute.types import Floats, normal
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.submit import Parameters, launch
from microbench.gpu.protocol.compute import TensorPath, TensorType, UnitPass

WARP_THREADS = 32
Raw = npt.NDArray[np.generic]

# KIND of kernels/tensor_*.cu.
KINDS: dict[TensorType, int] = {
    "bf16": 0, "fp16": 1, "tf32": 2, "fp8_e4m3": 3, "fp8_e5m2": 4, "int8": 5, "fp16_acc16": 6, "fp64": 7,
}  # fmt: skip
# How far a result may be off, of the root mean square of all: products are exact, sums are rounded in the accumulator.
# fp8: 14 bits of it (see ACCUMULATORS); fp16_acc16: a unit of fp16 for each of some ten additions.
FAR_OFF: dict[TensorType, float] = {
    "fp64": 2.0**-48, "tf32": 2.0**-16, "fp16": 2.0**-16, "bf16": 2.0**-16, "fp16_acc16": 2.0**-6,
    "fp8_e4m3": 2.0**-6, "fp8_e5m2": 2.0**-6, "int8": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A kernel with its operands: ``expected`` results, shape (groups, rows, columns), one group of threads each.

    Each of a group's threads holds ``result_words``, each of its warps ``warp_rows`` of the results; ``groups`` make a
    block. ``operations`` are those of a block in one repetition.
    """

    kernel: str
    operands: npt.NDArray[np.uint8]
    expected: Floats
    group_threads: int
    groups: int
    result_words: int
    warp_rows: int
    result: npt.DTypeLike
    shared_bytes: int
    operations: int


class CudaTensor:
    """See Resident of compute_api.py: one block on each SM."""

    def __init__(self, case: Case, dtype: TensorType, plan: Plan) -> None:
        self._context, self._dtype, self._plan = case.context, dtype, plan
        self.sms = case.context.attribute("MULTIPROCESSOR_COUNT")
        self.operations = plan.operations
        function = case.modules.function(plan.kernel, "repeat", KIND=KINDS[dtype])
        if plan.shared_bytes:
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(function, most, plan.shared_bytes))
        self.operands = case.context.device_memory(plan.operands.nbytes)
        check(driver.cuMemcpyHtoD(self.operands, plan.operands.ctypes.data, plan.operands.nbytes))
        threads = plan.group_threads * plan.groups
        self._words = self.sms * threads * plan.result_words
        self._out = case.context.device_memory(self._words * np.dtype(plan.result).itemsize)
        self._stamps = case.context.device_memory(STAMPS.itemsize * self.sms)
        self._repeats = np.zeros(1, dtype=np.uint64)
        row = Parameters([(self.operands, 0, self._out, self._stamps)])
        row.point(1, self._repeats.ctypes.data)
        shape = Launch(grid_blocks=self.sms, block_threads=threads)
        self._submit = launch(
            function, shape, case.stream(0), row, keep=(self._repeats,), shared_bytes=plan.shared_bytes
        )

    def take(self, repeats: int) -> UnitPass:
        self._repeats[0] = repeats
        self._submit(1)
        self._context.synchronize()
        return pass_of(self._context.read(self._stamps, self.sms, STAMPS))

    def check(self) -> str:
        """See Resident: the results of the last launch on each SM; a repetition begins them anew."""
        blocks = self._context.read(self._out, self._words, self._plan.result).reshape(self.sms, -1)
        if not (blocks.view(np.uint8) == blocks[0].view(np.uint8)).all():
            raise MeasurementError(f"{self._dtype}: the SMs' results differ from each other")
        wanted = self._plan.expected
        groups = blocks[0].reshape(self._plan.groups, self._plan.group_threads, self._plan.result_words)
        found = np.stack([unpacked(self._dtype, group, self._plan.warp_rows) for group in groups])
        scale = float(np.sqrt(np.mean(np.square(wanted))))
        off = float(np.max(np.abs(found - wanted))) / scale
        if not off <= FAR_OFF[self._dtype]:
            raise MeasurementError(
                f"{self._dtype}: a result is off by {off:.1e} of their size, {FAR_OFF[self._dtype]:.1e} at most"
            )
        return "every result of every SM compared in float64"


def tensor(case: Case, path: TensorPath, dtype: TensorType) -> CudaTensor:
    """Raises Skip where the GPU has no such instruction."""
    capability = tuple(case.context.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    seed = time.time_ns()
    if path == "wgmma":
        if capability != (9, 0):
            raise Skip(f"wgmma exists on compute capability 9.0 only; this GPU has {capability[0]}.{capability[1]}")
        if dtype == "fp64":
            raise Skip("wgmma multiplies no fp64: mma does")
        return CudaTensor(case, dtype, wgmma_plan(dtype, seed))
    case.require_capability(*((8, 9) if dtype.startswith("fp8") else (8, 0)), f"mma of {dtype}")
    return CudaTensor(case, dtype, mma_plan(dtype, seed, (8, 0) if capability < (9, 0) else capability))


# The same product so many times in a repetition.
WGMMA_TIMES = 4
WGMMA_ROW_BYTES, WGMMA_ROWS, WGMMA_COLUMNS, WARPGROUPS, WARPGROUP_THREADS = 128, 64, 256, 2, 128
SWIZZLE_BYTES, SWIZZLE_ROWS, ALIGNMENT_BYTES = 16, 8, 1024
MMA_WARPS, MMA_COLUMNS, WARP_ROWS = 16, 8, 16


def wgmma_plan(dtype: TensorType, seed: int) -> Plan:
    """Two warpgroups, each 64 rows by the same 256 columns, rows of 128 bytes."""
    first = [normal(dtype, WGMMA_ROWS, WGMMA_ROW_BYTES, seed + group) for group in range(WARPGROUPS)]
    second = normal(dtype, WGMMA_COLUMNS, WGMMA_ROW_BYTES, seed + WARPGROUPS)
    operands = np.concatenate([swizzled(one.raw) for one in (*first, second)])
    depth = second.values.shape[1]
    return Plan(
        kernel="tensor_wgmma",
        operands=operands,
        expected=np.stack([WGMMA_TIMES * (one.values @ second.values.T) for one in first]),
        group_threads=WARPGROUP_THREADS,
        groups=WARPGROUPS,
        result_words=WGMMA_COLUMNS // 2 // (2 if dtype == "fp16_acc16" else 1),
        warp_rows=WARP_ROWS,
        result=result_type(dtype),
        shared_bytes=operands.nbytes + ALIGNMENT_BYTES,
        operations=2 * WARPGROUPS * WGMMA_ROWS * WGMMA_COLUMNS * depth * WGMMA_TIMES,
    )


def mma_plan(dtype: TensorType, seed: int, capability: tuple[int, ...]) -> Plan:
    """Sixteen warps, each several fragments of 16 rows by several of 8 columns, of one instruction's depth.

    fp64: 16 x 8 x 16 from 9.0 on, 8 x 8 x 4 before; rows of 32 bytes for all other types.
    """
    wide = capability >= (9, 0)
    rows, row_bytes = (16 if wide else 8, 128 if wide else 32) if dtype == "fp64" else (16, 32)
    tiles, times = (4, 2) if dtype == "fp64" else (8, 8)
    first = [normal(dtype, rows, row_bytes, seed + time) for time in range(times)]
    second = [normal(dtype, MMA_COLUMNS, row_bytes, seed + times + tile) for tile in range(tiles)]
    together = sum((one.values for one in first), np.zeros_like(first[0].values))
    product = np.concatenate([together @ one.values.T for one in second], axis=1)
    operations = 2 * product.size * together.shape[1] * times * MMA_WARPS
    return Plan(
        kernel="tensor_mma",
        operands=np.concatenate([one.raw.reshape(-1) for one in (*first, *second)]),
        expected=np.broadcast_to(product, (MMA_WARPS, *product.shape)),
        group_threads=WARP_THREADS,
        groups=MMA_WARPS,
        result_words=product.size // WARP_THREADS // (2 if dtype == "fp16_acc16" else 1),
        warp_rows=rows,
        result=result_type(dtype),
        shared_bytes=0,
        operations=operations,
    )


def result_type(dtype: TensorType) -> npt.DTypeLike:
    """What a thread's result words are."""
    return {"fp64": np.float64, "int8": np.int32, "fp16_acc16": np.uint32}.get(dtype, np.float32)


def swizzled(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Rows of 128 bytes as wgmma reads them from shared memory: 16-byte piece c of row r lies at piece c ^ (r % 8)."""
    pieces = raw.reshape(len(raw), SWIZZLE_ROWS, SWIZZLE_BYTES)
    row = np.arange(len(raw))[:, None]
    result = np.empty_like(pieces)
    result[row, np.arange(SWIZZLE_ROWS)[None] ^ (row % SWIZZLE_ROWS)] = pieces
    return result.reshape(-1)


def unpacked(dtype: TensorType, words: Raw, warp_rows: int) -> Floats:
    """Results of a group of threads, shape (threads, words), as a matrix.

    A warp holds 16 rows: lane l the columns 2 (l % 4) and the next of every eight, of row l / 4 and of the one 8 below
    it, which there is not where a warp holds 8. Source: PTX ISA, accumulator fragments of wgmma, mma.m16n8, mma.m8n8.
    """
    values = (words.view(np.float16) if dtype == "fp16_acc16" else words).astype(np.float64)
    threads, count = values.shape
    warp, lane = np.arange(threads)[:, None] // WARP_THREADS, np.arange(threads)[:, None] % WARP_THREADS
    number = np.arange(count)[None]
    halves = warp_rows // 8
    row = warp_rows * warp + lane // 4 + 8 * (number // 2 % halves)
    column = 8 * (number // (2 * halves)) + 2 * (lane % 4) + number % 2
    matrix: Floats = np.zeros((warp_rows * threads // WARP_THREADS, 8 * count // (2 * halves)))
    matrix[row, column] = values
    return matrix
