"""JAX: a jitted x + 1, on a stream of JAX's own."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from microbench.core.errors import Skip
from microbench.core.units import plain
from microbench.gpu.layers.base import Family, LayerContext, LayerHandle, check_sum, load

NAME = "jax_jit"
FAMILY: Family = "one_op"
PACKAGE = "jax"
INSTALL = "pip install 'jax[cuda13]' (CUDA 12: 'jax[cuda12]')"
ABOUT = "y = add_one(x) of a jitted x + 1 on one float32; JAX allocates y and submits on a stream of its own"
ARGUMENTS = (1,)


def open_layer(context: LayerContext, arguments: int) -> LayerHandle:
    """Raises MeasurementError when 1 + 1 is not 2.

    The last result is kept, as ``y = add_one(x)`` does, since waiting for it is JAX's way to wait: its calls may be
    submitted by threads of its own, so that an idle GPU does not mean that all is done.
    """
    # JAX would take three quarters of the GPU's memory at its start.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = load(PACKAGE, INSTALL)
    x = jax.device_put(np.ones(1, np.float32), _device(jax, context.device_index))
    add_one = jax.jit(lambda value: value + 1)
    y = add_one(x)
    check_sum(NAME, float(y[0]))

    def call() -> None:
        nonlocal y
        y = add_one(x)

    return LayerHandle(
        call=call,
        stream_handle=None,
        synchronize=lambda: y.block_until_ready(),
        capture_refused="JAX submits on a stream of its own, which cannot be captured from outside",
    )


def _device(jax: Any, index: int) -> Any:
    try:
        devices = jax.local_devices(backend="gpu")
    except RuntimeError as error:
        raise Skip(f"this JAX sees no GPU ({plain(error)}): {INSTALL}") from error
    found = next((device for device in devices if device.local_hardware_id == index), None)
    if found is None:
        raise Skip(f"JAX does not show the GPU with CUDA's number {index}")
    return found
