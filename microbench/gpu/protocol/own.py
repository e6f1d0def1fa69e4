"""The protocols of a user's own function and kernel: how they are submitted, captured into a graph and replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray
from microbench.core.targets import Argument
from microbench.gpu.protocol.submit import Submit

JAX = "JAX"  # a library that submits to streams of its own


class OwnCall(NamedTuple):
    """A user's function with its arguments bound: ``call`` runs it once and returns what it returns.

    ``arguments`` are its arguments, ``file`` is its source file ("" if unknown).
    """

    call: Callable[[], object]
    arguments: tuple[object, ...] = ()
    file: str = ""


class GraphNode(NamedTuple):
    """A node of a captured graph: its kind (kernel, memcpy, memset, …), and a kernel's name, grid, block and the bytes
    of its arguments, addresses included."""

    kind: str
    name: str = ""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    arguments: bytes = b""


class Blocker(NamedTuple):
    """Why a capture stopped: the CUDA error, the function that was called, and the user's line. "" is unknown."""

    error: str
    call: str = ""
    line: str = ""


class NotCapturedError(MeasurementError):
    """The function cannot be captured into a graph."""

    def __init__(self, blocker: Blocker) -> None:
        super().__init__(f"{blocker.error} {blocker.line}".strip())
        self.blocker = blocker


class OwnGraph(Protocol):
    """A captured step, instantiated. ``capture_s`` and ``instantiate_s`` are the host's time to make it."""

    nodes: tuple[GraphNode, ...]
    capture_s: float
    instantiate_s: float
    replay: Submit


class OwnStep(Protocol):
    """A user's function, warmed up.

    ``library`` names the library that submits its work. ``stream`` is the index of the stream that a gate must hold.
    """

    library: str
    stream: int
    submit: Submit

    def capture(self, *, follow: bool = False) -> OwnGraph:
        """Capture one call into a graph. With ``follow`` the interpreter is traced, which takes time, to find the
        user's line that stops the capture. Raises NotCapturedError."""

    def compare(self, graph: OwnGraph) -> str:
        """How the outputs of replays were compared with those of calls, or why they could not be.

        Raises MeasurementError, naming the first output that differs, if the graph computes something else.
        """

    def profiled_ns(self) -> IntArray:
        """Duration of each kernel of one call, as profilers report it (CUPTI), in ns. Raises Skip without CUPTI.

        A process that was recorded replays graphs more slowly from then on.
        """


class KernelSpec(NamedTuple):
    """A kernel of a user's file and how it is launched. ``work_bytes`` and ``work_flops`` are 0 if they are unknown."""

    file: str
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...] = ()
    shared_bytes: int = 0
    cooperative: bool = False
    options: tuple[str, ...] = ()
    work_bytes: int = 0
    work_flops: int = 0


class KernelResources(NamedTuple):
    """The resources of an SM that a kernel uses, and how many of its blocks fit.

    ``local_bytes`` is local memory of a thread (arrays and spills), ``spill_bytes`` what the compiler spilled.
    ``held_by`` names what limits the number of resident blocks.
    """

    registers: int
    shared_bytes: int
    local_bytes: int
    spill_bytes: int
    blocks_per_sm: int
    most_threads_per_sm: int
    sms: int
    held_by: str


class OwnKernel(Protocol):
    """A user's kernel, compiled and launched once."""

    resources: KernelResources
    submit: Submit

    def profiled_ns(self, count: int) -> IntArray:
        """Duration of each of ``count`` launches, as ``OwnStep.profiled_ns`` takes it."""
