"""Do GPUs share an uplink?

Question
    What does one GPU's copy keep while the other GPUs copy as well?
Method
    Pinned copies of every GPU, in memory near it, queued behind gates that open one right after the other, that of the
    GPU that is measured last; it is timed by its own events, the others copy twice as often. Alone and together in
    turn. All data are compared afterwards. In the full preset also pair by pair.
Reading
    GPUs that keep their rate have a link of their own up to the memory. Two that fall to half when they run as a pair
    hang on one uplink (a switch), or on one processor whose memory is the limit.
"""

from collections.abc import Iterator, Mapping

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Environment, Metric, Param
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.links import Direction
from microbench.measure.timer import Meter
from microbench.measure.transfers import alone_and_together

MIB = 1 << 20
MOST_GPUS = 16
EVERYBODY = "all"


def combines(params: Mapping[str, Param]) -> bool:
    """Nobody is beside itself."""
    return params["beside"] != str(params["gpu_index"])


def here(environment: Environment, params: Mapping[str, Param]) -> str | None:
    """GPUs that this machine has."""
    count = len(environment.gpus)
    named = [int(params["gpu_index"])] + [int(params["beside"]) for _ in (0,) if params["beside"] != EVERYBODY]
    return None if count > 1 and max(named) < count else f"needs {max(*named, 1) + 1} GPUs, {count} here"


def measure(
    gpu: Gpu, meter: Meter, direction: Direction, gpu_index: int, beside: str, size_bytes: int
) -> Iterator[Measured]:
    others = [one for one in gpu.links.gpus() if one != gpu_index] if beside == EVERYBODY else [int(beside)]
    alone = gpu.links.concurrent(direction, [gpu_index], size_bytes)
    together = gpu.links.concurrent(direction, [gpu_index, *others], size_bytes)
    yield from alone_and_together(meter, alone, together, size_bytes, bound=f"pcie_{direction}")


NAMES = (EVERYBODY, *(str(index) for index in range(MOST_GPUS)))
BENCHMARK = Benchmark(
    name="link_concurrent",
    suite="link",
    title="All GPUs at once",
    about=__doc__ or "",
    metrics=(
        Metric("alone", "rate", "B/s", "bytes of this GPU's copies over their time, no other GPU copying"),
        Metric("together", "rate", "B/s", "bytes of this GPU's copies over their time, the others copying"),
    ),
    measure=measure,
    axes={
        "direction": Axis.same("h2d: to the GPUs, d2h: from them", ("h2d", "d2h")),
        "gpu_index": Axis.same("CUDA index of the GPU that is measured", tuple(range(MOST_GPUS))),
        "beside": Axis("CUDA index of the GPU that copies beside it", (EVERYBODY,), (EVERYBODY,), NAMES),
        "size_bytes": Axis.same("bytes of a copy", (64 * MIB,), minimum=1, maximum=1 << 34),
    },
    gpus=2,
    combines=combines,
    here=here,
)
