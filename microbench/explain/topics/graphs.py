"""Topic graphs: what a CUDA Graph saves, what making it costs, and after how many replays it has paid."""

from __future__ import annotations

import math

from microbench.analysis.evidence import Evidence
from microbench.analysis.graph_steps import MAKING, Pair, kernel_counts, pairs, usual_kernels
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import as_time, times
from microbench.explain.graph_facts import curve_of, kernels_of
from microbench.explain.topics.topic import (
    PREDICT,
    Gathering,
    Passage,
    Topic,
    count,
    counted,
    over,
    product,
    ratio,
    total,
    up_to,
    word,
)

GAIN, LIFE, COST = "graph_gain", "graph_lifecycle", "launch_cost"
# What stands for kernels that outlast a launch, and what keeps an empty one on a logarithmic scale.
LONG_S, SHORTEST_S = 10e-6, 1e-9


def figures(evidence: Evidence) -> Gathering:
    """Both ways of a step with short and with long kernels, the calls, and a graph's making."""
    found = Gathering(evidence)
    gains, made = kernel_counts(evidence), [nodes for nodes, _ in curve_of(evidence, "instantiate")]
    kernels = usual_kernels([nodes for nodes in gains if nodes in made] or gains or made)
    found.parameter("kernels", "kernels in a step", kernels, count, GAIN, "kernels")
    found.measured("submit", "the launch call", COST, "submit")
    found.measured("gap_stream", "between two kernels of a stream", COST, "gap_stream")
    found.measured("gap_graph", "between two kernels of a graph", COST, "gap_graph")
    found.computed("calls", "as many launch calls", "submit × kernels", as_time, product, "submit", "kernels")
    measured = pairs(evidence, LOOP_LAYER, kernels) if kernels is not None else []
    short = measured[0] if measured else None
    long = min(measured, key=lambda pair: abs(math.log(max(pair.duration_s, SHORTEST_S) / LONG_S)), default=None)
    _gain(found, "short", short)
    _gain(found, "long", long)
    _life(found, kernels or 0)
    return found


def _gain(found: Gathering, name: str, pair: Pair | None) -> None:
    """A step both ways, and how many times as fast the graph is."""
    words = kernels_of(pair) if pair is not None else ""
    found.parameter(name, "length of the kernels", pair.duration_s if pair else None, word(words), GAIN, "duration_ns")
    for way, row in zip(("stream", "graph"), pair[1:] if pair is not None else (None, None), strict=True):
        found.row(f"{way}_{name}", f"a kernel of a {way}, {words}", row, GAIN)
    slots = (f"stream_{name}", f"graph_{name}")
    found.computed(f"gain_{name}", f"gain with {words}", "stream / graph", times, ratio, *slots)


def _life(found: Gathering, nodes: int) -> None:
    """What making the graph costs, and a replay's call."""
    found.measured("relaunch", "the replay call", LIFE, "relaunch", nodes=nodes)
    for phase in MAKING:
        found.measured(phase, f"{phase} of the graph", LIFE, phase, nodes=nodes)
    found.computed("making", "making the graph", "the sum of its phases", as_time, total, *MAKING)
    found.computed(
        "saved", "what a replay saves", "(stream − graph) × kernels", as_time,
        lambda stream, graph, kernels: (stream - graph) * kernels, "stream_short", "graph_short", "kernels",
    )  # fmt: skip
    found.computed(
        "replays", "replays until it has paid", "making / saved, rounded up", counted("replay", "replays"),
        lambda making, saved: max(math.ceil(making / saved), 1) if saved > 0 else None, "making", "saved",
    )  # fmt: skip


TOPIC = Topic(
    name="graphs",
    title="What a CUDA Graph gains",
    about="what a replay saves, what making a graph costs, when it has paid",
    suites=("launch", "graph"),
    figures=figures,
    needs=("gain_short", "making"),
    headline=(
        Passage("As a graph {kernels} {short} run {gain_short} as fast, paid after {replays}", when=over("saved", 0.0)),
        Passage("As a graph {kernels} {short} run {gain_short} as fast"),
        Passage("A graph hands over a whole step of kernels in one call"),
    ),
    paragraphs=(
        (
            Passage(
                "A CUDA Graph is work with its dependencies, which the driver has checked and laid out once; a replay "
                "hands all of it over in one call."
            ),
            Passage("That call takes {relaunch} for {kernels} kernels, as many launches {calls}."),
        ),
        (
            Passage(
                "It gains twice: the host no longer sets the pace, and between two kernels that note their "
                "times the GPU needs {gap_graph} instead of {gap_stream}.",
                when=over("gap_stream", "gap_graph"),
            ),
            Passage("It gains because the host no longer sets the pace.", when=up_to("gap_stream", "gap_graph")),
            Passage(
                "A step of {kernels} {short} runs {gain_short} as fast, with {long} it is {gain_long}: long kernels "
                "leave little to gain.",
                when=over("gain_short", "gain_long"),
            ),
            Passage(
                "A step of {kernels} {short} runs {gain_short} as fast, with {long} it is {gain_long}.",
                when=up_to("gain_short", "gain_long"),
            ),
        ),
        (
            Passage("It must be made first: capture, instantiate and upload take {making}."),
            Passage(
                "A replay of {short} saves {saved}, so the graph has paid after {replays}.", when=over("saved", 0.0)
            ),
            Passage("A replay of {short} saves nothing measurable.", when=up_to("saved", 0.0)),
        ),
        (
            Passage(
                "Capture what repeats with the same shapes and addresses, keep host work and synchronises out of it, "
                "and change parameters in place rather than make it anew. Leave long kernels to the stream."
            ),
        ),
    ),
    related=("launch", "traffic", "queue"),
    commands=(PREDICT,),
)
