"""What does it cost to allocate pinned memory?

Question
    How long does it take to allocate pinned memory, or to pin existing memory, and to free it again? What does the same
    memory cost unpinned?
Method
    A compiled loop reads the host's clock before and after each call. allocate is cuMemHostAlloc; register is
    cuMemHostRegister of memory that was touched before; touch is pageable memory, mapped and written once a page. Each
    block is freed before the next.
Reading
    Pinning costs a time for each page. It pays off once enough copies have been made: each one saves what a pageable
    copy takes longer. Memory that is allocated once and reused is pinned only once.
"""

from microbench.experiments.memory.allocation import PinningWay, Taking, pinning
from microbench.meter.benchmark import NANOSECOND_S, Axis, Benchmark, Gpu, Meter, Metric, Results, Sample

WAYS: tuple[PinningWay, ...] = ("allocate", "register", "touch")


def measure(gpu: Gpu, meter: Meter, way: PinningWay, size_bytes: int) -> Results:

    def take() -> Sample:
        stamps = pinning(gpu, way, size_bytes, 1)[0] * NANOSECOND_S
        return {
            "pin": float(stamps[Taking.TAKEN] - stamps[Taking.BEGIN]),
            "release": float(stamps[Taking.RELEASED] - stamps[Taking.RELEASE_BEGIN]),
        }

    take()
    yield from meter.collect_each(("pin", "release"), take)


BENCHMARK = Benchmark(
    title="Cost of pinned memory",
    metrics=(
        Metric("pin", "time", "s", "host time to allocate, pin or touch the memory"),
        Metric("release", "time", "s", "host time to free it"),
    ),
    axes={
        "way": Axis("how the memory is made available", ("allocate", "touch"), WAYS, WAYS),
        "size_bytes": Axis.sizes(
            "bytes of the buffer",
            "4 MiB",
            "64 512 KiB 4 16 64 MiB",
            "4 64 512 KiB 1 4 16 64 256 MiB 1 GiB",
            least="1 B",
            most="16 GiB",
        ),
    },
)
