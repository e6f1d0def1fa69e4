"""PyTorch with out=: torch.add(x, 1, out=y), which allocates nothing."""

from __future__ import annotations

from typing import Any

from microbench.gpu.layers import torch_shared
from microbench.gpu.layers.base import Family, LayerContext, LayerHandle, check_sum

NAME = "torch_out"
FAMILY: Family = "one_op"
PACKAGE = torch_shared.PACKAGE
INSTALL = torch_shared.INSTALL
ABOUT = "torch.add(x, 1, out=y) on tensors of one float32; nothing is allocated"
ARGUMENTS = (1,)


def open_layer(context: LayerContext, arguments: int) -> LayerHandle:
    """Raises MeasurementError when 1 + 1 is not 2."""
    torch = torch_shared.load_torch()
    restore = torch_shared.use_stream(torch, context)
    x = torch_shared.first(lambda: torch.ones(1, dtype=torch.float32, device="cuda"))
    y = torch.empty_like(x)

    def call() -> Any:
        return torch.add(x, 1, out=y)

    check_sum(NAME, float(torch_shared.first(call).item()))
    return LayerHandle(call=call, stream_handle=context.stream_handle, close=restore)
