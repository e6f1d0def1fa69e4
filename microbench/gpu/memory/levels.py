"""Working sets read by every SM again and again, each tile's words known by their sum."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.errors import MeasurementError, Skip
from microbench.gpu.context import check
from microbench.gpu.graphs.base import Case
from microbench.gpu.links.patterns import LEGACY_STREAM_HANDLE, Patterns
from microbench.gpu.memory_api import Pass, Space
from microbench.gpu.stamps import NANOSECOND_S, STAMPS, require_an_sm_each
from microbench.gpu.submit import Parameters, launch
from microbench.ops import LEGACY_STREAM, Launch
from microbench.units import size

BLOCK_THREADS = 1024
VECTOR_BYTES = 16
TILE_VECTORS = BLOCK_THREADS
SET_TILE_BYTES = TILE_VECTORS * VECTOR_BYTES
# round_the_set has four tiles under way.
TILES_AHEAD = 4
# A set so many times larger than an SM's cache goes past it.
PASSED_BY = 2
SEED = 5
MOST_VECTORS = 1 << 31
Words = npt.NDArray[np.uint32]


def read_sums(prefix: Words, starts: npt.NDArray[np.int64], count: int) -> Words:
    """The sum of ``count`` tiles from each start on and round the set, modulo 2**32.

    ``prefix`` has the sums of the first 0 … n tiles, shape (n + 1,).
    """
    tiles = len(prefix) - 1
    rounds, rest = divmod(count, tiles)
    ends = starts + rest
    sums = prefix[np.minimum(ends, tiles)].astype(np.uint64) - prefix[starts]
    sums += prefix[np.maximum(ends - tiles, 0)] + np.uint64(rounds % (1 << 32)) * np.uint64(prefix[-1])
    return sums.astype(np.uint32)


class CudaLevel:
    """See Level of memory_api.py: one block of 1024 threads on each SM."""

    tile_bytes = SET_TILE_BYTES * TILES_AHEAD

    def __init__(self, case: Case, space: Space, footprint_bytes: int) -> None:
        self._context = case.context
        self.sms = case.context.attribute("MULTIPROCESSOR_COUNT")
        tiles = footprint_bytes // SET_TILE_BYTES
        if not 0 < tiles * TILE_VECTORS < MOST_VECTORS:
            raise Skip(f"a set of {size(footprint_bytes)} is not one of 16 KiB to 32 GiB")
        # What an SM has for shared memory it has for its cache where no kernel asks for any.
        self.cache_bytes = case.context.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
        shared_bytes = self._shared_bytes(space, tiles)
        warm = tiles if footprint_bytes <= PASSED_BY * self.cache_bytes else 0
        warm = -(-warm // TILES_AHEAD) * TILES_AHEAD
        kernel = "read_shared" if space == "shared" else "read_cached" if warm else "read_past_l1"
        function = case.modules.function("memory_levels", kernel)
        self._carve(function, shared_bytes)
        self._fill(case, tiles)
        self._warm, self._tiles = warm, tiles
        self._starts = np.arange(self.sms, dtype=np.int64) * tiles // self.sms
        self._out = case.context.device_memory(STAMPS.itemsize * self.sms)
        self._row = Parameters([(self._base, tiles * TILE_VECTORS, warm, 0, 0, self._out)])
        shape = Launch(grid_blocks=self.sms, block_threads=BLOCK_THREADS)
        self._submit = launch(function, shape, case.stream(0), self._row, shared_bytes=shared_bytes)
        self._count_and_first = np.zeros(2, dtype=np.uint64)
        for argument in (0, 1):
            self._row.point(3 + argument, self._count_and_first.ctypes.data + 8 * argument)

    def _shared_bytes(self, space: Space, tiles: int) -> int:
        if space != "shared":
            return 0
        most = self._context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - 1024
        if tiles * SET_TILE_BYTES > most:
            raise Skip(f"a block has {size(most)} of shared memory here, not {size(tiles * SET_TILE_BYTES)}")
        return tiles * SET_TILE_BYTES

    def _carve(self, function: int, shared_bytes: int) -> None:
        """As much of the SM's memory for its cache as the kernel's shared memory leaves."""
        attributes = driver.CUfunction_attribute
        carve_out = attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        check(driver.cuFuncSetAttribute(function, carve_out, 100 if shared_bytes else 0))
        if shared_bytes:
            most = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(function, most, shared_bytes))

    def _fill(self, case: Case, tiles: int) -> None:
        self._base = case.context.device_memory(tiles * SET_TILE_BYTES)
        Patterns(case.context, case.modules).fill(self._base, tiles * SET_TILE_BYTES, SEED)
        sums = case.context.device_memory(4 * tiles)
        shape = Launch(grid_blocks=tiles, block_threads=256, stream=LEGACY_STREAM)
        function = case.modules.function("memory_levels", "tile_sums")
        launch(function, shape, LEGACY_STREAM_HANDLE, Parameters([(SEED, TILE_VECTORS, sums)]))(1)
        case.context.synchronize()
        each: Words = case.context.read(sums, tiles, np.uint32)
        self._prefix: Words = np.concatenate((np.zeros(1, np.uint32), np.cumsum(each, dtype=np.uint32)))

    def take(self, bytes_per_sm: int) -> Pass:
        """See Level."""
        count, rest = divmod(bytes_per_sm, SET_TILE_BYTES)
        if rest or count % TILES_AHEAD:
            raise MeasurementError(f"{bytes_per_sm} B are no multiple of {self.tile_bytes} B")
        self._count_and_first[0] = count
        first = int(self._count_and_first[1])
        self._context.clear(self._out, STAMPS.itemsize * self.sms)
        self._submit(1)
        self._context.synchronize()
        stamps = self._context.read(self._out, self.sms, STAMPS)
        # The next launch begins half way between the places where this one ended: what lies there left the L2 long ago.
        self._count_and_first[1] = (first + self._warm + count + self._tiles // (2 * self.sms)) % self._tiles
        starts = (self._starts + first) % self._tiles
        if not np.array_equal(stamps["sum"], read_sums(self._prefix, starts, self._warm + count)):
            raise MeasurementError("the sum over all words read is not that of the set")
        require_an_sm_each(stamps)
        elapsed_ns = int(stamps["end_ns"].max()) - int(stamps["begin_ns"].min())
        # SMs that are done early leave more to the others: what counts is the time of all, in cycles of the SMs' clock.
        per_ns = float(np.median(stamps["cycles"] / (stamps["end_ns"] - stamps["begin_ns"])))
        return Pass(elapsed_ns * NANOSECOND_S, elapsed_ns * per_ns)
