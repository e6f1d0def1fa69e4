"""PyTorch models (Linear and GELU, transformer blocks, AdamW), eager, compiled and as graphs; PyTorch's profiler.

The models are small, so that their steps are launch-bound: they measure the time that modules, dispatch and Python
take between two launches.
"""

import re
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact
from microbench.core.ops import IntArray
from microbench.core.units import plain
from microbench.gpu.layers import base
from microbench.gpu.layers.torch import INSTALL, first, load_torch, use_stream
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS, Recorded, RecorderKind, Submit

ModelName = Literal["linear_gelu", "transformer_block", "adamw_step"]
MODELS: dict[str, str] = {
    "linear_gelu": "Linear and GELU layers, one after another",
    "transformer_block": "transformer blocks: norm, attention, MLP",
    "adamw_step": "AdamW optimizer step over a list of parameters",
}
# How the step is run: as it is written, or through torch.compile in one of its modes.
Compiled = Literal["eager", "default", "reduce_overhead"]
COMPILED: dict[str, str] = {
    "eager": "eager",
    "default": "torch.compile",
    "reduce_overhead": "torch.compile, reduce-overhead",
}

LAYERS_DEEP, BLOCKS, WIDTH, HEADS, TOKENS, BATCH = 16, 4, 256, 4, 128, 2
# Steps before anything is captured or measured: PyTorch asks for three (torch.cuda.make_graphed_callables).
WARM_UPS = 3
# Half-precision sums in another order differ in the third digit.
RELATIVE, ABSOLUTE = 2e-2, 5e-3
MODES: dict[Compiled, str] = {"default": "default", "reduce_overhead": "reduce-overhead"}
CHECKED = "the results of the step and of its graph equal those of an eager step"
# What torch.compile raises if it cannot work here: its own errors are RuntimeErrors, or a compiler or library is
# missing.
NO_COMPILER = (RuntimeError, ImportError, OSError)
Tensors = Sequence[Any]
LAUNCHED = ("KERNEL", "MEMCPY", "MEMSET")  # the nodes of a graph that are launches of its step


class CaptureTimes(NamedTuple):
    """Host time to make a step's graph once, in s: the captured calls, and everything until the graph can run."""

    calls_s: float
    whole_s: float


class Program(NamedTuple):
    """A model's step: ``run`` submits it once and returns its results; ``state`` is what it changes in place."""

    run: Callable[[], Tensors]
    state: Callable[[], Tensors] = tuple


