"""What do strided accesses cost?

Question
    How many useful bytes a second remain when neighbouring threads access words with a stride between them?
Method
    Every thread reads or writes one 4-byte word, stride_bytes behind its neighbour's, in a buffer larger than four
    times the L2. With wide strides a launch passes through the buffer several times, each time one line further, so
    that no cache can answer. The kernel is queued behind a gate, between two events. Reads are checked by their sum,
    writes word by word.
Reading
    Memory moves sectors of 32 bytes, and DRAM often two at once. From a stride of 32 bytes on, each word costs a sector
    of its own: at most an eighth of the bandwidth is useful, and less if DRAM fetches two sectors at once.
"""

from microbench.experiments.memory.access import StrideAccess, strided
from microbench.meter.benchmark import GIB, Axis, Benchmark, Gpu, Meter, Metric, Results, moved


def measure(gpu: Gpu, meter: Meter, access: StrideAccess, stride_bytes: int, size_bytes: int) -> Results:
    yield from moved(meter, strided(gpu, access, stride_bytes, size_bytes), device="bandwidth")


BENCHMARK = Benchmark(
    title="Strided accesses",
    metrics=(Metric("bandwidth", "rate", "B/s", "bytes of the accessed words over the time on the device"),),
    axes={
        "size_bytes": Axis("bytes of the buffer", (), (GIB,), (GIB,), minimum=1 << 20, maximum=64 * GIB),
        "access": Axis("operation on each word", (), ("read",), ("read", "write")),
        "stride_bytes": Axis.sizes(
            "bytes from one thread's word to the next one's",
            "",
            "4 8 16 32 64 128 256 B",
            "4 8 12 16 20 24 32 48 64 96 128 192 256 512 B 1 4 KiB",
            least="4 B",
            most="1 MiB",
        ),
    },
)
