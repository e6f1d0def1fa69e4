"""What the layers on PyTorch share: the device and the worker's stream made current, and set back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from microbench.core.errors import Skip
from microbench.core.units import plain
from microbench.gpu.layers.base import LayerContext, load

PACKAGE = "torch"
INSTALL = "pip install torch (a build for your CUDA version: pytorch.org)"

Result = TypeVar("Result")


def load_torch() -> Any:
    """PyTorch. Raises Skip when it is missing, built without CUDA, or sees no GPU."""
    torch = load(PACKAGE, INSTALL)
    if torch.version.cuda is None:
        raise Skip(f"this PyTorch ({torch.__version__}) is built without CUDA: {INSTALL}")
    if not torch.cuda.is_available():
        raise Skip(f"PyTorch {torch.__version__} sees no GPU that it can use; is it built for a newer CUDA? {INSTALL}")
    return torch


def use_stream(torch: Any, context: LayerContext) -> Callable[[], object]:
    """Make the worker's stream PyTorch's current one for good: entering it at each call would be timed with the call.

    Returns what sets the stream back that was current before.
    """
    torch.cuda.set_device(context.device_index)
    previous = torch.cuda.current_stream()
    torch.cuda.set_stream(torch.cuda.ExternalStream(context.stream_handle))
    return lambda: torch.cuda.set_stream(previous)


def first(call: Callable[[], Result]) -> Result:
    """The result of the first call. Raises Skip when this build of the package has no code for this GPU."""
    try:
        return call()
    except RuntimeError as error:
        if "no kernel image" in str(error):
            raise Skip(f"this PyTorch has no code for this GPU: {plain(error)}") from error
        raise
