"""What does a launch into a green context's stream cost, and does a long kernel hold it up?

Question
    How long are the launch call and the latency of a short kernel in a green context, which has a part of the SMs? How
    much later does the kernel end while another one fills all other SMs?
Method
    The short kernel has one block, which counts itself on its SM. submit: bursts of launches. latency: a launch and a
    synchronise. beside: the same once a long kernel fills its SMs with 5 waves of blocks of 200 us. It runs in a plain
    stream of all SMs, or in green_quarter and green_half in a green context of all other SMs. The driver rounds the
    part of the SMs up; the fact sms says to how many. The counts by %smid are checked: no block ran on an SM that its
    stream may not use.
Reading
    beside less latency is the wait. In a plain stream it is the rest of the long kernel, about 1 ms. With priority it
    is the rest of one block, about 200 us: priority stops no block that runs. SMs of its own need no wait. green_shared
    says whether they stay free beside a plain stream: on an H200 they do not, the wait is 1 ms. Error: both are
    times of the host, and the short kernel is launched some us after the SMs are full.
"""

from typing import get_args

from microbench.experiments.launch.green import GreenStream, short_kernel
from microbench.meter.benchmark import Axis, Benchmark, Fact, Gpu, Meter, Metric, Results, always

STREAMS: tuple[str, ...] = get_args(GreenStream)


def measure(gpu: Gpu, meter: Meter, stream: GreenStream) -> Results:
    kernel = short_kernel(gpu, stream)
    verified = kernel.check()
    yield meter.submit_time("submit", kernel.short)
    yield meter.round_trip("latency", kernel.short)
    yield meter.host_ns("beside", kernel.beside_ns, verified=verified)
    yield Fact("sms", kernel.sms, source="SMs that the stream may use")


BENCHMARK = Benchmark(
    title="Streams with SMs of their own",
    metrics=(
        Metric("submit", "time", "s/launch", "the launch call on the host, in bursts"),
        Metric("latency", "time", "s", "a launch and a synchronise, with the GPU idle before"),
        Metric("beside", "time", "s", "the same while a long kernel fills its SMs"),
    ),
    axes={"stream": Axis("stream of the short kernel", ("plain", "priority", "green_quarter"), STREAMS, STREAMS)},
    own_process=lambda params: "launch_green",  # green contexts may change later launches of their process
    late=always,
)
