"""An executable graph of the simulated GPU: made, uploaded, changed, launched and destroyed on the host's clock."""

from __future__ import annotations

import msgspec

from microbench.gpu.fake.calls import Call, Graph, replay_of
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.stream import Item


class Executable:
    """One instantiated graph in stream 0. Each method takes the host as long as the call that it stands for.

    What the next launch has to do first is remembered: an upload, or what changed since the last launch.
    """

    def __init__(self, machine: Machine, graph: Graph, *, uploaded: bool = False) -> None:
        self._machine = machine
        self._costs = machine.costs.graphs
        self._graph = graph
        self._uploaded = uploaded
        self._changed = 0

    @property
    def nodes(self) -> int:
        """Nodes of the graph."""
        return self._graph.nodes

    def instantiate(self) -> None:
        """Make it executable, anew if it was so before."""
        self._pass_ns(self._costs.instantiate.at(self.nodes))
        self._uploaded, self._changed = False, 0

    def upload(self) -> None:
        """The call returns before the GPU is ready."""
        on_gpu = Item(duration_ns=self._costs.upload_on_gpu.at(self.nodes))
        self._machine.make(Call(self._costs.upload.at(self.nodes), on_gpu), 1)
        self._uploaded = True

    def change(self, nodes: int, cost_ns: float) -> None:
        """A call, or calls, that change so many nodes."""
        self._pass_ns(cost_ns)
        self._changed += nodes

    def launch(self) -> None:
        """A launch call, with what it has to do first."""
        call = replay_of(self._graph, self._machine.costs)
        host_ns = call.host_ns + self._changed * self._costs.changed_launch_ns
        assert call.item is not None, "a graph runs in a stream"
        runs_ns = call.item.duration_ns
        if not self._uploaded:
            host_ns += self._costs.upload.at(self.nodes)
            runs_ns += self._costs.upload_on_gpu.at(self.nodes)
        self._uploaded, self._changed = True, 0
        self._machine.make(Call(host_ns, msgspec.structs.replace(call.item, duration_ns=runs_ns)), 1)

    def destroy(self) -> None:
        """Of the executable graph, and of the graph that it came from."""
        self._pass_ns(self._costs.destroy.at(self.nodes))

    def destroy_captured(self) -> None:
        """Of the graph that it came from, or was updated to."""
        self._pass_ns(self._costs.destroy_captured.at(self.nodes))

    def _pass_ns(self, cost_ns: float) -> None:
        self._machine.clock.pass_ns(self._machine.noise.one(cost_ns))
