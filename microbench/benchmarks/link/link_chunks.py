"""Does it help to cut a large copy into pieces?

Question
    How long does a buffer take to reach the GPU in n pieces on one or several streams, without kernels and with a
    kernel that works on each piece?
Method
    A compiled loop times whole steps on the host: all copies (and kernels) of 64 MiB, and a wait for all streams. A
    kernel follows its piece in the same stream, reads it whole, and then spins; all kernels together run as long as the
    whole copy. Every kernel must have seen its own piece, and the device's copy is compared with the host's.
Reading
    Copies alone gain nothing from pieces and pay a fixed cost for each. With kernels, pieces on two streams let the
    next copy overlap the previous kernel: at best this halves the time.
"""

import numpy as np

from microbench.experiments.link.pipeline import chunked_copy, pieces
from microbench.meter.benchmark import Axis, Benchmark, Fact, Gpu, Meter, Metric, Results


def measure(gpu: Gpu, meter: Meter, work: str, chunks: int, streams: int, size_bytes: int) -> Results:
    kernel_ns = 0
    if work == "copy_and_kernel":
        whole_ns = np.zeros(3, dtype=np.int64)
        chunked_copy(gpu, size_bytes, 1, 1, 0).submit.round_trips(whole_ns)
        kernel_ns = int(np.median(whole_ns))
        yield Fact("kernel_ns", kernel_ns, source="the time of the whole copy", unit="ns")
    yield from pieces(meter, chunked_copy(gpu, size_bytes, chunks, streams, kernel_ns))


BENCHMARK = Benchmark(
    title="Chunked copies",
    metrics=(Metric("bandwidth", "rate", "B/s", "bytes copied over the host time of the whole step"),),
    axes={
        "work": Axis.same("content of a step", ("copy", "copy_and_kernel")),
        "chunks": Axis(
            "pieces of the buffer", (1, 16), (1, 4, 16), (1, 2, 4, 8, 16, 32, 64, 128), minimum=1, maximum=1024
        ),
        "streams": Axis("streams that take the pieces in turn", (1, 2), (1, 2), (1, 2, 3, 4), minimum=1, maximum=16),
        "size_bytes": Axis.sizes("bytes of the buffer", "64 MiB", "64 MiB", "64 MiB", least="64 KiB", most="4 GiB"),
    },
    combines=lambda params: int(params["streams"]) <= int(params["chunks"]),
)
