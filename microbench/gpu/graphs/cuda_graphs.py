"""Graphs on a real GPU: see graph_api.py for what each method promises."""

from __future__ import annotations

from microbench.gpu.api import IntArray
from microbench.gpu.graph_api import (
    AllocationWay,
    Chain,
    ChangeWay,
    Decider,
    Footprint,
    Loop,
    Made,
    NodeKind,
    Shape,
    Shaped,
    Step,
)
from microbench.gpu.graphs.allocations import CudaStep
from microbench.gpu.graphs.base import Case
from microbench.gpu.graphs.chains import CudaChain
from microbench.gpu.graphs.changes import Changes
from microbench.gpu.graphs.decisions import DeviceDecides, HostDecides
from microbench.gpu.graphs.lives import Lives
from microbench.gpu.graphs.shapes import CudaShaped


class CudaGraphs:
    """Experiments of one case, made ready when first asked for."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._lives: dict[int, Lives] = {}
        self._changes: dict[tuple[ChangeWay, int], Changes] = {}

    def _life(self, nodes: int) -> Lives:
        if nodes not in self._lives:
            self._lives[nodes] = Lives(self._case, nodes)
        return self._lives[nodes]

    def lives(self, nodes: int, count: int, made: Made) -> IntArray:
        """See Graphs."""
        return self._life(nodes).stamps(count, made)

    def footprint(self, nodes: int, copies: int) -> Footprint:
        """See Graphs."""
        return self._life(nodes).footprint(copies)

    def changes(self, way: ChangeWay, nodes: int, changed: int, count: int) -> IntArray:
        """See Graphs."""
        key = (way, nodes)
        if key not in self._changes:
            self._changes[key] = Changes(self._case, nodes)
            self._changes[key].stamps(way, changed, 1)  # compiles the loop; first times are others'
        return self._changes[key].stamps(way, changed, count)

    def chain(self, kind: NodeKind, count: int) -> Chain:
        """See Graphs."""
        return CudaChain(self._case, kind, count)

    def shape(self, shape: Shape) -> Shaped:
        """See Graphs."""
        return CudaShaped(self._case, shape)

    def loop(self, decider: Decider) -> Loop:
        """See Graphs."""
        if decider in ("host_sync", "host_poll"):
            return HostDecides(self._case, polls=decider == "host_poll")
        return DeviceDecides(self._case, decider)

    def step(self, way: AllocationWay, size_bytes: int, pairs: int) -> Step:
        """See Graphs."""
        return CudaStep(self._case, way, size_bytes, pairs)
