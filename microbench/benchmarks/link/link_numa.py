"""Does the NUMA node of the host's buffer matter?

Question
    How fast is a copy from and to the memory of each NUMA node?
Method
    The method is that of link_copy, with pinned memory that a thread bound to the node allocates and touches.
Reading
    The GPU's own node is near. A far node adds the link between the processors, which can be narrower than the GPU's
    own and busy with other traffic.
"""

from microbench.core.model import Environment, Metric
from microbench.experiments.link.copies import engine_copy
from microbench.gpu.protocol.gpu import Direction
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Params, Results, moved


def here(environment: Environment, params: Params) -> str | None:
    """Why this machine lacks the node, or None."""
    nodes = environment.fact("numa_nodes")
    count = nodes if isinstance(nodes, int) else 1
    return None if int(params["node"]) < count else f"this machine has {count} NUMA node{'s' if count > 1 else ''}"


def measure(gpu: Gpu, meter: Meter, node: int, direction: Direction, size_bytes: int) -> Results:
    copy = engine_copy(gpu, direction, "pinned", size_bytes, node)
    yield from moved(meter, copy, device="bandwidth", host="bandwidth_host", bound=f"pcie_{direction}")


BENCHMARK = Benchmark(
    title="NUMA placement",
    metrics=(
        Metric("bandwidth", "rate", "B/s", "bytes of a copy over its time on the device"),
        Metric("bandwidth_host", "rate", "B/s", "bytes of a copy over the host time of the copy and a synchronise"),
    ),
    axes={
        "node": Axis.same("NUMA node of the host's buffer", tuple(range(16)), maximum=1023),
        "direction": Axis.same("h2d: to the GPU, d2h: from it", ("h2d", "d2h")),
        "size_bytes": Axis.sizes("bytes of a copy", "64 MiB", "64 MiB", "64 256 MiB", least="1 B", most="16 GiB"),
    },
    here=here,
)
