"""What does memory that a graph allocates itself cost?

Question
    A step allocates, uses and frees device memory. What does it cost with allocation nodes in a graph, with
    stream-ordered allocation, and with memory that was allocated before?
Method
    To use a block, a kernel passes a value through its first and last word to a place where it is checked. graph_nodes:
    allocate and free nodes. stream_kept: cuMemAllocAsync from a pool that keeps freed memory. stream_released: from a
    pool that returns it at each synchronise, which is the driver's default. graph_outside and stream_outside: memory
    allocated before. A step ends with a synchronise. submit is the host time of a step without it; for stream_released,
    of one step right after a synchronise.
Reading
    The difference from graph_outside or stream_outside is the cost of allocation. Graphs and pools that keep memory
    cost the same at any size and hold it between steps. A pool that releases memory pays for its pages in each step.
"""

import msgspec

from microbench.experiments.graph.allocation import AllocationWay, allocating_step
from microbench.meter.alternating import steps
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results

HELD = 3


def measure(gpu: Gpu, meter: Meter, way: AllocationWay, size_bytes: int, pairs: int) -> Results:
    step = allocating_step(gpu, way, size_bytes, pairs)
    step.check()
    (found,) = steps(meter, {"step": (step.submit, 1)})
    yield msgspec.structs.replace(found, verified=step.check())
    yield meter.submit_time("submit", step.submit, per_call=False)
    yield meter.counted("held", [step.held_bytes() for _ in range(HELD)])


BENCHMARK = Benchmark(
    title="Allocation inside a graph",
    metrics=(
        Metric("step", "time", "s", "a step with its synchronise"),
        Metric("submit", "time", "s", "host time to submit a step"),
        Metric("held", "count", "B", "device memory held from one step to the next"),
    ),
    axes={
        "way": Axis.same(
            "how memory is allocated",
            ("graph_nodes", "graph_outside", "stream_kept", "stream_released", "stream_outside"),
        ),
        "size_bytes": Axis.sizes(
            "size of an allocation", "1 MiB", "4 KiB 1 64 MiB", "4 KiB 1 16 64 256 MiB 1 GiB", least="4 B"
        ),
        "pairs": Axis("allocations in a step", (1,), (1, 10), (1, 10, 100), minimum=1, maximum=200),
    },
)
