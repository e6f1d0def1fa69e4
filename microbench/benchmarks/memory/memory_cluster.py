"""How fast is the shared memory of another block of a cluster?

Question
    What bandwidth and latency do loads from other blocks' shared memory have (distributed shared memory, compute
    capability 9.0), by the size of the cluster, compared with a block's own?
Method
    bandwidth: as many clusters as fit on the GPU run at the same time, with one block on each SM. Each block reads 64
    KiB of every other block of its cluster in turn (ld.shared::cluster). The SMs stamp begin and end, and each block's
    sum over all words is compared. latency: a thread of one block follows a ring of addresses through lines in the
    other blocks. In a cluster of 1 the block reads its own shared memory.
Reading
    A block that reads a neighbour's shared memory needs no copy in its own. Compare with memory_levels and
    memory_latency to see whether reading from the L2 is better. Larger clusters leave some SMs unused.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured, always
from microbench.core.model import Fact, Metric
from microbench.gpu.protocol.gpu import Gpu
from microbench.meter.memory import chase_latency, level_rate
from microbench.meter.timer import Meter

KIB = 1 << 10
READ_BYTES, CHASED_BYTES = 64 * KIB, 16 * KIB


def measure(gpu: Gpu, meter: Meter, cluster_blocks: int) -> Iterator[Measured]:
    level = gpu.memory.level("shared", READ_BYTES, cluster_blocks)
    yield Fact("sms", level.sms, source="in whole clusters at the same time, by the driver")
    yield from level_rate(meter, level, READ_BYTES, "shared")
    yield from chase_latency(meter, gpu.memory.chase("shared", CHASED_BYTES, cluster_blocks))


BENCHMARK = Benchmark(
    title="Shared memory of a cluster",
    metrics=(
        Metric("bandwidth", "rate", "B/s", "bytes read by all SMs, from the first begin to the last end"),
        Metric("per_clock", "rate", "B/clk/SM", "bytes read by one SM over its clock cycles"),
        Metric("latency", "time", "s", "one dependent read; percentiles of single reads, less the cost of stamps"),
        Metric("cycles", "time", "cycle", "one dependent read in clock cycles of the SM"),
    ),
    measure=measure,
    axes={
        "cluster_blocks": Axis(
            "blocks of a cluster; 1 is a block's own shared memory", (), (1, 2, 4, 8), (1, 2, 4, 8, 16), minimum=1,
            maximum=16,
        ),
    },
    late=always,
)  # fmt: skip
