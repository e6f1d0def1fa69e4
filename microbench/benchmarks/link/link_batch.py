"""How fast do many small pieces reach the GPU?

Question
    What rate do pieces of a few KiB reach if each is a copy of its own, if one call takes all of them, and if a kernel
    gathers them?
Method
    Pieces of pinned memory, with gaps of their size between them, go to the GPU one way after the other. loop:
    cuMemcpyHtoDAsync for each piece, from compiled code; batched: one cuMemcpyBatchAsync; gather: one kernel, a block a
    piece. Host time of everything until the GPU is done; every byte is compared, also those between the pieces.
Reading
    A copy costs a microsecond or two of host time and of the copy engine, however small it is. A kernel has only the
    link in its way, and keeps the SMs busy meanwhile. Where batched is no faster than loop, the driver copies in turn.
"""

from typing import get_args

from microbench.experiments.link.pipeline import BatchWay, batched_copy, pieces
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results, always


def measure(gpu: Gpu, meter: Meter, way: BatchWay, piece_bytes: int, pieces_copied: int) -> Results:
    yield from pieces(meter, batched_copy(gpu, way, piece_bytes, pieces_copied))


BENCHMARK = Benchmark(
    title="Many small copies",
    metrics=(Metric("bandwidth", "rate", "B/s", "bytes of all pieces over the host time until they are there"),),
    axes={
        "way": Axis.same("how the pieces are copied", get_args(BatchWay)),
        "piece_bytes": Axis.sizes(
            "bytes a piece", "4 KiB", "4 16 28 64 128 256 KiB", "1 4 16 28 64 128 256 KiB", least="16 B", most="64 MiB"
        ),
        "pieces_copied": Axis("pieces", (256,), (256,), (16, 256, 1024), minimum=1, maximum=4096),
    },
    late=always,
)
