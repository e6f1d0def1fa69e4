"""How long does the first rate last?

Question
    What does a GPU that comes from rest compute in its first milliseconds, what is left of it after seconds of the
    same work, and what took the rest away?
Method
    Two seconds of rest, then one product again and again without a pause: first in short batches, then in longer
    ones. Kernels around each batch read the SMs' clock; NVML is asked while it runs.
Reading
    burst is the first batch, sustained the second half, turn the moment when half of the difference was lost. Clock
    times rate a cycle is all there is: where rate falls with the clock, power or temperature took it.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric
from microbench.gpu.protocol.compute import GemmType
from microbench.gpu.protocol.gpu import Gpu
from microbench.measure.products import lasting
from microbench.measure.timer import Meter

SIZE = 8192


def measure(gpu: Gpu, meter: Meter, dtype: GemmType, duration_s: int) -> Iterator[Measured]:
    yield from lasting(meter, gpu.compute.problem(dtype, SIZE, SIZE, SIZE), dtype, float(duration_s))


BENCHMARK = Benchmark(
    name="gemm_sustained",
    suite="compute",
    title="Work that lasts",
    about=__doc__ or "",
    metrics=(
        Metric("burst", "rate", "FLOP/s", "rate of the first batch after the rest"),
        Metric("sustained", "rate", "FLOP/s", "rate of the batches of the second half"),
        Metric("sm_clock", "count", "Hz", "SM clock of the batches of the second half, by the SMs themselves"),
        Metric("turn", "time", "s", "when half of the way from burst to sustained was fallen"),
    ),
    measure=measure,
    axes={
        "dtype": Axis("type of the operands", ("bf16",), ("bf16",), ("bf16", "fp8_e4m3_fast", "fp16", "tf32", "fp64")),
        "duration_s": Axis("seconds of work", (), (4,), (4, 30), minimum=1, maximum=600),
    },
)
