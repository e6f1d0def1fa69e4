"""Sections that show more than tables and curves: one file a suite."""

from __future__ import annotations

from collections.abc import Callable

from microbench.analysis.evidence import Evidence
from microbench.report.document import Picture
from microbench.report.suites import compute, graph, launch, link, memory

PICTURES: dict[str, Callable[[Evidence], list[Picture]]] = {
    "launch": launch.pictures,
    "graph": graph.pictures,
    "link": link.pictures,
    "memory": memory.pictures,
    "compute": compute.pictures,
}
# Benchmarks whose curve is among the pictures already, or whose numbers are names: of a GPU, of a NUMA node.
DRAWN = frozenset({
    "launch_duration", "graph_gain", "link_copy", "link_peer", "link_concurrent", "link_numa", "memory_levels",
    "memory_latency", "memory_occupancy", "gemm_throughput", "gemm_shapes",
})  # fmt: skip
# The rule that a suite comes down to: its title is told before any picture.
VERDICTS = {"link": "link.verdict", "memory": "memory.verdict", "compute": "compute.verdict"}
# Benchmarks in the order of their tables; those not named follow as the run has them.
ORDER = (*launch.ORDER, *graph.ORDER, *link.ORDER, *memory.ORDER, *compute.ORDER)
