"""Do more threads submit more launches?

Question
    How many launches a second do several host threads reach together, each in its own stream?
Method
    Compiled loops run in threads that do not hold Python's lock, from a common start. Each stays well below its
    stream's queue depth.
Reading
    The driver serialises a part of each launch: the rate rises less than the number of threads, and each call takes
    longer.
"""

from microbench.experiments.launch.exchanges import threads_stamps
from microbench.meter.benchmark import NANOSECOND_S, Axis, Benchmark, Gpu, IntArray, Meter, Metric, Results, Work

LAUNCHES = 400


def measure(gpu: Gpu, meter: Meter, threads: int) -> Results:
    threads_stamps(gpu, threads, LAUNCHES)
    gpu.synchronize()

    def take() -> IntArray:
        gpu.synchronize()
        return threads_stamps(gpu, threads, LAUNCHES)

    def each_s() -> tuple[float]:
        stamps = take()
        return (float((stamps[:, 1] - stamps[:, 0]).mean()) * NANOSECOND_S,)

    def all_s() -> tuple[float]:
        stamps = take()
        return (float(stamps[:, 1].max() - stamps[:, 0].min()) * NANOSECOND_S,)

    yield meter.collect("rate", all_s, clock="host", work=Work(launches=threads * LAUNCHES))
    yield meter.collect("submit", each_s, clock="host", calls=LAUNCHES)


BENCHMARK = Benchmark(
    title="Many submitting threads",
    metrics=(
        Metric("rate", "rate", "1/s", "launches a second of all threads together"),
        Metric("submit", "time", "s/launch", "one launch call, mean over the threads"),
    ),
    axes={"threads": Axis("submitting threads", (1, 2, 4), (1, 2, 4, 8), (1, 2, 3, 4, 6, 8), minimum=1, maximum=64)},
)
