"""What does managed memory cost when it migrates, by faults and by prefetch?

Question
    At which rate do pages of managed memory reach the side that uses them: by page faults, by prefetch, as read-mostly
    copies, and if they are already there?
Method
    The figure is the host time of the move and a synchronise. Before each move the pages are moved back, which is not
    timed. fault_to_device: a kernel reads pages that are on the host. prefetch_to_device: cuMemPrefetchAsync.
    read_mostly_to_device: a kernel reads pages advised as read-mostly, which are then duplicated. again_on_device: a
    kernel reads pages that are on the device already. fault_to_host and prefetch_to_host: the way back, by a host
    thread that reads each page. The buffer never takes more than a quarter of the free device memory.
Reading
    Faults handle few pages at a time and stall the kernel meanwhile. A prefetch is a copy: compare it with link_copy.
"""

from typing import get_args

from microbench.experiments.link.managed import ManagedWay, managed_memory
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results, Work, verified

WAYS: tuple[str, ...] = get_args(ManagedWay)


def measure(gpu: Gpu, meter: Meter, way: ManagedWay, size_bytes: int) -> Results:
    managed = managed_memory(gpu, way, size_bytes)
    managed.take_ns()
    # Pages that are already there do not cross the link, so they have no ceiling.
    bound = None if way == "again_on_device" else "pcie_h2d" if way.endswith("device") else "pcie_d2h"
    found = meter.host_ns("bandwidth", managed.take_ns, work=Work(bytes=size_bytes), bound=bound)
    yield from verified([found], managed.check())


BENCHMARK = Benchmark(
    title="Managed memory",
    metrics=(Metric("bandwidth", "rate", "B/s", "bytes of the buffer over the host time of the move"),),
    axes={
        "way": Axis("what moves the pages", ("fault_to_device", "prefetch_to_device"), WAYS, WAYS),
        "size_bytes": Axis.sizes(
            "bytes of the buffer", "64 MiB", "64 MiB", "4 64 256 MiB", least="4 KiB", most="16 GiB"
        ),
    },
)
