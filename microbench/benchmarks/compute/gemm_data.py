"""How much does a product's rate depend on the numbers in it?

Question
    Do zeros multiply faster than random numbers, and what does that say of benchmarks that multiply zeros?
Method
    The same product of different data, by cuBLASLt's fastest candidate, once the clock has settled; then seconds of
    the same work between two steps of the GPU's energy counter.
Reading
    The units do the same work each time: what differs is how many bits flip, so how much power they take, so which
    clock the power limit leaves. Energy is power over operations, idle power included. Only normal data say what a
    model gets.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured, always
from microbench.core.model import Fact, Metric
from microbench.gpu.protocol.compute import ACCUMULATORS, GemmData, GemmType
from microbench.gpu.protocol.gpu import Gpu
from microbench.measure.products import powered
from microbench.measure.timer import Meter
from microbench.measure.tuning import fastest

DATA = ("normal", "zeros", "uniform", "constant", "ones", "sparse")


def measure(gpu: Gpu, meter: Meter, size: int, dtype: GemmType, data: GemmData) -> Iterator[Measured]:
    gemm, found = fastest(meter, problem := gpu.compute.problem(dtype, size, size, size, data), "cublaslt")
    yield found
    yield Fact("accumulator", ACCUMULATORS[dtype], source="the compute type asked for")
    yield from powered(meter, gemm, dtype, problem.operations)


BENCHMARK = Benchmark(
    name="gemm_data",
    suite="compute",
    title="What the data do to the rate",
    about=__doc__ or "",
    metrics=(
        Metric("rate", "rate", "FLOP/s", "2 size^3 over the time on the device"),
        Metric("integer_rate", "rate", "OP/s", "the same of integers"),
        Metric("sm_clock", "count", "Hz", "mean SM clock meanwhile, by the SMs themselves"),
        Metric("power", "count", "W", "energy over time"),
        Metric("energy", "count", "J/FLOP", "power over operations a second"),
        Metric("integer_energy", "count", "J/OP", "the same of integers"),
    ),
    version=2,
    measure=measure,
    axes={
        "size": Axis("rows, columns and depth", (8192,), (8192,), (8192,), minimum=256, maximum=65536),
        "dtype": Axis("type of the operands", ("bf16",), ("bf16",), ("bf16", "fp8_e4m3_fast", "int8", "fp64")),
        "data": Axis("what is multiplied", (), DATA[:2], DATA),
    },
    late=always,  # takes seconds a case
)
