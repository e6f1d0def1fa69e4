"""In which state is the link under load: generation, width, bridges, errors?

Question
    Which generation and width does the link run at, what do GPU and slot support, and what is between them: bridges,
    packet sizes, address translation, errors?
Method
    Nothing is timed. Facts come from sysfs, PCI configuration space and NVML, each queried separately while copies run
    both ways (an idle link trains down to save power). Error counters are read before and after.
Reading
    A fact that cannot be read says why: configuration space needs root, and a virtual machine shows a flattened bus. A
    narrow or slow link under load, a bridge narrower than the GPU, or rising error counters explain a low bandwidth.
"""

from microbench.experiments.link.state import link_state
from microbench.meter.benchmark import Benchmark, Gpu, Meter, Results


def measure(gpu: Gpu, meter: Meter) -> Results:
    yield from link_state(gpu)


BENCHMARK = Benchmark(title="State of the link", metrics=(), core=True)
