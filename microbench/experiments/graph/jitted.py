"""A jitted JAX function of several kernels, with XLA's command buffers, which are CUDA graphs, and without."""

import msgspec

from microbench.gpu.experiment import Case, Launch, experiment
from microbench.gpu.fake import machine as fake
from microbench.gpu.layers.jax import JaxStep, Output
from microbench.host.affinity import pinned

CHECKED = "simulated: nothing is computed"


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
        self.stream(1)
        self.graph(1)
        self._machine.synchronize()
        return CHECKED


jitted_step = experiment(real_jitted, SimulatedJitted)
