"""Do other kinds of launch cost more: default stream, cooperative, cluster, programmatic?

Question
    How much host time do launches into the legacy default stream, by cuLaunchKernelEx, cooperative, cluster and
    programmatic dependent launches cost, and how long is the gap between two such kernels?
Method
    submit: an empty kernel in bursts. gap: kernels behind a gate that stamp their own start and end and do nothing
    else. A cluster has two blocks. A programmatic dependent kernel lets its successor start at once and waits for its
    predecessor at its end.
Reading
    A negative gap means that kernels overlap. What a programmatic dependent launch saves between longer kernels depends
    on the work that they do before they wait for each other: graph_nodes measures that.
"""

from microbench.core.ops import LEGACY_STREAM, Launch
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Metric, Results
from microbench.meter.timer import Meter, gap

KINDS: dict[str, Launch] = {
    "own_stream": Launch(),
    "default_stream": Launch(stream=LEGACY_STREAM),
    "launch_ex": Launch(kind="launch_ex"),
    "cooperative": Launch(kind="cooperative"),
    "cluster": Launch(kind="cluster", grid_blocks=2),
    "pdl": Launch(kind="pdl"),
}


def measure(gpu: Gpu, meter: Meter, kind: str) -> Results:
    yield meter.submit_time("submit", gpu.bind(KINDS[kind]))
    yield gap(meter, "gap", KINDS[kind])


BENCHMARK = Benchmark(
    title="Kinds of launch",
    metrics=(
        Metric("submit", "time", "s/launch", "the launch call on the host, in bursts"),
        Metric("gap", "time", "s/launch", "from a kernel's end to the next one's start, queued behind a gate"),
    ),
    axes={"kind": Axis.same("kind of launch", tuple(KINDS))},
)
