"""How fast are the products of a language model, from one token to many?

Question
    Is a product of that shape bound by its launch, by the memory's bandwidth, or by the tensor cores?
Method
    The projections of models with 7 and 70 billion parameters are multiplied by 1 to 512 rows (tokens). As in a model,
    so many copies of the weights are used in turn that none is in the L2 when its turn comes. cuBLASLt's fastest
    candidate is timed on the device behind a gate, then as many calls from Python one after the other, then as calls in
    a graph.
Reading
    With few rows there is little arithmetic for each weight that is read, so bandwidth is the limit. With many rows
    arithmetic is the limit. Where a call from Python takes longer than the product, the product is launch-bound, and
    graph shows what it could reach.
"""

import msgspec

from microbench.experiments.compute.products import problem
from microbench.experiments.compute.rates import calls_in_a_row, fastest, rate, replays, warm
from microbench.gpu.protocol.matrices import GemmType
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results, Work, verified

# Columns and depth of each projection: its outputs and inputs. Llama 2 7B, and Llama 3 70B with 8 heads of keys and
# values; up includes the gate. Source: the models' published configurations (config.json).
PROJECTIONS = {
    "7b_qkv": (12288, 4096), "7b_out": (4096, 4096), "7b_up": (22016, 4096), "7b_down": (4096, 11008),
    "70b_qkv": (10240, 8192), "70b_out": (8192, 8192), "70b_up": (57344, 8192), "70b_down": (8192, 28672),
}  # fmt: skip
GRAPH_CALLS = 20
DEFAULT = ("7b_out", "7b_up", "70b_out", "70b_up")


def measure(gpu: Gpu, meter: Meter, dtype: GemmType, projection: str, rows: int) -> Results:
    columns, depth = PROJECTIONS[projection]
    product = problem(gpu, dtype, rows, columns, depth, beyond_l2=True)
    best, candidate = fastest(meter, product, "cublaslt")
    yield candidate
    timed, clock = rate(meter, best)
    yield from (timed, clock)
    yield msgspec.structs.replace(timed, metric="bandwidth", work=Work(bytes=product.size_bytes), bound="dram")
    best.fresh()
    one_s = warm(meter, best, 0.0)
    yield from verified([meter.throughput("call", best.submit, calls_in_a_row(best, one_s))], best.check())
    best.fresh()
    replay = best.graph(GRAPH_CALLS)
    graph = meter.device_time("graph", replay, replays(one_s * GRAPH_CALLS), parts=GRAPH_CALLS)
    yield from verified([graph], best.check())


BENCHMARK = Benchmark(
    title="Products of language models",
    metrics=(
        Metric("rate", "rate", "FLOP/s", "2 x rows x columns x depth over the time on the device"),
        Metric("integer_rate", "rate", "OP/s", "the same for integers"),
        Metric("bandwidth", "rate", "B/s", "bytes of operands and result, each once, over the time on the device"),
        Metric("sm_clock", "count", "Hz", "mean SM clock during the measurement, counted by the SMs"),
        Metric("call", "time", "s", "one of many consecutive calls from Python, by the host's clock"),
        Metric("graph", "time", "s", "one of twenty calls in a graph, on the device"),
    ),
    version=2,
    axes={
        "dtype": Axis("type of the operands", ("bf16",), ("bf16",), ("bf16", "fp16", "fp8_e4m3_fast", "int8")),
        "projection": Axis("model and projection that give the weights", ("7b_out",), DEFAULT, tuple(PROJECTIONS)),
        "rows": Axis.numbers(
            "rows (tokens) of a product", "", "1 16 128 512", "1 2 4 8 16 32 64 128 256 512", least=1, most=65536
        ),
    },
)
