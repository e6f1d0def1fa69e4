"""What does my function cost to submit and to run, and what would a CUDA graph give?

Question
    How long does the host take to submit the function, and how long does the GPU work? Can the function be captured
    into a graph, or what prevents that? Does the graph compute the same, and when does it pay?
Method
    The function is called four times, then timed without a profiler: its submission in bursts, single calls with one
    wait, and the GPU's time behind a gate, of calls in a row and of one call with other data in the L2. Then it is
    captured into a CUDA graph, whose nodes are its launches. The first capture follows the interpreter line by line, so
    that a failure names the line. Two more captures show whether the nodes' arguments change from one to the next.
    Steps and replays are timed in turn. The outputs of two replays are compared with those of two calls. Further
    captures give the time to make the graph. CUPTI records the kernels after everything else, because a process that
    was recorded replays graphs more slowly. Rates are the user's figures for bytes and operations, divided by the time
    of the GPU: the kernel's duration if the call is one kernel, as for a kernel of a .cu file, else gpu. Where no gate
    holds the whole call they are divided by the sum of its kernels' durations.
Reading
    Where submit is longer than gpu, the GPU waits for the host. The gain is step / graph; the graph pays after
    (capture + instantiate) / (step - graph) replays.
"""

import json
from collections import Counter
from collections.abc import Generator
from functools import partial
from statistics import median

import msgspec
import numpy as np

from microbench.core.model import Fact, Measurement, Metric, Param, Work
from microbench.core.targets import whole
from microbench.experiments.own.callables import JAX, bound
from microbench.experiments.own.step import NotCapturedError, OwnGraph, OwnStep, own_step
from microbench.meter.alternating import steps
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Measured, MeasurementError, Results, Skip
from microbench.meter.sampling import NANOSECOND_S, stored
from microbench.meter.timer import Meter, cold, gated
from microbench.meter.transfers import rates

CAPTURES = 5
MOST_NAMES = 40
# Calls per sample behind the gate: one if the launches of more calls do not fit the launch queue.
BATCHES = (16, 1)
# If the time behind the gate is shorter than this share of the longest kernel, the gate did not hold the function's
# work.
SURELY_HELD = 0.8
# A sample of a call slower than SLOW_S has one call, so that the case reports progress often enough not to be killed.
SLOW_S, TRIPS = 0.05, 20
ELSEWHERE = "no gate could hold it: its work runs in streams of the library's own"
HELD_UP = (
    "no gate could hold it: the function waits for the GPU itself, its launches do not fit the launch queue, "
    "or it takes half a second to submit"
)


def measure(
    gpu: Gpu,
    meter: Meter,
    function: str,
    setup: str = "",
    bytes: str = "0",
    flop: str = "0",
    precision: str = "fp32",
    **axes: Param,
) -> Results:
    known = {name: float(value) for name, value in axes.items() if isinstance(value, int)}
    work = Work(bytes=whole(bytes, known, least=0), flops=whole(flop, known, least=0))
    step = own_step(gpu, partial(bound, gpu, function, setup, axes))
    meter.tick("warm_up", 1, 0.0)
    yield Fact("library", step.library, source="the function's outputs, arguments and imports")
    taken_ns = np.zeros(1, dtype=np.int64)
    step.submit.round_trips(taken_ns)
    slow = taken_ns[0] * NANOSECOND_S > SLOW_S
    yield meter.submit_time("submit", step.submit, calls=1 if slow else None)
    trips = meter.round_trip("step", step.submit, batch=1 if slow else TRIPS)
    gpu_time = _gpu_time(gpu, meter, step, (1,) if slow else BATCHES) if step.library != JAX else None
    cold_time = None
    if gpu_time is not None:
        take = cold(gpu, step.submit, step.stream)
        cold_time = meter.collect("cold", take, clock="device", floor_s=meter.floors.event_pair_s)
    nodes = 0
    try:
        step.capture(follow=True)
        meter.tick("capture", 1, 0.0)
        graphs = [step.capture() for _ in range(2)]
        meter.tick("capture", 2, 0.0)
    except NotCapturedError as error:
        yield trips
        yield Fact("capturable", False, source="stream capture", reason=error.blocker.error)
        for name, words in (("blocked_line", error.blocker.line), ("blocked_call", error.blocker.call)):
            if words:
                yield Fact(name, words, source="stream capture")
    else:
        nodes = len(graphs[-1].nodes)
        yield from _as_graph(meter, step, trips, graphs)
    durations_s, recorded = yield from _recorded(meter, step)
    timed, over = recorded, "the sum of its kernels' durations"
    if gpu_time is None:
        yield Fact("gpu", None, source="a gate", reason=HELD_UP if step.library != JAX else ELSEWHERE)
    elif median(gpu_time.values) / gpu_time.calls_per_sample < max(durations_s, default=0.0) * SURELY_HELD:
        yield Fact("gpu", None, source="a gate", reason=ELSEWHERE)
    else:
        yield gpu_time
        if cold_time is not None:
            yield cold_time
        if not 0 < nodes < len(durations_s):  # else some of its kernels run in streams that the gate does not hold
            timed, over = gpu_time, "the GPU's time of a call"
    if recorded is not None and nodes == len(durations_s) == 1:
        timed, over = recorded, "the kernel's duration"
    if timed is not None:
        yield from rates(timed, over, work)
    elif work != Work():
        reason = "neither a gate nor CUPTI tells the GPU's time of a call"
        yield Fact("rates_over", None, source="bytes and operations as given", reason=reason)


