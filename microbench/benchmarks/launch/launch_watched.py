"""What does a profiler add to what it records?

Question
    How much host time does recording add to a call, an operator and a Python function, and how much GPU time to a
    graph's node?
Method
    Each row has a process of its own, because a process stays slower after it was recorded. Bursts of launches are
    timed before the first recording and inside recordings, with the GPU idle before each. cupti: launches from the
    compiled loop, with CUPTI's kernel records alone. torch: steps of three PyTorch models, recorded by torch.profiler
    with CUDA activities only, and with CPU activities too, in turn. CUDA activities less the time before the first
    recording is the cost of calls; with CPU activities less without them is the cost of operators. torch_stack: with
    Python stacks less without them is the cost of functions. watch: the same models with the recorder of microbench
    watch, which records launches and waits only. Recordings of five steps show how many records a step makes. node: the
    period of a graph's kernels inside a recording less that before the first one; node_left: the same after a
    recording. The process launches into one stream only, because other processes have longer gaps even without a
    profiler.
Reading
    diagnose subtracts the costs of torch, torch_stack and watch from a recorded step. They are means over the three
    models; facts have the cost in each model. A kernel's record is longer than the kernel by duration less stamped of
    launch_gap.
"""

from collections.abc import Mapping
from itertools import cycle
from statistics import median, quantiles
from typing import NamedTuple, get_args

import msgspec

from microbench.experiments.graph.chains import kernel_chain
from microbench.experiments.launch.models import model_step, process_recorder
from microbench.gpu.layers.base import package_of
from microbench.gpu.layers.torch_models import ModelName
from microbench.gpu.protocol.gpu import STREAMS_VARIABLE, Gpu, Recorded, Recorder, RecorderKind
from microbench.meter.benchmark import Axis, Benchmark, Fact, Launch, Meter, Metric, Results, Skip, Submit, always
from microbench.meter.sampling import NANOSECOND_S, shortened

# Samples before the first recording, bursts in a sample, and steps that are counted. A sample is the lower quartile of
# its bursts, because a busy host lengthens most of them, by up to a factor of two for a second.
BEFORE, BURSTS, COUNTED = 15, 25, 5
SHORTER = 5  # times shorter than bursts of other benchmarks, so that none fills the launch queue
LONG_GRAPH, SHORT_GRAPH = 600, 100
# How long the GPU is kept busy while a graph is launched.
HOLD_NS = 1_000_000
GRAPH = "nodes of the graph"
# Makes PyTorch's profiler leave CUPTI attached, as it does by default up to 2.11. Detaching it between recordings
# crashes a process with graphs before CUDA 12.6 (pytorch#150957).
KEEPS_CUPTI = {"TEARDOWN_CUPTI": "0"}
UNRECORDED, LEFT = "unrecorded", "left"

RECORDS = {
    "cupti": "CUPTI's kernel records",
    "torch": "torch.profiler",
    "torch_stack": "torch.profiler with Python stacks",
    "watch": "microbench watch",
}
QUICK = tuple(name for name in RECORDS if name != "watch")
RECORDERS: dict[str, tuple[RecorderKind, ...]] = {
    "cupti": ("cupti",), "torch": ("torch_cuda", "torch_cpu"), "torch_stack": ("torch_cpu", "torch_stack"),
    "watch": ("watch",),
}  # fmt: skip


class Cost(NamedTuple):
    """The cost of a record of the kind ``field`` (of Recorded, or GRAPH): the time in ``state`` less that in ``base``.

    A state of the process is the kind of the recorder that records, UNRECORDED (before the first one), or LEFT (after
    one).
    """

    metric: str
    field: str
    state: str
    base: str = UNRECORDED


COSTS: dict[str, tuple[Cost, ...]] = {
    "cupti": (Cost("call", "kernels", "cupti"), Cost("node", GRAPH, "cupti"), Cost("node_left", GRAPH, LEFT)),
    "torch": (
        Cost("call", "calls", "torch_cuda"), Cost("operator", "operators", "torch_cpu", base="torch_cuda"),
        Cost("node", GRAPH, "torch_cuda"), Cost("node_left", GRAPH, LEFT),
    ),
    "torch_stack": (Cost("function", "functions", "torch_stack", base="torch_cpu"),),
    "watch": (Cost("call", "calls", "watch"), Cost("node", GRAPH, "watch"), Cost("node_left", GRAPH, LEFT)),
}  # fmt: skip


