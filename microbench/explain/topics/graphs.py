"""Topic graphs: what a CUDA Graph saves, what building it costs, and after how many replays it pays for itself."""

import math
from operator import mul, truediv

from microbench.analysis.evidence import Evidence, paid_after, rests_on
from microbench.analysis.graph_steps import kernel_counts, usual_kernels
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import as_time, times
from microbench.explain.graph_rules import curve_of, kernels_of
from microbench.explain.launch_rules import call, usual_gap
from microbench.explain.topics.topic import PREDICT, Topic, TopicFigures, count, counted, word
from microbench.model.constants import Pair, making_of, pairs, profiled_longer
from microbench.model.fit import fit
from microbench.model.model import WAYS

GAIN, LIFE, COST = "graph_gain", "graph_lifecycle", "launch_cost"
# The length of kernels that outlast a launch.
LONG_NS = 10_000


def figures(known: TopicFigures, evidence: Evidence) -> None:
    """A step of short and of long kernels as stream and as graph, the calls, and the cost of a graph."""
    gains, made = kernel_counts(evidence), [nodes for nodes, _ in curve_of(evidence, "instantiate")]
    kernels = usual_kernels([nodes for nodes in gains if nodes in made] or gains or made)
    known.parameter("kernels", "kernels in a step", kernels, count, GAIN, "kernels")
    known.constant("submit", "the launch call", call(evidence), COST)
    for way in WAYS:
        between = usual_gap(evidence, way)
        known.fitted(
            f"gap_{way}", f"idle behind a kernel of a {way}, program of two streams", "period − duration", as_time,
            between.value if between else None, between.rests_on if between else (), "launch_gap",
        )  # fmt: skip
    known.computed("calls", "that many launch calls", "call × kernels", as_time, mul, "submit", "kernels")
    measured = pairs(evidence, LOOP_LAYER, kernels) if kernels is not None else []
    short = measured[0] if measured else None
    long = min(measured, key=lambda pair: abs(math.log(max(pair.duration_ns, 1) / LONG_NS)), default=None)
    _gain(known, evidence, "short", short)
    _gain(known, evidence, "long", long)
    known.measured("relaunch", "the replay call", LIFE, "relaunch", nodes=kernels or 0)
    making = making_of([kernels], fit(evidence).made) if kernels is not None else None
    known.constant("making", "building the graph", making, LIFE)
    known.computed(
        "saved", "what a replay saves", "(stream − graph) × kernels", as_time,
        lambda stream, graph, kernels: (stream - graph) * kernels, "stream_short", "graph_short", "kernels",
    )  # fmt: skip
    known.computed(
        "replays", "replays until the graph pays", "making / saved, rounded up", counted("replay", "replays"),
        paid_after, "making", "saved",
    )  # fmt: skip


def _gain(known: TopicFigures, evidence: Evidence, name: str, pair: Pair | None) -> None:
    """A step as stream and as graph, and how many times as fast the graph is."""
    words = kernels_of(pair) if pair is not None else ""
    if pair is None or pair.empty:
        known.parameter(name, "length of the kernels", 0.0 if pair else None, word(words), GAIN, "duration_ns")
    else:
        own = evidence.row("launch_duration", "duration", duration_ns=pair.duration_ns)
        known.fitted(
            name, "length of the kernels, as profilers report it", "asked for + what they add", word(words),
            pair.duration_s, (*rests_on(own), *profiled_longer(evidence).rests_on), GAIN,
        )  # fmt: skip
    for way, row in zip(("stream", "graph"), pair[1:] if pair is not None else (None, None), strict=True):
        known.row(f"{way}_{name}", f"a kernel of a {way}, {words}", row, GAIN)
    slots = (f"stream_{name}", f"graph_{name}")
    known.computed(f"gain_{name}", f"gain with {words}", "stream / graph", times, truediv, *slots)


TOPIC = Topic(
    name="graphs",
    title="What a CUDA Graph gains",
    about="what a replay saves, what a graph costs, when it has paid",
    suites=("launch", "graph"),
    collect=figures,
    needs=("gain_short", "making"),
    related=("launch", "traffic", "queue"),
    commands=(PREDICT,),
    text="""
    [saves] A graph runs {kernels} {short} {gain_short} as fast and pays after {replays}
    A graph runs {kernels} {short} {gain_short} as fast
    A graph submits a whole step of kernels in one call

    A CUDA Graph is work with its dependencies that the driver checks and prepares once; a replay submits all of it in
      one call.
    That call takes {relaunch} for {kernels} kernels; launching them one by one takes {calls}.

    [shorter_gap] It gains twice: the host no longer limits the rate, and behind each kernel the GPU is idle for
      {gap_graph} instead of {gap_stream}, in a program of two streams.
    [no_shorter_gap] It gains because the host no longer limits the rate.
    [short_gain_more] A step of {kernels} {short} runs {gain_short} as fast, with {long} it is {gain_long}: long kernels
      leave little to gain.
    [all_gain_alike] A step of {kernels} {short} runs {gain_short} as fast, with {long} it is {gain_long}.

    The graph must be built first: capture, instantiate and upload take {making}.
    [saves] A replay of {short} saves {saved}, so the graph has paid after {replays}.
    [saves_nothing] A replay of {short} saves nothing measurable.

    Capture what repeats with the same shapes and addresses, keep host work and synchronises out of it, and update
      parameters in place instead of building it again. Leave long kernels to the stream.
    """,
    when={
        "saves": lambda value: value("saved") > 0,
        "shorter_gap": lambda value: value("gap_stream") > value("gap_graph"),
        "no_shorter_gap": lambda value: value("gap_stream") <= value("gap_graph"),
        "short_gain_more": lambda value: value("gain_short") > value("gain_long"),
        "all_gain_alike": lambda value: value("gain_short") <= value("gain_long"),
        "saves_nothing": lambda value: value("saved") <= 0,
    },
)
