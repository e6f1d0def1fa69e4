"""What the Numba layers share: kernel, stream and device arrays made once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from microbench.core.errors import Skip
from microbench.core.units import plain
from microbench.gpu.layers.base import ARRAY_ELEMENTS, Errors, LayerContext, load

PACKAGE = "numba.cuda"
INSTALL = "pip install 'numba-cuda[cu13]' (CUDA 12: 'numba-cuda[cu12]')"


class NumbaLaunch(NamedTuple):
    """A dispatcher, Numba's view of the worker's stream (it keeps no reference to the stream), and the arguments."""

    kernel: Any
    stream: Any
    values: tuple[Any, ...]


def load_numba_cuda() -> Any:
    """numba.cuda. Raises Skip when it is missing, sees no GPU, or is the simulator."""
    cuda = load(PACKAGE, INSTALL)
    if load("numba", INSTALL).config.ENABLE_CUDASIM:
        raise Skip("NUMBA_ENABLE_CUDASIM makes Numba simulate the GPU: unset it")
    if not cuda.is_available():
        reason = cuda.cuda_error() or "it finds no NVVM or CUDA runtime"
        raise Skip(f"Numba sees no GPU that it can use: {plain(reason.strip())}")
    return cuda


def prepare(context: LayerContext, arguments: int) -> NumbaLaunch:
    """Numba takes the context that is current, the worker's. Nothing is compiled yet.

    The arrays belong to no stream: one that does may be waited for when it is passed to a kernel on another.
    """
    cuda = load_numba_cuda()
    kernels = load("microbench._kernels.numba_kernels", INSTALL)
    stream = cuda.external_stream(context.stream_handle)
    if not arguments:
        return NumbaLaunch(kernels.empty, stream, ())
    arrays = tuple(cuda.device_array(ARRAY_ELEMENTS, np.float32) for _ in range(3))
    return NumbaLaunch(kernels.touch, stream, (*arrays, np.int32(0)))


def prepare_spin(context: LayerContext, cycles: int) -> NumbaLaunch:
    """The same for the kernel that spins for so many SM clock cycles; 0: the empty kernel, without arguments."""
    if not cycles:
        return prepare(context, arguments=0)
    cuda = load_numba_cuda()
    kernels = load("microbench._kernels.numba_kernels", INSTALL)
    return NumbaLaunch(kernels.spin, cuda.external_stream(context.stream_handle), (np.uint64(cycles),))


def driver_errors() -> Errors:
    """What Numba raises for an error of the driver."""
    return RuntimeError, load("numba.cuda.cudadrv.error", INSTALL).CudaDriverError


@contextmanager
def few_blocks() -> Iterator[None]:
    """Without Numba's warning that one block is few, which is meant for kernels that do something."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Grid size")
        yield
