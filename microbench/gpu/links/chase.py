"""Dependent reads: lines of host memory, or of another GPU's, that each hold the address of the next one."""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.errors import MeasurementError, Skip
from microbench.gpu.api import IntArray
from microbench.gpu.context import Context, check
from microbench.gpu.link_api import Order
from microbench.gpu.links.memory import HostBuffer
from microbench.gpu.modules import Modules
from microbench.gpu.submit import Parameters, launch
from microbench.ops import Launch

WORD_BYTES = 8
SEED = 20240229
Lines = npt.NDArray[np.int64]


def order_of_lines(footprint_bytes: int, stride_bytes: int, order: Order) -> Lines:
    """In which order the whole lines of a footprint are visited: each once before any again. Raises Skip for none."""
    if footprint_bytes < stride_bytes:
        raise Skip(f"{footprint_bytes} B hold no line of {stride_bytes} B to walk through")
    lines = np.arange(footprint_bytes // stride_bytes, dtype=np.int64)
    return lines if order == "sequential" else np.random.default_rng(SEED).permutation(lines)


def chain(words: npt.NDArray[np.uint64], visits: Lines, base: int, stride_bytes: int) -> None:
    """Make the first word of each line the address of the line after it, for a walk of ``words`` at ``base``."""
    words[visits * (stride_bytes // WORD_BYTES)] = (base + np.roll(visits, -1) * stride_bytes).astype(np.uint64)


def words_at(address: int, size_bytes: int) -> npt.NDArray[np.uint64]:
    """The words of memory that is there."""
    return np.frombuffer(memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B"), dtype=np.uint64)


class CudaChase:
    """See Chase of link_api.py. The walking GPU's context must be current when its methods are called."""

    def __init__(
        self, context: Context, modules: Modules, stream: int, visits: Lines, base: int, stride_bytes: int
    ) -> None:
        self._context = context
        self._visits = visits
        self._base = base
        self._stride_bytes = stride_bytes
        self._at = 0
        self.blocks = context.attribute("MULTIPROCESSOR_COUNT")
        self._place = context.device_memory(WORD_BYTES)
        self._out = context.device_memory(WORD_BYTES * (self.blocks + 1))
        start = np.array([base + int(visits[0]) * stride_bytes], dtype=np.uint64)
        check(driver.cuMemcpyHtoD(self._place, start.ctypes.data, start.nbytes))
        self._launch = partial(launch, stream=stream)
        self._walk = modules.function("link", "walk")
        self._walk_stamped = modules.function("link", "walk_stamped")

    def walks_ns(self, reads: int) -> IntArray:
        """See Chase."""
        self._context.clear(self._out, WORD_BYTES * self.blocks)
        shape = Launch(grid_blocks=self.blocks, block_threads=1)
        rows = Parameters([(self._place, reads, target, self._out) for target in range(self.blocks)])
        self._launch(self._walk, shape, parameters=rows)(self.blocks)
        self._context.synchronize()
        self._arrive(reads * self.blocks)
        return self._context.read(self._out, self.blocks, np.int64)

    def each_ns(self, reads: int) -> IntArray:
        """See Chase. The SM's cycles become ns by what both count over the whole walk."""
        cycles = self._context.device_memory(4 * reads)
        totals = self._out
        row = (self._place, reads, cycles, totals, totals + WORD_BYTES)
        self._launch(self._walk_stamped, Launch(block_threads=1), parameters=Parameters([row]))(1)
        self._context.synchronize()
        self._arrive(reads)
        total_ns, total_cycles = self._context.read(totals, 2, np.int64)
        each = self._context.read(cycles, reads, np.uint32).astype(np.float64)
        return np.round(each * (int(total_ns) / int(total_cycles))).astype(np.int64)

    def _arrive(self, reads: int) -> None:
        """Raise MeasurementError unless the walk has come as far as its reads lead."""
        self._at = (self._at + reads) % len(self._visits)
        wanted = self._base + int(self._visits[self._at]) * self._stride_bytes
        found = int(self._context.read(self._place, 1, np.uint64)[0])
        if found != wanted:
            raise MeasurementError(f"the walk ended at {found:#x} where {wanted:#x} should be")


def host_chase(
    context: Context, modules: Modules, stream: int, footprint_bytes: int, stride_bytes: int, order: Order
) -> CudaChase:
    """A walk through pinned host memory."""
    visits = order_of_lines(footprint_bytes, stride_bytes, order)
    buffer = HostBuffer(context, "pinned", footprint_bytes)
    base = buffer.device_address or buffer.address
    # In place: another buffer of that size would be memory that nobody has asked room for.
    chain(words_at(buffer.address, len(visits) * stride_bytes), visits, base, stride_bytes)
    return CudaChase(context, modules, stream, visits, base, stride_bytes)
