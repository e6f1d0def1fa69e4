"""How long does a whole step take, and does the model predict it?

Question
    A step has n kernels with some synchronises among them, or a copy to the GPU before them and one back after them.
    How long does it take, launched one by one and replayed as graphs?
Method
    Spin kernels have a calibrated length. The step has as many pieces as synchronises, each with the same number of
    kernels. In a stream each piece is launched and waited for; as graphs each piece is one replay and a wait. Both run
    in turn in one process. The calls come from a compiled loop, or from Python through cuda.core, CuPy or Numba, each
    with its own capture and replay. Steps with copies have one synchronise, are submitted part by part by the compiled
    loop (with Python between the parts), and are not replayed; the copied data are compared.
Reading
    The model is not fitted to anything measured here. `microbench predict` says what these steps should take, and the
    finding says how far off it was.
"""

import msgspec

from microbench.core.bench import MIB, Axis, Benchmark, always
from microbench.experiments.link.copies import engine_copy
from microbench.gpu.layers.base import layer_titles, package_of, process_of, spinning
from microbench.meter.alternating import InOrder, steps
from microbench.meter.benchmark import LOOP_LAYER, Gpu, LayerCall, Meter, Metric, Params, Results

LONGEST_STEP_NS = 20_000_000


def combines(params: Params) -> bool:
    """Equal pieces, steps of at most LONGEST_STEP_NS, and copies only from the compiled loop with one wait."""
    kernels, duration_ns, waits = (int(params[name]) for name in ("kernels", "duration_ns", "waits"))
    plain = params["copy_bytes"] == 0 or (params["layer"] == LOOP_LAYER and waits == 1)
    return kernels % waits == 0 and kernels * duration_ns <= LONGEST_STEP_NS and plain


def measure(gpu: Gpu, meter: Meter, layer: str, kernels: int, duration_ns: int, waits: int, copy_bytes: int) -> Results:
    call = LayerCall(layer, duration_ns=duration_ns)
    stream = gpu.bind(call)
    piece = kernels // waits
    if copy_bytes:
        there, back = engine_copy(gpu, "h2d", "pinned", copy_bytes), engine_copy(gpu, "d2h", "pinned", copy_bytes)
        ordered = InOrder(gpu, ((there.submit, 1), (stream, kernels), (back.submit, 1)))
        there.fresh()
        back.fresh()
        found = steps(meter, {"stream": (ordered, 1)})
        verified = f"{there.check()}; {back.check()}"
        yield from (msgspec.structs.replace(one, verified=verified, needs_verification=True) for one in found)
        return
    graph = gpu.bind(gpu.graph([call] * piece))
    ways = {"stream": (stream, piece), "graph": (graph, 1)}
    yield from steps(meter, ways, waits=waits, verified="the graph has a node for each call")


BENCHMARK = Benchmark(
    title="Whole steps and the model",
    metrics=(
        Metric("stream", "time", "s", "one step, launched call by call, including its waits"),
        Metric("graph", "time", "s", "the same step with one replay for each wait"),
    ),
    axes={
        "layer": Axis(
            "layer that submits the kernels and replays the graphs",
            (),
            (LOOP_LAYER,),
            spinning(),
            labels=layer_titles(),
        ),
        "kernels": Axis("kernels of a step", (), (240,), (60, 240, 600), minimum=1, maximum=10_000),
        "duration_ns": Axis("duration of a kernel", (), (1500, 8000), (700, 1500, 4000, 8000, 15_000), maximum=10**7),
        "waits": Axis(
            "synchronises of a step, evenly among its kernels", (), (1, 6), (1, 6, 30), minimum=1, maximum=1000
        ),
        "copy_bytes": Axis("bytes copied to the GPU before the kernels and back after them", (), (0,), (0, MIB)),
    },
    needs=lambda params: package_of(str(params["layer"])),
    own_process=lambda params: process_of(str(params["layer"])),
    combines=combines,
    late=always,  # it only checks the model
)
