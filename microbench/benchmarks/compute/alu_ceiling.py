"""How many instructions do the ALUs issue per cycle, and how long does one take?

Question
    How many multiply-adds, integer operations and special functions does an SM issue in a cycle, and after how many
    cycles can a result be used?
Method
    Each kernel repeats one instruction on registers. For the rate every SM runs independent instructions; for the
    latency one warp runs a chain of dependent ones. The SMs' own clocks time both. Results are compared with the
    host's.
Reading
    A floating multiply-add counts as two operations, an integer one as one, as in the CUDA programming guide's
    table. A kernel needs at least latency x issue rate independent instructions in flight to keep the units busy.
"""

from typing import get_args

from microbench.experiments.compute.alu import AluOperation, arithmetic, chain
from microbench.experiments.compute.instructions import instruction_rate
from microbench.meter.benchmark import NANOSECOND_S, Axis, Benchmark, Gpu, Meter, Metric, Results

OPERATIONS: tuple[str, ...] = get_args(AluOperation)
CHAIN_S = 2e-4
CHAIN_REPEATS = 16


def measure(gpu: Gpu, meter: Meter, operation: AluOperation) -> Results:
    floating = operation.startswith("fma")
    yield from instruction_rate(meter, arithmetic(gpu, operation), not floating, f"alu:{operation}")
    dependent = chain(gpu, operation)
    first = dependent.take(CHAIN_REPEATS)
    repeats = max(round(CHAIN_REPEATS * CHAIN_S / max(first.seconds, NANOSECOND_S)), CHAIN_REPEATS)
    yield meter.collect(
        "latency",
        lambda: (dependent.take(repeats).cycles,),
        clock="device",
        calls=repeats * dependent.instructions,
        resolution=1.0,
    )


BENCHMARK = Benchmark(
    title="ALUs alone",
    metrics=(
        Metric("rate", "rate", "FLOP/s", "floating operations of all SMs a second; a multiply-add is two"),
        Metric("per_clock", "rate", "FLOP/clk/SM", "floating operations of one SM over its clock cycles"),
        Metric("integer_rate", "rate", "OP/s", "other instructions of all SMs a second, counted for each thread"),
        Metric("integer_per_clock", "rate", "OP/clk/SM", "other instructions of one SM over its clock cycles"),
        Metric("sm_clock", "count", "Hz", "SM clock during the measurement, counted by the SMs"),
        Metric("latency", "time", "cycle", "from an instruction to one that needs its result"),
    ),
    axes={"operation": Axis("instruction", (), OPERATIONS, OPERATIONS)},
)
