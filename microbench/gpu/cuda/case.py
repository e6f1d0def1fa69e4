"""What all graph experiments share: the case's context, kernels and streams, entry points, what a driver must have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray
from microbench.gpu.cuda.context import Context, Modules, check, entry_point
from microbench.gpu.cuda.submit import DriverSubmit
from microbench.gpu.cuda.timing import SpinGate
from microbench.gpu.protocol.compute import UnitPass
from microbench.host.graph_loops import Entry

POISON = 0xDEADBEEF
WORD_BYTES = 4
KERNEL_NODE = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL

ENTRY_NAMES: dict[Entry, str] = {
    Entry.BEGIN_CAPTURE: "cuStreamBeginCapture",
    Entry.END_CAPTURE: "cuStreamEndCapture",
    Entry.CREATE: "cuGraphCreate",
    Entry.ADD_KERNEL: "cuGraphAddKernelNode",
    Entry.INSTANTIATE: "cuGraphInstantiateWithFlags",
    Entry.UPLOAD: "cuGraphUpload",
    Entry.LAUNCH: "cuGraphLaunch",
    Entry.SYNCHRONIZE: "cuStreamSynchronize",
    Entry.DESTROY_EXECUTABLE: "cuGraphExecDestroy",
    Entry.DESTROY: "cuGraphDestroy",
    Entry.UPDATE: "cuGraphExecUpdate",
    Entry.SET_PARAMS: "cuGraphExecKernelNodeSetParams",
}

# CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h: 72 bytes on 64-bit hosts.
KERNEL_NODE_PARAMS = np.dtype(
    {
        "names": ["function", "grid", "block", "shared_bytes", "parameters", "extra", "kernel", "context"],
        "formats": ["u8", ("u4", 3), ("u4", 3), "u4", "u8", "u8", "u8", "u8"],
        "offsets": [0, 8, 20, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)


class Case(NamedTuple):
    """What an experiment takes from its case. ``cycles`` turns a duration in ns into SM clock cycles."""

    context: Context
    modules: Modules
    gate: Callable[[], SpinGate]
    stream: Callable[[int], int]
    cycles: Callable[[int], int]

    def require_driver(self, version: int, what: str) -> None:
        """Raise Skip for a driver older than ``version`` (cuDriverGetVersion: 12040 is CUDA 12.4)."""
        here = int(check(driver.cuDriverGetVersion()))
        if here < version:
            raise Skip(f"{what} need a driver of CUDA {_words(version)}; this one has {_words(here)}")

    def require_capability(self, major: int, minor: int, what: str) -> None:
        """Raise Skip for a GPU of a lower compute capability."""
        here = tuple(self.context.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        if here < (major, minor):
            raise Skip(f"{what} needs compute capability {major}.{minor}; this GPU has {here[0]}.{here[1]}")

    def executable(self, graph: driver.CUgraph, flags: int = 0) -> int:
        """The graph instantiated, uploaded, and owned by the case: its handle. The graph itself stays the caller's."""
        made = check(driver.cuGraphInstantiate(graph, flags))
        self.context.own(partial(driver.cuGraphExecDestroy, made))
        check(driver.cuGraphUpload(made, self.stream(0)))
        self.context.synchronize()
        return int(made)

    def words(self, count: int, *, pinned: bool = False) -> Words:
        """``count`` words for kernels, copies and memsets to leave their effects in."""
        return Words(self.context, count, pinned)


