"""What does it cost to launch a graph from a kernel instead of from the host?

Question
    How long does the launch call of a graph take in a kernel and on the host? How long after it does the graph begin?
    Do both depend on the number of its nodes?
Method
    The launched graph is a chain of empty kernels that stamp their begin and end by %globaltimer. On the device, the
    only kernel of another graph launches it: fire_and_forget, which runs beside the launching graph, or tail, which
    begins when that graph has ended. The kernel reads %globaltimer before and after the call. On the host, the same
    graph is launched while the GPU is idle; the first kernel's begin is converted to the host's clock as in
    launch_cost. All kernels of the launched graph must have run, in their order.
Reading
    start of fire_and_forget is the way to work that a kernel decides on. If the host decides, from_kernel of
    launch_cost comes before its start. tail ends the launching graph first; the kind tail_launch of graph_nodes is a
    loop of such launches. Times of the GPU are exact to one step of %globaltimer, and the host's to 1 us.
"""

from functools import partial
from typing import get_args

from microbench.experiments.graph.device import LaunchedBy, device_launch
from microbench.meter.benchmark import NANOSECOND_S, Axis, Benchmark, Between, Gpu, Meter, Metric, Results, always

RUNS = 20
INTERVALS = {"call": Between(0, 1), "start": Between(0, 2)}


def measure(gpu: Gpu, meter: Meter, launched_by: LaunchedBy, nodes: int) -> Results:
    work = device_launch(gpu, launched_by, nodes)
    checked = "every kernel of the launched graph ran, in their order and after the call"
    stamps = partial(work.stamps, RUNS)
    if launched_by == "host":
        yield from meter.collect_stamps(stamps, INTERVALS, verified=checked)
    else:
        step_s = work.step_ns * NANOSECOND_S
        yield from meter.collect_stamps(stamps, INTERVALS, "device", step_s, checked)


BENCHMARK = Benchmark(
    title="Graphs launched from the device",
    metrics=(
        Metric("call", "time", "s", "the launch call, in the kernel or on the host"),
        Metric("start", "time", "s", "from before the call until the first kernel of the launched graph begins"),
    ),
    axes={
        "launched_by": Axis.same("what launches the graph, and how", get_args(LaunchedBy)),
        "nodes": Axis.numbers("kernels of the launched graph", "1", "1 100", "1 10 100 1000", least=1, most=1000),
    },
    late=always,
)
