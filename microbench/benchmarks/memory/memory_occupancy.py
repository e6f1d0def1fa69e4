"""How many bytes must be in flight to saturate the memory?

Question
    How much bandwidth does a read get with a given number of blocks per SM, threads per block, and loads in flight per
    thread?
Method
    Exactly that many resident threads read one buffer once, 16 bytes a load. The kernel is queued behind a gate,
    between two events. The sum over all words is compared.
Reading
    Little's law: bytes in flight = bandwidth x latency. With fewer bytes in flight the bandwidth is proportional to
    them, whether more threads or more loads per thread provide them. With more, it no longer rises.
"""

from microbench.core.units import about_size, size
from microbench.experiments.memory.access import LOAD_BYTES, occupied
from microbench.experiments.memory.levels import answering_level
from microbench.meter.benchmark import GIB, MIB, Axis, Benchmark, Fact, Gpu, Meter, Metric, Results, Skip, moved

# No SM holds more threads (CUDA C++ Programming Guide, technical specifications per compute capability).
MOST_THREADS = 2048


def measure(gpu: Gpu, meter: Meter, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> Results:
    under_way_bytes = blocks_per_sm * block_threads * loads * LOAD_BYTES
    at_once_bytes = under_way_bytes * (gpu.info.sm_count or 1)
    if at_once_bytes > size_bytes:
        raise Skip(f"these loads ask for {about_size(at_once_bytes)} at once, but the buffer has {size(size_bytes)}")
    read = occupied(gpu, blocks_per_sm, block_threads, loads, size_bytes)
    yield from moved(meter, read, device="bandwidth", bound=answering_level(gpu, size_bytes))
    yield Fact("under_way_per_sm", under_way_bytes, source="blocks x threads x loads x 16 B", unit="B")


BENCHMARK = Benchmark(
    title="Bandwidth over bytes in flight",
    metrics=(Metric("bandwidth", "rate", "B/s", "bytes read over the time on the device"),),
    axes={
        "size_bytes": Axis("bytes of the buffer", (), (GIB,), (GIB,), minimum=MIB, maximum=64 * GIB),
        "loads": Axis(
            "reads of 16 bytes that each thread has in flight", (), (1, 4), (1, 2, 4, 8), minimum=1, maximum=8
        ),
        "block_threads": Axis(
            "threads of a block", (), (128, 1024), (32, 64, 128, 256, 512, 1024), minimum=1, maximum=1024
        ),
        "blocks_per_sm": Axis("blocks on each SM", (), (1, 2, 4, 8), (1, 2, 4, 8, 16, 32), minimum=1, maximum=32),
    },
    combines=lambda params: int(params["blocks_per_sm"]) * int(params["block_threads"]) <= MOST_THREADS,
)
