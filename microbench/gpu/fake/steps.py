"""Steps that allocate, use and free device memory on the simulated GPU, in a graph and in stream order."""

from __future__ import annotations

import math

from microbench.gpu.bound import Submit
from microbench.gpu.fake.calls import Call, replay_of
from microbench.gpu.fake.capture import Node, chain_of, graph_of
from microbench.gpu.fake.graph_costs import PAGE_BYTES
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.program import FakeProgram
from microbench.gpu.fake.stream import Item
from microbench.gpu.fake.submit import FakeSubmit, bound
from microbench.gpu.graph_api import AllocationWay
from microbench.ops import Launch

CHECKED = "SIMULATED: a step that has no memory to be wrong"
CALLS_OF_A_PAIR = 3


class Pool:
    """A memory pool: pages are mapped when an allocation needs them, and kept, or given back at each synchronise.

    A block freed in a stream serves the next allocation in it, so that a step needs one block's pages.
    """

    def __init__(self, machine: Machine, *, releases: bool) -> None:
        self._machine = machine
        self._pages = 0
        if releases:
            machine.at_synchronize.append(self._release)

    @property
    def held_bytes(self) -> int:
        """What the pool holds now."""
        return self._pages * PAGE_BYTES

    def map_ns(self, size_bytes: int) -> float:
        """What an allocation has to do for its pages."""
        missing = max(math.ceil(size_bytes / PAGE_BYTES) - self._pages, 0)
        self._pages += missing
        return missing * self._machine.costs.graphs.map_page_ns

    def _release(self) -> None:
        self._machine.clock.pass_ns(self._pages * self._machine.costs.graphs.release_page_ns)
        self._pages = 0


class FakeStep:
    """See Step."""

    submit: Submit

    def __init__(self, machine: Machine, way: AllocationWay, size_bytes: int, pairs: int) -> None:
        self._machine = machine
        self._way = way
        self._size_bytes = size_bytes
        self._pairs = pairs
        self._pool = Pool(machine, releases=way == "stream_released")
        self._use = Launch(duration_ns=machine.costs.graphs.dependent_kernel_ns)
        self._used = bound(machine, self._use, {})
        if way in ("graph_nodes", "graph_outside"):
            self.submit = self._graph()
        else:
            # What a synchronise gives back is missing in the next step only, so that a burst is of one step there.
            slots = 1 if way == "stream_released" else machine.costs.queue_slots // 2 // (pairs * CALLS_OF_A_PAIR)
            self.submit = FakeProgram(machine, self._stream, max(slots, 1))

    def _graph(self) -> FakeSubmit:
        costs, pair = self._machine.costs, chain_of([self._use], self._machine.costs)
        if self._way == "graph_nodes":
            self._machine.clock.pass_ns(self._pool.map_ns(self._size_bytes))
            allocate = Node(costs.gap_graph_ns, costs.graphs.allocate_node_ns)
            pair = [allocate, *pair, Node(costs.gap_graph_ns, costs.graphs.free_node_ns)]
        graph = graph_of(pair * self._pairs)
        self._machine.clock.pass_ns(costs.graphs.instantiate.at(graph.nodes))
        return FakeSubmit(self._machine, replay_of(graph, costs))

    def _stream(self) -> None:
        costs = self._machine.costs.graphs
        for _ in range(self._pairs):
            if self._way != "stream_outside":
                allocate_ns = costs.allocate_ns + self._pool.map_ns(self._size_bytes)
                self._machine.make(Call(allocate_ns, Item(duration_ns=costs.allocate_on_gpu_ns, queued=False)), 1)
            self._used(1)
            if self._way != "stream_outside":
                self._machine.make(Call(costs.free_ns, Item(duration_ns=costs.free_on_gpu_ns, queued=False)), 1)

    def held_bytes(self) -> int:
        """See Step."""
        return self._size_bytes if self._way in ("graph_outside", "stream_outside") else self._pool.held_bytes

    def check(self) -> str:
        """See Step."""
        self.submit(1)
        self._machine.synchronize()
        return CHECKED
