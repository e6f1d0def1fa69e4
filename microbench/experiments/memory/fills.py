"""Filling shared memory from a working set in pieces: by loads and stores, by cp.async, by bulk copies."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from microbench.core.units import size
from microbench.experiments.memory.levels import Duration, SimulatedLevel, StampedLevel, Words, duration_of, fill_tiles
from microbench.gpu.cuda.timing import alone_on_its_sm
from microbench.gpu.experiment import Case, Launch, Machine, MeasurementError, Parameters, Skip, experiment, launch
from microbench.gpu.protocol.gpu import require_capability

# How data get into shared memory: by loads and stores, by cp.async, or by bulk copies, which a single thread requests.
Filling = Literal["load", "async", "bulk"]
# As kernels/memory_bulk.cu has them: a row is what a warp copies at once, and a part what a warp copies of a piece.
ROW_BYTES, VECTOR_BYTES, WARP_THREADS = 512, 16, 32
LARGEST_PIECE_BYTES = 32 << 10
WAYS: tuple[Filling, ...] = ("load", "async", "bulk")
WARPS: dict[Filling, int] = {"load": 32, "async": 16, "bulk": 4}
OWN_BYTES: dict[Filling, int] = {"load": 2048, "async": 4096, "bulk": 32768}
MOST_PART_BYTES: dict[Filling, int] = {"load": 2048, "async": 2048, "bulk": 32768}
BARRIER_BYTES = 8
SINCE: dict[Filling, tuple[int, int]] = {"load": (7, 5), "async": (8, 0), "bulk": (9, 0)}
NAMES: dict[Filling, str] = {"load": "ld.global.L1::no_allocate", "async": "cp.async", "bulk": "cp.async.bulk"}
SEED = 7
MOST_PIECES = (1 << 32) - 1
Sums = npt.NDArray[np.uint64]


def shared_bytes(way: Filling) -> int:
    """Shared memory of a block: the rings of its warps, and their barriers with the smallest pieces."""
    ring_bytes = WARPS[way] * OWN_BYTES[way]
    return ring_bytes + (ring_bytes // ROW_BYTES * BARRIER_BYTES if way == "bulk" else 0)


def prefix_sums(way: Filling, piece_bytes: int, rows: Words) -> Sums:
    """The sum that the kernel forms of the first n pieces, in each round: shape (rows of a part, pieces + 1), modulo
    2**64.

    Of the part with number n, counted over the set, it takes row (n + round) % rows of a part. ``rows`` are the sums of
    the set's rows.
    """
    part_rows = min(piece_bytes, MOST_PART_BYTES[way]) // ROW_BYTES
    parts = rows.reshape(-1, part_rows).astype(np.uint64)
    number = np.arange(len(parts))
    parts_of_piece = piece_bytes // ROW_BYTES // part_rows
    sums = np.zeros((part_rows, len(parts) // parts_of_piece + 1), dtype=np.uint64)
    for turn in range(part_rows):
        taken = parts[number, (number + turn) % part_rows].reshape(-1, parts_of_piece)
        np.cumsum(taken.sum(axis=1, dtype=np.uint64), out=sums[turn, 1:])
    return sums


def expected_sum(sums: Sums, total: int) -> int:
    """The sum over ``total`` pieces, going round the set again and again, modulo 2**32."""
    rounds, rest = divmod(total, sums.shape[1] - 1)
    turns = len(sums)
    whole, left = divmod(rounds, turns)
    of_rounds = [int(one) for one in sums[:, -1]]
    value: int = whole * sum(of_rounds) + sum(of_rounds[:left]) + int(sums[left, rest])
    return value & 0xFFFFFFFF


def require_piece(piece_bytes: int) -> None:
    """Raise Skip for a piece whose size is not a power of two from 512 B to 32 KiB."""
    if not ROW_BYTES <= piece_bytes <= LARGEST_PIECE_BYTES or piece_bytes & (piece_bytes - 1):
        raise Skip(f"pieces are powers of two from {ROW_BYTES} B to {size(LARGEST_PIECE_BYTES)}, not {piece_bytes} B")


class FilledPieces(StampedLevel):
    """A set in device memory. One block on each SM copies pieces of its own into its shared memory, passing through the
    set again and again; a piece is ``tile_bytes`` long.

    After each piece has arrived, the kernel sums one 512-byte row of each of its parts, another row in each round.
    Raises Skip for a way that the GPU lacks, and for pieces whose size is not a power of two from 512 B to 32 KiB.
    """

    def __init__(self, case: Case, way: Filling, piece_bytes: int, footprint_bytes: int) -> None:
        super().__init__(case, case.sms)
        self.tile_bytes = piece_bytes
        case.require_capability(*SINCE[way], NAMES[way])
        require_piece(piece_bytes)
        pieces = footprint_bytes // piece_bytes
        if not self.sms <= pieces <= MOST_PIECES:
            raise Skip(f"{size(footprint_bytes)} hold {pieces} pieces of {size(piece_bytes)} for {self.sms} SMs")
        function = case.function("memory_bulk", "fill", WAY=WAYS.index(way), PIECE=piece_bytes)
        here = alone_on_its_sm(case, function)
        if here < shared_bytes(way):
            raise Skip(f"a block has {size(here)} of shared memory here, {NAMES[way]} is measured with more")
        rows, vectors = pieces * piece_bytes // ROW_BYTES, ROW_BYTES // VECTOR_BYTES
        base, row_sums = fill_tiles(case, rows, vectors, SEED, WARP_THREADS)
        self._sums = prefix_sums(way, piece_bytes, row_sums)
        self._row = Parameters([(base, pieces, 0, self._out)])
        shape = Launch(grid_blocks=self.sms, block_threads=WARPS[way] * WARP_THREADS)
        self._submit = launch(case, function, shape, self._row, shared_bytes=here)

    def _take(self, tiles: int) -> Duration:
        self._row[2] = tiles * self.sms
        stamps = self._stamps(self._submit)
        total = int(stamps["sum"].sum(dtype=np.uint64)) % (1 << 32)
        wanted = expected_sum(self._sums, tiles * self.sms)
        if total != wanted:
            raise MeasurementError(f"the sum over rows of what was copied is {total:#x} where {wanted:#x} should be")
        return duration_of(stamps)


class SimulatedFill(SimulatedLevel):
    """Pieces of the set pass through the same path, at most as fast as an SM can request bulk copies."""

    def __init__(self, machine: Machine, way: Filling, piece_bytes: int, footprint_bytes: int) -> None:
        memory = machine.costs.memory
        require_capability(machine.costs.compute_capability, *SINCE[way], NAMES[way])
        require_piece(piece_bytes)
        super().__init__(machine, "global", max(footprint_bytes, memory.l1_bytes + 1))
        self._tile_cycles *= piece_bytes / self.tile_bytes / memory.fill_share[way]
        self.tile_bytes = piece_bytes
        if way == "bulk":
            self._tile_cycles = max(self._tile_cycles, memory.bulk_cycles)


fill = experiment(FilledPieces, SimulatedFill)
