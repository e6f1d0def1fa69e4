"""Kernels for the Numba layers; they import and run on Numba's simulator too (NUMBA_ENABLE_CUDASIM=1)."""

from __future__ import annotations

from typing import Any

from numba import cuda


@cuda.jit
def empty() -> None:
    """Does nothing."""


@cuda.jit
def touch(a: Any, b: Any, c: Any, n: int) -> None:
    """c = a + b for the first ``n`` elements: nothing at 0, as Python layers launch it; a check at more."""
    i = cuda.grid(1)
    if i < n:
        c[i] = a[i] + b[i]
