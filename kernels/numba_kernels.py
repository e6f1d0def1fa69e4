"""Kernels of the Numba layers. All but ``spin`` also run on Numba's simulator (NUMBA_ENABLE_CUDASIM=1)."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import cuda
from numba.cuda import types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature


@cuda.jit
def empty() -> None:
    """Does nothing."""


@cuda.jit
def touch(a: Any, b: Any, c: Any, n: int) -> None:
    """c = a + b for the first ``n`` elements. Python layers launch it with 0; a check passes more."""
    i = cuda.grid(1)
    if i < n:
        c[i] = a[i] + b[i]


@intrinsic
def clock64(typing_context: Any) -> tuple[Any, Callable[..., Any]]:
    """The SM's cycle counter, for which Numba has no name. Volatile, or the compiler would read it only once."""

    def read(context: Any, builder: Any, form: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.IntType(64), [])
        return builder.call(ir.InlineAsm(function, "mov.u64 $0, %clock64;", "=l", side_effect=True), [])

    return signature(types.uint64), read


@cuda.jit
def spin(cycles: int) -> None:
    """Spins for a number of SM clock cycles, a uint64, like ``spin`` in launch.cu."""
    begin = clock64()
    while clock64() - begin < cycles:
        pass
