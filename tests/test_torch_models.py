"""Steps of PyTorch models: counted, captured, compiled and checked, on a stand-in for PyTorch and on a real GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact
from microbench.core.ops import IntArray
from microbench.experiments.launch.models import model_step
from microbench.gpu.layers import torch_models
from microbench.gpu.layers.torch_models import MODELS, Compiled, Program, TorchStep
from microbench.gpu.protocol.gpu import Gpu

STREAM = 5


class Tensor:
    """An array with the few methods that checking needs."""

    def __init__(self, *values: float) -> None:
        self.values = np.array(values)

    def detach(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return Tensor(*self.values)

    def fill_(self, value: float) -> None:
        self.values[:] = value

    def copy_(self, other: Tensor) -> None:
        self.values[:] = other.values

    def data_ptr(self) -> int:
        return id(self)


class Graph:
    """A captured step: a replay writes what the step would give into the tensors of the capture."""

    def __init__(self, machine: Machine, keep_graph: bool) -> None:
        self.machine, self.kept, self.ready, self.results = machine, keep_graph, not keep_graph, ()

    def raw_cuda_graph(self) -> int:
        assert self.kept
        return 7

    def instantiate(self) -> None:
        self.ready = True

    def reset(self) -> None:
        self.machine.alive -= 1

    def replay(self) -> None:
        assert self.ready
        if self.machine.replays:
            for old, new in zip(self.machine.step._results, self.machine.program.run(), strict=True):
                if old is not new:
                    old.copy_(new)


class Machine:
    """A stand-in for PyTorch and the driver with one program, whose captures have these nodes."""

    def __init__(self, program: Program, nodes: tuple[str, ...] = ("kernel",), *, keeps: bool = True) -> None:
        self.program, self.nodes, self.keeps, self.replays, self.alive = program, nodes, keeps, True, 0
        self.compiled: Callable[..., object] = lambda run, mode: run
        self.step: TorchStep
        cuda = SimpleNamespace(
            synchronize=lambda: None, empty_cache=lambda: None, current_stream=lambda: STREAM, CUDAGraph=self.graph,
            graph=lambda graph, stream: nullcontext(),
        )  # fmt: skip
        self.torch = SimpleNamespace(
            cuda=cuda, manual_seed=lambda seed: None, no_grad=nullcontext,
            compile=lambda run, mode: self.compiled(run, mode),
            allclose=lambda a, b, rtol, atol: np.allclose(a.values, b.values, rtol, atol),
        )  # fmt: skip
        kinds = SimpleNamespace(
            CU_GRAPH_NODE_TYPE_KERNEL="kernel", CU_GRAPH_NODE_TYPE_MEMCPY="copy", CU_GRAPH_NODE_TYPE_MEMSET="memset"
        )
        self.driver = SimpleNamespace(
            CUgraph=int, CUstream=int, CUgraphNodeType=kinds, cuStreamSynchronize=lambda stream: (0,),
            cuGraphGetNodes=lambda graph, count=0: (0, list(self.nodes[:count]) or None, len(self.nodes)),
            cuGraphNodeGetType=lambda node: (0, node),
        )  # fmt: skip

    def graph(self, **options: bool) -> Graph:
        if options and not self.keeps:
            raise TypeError("unexpected keyword argument 'keep_graph'")
        self.alive += 1
        return Graph(self, options.get("keep_graph", False))

    @contextmanager
    def opened(self, patch: pytest.MonkeyPatch, compiled: Compiled = "eager") -> Iterator[TorchStep]:
        patch.setattr(torch_models, "load_torch", lambda: self.torch)
        patch.setattr(torch_models, "use_stream", lambda *where: lambda: None)
        patch.setattr(torch_models.base, "load_driver", lambda: self.driver)
        patch.setitem(torch_models.PROGRAMS, "linear_gelu", lambda torch, device: self.program)
        owned: list[Callable[[], object]] = []

        def record(run: Callable[[], object]) -> IntArray:
            run()
            return np.array([1000, 2000])

        self.step = TorchStep("linear_gelu", compiled, STREAM, 0, owned.append, record)
        yield self.step
        for release in reversed(owned):
            release()
        assert self.alive == 0, "every graph is destroyed"


def doubling() -> Program:
    x = Tensor(1.0, 2.0)
    return Program(lambda: (Tensor(*(2 * x.values)),))


def optimizer() -> Program:
    """A step that adds 1 to its parameter, which is its result and its state."""
    parameter = Tensor(5.0)

    def run() -> tuple[Tensor, ...]:
        parameter.values += 1
        return (parameter,)

    return Program(run, lambda: (parameter,))


def test_kernels_copies_and_memsets_of_the_captured_step_are_its_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(doubling(), ("kernel", "memset", "copy", "empty", "kernel"))
    with machine.opened(monkeypatch) as step:
        assert (step.launches.value, step.submit.queue_slots) == (4, 127)
        assert "equal" in step.check()
        taken = step.capture()
        assert 0 < taken.calls_s <= taken.whole_s
        assert "equal" in step.check(), "a further capture leaves the first graph's results"


def test_a_pytorch_that_keeps_no_graph_has_its_step_captured_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Fact("kernels_per_call", 9, source="stream capture")
    monkeypatch.setattr(torch_models.base, "kernels_of_one_call", lambda handle, driver: counted)
    with Machine(doubling(), keeps=False).opened(monkeypatch) as step:
        assert (step.launches.name, step.launches.value) == ("launches", 9)
        step.check()


def test_a_graph_that_leaves_its_results_as_they_were_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(doubling())
    with machine.opened(monkeypatch) as step:
        machine.replays = False
        with pytest.raises(MeasurementError, match="graph: its results differ"):
            step.check()


def test_a_check_restores_what_steps_change(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(optimizer())
    with machine.opened(monkeypatch) as step:
        (parameter,) = machine.program.state()
        before = parameter.values.copy()
        step.check()
        assert (parameter.values == before).all()


def test_compiled_steps_are_compared_and_a_missing_compiler_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(doubling())
    with machine.opened(monkeypatch, "reduce_overhead") as step:
        assert (step.graph, step.launches.value) == (None, None)
        assert step.launches.reason
        step.check()
        with pytest.raises(Skip, match="its own graphs"):
            step.capture()
    machine.compiled = lambda run, mode: lambda: (Tensor(2.0, 5.0),)
    with machine.opened(monkeypatch, "default") as step, pytest.raises(MeasurementError, match="compiled step"):
        step.check()

    def refuse(run: object, mode: str) -> object:
        raise RuntimeError(f"no C compiler for {mode}")

    machine.compiled = refuse
    with pytest.raises(Skip, match="no C compiler for reduce-overhead"), machine.opened(monkeypatch, "reduce_overhead"):
        pass


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_on_the_gpu(gpu: Gpu, name: str) -> None:
    pytest.importorskip("torch")
    with gpu.case():
        step = model_step(gpu, name, "eager")
        assert isinstance(step.launches.value, int)
        assert step.launches.value > 10
        assert "equal" in step.check()
        taken = step.capture()
        assert 0 < taken.calls_s < taken.whole_s < 1
