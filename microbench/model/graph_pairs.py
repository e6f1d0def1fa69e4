"""Pairs of times that graph_gain measured: the same step in a stream and as a graph."""

from __future__ import annotations

from typing import NamedTuple

from microbench.analysis.evidence import Evidence, whole
from microbench.analysis.stats import Row
from microbench.model.constants import own_s


class Pair(NamedTuple):
    """One kernel duration (s, as profilers report it) measured both ways; the rows are times per kernel."""

    duration_s: float
    stream: Row
    graph: Row

    @property
    def duration_ns(self) -> int:
        """The duration that the kernels were asked for; 0 if they do nothing."""
        return whole(self.stream, "duration_ns")

    @property
    def empty(self) -> bool:
        """Whether the kernels do nothing."""
        return self.duration_ns == 0

    @property
    def speedup(self) -> float:
        """How many times as long the stream takes."""
        return self.stream.value / self.graph.value

    @property
    def saved_s(self) -> float:
        """Time that the graph saves per kernel, by the same two figures as the speed-up; 0 where it saves none."""
        return max(self.stream.value - self.graph.value, 0.0)


def pairs(evidence: Evidence, submitter: str, kernels: int) -> list[Pair]:
    """graph_gain's cases with that submitter and count of kernels, by ascending duration."""
    chosen: dict[str, int | str] = {"submitter": submitter, "kernels": kernels}
    graphs = dict(evidence.curve("graph_gain", "graph", "duration_ns", **chosen))
    return [
        Pair(own_s(evidence, duration_ns), row, graphs[duration_ns])
        for duration_ns, row in evidence.curve("graph_gain", "stream", "duration_ns", **chosen)
        if duration_ns in graphs and row.value > 0 and graphs[duration_ns].value > 0
    ]
