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

from microbench.experiments.memory.chase import chase, chase_latency
from microbench.experiments.memory.levels import level_rate, read_set
from microbench.experiments.memory.shared import CHASED_BYTES, CLUSTER_BYTES, cluster_chase, read_cluster
from microbench.meter.benchmark import Axis, Benchmark, Fact, Gpu, Meter, Metric, Results, always


def measure(gpu: Gpu, meter: Meter, cluster_blocks: int) -> Results:
    alone = cluster_blocks == 1
    level = read_set(gpu, "shared", CLUSTER_BYTES) if alone else read_cluster(gpu, cluster_blocks)
    yield Fact("sms", level.sms, source="in whole clusters at the same time, by the driver")
    yield from level_rate(meter, level, CLUSTER_BYTES, "shared")
    walk = chase(gpu, "shared", CHASED_BYTES) if alone else cluster_chase(gpu, cluster_blocks)
    yield from chase_latency(meter, walk)


BENCHMARK = Benchmark(
    title="Shared memory of a cluster",
    metrics=(
        Metric("bandwidth", "rate", "B/s", "bytes read by all SMs, from the first begin to the last end"),
        Metric("per_clock", "rate", "B/clk/SM", "bytes read by one SM over its clock cycles"),
        Metric("latency", "time", "s", "one dependent read; percentiles of single reads, less the cost of stamps"),
        Metric("cycles", "time", "cycle", "one dependent read in clock cycles of the SM"),
    ),
    axes={
        "cluster_blocks": Axis(
            "blocks of a cluster; 1 is a block's own shared memory", (), (1, 2, 4, 8), (1, 2, 4, 8, 16), minimum=1,
            maximum=16,
        ),
    },
    late=always,
)  # fmt: skip
