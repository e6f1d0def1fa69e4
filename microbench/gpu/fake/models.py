"""Simulates steps of models and of jitted functions, launch by launch and as a graph, and profilers of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from microbench.core.errors import Skip
from microbench.core.model import Fact
from microbench.core.ops import IntArray, Launch
from microbench.gpu.fake import machine as sim
from microbench.gpu.fake.costs import ModelCosts
from microbench.gpu.protocol.models import CaptureTimes, Compiled, ModelName, Output
from microbench.gpu.protocol.recorder import Recorded, RecorderKind
from microbench.gpu.protocol.submit import Submit

CHECKED = "simulated: nothing is computed"
SIMULATED = "SIMULATED"


class FakeModel:
    """A step of a model. torch.compile fuses its kernels in pairs; with reduce-overhead it replays them."""

    def __init__(self, machine: sim.Machine, name: ModelName, compiled: Compiled) -> None:
        costs = machine.costs
        own: ModelCosts = costs.models[name]
        self._machine = machine
        launches = own.launches if compiled == "eager" else own.launches // 2
        self._kernel_ns = own.kernel_ns
        kernel = Launch(duration_ns=own.kernel_ns)
        chain = sim.graph_of(sim.chain_of([kernel] * launches, costs))
        replay = sim.replay_of(chain, costs)
        self._calls_ns = launches * own.launch_ns
        self._make_ns = costs.graphs.capture.at(launches) + costs.graphs.instantiate.at(launches)
        self.graph: Submit | None = None
        if compiled == "reduce_overhead":
            self.submit: Submit = sim.FakeSubmit(
                machine, msgspec.structs.replace(replay, host_ns=replay.host_ns + own.launch_ns)
            )
            self.launches = Fact("launches", None, reason="torch.compile replays graphs of its own", source=SIMULATED)
            return
        call = msgspec.structs.replace(sim.call_of(kernel, costs, {}), host_ns=own.launch_ns)

        def step() -> None:
            watch = machine.watch
            watch.operators += own.operators
            watch.functions += own.functions
            more_ns = own.operators * watch.operator_ns + own.functions * watch.function_ns
            machine.make(call, launches, more_ns / launches)

        slots = costs.queue_slots // 2 // launches
        self.submit = sim.FakeProgram(machine, step, max(slots, 1), stream=0)
        self.launches = Fact("launches", launches, source=SIMULATED)
        self.graph = sim.FakeSubmit(machine, replay)

    def check(self) -> str:
        self.submit(1)
        if self.graph is not None:
            self.graph(1)
        self._machine.synchronize()
        return CHECKED

    def profiled_ns(self) -> IntArray:
        launches = self.launches.value
        if not isinstance(launches, int):
            raise Skip("torch.compile replays graphs of its own")
        costs = self._machine.costs
        self.submit(1)
        self._machine.synchronize()
        durations_ns = self._machine.noise.device(costs.kernel_ns(self._kernel_ns) + costs.profiler_ns, launches)
        return self._machine.globaltimer_ns(durations_ns)

    def capture(self) -> CaptureTimes:
        if self.graph is None:
            raise Skip("torch.compile makes its own graphs")
        clock = self._machine.clock
        clock.pass_ns(self._calls_ns + self._make_ns)
        return CaptureTimes(self._calls_ns * 1e-9, (self._calls_ns + self._make_ns) * 1e-9)


class FakeJitted:
    """A jitted step: JAX's call, then each launch or a graph launch. With new memory the driver updates every node."""

    def __init__(self, machine: sim.Machine, kernels: int, output: Output) -> None:
        costs = machine.costs
        self._machine = machine
        call_ns = sim.layer_costs("jax_jit", costs).call_ns
        launch = sim.call_of(Launch(), costs, {})
        replay = sim.replay_of(sim.graph_of(sim.chain_of([Launch()] * kernels, costs)), costs)
        changed_ns = costs.graphs.set_params.at(kernels) if output == "new" else 0.0

        def launches() -> None:
            machine.spend(call_ns)
            machine.make(launch, kernels)

        self.stream: Submit = sim.FakeProgram(machine, launches, max(costs.queue_slots // 2 // kernels, 1), stream=0)
        self.graph: Submit = sim.FakeSubmit(
            machine, msgspec.structs.replace(replay, host_ns=replay.host_ns + call_ns + changed_ns)
        )

    def check(self) -> str:
        self.stream(1)
        self.graph(1)
        self._machine.synchronize()
        return CHECKED


class FakeRecorder:
    """A simulated profiler, which adds the same cost to every step."""

    def __init__(self, machine: sim.Machine, kind: RecorderKind) -> None:
        self._machine, self._kind = machine, kind

    @contextmanager
    def recording(self) -> Iterator[None]:
        kind, costs, watch = self._kind, self._machine.costs.recorder, self._machine.watch
        watch.call_ns = {"cupti": costs.kernel_ns, "watch": costs.watch_ns}.get(kind, costs.call_ns)
        watch.operator_ns = costs.operator_ns if kind in ("torch_cpu", "torch_stack") else 0.0
        watch.function_ns = costs.function_ns if kind == "torch_stack" else 0.0
        watch.node_ns = costs.left_node_ns + costs.node_ns
        try:
            yield
        finally:
            watch.call_ns = watch.operator_ns = watch.function_ns = 0.0
            watch.node_ns = costs.left_node_ns

    def recorded(self, run: Callable[[], object]) -> Recorded:
        kind, watch = self._kind, self._machine.watch
        watch.kernels = watch.calls = watch.operators = watch.functions = 0
        with self.recording():
            run()
        if kind == "cupti":
            return Recorded(watch.kernels)
        operators = watch.operators if kind in ("torch_cpu", "torch_stack") else 0
        return Recorded(watch.kernels, watch.calls, operators, watch.functions if kind == "torch_stack" else 0)
