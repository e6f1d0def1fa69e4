"""What a proof does with tensors of PyTorch and arrays of CuPy alike, and with the GPU that holds them."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from microbench.capture.graphed import TENSOR, arrays, torch, uses_torch


@contextlib.contextmanager
def _settled(one: Any) -> Iterator[None]:
    """Wait before and after for the streams of other libraries, which CuPy does not know."""
    synchronize() if isinstance(one, arrays()) else None
    yield
    synchronize() if isinstance(one, arrays()) else None


def clone(one: Any) -> Any:
    """A copy without a gradient; of an array of the host, too. Work of any stream is done before."""
    if isinstance(one, TENSOR):
        return one.detach().clone()
    with _settled(one):
        return one.copy()


def fill(one: Any, values: Any) -> None:
    """Write other values into a tensor, in place. Work of any stream on an array of CuPy is done before."""
    if not isinstance(one, TENSOR):
        with _settled(one):
            one[...] = values
        return
    with torch.inference_mode(one.is_inference()), torch.no_grad():
        (one.data if one.is_leaf else one.detach()).copy_(values)


def equal(one: Any, other: Any) -> bool:
    """Whether two tensors have the same shape and values; NaN is equal to none, but in arrays of CuPy and NumPy."""
    if isinstance(one, TENSOR):
        return bool(torch.equal(one, other))
    return bool(one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes())


def viewed(one: Any) -> Any:
    """The memory of an object of Numba or cuda.core: an array of CuPy, of NumPy if the host may read it, or None."""
    cupy, kind = sys.modules.get("cupy"), type(one)
    if cupy is None:
        return None
    if kind.__module__.startswith("cuda.core") and kind.__name__ == "Buffer":
        return np.from_dlpack(one) if one.is_host_accessible else cupy.from_dlpack(one)
    return cupy.asarray(one) if hasattr(kind, "__cuda_array_interface__") and not isinstance(one, TENSOR) else None


def on_host(one: Any) -> Any:
    """An array of CuPy as one of NumPy."""
    return one.get() if isinstance(one, arrays()) else one


def gpu_name() -> str:
    """The name of the GPU."""
    if uses_torch():
        return str(torch.cuda.get_device_name())
    runtime = sys.modules["cupy"].cuda.runtime
    return str(runtime.getDeviceProperties(runtime.getDevice())["name"].decode())


def random_states() -> list[Any]:
    """What CuPy draws random numbers from by cuRAND."""
    return list(getattr(sys.modules.get("cupy.random._generator"), "_random_states", {}).values())


def synchronize() -> None:
    """Wait for all work on the GPU."""
    if uses_torch():
        torch.cuda.synchronize()
    if (cupy := sys.modules.get("cupy")) is not None:
        cupy.cuda.runtime.deviceSynchronize()


def free_bytes() -> float:
    """The free memory of the GPU; much, if there is none."""
    if uses_torch():
        return float(torch.cuda.mem_get_info()[0])
    cupy = sys.modules.get("cupy")
    return float(cupy.cuda.runtime.memGetInfo()[0]) if cupy is not None else 1e9


def give_back() -> None:
    """Give cached memory that nobody uses back to the driver."""
    gc.collect()
    if uses_torch():
        torch.cuda.empty_cache()
    if (cupy := sys.modules.get("cupy")) is not None:
        cupy.get_default_memory_pool().free_all_blocks()


def untouched(taken: list[Any]) -> bool:
    """Whether these arrays of CuPy are full of NaN, as they were taken: a graph may write to memory given back."""
    return all(bool(sys.modules["cupy"].isnan(one).all()) for one in taken if isinstance(one, arrays()))


def take(random: np.random.Generator) -> list[Any]:
    """New tensors of random sizes, all NaN, by each library that has work on the GPU; and random numbers."""
    taken: list[Any] = []
    device = "cuda" if torch and torch.cuda.is_available() else "cpu"
    sizes = (2 ** random.uniform(7, 10 if torch and device == "cpu" else 20, size=6)).astype(int)
    if uses_torch():
        taken += [torch.full((int(size),), float("nan"), device=device) for size in sizes]
        torch.rand(3, device=device)
    if (cupy := sys.modules.get("cupy")) is not None:
        taken += [cupy.full(int(size), float("nan"), dtype=np.float32) for size in sizes]
        cupy.random.random(3)
    return taken