def _words(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


class Words:
    """32-bit words of device memory, or of pinned host memory that the GPU sees at the same address."""

    def __init__(self, context: Context, count: int, pinned: bool) -> None:
        self._context = context
        self.count = count
        self._host = context.pinned(count) if pinned else None
        self.address = int(self._host.ctypes.data) if self._host is not None else context.device_memory(count * 4)

    def at(self, index: int) -> int:
        """Address of one word."""
        return self.address + index * WORD_BYTES

    def write(self, values: list[int]) -> None:
        """Set the first words, and poison the rest."""
        filled = np.full(self.count, POISON, dtype=np.uint32)
        filled[: len(values)] = values
        if self._host is not None:
            self._host[:] = filled
        else:
            check(driver.cuMemcpyHtoD(self.address, filled.ctypes.data, filled.nbytes))
        self._context.synchronize()

    def read(self) -> list[int]:
        """All words."""
        if self._host is not None:
            return [int(word) for word in self._host]
        return [int(word) for word in self._context.read(self.address, self.count, np.uint32)]


def nodes_of(graph: driver.CUgraph) -> list[driver.CUgraphNodeType]:
    """The type of each node of a graph."""
    count = int(check(driver.cuGraphGetNodes(graph))[1])
    nodes = check(driver.cuGraphGetNodes(graph, count))[0] if count else []
    return [check(driver.cuGraphNodeGetType(node)) for node in nodes[:count]]


def programmatic_edges(graph: driver.CUgraph) -> int:
    """How many of a graph's edges are programmatic. With edge data since CUDA 13's bindings, by another name before."""
    edges = getattr(driver, "cuGraphGetEdges_v2", driver.cuGraphGetEdges)
    count = int(check(edges(graph))[-1])
    data = check(edges(graph, count))[2] if count else []
    programmatic = driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
    return sum(int(one.type) == int(programmatic) for one in data[:count])


def entries() -> IntArray:
    """The addresses that host/graph_loops.py calls, by Entry."""
    return np.array([entry_point(ENTRY_NAMES[entry]) for entry in Entry], dtype=np.uint64).astype(np.int64)


def launch_row(submit: DriverSubmit) -> IntArray:
    """A launch's arguments and the address of its call, as host/graph_loops.py captures it."""
    return np.append(submit.arguments, np.uint64(submit.address).astype(np.int64))


def as_int64(value: int) -> int:
    """An address as the signed integer that the compiled loops take; a signed one as it is."""
    return value if value < 1 << 63 else value - (1 << 64)


def wrong(what: str, found: object, wanted: object) -> MeasurementError:
    """An effect that is not what it should be."""
    return MeasurementError(f"{what}: {found} where {wanted} should be")


def expect_words(words: Words, first: list[int]) -> None:
    """Raise MeasurementError unless the words are these, and poison behind them."""
    found, wanted = words.read(), [*first, *[POISON] * (words.count - len(first))]
    for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one != other:
            raise wrong(f"word {index} of {words.count}", f"{one:#x}", f"{other:#x}")


# Blocks that have an SM to themselves and stamp the time: how they get it, and what their stamps say.


# Stamps of kernels/common.cu.
STAMPS = np.dtype([("begin_ns", "u8"), ("end_ns", "u8"), ("cycles", "u8"), ("sm", "u4"), ("sum", "u4")])
NANOSECOND_S = 1e-9
# What a kernel may have for itself beside the dynamic shared memory.
OWN_SHARED_BYTES = 1024


def alone_on_its_sm(case: Case, function: int) -> int:
    """Dynamic shared memory, in bytes, of which two blocks do not fit on one SM; the kernel may have it from now on.

    A block may have nearly all that an SM has, on every architecture since 7.0.
    """
    shared_bytes = case.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - OWN_SHARED_BYTES
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check(driver.cuFuncSetAttribute(function, most, shared_bytes))
    return shared_bytes


def require_an_sm_each(stamps: npt.NDArray[Any]) -> None:
    """Raise MeasurementError where two blocks shared an SM."""
    if len(np.unique(stamps["sm"])) < len(stamps):
        raise MeasurementError("two blocks shared an SM: is another process at work on this GPU?")


def pass_of(stamps: npt.NDArray[Any]) -> UnitPass:
    """What a launch took by the stamps of its blocks, one on each SM. Raises MeasurementError where two shared one."""
    require_an_sm_each(stamps)
    elapsed_ns = int(stamps["end_ns"].max()) - int(stamps["begin_ns"].min())
    own_s = (stamps["end_ns"] - stamps["begin_ns"]) * NANOSECOND_S
    clock_hz = float(np.median(stamps["cycles"] / own_s))
    return UnitPass(elapsed_ns * NANOSECOND_S, float(np.median(stamps["cycles"])), clock_hz)
