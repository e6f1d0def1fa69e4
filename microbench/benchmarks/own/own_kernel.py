"""How long does my kernel run, and what limits it: launch, latency, bandwidth, compute or the last wave?

Question
    How long does a kernel of a CUDA C++ file run, which resources of an SM does it use, and how near is it to the
    measured limits of this GPU?
Method
    NVRTC compiles the file for this GPU. Arrays of floats are random, arrays of whole numbers are zero. Launches in a
    row are timed by events behind a gate, which includes the gap between them; one launch is timed with other data in
    the L2. Finally CUPTI records the durations of single kernels. Rates are the user's figures for bytes and
    operations, divided by these durations, or by the time of launches in a row if CUPTI does not record.
Reading
    The rate is compared with what this GPU reached in the benchmarks of memory and compute, not with its data sheet. A
    kernel far from all of these limits is latency-bound: too few bytes in flight, or dependent instructions.
"""

from microbench.core.targets import argument, dimensions, target, whole
from microbench.experiments.own.kernel import KernelResources, KernelSpec, OwnKernel, own_kernel
from microbench.meter.benchmark import NANOSECOND_S, Axis, Benchmark, Fact, Gpu, Metric, Param, Results, Skip, Work
from microbench.meter.timer import Meter, cold
from microbench.meter.transfers import rates

LAUNCHES = 100
WORK_S = 20e-3  # of one sample


def measure(
    gpu: Gpu,
    meter: Meter,
    kernel: str,
    grid: str = "1",
    block: str = "1",
    arguments: str = "",
    shared: str = "0",
    bytes: str = "0",
    flop: str = "0",
    precision: str = "fp32",
    options: str = "",
    **axes: Param,
) -> Results:
    place, compiler, known = target(kernel), options.split(), {name: float(value) for name, value in axes.items()}
    spec = KernelSpec(
        file=place.place,
        name=place.name,
        grid=dimensions(grid, known),
        block=dimensions(block, known),
        arguments=tuple(argument(text, known) for text in arguments.split()),
        shared_bytes=whole(shared, known, least=0),
        cooperative="cooperative" in compiler,
        options=tuple(option for option in compiler if option != "cooperative"),
        work_bytes=whole(bytes, known, least=0),
        work_flops=whole(flop, known, least=0),
    )
    own = own_kernel(gpu, spec)
    meter.tick("warm_up", 1, 0.0)
    yield from _resources(own.resources, "SIMULATED" if gpu.simulated else "driver and compiler")
    waves = spec.grid[0] * spec.grid[1] * spec.grid[2] / (own.resources.blocks_per_sm * own.resources.sms)
    yield Fact("waves", round(waves, 4), source="blocks of the grid over the blocks that are resident at once")
    yield Fact("block_threads", spec.block[0] * spec.block[1] * spec.block[2], source="the launch")
    yield meter.submit_time("submit", own.submit)
    count = _count(gpu, meter, own)
    in_a_row = meter.device_time("duration", own.submit, count)
    yield in_a_row
    yield meter.collect("cold", cold(gpu, own.submit), clock="device", floor_s=meter.floors.event_pair_s)
    timed, over = in_a_row, "launches in a row"
    try:
        own.profiled_ns(1)
    except Skip as skip:
        yield Fact("kernel", None, source="CUPTI", reason=str(skip))
    else:
        recorded = meter.collect(
            "kernel", lambda: [float(one) * NANOSECOND_S for one in own.profiled_ns(min(count, 10))], clock="device",
            floor_s=meter.floors.event_step_s,
        )  # fmt: skip
        yield recorded
        if min(recorded.values) > 0:
            timed, over = recorded, "the kernel's duration"
    yield from rates(timed, over, Work(bytes=spec.work_bytes, flops=spec.work_flops))


def _count(gpu: Gpu, meter: Meter, own: OwnKernel) -> int:
    """The number of launches in a sample, which takes at most WORK_S."""
    began_ns = meter.clock.now_ns()
    own.submit(5)
    gpu.synchronize()
    call_s = max((meter.clock.now_ns() - began_ns) * NANOSECOND_S / 5, NANOSECOND_S)
    return max(min(LAUNCHES, round(WORK_S / call_s), (own.submit.queue_slots or LAUNCHES) - 2), 1)


def _resources(resources: KernelResources, source: str) -> Results:
    units = {"shared_bytes": "B", "local_bytes": "B", "spill_bytes": "B"}
    for name, value in resources._asdict().items():
        yield Fact(name, value, source=source, unit=units.get(name, ""))


BENCHMARK = Benchmark(
    title="A kernel of your own and what limits it",
    metrics=(
        Metric("duration", "time", "s", "GPU time of one launch of many in a row, including its gap (events)"),
        Metric("kernel", "time", "s", "duration of a single kernel as profilers report it (CUPTI)"),
        Metric("cold", "time", "s", "one launch with other data in the L2, including two events around it"),
        Metric("submit", "time", "s/launch", "the launch call on the host, in bursts"),
        Metric("bandwidth", "rate", "B/s", "the bytes given, over the kernel's duration"),
        Metric("throughput", "rate", "FLOP/s", "the operations given, over the kernel's duration"),
    ),
    axes={
        "kernel": Axis.same("the kernel, as `microbench measure` names it", ()),
        "grid": Axis.same("blocks of the grid", ()),
        "block": Axis.same("threads of a block", ()),
        "arguments": Axis.same("its arguments", ()),
        "shared": Axis.same("dynamic shared memory of a block", ()),
        "bytes": Axis.same("bytes that one launch moves, as the user says", ()),
        "flop": Axis.same("operations of one launch, as the user says", ()),
        "precision": Axis.same("the type that it computes in", ()),
        "options": Axis.same("options of the compiler; cooperative is a kind of launch", ()),
    },
    own_process=lambda params: " ".join(f"{name}={value}" for name, value in sorted(params.items())) or "own",
    version=3,
)
