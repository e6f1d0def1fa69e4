"""What does waiting for the GPU cost: spin, yield, blocking, events?

Question
    How long after a kernel's end does the host return from a wait by spinning, by yielding and by blocking, after
    kernels of different lengths, and what do the calls around events cost?
Method
    from_kernel: one kernel at a time is launched and waited for. The kernel reads %globaltimer at its end. Exchanges of
    flags before and after each batch give the offset of that timer from the host's clock. So the figure includes
    neither the launch nor the kernel's duration, and no other thread runs meanwhile. The wait mode is a setting of the
    context, so each mode has a process of its own; blocking_event waits for an event with the flag for blocking waits,
    in a context that spins. The other metrics are bursts of calls on an idle stream and on completed events, in the
    mode of the context.
Reading
    A spin wait returns first but keeps a core busy. A blocking wait frees the core and pays for the wake-up, which
    takes longer the longer the host slept. Where single waits fall into two groups, quote both.
"""

from microbench.core.ops import Op, Query, Record, SynchronizeIdle, Wait
from microbench.experiments.launch.exchanges import launch_stamps
from microbench.gpu.protocol.gpu import WAIT_VARIABLE, Gpu
from microbench.meter.benchmark import Axis, Benchmark, Between, Meter, Metric, Params, Results

CALLS: dict[str, Op] = {
    "idle_stream": SynchronizeIdle("stream"),
    "idle_event": SynchronizeIdle("event"),
    "record": Record(),
    "record_untimed": Record(timed=False),
    "query": Query(),
    "wait_event": Wait(),
}
LENGTHS_NS = (0, 30_000, 1_000_000, 20_000_000)
MODES = ("spin", "yield", "blocking", "blocking_event")
# The most waits of a batch, and the time that it may take. With kernels of 20 ms a batch is one wait.
MOST_WAITS, BATCH_NS = 50, 5_000_000


def context_mode(params: Params) -> str:
    """The wait mode of the context. A blocking event blocks in every context, so its context spins."""
    return "spin" if params["wait"] == "blocking_event" else str(params["wait"])


def measure(gpu: Gpu, meter: Meter, wait: str, duration_ns: int) -> Results:
    blocking_event = wait == "blocking_event"
    count = max(min(MOST_WAITS, BATCH_NS // max(duration_ns, 1)), 1)
    yield from meter.collect_stamps(
        lambda: launch_stamps(gpu, count, duration_ns, blocking_event=blocking_event).stamps,
        {"from_kernel": Between(3, 4)},
    )
    if duration_ns == 0 and not blocking_event:
        for name, op in CALLS.items():
            yield meter.submit_time(name, gpu.bind(op))


BENCHMARK = Benchmark(
    title="Waiting for the GPU",
    metrics=(
        Metric("from_kernel", "time", "s", "from the kernel's last instruction until the wait for it returns"),
        Metric("idle_stream", "time", "s", "cuStreamSynchronize of an idle stream"),
        Metric("idle_event", "time", "s", "cuEventSynchronize of a completed event"),
        Metric("record", "time", "s", "cuEventRecord of a timing event"),
        Metric("record_untimed", "time", "s", "cuEventRecord of an event without timing"),
        Metric("query", "time", "s", "cuEventQuery of a completed event"),
        Metric("wait_event", "time", "s", "cuStreamWaitEvent on a completed event of another stream"),
    ),
    axes={
        "wait": Axis("how the host waits", MODES[:1], MODES, MODES),
        "duration_ns": Axis("length of the kernel that is waited for", (0,), LENGTHS_NS, LENGTHS_NS, maximum=10**9),
    },
    version=2,
    own_process=lambda params: f"launch_sync {context_mode(params)}",
    process_environment=lambda case: {WAIT_VARIABLE: context_mode(case.params)},
)
