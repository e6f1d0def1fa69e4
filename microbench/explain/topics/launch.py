"""Topic launch: what launching one kernel costs, which part recurs with every launch, and what Python adds."""

from operator import sub

from microbench.analysis.evidence import Evidence
from microbench.core.units import as_time
from microbench.explain.launch_rules import FOUR_ARGUMENTS, call, call_of, layer_rows, stream_gap
from microbench.explain.topics.topic import PREDICT, Topic, TopicFigures

COST, LAYERS = "launch_cost", "launch_layers"
# The Python layers in the text, by slot: the name of the library's layers, family and arguments, and what it is.
PYTHON: dict[str, tuple[str, str, int, str]] = {
    "cuda_core": ("cuda_core", "same_kernel", FOUR_ARGUMENTS, "a call from cuda.core, four arguments"),
    "cupy": ("cupy_raw", "same_kernel", FOUR_ARGUMENTS, "a call from CuPy, four arguments"),
    "torch": ("torch_eager", "one_op", 1, "an operation of PyTorch"),
    "numba": ("numba", "same_kernel", FOUR_ARGUMENTS, "a call from Numba, four arguments"),
    "jax": ("jax_jit", "one_op", 1, "a compiled operation of JAX"),
}


def figures(known: TopicFigures, evidence: Evidence) -> None:
    """The parts of a launch, the GPU's gap between kernels, and the call from Python."""
    known.constant("submit", "the launch call", call(evidence), COST)
    known.measured("start", "from the call to the kernel's start", COST, "start")
    known.measured("complete", "from there until a synchronise returns", COST, "complete")
    known.measured("round_trip", "launch and wait, an empty kernel", COST, "round_trip")
    known.constant("gap", "idle behind a kernel of a stream", stream_gap(evidence), "launch_gap")
    known.computed("way", "of that, after the call returned", "start − call", as_time, sub, "start", "submit")
    known.computed("starving", "shorter kernels leave the GPU idle", "call − gap", as_time, sub, "submit", "gap")
    measured = bool(evidence.rows(LAYERS))
    for slot, (layer, family, arguments, what) in PYTHON.items():
        rows = layer_rows(evidence, family, arguments)  # the cheapest call first
        row = next((row for row in rows if str(row.params["layer"]).startswith(layer)), None)
        if row is not None or not measured:  # where others were measured, this layer is not installed
            known.constant(slot, what, call_of(evidence, row) if row is not None else None, LAYERS)


TOPIC = Topic(
    name="launch",
    title="What a launch costs",
    about="what a launch costs, and when the GPU waits for it",
    suites=("launch",),
    collect=figures,
    needs=("submit", "gap"),
    related=("graphs", "queue", "traffic"),
    commands=(PREDICT,),
    text="""
    A launch costs the host {submit}, an empty kernel {round_trip} in all
    A launch costs the host {submit}
    A launch is a call, its latency, and an answer

    The driver writes a launch's commands to memory and rings the GPU's doorbell; the GPU fetches them and starts.
    The call takes {submit}; {way} later the host sees an empty kernel start, and a synchronise returns {complete} after
      that.

    Only the call is paid for each launch: the rest overlaps with other work.
    [starves] Between two kernels of a stream the GPU needs {gap}, so with kernels shorter than {starving} it idles
      until the next call: the work is launch-bound.
    [keeps_up] Between two kernels of a stream the GPU needs {gap}, no less than a call takes: here even empty kernels
      keep it busy.

    [libraries] From Python a launch with four arguments takes {items}.
    [arrays] An operation on an array takes {items}.

    Launch fewer and longer kernels, synchronise once a step, and replay repeated work as a graph. A cheaper layer pays
      where kernels are shorter than the call.
    """,
    when={
        "starves": lambda value: value("starving") > 0,
        "keeps_up": lambda value: value("starving") <= 0,
        "libraries": ("{cuda_core} through cuda.core", "{cupy} through CuPy", "{numba} through Numba"),
        "arrays": ("{torch} through PyTorch", "{jax} through JAX"),
    },
)
