"""Do GPUs share an uplink?

Question
    Which rate does one GPU's copy keep while the other GPUs copy as well?
Method
    Every GPU copies pinned memory near it. The copies are queued behind gates that open directly after each other; the
    gate of the measured GPU opens last. Its own events time its copies; the other GPUs make twice as many. alone and
    together are measured in turn. All data are compared at the end. The full preset also measures pair by pair.
Reading
    A GPU that keeps its rate shares no link on the way to the memory. If two GPUs copying together fall to half of
    their rates, they share an uplink (a switch), or a processor whose memory is the limit.
"""

import msgspec

from microbench.core.model import Environment, Metric, Work
from microbench.experiments.link.concurrent import Concurrent, concurrent_copies, visible_gpus
from microbench.experiments.link.copies import others_busy
from microbench.gpu.protocol.gpu import Direction
from microbench.meter.benchmark import MIB, Axis, Benchmark, Gpu, Meter, Params, Results, Sample
from microbench.meter.transfers import MOST_QUEUED, SAMPLE_S, verified

MOST_GPUS = 16
EVERYBODY = "all"


def here(environment: Environment, params: Params) -> str | None:
    """Why this machine lacks one of the GPUs, or None."""
    count = len(environment.gpus)
    named = [int(params["gpu_index"])] + [int(params["beside"]) for _ in (0,) if params["beside"] != EVERYBODY]
    return None if count > 1 and max(named) < count else f"needs {max(*named, 1) + 1} GPUs, {count} here"


def measure(gpu: Gpu, meter: Meter, direction: Direction, gpu_index: int, beside: str, size_bytes: int) -> Results:
    others = [one for one in visible_gpus(gpu) if one != gpu_index] if beside == EVERYBODY else [int(beside)]
    alone = concurrent_copies(gpu, direction, [gpu_index], size_bytes)
    together = concurrent_copies(gpu, direction, [gpu_index, *others], size_bytes)
    yield from alone_and_together(meter, alone, together, size_bytes, bound=f"pcie_{direction}")


def alone_and_together(meter: Meter, alone: Concurrent, together: Concurrent, size_bytes: int, bound: str) -> Results:
    """Metrics ``alone`` and ``together``: the first GPU's rate by itself and with the others, in turn."""
    alone.take_s(1)
    warm = alone.take_s(1)
    one_s = float(warm[0]) if warm is not None else SAMPLE_S
    count = min(max(round(SAMPLE_S / one_s), 1), MOST_QUEUED // 2)
    together.take_s(1)
    alone.fresh()
    together.fresh()
    busy: list[bool] = []

    def take() -> Sample:
        alone_s, together_s = alone.take_s(count), together.take_s(count)
        if alone_s is None or together_s is None:
            return {}
        busy.append(bool(together_s.min() >= together_s[0]))
        return {"alone": float(alone_s[0]), "together": float(together_s[0])}

    floor_s, work = meter.floors.event_pair_s, Work(bytes=size_bytes)
    both = meter.collect_each(("alone", "together"), take, clock="device", calls=count, work=work, floor_s=floor_s)
    checked = "; ".join(dict.fromkeys((alone.check(), together.check())))
    yield from verified([msgspec.structs.replace(each, bound=bound) for each in both], checked)
    yield others_busy(busy)


NAMES = (EVERYBODY, *(str(index) for index in range(MOST_GPUS)))
BENCHMARK = Benchmark(
    title="Several GPUs at once",
    metrics=(
        Metric("alone", "rate", "B/s", "bytes of this GPU's copies over their time, while no other GPU copies"),
        Metric("together", "rate", "B/s", "bytes of this GPU's copies over their time, while the others copy"),
    ),
    axes={
        "direction": Axis.same("h2d: to the GPUs, d2h: from them", ("h2d", "d2h")),
        "gpu_index": Axis.same("CUDA index of the measured GPU", tuple(range(MOST_GPUS))),
        "beside": Axis("CUDA index of the GPU that copies meanwhile", (EVERYBODY,), (EVERYBODY,), NAMES),
        "size_bytes": Axis.same("bytes of a copy", (64 * MIB,), minimum=1, maximum=1 << 34),
    },
    gpus=2,
    combines=lambda params: params["beside"] != str(params["gpu_index"]),
    here=here,
)
