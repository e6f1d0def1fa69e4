"""How fast are the tensor cores if they wait for nothing?

Question
    Which rate do tensor instructions alone reach on operands in registers or shared memory, and at what clock?
Method
    Kernels run only these instructions, on every SM, on normal random operands, timed by the SMs' own clocks. wgmma: a
    warpgroup's instructions from shared memory (compute capability 9.0); mma: a warp's from registers. burst: launches
    of a millisecond, with a rest before each; sustained: launches one after the other, after the clock has settled. The
    result of one repetition is compared in float64.
Reading
    Operations per clock cycle and SM do not depend on the clock; the rate does. No matrix product can be faster than
    sustained. Where mma is slower than wgmma, so is every kernel written with it.
"""

from typing import Literal

from microbench.experiments.compute.instructions import instruction_rate
from microbench.experiments.compute.tensor import TensorPath, TensorType, tensor
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results

FIRST_DTYPES = ("bf16", "fp8_e4m3", "int8", "fp64")
DTYPES = ("bf16", "fp8_e4m3", "fp16", "tf32", "int8", "fp64", "fp16_acc16", "fp8_e5m2")


def measure(
    gpu: Gpu, meter: Meter, load: Literal["burst", "sustained"], path: TensorPath, dtype: TensorType
) -> Results:
    yield from instruction_rate(meter, tensor(gpu, path, dtype), dtype == "int8", f"tensor:{dtype}", load)


BENCHMARK = Benchmark(
    title="Tensor cores alone",
    metrics=(
        Metric("rate", "rate", "FLOP/s", "operations of all SMs over the time on the device"),
        Metric("per_clock", "rate", "FLOP/clk/SM", "operations of one SM over its clock cycles"),
        Metric("integer_rate", "rate", "OP/s", "the same for integers"),
        Metric("integer_per_clock", "rate", "OP/clk/SM", "operations of one SM over its clock cycles, for integers"),
        Metric("sm_clock", "count", "Hz", "SM clock during the measurement, counted by the SMs"),
    ),
    axes={
        "load": Axis("how long the instructions run", ("sustained",), ("sustained", "burst"), ("sustained", "burst")),
        "path": Axis.same("tensor instructions", ("wgmma", "mma")),
        "dtype": Axis("type of the operands", ("bf16",), DTYPES[:6], DTYPES),
    },
    # Other types behave like one of these.
    late=lambda params: params["load"] == "burst" or params["dtype"] not in FIRST_DTYPES,
)
