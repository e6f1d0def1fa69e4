"""Does a launch cost more with more arguments, blocks or threads?

Question
    How does the host time of a launch depend on the bytes of its parameter block, its grid and its block size?
Method
    Empty kernels are launched in bursts. One of the three varies at a time; the others stay at their smallest.
Reading
    The cost should be flat in grid and block size. A slope over the bytes is the copy of the parameter block into the
    launch queue.
"""

from microbench.meter.benchmark import Axis, Benchmark, Gpu, Launch, Meter, Metric, Results

SMALLEST: dict[str, int] = {"argument_bytes": 0, "grid_blocks": 1, "block_threads": 32}


def measure(gpu: Gpu, meter: Meter, argument_bytes: int, grid_blocks: int, block_threads: int) -> Results:
    op = Launch(argument_bytes=argument_bytes, grid_blocks=grid_blocks, block_threads=block_threads)
    yield meter.submit_time("submit", gpu.bind(op))


BENCHMARK = Benchmark(
    title="Arguments, grid and block",
    metrics=(Metric("submit", "time", "s/launch", "the launch call on the host, in bursts"),),
    axes={
        "argument_bytes": Axis(
            "bytes of the parameter block",
            (0, 1024, 4096),
            (0, 64, 256, 1024, 4096),
            (0, 8, 64, 256, 512, 1024, 2048, 3072, 4096),
            maximum=4096,
        ),
        "grid_blocks": Axis(
            "blocks of the grid", (1,), (1, 132, 65536), (1, 132, 1024, 65536), minimum=1, maximum=1 << 20
        ),
        "block_threads": Axis("threads a block", (32,), (32, 1024), (32, 256, 1024), minimum=1, maximum=1024),
    },
    # At most one axis is above its smallest value.
    combines=lambda params: sum(params[name] != least for name, least in SMALLEST.items()) <= 1,
)
