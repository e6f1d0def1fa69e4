"""How many atomic additions a second, to one address and to many?

Question
    What does contention cost, in device memory (where the L2 adds) and in shared memory (where the SM does)?
Method
    All SMs add without asking for the result: every thread to the same word (in shared memory: one a block), each warp
    to a word of its own, or each thread to one of its own. Queued behind a gate, between two events. The sums are
    compared with what was added.
Reading
    Additions to one address wait for each other; to neighbouring ones a warp's go together. A histogram with few bins
    is nearer to the first.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.memory import AtomicType, Space, Spread
from microbench.measure.timer import Meter
from microbench.measure.transfers import operated

SPREADS = ("same", "warp", "thread")


def measure(gpu: Gpu, meter: Meter, space: Space, dtype: AtomicType, spread: Spread) -> Iterator[Measured]:
    yield from operated(meter, gpu.memory.atomics(space, dtype, spread), "additions")


BENCHMARK = Benchmark(
    name="memory_atomic",
    suite="memory",
    title="Atomic additions",
    about=__doc__ or "",
    metrics=(Metric("additions", "rate", "OP/s", "additions by all threads over the time on the device"),),
    measure=measure,
    axes={
        "space": Axis("where the words are", (), ("global", "shared"), ("global", "shared")),
        "dtype": Axis("type of the words", (), ("int32", "fp32"), ("int32", "fp32")),
        "spread": Axis("which word a thread adds to", (), SPREADS, SPREADS),
    },
)
