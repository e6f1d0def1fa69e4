"""Topic queue: how far the host may run ahead of the GPU, and what a full queue does to a call."""

from __future__ import annotations

import math

from microbench.analysis.evidence import Evidence
from microbench.core.units import as_time, axis_value
from microbench.explain.topics.topic import PREDICT, Gathering, Passage, Topic, over, product, word

QUEUE, SWEEP, COST = "launch_queue", "launch_duration", "launch_cost"
# The kernels that a full queue is shown with, where they were measured.
USUAL_NS = 10_000


def figures(evidence: Evidence) -> Gathering:
    """The depth without and with large arguments, the host's lead, and a call into a full queue."""
    found = Gathering(evidence)
    depths = evidence.curve(QUEUE, "depth", "argument_bytes")
    found.row("depth", "launches that may wait", depths[0][1] if depths else None, QUEUE)
    found.measured("submit", "the launch call", COST, "submit")
    found.computed("lead", "until the queue is full", "depth × submit", as_time, product, "depth", "submit")
    if len(depths) > 1:
        size_bytes, row = depths[-1]
        words = axis_value("argument_bytes", size_bytes)
        found.parameter("large", "large arguments", size_bytes, word(words), QUEUE, "argument_bytes")
        found.row("depth_large", f"with {words} of arguments", row, QUEUE)
    periods = [(ns, row) for ns, row in evidence.curve(SWEEP, "period", "duration_ns") if ns > 0]
    ns, period = min(periods, key=lambda point: abs(math.log(point[0] / USUAL_NS)), default=(None, None))
    words = axis_value("duration_ns", ns or 0)
    found.parameter("kernel", "length of the kernels", ns, word(words), SWEEP, "duration_ns")
    found.row("period", f"each launch of kernels of {words}", period, SWEEP)
    return found


TOPIC = Topic(
    name="queue",
    title="The launch queue",
    about="how far the host may run ahead, and what a full queue does",
    suites=("launch",),
    figures=figures,
    needs=("depth",),
    headline=(
        Passage("The queue holds {depth} launches; the next call blocks"),
        Passage("The host may run ahead of the GPU until its queue is full"),
    ),
    paragraphs=(
        (
            Passage("A launch call returns when its launch stands in the stream's queue, not when the kernel runs."),
            Passage("Here {depth} launches may stand there; the next call blocks until the GPU has taken one out."),
            Passage("Filling it takes the host {lead}."),
        ),
        (
            Passage(
                "Arguments take room as well: with {large} of them each, {depth_large} launches fit.",
                when=over("depth", "depth_large"),
            ),
            Passage(
                "A stream has a queue to itself while the driver has work queues left; further streams share one. A "
                "graph is handed over in one call, however many its nodes."
            ),
        ),
        (
            Passage("A full queue shows in the calls alone: they take as long as kernels."),
            Passage(
                "With kernels of {kernel} that is {period} instead of {submit}: a long loop of launches times the "
                "device, and a host with other work stands still.",
                when=over("period", "submit"),
            ),
        ),
        (
            Passage(
                "Keep it neither full nor empty: time calls in bursts well under the depth, let a host with other work "
                "wait for an event recorded some launches ago, and pass large arguments by pointer."
            ),
        ),
    ),
    related=("launch", "graphs", "traffic"),
    commands=(PREDICT,),
)
