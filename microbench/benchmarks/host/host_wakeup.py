"""What does it cost to hand work to another thread?

Question
    How long is the way to a thread on another core and back: by a flag it spins on, by threading.Event, by a pipe?
Method
    Two pinned threads take turns; each turn and back is one sample.
Reading
    A blocking wait for the GPU cannot answer faster than the kernel wakes a thread.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric
from microbench.gpu.protocol.gpu import Host
from microbench.measure.sampling import seconds
from microbench.measure.timer import Meter

HAND_OFFS = 50
WAYS = ("spin", "event", "pipe")


def measure(host: Host, meter: Meter, how: str) -> Iterator[Measured]:
    host.wakeup_stamps(how, HAND_OFFS)
    yield from meter.collect_stamps(lambda: host.wakeup_stamps(how, HAND_OFFS), {"round_trip": seconds})


BENCHMARK = Benchmark(
    name="host_wakeup",
    suite="host",
    title="Handing over to a thread",
    about=__doc__ or "",
    gpus=0,
    metrics=(Metric("round_trip", "time", "s", "to the other thread and back"),),
    measure=measure,
    axes={"how": Axis.same("the way of waking", WAYS)},
)
