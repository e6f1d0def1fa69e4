"""Simulates a user's function that submits through this package's protocol, and a user's kernel by its work."""

from __future__ import annotations

import math

import numpy as np

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray
from microbench.gpu.fake import machine as sim
from microbench.gpu.fake.device import Item
from microbench.gpu.layers.culprit import Followed, attempt, called, follow
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS
from microbench.gpu.protocol.own import (
    Blocker,
    GraphNode,
    KernelResources,
    KernelSpec,
    NotCapturedError,
    OwnCall,
    OwnGraph,
)
from microbench.gpu.protocol.submit import Submit

WARM_UPS = 4
LIBRARY = "the simulated GPU"
COMPARED = "SIMULATED: nothing is computed"
EMPTY = "the graph is empty: nothing was submitted to the captured stream"
# Invented, and the same for every kernel.
REGISTERS = 32


class FakeStep:
    """An OwnStep. Its function uses Submits of the simulated GPU."""

    library = LIBRARY
    stream = 0

    def __init__(self, machine: sim.Machine, own: OwnCall) -> None:
        self._machine, self._own = machine, own
        for _ in range(WARM_UPS):
            called(own.call, own.file)
        machine.synchronize()
        self.submit: Submit = sim.FakeProgram(machine, own.call, SAFE_QUEUE_SLOTS, stream=0)

    def capture(self, *, follow: bool = False) -> OwnGraph:
        machine = self._machine
        began_ns = machine.clock.time_ns
        captured = machine.capturing = sim.Captured()
        ran = Followed()
        try:
            ran = self._run(captured, follow)
        finally:
            machine.capturing = None
        error = captured.broken or (str(ran.error) if ran.error is not None else "")
        if error:
            raise NotCapturedError(Blocker(error, ran.called, ran.line))
        if not captured.calls:
            raise NotCapturedError(Blocker(EMPTY))
        graph = FakeOwnGraph(machine, captured, began_ns)
        self.submit.queue_slots = max(SAFE_QUEUE_SLOTS // len(graph.nodes), 1)
        return graph

    def _run(self, captured: sim.Captured, traced: bool) -> Followed:
        if not traced:
            return attempt(self._own.call)
        return follow(self._own.call, lambda: bool(captured.broken), self._own.file)

    def compare(self, graph: OwnGraph) -> str:
        return COMPARED

    def profiled_ns(self) -> IntArray:
        """The kernels of one call, each with what a profiler adds."""
        machine = self._machine
        seen = machine.capturing = sim.Captured(lenient=True)
        try:
            attempt(self._own.call)
        finally:
            machine.capturing = None
        durations_ns = [
            call.item.duration_ns + machine.costs.profiler_ns
            for call, count in seen.calls
            if call.item.engine is None
            for _ in range(count)
        ]
        return machine.globaltimer_ns(np.array(durations_ns))


class FakeOwnGraph:
    """An OwnGraph: the captured calls as one chain."""

    def __init__(self, machine: sim.Machine, captured: sim.Captured, began_ns: float) -> None:
        costs = machine.costs
        self.chain = [
            sim.Node(costs.gap_graph_ns, call.item.duration_ns) for call, count in captured.calls for _ in range(count)
        ]
        self.nodes = tuple(
            GraphNode(
                "kernel" if call.item.engine is None else "memcpy",
                f"simulated_{call.item.duration_ns:.0f}ns" if call.item.engine is None else "",
                (1, 1, 1),
                (32, 1, 1),
            )
            for call, count in captured.calls
            for _ in range(count)
        )
        graph = sim.graph_of(self.chain)
        machine.spend(costs.graphs.capture.at(graph.nodes))
        self.capture_s = (machine.clock.time_ns - began_ns) * 1e-9
        before_ns = machine.clock.time_ns
        machine.spend(costs.graphs.instantiate.at(graph.nodes))
        self.instantiate_s = (machine.clock.time_ns - before_ns) * 1e-9
        self.replay: Submit = sim.FakeSubmit(machine, sim.replay_of(graph, costs))


class FakeKernel:
    """An OwnKernel that takes as long as its bytes and operations need, in whole waves; no code is compiled or run."""

    def __init__(self, machine: sim.Machine, spec: KernelSpec) -> None:
        costs = machine.costs
        self._machine = machine
        threads = spec.block[0] * spec.block[1] * spec.block[2]
        blocks = spec.grid[0] * spec.grid[1] * spec.grid[2]
        if threads > costs.threads_per_sm:
            raise MeasurementError(f"SIMULATED: {spec.name} runs with at most {costs.threads_per_sm} threads a block")
        per_sm = max(min(costs.blocks_per_sm, costs.threads_per_sm // threads), 1)
        self.resources = KernelResources(
            REGISTERS, spec.shared_bytes, 0, 0, per_sm, costs.threads_per_sm, costs.sm_count,
            "blocks" if per_sm == costs.blocks_per_sm else "threads",
        )  # fmt: skip
        clock_hz = machine.device.governor.at(machine.clock.time_ns).clock_hz
        flops_per_s = costs.compute.alu_per_clock["fma_fp32"] * costs.sm_count * clock_hz
        moved_s = spec.work_bytes / (costs.memory.dram_bytes_per_s.mixed)
        wave = blocks / (per_sm * costs.sm_count)
        tail = math.ceil(wave) / wave if wave > 1 else 1.0
        busy_ns = max(moved_s, spec.work_flops / flops_per_s) * tail * 1e9
        self._duration_ns = max(busy_ns, costs.empty_kernel_ns)
        item = Item(gap_ns=costs.gap_stream_ns, duration_ns=self._duration_ns, buffer_bytes=costs.launch_record_bytes)
        self.submit: Submit = sim.FakeSubmit(machine, sim.Call(costs.submit_ns, item))
        self.submit(1)
        machine.synchronize()

    def profiled_ns(self, count: int) -> IntArray:
        machine = self._machine
        return machine.globaltimer_ns(machine.noise.device(self._duration_ns + machine.costs.profiler_ns, count))
