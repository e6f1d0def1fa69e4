"""Streaming kernels as a Numba user writes them: grid-stride loops over single elements.

They also run on Numba's simulator. The written array comes first, then the arrays that are read, in their roles in
STREAM (triad: out = first + s second).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

BLOCK_THREADS = 256


@cuda.jit
def write(out: Any, s: Any) -> None:
    """out = s."""
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = s


@cuda.jit
def copy(out: Any, first: Any) -> None:
    """out = first."""
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = first[i]


@cuda.jit
def scale(out: Any, first: Any, s: Any) -> None:
    """out = s first."""
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = s * first[i]


@cuda.jit
def add(out: Any, first: Any, second: Any) -> None:
    """out = first + second."""
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = first[i] + second[i]


@cuda.jit
def triad(out: Any, first: Any, second: Any, s: Any) -> None:
    """out = first + s second."""
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = first[i] + s * second[i]


@cuda.jit
def clear(total: Any) -> None:
    """Sets the only element of ``total`` to 0 before blocks add to it."""
    total[0] = 0


class Sums(NamedTuple):
    """Kernels that add to ``total``, a float64 or uint64: ``read(total, first)`` and ``dot(total, first, second)``."""

    read: Any
    dot: Any


def _sums(accumulator: Callable[[Any], Any]) -> Sums:
    """Each thread adds up in the type ``accumulator``, each block in shared memory, and then once to ``total``.

    Elements are converted first, as Numba turns the sum of a signed and an unsigned integer into a float64.
    """

    @cuda.jit(device=True)
    def add_block(total: Any, own: Any) -> None:
        partial = cuda.shared.array(BLOCK_THREADS, accumulator)
        thread = cuda.threadIdx.x
        partial[thread] = own
        cuda.syncthreads()
        half = BLOCK_THREADS // 2
        while half > 0:
            if thread < half:
                partial[thread] += partial[thread + half]
            cuda.syncthreads()
            half //= 2
        if thread == 0:
            cuda.atomic.add(total, 0, partial[0])

    @cuda.jit
    def read(total: Any, first: Any) -> None:
        own = accumulator(0)
        for i in range(cuda.grid(1), first.size, cuda.gridsize(1)):
            own += accumulator(first[i])
        add_block(total, own)

    @cuda.jit
    def dot(total: Any, first: Any, second: Any) -> None:
        own = accumulator(0)
        for i in range(cuda.grid(1), first.size, cuda.gridsize(1)):
            own += accumulator(first[i]) * accumulator(second[i])
        add_block(total, own)

    return Sums(read, dot)


# By the type of the elements. Halves are added up in float32, bytes in uint64, which no sum here overflows.
SUMS: dict[str, Sums] = {"fp64": _sums(np.float64), "fp32": _sums(np.float32), "int8": _sums(np.uint64)}
SUMS["fp16"] = SUMS["fp32"]
