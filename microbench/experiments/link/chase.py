"""Dependent reads across a link: lines of host memory, or of another GPU's, that hold the address of the next line."""

import ctypes
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Measurement
from microbench.gpu.cuda.buffers import HostBuffer
from microbench.gpu.experiment import Case, IntArray, Launch, Machine, Parameters, Scoped, experiment, launch
from microbench.gpu.fake.transfers import evenly, require_host_memory
from microbench.gpu.protocol.gpu import FloatArray
from microbench.meter.sampling import NANOSECOND_S, per_call_distribution
from microbench.meter.timer import Meter

Order = Literal["sequential", "random"]

LINE_BYTES, WORD_BYTES = 128, 8
SEED = 20240229
READS, SINGLE_READS = 100, 2000  # of a walk
Lines = npt.NDArray[np.int64]


def line_count(footprint_bytes: int) -> int:
    """How many whole lines a footprint has. Raises Skip if there is none."""
    if footprint_bytes < LINE_BYTES:
        raise Skip(f"{footprint_bytes} B hold no line of {LINE_BYTES} B to walk through")
    return footprint_bytes // LINE_BYTES


def order_of_lines(footprint_bytes: int, order: Order) -> Lines:
    """The order in which the whole lines of a footprint are visited, each once. Raises Skip if there is none."""
    lines = np.arange(line_count(footprint_bytes), dtype=np.int64)
    return lines if order == "sequential" else np.random.default_rng(SEED).permutation(lines)


def chain(words: npt.NDArray[np.uint64], visits: Lines, base: int) -> None:
    """Write the address of the next line to the first word of each line; ``words`` are the memory at ``base``."""
    words[visits * (LINE_BYTES // WORD_BYTES)] = (base + np.roll(visits, -1) * LINE_BYTES).astype(np.uint64)


def words_at(address: int, size_bytes: int) -> npt.NDArray[np.uint64]:
    """Existing memory as 64-bit words."""
    return np.frombuffer(memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B"), dtype=np.uint64)


class Chase:
    """Dependent reads by one thread: each line holds the address of the next. ``blocks`` is the number of SMs.

    It reads in stream 0. The context of the walking GPU must be current when a method is called.
    """

    def __init__(self, case: Case, visits: Lines, base: int) -> None:
        self._case = case
        self._visits = visits
        self._base = base
        self._at = 0
        self.blocks = case.sms
        self._place = case.device_memory(WORD_BYTES)
        self._out = case.device_memory(WORD_BYTES * (self.blocks + 1))
        case.upload(self._place, np.array([base + int(visits[0]) * LINE_BYTES], dtype=np.uint64))
        self._walk = case.function("link", "walk")
        self._walk_stamped = case.function("link", "walk_stamped")

    def walks_ns(self, reads: int) -> IntArray:
        """A walk of ``reads`` reads from each SM in turn while the others are idle: ns per walk, shape (blocks,).

        Timed by the GPU's timer from the first read to the last. A walk continues where the last one ended, so a line
        is read again only after all others. Raises MeasurementError if a walk ends at the wrong line.
        """
        self._case.clear(self._out, WORD_BYTES * self.blocks)
        shape = Launch(grid_blocks=self.blocks, block_threads=1)
        rows = Parameters([(self._place, reads, target, self._out) for target in range(self.blocks)])
        launch(self._case, self._walk, shape, rows)(self.blocks)
        self._case.synchronize()
        self._arrive(reads * self.blocks)
        return self._case.read(self._out, self.blocks, np.int64)

    def each_ns(self, reads: int) -> IntArray:
        """Single reads from one SM, each stamped by the SM's clock: ns, shape (reads,).

        Converts SM cycles to ns by the ratio of both clocks over the whole walk.
        """
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
        wanted = self._base + int(self._visits[self._at]) * LINE_BYTES
        place = int(self._case.read(self._place, 1, np.uint64)[0])
        if place != wanted:
            raise MeasurementError(f"the walk ended at {place:#x} where {wanted:#x} should be")


def _host_chase(case: Case, footprint_bytes: int, order: Order) -> Chase:
    """Dependent reads of pinned host memory, one of each line. Raises Skip for less than a line."""
    visits = order_of_lines(footprint_bytes, order)
    buffer = HostBuffer(case, "pinned", footprint_bytes)
    base = buffer.device_address or buffer.address
    # In place: the room for a second buffer of that size has not been checked.
    chain(words_at(buffer.address, len(visits) * LINE_BYTES), visits, base)
    return Chase(case, visits, base)


class SimulatedChase(Scoped, Chase):
    """Reads of ``read_ns`` each; ``miss_ns`` longer beyond the reach of address translations."""

    def __init__(self, machine: Machine, footprint_bytes: int, read_ns: float, miss_ns: float) -> None:
        line_count(footprint_bytes)
        super().__init__(machine)
        self.blocks = machine.costs.sm_count
        self._footprint_bytes = footprint_bytes
        self._read_ns = read_ns
        self._miss_ns = miss_ns
        self._at = 0

    def walks_ns(self, reads: int) -> IntArray:
        noise = self._machine.noise.device(1.0, self.blocks)
        return self._walked(self._reads_ns(reads * self.blocks).reshape(self.blocks, reads).sum(axis=1) * noise)

    def each_ns(self, reads: int) -> IntArray:
        return self._walked(self._reads_ns(reads) * self._machine.noise.device(1.0, reads))

    def _reads_ns(self, count: int) -> FloatArray:
        beyond_reach = 1 - self._machine.costs.links.translation_reach_bytes / self._footprint_bytes
        missed = evenly(beyond_reach, self._at, count)
        self._at += count
        return self._read_ns + self._miss_ns * missed

    def _walked(self, times_ns: FloatArray) -> IntArray:
        self._open().walk(float(times_ns.sum()), self._at)
        return times_ns.round().astype(np.int64)


def _simulated_host_chase(machine: Machine, footprint_bytes: int, order: Order) -> Chase:
    """In sequential order a page is translated once for many reads, which costs nothing visible."""
    costs = machine.costs
    require_host_memory(costs, "pinned", footprint_bytes)
    miss_ns = costs.links.translation_miss_ns if order == "random" else 0.0
    return SimulatedChase(machine, footprint_bytes, costs.host_read_ns, miss_ns)


host_chase = experiment(_host_chase, _simulated_host_chase)


def read_latency(meter: Meter, chase: Chase) -> Measurement:
    """Metric ``latency`` of one dependent read. A sample is the mean over walks from every SM; percentiles are of
    single reads."""
    chase.walks_ns(READS)

    def take() -> Sequence[float]:
        return (float(chase.walks_ns(READS).sum()) * NANOSECOND_S,)

    return meter.collect(
        "latency",
        take,
        clock="device",
        calls=chase.blocks * READS,
        verified="every walk ended at its line",
        needs_verification=True,
        per_call=lambda: per_call_distribution(chase.each_ns(SINGLE_READS) * NANOSECOND_S),
    )
