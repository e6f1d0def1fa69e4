"""Iterations on the simulated GPU until somebody decides that they are over: the host, or the GPU itself."""

from __future__ import annotations

from microbench.gpu.fake.calls import Graph, call_of, replay_of
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.needs import CONDITIONAL, DEVICE_LAUNCH, require_driver
from microbench.gpu.graph_api import Decider
from microbench.ops import Launch


class FakeLoop:
    """See Loop. Raises Skip where the driver has no such way of deciding."""

    def __init__(self, machine: Machine, decider: Decider) -> None:
        if decider == "while":
            require_driver(machine.costs, CONDITIONAL, "conditional nodes")
        if decider == "tail_launch":
            require_driver(machine.costs, DEVICE_LAUNCH, "graph launches from the device")
        self._machine = machine
        self._scope = machine.scope
        self._decider = decider
        self._launch = call_of(Launch(duration_ns=machine.costs.graphs.dependent_kernel_ns), machine.costs, {})

    def run_ns(self, iterations: int) -> int:
        """See Loop."""
        machine = self._machine
        machine.check(self._scope)
        began_ns = machine.clock.now_ns()
        if self._decider in ("host_sync", "host_poll"):
            for _ in range(iterations):
                self._decide_on_host()
        else:
            self._decide_on_gpu(iterations)
        return machine.clock.now_ns() - began_ns

    def _decide_on_host(self) -> None:
        machine = self._machine
        ends_ns = machine.make(self._launch, 1).batches[-1].ends_ns
        if self._decider == "host_sync":
            machine.synchronize(0)
        else:
            assert ends_ns is not None, "nothing may hold the stream here"
            machine.clock.wait_until(float(ends_ns[-1]) + machine.costs.flag_to_host_ns)
        machine.clock.pass_ns(machine.costs.graphs.look_ns)

    def _decide_on_gpu(self, iterations: int) -> None:
        costs = self._machine.costs.graphs
        each_ns = costs.while_iteration_ns if self._decider == "while" else costs.tail_iteration_ns
        self._machine.make(replay_of(Graph(1, iterations * each_ns), self._machine.costs), 1)
        self._machine.synchronize(0)
