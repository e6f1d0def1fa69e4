"""How fast does the host copy memory?

Question
    What rate do one core and all cores reach copying between buffers of their own?
Method
    memcpy in threads pinned to a core each, from a common start, buffers touched before. The size is that of all
    threads' sources together and is larger than most last-level caches.
Reading
    Pageable copies to a GPU pass through such a copy first: one core's rate is their ceiling.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric, Work
from microbench.gpu.protocol.gpu import Host
from microbench.measure.timer import Meter


def measure(host: Host, meter: Meter, threads: str, size_bytes: int) -> Iterator[Measured]:
    count = host.cores() if threads == "all" else 1
    each_bytes = size_bytes // count
    host.copy_s(count, each_bytes)
    yield meter.collect(
        "rate",
        lambda: (host.copy_s(count, each_bytes),),
        clock="host",
        work=Work(bytes=2 * each_bytes * count),
        floor_s=meter.floors.timer_call_s,
    )


BENCHMARK = Benchmark(
    name="host_memory",
    suite="host",
    title="Copying host memory",
    about=__doc__ or "",
    gpus=0,
    metrics=(Metric("rate", "rate", "B/s", "bytes read plus bytes written a second, all threads together"),),
    measure=measure,
    axes={
        "threads": Axis.same("one core or all", ("one", "all")),
        "size_bytes": Axis(
            "bytes copied by all threads together",
            (256 << 20,),
            (256 << 20,),
            (256 << 20, 1 << 30),
            minimum=1 << 20,
            maximum=16 << 30,
        ),
    },
)
