"""What does it cost to hand work to another thread?

Question
    How long does a round trip to a thread on another core take: through a flag it spins on, threading.Event, or a pipe?
Method
    Two pinned threads wake each other in turn. One sample is the way to the other thread and back.
Reading
    A blocking wait for the GPU cannot return faster than the kernel wakes a thread.
"""

from microbench.meter.benchmark import Axis, Benchmark, Host, Meter, Metric, Results
from microbench.meter.sampling import seconds

HAND_OFFS = 50
WAYS = ("spin", "event", "pipe")


def measure(host: Host, meter: Meter, how: str) -> Results:
    host.wakeup_stamps(how, HAND_OFFS)
    yield from meter.collect_stamps(lambda: host.wakeup_stamps(how, HAND_OFFS), {"round_trip": seconds})


BENCHMARK = Benchmark(
    title="Thread hand-off",
    gpus=0,
    metrics=(Metric("round_trip", "time", "s", "to the other thread and back"),),
    axes={"how": Axis.same("how the other thread is woken", WAYS)},
    core=True,
)
