"""Which shape of product does this GPU compute fastest?

Question
    What is the most that the library reaches, over shapes and over all candidates of its heuristics, and at what
    clock and power?
Method
    A short search over large shapes, some of them cut to whole waves of this GPU's SMs: each candidate of each is
    tried once the clock has settled. The fastest of all is measured anew, with its clock and its power.
Reading
    A square product need not be the best: where tiles fill the last wave and operands are read seldom, less is
    lost. Whoever wants to compare GPUs by one figure should compare this one.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured, always
from microbench.core.model import Metric
from microbench.gpu.protocol.compute import GemmType
from microbench.gpu.protocol.gpu import Gpu
from microbench.measure.products import searched
from microbench.measure.timer import Meter

DTYPES = ("bf16", "fp8_e4m3_fast", "fp16", "tf32", "int8", "fp64")


def measure(gpu: Gpu, meter: Meter, dtype: GemmType) -> Iterator[Measured]:
    yield from searched(meter, dtype)


BENCHMARK = Benchmark(
    name="gemm_search",
    suite="compute",
    title="The fastest product",
    about=__doc__ or "",
    metrics=(
        Metric("rate", "rate", "FLOP/s", "2 rows columns depth over the time on the device"),
        Metric("integer_rate", "rate", "OP/s", "the same of integers"),
        Metric("sm_clock", "count", "Hz", "mean SM clock meanwhile, by the SMs themselves"),
        Metric("power", "count", "W", "energy over time"),
        Metric("energy", "count", "J/FLOP", "power over operations a second"),
        Metric("integer_energy", "count", "J/OP", "the same of integers"),
    ),
    version=2,
    measure=measure,
    axes={"dtype": Axis("type of the operands", (), ("bf16", "fp8_e4m3_fast"), DTYPES)},
    late=always,  # takes seconds a case
)
