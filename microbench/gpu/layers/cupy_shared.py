"""What the CuPy layers share: the device and the worker's stream made current, and set back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from microbench.core.errors import Skip
from microbench.gpu.layers.base import load

PACKAGE = "cupy"
INSTALL = "pip install cupy-cuda13x (CUDA 12: cupy-cuda12x)"


class ForeignStream:
    """A CUstream as the CUDA stream protocol has it: what CuPy 14 takes a stream from."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version and the stream's address."""
        return (0, self._handle)


def load_cupy() -> Any:
    """CuPy. Raises Skip when it is missing or sees no GPU."""
    cupy = load(PACKAGE, INSTALL)
    if not cupy.is_available():
        raise Skip(f"CuPy {cupy.__version__} sees no GPU that it can use; is it built for a newer CUDA? {INSTALL}")
    return cupy


def use_stream(cupy: Any, stream_handle: int, device_index: int) -> Callable[[], object]:
    """Make a CUstream of the worker's CuPy's current one for good: entering it at each call would be timed with it.

    Returns what sets the stream back that was current before.
    """
    cupy.cuda.Device(device_index).use()
    previous = cupy.cuda.get_current_stream()
    if hasattr(cupy.cuda.Stream, "from_external"):
        stream = cupy.cuda.Stream.from_external(ForeignStream(stream_handle))
    else:  # CuPy 13; deprecated in 14
        stream = cupy.cuda.ExternalStream(stream_handle, device_index)
    stream.use()
    restore: Callable[[], object] = previous.use
    return restore
