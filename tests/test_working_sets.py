"""Working sets without a GPU: bytes read by a launch, the cost of stamps, modes of near and far lines."""

import numpy as np
import pytest
from host_case import HostCase

from microbench.analysis.stats import summarize
from microbench.benchmarks.memory.memory_latency import line_latencies, two_modes
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact, Measurement, Metric
from microbench.core.ops import IntArray
from microbench.experiments.memory import fills, shared
from microbench.experiments.memory.chase import (
    LINE_BYTES,
    LOADS,
    MOST_LINES,
    WARPS,
    LocalChase,
    chase_latency,
    load_rate,
    ring,
)
from microbench.experiments.memory.fills import Filling
from microbench.experiments.memory.levels import SAMPLE_S, Duration, Level, level_rate, read_sums
from microbench.gpu.cuda.context import compile_cubin, kernel_source
from microbench.gpu.cuda.timing import STAMPS
from microbench.meter.sampling import SamplingLimits
from microbench.meter.timer import Meter

RANDOM = np.random.default_rng(3)


class Clock:
    def __init__(self) -> None:
        self.at_ns = 0

    def now_ns(self) -> int:
        self.at_ns += 1_000_000
        return self.at_ns


def meter() -> Meter:
    return Meter(Clock(), limits=SamplingLimits(seconds=0.05))


class SteadyLevel(Level):
    """16 SMs at 2 GHz, with a %globaltimer that moves in steps; ``asked`` are the bytes of each SM in each launch."""

    sms = 16
    tile_bytes = 4096

    def __init__(self, bytes_per_clock: float = 10, step_s: float = 1e-12) -> None:
        self.asked: list[int] = []
        self._bytes_per_clock, self._step_s = bytes_per_clock, step_s

    def _take(self, tiles: int) -> Duration:
        self.asked.append(tiles * self.tile_bytes)
        cycles = self.asked[-1] / self._bytes_per_clock
        return Duration(int(cycles / 2e9 / self._step_s) * self._step_s, cycles)


def test_a_launch_is_long_enough_and_rates_follow() -> None:
    level = SteadyLevel()
    total, per_sm = level_rate(meter(), level, 1 << 20, "l2")
    assert level.asked[-1] / 10 / 2e9 == pytest.approx(SAMPLE_S, rel=0.01)
    rate = summarize(Metric("bandwidth", "rate", "B/s", ""), total)
    assert rate.interval.median == pytest.approx(16 * 10 * 2e9)
    per_clock = summarize(Metric("per_clock", "rate", "B/clk/SM", ""), per_sm)
    assert per_clock.interval.median == pytest.approx(10)
    assert (total.bound, per_sm.bound) == ("l2", "l2_per_clock")
    assert total.verified


def test_all_sms_together_go_through_a_large_set_at_least_once() -> None:
    level = SteadyLevel()
    bounds = [rate.bound for rate in level_rate(meter(), level, 1 << 30, "dram")]
    assert bounds == ["dram", None]
    assert level.asked[-1] * level.sms >= 1 << 30


class SteadyChase(LocalChase):
    """Reads of 105 cycles at 2 GHz on average; a stamp adds 40 to each, every tenth takes 50 longer."""

    lines = 1000

    def __init__(self, cycles: float = 105, step_s: float = 1e-12) -> None:
        self.walked: list[int] = []
        self._cycles, self._step_s = cycles, step_s

    def walk(self, reads: int) -> Duration:
        self.walked.append(reads)
        cycles = reads * self._cycles
        return Duration(int(cycles / 2e9 / self._step_s) * self._step_s, cycles)

    def each_cycles(self, reads: int) -> IntArray:
        cycles = np.full(reads, 140, dtype=np.int64)
        cycles[::10] += 50
        return cycles

    def lines_cycles(self, repeats: int) -> IntArray:
        cycles = np.concatenate((RANDOM.normal(200, 3, 500), RANDOM.normal(240, 3, 500)))
        return np.tile(np.round(cycles).astype(np.int64), (repeats, 1))


