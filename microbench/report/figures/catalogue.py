"""Lists the figures: name, title and benchmarks. GATHERED in figure.py has the pictures of each."""

from typing import NamedTuple


class Kind(NamedTuple):
    """A figure: its title, and the benchmarks that measure its rows."""

    title: str
    benchmarks: tuple[str, ...]


# The model takes its constants for kernels and replays from these.
STEP = (
    "launch_cost", "launch_gap", "launch_queue", "launch_layers", "launch_sync", "graph_lifecycle", "graph_gain",
)  # fmt: skip
# By the name that a user types, in the order of the page.
KINDS = {
    "ladder": Kind("Submission ladder: the same kernel, launched from each layer", ("launch_layers",)),
    "gain": Kind("Speed-up of a graph over kernel duration", ("graph_gain",)),
    "link": Kind("Bandwidth over the size of a copy", ("link_copy",)),
    "memory": Kind("Bandwidth and latency over the working set", ("memory_levels", "memory_latency")),
    "roofline": Kind("Products of models under this GPU's own roofs", ("gemm_shapes",)),
    "sustained": Kind("Sustained products: rate, clock, power and temperature", ("gemm_sustained",)),
    "step": Kind("A short step, predicted: in a stream and as a graph", STEP),
}
