"""Kernels side by side: one graph built from nodes and edges, and the same work on streams that part and meet."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from cuda.bindings import driver

from microbench.gpu.api import SAFE_QUEUE_SLOTS, Submit
from microbench.gpu.binding import bind_graph
from microbench.gpu.context import check, entry_point
from microbench.gpu.graph_api import Shape
from microbench.gpu.graphs.base import Case, wrong
from microbench.gpu.graphs.program import CallRow, Program
from microbench.gpu.submit import DriverSubmit, Parameters, launch
from microbench.ops import Launch

HOW = "every kernel recorded its begin and end; none began before those it depends on had ended"


class CudaShaped:
    """See Shaped of graph_api.py. Kernel 0 parts and kernel 1 joins where the shape is joined; then the branches."""

    def __init__(self, case: Case, shape: Shape) -> None:
        self._case = case
        self._shape = shape
        self._out = case.context.device_memory(shape.kernels * 16)
        self._function = case.modules.function("launch", "record")
        cycles = case.cycles(shape.duration_ns)
        self._parameters = [Parameters([(self._out, index, cycles)]) for index in range(shape.kernels)]
        self._edges = edges(shape)
        graph = self._graph_submit()
        last = case.stream(0) if self._ends_in_one_stream else None
        self.streams: Submit = Program(self._stream_calls(), waits_for=last)
        # Both sides wait in the same way: for the whole context where the streams do.
        self.graph: Submit = graph if last is not None else Program([CallRow.of(graph)], queue_slots=graph.queue_slots)

    def _graph_submit(self) -> DriverSubmit:
        graph = check(driver.cuGraphCreate(0))
        nodes: dict[int, Any] = {}
        for kernel in self._order():
            before = [nodes[one] for one, other in self._edges if other == kernel]
            params = driver.CUDA_KERNEL_NODE_PARAMS()
            params.func = driver.CUfunction(self._function)
            params.gridDimX = params.gridDimY = params.gridDimZ = 1
            params.blockDimX, params.blockDimY, params.blockDimZ = 32, 1, 1
            params.kernelParams = self._parameters[kernel].address
            nodes[kernel] = check(driver.cuGraphAddKernelNode(graph, before or None, len(before), params))
        executable = self._case.executable(graph)
        check(driver.cuGraphDestroy(graph))
        slots = SAFE_QUEUE_SLOTS if self._ends_in_one_stream else max(SAFE_QUEUE_SLOTS // self._shape.kernels, 1)
        return bind_graph(executable, self._case.stream(0), slots)

    @property
    def _ends_in_one_stream(self) -> bool:
        return self._shape.joined or self._shape.branches == 1

    def _order(self) -> list[int]:
        """Kernels in an order in which each comes behind those it depends on: the one that joins last."""
        return [*(kernel for kernel in range(self._shape.kernels) if not self._joins(kernel)), *self._joining()]

    def _joins(self, kernel: int) -> bool:
        return kernel in self._joining()

    def _joining(self) -> list[int]:
        return [1] if self._shape.joined else []

    def _launch(self, kernel: int, stream: int) -> CallRow:
        return CallRow.of(launch(self._function, Launch(), self._case.stream(stream), self._parameters[kernel]))

    def _event_call(self, name: str, stream: int, event: int) -> CallRow:
        record = name == "cuEventRecord"
        handle = self._case.stream(stream)
        return CallRow(name, entry_point(name), [event, handle] if record else [handle, event, 0])

    def _stream_calls(self) -> list[CallRow]:
        """What a program with streams and events does: branch b in stream b, parted and joined by stream 0.

        The branches are submitted in turn, a kernel of each at a time: none waits until another is submitted whole.
        """
        shape, calls = self._shape, []
        others = range(1, shape.branches)
        if shape.joined:
            events = [self._case.context.event(timed=False) for _ in range(shape.branches)]
            calls += [self._launch(0, 0), self._event_call("cuEventRecord", 0, events[0])]
            calls += [self._event_call("cuStreamWaitEvent", branch, events[0]) for branch in others]
        for place in range(shape.length):
            calls += [self._launch(branch_kernel(shape, branch, place), branch) for branch in range(shape.branches)]
        if shape.joined:
            calls += [self._event_call("cuEventRecord", branch, events[branch]) for branch in others]
            calls += [self._event_call("cuStreamWaitEvent", 0, events[branch]) for branch in others]
            calls.append(self._launch(1, 0))
        return calls

    def check(self) -> str:
        """See Shaped."""
        for what, submit in (("the graph", self.graph), ("the streams", self.streams)):
            self._case.context.clear(self._out, self._shape.kernels * 16)
            submit(1)
            self._case.context.synchronize()
            words = self._case.context.read(self._out, self._shape.kernels * 2, np.int64)
            stamps = words.reshape(self._shape.kernels, 2)
            if not stamps.all():
                raise wrong(what, f"only {int(stamps.all(axis=1).sum())} kernels ran", self._shape.kernels)
            for before, after in self._edges:
                if stamps[after, 0] < stamps[before, 1]:
                    raise wrong(what, f"kernel {after} began before kernel {before} had ended", "its edge kept")
        return HOW


def branch_kernel(shape: Shape, branch: int, place: int) -> int:
    """Number of the kernel at a place of a branch."""
    return (2 if shape.joined else 0) + branch * shape.length + place


def edges(shape: Shape) -> list[tuple[int, int]]:
    """(before, after) for each dependency."""
    found: list[tuple[int, int]] = []
    for branch in range(shape.branches):
        line = [branch_kernel(shape, branch, place) for place in range(shape.length)]
        if shape.joined:
            line = [0, *line, 1]
        found += itertools.pairwise(line)
    return found