def test_the_cost_of_stamps_is_subtracted_from_single_reads() -> None:
    chase = SteadyChase()
    latency, cycles = chase_latency(meter(), chase)
    assert chase.walked[0] == chase.lines  # once round before anything counts
    assert summarize(Metric("latency", "time", "s", ""), latency).interval.median == pytest.approx(105 / 2e9)
    assert summarize(Metric("cycles", "time", "cycle", ""), cycles).interval.median == pytest.approx(105)
    assert latency.per_call.p50 == pytest.approx(100 / 2e9)
    assert latency.per_call.p99 == pytest.approx(150 / 2e9)


def test_walks_take_long_enough_for_a_coarse_clock() -> None:
    chase = SteadyChase(20, step_s=1e-6)
    latency, cycles = chase_latency(meter(), chase)
    assert chase.walked[-1] * 10e-9 >= 200e-6
    assert summarize(Metric("latency", "time", "s", ""), latency).interval.median == pytest.approx(10e-9, rel=0.005)
    assert summarize(Metric("cycles", "time", "cycle", ""), cycles).interval.median == pytest.approx(20)


def test_the_first_launch_is_long_enough_for_a_coarse_clock() -> None:
    level = SteadyLevel(128, step_s=1e-6)
    list(level_rate(meter(), level, 1 << 14, "l1"))
    assert 0.5 * SAMPLE_S < level.asked[-1] / 128 / 2e9 < 2 * SAMPLE_S


def test_two_modes_are_separated_and_one_is_not_split() -> None:
    apart = two_modes(np.concatenate((RANDOM.normal(200, 3, 300), RANDOM.normal(240, 3, 700))))
    assert (apart.near, apart.far) == (pytest.approx(200, abs=1), pytest.approx(240, abs=1))
    assert apart.near_share == pytest.approx(0.3, abs=0.01)
    assert two_modes(RANDOM.normal(200, 10, 1000)) is None
    assert two_modes(RANDOM.uniform(100, 200, 1000)) is None
    assert two_modes(np.array([1.0, 2.0])) is None
    few_far = np.concatenate((RANDOM.normal(200, 3, 990), RANDOM.normal(900, 3, 10)))
    assert two_modes(few_far) is None  # a handful is no mode


def test_lines_come_with_their_modes() -> None:
    yielded = list(line_latencies(SteadyChase()))
    facts = {item.name: item.value for item in yielded if isinstance(item, Fact)}
    assert facts["l2_modes"] == 2
    assert facts["l2_near"] == pytest.approx(105 - 20, abs=1)  # their mean is that of a walk
    measured = next(item for item in yielded if isinstance(item, Measurement))
    assert measured.n == 11
    assert np.mean(measured.values) == pytest.approx(105)
    assert measured.per_call.n == 1000


@pytest.mark.parametrize("count", [0, 1, 5, 16, 17, 64, 1000])
def test_sums_equal_those_of_reading_tile_by_tile(count: int) -> None:
    tiles = RANDOM.integers(0, 1 << 32, 16, dtype=np.uint32)
    prefix = np.concatenate((np.zeros(1, np.uint32), np.cumsum(tiles, dtype=np.uint32)))
    starts = np.array([0, 3, 15], dtype=np.int64)
    wanted = [sum(int(tiles[(start + k) % 16]) for k in range(count)) % (1 << 32) for start in starts]
    assert read_sums(prefix, starts, count).tolist() == wanted


