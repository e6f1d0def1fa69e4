"""How long does the burst rate last?

Question
    Which rate does an idle GPU reach in its first milliseconds of work, which rate remains after seconds of the same
    work, and what caused the loss?
Method
    After two idle seconds one product repeats without a pause, first in short batches, then in longer ones. Kernels
    before and after each batch read the SMs' clock, and NVML is queried during the batch.
Reading
    burst is the rate of the first batch, sustained that of the second half of the time, and turn the moment when half
    of the difference was lost. The rate is the clock times the rate per cycle: if it falls with the clock, power or
    temperature is the cause.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric
from microbench.gpu.protocol.compute import GemmType
from microbench.gpu.protocol.gpu import Gpu
from microbench.meter.products import lasting
from microbench.meter.timer import Meter

SIZE = 8192


def measure(gpu: Gpu, meter: Meter, dtype: GemmType, duration_s: int) -> Iterator[Measured]:
    yield from lasting(meter, gpu.compute.problem(dtype, SIZE, SIZE, SIZE), dtype, float(duration_s))


BENCHMARK = Benchmark(
    title="Burst and sustained rate",
    metrics=(
        Metric("burst", "rate", "FLOP/s", "rate of the first batch after two seconds of rest"),
        Metric("sustained", "rate", "FLOP/s", "rate of the batches in the second half"),
        Metric("sm_clock", "count", "Hz", "SM clock of the batches in the second half, counted by the SMs"),
        Metric("turn", "time", "s", "when half of the drop from burst to sustained had happened"),
    ),
    measure=measure,
    axes={
        "dtype": Axis("type of the operands", ("bf16",), ("bf16",), ("bf16", "fp8_e4m3_fast", "fp16", "tf32", "fp64")),
        "duration_s": Axis("seconds of work", (), (4,), (4, 30), minimum=1, maximum=600),
    },
)
