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

from collections.abc import Callable, Mapping

import numpy as np

from microbench.core.model import Fact, Measurement, Metric
from microbench.experiments.compute import rates
from microbench.experiments.compute.products import Library, Problem
from microbench.gpu.protocol.matrices import GemmType
from microbench.meter.benchmark import Axis, Benchmark, Gpu, MeasurementError, Meter, Results, Sample, Skip, verified
from microbench.meter.sampling import now_s, stored

DTYPES = (
    "bf16", "fp8_e4m3_fast", "fp16", "tf32", "fp64", "fp32", "int8", "fp16_acc16", "fp8_e4m3", "fp8_e5m2_fast",
    "fp8_e5m2", "mxfp8", "nvfp4",
)  # fmt: skip
LIBRARIES = ("cublaslt", "cupy", "torch")
# The verdict and the roofline rest on these; other types, sizes and libraries run late.
FIRST_DTYPES, FIRST_SIZE = DTYPES[:7], 8192
# Libraries are compared from this size on: below it they differ mainly in the cost of a call.
COMPARED_FROM = 4096
# A board's slower power control averages over about a second (see REST_S), so ratios of sustained rates need blocks as
# long. In half of a short block the clock at least falls to the level that the product allows at first.
BLOCK_S, SHORT_BLOCK_S = 1.0, 0.2
BATCHES_PER_BLOCK = 20
# Slow products and gates that time out may lengthen a block up to this factor.
LONGEST_BLOCKS, VOID_BLOCK_S = 10, 20.0


def measure(gpu: Gpu, meter: Meter, library: Library, size: int, dtype: GemmType) -> Results:
    problem, shape = rates.problem_that_fits(gpu, dtype, rates.Shape(size, size, size))
    yield shape
    if library != "cublaslt":
        yield from against_cublaslt(meter, problem, dtype, library)
        return
    best, candidate = rates.fastest(meter, problem, library)
    yield candidate
    yield Fact("accumulator", rates.ACCUMULATORS[dtype], source="the compute type asked for")
    yield from rates.rate(meter, best)


def against_cublaslt(meter: Meter, problem: Problem, dtype: GemmType, library: Library) -> Results:
    """The rate of another library's fastest way, and that rate divided by cuBLASLt's.

    The other library, cuBLASLt and the other library again run in a block each, on operands of the same kind, and the
    second half of a block counts: at the power limit each product has a clock of its own, which batches of milliseconds
    in turn would share. Metric ``against_per_clock`` is the ratio for each cycle of the SMs' clock. Metric ``against``,
    that of the sustained rates, needs blocks of BLOCK_S; in a run with less time a fact says so.
    """
    theirs, candidate = rates.fastest(meter, problem, library)
    yield candidate
    yield Fact("accumulator", rates.ACCUMULATORS[dtype], source="what the library says of itself")
    try:
        ours, _ = rates.fastest(meter, problem, "cublaslt")
    except Skip as skip:
        yield Fact("against", None, reason=str(skip))
        yield from rates.rate(meter, theirs)
        return
    lasting_s, name = meter.limits.seconds, rates.rate_name(problem)
    block_s = BLOCK_S if lasting_s >= BLOCK_S else min(lasting_s, SHORT_BLOCK_S)
    batch_s = max(block_s / BATCHES_PER_BLOCK, rates.SAMPLE_S)
    (their_calls, their_batch), (our_calls, our_batch) = (
        rates.batches(meter, gemm, batch_s) for gemm in (theirs, ours)
    )
    first = _settled(meter, their_batch, block_s)
    our = _settled(meter, our_batch, block_s)
    theirs.fresh()  # the last block, so that the result that is checked is this library's
    last = _settled(meter, their_batch, block_s)
    checked = theirs.check()
    their, pairs = [*first, *last], [pair for block in (first, last) for pair in zip(block, our, strict=False)]
    ratios = np.array([our[name] / our_calls / (their[name] / their_calls) for their, our in pairs])
    clocks = np.array([our["sm_clock"] / their["sm_clock"] for their, our in pairs])
    yield from verified(
        [
            Measurement(
                name, "device", stored([batch[name] for batch in their]), len(their), their_calls,
                work=rates.work_of(problem), bound=f"gemm:{dtype}", floor_s=meter.floors.event_pair_s,
                resolution=meter.floors.event_step_s,
            )
        ],
        checked,
    )  # fmt: skip
    counted = {"sm_clock": [batch["sm_clock"] for batch in their], "against_per_clock": (ratios * clocks).tolist()}
    if block_s >= BLOCK_S:
        counted["against"] = ratios.tolist()
    else:
        reason = f"a sustained ratio needs blocks of {BLOCK_S:g} s: --full takes them"
        yield Fact("against", None, reason=reason)
    for metric, values in counted.items():
        yield Measurement(metric, "counter", stored(values), len(values))


def _settled(meter: Meter, batch: Callable[[], Sample], seconds: float) -> list[Mapping[str, float]]:
    """The batches of one product in the second half of ``seconds``, at least as many as a sample needs."""
    began_s, settled = now_s(meter.clock), list[Mapping[str, float]]()
    while (at_s := now_s(meter.clock) - began_s) < seconds or len(settled) < meter.limits.minimum:
        if at_s > LONGEST_BLOCKS * seconds + VOID_BLOCK_S:
            raise MeasurementError("a block of products could not be timed: the gate timed out again and again")
        taken = batch()
        meter.tick("block", len(settled), at_s)
        if taken and at_s >= seconds / 2:
            settled.append(taken)
    return settled


BENCHMARK = Benchmark(
    title="Matrix products",
    metrics=(
        Metric("rate", "rate", "FLOP/s", "2 size^3 over the time on the device"),
        Metric("integer_rate", "rate", "OP/s", "the same for integers"),
        Metric("sm_clock", "count", "Hz", "mean SM clock during the measurement, counted by the SMs"),
        Metric("against_per_clock", "count", "1", "another library's rate over cuBLASLt's, for each clock cycle"),
        Metric("against", "count", "1", "ratio of the sustained rates, each at its own clock in blocks of a second"),
    ),
    axes={
        "library": Axis("library", LIBRARIES[:1], LIBRARIES, LIBRARIES),
        "size": Axis(
            "rows, columns and depth", (8192,), (1024, 8192), (256, 512, 1024, 2048, 4096, 8192, 16384),
            minimum=64, maximum=65536,
        ),
        "dtype": Axis("type of the operands", FIRST_DTYPES, DTYPES, DTYPES),
    },
    version=3,
    combines=lambda params: params["library"] == "cublaslt" or int(params["size"]) >= COMPARED_FROM,
    core=True,
    late=lambda params: (
        params["library"] != "cublaslt" or params["size"] != FIRST_SIZE or params["dtype"] not in FIRST_DTYPES
    ),
)  # fmt: skip
