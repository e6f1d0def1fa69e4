"""How fast do two GPUs exchange data?

Question
    For each pair: how fast do copy engines and SMs read and write the other GPU's memory, one way and both ways at
    once, how long does one read take, and which rate remains without peer access?
Method
    The first GPU's copy engine or SMs move data from or to the second GPU's memory, behind a gate and between two
    events. Both ways at once: the second GPU makes twice as many such movements at the same time. The GPU with the
    destination compares the data at the end. Latency: dependent reads, one line of 128 bytes at a time, in the order of
    addresses. Without peer access the driver copies through host memory, and no gate holds the copies.
Reading
    The ceiling is the rate of all NVLinks of the GPU that moves the data, or that of its PCIe link if it has no NVLink.
    The GPUs of a slower pair may be farther apart: below different bridges or on different processors.
"""

from collections.abc import Sequence

from microbench.core.model import Environment, Measurement, Metric, Work
from microbench.experiments.link.chase import read_latency
from microbench.experiments.link.peers import Peer, PeerWay, peer_chase, peer_copies
from microbench.meter.benchmark import MIB, Axis, Benchmark, Gpu, Meter, Params, Results
from microbench.meter.transfers import MOST_QUEUED, SAMPLE_S, verified

MOST_GPUS = 16
SIZES = (0, 16 * MIB, 256 * MIB)
LATENCY = "latency"
WAYS = ("engine_read", "engine_write", "sm_read", "sm_write", "engine_both_read", "engine_both_write", LATENCY)
QUICK_WAYS = ("engine_write", LATENCY)
WITHOUT_ACCESS = ("engine_read", "engine_write")


def combines(params: Params) -> bool:
    """Two different GPUs; only copy engines work without peer access; a latency has no size."""
    apart = params["first"] != params["second"]
    sized = (params["way"] == LATENCY) == (params["size_bytes"] == 0)
    return apart and sized and (params["access"] == "on" or params["way"] in WITHOUT_ACCESS)


def here(environment: Environment, params: Params) -> str | None:
    """Why this machine lacks one of the GPUs, or None."""
    count, most = len(environment.gpus), max(int(params["first"]), int(params["second"]))
    return None if most < count else f"needs {max(most, 1) + 1} GPUs, {count} here"


def bound_of(gpu: Gpu, way: PeerWay) -> str:
    """The ceiling: all NVLinks, or PCIe where the GPU has none. Reads arrive as completions, like copies to the GPU."""
    if gpu.info.link.nvlinks != 0:
        return "nvlink"
    reads = way.endswith("read")
    if way.startswith("sm_"):
        return "pcie_sm_read" if reads else "pcie_sm_write"
    return "pcie_h2d" if reads else "pcie_d2h"


def measure(gpu: Gpu, meter: Meter, first: int, second: int, way: PeerWay, access: str, size_bytes: int) -> Results:
    if way == LATENCY:
        yield read_latency(meter, peer_chase(gpu, first, second, 2 * MIB))
        return
    peer = peer_copies(gpu, first, second, way, access == "on", size_bytes)
    yield from between_gpus(meter, peer, size_bytes, bound_of(gpu, way) if access == "on" else None)


def between_gpus(meter: Meter, peer: Peer, size_bytes: int, bound: str | None) -> list[Measurement]:
    """The rate from one GPU to another, by device events behind a gate."""
    peer.take_s(1)
    warm_s = peer.take_s(1) or SAMPLE_S
    count = min(max(round(SAMPLE_S / warm_s), 1), MOST_QUEUED)
    peer.fresh()

    def take() -> Sequence[float]:
        taken_s = peer.take_s(count)
        return () if taken_s is None else (taken_s,)

    work, floor_s = Work(bytes=size_bytes), meter.floors.event_pair_s
    measured = meter.collect("bandwidth", take, clock="device", calls=count, work=work, bound=bound, floor_s=floor_s)
    return verified([measured], peer.check())


BENCHMARK = Benchmark(
    title="From GPU to GPU",
    metrics=(
        Metric("bandwidth", "rate", "B/s", "bytes that the first GPU moves over the time on the device"),
        Metric("latency", "time", "s", "one dependent read of the second GPU's memory"),
    ),
    axes={
        "first": Axis.same("CUDA index of the GPU that moves the data", tuple(range(MOST_GPUS))),
        "second": Axis.same("CUDA index of the GPU whose memory is read or written", tuple(range(MOST_GPUS))),
        "way": Axis("what moves the data, and its direction", QUICK_WAYS, WAYS, WAYS),
        "access": Axis("peer access", ("on",), ("on", "off"), ("on", "off")),
        "size_bytes": Axis("bytes of a copy, 0 for latency", SIZES[::2], SIZES[::2], (0, MIB, *SIZES[1:]), 0, 1 << 34),
    },
    gpus=2,
    combines=combines,
    here=here,
)
