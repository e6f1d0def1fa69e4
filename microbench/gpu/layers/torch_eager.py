"""PyTorch eager: x + 1, with its result allocated by PyTorch."""

from __future__ import annotations

from typing import Any

from microbench.gpu.layers import torch_shared
from microbench.gpu.layers.base import Family, LayerContext, LayerHandle, check_sum

NAME = "torch_eager"
FAMILY: Family = "one_op"
PACKAGE = torch_shared.PACKAGE
INSTALL = torch_shared.INSTALL
ABOUT = "x + 1 on a PyTorch tensor of one float32; the result's memory comes from PyTorch's allocator"
ARGUMENTS = (1,)


def open_layer(context: LayerContext, arguments: int) -> LayerHandle:
    """Raises MeasurementError when 1 + 1 is not 2."""
    torch = torch_shared.load_torch()
    restore = torch_shared.use_stream(torch, context)
    x = torch_shared.first(lambda: torch.ones(1, dtype=torch.float32, device="cuda"))

    def call() -> Any:
        return x + 1

    check_sum(NAME, float(torch_shared.first(call).item()))
    return LayerHandle(call=call, stream_handle=context.stream_handle, close=restore)
