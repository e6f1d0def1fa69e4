"""How fast are NCCL's operations between GPUs?

Question
    How long do all-reduce, all-gather and send/receive take, by size: the latency of small messages, and the bus
    bandwidth of large ones compared with the limit of NVLink?
Method
    The method is that of nccl-tests (float32, out of place, -g GPUs): one thread drives all GPUs, with the calls of all
    ranks in one group. After a warm-up, a batch of 20 calls is timed by the host's clock until all GPUs are done. In
    send_recv each rank sends to the next. loop calls NCCL's C interface from the compiled loop; nccl4py is NVIDIA's
    Python binding, with CuPy arrays. Every received element is compared with its exact value.
Reading
    Algorithm bandwidth is size over time; all_gather counts the data of all ranks. Bus bandwidth is that times 2 (n -
    1) / n for all_reduce, (n - 1) / n for all_gather and 1 for send_recv: what each GPU's links carry one way in a
    ring. The bus bandwidth of all_gather and send_recv is compared with NVLink, because each GPU must receive these
    bytes over its own links. With NVLink SHARP all_reduce may exceed NVLink's rate, because the switches add. A ring of
    one GPU copies within its own memory: it has no bus bandwidth and does not measure links.
"""

from functools import partial

import msgspec

from microbench.core.bench import KIB, MIB, Axis, Benchmark, Package, always
from microbench.core.model import Environment, Metric, Work
from microbench.experiments.link.collectives import Binding, CollectiveName, bus_factor, nccl_collective
from microbench.meter.benchmark import Gpu, Meter, Params, Results, verified

BATCH_OF_CALLS = 20  # nccl-tests' default
EVERY_GPU = "all"
SMALL_BYTES = 1 * KIB
# 128 bytes are the minimum of nccl-tests' all_gather on 8 ranks, 16 for each.
SIZES = (128, 64 * KIB, 16 * MIB, 256 * MIB)
FULL_SIZES = (128, 1 * KIB, 8 * KIB, 64 * KIB, 512 * KIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
BINDINGS = ("loop", "nccl4py")
OPERATIONS = ("all_reduce", "all_gather", "send_recv")
NCCL4PY = Package("nccl", "pip install nccl4py")


def here(environment: Environment, params: Params) -> str | None:
    """Why a number of GPUs cannot be measured here, or None. All GPUs of the machine are ``all``."""
    count, asked = len(environment.gpus), params["gpus"]
    if asked == EVERY_GPU or int(asked) < count:
        return None
    if int(asked) == count:
        return f"this machine has {count} GPU{'s' if count > 1 else ''}: use gpus=all"
    return f"needs {asked} GPUs, {count} here"


def measure(gpu: Gpu, meter: Meter, operation: CollectiveName, binding: Binding, gpus: str, size_bytes: int) -> Results:
    """Metric ``call``: the time of one call in a batch of BATCH_OF_CALLS, until all GPUs are done, on the host's clock.

    That is how nccl-tests times. Small messages get metric ``round_trip`` besides: one call and the wait for it. Others
    get the same samples as metric ``algorithm_bandwidth`` and, with several GPUs, as ``bus_bandwidth``.
    """
    ranks = None if gpus == EVERY_GPU else int(gpus)
    collective = nccl_collective(gpu, operation, binding, ranks, size_bytes)
    # An all_gather by NVLink SHARP sends less than one by a ring, but each GPU receives as much (NCCL issue 1506).
    bound = "nvlink" if gpu.info.link.nvlinks and operation != "all_reduce" else None
    collective.take_ns(BATCH_OF_CALLS)
    collective.fresh()
    call = meter.host_ns("call", partial(collective.take_ns, BATCH_OF_CALLS), calls=BATCH_OF_CALLS)
    measured = [call]
    if size_bytes <= SMALL_BYTES:
        measured.append(meter.host_ns("round_trip", partial(collective.take_ns, 1)))
    else:
        work = Work(bytes=collective.size_bytes)
        measured.append(msgspec.structs.replace(call, metric="algorithm_bandwidth", work=work))
        if factor := bus_factor(operation, collective.ranks):
            work = Work(bytes=round(factor * collective.size_bytes))
            measured.append(msgspec.structs.replace(call, metric="bus_bandwidth", work=work, bound=bound))
    yield from verified(measured, collective.check())
    yield from collective.facts()


BENCHMARK = Benchmark(
    title="NCCL operations",
    metrics=(
        Metric("call", "time", "s", "one call in a batch of 20, until all GPUs are done"),
        Metric("round_trip", "time", "s", "one call and the wait until all GPUs are done"),
        Metric("algorithm_bandwidth", "rate", "B/s", "size over the time of a call, as nccl-tests counts it"),
        Metric("bus_bandwidth", "rate", "B/s", "what a GPU's links carry one way in a ring, as nccl-tests counts it"),
    ),
    axes={
        "operation": Axis.same("NCCL operation; in send_recv each GPU sends to the next", OPERATIONS),
        "binding": Axis("who calls NCCL: the compiled loop, or Python", BINDINGS[:1], BINDINGS, BINDINGS),
        "gpus": Axis("how many GPUs take part", (EVERY_GPU,), (EVERY_GPU,), (EVERY_GPU, "1", "2", "4", "8")),
        "size_bytes": Axis("bytes as nccl-tests counts them", SIZES[::3], SIZES, FULL_SIZES, 1, 1 << 34),
    },
    needs=lambda params: NCCL4PY if params["binding"] == "nccl4py" else None,
    gpus="all",
    own_process=lambda params: "nccl",  # NCCL's threads and buffers remain in their process
    here=here,
    late=always,  # NCCL takes seconds to begin
)
