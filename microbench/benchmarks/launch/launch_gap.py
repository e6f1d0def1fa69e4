"""How long is the GPU idle between two kernels?

Question
    What is the time from one kernel of a chain to the next (the period), in a stream and as a graph, and how much of it
    is gap? Does that depend on whether kernels write memory, on the grid, and on whether two functions alternate?
Method
    stream and graph: the time of a long chain less that of a short one, each behind a gate and between events, so that
    begin and end cancel out. duration: the length of CUPTI's kernel record in a stream, which profilers report. It is
    measured after the periods, because recording lengthens them. stamped: the time between the first and the last
    instruction of a spinning kernel, by its own stamps; it is shorter than CUPTI's duration by a constant.
    launch_streams: about eight kernels launched into a second stream lengthen every later gap for the rest of the
    process, and so does CUPTI. "one" is a process that launches into one stream only and is never recorded; "two" is a
    process that has launched into a second stream before.
Reading
    gap = period - duration, for durations as profilers report them; a kernel's duration is the same in both processes.
    In a graph the gap may be negative: the GPU begins a kernel while the record of the one before is still open. All
    other benchmarks measure in the state "two". Run the warm-up of a capture in the stream that the program uses: a few
    launches into a second stream lengthen a graph's gaps for good.
"""

from functools import partial
from typing import get_args

import msgspec

from microbench.experiments.graph.chains import SPIN_NS, KernelWork, kernel_chain
from microbench.gpu.protocol.gpu import LAUNCH_STREAMS, STREAMS_VARIABLE, Gpu
from microbench.meter.alternating import device_difference
from microbench.meter.benchmark import NANOSECOND_S, Axis, Benchmark, Fact, Launch, Metric, Params, Results, Skip
from microbench.meter.timer import Meter, duration

LONG_GRAPH, SHORT_GRAPH = 1000, 200
LONG_STREAM, SHORT_STREAM = 400, 100
RECORDED = 200
# Blocks ("one": in total; the others: per SM) and threads per block. Eight blocks fill half of an SM: a kernel that
# fills all of it runs in two waves while CUPTI records it (H200).
BLOCKS = {"one": (1, 32), "an_sm": (1, 256), "eight_an_sm": (8, 128)}


def process(params: Params) -> str:
    """The process of a case. Processes of one stream measure at most three cases, because the sixth or seventh case
    found such a process in the state "two"."""
    few = params["functions"] if params["functions"] == "alternating" else params["blocks"]
    return f"launch_gap one {few}" if params["launch_streams"] == "one" else "launch_gap two"


def measure(gpu: Gpu, meter: Meter, kernel: KernelWork, blocks: str, functions: str, launch_streams: str) -> Results:
    each, threads = BLOCKS[blocks]
    if gpu.info.sm_count is None:
        raise Skip("needs the GPU's number of SMs")
    grid = each if blocks == "one" else each * gpu.info.sm_count
    alternating = functions == "alternating"
    chain = partial(kernel_chain, gpu, kernel, blocks=grid, block_threads=threads, alternating=alternating)
    long, short = chain(LONG_STREAM), chain(SHORT_STREAM)
    verified = long.check()
    stream = device_difference(meter, "stream", long.stream, short.stream, parts=LONG_STREAM - SHORT_STREAM)
    yield msgspec.structs.replace(stream, verified=verified)
    long, short = chain(LONG_GRAPH), chain(SHORT_GRAPH)
    node = device_difference(meter, "graph", long.graph, short.graph, parts=LONG_GRAPH - SHORT_GRAPH)
    yield msgspec.structs.replace(node, verified=long.check())
    if launch_streams == "one":
        return
    if kernel == "spin":
        yield duration(meter, "stamped", Launch(SPIN_NS, grid_blocks=grid, block_threads=threads), RECORDED)
    recorded = chain(RECORDED)
    try:
        recorded.profiled_ns()
    except Skip as skip:
        yield Fact("duration", None, source="CUPTI", reason=str(skip))
        return
    yield meter.collect(
        "duration", lambda: (float(recorded.profiled_ns().sum()) * NANOSECOND_S,), clock="device", calls=RECORDED,
        floor_s=meter.floors.event_step_s,
    )  # fmt: skip


BENCHMARK = Benchmark(
    title="The gap between kernels",
    metrics=(
        Metric("stream", "time", "s/launch", "period of the kernels in a stream, queued behind a gate"),
        Metric("graph", "time", "s/launch", "period of the kernels as nodes of a graph"),
        Metric("duration", "time", "s", "a kernel's duration as profilers report it: CUPTI's kernel record"),
        Metric("stamped", "time", "s", "a spinning kernel's time between its own first and last instruction"),
    ),
    axes={
        "kernel": Axis.same("what each kernel does", get_args(KernelWork)),
        "blocks": Axis("blocks of a kernel: one, one an SM, eight an SM", ("one",), tuple(BLOCKS), tuple(BLOCKS)),
        "functions": Axis("one function, or two in turn", ("same",), ("same", "alternating"), ("same", "alternating")),
        "launch_streams": Axis.same("streams that the process has launched kernels into", LAUNCH_STREAMS),
    },
    # Two functions in turn only for kernels that write.
    combines=lambda params: params["functions"] == "same" or params["kernel"] == "add",
    own_process=process,
    process_environment=lambda case: {STREAMS_VARIABLE: str(case.params["launch_streams"])},
    core=True,
)
