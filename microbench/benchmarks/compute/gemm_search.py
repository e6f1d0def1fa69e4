"""Which shape of product does this GPU compute fastest?

Question
    What is the highest rate that the library reaches over shapes and over all candidates of its heuristics, and at what
    clock and power?
Method
    A short search tries large shapes, some of which fill whole waves of this GPU's SMs. Each candidate of each shape is
    tried after the clock has settled. The fastest is measured again, with its clock and its power.
Reading
    A square product is not always the fastest: less time is lost if tiles fill the last wave and each operand is read
    few times. This is the figure for comparing GPUs by one number.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured, always
from microbench.core.model import Metric
from microbench.gpu.protocol.compute import GemmType
from microbench.gpu.protocol.gpu import Gpu
from microbench.meter.products import searched
from microbench.meter.timer import Meter

DTYPES = ("bf16", "fp8_e4m3_fast", "fp16", "tf32", "int8", "fp64")


def measure(gpu: Gpu, meter: Meter, dtype: GemmType) -> Iterator[Measured]:
    yield from searched(meter, dtype)


BENCHMARK = Benchmark(
    title="The fastest product",
    metrics=(
        Metric("rate", "rate", "FLOP/s", "2 x rows x columns x depth over the time on the device"),
        Metric("integer_rate", "rate", "OP/s", "the same for integers"),
        Metric("sm_clock", "count", "Hz", "mean SM clock during the measurement, counted by the SMs"),
        Metric("power", "count", "W", "mean power: energy over time"),
        Metric("energy", "count", "J/FLOP", "energy for each operation"),
        Metric("integer_energy", "count", "J/OP", "the same for integers"),
    ),
    version=2,
    measure=measure,
    axes={"dtype": Axis("type of the operands", (), ("bf16", "fp8_e4m3_fast"), DTYPES)},
    late=always,  # each case takes seconds
)
