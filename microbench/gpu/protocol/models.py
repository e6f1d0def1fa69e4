"""The protocols ModelStep and JittedStep: a step of a framework, as its program submits it and as a graph."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from microbench.core.model import Fact
from microbench.core.ops import IntArray
from microbench.gpu.protocol.submit import Submit

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


class CaptureTimes(NamedTuple):
    """Host time to make a step's graph once, in s: the captured calls, and everything until the graph can run."""

    calls_s: float
    whole_s: float


class ModelStep(Protocol):
    """A step that is warmed up and ready. Each call of ``submit`` submits it once and does not wait.

    ``graph`` replays it as a graph; None if the framework makes its own graphs. ``launches`` is how many kernels,
    copies and memsets one step submits, counted by capturing it; None with a reason if that is unknown.
    """

    submit: Submit
    graph: Submit | None
    launches: Fact

    def check(self) -> str:
        """How the results were compared. Raises MeasurementError if results of the step or of its graph are wrong."""

    def profiled_ns(self) -> IntArray:
        """Duration of each kernel of one step, submitted launch by launch, as profilers report it (CUPTI), in ns.

        Raises Skip without CUPTI.
        """

    def capture(self) -> CaptureTimes:
        """Make the step's graph once more, and destroy it. Raises Skip if the step has no graph."""


# Where a jitted step leaves its result: in new memory at each call, or in that of its argument.
Output = Literal["new", "donated"]
OUTPUTS: dict[str, str] = {"new": "new memory at each call", "donated": "the memory of its donated argument"}


class JittedStep(Protocol):
    """A jitted JAX function of several kernels, compiled twice: ``graph`` with XLA's command buffers, which are CUDA
    graphs, ``stream`` without any. A call of either is one call of the function."""

    stream: Submit
    graph: Submit

    def check(self) -> str:
        """How kernels and results were verified. Raises MeasurementError if a result is wrong."""
