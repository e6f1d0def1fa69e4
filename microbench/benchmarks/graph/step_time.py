"""What does a whole step take, with waits and copies in it, and does the model foresee it?

Question
    A step of n kernels with some synchronises among them, or with a copy to the GPU before them and one back behind:
    how long does it take, launched one by one and replayed as graphs?
Method
    Spin kernels of calibrated length. The step is as many pieces as it has synchronises, each of as many kernels; in a
    stream each piece is launched and waited for, as graphs each is one replay and a wait. Both in turn in one process.
    The calls come from a compiled loop, or from Python through cuda.core, CuPy or Numba, each captured and replayed by
    its own means. Steps with copies have one synchronise, are submitted by the compiled loop part by part (Python
    lies between the parts), and are not replayed; what was copied is compared.
Reading
    Nothing that the model is fitted to is measured here: `microbench predict` says what these steps should take, and
    the finding says how far off it was.
"""

from collections.abc import Iterator, Mapping

import msgspec

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric, Param
from microbench.core.ops import LOOP_LAYER, LayerCall
from microbench.gpu.layers.base import spinning
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.submit import Submit
from microbench.measure.alternating import InOrder, steps
from microbench.measure.timer import Meter

LONGEST_STEP_NS = 20_000_000
MIB = 1 << 20


def combines(params: Mapping[str, Param]) -> bool:
    """Pieces alike, steps of at most LONGEST_STEP_NS, and copies in steps of the compiled loop with one wait."""
    kernels, duration_ns, waits = (int(params[name]) for name in ("kernels", "duration_ns", "waits"))
    plain = params["copy_bytes"] == 0 or (params["layer"] == LOOP_LAYER and waits == 1)
    return kernels % waits == 0 and kernels * duration_ns <= LONGEST_STEP_NS and plain


def late(params: Mapping[str, Param]) -> bool:
    """Nothing rests on it but a check."""
    return True


def measure(
    gpu: Gpu, meter: Meter, layer: str, kernels: int, duration_ns: int, waits: int, copy_bytes: int
) -> Iterator[Measured]:
    call = LayerCall(layer, duration_ns=duration_ns)
    stream = gpu.bind(call)
    piece = kernels // waits
    if copy_bytes:
        yield from _with_copies(gpu, meter, stream, kernels, copy_bytes)
        return
    graph = gpu.bind(gpu.graph([call] * piece))
    ways = {"stream": (stream, piece), "graph": (graph, 1)}
    yield from steps(meter, ways, waits=waits, verified="the graph has a node for each call")


def _with_copies(gpu: Gpu, meter: Meter, kernel: Submit, kernels: int, copy_bytes: int) -> Iterator[Measured]:
    there, back = gpu.links.copy("h2d", "pinned", copy_bytes), gpu.links.copy("d2h", "pinned", copy_bytes)
    ordered = InOrder(gpu, ((there.submit, 1), (kernel, kernels), (back.submit, 1)))
    there.fresh()
    back.fresh()
    found = steps(meter, {"stream": (ordered, 1)})
    verified = f"{there.check()}; {back.check()}"
    yield from (msgspec.structs.replace(one, verified=verified, needs_verification=True) for one in found)


BENCHMARK = Benchmark(
    name="step_time",
    suite="graph",
    title="Whole steps, against the model",
    about=__doc__ or "",
    metrics=(
        Metric("stream", "time", "s", "one step, launched call by call, its waits included"),
        Metric("graph", "time", "s", "the same step, a replay for each wait"),
    ),
    measure=measure,
    axes={
        "layer": Axis("who submits the kernels, and replays the graphs", (), (LOOP_LAYER,), spinning()),
        "kernels": Axis("kernels in a step", (), (240,), (60, 240, 600), minimum=1, maximum=10_000),
        "duration_ns": Axis("length of the kernel", (), (1500, 8000), (700, 1500, 4000, 8000, 15_000), maximum=10**7),
        "waits": Axis(
            "synchronises in a step, evenly among its kernels", (), (1, 6), (1, 6, 30), minimum=1, maximum=1000
        ),
        "copy_bytes": Axis("bytes copied to the GPU before the kernels, and back behind them", (), (0,), (0, MIB)),
    },
    fresh_process_by=("layer",),
    combines=combines,
    late=late,
)
