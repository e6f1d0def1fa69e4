"""Branches of kernels on the simulated GPU: in a graph, started by the front end, and on streams with events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from microbench.errors import MeasurementError
from microbench.gpu.bound import Submit
from microbench.gpu.fake.calls import Graph, replay_of
from microbench.gpu.fake.clock import FloatArray
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.program import FakeProgram
from microbench.gpu.fake.stream import Batch
from microbench.gpu.fake.submit import FakeSubmit, bound
from microbench.gpu.graph_api import Shape
from microbench.ops import Launch, Record, Wait

CHECKED = "SIMULATED: every kernel began behind those it depends on, in the graph and on the streams"


def dependencies(shape: Shape) -> list[tuple[int, ...]]:
    """For each kernel the numbers of those right before it: the first, then branch after branch, then the last."""
    begin = 1 if shape.joined else 0
    before: list[tuple[int, ...]] = [()] * begin
    for branch in range(shape.branches):
        head = begin + branch * shape.length
        before.append((0,) if shape.joined else ())
        before.extend((node,) for node in range(head, head + shape.length - 1))
    if shape.joined:
        before.append(tuple(begin + (branch + 1) * shape.length - 1 for branch in range(shape.branches)))
    return before


def schedule(before: Sequence[tuple[int, ...]], duration_ns: float, costs: FakeCosts) -> FloatArray:
    """When each kernel of a graph starts, the first at 0.

    A kernel is ready a gap after the last of those before it has ended. The front end starts ready kernels in that
    order, ``front_end_ns`` apart, and waits for an end while as many are resident as may be.
    """
    behind: list[list[int]] = [[] for _ in before]
    for node, those in enumerate(before):
        for other in those:
            behind[other].append(node)
    missing = [len(those) for those in before]
    starts_ns = np.zeros(len(before))
    ready = [(0.0, node) for node, those in enumerate(before) if not those]
    running: list[float] = []
    front_end_ns = -math.inf
    while ready:
        start_ns, node = heappop(ready)
        start_ns = max(start_ns, front_end_ns)
        while running and (running[0] <= start_ns or len(running) == costs.resident_kernels):
            start_ns = max(start_ns, heappop(running))
        heappush(running, start_ns + duration_ns)
        starts_ns[node], front_end_ns = start_ns, start_ns + costs.front_end_ns
        for follower in behind[node]:
            missing[follower] -= 1
            if not missing[follower]:  # starts are given in order of time, so this end is the last
                heappush(ready, (start_ns + duration_ns + costs.gap_graph_ns, follower))
    return starts_ns


class Part(NamedTuple):
    """A call of the work on streams, and the number of the kernel that it launches, None for an event's call."""

    submit: FakeSubmit
    kernel: int | None


class FakeShaped:
    """See Shaped. A kernel of a branch goes to that branch's stream, each branch's next one before any after next."""

    def __init__(self, machine: Machine, shape: Shape) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._shape = shape
        self._before = dependencies(shape)
        self._runs_ns = machine.costs.kernel_ns(shape.duration_ns)
        self._starts_ns = schedule(self._before, self._runs_ns, machine.costs)
        graph = Graph(shape.kernels, float(self._starts_ns.max()) + self._runs_ns)
        machine.clock.pass_ns(machine.costs.graphs.build.at(shape.kernels))
        machine.clock.pass_ns(machine.costs.graphs.instantiate.at(shape.kernels))
        self.graph: Submit = FakeSubmit(machine, replay_of(graph, machine.costs))
        self._parts = self._calls()
        slots = machine.costs.queue_slots // 2 // (shape.length + 2)  # of stream 0, the fullest
        self.streams: Submit = FakeProgram(machine, self._submit, max(slots, 1))

    def _calls(self) -> list[Part]:
        shape, parts = self._shape, []
        others = range(1, shape.branches) if shape.joined else range(0)
        launches = [bound(self._machine, Launch(shape.duration_ns, stream=one), {}) for one in range(shape.branches)]
        records = [bound(self._machine, Record(timed=False, stream=one), {}) for one in range(shape.branches)]
        if shape.joined:
            parts += [Part(launches[0], 0), Part(records[0], None)]
            parts += [Part(bound(self._machine, Wait(stream=one, other=0), {}), None) for one in others]
        first = 1 if shape.joined else 0
        for step in range(shape.length):
            parts += [Part(launches[one], first + one * shape.length + step) for one in range(shape.branches)]
        parts += [Part(records[one], None) for one in others]
        parts += [Part(bound(self._machine, Wait(stream=0, other=one), {}), None) for one in others]
        if shape.joined:
            parts.append(Part(launches[0], shape.kernels - 1))
        return parts

    def _submit(self) -> None:
        for part in self._parts:
            part.submit(1)

    def check(self) -> str:
        """See Shaped: what is looked at is the simulation's own record of begins and ends."""
        self._machine.check(self._scope)
        self.graph(1)
        self._ordered(self._starts_ns, "graph")
        made = [(part.kernel, part.submit.make(1).batches[-1]) for part in self._parts]
        self._machine.synchronize()
        kernels = {kernel: batch for kernel, batch in made if kernel is not None}
        self._ordered(np.array([_start_ns(kernels[node]) for node in range(self._shape.kernels)]), "streams")
        return CHECKED

    def _ordered(self, starts_ns: FloatArray, what: str) -> None:
        for node, those in enumerate(self._before):
            if any(starts_ns[node] < starts_ns[other] + self._runs_ns for other in those):
                raise MeasurementError(f"{what}: kernel {node} came before one that it depends on")


def _start_ns(batch: Batch) -> float:
    assert batch.starts_ns is not None, "a synchronised stream has nothing to come"
    return float(batch.starts_ns[0])
