"""What does waiting for the GPU cost: spin, yield, blocking, events?

Question
    How long after a kernel's first act does the host return from a synchronise under spin, yield and blocking waits,
    and what do the calls around events cost?
Method
    complete: one empty kernel at a time is launched and synchronised, while a second thread watches the kernel's flag.
    The other metrics: bursts of calls on an idle stream and on completed events. A wait mode belongs to the context,
    so each has a process of its own; its events use the same mode.
Reading
    A spin wait answers first and keeps a core busy. A blocking wait frees the core and pays for the wake-up.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.errors import Skip
from microbench.core.model import Case, Fact, Metric
from microbench.core.ops import Op, Query, Record, SynchronizeIdle, Wait
from microbench.gpu.protocol.gpu import WAIT_VARIABLE, Gpu
from microbench.measure.sampling import Between
from microbench.measure.timer import Meter

CALLS: dict[str, Op] = {
    "idle_stream": SynchronizeIdle("stream"),
    "idle_event": SynchronizeIdle("event"),
    "record": Record(),
    "record_untimed": Record(timed=False),
    "query": Query(),
    "wait_event": Wait(),
}
STAMPS = 50
MODES = ("spin", "yield", "blocking")


def wait_mode(case: Case) -> dict[str, str]:
    """Sets the wait mode of the worker's context."""
    return {WAIT_VARIABLE: str(case.params["wait"])}


def measure(gpu: Gpu, meter: Meter, wait: str) -> Iterator[Measured]:
    try:
        gpu.start_stamps(STAMPS)
        yield from meter.collect_stamps(lambda: gpu.start_stamps(STAMPS), {"complete": Between(2, 3)})
    except Skip as skip:
        yield Fact("complete", None, reason=str(skip))
    for name, op in CALLS.items():
        yield meter.submit_time(name, gpu.bind(op))


BENCHMARK = Benchmark(
    title="Waiting for the GPU",
    metrics=(
        Metric("complete", "time", "s", "from the host seeing the kernel's flag until cuStreamSynchronize returns"),
        Metric("idle_stream", "time", "s", "cuStreamSynchronize of an idle stream"),
        Metric("idle_event", "time", "s", "cuEventSynchronize of a completed event"),
        Metric("record", "time", "s", "cuEventRecord of a timing event"),
        Metric("record_untimed", "time", "s", "cuEventRecord of an event without timing"),
        Metric("query", "time", "s", "cuEventQuery of a completed event"),
        Metric("wait_event", "time", "s", "cuStreamWaitEvent on a completed event of another stream"),
    ),
    measure=measure,
    axes={"wait": Axis("wait mode of the context", MODES[:1], MODES, MODES)},
    own_process=lambda params: f"launch_sync {params['wait']}",
    process_environment=wait_mode,
)
