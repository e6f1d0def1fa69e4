"""How long do many small products take one by one, as a graph, and as one batch?

Question
    How long do 128 independent products of 64 x 64 x 64 take if each is a call, if all calls are one graph, and if one
    call computes them all?
Method
    Every product has operands of its own. cuBLASLt's fastest candidate for one product is called from Python for each
    product in turn (one_by_one), then replayed as a graph with one node per product (graph). Its fastest candidate for
    a strided batch computes all products in one call (batch). These three are host times of calls back to back and one
    wait, divided by the number of products. stream is the GPU time of the calls one by one, all queued behind a gate;
    rate is that of the batch on the GPU. All results are compared in float64.
Reading
    One by one, a product takes as long as its call, or as long as its kernel and the gap after it, whichever is longer.
    A graph saves the calls. A batch also saves the gaps, and its products fill all SMs at the same time.
"""

import msgspec

from microbench.experiments.compute.products import problem
from microbench.experiments.compute.rates import calls_in_a_row, fastest, rate, replays, warm
from microbench.gpu.protocol.matrices import GemmType
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results, always, verified


def measure(gpu: Gpu, meter: Meter, dtype: GemmType, size: int, products: int) -> Results:
    alone = problem(gpu, dtype, size, size, size, products=products)
    together = problem(gpu, dtype, size, size, size, products=products, batched=True)
    one, candidate = fastest(meter, alone, "cublaslt")
    yield candidate
    one_s = warm(meter, one, 0.0)
    one.fresh()
    yield from verified([meter.throughput("one_by_one", one.submit, products)], one.check())
    one.fresh()
    yield from verified([meter.device_time("stream", one.submit, products)], one.check())
    one.fresh()
    replay = one.graph(products)
    graph = meter.throughput("graph", replay, replays(one_s * products), parts=products)
    yield from verified([graph], one.check())
    batch, candidate = fastest(meter, together, "cublaslt")
    yield msgspec.structs.replace(candidate, name="batch_candidate")
    batch.fresh()
    calls = calls_in_a_row(batch, warm(meter, batch, 0.0))
    yield from verified([meter.throughput("batch", batch.submit, calls, parts=products)], batch.check())
    yield from rate(meter, batch)


BENCHMARK = Benchmark(
    title="Many small products",
    metrics=(
        Metric("one_by_one", "time", "s", "a product, one call from Python after the other, by the host's clock"),
        Metric("graph", "time", "s", "a product in replays of a graph of all, by the host's clock"),
        Metric("batch", "time", "s", "a product in calls that each compute all, by the host's clock"),
        Metric("stream", "time", "s", "a product, one call after the other, on the device alone"),
        Metric("rate", "rate", "FLOP/s", "2 size^3 of each product over the time of a batch on the device"),
        Metric("sm_clock", "count", "Hz", "mean SM clock during the batch, counted by the SMs"),
    ),
    axes={
        "dtype": Axis("type of the operands", (), ("bf16",), ("bf16", "fp16")),
        "size": Axis("rows, columns and depth", (), (64, 128, 256), (32, 64, 128, 256, 512), minimum=16, maximum=2048),
        # All calls are queued behind a gate, and each takes up to two slots of the launch queue.
        "products": Axis("independent products", (), (128,), (16, 128), minimum=2, maximum=250),
    },
    late=always,  # each case takes seconds
)
