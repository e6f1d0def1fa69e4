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

from microbench.experiments.memory.levels import Level, Space, answering_level, level_rate, read_set
from microbench.meter.benchmark import KIB, Axis, Benchmark, Gpu, Meter, Metric, Results

SHARED_BYTES = (16 * KIB, 32 * KIB)  # shared memory is equally fast at every size


def measure(gpu: Gpu, meter: Meter, space: Space, footprint_bytes: int) -> Results:
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
        "footprint_bytes": Axis.sizes(
            "bytes of the working set; in shared memory those of each SM",
            "16 KiB 8 24 256 MiB",
            "16 64 128 192 256 512 KiB 1 2 4 8 12 16 24 32 48 64 96 128 256 MiB 1 GiB",
            "16 32 64 96 128 160 192 224 256 384 512 KiB "
            "1 2 3 4 6 8 10 12 14 16 20 24 28 32 40 48 56 64 96 128 256 512 MiB 1 4 GiB",
            least="16 KiB",
            most="64 GiB",
        ),
    },
    combines=lambda params: params["space"] == "global" or params["footprint_bytes"] in SHARED_BYTES,
    core=True,
)