def _gpu_time(gpu: Gpu, meter: Meter, step: OwnStep, batches: tuple[int, ...]) -> Measurement | None:
    """The GPU's time of a call behind a gate in the function's stream; None if no gate holds it."""
    for count in batches:
        if count <= max(step.submit.queue_slots or 1, 1):
            take = gated(gpu, step.submit, count, stream=step.stream)
            if take():
                return meter.collect("gpu", take, clock="device", calls=count, floor_s=meter.floors.event_pair_s)
    return None


def _as_graph(meter: Meter, step: OwnStep, trips: Measurement, graphs: list[OwnGraph]) -> Results:
    first, graph = graphs
    yield Fact("capturable", True, source="stream capture")
    yield Fact("launches", len(graph.nodes), source="nodes of the captured graph")
    yield Fact("kernels", _names(graph), source="nodes of the captured graph")
    moved = sum(one != other for one, other in zip(first.nodes, graph.nodes, strict=False))
    moved += abs(len(first.nodes) - len(graph.nodes))
    yield Fact("moved_nodes", moved, source="nodes that differ between two captures, their arguments included")
    verified = step.compare(graph)
    yield Fact("compared", verified, source="two calls and two replays")
    eager, replayed = steps(meter, {"step": (step.submit, 1), "graph": (graph.replay, 1)}, verified=verified)
    yield msgspec.structs.replace(eager, per_call=trips.per_call)
    yield replayed

    taken_s = [(made.capture_s, made.instantiate_s) for made in (step.capture() for _ in range(CAPTURES))]
    floors = meter.floors
    for name, each_s in zip(("capture", "instantiate"), zip(*taken_s, strict=True), strict=True):
        yield Measurement(
            name, "host", stored(each_s), CAPTURES, floor_s=floors.timer_call_s, resolution=floors.timer_step_s
        )


def _names(graph: OwnGraph) -> str:
    """The nodes as JSON: [name, grid, block, count], in the order of first use; nodes without a name have a kind."""
    counted = Counter((node.name or node.kind, node.grid, node.block) for node in graph.nodes)
    return json.dumps([[*each, count] for each, count in list(counted.items())[:MOST_NAMES]])


def _recorded(meter: Meter, step: OwnStep) -> Generator[Measured, None, tuple[list[float], Measurement | None]]:
    """The kernels' durations by CUPTI; a Fact says why they are unknown. Returns those of one call in s, and their sum
    as it was measured, if it can be divided by."""
    try:
        durations_ns = step.profiled_ns()
        if not len(durations_ns):
            raise Skip("CUPTI recorded no kernels")
    except (Skip, MeasurementError) as error:
        yield Fact("recorded_kernels", None, source="CUPTI", reason=str(error))
        return [], None
    yield Fact("recorded_kernels", len(durations_ns), source="CUPTI")
    summed = meter.collect(
        "kernels", lambda: (float(step.profiled_ns().sum()) * NANOSECOND_S,), clock="device",
        floor_s=meter.floors.event_step_s,
    )  # fmt: skip
    yield summed
    return [float(one) * NANOSECOND_S for one in durations_ns], summed if min(summed.values) > 0 else None


BENCHMARK = Benchmark(
    title="A function of your own, as it is and as a graph",
    metrics=(
        Metric("submit", "time", "s", "the host's time to submit one call, with the GPU idle before each burst"),
        Metric("step", "time", "s", "one call with one wait for the GPU"),
        Metric("gpu", "time", "s", "the GPU's time of one call, all of it queued before the first kernel may run"),
        Metric("cold", "time", "s", "GPU time of a single call with other data in the L2, as do_bench times it"),
        Metric("graph", "time", "s", "one replay of the function's graph with one wait"),
        Metric("capture", "time", "s", "the host's time to capture the function"),
        Metric("instantiate", "time", "s", "the host's time to make the captured graph executable"),
        Metric("kernels", "time", "s", "the sum of the kernels' durations as profilers report them (CUPTI)"),
        Metric("bandwidth", "rate", "B/s", "the bytes given, over the GPU's time of a call"),
        Metric("throughput", "rate", "FLOP/s", "the operations given, over the GPU's time of a call"),
    ),
    axes={
        "function": Axis.same("the function, as `microbench measure` names it", ()),
        "setup": Axis.same("the function that makes its arguments", ()),
        "bytes": Axis.same("bytes that one call moves, as the user says", ()),
        "flop": Axis.same("operations of one call, as the user says", ()),
        "precision": Axis.same("the type that it computes in", ()),
    },
    # JAX would take most of the GPU's memory at its first use.
    process_environment=lambda case: {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    own_process=lambda params: " ".join(f"{name}={value}" for name, value in sorted(params.items())) or "own",
    version=2,
)
