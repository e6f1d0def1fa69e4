"""How much memory can really be allocated?

Question
    How large is the largest single block, how much can be allocated in total, and what does a context keep for itself?
Method
    Blocks are allocated from large to small until the driver refuses, and freed at once.
Reading
    What is missing from the total belongs to the driver, the context, ECC that is kept in memory, or another process.
"""

from microbench.experiments.memory.allocation import capacity
from microbench.meter.benchmark import Benchmark, Gpu, Meter, Results


def measure(gpu: Gpu, meter: Meter) -> Results:
    yield from capacity(gpu)


BENCHMARK = Benchmark(title="Available memory", metrics=(), axes={})
