"""How many random accesses a second does the memory serve?

Question
    How fast are reads, writes and atomic updates of 8-byte words when every access goes to another place?
Method
    The size of the working set is a power of two. Its words are accessed in the order of a hash that omits none,
    several times per call in small sets. The kernel is queued behind a gate, between two events. Read words are summed;
    written and updated words are compared one by one.
Reading
    An access moves a sector of 32 bytes to use 8 of them. Sets that fit the L2 are served by it; for larger ones DRAM
    opens a row for each access. Updates are atomic additions, as in tables and histograms: the L2 reads and writes the
    word.
"""

from microbench.experiments.memory.access import RandomAccess, scattered
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results
from microbench.meter.transfers import operated

ACCESSES = ("gather", "scatter", "update")


def measure(gpu: Gpu, meter: Meter, access: RandomAccess, footprint_bytes: int) -> Results:
    yield from operated(meter, scattered(gpu, access, footprint_bytes), "accesses")


BENCHMARK = Benchmark(
    title="Random accesses",
    metrics=(Metric("accesses", "rate", "OP/s", "words read, written or updated over the time on the device"),),
    axes={
        "access": Axis("operation on each word", (), ACCESSES, ACCESSES),
        "footprint_bytes": Axis.sizes(
            "bytes of the working set, a power of two",
            "",
            "16 MiB 1 GiB",
            "1 4 16 64 256 MiB 1 4 GiB",
            least="64 B",
            most="64 GiB",
        ),
    },
)