def load(rows: int, blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Records of warps that read different numbers of batches in 2 us, of the walk, and the sums of the set."""
    tiles = RANDOM.integers(0, 1 << 32, (blocks, rows, WARPS), dtype=np.uint32)
    loads, walked = np.zeros((blocks, WARPS), dtype=LOADS), np.zeros((), dtype=STAMPS)
    walked["begin_ns"], walked["end_ns"], walked["sm"] = 1_000_000, 1_001_000, blocks
    for block in range(blocks):
        for warp in range(WARPS):
            batches = 3 * block + warp
            read = [int(tiles[block, k % rows, warp]) for k in range(batches)]
            loads[block, warp] = (999_500, 1_001_500, batches, block, sum(read) % (1 << 32))
    prefix = np.zeros((blocks, rows + 1, WARPS), dtype=np.uint32)
    np.cumsum(tiles, axis=1, dtype=np.uint32, out=prefix[:, 1:])
    return loads, walked, prefix


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (7, 3), (40, 5)])
def test_a_load_is_counted_by_each_warps_own_time(rows: int, blocks: int) -> None:
    loads, walked, prefix = load(rows, blocks)
    batches = sum(3 * block + warp for block in range(blocks) for warp in range(WARPS))
    assert load_rate(loads, walked[()], prefix) == pytest.approx(batches * 4 * 32 * 16 / 2e-6)


@pytest.mark.parametrize(("field", "value", "words"), [
    ("begin_ns", 1_000_001, "during the whole walk"), ("end_ns", 1_000_999, "during the whole walk"),
    ("sm", 0, "shared an SM"), ("sm", 3, "shared an SM"), ("sum", 1, "not that of their set"),
    ("batches", 12, "not that of their set"),
])  # fmt: skip
def test_a_load_that_paused_or_read_something_else_is_an_error(field: str, value: int, words: str) -> None:
    loads, walked, prefix = load(7, 3)
    loads[1][field][slice(None) if field == "sm" else slice(5, 6)] = value
    with pytest.raises(MeasurementError, match=words):
        load_rate(loads, walked[()], prefix)


@pytest.mark.parametrize("footprint_bytes", [256, 1000, 1 << 20, 3 << 20, 1 << 34])
def test_a_ring_has_each_line_once_and_inside(footprint_bytes: int) -> None:
    offsets = ring(footprint_bytes)
    assert len(offsets) == min(footprint_bytes // LINE_BYTES, MOST_LINES)
    ordered = np.sort(offsets)
    assert (np.diff(ordered) > 0).all(), "each line once"
    assert (offsets % LINE_BYTES == 0).all()
    assert int(ordered[-1]) + LINE_BYTES <= footprint_bytes
    pieces = ordered // LINE_BYTES * len(offsets) // (footprint_bytes // LINE_BYTES)
    assert np.abs(pieces.astype(np.int64) - np.arange(len(offsets))).max() <= 1  # spread evenly, to the end


def test_a_set_without_two_lines_is_a_skip() -> None:
    with pytest.raises(Skip, match="two lines"):
        ring(255)


def added_up(way: Filling, piece_bytes: int, rows: IntArray, total: int, blocks: int) -> int:
    """What kernels/memory_bulk.cu adds up, warp by warp."""
    part_bytes = min(piece_bytes, fills.MOST_PART_BYTES[way])
    part_rows, parts, warps = part_bytes // 512, piece_bytes // part_bytes, fills.WARPS[way]
    pieces, seen, sum_of_rows = len(rows) * 512 // piece_bytes, 0, 0
    for block in range(blocks):
        for warp in range(warps):
            for at in range(block + warp // parts * blocks, total, blocks * (warps // parts)):
                piece, turn, part = at % pieces, at // pieces, warp % parts
                number = piece * parts + part
                sum_of_rows += int(rows[number * part_rows + (number + turn) % part_rows])
                seen += part_bytes
    assert seen == total * piece_bytes
    return sum_of_rows % (1 << 32)


@pytest.mark.parametrize("total", [1, 40, 333])
@pytest.mark.parametrize("piece_bytes", [512, 1024, 4096, 32768])
@pytest.mark.parametrize("way", fills.WAYS)
def test_the_sum_over_copied_rows_is_known(way: Filling, piece_bytes: int, total: int) -> None:
    rows = RANDOM.integers(0, 1 << 32, 37 * piece_bytes // 512, dtype=np.uint32)
    sums = fills.prefix_sums(way, piece_bytes, rows)
    assert fills.expected_sum(sums, total) == added_up(way, piece_bytes, rows.astype(np.int64), total, blocks=3)
    rows[0] += 1
    assert fills.expected_sum(fills.prefix_sums(way, piece_bytes, rows), 37 * 64) != fills.expected_sum(sums, 37 * 64)


@pytest.mark.parametrize(("way", "architecture"), [
    *((way, "90") for way in fills.WAYS),
    *(pytest.param(*other, marks=pytest.mark.slow) for other in (("load", "75"), ("async", "80"), ("bulk", "120"))),
])  # fmt: skip
@pytest.mark.parametrize("piece_bytes", [512, 2048, 32768])
def test_every_way_of_filling_compiles(way: Filling, architecture: str, piece_bytes: int) -> None:
    defines = {"WAY": fills.WAYS.index(way), "PIECE": piece_bytes}
    assert compile_cubin("memory_bulk", architecture, defines).startswith(b"\x7fELF")


def test_the_kernel_has_the_same_warps_and_rings() -> None:
    source = kernel_source("memory_bulk")
    for name, values in (("WARPS", fills.WARPS), ("OWN", fills.OWN_BYTES)):
        load, by_async, by_bulk = values.values()
        assert f"{name} = WAY == 0 ? {load} : WAY == 1 ? {by_async} : {by_bulk}" in source
    load, by_async, by_bulk = fills.MOST_PART_BYTES.values()
    assert load == by_async
    assert f"MOST = WAY == 2 ? {by_bulk} : {load}" in source
    assert fills.shared_bytes("load") == fills.shared_bytes("async") == 64 << 10
    assert fills.shared_bytes("bulk") == (128 << 10) + 2048


def test_ways_and_pieces_that_do_not_exist_are_skipped() -> None:
    with pytest.raises(Skip, match=r"cp\.async\.bulk needs compute capability 9\.0; this GPU has 8\.6"):
        fills.FilledPieces(HostCase((8, 6)), "bulk", 4096, 1 << 24)
    for piece_bytes in (256, 3000, 65536):
        with pytest.raises(Skip, match="powers of two from 512 B to 32 KiB"):
            fills.FilledPieces(HostCase(), "bulk", piece_bytes, 1 << 24)
    with pytest.raises(Skip, match="hold 1 pieces of 32 KiB for 2 SMs"):
        fills.FilledPieces(HostCase(), "bulk", 32768, 32768)


@pytest.mark.parametrize(("blocks", "passes"), [(2, 1), (2, 9), (4, 1), (4, 8), (8, 20), (16, 15)])
def test_the_sums_of_a_clusters_blocks_are_known(blocks: int, passes: int) -> None:
    each = RANDOM.integers(0, 1 << 32, 3 * blocks, dtype=np.uint32)
    wanted = np.zeros(3 * blocks, dtype=np.int64)
    for block in range(3 * blocks):  # as kernels/memory_levels.cu goes round
        peer = rank = block % blocks
        for _ in range(passes):
            peer = peer + 1 if peer + 1 < blocks else 0
            if peer == rank:
                peer = peer + 1 if peer + 1 < blocks else 0
            wanted[block] += int(each[block - rank + peer])
    np.testing.assert_array_equal(shared.cluster_sums(each, blocks, passes), (wanted % (1 << 32)).astype(np.uint32))


def test_clusters_that_do_not_exist_are_skipped() -> None:
    for make in (shared.ReadCluster, shared.ClusterChase):
        with pytest.raises(Skip, match=r"a cluster needs compute capability 9\.0; this GPU has 8\.9"):
            make(HostCase((8, 9)), 2)


def test_the_kernel_reads_as_much_of_each_block() -> None:
    source = kernel_source("memory_levels")
    assert f"ahead = 4, vectors = {shared.CLUSTER_VECTORS}, words = vectors * 4" in source
    assert shared.CLUSTER_VECTORS * 16 == shared.CLUSTER_BYTES == 4 * 16 * shared.levels.BLOCK_THREADS
