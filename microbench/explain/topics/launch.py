"""Topic launch: what handing one kernel to the GPU costs, which part recurs, and what Python adds."""

from __future__ import annotations

from microbench.analysis.evidence import Evidence
from microbench.core.units import as_time
from microbench.explain.topics.topic import PREDICT, Gathering, Passage, Topic, difference, over, up_to

COST, LAYERS = "launch_cost", "launch_layers"
# The Python layers that the text names, by slot: layer, family and arguments of the row, and what it is.
PYTHON: dict[str, tuple[str, str, int, str]] = {
    "cuda_core": ("cuda_core", "same_kernel", 0, "the call from cuda.core"),
    "cupy": ("cupy_raw", "same_kernel", 0, "the call from CuPy, RawKernel"),
    "torch": ("torch_eager", "one_op", 1, "an operation of PyTorch"),
    "numba": ("numba_configured", "same_kernel", 0, "the call from Numba"),
    "jax": ("jax_jit", "one_op", 1, "a compiled operation of JAX"),
}


def figures(evidence: Evidence) -> Gathering:
    """The parts of a launch, the GPU's own gap, and the call from Python."""
    found = Gathering(evidence)
    found.measured("submit", "the launch call", COST, "submit")
    found.measured("start", "from the call's begin to the first act", COST, "start")
    found.measured("complete", "from there until a wait returns", COST, "complete")
    found.measured("round_trip", "launch and wait, an empty kernel", COST, "round_trip")
    found.measured("gap", "between two kernels of a stream", COST, "gap_stream")
    found.computed("way", "until the first act is seen", "start − submit", as_time, difference, "start", "submit")
    found.computed(
        "starving", "kernels that starve the GPU: below", "submit − gap_stream", as_time, difference, "submit", "gap"
    )
    measured = bool(evidence.rows(LAYERS))
    for slot, (layer, family, arguments, what) in PYTHON.items():
        row = evidence.row(LAYERS, "submit", layer=layer, family=family, arguments=arguments)
        if row is not None or not measured:  # a layer that is not installed is nothing to run
            found.row(slot, what, row, LAYERS)
    return found


TOPIC = Topic(
    name="launch",
    title="What a launch costs",
    about="what a launch costs, and when the GPU waits for it",
    suites=("launch",),
    figures=figures,
    needs=("submit", "gap"),
    headline=(
        Passage("A launch takes the host {submit}, an empty kernel {round_trip} in all"),
        Passage("A launch takes the host {submit}"),
        Passage("A launch is a call, a way to the GPU, and an answer"),
    ),
    paragraphs=(
        (
            Passage(
                "The driver writes a kernel's commands where the GPU can read them, rings its doorbell and returns; "
                "the GPU fetches them and begins."
            ),
            Passage(
                "The call takes {submit}; {way} later the first act of an empty kernel is seen, and a synchronise "
                "returns {complete} after that."
            ),
        ),
        (
            Passage("Only the call is paid for each launch: the rest hides behind other work until somebody waits."),
            Passage(
                "Between two kernels of a stream the GPU itself needs {gap}, so kernels shorter than {starving} leave "
                "it idle until the next call is made.",
                when=over("starving", 0.0),
            ),
            Passage(
                "Between two kernels of a stream the GPU itself needs {gap}, no less than a call takes: here even "
                "empty kernels keep it busy.",
                when=up_to("starving", 0.0),
            ),
        ),
        (
            Passage(
                "From Python it takes {items}.",
                items=(
                    "{cuda_core} through cuda.core",
                    "{cupy} through CuPy",
                    "{torch} for a PyTorch operation",
                    "{numba} through Numba",
                    "{jax} for a JAX operation",
                ),
            ),
        ),
        (
            Passage(
                "Launch fewer and longer kernels, wait once a step and not once a launch, and replay what repeats as a "
                "graph. A cheaper layer pays where kernels are shorter than the call it replaces."
            ),
        ),
    ),
    related=("graphs", "queue", "traffic"),
    commands=(PREDICT,),
)
