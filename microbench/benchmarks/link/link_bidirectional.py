"""How fast is each direction while the other one is busy?

Question
    At which rate does the link move data each way, and in total, if it moves data both ways at once?
Method
    Pinned copies run in two streams, one for each direction, from a common start behind a gate. The direction that is
    not measured copies twice as often, so that the measured one is never alone. The sum counts only what was moved
    while both were busy. Both destinations are compared with their sources at the end.
Reading
    Read requests travel in the same direction as the data of writes, so the sum stays slightly below twice one
    direction. A sum of little more than one direction means that the link, or a memory behind it, serves the directions
    in turn.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.transfer import Direction
from microbench.meter.timer import Meter
from microbench.meter.transfers import both_ways

MIB = 1 << 20


def measure(gpu: Gpu, meter: Meter, direction: Direction, size_bytes: int) -> Iterator[Measured]:
    duplex = gpu.links.duplex(size_bytes)
    yield from both_ways(meter, duplex, direction, size_bytes, own="bandwidth", total="sum_bandwidth")


BENCHMARK = Benchmark(
    title="Both directions at once",
    metrics=(
        Metric("bandwidth", "rate", "B/s", "bytes of this direction over its time while the other direction is busy"),
        Metric("sum_bandwidth", "rate", "B/s", "bytes of both directions over the time in which both are busy"),
    ),
    measure=measure,
    axes={
        "direction": Axis.same("measured direction", ("h2d", "d2h")),
        "size_bytes": Axis(
            "bytes of a copy", (64 * MIB,), (64 * MIB,), (16 * MIB, 64 * MIB, 512 * MIB), minimum=64, maximum=1 << 34
        ),
    },
    core=True,
)
