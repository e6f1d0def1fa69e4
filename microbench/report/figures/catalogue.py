"""Lists the figures: name, title, benchmarks, and the function that gathers the pictures of each.

To add a figure, write such a function here and add a line to KINDS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from microbench.core.units import about_size, as_time, percent, quantity, three_digits, times

if TYPE_CHECKING:
    from microbench.analysis.evidence import Evidence, Finding
    from microbench.report.document import Bars, Curve, Table, TimeLine

# --help imports this module for the names only, so each function imports its own modules.

Words = Callable[[float], str]
BANDWIDTH = partial(quantity, unit="B/s")


class Panel(NamedTuple):
    """One picture of a figure, with words for the values at the axes of a curve."""

    picture: Curve | TimeLine | Bars
    x_words: Words = str
    y_words: Words = str


class Gathered(NamedTuple):
    """What a figure shows of one GPU: panels, findings whose titles are its conclusion, and tables for the terminal."""

    panels: Sequence[Panel]
    findings: Sequence[Finding | None]
    tables: Sequence[Table | None] = ()


class Kind(NamedTuple):
    """A figure: its title, the benchmarks that measure its rows, and the function that gathers it."""

    title: str
    benchmarks: tuple[str, ...]
    gather: Callable[[Evidence], Gathered]


def _ladder(evidence: Evidence) -> Gathered:
    from microbench.explain.launch_rules import same_kernel
    from microbench.report.suites.launch import ladder, one_op

    return Gathered(_panels(ladder(evidence), one_op(evidence)), [same_kernel(evidence)])


def _gain(evidence: Evidence) -> Gathered:
    from microbench.explain.graph_rules import crossovers
    from microbench.report.suites.graph import gain, surface

    panels = _panels(gain(evidence), words=(as_time, times))
    return Gathered(panels, [crossovers(evidence)], [surface(evidence)])


def _link(evidence: Evidence) -> Gathered:
    from microbench.explain.link_copy import copy_size
    from microbench.explain.link_facts import DIRECTIONS
    from microbench.report.suites.link import fits, rates

    curves = (rates(evidence, direction) for direction in DIRECTIONS)
    panels = _panels(*curves, words=(about_size, BANDWIDTH))
    return Gathered(panels, [copy_size(evidence)], [fits(evidence)])


def _memory(evidence: Evidence) -> Gathered:
    from microbench.explain.memory_levels import levels
    from microbench.report.suites.memory import hierarchy, latencies

    panels = _panels(hierarchy(evidence), words=(about_size, BANDWIDTH))
    panels += _panels(latencies(evidence), words=(about_size, as_time))
    return Gathered(panels, [levels(evidence)])


def _roofline(evidence: Evidence) -> Gathered:
    from microbench.explain.compute_products import bounds
    from microbench.report.suites.roofline import rooflines

    words = (lambda value: f"{three_digits(value)} operations per byte", lambda value: quantity(value, "FLOP/s"))
    return Gathered(_panels(*rooflines(evidence), words=words), [bounds(evidence)])


def _sustained(evidence: Evidence) -> Gathered:
    from microbench.explain.compute_power import sustained
    from microbench.report.suites.roofline import rates_over_time, state_over_time

    panels = _panels(rates_over_time(evidence), state_over_time(evidence), words=(as_time, percent))
    return Gathered(panels, [sustained(evidence)])


def _step(evidence: Evidence) -> Gathered:
    from microbench.model import timeline
    from microbench.model.fit import fit
    from microbench.model.forecast import forecast
    from microbench.report.suites.graph import DRAWN, step

    panels = _panels(step(evidence))
    return Gathered(panels, timeline.findings(evidence, forecast(DRAWN, fit(evidence)))[:1] if panels else [])


def _panels(*pictures: Curve | TimeLine | Bars | None, words: tuple[Words, Words] = (str, str)) -> list[Panel]:
    return [Panel(picture, *words) for picture in pictures if picture is not None]


# The model takes its constants for kernels and replays from these.
STEP = (
    "launch_cost", "launch_gap", "launch_queue", "launch_layers", "launch_sync", "graph_lifecycle", "graph_gain",
)  # fmt: skip
# By the name that a user types, in the order of the page.
KINDS = {
    "ladder": Kind("Submission ladder: the same kernel, launched from each layer", ("launch_layers",), _ladder),
    "gain": Kind("Speed-up of a graph over kernel duration", ("graph_gain",), _gain),
    "link": Kind("Bandwidth over the size of a copy", ("link_copy",), _link),
    "memory": Kind("Bandwidth and latency over the working set", ("memory_levels", "memory_latency"), _memory),
    "roofline": Kind("Products of models under this GPU's own roofs", ("gemm_shapes",), _roofline),
    "sustained": Kind("Sustained products: rate, clock, power and temperature", ("gemm_sustained",), _sustained),
    "step": Kind("A short step, predicted: in a stream and as a graph", STEP, _step),
}
