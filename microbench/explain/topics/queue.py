"""Topic queue: how far the host may run ahead of the GPU, and what a full queue does to a call."""

import math
from operator import mul

from microbench.analysis.evidence import Evidence
from microbench.core.units import as_time, axis_value
from microbench.explain.launch_rules import call
from microbench.explain.topics.topic import PREDICT, Topic, TopicFigures, word

QUEUE, SWEEP, COST = "launch_queue", "launch_duration", "launch_cost"
# The preferred length of the kernels that show a full queue.
USUAL_NS = 10_000


def figures(known: TopicFigures, evidence: Evidence) -> None:
    """The depth without and with large arguments, the time to fill it, and a call into a full queue."""
    depths = evidence.curve(QUEUE, "depth", "argument_bytes")
    known.row("depth", "launches that the queue holds", depths[0][1] if depths else None, QUEUE)
    known.constant("submit", "the launch call", call(evidence), COST)
    known.computed("lead", "until the queue is full", "depth × call", as_time, mul, "depth", "submit")
    if len(depths) > 1:
        size_bytes, row = depths[-1]
        words = axis_value("argument_bytes", size_bytes)
        known.parameter("large", "large arguments", size_bytes, word(words), QUEUE, "argument_bytes")
        known.row("depth_large", f"with {words} of arguments", row, QUEUE)
    periods = [(ns, row) for ns, row in evidence.curve(SWEEP, "period", "duration_ns") if ns > 0]
    ns, period = min(periods, key=lambda point: abs(math.log(point[0] / USUAL_NS)), default=(None, None))
    words = axis_value("duration_ns", ns or 0)
    known.parameter("kernel", "length of the kernels", ns, word(words), SWEEP, "duration_ns")
    known.row("period", f"each launch of kernels of {words}", period, SWEEP)


TOPIC = Topic(
    name="queue",
    title="The launch queue",
    about="how far the host may run ahead, and what a full queue does",
    suites=("launch",),
    collect=figures,
    needs=("depth",),
    related=("launch", "graphs", "traffic"),
    commands=(PREDICT,),
    text="""
    The queue holds {depth} launches; the next call blocks
    The host may run ahead of the GPU until its queue is full

    A launch call returns as soon as its launch is in the stream's queue, before the kernel runs.
    Here the queue holds {depth} launches; the next call blocks until the GPU has taken one out.
    The host fills it in {lead}.

    [room] Arguments take room as well: with {large} of them each, {depth_large} launches fit.
    A stream has a queue to itself while the driver has work queues left; further streams share one. A graph is
      submitted in one call, however many nodes it has.

    A full queue shows only in the calls: each takes as long as a kernel.
    [blocks] With kernels of {kernel} that is {period} instead of {submit}: a long loop of launches then times the GPU,
      and the host can do nothing else.

    Keep the queue neither full nor empty: time calls in bursts well under its depth, let a host with other work wait
      for an event recorded some launches ago, and pass large arguments by pointer.
    """,
    when={
        "room": lambda value: value("depth") > value("depth_large"),
        "blocks": lambda value: value("period") > value("submit"),
    },
)
