"""Tensor instructions alone: fresh operands in registers or shared memory, results compared in float64."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.experiments.compute.instructions import Resident, SimulatedResident, prepare, simulated_resident
from microbench.gpu.cuda.submit import Parameters, allow_shared_memory, launch
from microbench.gpu.cuda.timing import STAMPS, UnitPass, pass_of, stamped
from microbench.gpu.experiment import Case, Launch, Machine, MeasurementError, Skip, experiment
from microbench.gpu.protocol.gpu import require_capability

# wgmma of warpgroups, from shared memory (9.0a only), and mma of warps, from registers.
TensorPath = Literal["wgmma", "mma"]
TensorType = Literal["fp64", "tf32", "fp16", "fp16_acc16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"]
WARP_THREADS = 32
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
Raw = npt.NDArray[np.generic]

# KIND of kernels/tensor_*.cu.
KINDS: dict[TensorType, int] = {
    "bf16": 0, "fp16": 1, "tf32": 2, "fp8_e4m3": 3, "fp8_e5m2": 4, "int8": 5, "fp16_acc16": 6, "fp64": 7,
}  # fmt: skip
# The same with a first operand of which two of every four elements are zero.
SPARSE_KINDS: dict[TensorType, int] = {"bf16": 8, "fp16": 9}
SPARSE_SINCE, WGMMA_ARCHITECTURE = (8, 0), 9  # on the simulated GPU
# The allowed error of a result, as a share of the root mean square of all: products are exact, sums are rounded in the
# accumulator. fp8: 14 bits of it (ACCUMULATORS in rates.py); fp16_acc16: a unit of fp16 for each of some ten additions.
FAR_OFF: dict[TensorType, float] = {
    "fp64": 2.0**-48, "tf32": 2.0**-16, "fp16": 2.0**-16, "bf16": 2.0**-16, "fp16_acc16": 2.0**-6,
    "fp8_e4m3": 2.0**-6, "fp8_e5m2": 2.0**-6, "int8": 0.0,
}  # fmt: skip


def real_tensor(case: Case, path: TensorPath, dtype: TensorType, *, sparse: bool = False) -> TensorInstructions:
    """Tensor instructions alone, on normally distributed random operands.

    With ``sparse`` two of every four elements of the first operand are zero and skipped (2:4 structured sparsity).
    ``operations`` count them as if they were not, as data sheets do. Raises Skip if the GPU has no such instruction,
    and for sparse ones of a type without a kernel.
    """
    capability = case.context.capability
    seed = time.time_ns()
    if sparse and dtype not in SPARSE_KINDS:
        raise Skip(f"there are kernels for sparse {' and '.join(SPARSE_KINDS)}, none for {dtype}")
    if path == "wgmma":
        if capability != (9, 0):
            raise Skip(f"wgmma exists on compute capability 9.0 only; this GPU has {capability[0]}.{capability[1]}")
        if dtype == "fp64":
            raise Skip("wgmma does not support fp64: mma does")
        return TensorInstructions(case, dtype, wgmma_plan(dtype, seed, skips=sparse))
    case.require_capability(*((8, 9) if dtype.startswith("fp8") else (8, 0)), f"mma of {dtype}")
    return TensorInstructions(case, dtype, mma_plan(dtype, seed, capability, skips=sparse))


def simulated_tensor(
    machine: Machine, path: TensorPath, dtype: TensorType, *, sparse: bool = False
) -> SimulatedResident:
    """mma reaches the full rate if the type has no wgmma."""
    prepare(machine, dtype)
    capability, costs = machine.costs.compute_capability, machine.costs.compute
    if sparse and dtype not in SPARSE_KINDS:
        raise Skip(f"the simulated GPU has no sparse {dtype}")
    if sparse:
        require_capability(capability, *SPARSE_SINCE, "sparse mma")
    has_wgmma = capability[0] == WGMMA_ARCHITECTURE and dtype != "fp64"
    if path == "wgmma" and not has_wgmma:
        raise Skip(f"the simulated GPU of compute capability {'.'.join(map(str, capability))} has no wgmma of {dtype}")
    share = costs.mma_share if path == "mma" and has_wgmma else 1.0
    gain, joules = (costs.sparse_gain, costs.sparse_energy_share) if sparse else (1.0, 1.0)
    per_clock = gain * share * costs.tensor_per_clock[dtype]
    return simulated_resident(machine, per_clock, joules * costs.tensor_joules[dtype], tensor=True)


tensor = experiment(real_tensor, simulated_tensor)


@dataclass(frozen=True)
class Plan:
    """A kernel with its operands: ``expected`` results, shape (groups, rows, columns), one group of threads each.

    Each thread of a group holds ``result_words`` of the results, each of its warps ``warp_rows`` rows; a block has
    ``groups``. ``operations`` are those of a block in one repetition.
    """

    kernel: str
    kind: int
    operands: Bytes
    expected: Floats
    group_threads: int
    groups: int
    result_words: int
    warp_rows: int
    result: npt.DTypeLike
    shared_bytes: int
    operations: int


class TensorInstructions(Resident):
    """Tensor instructions with one block on each SM."""

    def __init__(self, case: Case, dtype: TensorType, plan: Plan) -> None:
        self._case, self._dtype, self._plan = case, dtype, plan
        self.sms = case.sms
        self.operations = plan.operations
        function = case.function(plan.kernel, "repeat", KIND=plan.kind)
        allow_shared_memory(function, plan.shared_bytes)
        self.operands = case.array(plan.operands)
        threads = plan.group_threads * plan.groups
        self._words = self.sms * threads * plan.result_words
        self._out = case.device_memory(self._words * np.dtype(plan.result).itemsize)
        self._stamps = case.device_memory(STAMPS.itemsize * self.sms)
        self._row = Parameters([(self.operands, 0, self._out, self._stamps)])
        op = Launch(grid_blocks=self.sms, block_threads=threads)
        self._submit = launch(case, function, op, self._row, shared_bytes=plan.shared_bytes)

    def take(self, repeats: int) -> UnitPass:
        self._row[1] = repeats
        return pass_of(stamped(self._case, self._submit, self._stamps, self.sms))

    def check(self) -> str:
        """Compare the results of the last launch on each SM; each repetition starts them anew."""
        blocks = self._case.read(self._out, self._words, self._plan.result).reshape(self.sms, -1)
        if not (blocks.view(np.uint8) == blocks[0].view(np.uint8)).all():
            raise MeasurementError(f"{self._dtype}: the SMs' results differ from each other")
        wanted = self._plan.expected
        groups = blocks[0].reshape(self._plan.groups, self._plan.group_threads, self._plan.result_words)
        results = np.stack([unpacked(self._dtype, group, self._plan.warp_rows) for group in groups])
        scale = float(np.sqrt(np.mean(np.square(wanted))))
        off = float(np.max(np.abs(results - wanted))) / scale
        if not off <= FAR_OFF[self._dtype]:
            raise MeasurementError(
                f"{self._dtype}: a result is off by {off:.1e} of their root mean square, "
                f"{FAR_OFF[self._dtype]:.1e} at most"
            )
        return "every result of every SM compared in float64"


# How many times a repetition computes the same product.
WGMMA_TIMES = 4
WGMMA_ROW_BYTES, WGMMA_ROWS, WGMMA_COLUMNS, WARPGROUPS, WARPGROUP_THREADS = 128, 64, 256, 2, 128
SWIZZLE_BYTES, SWIZZLE_ROWS, ALIGNMENT_BYTES = 16, 8, 1024
MMA_WARPS, MMA_COLUMNS, WARP_ROWS = 16, 8, 16


def wgmma_plan(dtype: TensorType, seed: int, *, skips: bool = False) -> Plan:
    """Two warpgroups, each 64 rows by the same 256 columns, with rows of 128 bytes.

    If it ``skips`` zeros, rows have 128 columns, of which half are zero in the first operand, which is in registers.
    """
    if skips:
        columns = 2 * WGMMA_ROW_BYTES // ELEMENT_BYTES[dtype]
        first = [sparse(dtype, WGMMA_ROWS, columns, seed + group) for group in range(WARPGROUPS)]
        second = normal(dtype, WGMMA_COLUMNS, 2 * WGMMA_ROW_BYTES, seed + WARPGROUPS)
        halves = [swizzled(second.raw[:, :WGMMA_ROW_BYTES]), swizzled(second.raw[:, WGMMA_ROW_BYTES:])]
        # A word for each instruction of the depth, then for each thread.
        of_chunks = SPARSE_COLUMNS // CHUNK
        places = [
            place_words(matrix.places[row : row + WARP_ROWS, chunk : chunk + of_chunks]).view(np.uint8)
            for matrix in first
            for chunk in range(0, columns // CHUNK, of_chunks)
            for row in range(0, WGMMA_ROWS, WARP_ROWS)
        ]
        operands = np.concatenate([*halves, *(matrix.raw.reshape(-1) for matrix in first), *places])
        shared_bytes = 2 * WGMMA_COLUMNS * WGMMA_ROW_BYTES
    else:
        first = [normal(dtype, WGMMA_ROWS, WGMMA_ROW_BYTES, seed + group) for group in range(WARPGROUPS)]
        second = normal(dtype, WGMMA_COLUMNS, WGMMA_ROW_BYTES, seed + WARPGROUPS)
        operands = np.concatenate([swizzled(matrix.raw) for matrix in (*first, second)])
        shared_bytes = operands.nbytes
    return Plan(
        kernel="tensor_wgmma",
        kind=(SPARSE_KINDS if skips else KINDS)[dtype],
        operands=operands,
        expected=np.stack([WGMMA_TIMES * (matrix.values @ second.values.T) for matrix in first]),
        group_threads=WARPGROUP_THREADS,
        groups=WARPGROUPS,
        result_words=WGMMA_COLUMNS // 2 // (2 if dtype == "fp16_acc16" else 1),
        warp_rows=WARP_ROWS,
        result=RESULT_TYPES.get(dtype, np.float32),
        shared_bytes=shared_bytes + ALIGNMENT_BYTES,
        operations=2 * WARPGROUPS * WGMMA_ROWS * WGMMA_COLUMNS * second.values.shape[1] * WGMMA_TIMES,
    )


def mma_plan(dtype: TensorType, seed: int, capability: tuple[int, ...], *, skips: bool = False) -> Plan:
    """Sixteen warps, each several fragments of 16 rows by several of 8 columns, of one instruction's depth.

    fp64: 16 x 8 x 16 from 9.0 on, 8 x 8 x 4 before; all other types have rows of 32 bytes. If it ``skips`` zeros, rows
    have 32 columns, of which half are zero in the first operand.
    """
    wide = capability >= (9, 0)
    rows, row_bytes = (16 if wide else 8, 128 if wide else 32) if dtype == "fp64" else (16, 32)
    tiles, times = (4, 2) if dtype == "fp64" else (8, 8)
    if skips:
        row_bytes = SPARSE_COLUMNS * ELEMENT_BYTES[dtype]
        first = [sparse(dtype, rows, SPARSE_COLUMNS, seed + time) for time in range(times)]
    else:
        first = [normal(dtype, rows, row_bytes, seed + time) for time in range(times)]
    second = [normal(dtype, MMA_COLUMNS, row_bytes, seed + times + tile) for tile in range(tiles)]
    places = [place_words(matrix.places).view(np.uint8) for matrix in first if skips]
    together = sum((matrix.values for matrix in first), np.zeros_like(first[0].values))
    product = np.concatenate([together @ matrix.values.T for matrix in second], axis=1)
    return Plan(
        kernel="tensor_mma",
        kind=(SPARSE_KINDS if skips else KINDS)[dtype],
        operands=np.concatenate([*(matrix.raw.reshape(-1) for matrix in (*first, *second)), *places]),
        expected=np.broadcast_to(product, (MMA_WARPS, *product.shape)),
        group_threads=WARP_THREADS,
        groups=MMA_WARPS,
        result_words=product.size // WARP_THREADS // (2 if dtype == "fp16_acc16" else 1),
        warp_rows=rows,
        result=RESULT_TYPES.get(dtype, np.float32),
        shared_bytes=0,
        operations=2 * product.size * together.shape[1] * times * MMA_WARPS,
    )


# The columns of one sparse instruction of 16-bit types, zeros included; a chunk of four columns has two elements.
SPARSE_COLUMNS, CHUNK = 32, 4
PLACES = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])


def sparse(dtype: TensorType, rows: int, columns: int, seed: int) -> Matrix:
    """Standard normal numbers in two of every four columns, drawn anew for each chunk; zeros in the others."""
    stored = normal(dtype, rows, columns // 2 * ELEMENT_BYTES[dtype], seed)
    chosen = np.random.default_rng(seed).integers(0, len(PLACES), (rows, columns // CHUNK))
    values = np.zeros((rows, columns // CHUNK, CHUNK))
    np.put_along_axis(values, PLACES[chosen], stored.values.reshape(rows, -1, 2), axis=2)
    places = (PLACES[..., 0] | PLACES[..., 1] << 2).astype(np.uint32)
    return Matrix(stored.raw, values.reshape(rows, columns), places[chosen])


def place_words(places: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The word of each lane for the places of 16 rows and 8 chunks, shape (32,).

    Lanes 4 g and 4 g + 1 hold four chunks each of row g in the low half and of row g + 8 in the high half, the first
    chunk in the lowest bits; the other two lanes of a group are not read. Source: PTX ISA, metadata of sparse
    mma.m16n8k32 (also of wgmma.m64nNk32) with .f16 and .bf16.
    """
    lane = np.arange(WARP_THREADS)
    words = np.zeros(WARP_THREADS, dtype=np.uint32)
    for half in range(2):
        for number in range(4):
            chunk = places[lane // 4 + 8 * half, 4 * (lane % 2) + number]
            words |= chunk << np.uint32(16 * half + 4 * number)
    return words


RESULT_TYPES: dict[TensorType, npt.DTypeLike] = {"fp64": np.float64, "int8": np.int32, "fp16_acc16": np.uint32}


def swizzled(raw: Bytes) -> Bytes:
    """Rows of 128 bytes as wgmma reads them from shared memory: 16-byte piece c of row r lies at piece c ^ (r % 8)."""
    pieces = raw.reshape(len(raw), SWIZZLE_ROWS, SWIZZLE_BYTES)
    row = np.arange(len(raw))[:, None]
    result = np.empty_like(pieces)
    result[row, np.arange(SWIZZLE_ROWS)[None] ^ (row % SWIZZLE_ROWS)] = pieces
    return result.reshape(-1)


def unpacked(dtype: TensorType, words: Raw, warp_rows: int) -> Floats:
    """Results of a group of threads, shape (threads, words), as a matrix.

    A warp holds 16 rows: lane l holds columns 2 (l % 4) and the next of every eight, of row l / 4 and of the row 8
    below it, which does not exist if a warp holds 8. Source: PTX ISA, accumulator fragments of wgmma, mma.m16n8,
    mma.m8n8.
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


# Numbers as tensor cores take them: normally distributed, rounded to a type, as bytes and as exact values.

ELEMENT_BYTES: dict[TensorType, int] = {
    "fp64": 8, "tf32": 4, "fp16": 2, "fp16_acc16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1,
}  # fmt: skip
INT8_SCALE, INT8_MOST = 40.0, 127.0
# Bits of fp32's significand that a type lacks; it is the upper part of fp32.
CUT_BITS = {"tf32": 13, "bf16": 16}


class Matrix(NamedTuple):
    """``raw`` bytes, shape (rows, bytes of a row), and the ``values`` that they stand for, shape (rows, columns).

    Of a sparse matrix only the elements at ``places`` are stored: two of each chunk of four columns, two bits each,
    shape (rows, chunks). A dense one has no ``places``.
    """

    raw: Bytes
    values: Floats
    places: npt.NDArray[np.uint32] = np.zeros((0, 0), dtype=np.uint32)


def normal(dtype: TensorType, rows: int, row_bytes: int, seed: int) -> Matrix:
    """Standard normal numbers rounded to nearest; integers are 40 times as large."""
    drawn = np.random.default_rng(seed).standard_normal((rows, row_bytes // ELEMENT_BYTES[dtype]))
    elements, values = encode(dtype, drawn)
    return Matrix(np.ascontiguousarray(elements).view(np.uint8).reshape(rows, row_bytes), values)


def encode(dtype: TensorType, numbers: Floats) -> tuple[Raw, Floats]:
    """The elements of a type nearest to the numbers, and their values. Numbers lie well within the type's range."""
    match dtype:
        case "fp64":
            return numbers, numbers
        case "int8":
            whole = np.clip(np.rint(numbers * INT8_SCALE), -INT8_MOST, INT8_MOST)
            return whole.astype(np.int8), whole
        case "fp16" | "fp16_acc16":
            halves = numbers.astype(np.float16)
            return halves, halves.astype(np.float64)
        case "tf32" | "bf16":
            cut = CUT_BITS[dtype]
            bits = numbers.astype(np.float32).view(np.uint32) + np.uint32(1 << (cut - 1))
            bits &= np.uint32(0xFFFFFFFF ^ ((1 << cut) - 1))
            values = bits.view(np.float32).astype(np.float64)
            return (bits if dtype == "tf32" else (bits >> np.uint32(16)).astype(np.uint16)), values
        case "fp8_e5m2" | "fp8_e4m3":
            table = _table(dtype)
            codes = _nearest(table, numbers)
            return codes, table[codes]


def _table(dtype: TensorType) -> Floats:
    """The value of each of the 256 codes, NaN for those without one. Source: OCP 8-bit floating point, 2023."""
    exponent_bits, bias = (4, 7) if dtype == "fp8_e4m3" else (5, 15)
    fraction_bits = 7 - exponent_bits
    codes = np.arange(256)
    exponent = codes >> fraction_bits & (1 << exponent_bits) - 1
    fraction = (codes & (1 << fraction_bits) - 1) / (1 << fraction_bits)
    size = np.where(exponent > 0, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias))
    none = codes & 0x7F == 0x7F if dtype == "fp8_e4m3" else exponent == (1 << exponent_bits) - 1
    return np.where(none, np.nan, np.where(codes >> 7 > 0, -size, size))


def _nearest(table: Floats, numbers: Floats) -> Bytes:
    positive = table[:128]
    order = np.argsort(positive[~np.isnan(positive)], kind="stable")  # codes rise with their values
    sizes = positive[order]
    above = np.clip(np.searchsorted(sizes, np.abs(numbers)), 1, len(sizes) - 1)
    nearer_below = np.abs(numbers) - sizes[above - 1] < sizes[above] - np.abs(numbers)
    codes = order[np.where(nearer_below, above - 1, above)] | np.where(numbers < 0, 0x80, 0)
    return codes.astype(np.uint8)
