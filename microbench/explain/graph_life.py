"""Explains graph_lifecycle: what making a graph costs, which phase most, and after how many replays it has paid."""

from __future__ import annotations

import math
from typing import NamedTuple

from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.explain.graph_gain import Pair, kernel_counts, kernels_in_words, kernels_of, pairs, usual_kernels
from microbench.fits import Line, line
from microbench.ops import LOOP_LAYER
from microbench.stats import Row
from microbench.units import as_time, percent, times

MAKING = ("capture", "instantiate", "upload")
EQUAL = 1.10
LONGER_S = 10e-6


class BreakEven(NamedTuple):
    """A chain of kernels as a graph: what making it costs and what a replay saves. The rows are what that rests on."""

    kernels: int
    pair: Pair
    making: tuple[Row, ...]

    @property
    def making_s(self) -> float:
        """Capture, instantiate and upload."""
        return sum(row.value for row in self.making)

    @property
    def replays(self) -> int | None:
        """Replays after which the graph has paid; None if a replay saves nothing measurable."""
        saved_s = self.pair.saved_s * self.kernels
        return max(math.ceil(self.making_s / saved_s), 1) if saved_s > 0 else None

    @property
    def words(self) -> str:
        """After how many replays."""
        return "never" if self.replays is None else f"after {self.replays}"

    @property
    def rows(self) -> tuple[Row, ...]:
        """Everything that this rests on."""
        return (*self.making, self.pair.stream, self.pair.graph)


def curve_of(evidence: Evidence, metric: str) -> list[tuple[int, Row]]:
    """A metric of graph_lifecycle over the count of nodes, where it is above 0."""
    return [point for point in evidence.curve("graph_lifecycle", metric, "nodes") if point[1].value > 0]


def life_line(evidence: Evidence, metric: str) -> Line | None:
    """The fit of a phase's time over the count of nodes. GPU time is measured per node: its fit is that of a replay."""
    points = curve_of(evidence, metric)
    return line((nodes, row.value * (nodes if row.metric.unit == "s/launch" else 1)) for nodes, row in points)


def making(evidence: Evidence, nodes: int) -> tuple[Row, ...] | None:
    """The rows of capture, instantiate and upload of a graph of ``nodes``, if all are there."""
    found = [evidence.row("graph_lifecycle", metric, nodes=nodes) for metric in MAKING]
    rows = tuple(row for row in found if row is not None)
    return rows if len(rows) == len(MAKING) else None


def break_evens(evidence: Evidence, shortest_s: float = 0.0) -> list[BreakEven]:
    """For each count of kernels that both benchmarks measured, with its shortest kernels of at least ``shortest_s``."""
    found = []
    for kernels in kernel_counts(evidence):
        made = making(evidence, kernels)
        pair = next((one for one in pairs(evidence, LOOP_LAYER, kernels) if one.duration_s >= shortest_s), None)
        if made is not None and pair is not None:
            found.append(BreakEven(kernels, pair, made))
    return found


def usual_break_even(found: list[BreakEven]) -> BreakEven | None:
    """The one whose count of kernels is the usual one."""
    kernels = usual_kernels([one.kernels for one in found])
    return next((one for one in found if one.kernels == kernels), None)


def break_even(evidence: Evidence) -> list[Finding]:
    """After how many replays a chain has paid for being made a graph."""
    found = break_evens(evidence)
    usual = usual_break_even(found)
    if usual is None:
        return []
    longer = [one for one in break_evens(evidence, LONGER_S) if one.pair.duration_s > usual.pair.duration_s]
    chain = kernels_in_words(usual.kernels, usual.pair.duration_s)
    text = f"Making it takes {as_time(usual.making_s)} (capture, instantiate, upload)"
    if usual.replays is None:
        title = f"A chain of {chain} never pays for its graph"
        text += ", and a replay saves nothing measurable."
    else:
        title = f"A chain of {chain} pays for its graph {usual.words} "
        title += "replay" if usual.replays == 1 else "replays"
        text += f", and a replay saves {as_time(usual.pair.saved_s * usual.kernels)}."
    if len(found) > 1:
        text += f" By the length of the chain: {_list(found)}."
    if longer:
        text += f" With {kernels_of(longer[0].pair)}: {_list(longer)}."
    return [
        Finding(
            rule="graph.break_even",
            severity="note",
            title=title,
            text=text,
            threshold="(capture + instantiate + upload) / (stream - graph), rounded up; never where these two overlap",
            rests_on=tuple(dict.fromkeys(rests_on(*(row for one in found + longer for row in one.rows)))),
            suite="graph",
        )
    ]


def _list(found: list[BreakEven]) -> str:
    several = [f"{one.kernels} kernel{'' if one.kernels == 1 else 's'} {one.words}" for one in found]
    return ", ".join(several[:1] + [f"{one.kernels} {one.words}" for one in found[1:]])


def phases(evidence: Evidence) -> list[Finding]:
    """Which phase of making a graph is the dearest, per node and besides, and building against capturing."""
    nodes = usual_kernels([count for count, _ in curve_of(evidence, "instantiate")])
    if nodes is None or (made := making(evidence, nodes)) is None:
        return []
    whole_s = sum(row.value for row in made)
    parts = dict(zip(MAKING, made, strict=True))
    largest = max(parts, key=lambda name: parts[name].value)
    share = parts[largest].value / whole_s
    shares = [f"{name} {as_time(row.value)} ({percent(row.value / whole_s)})" for name, row in parts.items()]
    lines = {name: one for name in (*MAKING, "destroy") if (one := life_line(evidence, name)) is not None}
    text = f"For {nodes_of(nodes)}: {', '.join(shares)}."
    if lines:
        text += f" {_fits(lines)}"
    build = evidence.row("graph_lifecycle", "build", nodes=nodes)
    points = [row for name in lines for _, row in curve_of(evidence, name)]
    return [
        Finding(
            rule="graph.phases",
            severity="note",
            title=f"Of making a graph of {nodes_of(nodes)}, {largest} takes most: {percent(share)}",
            text=text + _build_words(build, parts["capture"]),
            threshold=f"names the largest; build and capture count as equal within {EQUAL:.2f} times",
            rests_on=tuple(dict.fromkeys(rests_on(*made, build, *points))),
            suite="graph",
        )
    ]


def nodes_of(count: int) -> str:
    """A count of nodes in words."""
    return f"{count} node{'' if count == 1 else 's'}"


def _fits(lines: dict[str, Line]) -> str:
    words = [f"{name} {as_time(one.slope)} and {as_time(one.constant)}" for name, one in lines.items()]
    name, worst = max(lines.items(), key=lambda item: item[1].misfit.largest)
    return (
        f"By straight lines, for each node and besides for each graph: {', '.join(words)} (worst fit: {name}, off by "
        f"{percent(worst.misfit.median)} in the median, at most {percent(worst.misfit.largest)})."
    )


def _build_words(build: Row | None, capture: Row) -> str:
    if build is None:
        return ""
    ratio = capture.value / build.value
    if 1 / EQUAL < ratio < EQUAL:
        return f" Building node by node takes as long as capturing: {as_time(build.value)}."
    faster = "faster" if ratio > 1 else "slower"
    return (
        f" Building node by node takes {as_time(build.value)} instead of capture's {as_time(capture.value)}: "
        f"{times(max(ratio, 1 / ratio))} {faster}."
    )
