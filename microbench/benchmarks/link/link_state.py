"""What is the link to this GPU, while it works?

Question
    Which generation and width has the link come up with, how does that compare with what GPU and slot can do, and what
    lies between them: bridges, packet sizes, address translation, errors?
Method
    Facts, not times, from sysfs, PCI configuration space and NVML, each asked for alone while copies run both ways (an
    idle link trains down to save power). Error counters are read before and after.
Reading
    What cannot be read says why: configuration space needs root, a virtual machine shows a flattened bus. A narrow or
    slow link under load, a bridge narrower than the GPU, or counters that rise explain a low bandwidth.
"""

from collections.abc import Iterator

from microbench.core.bench import Benchmark, Measured
from microbench.gpu.protocol.gpu import Gpu
from microbench.measure.timer import Meter


def measure(gpu: Gpu, meter: Meter) -> Iterator[Measured]:
    yield from gpu.links.state()


BENCHMARK = Benchmark(
    name="link_state",
    suite="link",
    title="The link and the way to it",
    about=__doc__ or "",
    metrics=(),
    measure=measure,
    essential=True,
)
