"""How much does a product's rate depend on the numbers in it?

Question
    Do zeros multiply faster than random numbers, and what does that mean for benchmarks that multiply zeros?
Method
    Once the clock has settled, cuBLASLt's fastest candidate computes the same product with different data. Then the
    same work runs for seconds between two steps of the GPU's energy counter.
Reading
    The units do the same work each time, but the number of bits that flip sets the power, and the power limit sets the
    clock. Energy is power over the rate of operations, idle power included. Only normal random numbers show what a
    model gets.
"""

from microbench.experiments.compute.products import GemmData, problem
from microbench.experiments.compute.rates import ACCUMULATORS, fastest, powered
from microbench.gpu.protocol.matrices import GemmType
from microbench.meter.benchmark import Axis, Benchmark, Fact, Gpu, Meter, Metric, Results, always

DATA = ("normal", "zeros", "uniform", "constant", "ones", "sparse")


def measure(gpu: Gpu, meter: Meter, size: int, dtype: GemmType, data: GemmData) -> Results:
    product = problem(gpu, dtype, size, size, size, data)
    gemm, found = fastest(meter, product, "cublaslt")
    yield found
    yield Fact("accumulator", ACCUMULATORS[dtype], source="the compute type asked for")
    yield from powered(meter, gemm)


BENCHMARK = Benchmark(
    title="Effect of the data on the rate",
    metrics=(
        Metric("rate", "rate", "FLOP/s", "2 size^3 over the time on the device"),
        Metric("integer_rate", "rate", "OP/s", "the same for integers"),
        Metric("sm_clock", "count", "Hz", "mean SM clock during the measurement, counted by the SMs"),
        Metric("power", "count", "W", "mean power: energy over time"),
        Metric("energy", "count", "J/FLOP", "energy for each operation"),
        Metric("integer_energy", "count", "J/OP", "the same for integers"),
    ),
    version=2,
    axes={
        "size": Axis("rows, columns and depth", (8192,), (8192,), (8192,), minimum=256, maximum=65536),
        "dtype": Axis("type of the operands", ("bf16",), ("bf16",), ("bf16", "fp8_e4m3_fast", "int8", "fp64")),
        "data": Axis("values of the operands", (), DATA[:2], DATA),
    },
    late=always,  # each case takes seconds
)
