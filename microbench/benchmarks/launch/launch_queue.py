"""How many launches can be queued before the call blocks?

Question
    At which number of outstanding launches does the launch call begin to block, for each size of the arguments?
Method
    A gate holds the stream and opens only by its own time-out. Every launch call behind it is stamped. The first call
    that takes a quarter of the time-out or longer found the queue full.
Reading
    Beyond this depth the host waits for the GPU, and a loop around the launch times the device. The driver makes other
    queues where CUDA_SCALE_LAUNCH_QUEUES is 0.25x to 4x: run it with and without, and compare.
"""

import numpy as np

from microbench.core.bench import Axis, Benchmark
from microbench.meter.benchmark import Gpu, IntArray, Launch, MeasurementError, Metric, Results, Submit
from microbench.meter.timer import WARM_UP_CALLS, Meter

# Launches and time-out (s). Queues of the usual depth fill in the first try; drivers can be configured for deeper ones.
TRIES = ((2200, 0.04), (9000, 0.2))


def first_blocked(gpu: Gpu, submit: Submit, count: int, timeout_s: float) -> int | None:
    """The number of calls before the first one that blocked; None if none did."""
    gate = gpu.gate()
    stamps: IntArray = np.zeros(count + 1, dtype=np.int64)
    gate.shut(timeout_s=timeout_s)
    submit.stamps(stamps)
    gpu.synchronize()
    blocked = np.flatnonzero(np.diff(stamps) > timeout_s * 1e9 / 4)
    return int(blocked[0]) if gate.was_late() and blocked.size else None


def measure(gpu: Gpu, meter: Meter, argument_bytes: int) -> Results:
    submit = gpu.bind(Launch(argument_bytes=argument_bytes))
    submit.stamps(
        np.zeros(WARM_UP_CALLS, dtype=np.int64)
    )  # loads kernel and loop, which takes longer than the time-out
    gpu.synchronize()
    for count, timeout_s in TRIES:
        if first_blocked(gpu, submit, count, timeout_s) is not None:
            break
    else:
        raise MeasurementError(f"none of {count} launches behind a gate blocked: the queue is deeper")

    def take() -> tuple[float, ...]:
        depth = first_blocked(gpu, submit, count, timeout_s)
        return () if depth is None else (float(depth),)

    yield meter.collect(
        "depth", take, clock="counter", verified="the gate opened by its own time-out", needs_verification=True
    )


BENCHMARK = Benchmark(
    title="Depth of the launch queue",
    metrics=(Metric("depth", "count", "launch", "launches queued in one stream before the call blocks"),),
    axes={
        "argument_bytes": Axis.numbers(
            "bytes of the parameter block", "0", "0 1024 3072 4096", "0 64 256 1024 2048 2560 3072 3584 4096", most=4096
        )
    },
    core=True,
)
