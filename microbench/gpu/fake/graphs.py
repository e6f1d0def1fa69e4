"""Graphs of the simulated GPU: every method of the protocol Graphs, in the scope of one case."""

from __future__ import annotations

from microbench.gpu.api import IntArray
from microbench.gpu.fake import lives
from microbench.gpu.fake.chains import FakeChain
from microbench.gpu.fake.iterations import FakeLoop
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.shapes import FakeShaped
from microbench.gpu.fake.steps import FakeStep
from microbench.gpu.graph_api import AllocationWay, ChangeWay, Decider, Footprint, Made, NodeKind, Shape


class FakeGraphs:
    """See Graphs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope

    def _open(self) -> Machine:
        self._machine.check(self._scope)
        return self._machine

    def lives(self, nodes: int, count: int, made: Made) -> IntArray:
        """See Graphs."""
        return lives.lives(self._open(), nodes, count, made)

    def footprint(self, nodes: int, copies: int) -> Footprint:
        """See Graphs."""
        costs = self._open().costs.graphs
        acts = (costs.instantiate, costs.upload, costs.destroy)
        self._machine.clock.pass_ns(copies * sum(act.at(nodes) for act in acts))
        return Footprint(costs.device_memory.at(nodes), costs.host_memory.at(nodes))

    def changes(self, way: ChangeWay, nodes: int, changed: int, count: int) -> IntArray:
        """See Graphs."""
        return lives.changes(self._open(), way, nodes, changed, count)

    def chain(self, kind: NodeKind, count: int) -> FakeChain:
        """See Graphs."""
        return FakeChain(self._open(), kind, count)

    def shape(self, shape: Shape) -> FakeShaped:
        """See Graphs."""
        return FakeShaped(self._open(), shape)

    def loop(self, decider: Decider) -> FakeLoop:
        """See Graphs."""
        return FakeLoop(self._open(), decider)

    def step(self, way: AllocationWay, size_bytes: int, pairs: int) -> FakeStep:
        """See Graphs."""
        return FakeStep(self._open(), way, size_bytes, pairs)
