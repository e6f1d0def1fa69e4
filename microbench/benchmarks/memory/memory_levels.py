"""How fast is each level: shared memory, L1, L2, DRAM?

Question
    What bandwidth do all SMs together get from a working set of a given size, and at which size does the next level
    take over?
Method
    Every SM reads the same working set again and again, each from its own starting place; with shared memory every SM
    reads its own. The SMs stamp begin and end (%globaltimer and clock64), which excludes the launch and also gives the
    rate in bytes per clock. A set that an SM's own cache can hold is read once before. The sum of all words read is
    compared with that of the set.
Reading
    A plateau is a level; a knee is the size of the level before it. Bytes per clock and SM do not depend on the clock;
    shared memory and L1 can give 128. In sets of a few MiB several SMs often ask for a line at the same time. On an
    H200 the L2 then answers two neighbouring SMs with one transfer, so each SM gets more than the L2 could send to it
    alone (its counters show half as many sectors sent at 2 MiB, and all of them from 16 MiB on).
"""

from collections.abc import Iterator

from microbench.experiments.memory.levels import Level, Space, answering_level, level_rate, read_set
from microbench.meter.benchmark import GIB, KIB, MIB, Axis, Benchmark, Gpu, Measured, Meter, Metric

SHARED_BYTES = (16 * KIB, 32 * KIB)  # shared memory is equally fast at every size


def measure(gpu: Gpu, meter: Meter, space: Space, footprint_bytes: int) -> Iterator[Measured]:
    level = read_set(gpu, space, footprint_bytes)
    yield from level_rate(meter, level, footprint_bytes, bound_of(gpu, level, space, footprint_bytes))


def bound_of(gpu: Gpu, level: Level, space: Space, footprint_bytes: int) -> str | None:
    """The level whose limit applies; None between two levels.

    While the SMs are less than two tiles apart in the set, the L2 answers two SMs that ask for a line together with one
    transfer, so that more bytes arrive than it sends.
    """
    if space == "shared":
        return "shared"
    if footprint_bytes <= level.cache_bytes:
        return "l1"
    bound = answering_level(gpu, footprint_bytes)
    apart = footprint_bytes >= 2 * level.sms * level.tile_bytes
    return bound if bound == "dram" or apart else None


BENCHMARK = Benchmark(
    title="Bandwidth of each level",
    metrics=(
        Metric("bandwidth", "rate", "B/s", "bytes read by all SMs, from the first begin to the last end"),
        Metric("per_clock", "rate", "B/clk/SM", "bytes read by one SM over its clock cycles"),
    ),
    axes={
        "space": Axis.same("memory that holds the working set", ("shared", "global")),
        "footprint_bytes": Axis(
            "bytes of the working set; in shared memory those of each SM",
            (16 * KIB, 8 * MIB, 24 * MIB, 256 * MIB),
            (
                16 * KIB, 64 * KIB, 128 * KIB, 192 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB,
                12 * MIB, 16 * MIB, 24 * MIB, 32 * MIB, 48 * MIB, 64 * MIB, 96 * MIB, 128 * MIB, 256 * MIB, GIB,
            ),
            (
                16 * KIB, 32 * KIB, 64 * KIB, 96 * KIB, 128 * KIB, 160 * KIB, 192 * KIB, 224 * KIB, 256 * KIB,
                384 * KIB, 512 * KIB, MIB, 2 * MIB, 3 * MIB, 4 * MIB, 6 * MIB, 8 * MIB, 10 * MIB, 12 * MIB, 14 * MIB,
                16 * MIB, 20 * MIB, 24 * MIB, 28 * MIB, 32 * MIB, 40 * MIB, 48 * MIB, 56 * MIB, 64 * MIB, 96 * MIB,
                128 * MIB, 256 * MIB, 512 * MIB, GIB, 4 * GIB,
            ),
            minimum=16 * KIB,
            maximum=64 * GIB,
        ),
    },
    combines=lambda params: params["space"] == "global" or params["footprint_bytes"] in SHARED_BYTES,
    core=True,
)  # fmt: skip
