"""Descriptions of the operations that can be submitted to a GPU; ``gpu.bind(op)`` makes one callable."""

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Host clock stamps in nanoseconds. numpy is imported for type checking only, so that `list` and `show` start faster.
IntArray: TypeAlias = "npt.NDArray[np.int64]"

LaunchKind = Literal["launch", "launch_ex", "cooperative", "cluster", "pdl"]
LEGACY_STREAM = -1
HIGH_PRIORITY_STREAM = -2
LOOP_LAYER = "loop"
# Launches from compiled code, without Python: by the driver API and by the runtime API.
COMPILED_LAYERS = (LOOP_LAYER, "cuda_runtime")
# Layers whose call is one operation of an array library, which alone decides what it passes to its kernel.
ARRAY_LAYERS = ("cupy_ufunc", "torch_eager", "torch_out", "jax_jit")


class Launch(msgspec.Struct, frozen=True):
    """One kernel launch from a compiled loop.

    ``duration_ns`` 0 is the empty kernel, otherwise a calibrated spin kernel of that length. ``argument_bytes`` is
    the size of the kernel's parameter block (0: no parameters). ``stream`` is an index into the GPU's own
    non-blocking streams, LEGACY_STREAM for the legacy default stream, or HIGH_PRIORITY_STREAM for a non-blocking one
    of the highest priority.
    """

    duration_ns: int = 0
    argument_bytes: int = 0
    grid_blocks: int = 1
    block_threads: int = 32
    kind: LaunchKind = "launch"
    stream: int = 0


class Copy(msgspec.Struct, frozen=True):
    """An asynchronous copy between pinned host memory and the device."""

    direction: Literal["h2d", "d2h"]
    size_bytes: int
    stream: int = 0


class Memset(msgspec.Struct, frozen=True):
    """An asynchronous memset of device memory."""

    size_bytes: int
    stream: int = 0


class Record(msgspec.Struct, frozen=True):
    """An event record; an untimed event (CU_EVENT_DISABLE_TIMING) takes no slot of the launch queue."""

    timed: bool = True
    stream: int = 0


class Wait(msgspec.Struct, frozen=True):
    """A stream's wait on an event recorded earlier in stream ``other``."""

    stream: int = 0
    other: int = 1


class Query(msgspec.Struct, frozen=True):
    """A query of an event that has completed (a host call; nothing is submitted)."""


class SynchronizeIdle(msgspec.Struct, frozen=True):
    """A synchronise with an idle stream or a completed event (a host call; nothing is submitted)."""

    what: Literal["stream", "event"] = "stream"


class GraphLaunch(msgspec.Struct, frozen=True):
    """A replay of a graph that ``gpu.graph(ops)`` captured and instantiated; ``graph`` is the GPU's handle.

    ``layer`` is what replays it: the compiled loop, or the library whose calls were captured.
    """

    graph: int
    nodes: int
    stream: int = 0
    layer: str = LOOP_LAYER


class LayerCall(msgspec.Struct, frozen=True):
    """One call from Python through a library that launches one kernel with this number of ``arguments``.

    With a ``duration_ns`` the kernel spins for that long; the duration is its only argument and ``arguments`` is 0.
    """

    layer: str
    arguments: int = 0
    duration_ns: int | None = None


Op = Launch | Copy | Memset | Record | Wait | Query | SynchronizeIdle | GraphLaunch | LayerCall
