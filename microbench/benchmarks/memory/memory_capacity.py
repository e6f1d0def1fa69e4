"""How much memory can really be had?

Question
    What is the largest single block, how much can be had in all, and what does a context keep for itself?
Method
    Blocks are taken until the driver refuses, from large to small, and given back at once; nothing is left taken.
Reading
    What is missing from the sum belongs to the driver, the context, ECC where it lives in memory, or another process.
"""

from collections.abc import Iterator

from microbench.core.bench import Benchmark, Measured
from microbench.gpu.protocol.gpu import Gpu
from microbench.measure.timer import Meter


def measure(gpu: Gpu, meter: Meter) -> Iterator[Measured]:
    yield from gpu.memory.capacity()
    yield gpu.memory.peers()


BENCHMARK = Benchmark(
    name="memory_capacity",
    suite="memory",
    title="Memory that can be had",
    about=__doc__ or "",
    metrics=(),
    measure=measure,
    axes={},
)
