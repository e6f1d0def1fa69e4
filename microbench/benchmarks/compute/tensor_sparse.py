"""How much faster are tensor instructions that skip half of an operand, two of every four elements?

Question
    Which rate do sparse tensor instructions (2:4 structured sparsity) reach alone, and is it twice the dense one?
Method
    The method is that of tensor_ceiling, but two of every four elements of the first operand are zero, at random
    places. wgmma: wgmma.sp (compute capability 9.0) with the sparse operand in registers; mma: mma.sp (from 8.0 on).
    Operations count as if nothing was skipped, as in data sheets. The result is compared in float64 with that of the
    whole operand.
Reading
    At most the rate doubles. The sustained gain also depends on the clock that the power limit allows. A pruned model
    cannot gain more than that: a product also moves operands, and only one of them is half as large.
"""

from typing import Literal

from microbench.experiments.compute.instructions import instruction_rate
from microbench.experiments.compute.tensor import TensorPath, TensorType, tensor
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results


def measure(
    gpu: Gpu, meter: Meter, load: Literal["burst", "sustained"], path: TensorPath, dtype: TensorType
) -> Results:
    yield from instruction_rate(meter, tensor(gpu, path, dtype, sparse=True), False, f"sparse:{dtype}", load)


BENCHMARK = Benchmark(
    title="Sparse tensor cores alone",
    metrics=(
        Metric("rate", "rate", "FLOP/s", "operations of all SMs, with skipped ones, over the time on the device"),
        Metric("per_clock", "rate", "FLOP/clk/SM", "operations of one SM, with skipped ones, over its clock cycles"),
        Metric("sm_clock", "count", "Hz", "SM clock during the measurement, counted by the SMs"),
    ),
    axes={
        "load": Axis("how long the instructions run", (), ("sustained",), ("sustained", "burst")),
        "path": Axis("tensor instructions", (), ("wgmma", "mma"), ("wgmma", "mma")),
        "dtype": Axis("type of the operands", (), ("bf16",), ("bf16", "fp16")),
    },
    late=lambda params: params["load"] == "burst",
)
