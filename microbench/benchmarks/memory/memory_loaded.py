"""How much longer does a read take while the other SMs keep the memory busy?

Question
    What is the latency of a dependent read of DRAM or of the L2 while all other SMs read the same level at a given
    share of the bandwidth that they can get?
Method
    Walk and load run in one launch. A thread on an SM of its own walks lines in random order past the L1. Every warp of
    the other SMs reads 2 KiB at fixed intervals, from a set of its SM's own. The interval follows from the bandwidth at
    full load, which is measured before. The walk is timed by both clocks of its SM. The load begins before the walk and
    ends after it; its bandwidth is its bytes over its own time, and its words are summed and compared. The same walk is
    timed in turn while the other SMs are idle.
Reading
    The latency rises slowly with the bandwidth until queues form. At 100 % the load reads without intervals, and a read
    waits behind the 64 KiB that each SM then has in flight; with fewer bytes in flight the latency there would be
    lower.
"""

import math

import msgspec
import numpy as np

from microbench.experiments.memory.chase import READS, LoadedLevel, loaded_chase
from microbench.meter.benchmark import Axis, Benchmark, Fact, Gpu, Meter, Metric, Results, Work, always, verified
from microbench.meter.sampling import Sample

# Walks under full load: their median says what the other SMs can get.
TRIALS = 3


def measure(gpu: Gpu, meter: Meter, level: LoadedLevel, load_percent: int) -> Results:
    chase = loaded_chase(gpu, level)
    full = float(np.median([chase.take(READS, math.inf).bytes_per_s for _ in range(TRIALS)]))
    # A share of what the other SMs reach when nothing holds them back; at 100 % nothing does.
    asked = full * load_percent / 100 if load_percent < 100 else math.inf
    cycles: list[float] = []

    def take() -> Sample:
        walk, idle = chase.take(READS, asked), chase.take(READS, 0.0)
        cycles.append(walk.cycles / READS)
        # A sample of the bandwidth is the time in which the load reads its set once.
        read_s = chase.load_bytes / walk.bytes_per_s
        return {"latency": walk.seconds, "idle": idle.seconds, "bandwidth": read_s}

    measured = meter.collect_each(("latency", "idle", "bandwidth"), take, clock="device", calls=READS)
    latency, idle, bandwidth = verified(measured, "every walk's last line, and the sum of all words that the load read")
    yield from (latency, idle)
    yield msgspec.structs.replace(bandwidth, calls_per_sample=1, work=Work(bytes=chase.load_bytes), bound=level)
    yield Fact("latency_cycles", round(float(np.median(cycles)), 1), source="clock64, the same walks", unit="cycle")
    yield Fact("load_bytes", chase.load_bytes, source="the set that the other SMs read", unit="B")


BENCHMARK = Benchmark(
    title="Latency under load",
    metrics=(
        Metric("latency", "time", "s", "one dependent read under load"),
        Metric("idle", "time", "s", "one dependent read while the other SMs are idle"),
        Metric("bandwidth", "rate", "B/s", "bytes read by all other SMs under load, each warp over its own time"),
    ),
    axes={
        "level": Axis("level that is read", (), ("dram", "l2"), ("dram", "l2")),
        "load_percent": Axis.numbers(
            "load of the other SMs in % of the bandwidth that they can get", "", "20 50 80 90 100",
            "5 10 20 30 40 50 60 70 75 80 85 90 95 100", least=1, most=100,
        ),
    },
    late=always,
    version=2,
)  # fmt: skip
