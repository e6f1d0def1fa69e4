"""What rate do matrix products reach, in each type, from which size on?

Question
    How many operations a second does the library's best kernel give for square products, and how near is that to
    what the tensor cores can do at the clock that they really ran at?
Method
    cuBLASLt through nvmath-python's bindings: each candidate of its heuristics is tried, the fastest is measured.
    CuPy's and PyTorch's own matmul stand beside it, batch by batch in turn on the same operands. Operands are normal
    random numbers, new in each run; calls are queued behind a gate and timed by events once the clock has settled,
    with a kernel before and behind that reads the SMs' clock. The result's product with random vectors is compared
    in float64.
Reading
    2 size^3 operations over the time. Dense rates, never sparse ones. Rate over rate x SMs x measured clock says
    how well the units are fed; the measured clock over the highest one says what power costs.
"""

from collections.abc import Iterator, Mapping

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric, Param
from microbench.gpu.protocol.compute import GemmType, Library
from microbench.gpu.protocol.gpu import Gpu
from microbench.measure.products import Shape, against_cublaslt, problem_that_fits, product
from microbench.measure.timer import Meter

DTYPES = (
    "bf16", "fp8_e4m3_fast", "fp16", "tf32", "fp64", "fp32", "int8", "fp16_acc16", "fp8_e4m3", "fp8_e5m2_fast",
    "fp8_e5m2", "mxfp8", "nvfp4",
)  # fmt: skip
# What a verdict and a roofline rest on; other types, sizes and libraries can wait.
FIRST_DTYPES, FIRST_SIZE = DTYPES[:7], 8192
# Other libraries stand beside cuBLASLt where the products are large: below, the difference is what a call costs.
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
    """What does not belong to the first picture."""
    return params["library"] != "cublaslt" or params["size"] != FIRST_SIZE or params["dtype"] not in FIRST_DTYPES


BENCHMARK = Benchmark(
    name="gemm_throughput",
    suite="compute",
    title="Matrix products",
    about=__doc__ or "",
    metrics=(
        Metric("rate", "rate", "FLOP/s", "2 size^3 over the time on the device"),
        Metric("integer_rate", "rate", "OP/s", "the same of integers"),
        Metric("sm_clock", "count", "Hz", "mean SM clock meanwhile, by the SMs themselves"),
        Metric("against", "count", "1", "another library's rate over that of cuBLASLt's fastest candidate, in turn"),
    ),
    measure=measure,
    axes={
        "library": Axis("who multiplies", ("cublaslt",), ("cublaslt", "cupy", "torch"), ("cublaslt", "cupy", "torch")),
        "size": Axis(
            "rows, columns and depth", (8192,), (1024, 8192), (256, 512, 1024, 2048, 4096, 8192, 16384),
            minimum=64, maximum=65536,
        ),
        "dtype": Axis("type of the operands", ("bf16", "fp8_e4m3_fast"), DTYPES, DTYPES),
    },
    version=2,
    combines=combines,
    essential=True,
    late=late,
)  # fmt: skip
