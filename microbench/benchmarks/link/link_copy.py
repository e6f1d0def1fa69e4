"""How fast do copies cross the link between host and GPU, from pinned and pageable memory?

Question
    Which rate does one copy reach, from which size on, and how much of it does pageable memory lose?
Method
    A copy engine copies in one direction at a time. On the device: copies queued behind a gate, between two events,
    which excludes submission; pageable copies cannot be gated, as they block or return early. On the host: one copy and
    one synchronise from a compiled loop. Source and destination differ in every byte before and are compared after.
Reading
    The time of a copy is a fixed time plus its bytes over the bandwidth, T = a + V / b. At V = a * b it reaches half
    the bandwidth. The host also pays for the call and the synchronise.
"""

from microbench.experiments.link.copies import engine_copy
from microbench.gpu.protocol.gpu import Direction, HostMemory
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results, moved

MEMORIES = ("pinned", "pageable", "write_combined", "registered")


def measure(gpu: Gpu, meter: Meter, direction: Direction, memory: HostMemory, size_bytes: int) -> Results:
    copy = engine_copy(gpu, direction, memory, size_bytes)
    yield from moved(meter, copy, device="bandwidth", host="bandwidth_host", bound=f"pcie_{direction}")


BENCHMARK = Benchmark(
    title="Copies across the link",
    metrics=(
        Metric("bandwidth", "rate", "B/s", "bytes of a copy over its time on the device"),
        Metric("bandwidth_host", "rate", "B/s", "bytes of a copy over the host time of the copy and a synchronise"),
    ),
    axes={
        "memory": Axis("kind of the host's buffer", ("pinned", "pageable"), MEMORIES, MEMORIES),
        "direction": Axis.same("h2d: to the GPU, d2h: from it", ("h2d", "d2h")),
        "size_bytes": Axis.sizes(
            "bytes of a copy",
            "64 KiB 1 64 MiB",
            "1 B 4 64 KiB 1 16 64 MiB",
            "1 64 B 1 4 16 64 256 KiB 1 4 16 64 256 MiB 1 GiB",
            least="1 B",
            most="16 GiB",
        ),
    },
    core=True,
)
