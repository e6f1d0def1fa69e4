"""Dependent reads across a link: lines of host memory, or of another GPU's, that hold the address of the next line."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda.buffers import HostBuffer
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.submit import Parameters, launch
from microbench.gpu.protocol.links import Order

WORD_BYTES = 8
SEED = 20240229
Lines = npt.NDArray[np.int64]


def host_chase(case: Case, footprint_bytes: int, stride_bytes: int, order: Order) -> CudaChase:
    """A walk through pinned host memory."""
    visits = order_of_lines(footprint_bytes, stride_bytes, order)
    buffer = HostBuffer(case, "pinned", footprint_bytes)
    base = buffer.device_address or buffer.address
    # In place: the room for a second buffer of that size has not been checked.
    chain(words_at(buffer.address, len(visits) * stride_bytes), visits, base, stride_bytes)
    return CudaChase(case, visits, base, stride_bytes)


class CudaChase:
    """A Chase in stream 0. The context of the walking GPU must be current when a method is called."""

    def __init__(self, case: Case, visits: Lines, base: int, stride_bytes: int) -> None:
        self._case = case
        self._visits = visits
        self._base = base
        self._stride_bytes = stride_bytes
        self._at = 0
        self.blocks = case.sms
        self._place = case.device_memory(WORD_BYTES)
        self._out = case.device_memory(WORD_BYTES * (self.blocks + 1))
        case.upload(self._place, np.array([base + int(visits[0]) * stride_bytes], dtype=np.uint64))
        self._walk = case.function("link", "walk")
        self._walk_stamped = case.function("link", "walk_stamped")

    def walks_ns(self, reads: int) -> IntArray:
        self._case.clear(self._out, WORD_BYTES * self.blocks)
        shape = Launch(grid_blocks=self.blocks, block_threads=1)
        rows = Parameters([(self._place, reads, target, self._out) for target in range(self.blocks)])
        launch(self._case, self._walk, shape, rows)(self.blocks)
        self._case.synchronize()
        self._arrive(reads * self.blocks)
        return self._case.read(self._out, self.blocks, np.int64)

    def each_ns(self, reads: int) -> IntArray:
        """Converts SM cycles to ns by the ratio of both clocks over the whole walk."""
        cycles = self._case.device_memory(4 * reads)
        row = (self._place, reads, cycles, self._out, self._out + WORD_BYTES)
        launch(self._case, self._walk_stamped, Launch(block_threads=1), Parameters([row]))(1)
        self._case.synchronize()
        self._arrive(reads)
        total_ns, total_cycles = self._case.read(self._out, 2, np.int64)
        each = self._case.read(cycles, reads, np.uint32).astype(np.float64)
        return np.round(each * (int(total_ns) / int(total_cycles))).astype(np.int64)

    def _arrive(self, reads: int) -> None:
        """Raise MeasurementError unless the walk ended at the expected line."""
        self._at = (self._at + reads) % len(self._visits)
        wanted = self._base + int(self._visits[self._at]) * self._stride_bytes
        place = int(self._case.read(self._place, 1, np.uint64)[0])
        if place != wanted:
            raise MeasurementError(f"the walk ended at {place:#x} where {wanted:#x} should be")


def order_of_lines(footprint_bytes: int, stride_bytes: int, order: Order) -> Lines:
    """The order in which the whole lines of a footprint are visited, each once. Raises Skip if there is none."""
    if footprint_bytes < stride_bytes:
        raise Skip(f"{footprint_bytes} B hold no line of {stride_bytes} B to walk through")
    lines = np.arange(footprint_bytes // stride_bytes, dtype=np.int64)
    return lines if order == "sequential" else np.random.default_rng(SEED).permutation(lines)


def chain(words: npt.NDArray[np.uint64], visits: Lines, base: int, stride_bytes: int) -> None:
    """Write the address of the next line to the first word of each line; ``words`` are the memory at ``base``."""
    words[visits * (stride_bytes // WORD_BYTES)] = (base + np.roll(visits, -1) * stride_bytes).astype(np.uint64)


def words_at(address: int, size_bytes: int) -> npt.NDArray[np.uint64]:
    """Existing memory as 64-bit words."""
    return np.frombuffer(memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B"), dtype=np.uint64)
