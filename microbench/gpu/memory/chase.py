"""Dependent reads by one thread: a ring of lines in device memory, or in an SM's shared memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.errors import MeasurementError, Skip
from microbench.gpu.bound import IntArray
from microbench.gpu.context import check
from microbench.gpu.graphs.base import Case
from microbench.gpu.links.patterns import LEGACY_STREAM_HANDLE
from microbench.gpu.memory_api import Space, Walk
from microbench.gpu.submit import Parameters, launch
from microbench.ops import LEGACY_STREAM, Launch
from microbench.units import size

LINE_BYTES = 128
WORD_BYTES = 8
MOST_LINES = 1 << 21
SEED = 20261121
NANOSECOND_S = 1e-9
Offsets = npt.NDArray[np.uint64]


def ring(footprint_bytes: int) -> Offsets:
    """Offsets of lines in the order of the walk, shape (lines,): one line somewhere in each equal piece of the set.

    Raises Skip for a set of fewer than two lines.
    """
    lines = min(footprint_bytes // LINE_BYTES, MOST_LINES)
    if lines < 2:
        raise Skip(f"{footprint_bytes} B hold no two lines of {LINE_BYTES} B")
    random = np.random.default_rng(SEED)
    all_lines = footprint_bytes // LINE_BYTES
    piece_lines = all_lines // lines
    places = np.arange(lines, dtype=np.uint64) * np.uint64(all_lines) // np.uint64(lines)
    if piece_lines > 1:  # lines at equal distances would share few channels and few sets of a cache
        places += random.integers(0, piece_lines, lines, dtype=np.uint64)
    order: Offsets = random.permutation(places * np.uint64(LINE_BYTES))
    return order


class CudaLocalChase:
    """See LocalChase of memory_api.py."""

    def __init__(self, case: Case, space: Space, footprint_bytes: int) -> None:
        self._context = case.context
        self._modules = case.modules
        self._stream = case.stream(0)
        self._shared = space == "shared"
        self._offsets = ring(footprint_bytes)
        self.lines = len(self._offsets)
        own_bytes = case.context.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
        # Once round before the clocks where the SM can hold the set: its cache is empty when a kernel begins.
        self._warm = self.lines if self._shared or footprint_bytes <= 2 * own_bytes else 0
        self._at = 0
        self._place = case.context.device_memory(WORD_BYTES)
        self._out = case.context.device_memory(2 * WORD_BYTES)
        self._extra: tuple[int, ...] = ()
        self._base = self._in_shared(footprint_bytes) if self._shared else self._in_memory(footprint_bytes)
        self._go_to(0)

    def _in_memory(self, footprint_bytes: int) -> int:
        base = self._context.device_memory(footprint_bytes)
        offsets = self._upload(self._offsets)
        shape = Launch(grid_blocks=256, block_threads=256, stream=LEGACY_STREAM)
        function = self._modules.function("memory_levels", "link_lines")
        launch(function, shape, LEGACY_STREAM_HANDLE, Parameters([(base, offsets, self.lines)]))(1)
        self._context.synchronize()
        return base

    def _in_shared(self, footprint_bytes: int) -> int:
        most = self._context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        if footprint_bytes > most:
            raise Skip(f"a block has {size(most)} of shared memory here, not {size(footprint_bytes)}")
        successor = np.empty(self.lines, dtype=np.uint32)
        lines = (self._offsets // LINE_BYTES).astype(np.uint32)
        successor[lines] = np.roll(lines, -1)
        self._extra = (self._upload(successor), self.lines)
        self._shared_bytes = footprint_bytes
        return 0

    def _upload(self, values: npt.NDArray[np.uint64] | npt.NDArray[np.uint32]) -> int:
        address = self._context.device_memory(values.nbytes)
        check(driver.cuMemcpyHtoD(address, values.ctypes.data, values.nbytes))
        return address

    def walk(self, reads: int) -> Walk:
        """See LocalChase."""
        self._run("walk_shared" if self._shared else "walk_cached", self._warm, reads, self._out)
        elapsed_ns, cycles = self._context.read(self._out, 2, np.int64)
        return Walk(int(elapsed_ns) * NANOSECOND_S, float(cycles))

    def each_cycles(self, reads: int) -> IntArray:
        """See LocalChase."""
        kernel = "walk_shared_stamped" if self._shared else "walk_cached_stamped"
        return self._stamped(kernel, self._warm, reads)

    def lines_cycles(self, repeats: int) -> IntArray:
        """See LocalChase. Once round brings every line into the L2."""
        if self._shared:
            raise Skip("shared memory is not in the L2")
        self._go_to(0)
        return self._stamped("walk_past_l1_stamped", self.lines, self.lines * repeats).reshape(repeats, self.lines)

    def _stamped(self, kernel: str, warm: int, reads: int) -> IntArray:
        cycles = self._context.device_memory(4 * reads)
        self._run(kernel, warm, reads, cycles)
        return self._context.read(cycles, reads, np.uint32).astype(np.int64)

    def _run(self, kernel: str, warm: int, reads: int, out: int) -> None:
        function = self._modules.function("memory_levels", kernel)
        attributes = driver.CUfunction_attribute
        carve_out = attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        check(driver.cuFuncSetAttribute(function, carve_out, 100 if self._shared else 0))
        shared_bytes = self._shared_bytes if self._shared else 0
        if self._shared:
            most = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(function, most, shared_bytes))
        row = Parameters([(self._place, warm, reads, out, *self._extra)])
        launch(function, Launch(block_threads=1), self._stream, row, shared_bytes=shared_bytes)(1)
        self._context.synchronize()
        self._arrive(warm + reads)

    def _go_to(self, index: int) -> None:
        self._at = index
        start = np.array([self._base + int(self._offsets[index])], dtype=np.uint64)
        check(driver.cuMemcpyHtoD(self._place, start.ctypes.data, start.nbytes))

    def _arrive(self, reads: int) -> None:
        """Raise MeasurementError unless the walk has come as far as its reads lead."""
        self._at = (self._at + reads) % self.lines
        wanted = self._base + int(self._offsets[self._at])
        found = int(self._context.read(self._place, 1, np.uint64)[0])
        if found != wanted:
            raise MeasurementError(f"the walk ended at {found:#x} where {wanted:#x} should be")
