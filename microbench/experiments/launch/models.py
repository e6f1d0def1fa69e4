"""Steps of small PyTorch models: as their programs submit them, through torch.compile, and as graphs."""

from collections.abc import Callable

import msgspec

from microbench.core.model import Fact
from microbench.gpu.experiment import Case, IntArray, Launch, Skip, experiment
from microbench.gpu.fake.environment import SIMULATED
from microbench.gpu.fake.machine import FakeProgram, FakeSubmit, Machine, call_of, chain_of, graph_of, replay_of
from microbench.gpu.layers.torch_models import CaptureTimes, Compiled, ModelName, TorchStep
from microbench.host.affinity import pinned

CHECKED = "simulated: nothing is computed"


def real_model(case: Case, name: ModelName, compiled: Compiled) -> TorchStep:
    """A step of a small PyTorch model on stream 0; it is usable until the case ends."""

    def durations_ns(run: Callable[[], object]) -> IntArray:
        return case.context.kernel_records.durations_ns(run)

    with pinned(case.board.cores.allowed):  # a library's own threads must not sit on the submitting core
        return TorchStep(name, compiled, case.stream(0), int(case.context.device), case.own, durations_ns)


class SimulatedModel(TorchStep):
    """A step of a model. torch.compile fuses its kernels in pairs; with reduce-overhead it replays them."""

    def __init__(self, machine: Machine, name: ModelName, compiled: Compiled) -> None:
        costs = machine.costs
        own = costs.models[name]
        self._machine = machine
        launches = own.launches if compiled == "eager" else own.launches // 2
        self._kernel_ns = own.kernel_ns
        kernel = Launch(duration_ns=own.kernel_ns)
        chain = graph_of(chain_of([kernel] * launches, costs))
        replay = replay_of(chain, costs)
        self._calls_ns = launches * own.launch_ns
        self._make_ns = costs.graphs.capture.at(launches) + costs.graphs.instantiate.at(launches)
        self.graph = None
        if compiled == "reduce_overhead":
            self.submit = FakeSubmit(machine, msgspec.structs.replace(replay, host_ns=replay.host_ns + own.launch_ns))
            self.launches = Fact("launches", None, reason="torch.compile replays graphs of its own", source=SIMULATED)
            return
        call = msgspec.structs.replace(call_of(kernel, costs), host_ns=own.launch_ns)

        def step() -> None:
            watch = machine.watch
            watch.operators += own.operators
            watch.functions += own.functions
            more_ns = own.operators * watch.operator_ns + own.functions * watch.function_ns
            machine.make(call, launches, more_ns / launches)

        slots = costs.queue_slots // 2 // launches
        self.submit = FakeProgram(machine, step, max(slots, 1), stream=0)
        self.launches = Fact("launches", launches, source=SIMULATED)
        self.graph = FakeSubmit(machine, replay)

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


model_step = experiment(real_model, SimulatedModel)
