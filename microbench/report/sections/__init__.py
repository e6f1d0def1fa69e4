"""Sections that show more than tables and curves: one file a suite."""

from __future__ import annotations

from collections.abc import Callable

from microbench.explain.evidence import Evidence
from microbench.report.document import Picture
from microbench.report.sections import graph, launch

PICTURES: dict[str, Callable[[Evidence], list[Picture]]] = {
    "launch": launch.pictures,
    "graph": graph.pictures,
}
# Benchmarks whose curve is among the pictures already.
DRAWN = frozenset({"launch_duration", "graph_gain"})
# Benchmarks in the order of their tables; those not named follow as the run has them.
ORDER = (*launch.ORDER, *graph.ORDER)
