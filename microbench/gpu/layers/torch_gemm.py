"""Matrix products as a PyTorch user writes them: torch.matmul, torch._scaled_mm and torch._int_mm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from microbench.core.errors import Skip
from microbench.core.units import plain
from microbench.gpu.cuda.compute.types import Element, Matrices, matrix_bytes
from microbench.gpu.layers import torch_shared
from microbench.gpu.layers.base import LayerContext
from microbench.gpu.protocol.compute import GemmType

Call = Callable[[], object]

TORCH_TYPES: dict[Element, str] = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "int8": "int8", "int32": "int32",
}  # fmt: skip
REFUSED: dict[GemmType, str] = {
    "fp16_acc16": "PyTorch adds fp16 up in fp32",
    "mxfp8": "PyTorch's product of mxfp8 wants scales in an order of its own",
    "nvfp4": "PyTorch's product of nvfp4 wants scales in an order of its own",
}
FUNCTIONS: dict[GemmType, str] = {"int8": "torch._int_mm"}


class Raw:
    """Device memory as the CUDA array interface has it: bytes that stay the case's."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 2,
        }  # fmt: skip


def function_name(dtype: GemmType) -> str:
    """What multiplies a type. Raises Skip for those that PyTorch does not multiply so."""
    if dtype in REFUSED:
        raise Skip(REFUSED[dtype])
    return "torch._scaled_mm" if dtype.startswith("fp8") else FUNCTIONS.get(dtype, "torch.matmul")


def torch_calls(
    stream_handle: int, device_index: int, matrices: Matrices, own: Callable[[Callable[[], object]], None]
) -> tuple[Call, ...]:
    """A call with ``out=D`` for each copy of B, on that stream; ``own`` is given what sets PyTorch back.

    fp8: scales of 1 and a result of bf16. Each call is made once. Raises Skip where PyTorch is missing or refuses.
    """
    function_name(matrices.dtype)
    context = LayerContext(cubin=b"", stream_handle=stream_handle, device_index=device_index, pointers=(0, 0, 0))
    torch = torch_shared.load_torch()
    own(torch.cuda.empty_cache)
    own(torch_shared.use_stream(torch, context))
    if matrices.dtype in ("fp32", "tf32"):
        own(partial(setattr, torch.backends.cuda.matmul, "allow_tf32", torch.backends.cuda.matmul.allow_tf32))
        torch.backends.cuda.matmul.allow_tf32 = matrices.dtype == "tf32"
    a = _viewed(torch, device_index, matrices.a, matrices.elements.a, matrices.rows, matrices.depth)
    d = _viewed(torch, device_index, matrices.d, matrices.elements.d, matrices.rows, matrices.columns)
    views = [
        _viewed(torch, device_index, copy, matrices.elements.b, matrices.columns, matrices.depth) for copy in matrices.b
    ]
    calls = tuple(_call(torch, matrices.dtype, a, view.t(), d) for view in views)
    try:
        for call in calls:
            torch_shared.first(call)
    except (RuntimeError, ValueError, TypeError) as error:
        raise Skip(f"PyTorch {torch.__version__}, {matrices.dtype}: {plain(error)}") from error
    return calls


def _viewed(torch: Any, device_index: int, address: int, element: Element, rows: int, columns: int) -> Any:
    """PyTorch's view of a matrix."""
    raw = torch.as_tensor(Raw(address, matrix_bytes(element, rows, columns)), device=f"cuda:{device_index}")
    return raw.view(getattr(torch, TORCH_TYPES[element])).view(rows, columns)


def _call(torch: Any, dtype: GemmType, a: Any, b: Any, d: Any) -> Call:
    """One call of the library, of arguments that are looked up already."""
    if dtype == "int8":
        return partial(torch._int_mm, a, b, out=d)
    if not dtype.startswith("fp8"):
        return partial(torch.matmul, a, b, out=d)
    one = torch.ones((), dtype=torch.float32, device=a.device)
    fast = dtype.endswith("_fast")
    return partial(torch._scaled_mm, a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast, out=d)
