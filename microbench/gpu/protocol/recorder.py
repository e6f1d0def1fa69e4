"""The protocol Recorder: a profiler that can be switched on for a while, and counts what it has recorded."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

# CUPTI's kernel records alone; torch.profiler with CUDA activities, then also with CPU activities, then also with
# Python stacks; the recorder of `microbench watch`.
RecorderKind = Literal["cupti", "torch_cuda", "torch_cpu", "torch_stack", "watch"]


class Recorded(NamedTuple):
    """How many kernels, calls of CUDA, operators of PyTorch and Python functions were recorded."""

    kernels: int
    calls: int = 0
    operators: int = 0
    functions: int = 0


class Recorder(Protocol):
    """A profiler of this process. Both methods raise Skip, with the reason, if it cannot record."""

    def recording(self) -> AbstractContextManager[None]:
        """Record everything that happens inside."""

    def recorded(self, run: Callable[[], object]) -> Recorded:
        """The records that ``run`` makes. ``run`` must wait for the work that it submits."""
