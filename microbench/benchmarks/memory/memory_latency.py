"""How long does one dependent read take from each level?

Question
    How long does a load take whose result the next load needs: from shared memory, L1, L2 and DRAM, with and without a
    TLB miss?
Method
    Each line of a set holds the address of the next one, in random order; one thread reads all lines before it reads
    one again. Both clocks (clock64 and %globaltimer) are read at the first and the last read. A set that fits the SM's
    own cache is read once before. One SM also reads each line of sets in the L2 several times, past the L1: lines in
    the near part of the L2 answer sooner than those in the far part.
Reading
    A step up is the next level, or the end of a TLB's reach: large sets spread the same number of lines over more
    pages. At another SM clock a load from shared memory or a cache takes the same number of cycles, but another number
    of nanoseconds.
"""

from collections.abc import Iterator, Mapping

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric, Param
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.memory import Space
from microbench.meter.memory import answering_level, chase_latency, line_latencies
from microbench.meter.timer import Meter

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SHARED_BYTES = (16 * KIB, 32 * KIB)
# Single lines are timed where the set is surely larger than an L1 and has few lines.
LINES_FROM_BYTES, LINES_TO_BYTES = 4 * MIB, 16 * MIB


def combines(params: Mapping[str, Param]) -> bool:
    """Shared memory is measured at SHARED_BYTES only, because it is equally fast at every size."""
    return params["space"] == "global" or params["footprint_bytes"] in SHARED_BYTES


def measure(gpu: Gpu, meter: Meter, space: Space, footprint_bytes: int) -> Iterator[Measured]:
    chase = gpu.memory.chase(space, footprint_bytes)
    yield from chase_latency(meter, chase)
    in_l2 = answering_level(gpu, footprint_bytes) == "l2"
    if space == "global" and in_l2 and LINES_FROM_BYTES <= footprint_bytes <= LINES_TO_BYTES:
        yield from line_latencies(chase)


BENCHMARK = Benchmark(
    title="Latency of each level",
    metrics=(
        Metric("latency", "time", "s", "one dependent read; percentiles of single reads, less the cost of stamps"),
        Metric("cycles", "time", "cycle", "one dependent read in clock cycles of the SM"),
        Metric("line_cycles", "time", "cycle", "one line of a set in the L2, read past the L1: mean over all lines"),
    ),
    measure=measure,
    axes={
        "space": Axis.same("memory that holds the lines", ("shared", "global")),
        "footprint_bytes": Axis(
            "bytes over which the lines are spread",
            (16 * KIB, 8 * MIB, 256 * MIB),
            (
                16 * KIB, 64 * KIB, 128 * KIB, 192 * KIB, 256 * KIB, 512 * KIB, MIB, 4 * MIB, 8 * MIB, 16 * MIB,
                24 * MIB, 32 * MIB, 48 * MIB, 64 * MIB, 128 * MIB, 256 * MIB, GIB, 4 * GIB, 16 * GIB,
            ),
            (
                16 * KIB, 32 * KIB, 64 * KIB, 96 * KIB, 128 * KIB, 160 * KIB, 192 * KIB, 224 * KIB, 256 * KIB,
                384 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 6 * MIB, 8 * MIB, 12 * MIB, 16 * MIB, 20 * MIB, 24 * MIB,
                28 * MIB, 32 * MIB, 40 * MIB, 48 * MIB, 64 * MIB, 96 * MIB, 128 * MIB, 256 * MIB, 512 * MIB, GIB,
                2 * GIB, 4 * GIB, 8 * GIB, 16 * GIB, 32 * GIB, 64 * GIB,
            ),
            minimum=KIB,
            maximum=256 * GIB,
        ),
    },
    combines=combines,
    core=True,
)  # fmt: skip
