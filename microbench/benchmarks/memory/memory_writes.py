"""How fast are writes that stay in the L2, and writes beyond it?

Question
    What bandwidth do all SMs get when they write a working set of a given size again and again, and when they read and
    write every word of it?
Method
    Every SM writes its own part of the set again and again, 16 bytes per thread and in full lines. An update reads a
    word past the L1, adds 1 and writes it back; both transfers count. The SMs stamp begin and end (%globaltimer and
    clock64), the end after a fence, when the words have arrived. Each launch begins with a new pattern, and every word
    is compared after it: its value says how often it was written.
Reading
    The L1 keeps no writes, so a set that fits the L2 shows the write bandwidth of the L2; memory_levels has its read
    bandwidth. A larger set is written at the rate of DRAM, to which the L2 writes back. On an H200 memory_stream, whose
    launch shapes are chosen for DRAM, writes 8 % faster there.
"""

from microbench.experiments.memory.levels import WriteAccess, answering_level, level_rate, written_set
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results, always

CHECKED = "every word compared on the GPU with what its last round writes"


def measure(gpu: Gpu, meter: Meter, access: WriteAccess, footprint_bytes: int) -> Results:
    level, bound = written_set(gpu, access, footprint_bytes), answering_level(gpu, footprint_bytes)
    yield from level_rate(meter, level, footprint_bytes, bound, CHECKED)


BENCHMARK = Benchmark(
    title="Writes by working set",
    metrics=(
        Metric("bandwidth", "rate", "B/s", "bytes moved by all SMs, from the first begin to the last end"),
        Metric("per_clock", "rate", "B/clk/SM", "bytes moved by one SM over its clock cycles"),
    ),
    axes={
        "access": Axis("operation on each word", (), ("write", "update"), ("write", "update")),
        "footprint_bytes": Axis.sizes(
            "bytes of the working set",
            "",
            "16 24 64 256 MiB",
            "2 4 8 12 16 20 24 28 32 40 48 64 96 128 256 MiB 1 GiB",
            least="1 MiB",
            most="32 GiB",
        ),
    },
    late=always,
)
