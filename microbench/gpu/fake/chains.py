"""Chains of one kind of node on the simulated GPU, as a graph and as the same calls into a stream."""

from __future__ import annotations

from microbench.errors import Skip
from microbench.gpu.bound import Submit
from microbench.gpu.fake.calls import replay_of
from microbench.gpu.fake.capture import call_of_kind, graph_of, node_of
from microbench.gpu.fake.executable import Executable
from microbench.gpu.fake.lives import refusal
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.needs import CONDITIONAL, EDGE_DATA, require_capability, require_driver
from microbench.gpu.fake.submit import FakeSubmit
from microbench.gpu.graph_api import NodeKind

CHECKED = "SIMULATED: a replay that has no memory to be wrong"


class FakeChain:
    """``count`` nodes of a kind. Raises Skip where the simulated GPU or its driver has no such nodes."""

    def __init__(self, machine: Machine, kind: NodeKind, count: int) -> None:
        costs = machine.costs
        if kind.startswith("pdl"):
            require_capability(costs, 9, 0, "programmatic dependent launch")
            require_driver(costs, EDGE_DATA, "programmatic edges")
        if kind in ("if_taken", "if_skipped"):
            require_driver(costs, CONDITIONAL, "conditional nodes")
        self._machine = machine
        self._scope = machine.scope
        self._node = costs.graphs.node(kind)
        self._count = count
        graph = graph_of([node_of(kind, costs)] * count)
        self._executable = Executable(machine, graph)
        machine.clock.pass_ns(costs.graphs.build.at(count))
        self.instantiate_ns()
        self._executable.launch()
        machine.synchronize()
        self.graph: Submit = FakeSubmit(machine, replay_of(graph, costs))
        call = call_of_kind(kind, costs)
        self.stream: Submit | None = FakeSubmit(machine, call, records=kind == "event_record") if call else None

    def instantiate_ns(self) -> int:
        """See Chain."""
        machine = self._machine
        machine.check(self._scope)
        cost_ns = machine.costs.graphs.instantiate.at(self._count) + self._count * self._node.instantiate_ns
        began_ns = machine.clock.now_ns()
        machine.clock.pass_ns(machine.noise.one(cost_ns))
        return machine.clock.now_ns() - began_ns

    def update_ns(self) -> int:
        """See Chain."""
        machine, own_ns = self._machine, self._node.update_ns
        machine.check(self._scope)
        refused = refusal(machine.costs, own_ns)
        if refused or own_ns is None:
            raise Skip(refused)
        began_ns = machine.clock.now_ns()
        self._executable.change(self._count, machine.costs.graphs.exec_update.at(self._count) + self._count * own_ns)
        return machine.clock.now_ns() - began_ns

    def check(self) -> str:
        """See Chain. What cannot run cannot go wrong either: the replay is only timed."""
        self._machine.check(self._scope)
        self._executable.launch()
        self._machine.synchronize()
        return CHECKED
