"""How many atomic additions a second does the GPU make, to one address and to many?

Question
    What does contention cost in device memory, where the L2 adds, and in shared memory, where the SM adds?
Method
    All SMs add and do not use the result. All threads add to the same word (in shared memory to one word per block), or
    each warp to a word of its own, or each thread to a word of its own. The kernel is queued behind a gate, between two
    events. The sums are compared with what was added.
Reading
    Additions to one address wait for each other; a warp's additions to neighbouring addresses are made together. A
    histogram with few bins is close to the first case.
"""

from microbench.experiments.memory.access import AtomicType, Spread, atomics
from microbench.experiments.memory.levels import Space
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results
from microbench.meter.transfers import operated

SPREADS = ("same", "warp", "thread")


def measure(gpu: Gpu, meter: Meter, space: Space, dtype: AtomicType, spread: Spread) -> Results:
    yield from operated(meter, atomics(gpu, space, dtype, spread), "additions")


BENCHMARK = Benchmark(
    title="Atomic additions",
    metrics=(Metric("additions", "rate", "OP/s", "additions by all threads over the time on the device"),),
    axes={
        "space": Axis("memory that holds the words", (), ("global", "shared"), ("global", "shared")),
        "dtype": Axis("type of the words", (), ("int32", "fp32"), ("int32", "fp32")),
        "spread": Axis("threads that share a word: all, those of a warp, or none", (), SPREADS, SPREADS),
    },
)
