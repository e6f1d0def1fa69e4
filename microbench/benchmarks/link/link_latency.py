"""How long does the shortest exchange across the link take?

Question
    How long does a GPU wait for one word of host memory, and the host for one copy, one memset, or one answer of a
    kernel?
Method
    host_read: one GPU thread follows a chain of addresses through pinned host memory, one line of 128 bytes at a time,
    on each SM in turn. The mean is over all reads; the percentiles are of single reads of one SM, each stamped by its
    clock, which adds about 15 ns. flag: the host writes a flag and a running kernel answers with another. copies and
    memset: a compiled loop times one call of 4 bytes with a synchronise, and bursts of the call alone; the copied data
    are compared.
Reading
    A read crosses the link twice. Every switch on the way adds to it (0.1 to 0.3 us by rule of thumb), and so does
    address translation where the footprint exceeds its caches.
"""

import numpy as np

from microbench.core.ops import IntArray, Memset
from microbench.experiments.launch.exchanges import flag_round_trips
from microbench.experiments.link.chase import LINE_BYTES, Order, host_chase, read_latency
from microbench.experiments.link.copies import engine_copy
from microbench.gpu.protocol.gpu import Direction, Transfer
from microbench.meter.benchmark import Axis, Benchmark, Fact, Gpu, Measurement, Meter, Metric, Params, Results
from microbench.meter.sampling import seconds
from microbench.meter.transfers import HOST_BATCH, verified

EXCHANGES = 100
SMALL_BYTES = 4
SMALL: dict[str, Direction] = {"copy_h2d": "h2d", "copy_d2h": "d2h"}
MEMSET = "memset"
WHAT = ("host_read", "flag", *SMALL, MEMSET)


def combines(params: Params) -> bool:
    """Only reads have a footprint and an order."""
    if params["what"] == "host_read":
        return params["footprint_bytes"] != 0
    return params["footprint_bytes"] == 0 and params["order"] == "sequential"


def measure(gpu: Gpu, meter: Meter, what: str, footprint_bytes: int, order: Order) -> Results:
    if what == "host_read":
        yield read_latency(meter, host_chase(gpu, footprint_bytes, order))
        yield Fact("stride_bytes", LINE_BYTES, source="a line holds the address of the next")
    elif what == "flag":
        flag_round_trips(gpu, EXCHANGES)
        found = meter.collect_stamps(
            lambda: flag_round_trips(gpu, EXCHANGES), {"latency": seconds}, verified="every flag was answered"
        )
        yield from found
    elif what == MEMSET:
        memset = gpu.bind(Memset(SMALL_BYTES))
        yield meter.round_trip("latency", memset)
        yield meter.submit_time("submit", memset, per_call=False)
    else:
        copy = engine_copy(gpu, SMALL[what], "pinned", SMALL_BYTES)
        yield from small_copy(meter, copy)
        copy.fresh()
        submitted = meter.submit_time("submit", copy.submit, per_call=False)
        yield from verified([submitted], copy.check())


def small_copy(meter: Meter, transfer: Transfer) -> list[Measurement]:
    """Seconds of one copy and its synchronise, with percentiles: metric ``latency``."""
    out_ns = np.zeros(HOST_BATCH, dtype=np.int64)
    transfer.submit.round_trips(out_ns)
    transfer.fresh()

    def take() -> IntArray:
        transfer.submit.round_trips(out_ns)
        return out_ns

    return verified(meter.collect_stamps(take, {"latency": seconds}), transfer.check())


BENCHMARK = Benchmark(
    title="Latency of the link",
    metrics=(
        Metric("latency", "time", "s", "one read, one exchange of flags, or one call with its synchronise"),
        Metric("submit", "time", "s/launch", "the call of a copy or memset on the host, in bursts"),
    ),
    axes={
        "what": Axis("kind of exchange", ("host_read", "flag", "copy_h2d", "copy_d2h"), WHAT, WHAT),
        "footprint_bytes": Axis.sizes(
            "bytes over which the reads are spread; 0 where nothing is read",
            "0 B 2 MiB",
            "0 B 2 64 MiB",
            "0 B 64 KiB 1 2 16 64 256 MiB 1 GiB",
            most="16 GiB",
        ),
        "order": Axis(
            "order in which the lines are read", ("sequential",), ("sequential", "random"), ("sequential", "random")
        ),
    },
    combines=combines,
    core=True,
)
