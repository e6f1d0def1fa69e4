"""How fast are the driver's own copies within device memory?

Question
    How long do cuMemcpyDtoD, a 2D copy and a memset take, by size, and which bandwidth do they reach?
Method
    Calls are queued behind a gate, between two events. Sources are patterns; destinations are poisoned before and
    compared after. Rows of the 2D copy fill half of their pitch, and the bytes between them must stay unchanged.
Reading
    Copies that stay in the L2 take T = a + V / b: a is the fixed cost of a call on the device, b the rate of the L2.
    Copies beyond it run at the rate of DRAM. A copy counts the bytes it reads plus those it writes, a memset those it
    writes.
"""

from microbench.experiments.memory.engines import EngineWay, engine
from microbench.experiments.memory.levels import answering_level
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results, moved

WAYS = ("copy", "copy_2d", "memset")


def measure(gpu: Gpu, meter: Meter, way: EngineWay, size_bytes: int) -> Results:
    transfer = engine(gpu, way, size_bytes)
    # Small copies are bound by the fixed cost of a call, so only large ones have a ceiling.
    bound = "dram" if answering_level(gpu, transfer.size_bytes) == "dram" else None
    yield from moved(meter, transfer, device="bandwidth", bound=bound)


BENCHMARK = Benchmark(
    title="Copies within device memory",
    metrics=(Metric("bandwidth", "rate", "B/s", "bytes read plus bytes written, over the time on the device"),),
    axes={
        "way": Axis("driver call", ("copy",), WAYS, WAYS),
        "size_bytes": Axis.sizes(
            "bytes written to the destination",
            "1 GiB",
            "4 256 KiB 4 64 MiB 1 GiB",
            "64 B 4 64 256 KiB 1 4 16 64 256 MiB 1 4 GiB",
            least="1 B",
            most="64 GiB",
        ),
    },
    core=True,
)
