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

from microbench.experiments.compute import rates
from microbench.experiments.compute.products import Problem, free_bytes, needed_bytes
from microbench.gpu.protocol.matrices import GemmType
from microbench.meter.benchmark import Axis, Benchmark, Fact, Gpu, Meter, Metric, Results, always

DTYPES = ("bf16", "fp8_e4m3_fast", "fp16", "tf32", "int8", "fp64")


def measure(gpu: Gpu, meter: Meter, dtype: GemmType) -> Results:
    best: tuple[float, Problem, str] | None = None
    for shape in shapes(gpu.info.sm_count or 1):
        # All operands stay allocated until the case ends, so shapes that do not fit beside the others are left out.
        if best is not None and needed_bytes(gpu, dtype, *shape) > free_bytes(gpu):
            continue
        problem, _ = rates.problem_that_fits(gpu, dtype, shape)
        gemm, candidate = rates.fastest(meter, problem, "cublaslt")
        reached = problem.operations / rates.settled_s(meter, gemm)
        if best is None or reached > best[0]:
            best = (reached, problem, str(candidate.value))
    assert best is not None  # the first shape is never left out
    _, problem, way = best
    shape_name = "x".join(map(str, problem.matrices[1:4]))
    yield Fact("shape", shape_name, source="the fastest of the shapes tried")
    yield Fact("candidate", way, source="the fastest of this shape")
    yield Fact("accumulator", rates.ACCUMULATORS[dtype], source="the compute type asked for")
    gpu.pause(rates.REST_S)
    yield from rates.powered(meter, problem.gemm("cublaslt", way))


def shapes(sm_count: int) -> tuple[rates.Shape, ...]:
    """Large products: squares, deep ones, and ones whose tiles of 128 x 256 fill whole waves of the SMs."""
    wave = 64 * sm_count
    sides = (
        (4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 16384), (16384, 8192, 8192), (wave, 8192, 8192),
        (wave, 8192, 16384),
    )  # fmt: skip
    return tuple(rates.Shape(*each) for each in sides)


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
    axes={"dtype": Axis("type of the operands", (), ("bf16", "fp8_e4m3_fast"), DTYPES)},
    late=always,  # each case takes seconds
)