def linear_gelu(torch: Any, device: str) -> Program:
    """16 Linear layers of width 256 with a GELU behind each, on 32 rows, without gradients."""
    nn = torch.nn
    layers = [layer for _ in range(LAYERS_DEEP) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = nn.Sequential(*layers).to(device, torch.float16).eval()
    x = torch.randn(32, WIDTH, device=device, dtype=torch.float16)
    return Program(torch.no_grad()(lambda: (model(x),)))


def transformer_block(torch: Any, device: str) -> Program:
    """4 transformer blocks (norm, attention of 4 heads, MLP) of width 256 on 2 x 128 tokens, without gradients."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]  # torch is not known to the type checker
        """Norm, attention and MLP with their residuals, as model code writes them."""

        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            batch, tokens, width = x.shape
            heads = self.qkv(self.norm_1(x)).view(batch, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
            return x + self.mlp(self.norm_2(x))

    model = nn.Sequential(*(Block() for _ in range(BLOCKS))).to(device, torch.float16).eval()
    x = torch.randn(BATCH, TOKENS, WIDTH, device=device, dtype=torch.float16)
    return Program(torch.no_grad()(lambda: (model(x),)))


def adamw_step(torch: Any, device: str) -> Program:
    """AdamW over the 48 parameters of four blocks, not fused, with foreach, which is PyTorch's default.

    It is ``capturable``, because a graph needs its step counts on the GPU.
    """
    shapes = [(3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH)]
    shapes += [(WIDTH,)] * 6
    parameters = [torch.randn(shape, device=device, requires_grad=True) for shape in shapes * BLOCKS]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, capturable=True)

    def run() -> Tensors:
        optimizer.step()
        return parameters

    def state() -> Tensors:
        own = [value for values in optimizer.state.values() for value in values.values() if torch.is_tensor(value)]
        return [*parameters, *own]

    return Program(run, state)


PROGRAMS: dict[ModelName, Callable[[Any, str], Program]] = {
    "linear_gelu": linear_gelu,
    "transformer_block": transformer_block,
    "adamw_step": adamw_step,
}


class TorchStep:
    """A step of a model on one stream, warmed up, counted and captured.

    Each call of ``submit`` submits it once and does not wait. ``graph`` replays it as a graph; None if the framework
    makes its own graphs. ``launches`` is how many kernels, copies and memsets one step submits, counted by capturing
    it; None with a reason if that is unknown.
    """

    submit: Submit
    graph: Submit | None
    launches: Fact

    def __init__(
        self,
        name: ModelName,
        compiled: Compiled,
        stream_handle: int,
        device_index: int,
        own: Callable[..., None],
        record: Callable[[Callable[[], object]], IntArray],
    ) -> None:
        """``own`` receives functions to call when the case ends; ``record`` runs a function and returns the durations
        of its kernels.

        Raises Skip without PyTorch or a working compiler.
        """
        self._record = record
        torch = self._torch = load_torch()
        driver = base.load_driver()
        own(torch.cuda.empty_cache)
        own(use_stream(torch, stream_handle, device_index))
        torch.manual_seed(0)
        self._program = program = PROGRAMS[name](torch, f"cuda:{device_index}")
        self._compiled = compiled
        for _ in range(WARM_UPS):
            first(program.run)
        self._run = program.run if compiled == "eager" else self._compile(MODES[compiled])
        self._results: Tensors = ()
        self._replay: Callable[[], object] | None = None
        handle = base.LayerHandle(self._run, stream_handle)
        self.graph = None
        reason = "torch.compile replays graphs of its own"
        self.launches = Fact("launches", None, reason=reason, source="stream capture")
        if compiled != "reduce_overhead":
            graph, kept = self._captured()
            own(graph.reset)
            self.launches = self._counted(driver, graph, kept, handle)
            if kept:
                graph.instantiate()
            self._replay = graph.replay
            self.graph = base.LayerSubmit(base.LayerHandle(graph.replay, stream_handle), driver)
        self.submit = base.LayerSubmit(handle, driver)
        count = self.launches.value
        self.submit.queue_slots = max(SAFE_QUEUE_SLOTS // count, 1) if isinstance(count, int) and count else 1
        torch.cuda.synchronize()

    def _compile(self, mode: str) -> Callable[[], Tensors]:
        """The step through torch.compile, compiled by its first calls. Raises Skip if that does not work."""
        torch = self._torch
        try:
            run: Callable[[], Tensors] = torch.compile(self._program.run, mode=mode)
            for _ in range(WARM_UPS):
                run()
            torch.cuda.synchronize()
        except NO_COMPILER as error:
            raise Skip(f"torch.compile does not work here: {plain(error)}") from error
        return run

    def _captured(self) -> tuple[Any, bool]:
        """The step captured, and whether PyTorch kept the graph uninstantiated so that its nodes can be counted."""
        torch = self._torch
        try:
            graph, kept = torch.cuda.CUDAGraph(keep_graph=True), True
        except TypeError:  # a PyTorch that instantiates at once
            graph, kept = torch.cuda.CUDAGraph(), False
        stream = torch.cuda.current_stream()
        with base.capturing("PyTorch", (RuntimeError,), graph.reset), torch.cuda.graph(graph, stream=stream):
            self._results = self._run()
        return graph, kept

    def _counted(self, driver: Any, graph: Any, kept: bool, handle: base.LayerHandle) -> Fact:
        """Kernels, copies and memsets of one step, from PyTorch's captured graph, or from a capture of our own."""
        if not kept:
            counted = base.kernels_of_one_call(handle, driver)
            return Fact("launches", counted.value, reason=counted.reason, source="kernels of a stream capture")
        launched = [getattr(driver.CUgraphNodeType, f"CU_GRAPH_NODE_TYPE_{kind}") for kind in LAUNCHED]
        types = base.node_types(driver, driver.CUgraph(graph.raw_cuda_graph()))
        return Fact("launches", sum(kind in launched for kind in types), source="nodes of the captured step")

    def profiled_ns(self) -> IntArray:
        def run() -> None:
            self._run()
            self._torch.cuda.synchronize()

        return self._record(run)

    def capture(self) -> CaptureTimes:
        if self._replay is None:
            raise Skip("torch.compile makes its own graphs")
        torch, results = self._torch, self._results
        torch.cuda.synchronize()
        called_ns = [0, 0]
        run = self._run

        def timed() -> Tensors:
            called_ns[0] = time.monotonic_ns()
            captured = run()
            called_ns[1] = time.monotonic_ns()
            return captured

        began_ns = time.monotonic_ns()
        self._run = timed
        try:
            graph, kept = self._captured()
        finally:
            self._run = run
        if kept:
            graph.instantiate()
        ended_ns = time.monotonic_ns()
        graph.reset()
        self._results = results
        return CaptureTimes((called_ns[1] - called_ns[0]) * 1e-9, (ended_ns - began_ns) * 1e-9)

    def check(self) -> str:
        """Also restores the state that the steps changed."""
        before = [tensor.detach().clone() for tensor in self._program.state()]
        expected = [tensor.detach().clone() for tensor in self._program.run()]
        ways = {"compiled step": self._run} if self._compiled != "eager" else {}
        if self._replay is not None:
            ways["graph"] = self._replayed
        for name, run in ways.items():
            self._restore(before)
            self._compare(name, [tensor.detach().clone() for tensor in run()], expected)
        self._restore(before)
        return CHECKED

    def _replayed(self) -> Tensors:
        """The graph's results. Results outside the state are overwritten first, so that old ones cannot pass."""
        kept = {tensor.data_ptr() for tensor in self._program.state()}
        for tensor in self._results:
            if tensor.data_ptr() not in kept:
                tensor.detach().fill_(float("nan"))
        assert self._replay is not None
        self._replay()
        return self._results

    def _restore(self, before: Tensors) -> None:
        with self._torch.no_grad():
            for tensor, value in zip(self._program.state(), before, strict=True):
                tensor.copy_(value)

    def _compare(self, name: str, found: Tensors, expected: Tensors) -> None:
        allclose = partial(self._torch.allclose, rtol=RELATIVE, atol=ABSOLUTE)
        if len(found) != len(expected) or not all(map(allclose, found, expected)):
            raise MeasurementError(f"{name}: its results differ from those of an eager step")


# What torch.profiler raises if it cannot record: it is running already, CUPTI is missing, or a version lacks a feature.
REFUSALS = (RuntimeError, AssertionError, AttributeError, ImportError, OSError, TypeError, ValueError)
CATEGORY = re.compile(rb'"cat":\s*"(\w+)"')


class TorchRecorder:
    """torch.profiler in one of its modes. Raises Skip without PyTorch."""

    def __init__(self, kind: RecorderKind) -> None:
        load_torch()
        self._profiler: Any = base.load("torch.profiler", INSTALL)
        self._kind = kind

    def recorded(self, run: Callable[[], object]) -> Recorded:
        with self.recording() as profile:
            run()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            with _refusing():
                profile.export_chrome_trace(str(path))
                return counted(path.read_bytes())

    @contextmanager
    def recording(self) -> Iterator[Any]:
        with _refusing():
            known = self._profiler.ProfilerActivity
            activities = [known.CUDA] if self._kind == "torch_cuda" else [known.CPU, known.CUDA]
            profile = self._profiler.profile(activities=activities, with_stack=self._kind == "torch_stack")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the profiler warns that an earlier recording's events are lost
                profile.start()
        try:
            yield profile
        finally:
            with _refusing():
                profile.stop()


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except REFUSALS as error:
        raise Skip(f"torch.profiler does not record here ({type(error).__name__}: {plain(error)})") from error


def counted(trace: bytes) -> Recorded:
    """The records in a trace as torch.profiler writes it; ``diagnose`` counts those of the same categories."""
    categories = Counter(match[1] for match in CATEGORY.finditer(trace))
    return Recorded(
        kernels=categories[b"kernel"],
        calls=categories[b"cuda_runtime"] + categories[b"cuda_driver"],
        operators=categories[b"cpu_op"],
        functions=categories[b"python_function"],
    )
