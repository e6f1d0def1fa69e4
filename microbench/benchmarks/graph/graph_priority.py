"""Does a graph's node with priority end first when the GPU is full?

Question
    Two branches of a graph each fill the GPU. When does each end, by which of them has the highest priority?
Method
    Each branch is a kernel of 5 waves of blocks that spin for 200 us and leave no room for another block on their SM.
    Every block stamps its begin and end by %globaltimer. first and second are the times from the first block's begin to
    the branch's last end. Nodes have the attribute CU_LAUNCH_ATTRIBUTE_PRIORITY. In ignored the second one has
    priority, but the graph is instantiated without CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY, which says that the
    priority of the launch's stream counts.
Reading
    A branch that has the GPU for itself takes 1 ms, both together 2 ms. With priority a branch waits at most for the
    blocks that run already, so it should end after 1 to 1.2 ms, and the other one after 2 ms. Error: a step of
    %globaltimer.
"""

from functools import partial
from typing import get_args

from microbench.experiments.graph.priority import Prior, two_nodes
from microbench.meter.benchmark import Axis, Benchmark, Between, Gpu, Meter, Metric, Results, always

RUNS = 3
ENDS = {"first": Between(0, 1), "second": Between(0, 2)}


def measure(gpu: Gpu, meter: Meter, prior: Prior) -> Results:
    stamps = partial(two_nodes(gpu, prior).stamps, RUNS)
    yield from meter.collect_stamps(stamps, ENDS, clock="device", verified="every block stamped its begin and end")


BENCHMARK = Benchmark(
    title="Priorities of a graph's nodes",
    metrics=(
        Metric("first", "time", "s", "from the first block's begin until the branch added first has ended"),
        Metric("second", "time", "s", "the same for the branch added second"),
    ),
    axes={"prior": Axis("which branch has priority", ("neither", "second"), get_args(Prior), get_args(Prior))},
    late=always,
)
