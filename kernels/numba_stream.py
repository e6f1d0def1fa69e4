"""Streaming kernels as a Numba user writes them: grid-stride loops, one element at a time; they run on its simulator.

What a kernel writes comes first, what it reads after it, by its role in STREAM (triad: out = first + s second).
"""

from __future__ import annotations

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
    """The one element of ``total`` is 0: what blocks add to must begin there at each call."""
    total[0] = 0


class Sums(NamedTuple):
    """Kernels that add to ``total``, one float64 or uint64: ``read(total, first)``, ``dot(total, first, second)``."""

    read: Any
    dot: Any


def _sums(accumulator: Callable[[Any], Any]) -> Sums:
    """Each thread adds up in the type ``accumulator``, blocks in shared memory, and each block in ``total``, once.

    Elements are converted first: Numba makes a float64 of the sum of a signed and an unsigned integer.
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


# By the type of the elements. A half is added up as a float32, a byte as a uint64, which no sum here overflows.
SUMS: dict[str, Sums] = {"fp64": _sums(np.float64), "fp32": _sums(np.float32), "int8": _sums(np.uint64)}
SUMS["fp16"] = SUMS["fp32"]
