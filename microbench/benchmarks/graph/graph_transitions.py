"""What does it cost to go from a kernel to a memset or copy, and back?

Question
    How long does the GPU take from a kernel to a memset, copy or second branch, and on to the next kernel?
Method
    Two kernels behind a gate record their end and begin. Between them a memset or a copy of 4 bytes runs, and a third
    kernel stamps when it sees them, less what seeing takes. fork: from a kernel to the first one of a second branch;
    join: from the end of the later branch to the kernel behind both.
Reading
    around is the whole time between the two kernels; that of kernel is the plain gap. A small memset or copy is often
    dearer than a kernel that writes the same bytes.
"""

from typing import get_args

from microbench.experiments.graph.chains import IN_MEMORY, Transition, transitions
from microbench.meter.benchmark import Axis, Benchmark, Between, Gpu, Meter, Metric, Results, always

RUNS = 20
KINDS: tuple[str, ...] = get_args(Transition)
INTERVALS = {"around": Between(0, 2), "to": Between(0, 1), "from": Between(1, 2)}


def measure(gpu: Gpu, meter: Meter, transition: Transition, submitted: str) -> Results:
    work = transitions(gpu, transition, submitted == "graph")
    metrics = INTERVALS if transition in IN_MEMORY else {"around": INTERVALS["around"]}
    checked = "each kernel began behind the one before, and the word arrived"
    yield from meter.collect_stamps(lambda: work.stamps(RUNS), metrics, clock="device", verified=checked)


BENCHMARK = Benchmark(
    title="Between kernels, memsets, copies and branches",
    metrics=(
        Metric("around", "time", "s", "from the end of a kernel to the begin of the next"),
        Metric("to", "time", "s", "from the end of a kernel until the bytes of the memset or copy are there"),
        Metric("from", "time", "s", "from there to the begin of the next kernel"),
    ),
    axes={
        "transition": Axis("what stands between two kernels", ("kernel", "memset", "copy_h2d"), KINDS, KINDS),
        "submitted": Axis.same("into streams, or as one graph", ("stream", "graph")),
    },
    late=always,
)
