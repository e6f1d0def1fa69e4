"""How fast do bulk copies (TMA) fill shared memory, by the size of a piece?

Question
    What bandwidth from DRAM and L2 into shared memory do bulk copies reach, compared with cp.async and ordinary loads?
Method
    Every SM copies its own pieces of a working set into its shared memory, passes through the set again and again, and
    stamps begin and end. bulk: four threads request whole pieces (cp.async.bulk) and wait for their barriers, with 128
    KiB in flight. async: 16 warps with 64 KiB in flight by cp.async. load: 32 warps with 64 KiB in flight, through
    registers. Only 512 bytes of each piece, at another place in each pass, are added up and compared; the rest of the
    data is not used.
Reading
    Each piece costs the SM a request, which limits small pieces. From some size on all ways reach the bandwidth of the
    level; bulk copies then leave threads and registers free for other work. A few percent between bulk and load are not
    the instruction: twice as many bytes are in flight. memory_stream's read also has the begin and end of a kernel.
"""

from microbench.experiments.memory.fills import Filling, fill
from microbench.experiments.memory.levels import answering_level, level_rate
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results, always

FILLINGS = ("bulk", "async", "load")
CHECKED = "the sum over rows of every piece copied is that of the set"


def measure(gpu: Gpu, meter: Meter, way: Filling, piece_bytes: int, footprint_bytes: int) -> Results:
    level = fill(gpu, way, piece_bytes, footprint_bytes)
    yield from level_rate(meter, level, footprint_bytes, answering_level(gpu, footprint_bytes), CHECKED)


BENCHMARK = Benchmark(
    title="Filling shared memory",
    metrics=(
        Metric("bandwidth", "rate", "B/s", "bytes copied by all SMs, from the first begin to the last end"),
        Metric("per_clock", "rate", "B/clk/SM", "bytes copied by one SM over its clock cycles"),
    ),
    axes={
        "way": Axis("how the data get into shared memory", (), FILLINGS, FILLINGS),
        "piece_bytes": Axis.sizes(
            "bytes of a piece, a power of two",
            "",
            "512 B 2 8 32 KiB",
            "512 B 1 2 4 8 16 32 KiB",
            least="512 B",
            most="32 KiB",
        ),
        "footprint_bytes": Axis.sizes(
            "bytes of the working set", "", "16 MiB 1 GiB", "16 MiB 1 GiB", least="8 MiB", most="4 GiB"
        ),
    },
    late=always,
)
