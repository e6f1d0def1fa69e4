"""What rate do matrix products reach in each type, and from which size on?

Question
    How many operations a second does the library's best kernel reach for square products, and how close is that to the
    peak of the tensor cores at the clock that they really ran at?
Method
    cuBLASLt, through nvmath-python's bindings: each candidate of its heuristics is tried, and the fastest is measured.
    To compare CuPy's or PyTorch's matmul, three blocks run: the library, cuBLASLt, and the library again. The second
    half of each block counts. Operands are normal random numbers, new in each run. Calls are queued behind a gate and
    timed by events once the clock has settled, with a kernel before and after them that reads the SMs' clock. The
    result's product with random vectors is compared in float64. The order of the cases is drawn anew in each round.
Reading
    The rate is 2 size^3 operations over the time, always dense, never sparse. Divided by peak rate per clock x SMs x
    measured clock, it says how well the units are fed; the measured clock over the highest one says what power costs.
    against_per_clock compares the kernels of two libraries independently of the clock. At the power limit the library
    that draws less power runs at a higher clock, so their sustained rates may have another ratio: against, which needs
    blocks of a second (--full).
"""

from collections.abc import Iterator, Mapping

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric, Param
from microbench.gpu.protocol.compute import GemmType, Library
from microbench.gpu.protocol.gpu import Gpu
from microbench.meter.products import Shape, against_cublaslt, problem_that_fits, product
from microbench.meter.timer import Meter

DTYPES = (
    "bf16", "fp8_e4m3_fast", "fp16", "tf32", "fp64", "fp32", "int8", "fp16_acc16", "fp8_e4m3", "fp8_e5m2_fast",
    "fp8_e5m2", "mxfp8", "nvfp4",
)  # fmt: skip
LIBRARIES = ("cublaslt", "cupy", "torch")
# The verdict and the roofline rest on these; other types, sizes and libraries run late.
FIRST_DTYPES, FIRST_SIZE = DTYPES[:7], 8192
# Libraries are compared from this size on: below it they differ mainly in the cost of a call.
COMPARED_FROM = 4096


def measure(gpu: Gpu, meter: Meter, library: Library, size: int, dtype: GemmType) -> Iterator[Measured]:
    problem, shape = problem_that_fits(gpu, dtype, Shape(size, size, size))
    yield shape
    yield from (
        product(meter, problem, dtype) if library == "cublaslt" else against_cublaslt(meter, problem, dtype, library)
    )


def combines(params: Mapping[str, Param]) -> bool:
    """Libraries are compared at large sizes only."""
    return params["library"] == "cublaslt" or int(params["size"]) >= COMPARED_FROM


def late(params: Mapping[str, Param]) -> bool:
    """Other libraries, sizes and types."""
    return params["library"] != "cublaslt" or params["size"] != FIRST_SIZE or params["dtype"] not in FIRST_DTYPES


BENCHMARK = Benchmark(
    title="Matrix products",
    metrics=(
        Metric("rate", "rate", "FLOP/s", "2 size^3 over the time on the device"),
        Metric("integer_rate", "rate", "OP/s", "the same for integers"),
        Metric("sm_clock", "count", "Hz", "mean SM clock during the measurement, counted by the SMs"),
        Metric("against_per_clock", "count", "1", "another library's rate over cuBLASLt's, for each clock cycle"),
        Metric("against", "count", "1", "ratio of the sustained rates, each at its own clock in blocks of a second"),
    ),
    measure=measure,
    axes={
        "library": Axis("library", LIBRARIES[:1], LIBRARIES, LIBRARIES),
        "size": Axis(
            "rows, columns and depth", (8192,), (1024, 8192), (256, 512, 1024, 2048, 4096, 8192, 16384),
            minimum=64, maximum=65536,
        ),
        "dtype": Axis("type of the operands", FIRST_DTYPES, DTYPES, DTYPES),
    },
    version=3,
    combines=combines,
    core=True,
    late=late,
)  # fmt: skip
