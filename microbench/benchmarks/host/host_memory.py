"""How fast does the host copy memory, with one core and with all?

Question
    Which rate do one core and all cores reach when they copy between buffers of their own?
Method
    Each thread is pinned to a core and runs memcpy on buffers that it touched before; all threads start together. The
    source buffers together have the given size, which exceeds most last-level caches.
Reading
    The rate counts bytes read and bytes written. For a pageable copy to the GPU the host first makes such a copy. The
    rate of a pageable copy counts each byte once, so half of the rate of one core limits it.
"""

from microbench.meter.benchmark import Axis, Benchmark, Host, Meter, Metric, Results, Work


def measure(host: Host, meter: Meter, threads: str, size_bytes: int) -> Results:
    count = host.cores() if threads == "all" else 1
    each_bytes = size_bytes // count
    host.copy_s(count, each_bytes)
    work = Work(bytes=2 * each_bytes * count)
    yield meter.collect("rate", lambda: (host.copy_s(count, each_bytes),), clock="host", work=work)


BENCHMARK = Benchmark(
    title="Copying host memory",
    gpus=0,
    metrics=(Metric("rate", "rate", "B/s", "bytes read plus bytes written by all threads"),),
    axes={
        "threads": Axis.same("cores that copy", ("one", "all")),
        "size_bytes": Axis.sizes(
            "bytes copied by all threads together", "256 MiB", "256 MiB", "256 MiB 1 GiB", least="1 MiB", most="16 GiB"
        ),
    },
    core=True,
)
