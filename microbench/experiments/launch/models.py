"""Steps of PyTorch models and of a jitted JAX function, and profilers that can be switched on for a while."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from microbench.core.model import Fact
from microbench.core.units import plain
from microbench.gpu.experiment import Case, IntArray, Launch, MeasurementError, Skip, experiment
from microbench.gpu.fake import machine as fake
from microbench.gpu.fake.gpu import SIMULATED
from microbench.gpu.fake.machine import FakeProgram, FakeSubmit, Machine, call_of, chain_of, graph_of, replay_of
from microbench.gpu.layers.jax import JaxStep, Output
from microbench.gpu.layers.torch_models import CaptureTimes, Compiled, ModelName, TorchRecorder, TorchStep
from microbench.gpu.protocol.gpu import Recorded, Recorder, RecorderKind
from microbench.host.affinity import pinned
from microbench.recorder import cells, program
from microbench.recorder.cupti import NotRecorded

CHECKED = "simulated: nothing is computed"


def real_model(case: Case, name: ModelName, compiled: Compiled) -> TorchStep:
    """A step of a small PyTorch model on stream 0; it is usable until the case ends."""
    with pinned(case.board.cores.allowed):  # a library's own threads must not sit on the submitting core
        stream, device, records = case.stream(0), int(case.context.device), case.context
        return TorchStep(name, compiled, stream, device, case.own, lambda run: records.kernel_records.durations_ns(run))


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
        return self._machine.ran(CHECKED, self.submit, *filter(None, [self.graph]))

    def profiled_ns(self) -> IntArray:
        launches = self.launches.value
        if not isinstance(launches, int):
            raise Skip("torch.compile replays graphs of its own")
        self._machine.ran(CHECKED, self.submit)
        return self._machine.profiled_ns(self._machine.costs.kernel_ns(self._kernel_ns), launches)

    def capture(self) -> CaptureTimes:
        if self.graph is None:
            raise Skip("torch.compile makes its own graphs")
        clock = self._machine.clock
        clock.pass_ns(self._calls_ns + self._make_ns)
        return CaptureTimes(self._calls_ns * 1e-9, (self._calls_ns + self._make_ns) * 1e-9)


model_step = experiment(real_model, SimulatedModel)


def real_jitted(case: Case, kernels: int, output: Output) -> JaxStep:
    """Compile a jitted JAX function of so many kernels of one element; it is usable until the case ends.

    Raises Skip if JAX is missing or does not take or follow XLA's option for command buffers, and MeasurementError
    if XLA's program has another number of kernels.
    """
    with pinned(case.board.cores.allowed):  # XLA compiles on all cores
        return JaxStep(int(case.context.device), kernels, output)


class SimulatedJitted(JaxStep):
    """A jitted step: JAX's call, then each launch or a graph launch. With new memory the driver updates every node."""

    def __init__(self, machine: fake.Machine, kernels: int, output: Output) -> None:
        costs = machine.costs
        self._machine = machine
        call_ns = fake.layer_costs("jax_jit", costs).call_ns
        launch = fake.call_of(Launch(), costs)
        replay = fake.replay_of(fake.graph_of(fake.chain_of([Launch()] * kernels, costs)), costs)
        changed_ns = costs.graphs.set_params.at(kernels) if output == "new" else 0.0

        def launches() -> None:
            machine.spend(call_ns)
            machine.make(launch, kernels)

        self.stream = fake.FakeProgram(machine, launches, max(costs.queue_slots // 2 // kernels, 1), stream=0)
        self.graph = fake.FakeSubmit(
            machine, msgspec.structs.replace(replay, host_ns=replay.host_ns + call_ns + changed_ns)
        )

    def check(self) -> str:
        return self._machine.ran(CHECKED, self.stream, self.graph)


jitted_step = experiment(real_jitted, SimulatedJitted)


class WatchRecorder:
    """A Recorder. Its recordings are temporary files. Raises Skip where this process cannot be recorded."""

    def recorded(self, run: Callable[[], object]) -> Recorded:
        with self.recording() as ended:
            run()
            kinds = ended()
        return Recorded(
            kernels=int((kinds == cells.KERNEL).sum()), calls=int(np.isin(kinds, (cells.DRIVER, cells.RUNTIME)).sum())
        )

    @contextmanager
    def recording(self) -> Iterator[Callable[[], np.ndarray]]:
        """Begin a recording. The yielded function ends it and returns what kinds of rows it has."""
        early: list[str] = []
        with tempfile.TemporaryDirectory(prefix="microbench-recording-") as folder:
            try:
                recorder = program.begin_here(Path(folder), lambda cause, next_step: early.append(cause))
            except (NotRecorded, OSError) as error:
                raise Skip(f"microbench watch does not record here: {plain(error)}") from error
            ended = False

            def end() -> np.ndarray:
                nonlocal ended
                ended = True
                recorder.end()
                rows = np.fromfile(recorder.path, np.dtype(list(cells.ROW)))
                return np.asarray(rows["kind"])

            try:
                yield end
            finally:
                if not ended:
                    recorder.end()
        if early:
            raise MeasurementError(f"the recording ended early: {plain(early[0])}")


def real_recorder(case: Case, kind: RecorderKind) -> Recorder:
    """Prepare a profiler by an empty recording. From then on this process counts as recorded."""
    with pinned(case.board.cores.allowed):  # CUPTI's threads begin at its first recording
        recorder: Recorder
        if kind == "cupti":
            recorder = case.context.kernel_records
        else:
            recorder = WatchRecorder() if kind == "watch" else TorchRecorder(kind)
        with recorder.recording():
            case.synchronize()
    return recorder


class SimulatedRecorder:
    """A simulated profiler after its empty recording; it adds the same cost to every step."""

    def __init__(self, machine: Machine, kind: RecorderKind) -> None:
        self._machine, self._kind = machine, kind
        with self.recording():
            machine.synchronize()

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


process_recorder = experiment(real_recorder, SimulatedRecorder)
