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

from collections.abc import Iterator, Mapping

from microbench.experiments.link.pinning import PinningWay, pinning
from microbench.experiments.memory.allocation import Taking
from microbench.meter.benchmark import KIB, MIB, NANOSECOND_S, Axis, Benchmark, Gpu, Measured, Meter, Metric

WAYS: tuple[PinningWay, ...] = ("allocate", "register", "touch")


def measure(gpu: Gpu, meter: Meter, way: PinningWay, size_bytes: int) -> Iterator[Measured]:

    def take() -> Mapping[str, float]:
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
        "size_bytes": Axis(
            "bytes of the buffer",
            (4 * MIB,),
            (64 * KIB, 4 * MIB, 64 * MIB),
            (4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB),
            minimum=1,
            maximum=1 << 34,
        ),
    },
)