def measure(gpu: Gpu, meter: Meter, records: str) -> Results:
    program = _Program(gpu, meter, records)
    before = [program.seconds() for _ in range(BEFORE)]
    recorders: dict[str, Recorder] = {}
    counts: dict[str, Counts] = {}
    refused: dict[str, str] = {}
    for kind in RECORDERS[records]:
        try:
            recorder = process_recorder(gpu, kind)
            counts[kind], recorders[kind] = program.counts(recorder), recorder
        except Skip as skip:
            refused[kind] = str(skip)
    counts[LEFT] = next(iter(counts.values()), {})
    known: dict[Cost, Mapping[str, float]] = {}
    unknown: list[Fact] = []
    for cost in COSTS[records]:
        recorded = counts.get(cost.state, {}).get(cost.field, {})
        if cost.base in refused or not recorded or min(recorded.values()) < 1:
            reason = refused.get(cost.state) or refused.get(cost.base) or f"no {cost.field} were recorded"
            unknown.append(Fact(cost.metric, None, reason=reason))
        else:
            known[cost] = recorded
    if not known:
        raise Skip(unknown[0].reason)
    yield from unknown
    unrecorded, turn = cycle(before), list(recorders.items())
    longer: dict[tuple[Cost, str], list[float]] = {(cost, name): [] for cost in known for name in known[cost]}

    def take() -> dict[str, float]:
        states = {UNRECORDED: next(unrecorded)}
        turn.reverse()
        for kind, recorder in turn:
            with recorder.recording():
                program.warm_up()  # a recording allocates its buffers when it begins
                states[kind] = program.seconds()
        states[LEFT] = program.seconds()
        sums = dict.fromkeys((cost.metric for cost in known), 0.0)
        for cost, name in longer:
            seconds = states[cost.state][name] - states[cost.base][name]
            longer[cost, name].append(seconds)
            sums[cost.metric] += seconds
        return sums

    for cost, taken in zip(known, meter.collect_each([cost.metric for cost in known], take), strict=True):
        if median(taken.values) <= 0:
            yield Fact(cost.metric, None, reason="most samples took no longer with it than without")
            continue
        taken = msgspec.structs.replace(taken, calls_per_sample=round(sum(known[cost].values())))
        if cost.field == GRAPH:
            floors = meter.floors
            taken = msgspec.structs.replace(
                taken, clock="device", floor_s=floors.event_pair_s, resolution=floors.event_step_s
            )
        yield taken
        for name, count in known[cost].items() if len(known[cost]) > 1 else ():
            each_s = shortened(median(longer[cost, name]) / count)
            yield Fact(f"{cost.metric}_{name}", each_s, source=f"{count:.0f} {cost.field} a sample", unit="s")


# The number of records in a sample, by field of Recorded and name of the step; for GRAPH the number of its nodes.
Counts = Mapping[str, Mapping[str, float]]


class _Program:
    """Steps that are timed on the host in bursts, and graphs of kernels that are timed on the device."""

    def __init__(self, gpu: Gpu, meter: Meter, records: str) -> None:
        self._gpu = gpu
        self._steps: dict[str, Submit] = {}
        if records == "cupti":
            self._steps["launch"] = gpu.bind(Launch())
        else:
            for name in get_args(ModelName):
                self._steps[name] = model_step(gpu, name, "eager").submit
        self._bursts = {name: max(meter.burst(submit) // SHORTER, 1) for name, submit in self._steps.items()}
        self._long, self._short = (
            kernel_chain(gpu, "add", count, blocks=1, block_threads=32, alternating=False).graph
            for count in (LONG_GRAPH, SHORT_GRAPH)
        )
        self._hold, self._events = gpu.bind(Launch(HOLD_NS)), gpu.events()
        self._hold(1)
        self.warm_up()

    def warm_up(self) -> None:
        """Run everything once."""
        for submit in (*self._steps.values(), self._long, self._short):
            submit(1)
        self._gpu.synchronize()

    def seconds(self) -> dict[str, float]:
        """Host time of a burst of each step, and device time of the long graph less the short one, in s."""

        def burst_s(name: str) -> float:
            self._gpu.synchronize()
            return self._steps[name].burst_ns(self._bursts[name]) * NANOSECOND_S

        taken = {name: quantiles([burst_s(name) for _ in range(BURSTS)], n=4)[0] for name in self._steps}
        return taken | {GRAPH: self._replayed_s(self._long) - self._replayed_s(self._short)}

    def _replayed_s(self, graph: Submit) -> float:
        """Device time of one replay, queued behind a kernel instead of a gate, which could time out in a recording."""
        self._gpu.synchronize()
        self._hold(1)
        self._events.start()
        graph(1)
        self._events.stop()
        return self._events.elapsed_s()

    def counts(self, recorder: Recorder) -> Counts:
        """How many records ``seconds`` makes. Raises Skip where nothing can be recorded."""

        def recorded(submit: Submit, count: int) -> Recorded:
            def run() -> None:
                submit(count)
                self._gpu.synchronize()

            return recorder.recorded(run)

        nothing, nodes = (recorded(self._long, count) for count in (0, 1))
        steps = {name: recorded(submit, COUNTED) for name, submit in self._steps.items()}
        counts: dict[str, dict[str, float]] = {
            field: {
                name: (getattr(step, field) - getattr(nothing, field)) / COUNTED * self._bursts[name]
                for name, step in steps.items()
            }
            for field in Recorded._fields
        }
        each_node = nodes.kernels - nothing.kernels == LONG_GRAPH
        return counts | {GRAPH: {GRAPH: LONG_GRAPH - SHORT_GRAPH if each_node else 0}}


BENCHMARK = Benchmark(
    title="What a profiler adds to what it records",
    metrics=(
        Metric("call", "time", "s", "host time that recording adds to a call of CUDA"),
        Metric("operator", "time", "s", "host time that recording adds to an operator of PyTorch"),
        Metric("function", "time", "s", "host time that recording adds to a Python function"),
        Metric("node", "time", "s", "GPU time that recording adds to a node of a graph"),
        Metric("node_left", "time", "s", "the part of node that remains after the profiler has stopped"),
    ),
    axes={"records": Axis("what records", QUICK, tuple(RECORDS), tuple(RECORDS), labels=RECORDS)},
    needs=lambda params: None if params["records"] == "cupti" else package_of("torch_eager"),
    own_process=lambda params: f"recorded by {params['records']}",
    process_environment=lambda case: {STREAMS_VARIABLE: "one", **KEEPS_CUPTI},
    late=always,
    version=2,
)
