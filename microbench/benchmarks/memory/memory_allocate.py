"""What does it cost to allocate and free memory?

Question
    How long does the host wait for cudaMalloc and cudaFree, a stream-ordered pool, CuPy's pool, and pinned host memory?
Method
    A compiled loop allocates and frees memory and reads the host's clock; calls of CuPy's pool come from Python, as
    users make them. The first block is measured separately, from a pool that was emptied before.
Reading
    The first block of a pool costs as much as the driver's own allocation; every later one of that size is a look-up. A
    loop that allocates with cudaMalloc also waits in cudaFree until the GPU is idle.
"""

from microbench.experiments.memory.allocation import AllocationWay, Taking, allocating
from microbench.meter.benchmark import NANOSECOND_S, Axis, Benchmark, Gpu, Meter, Metric, Results, Sample

WAYS = ("malloc", "pool", "cupy_pool", "host_pinned")
BATCH = 4


def measure(gpu: Gpu, meter: Meter, way: AllocationWay, size_bytes: int) -> Results:
    first = allocating(gpu, way, size_bytes, 1)[0] * NANOSECOND_S
    yield meter.once("first", float(first[Taking.TAKEN] - first[Taking.BEGIN]))

    def take() -> Sample:
        stamps = allocating(gpu, way, size_bytes, BATCH) * NANOSECOND_S
        taken = stamps[1:, Taking.TAKEN] - stamps[1:, Taking.BEGIN]
        freed = stamps[1:, Taking.RELEASED] - stamps[1:, Taking.RELEASE_BEGIN]
        return {"allocate": float(taken.mean()), "free": float(freed.mean())}

    yield from meter.collect_each(("allocate", "free"), take)


BENCHMARK = Benchmark(
    title="Allocation",
    metrics=(
        Metric("first", "time", "s", "host time to allocate the first block of that size"),
        Metric("allocate", "time", "s", "host time to allocate a later block"),
        Metric("free", "time", "s", "host time to free a later block"),
    ),
    axes={
        "way": Axis("allocator", ("malloc", "pool"), WAYS, WAYS),
        "size_bytes": Axis.sizes(
            "bytes of a block",
            "64 MiB",
            "4 KiB 1 64 MiB",
            "256 B 4 64 KiB 1 16 64 256 MiB 1 GiB",
            least="1 B",
            most="64 GiB",
        ),
    },
)
