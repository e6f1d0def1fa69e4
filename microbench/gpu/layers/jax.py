"""JAX: a jitted x + 1, which JAX submits on a stream of its own."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from microbench.core.errors import Skip
from microbench.core.units import plain
from microbench.gpu.layers import base

PACKAGE = "jax"
INSTALL = "pip install 'jax[cuda13]' (CUDA 12: 'jax[cuda12]')"
# Without it JAX takes three quarters of the GPU's memory at its start.
ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def open_jit(context: base.LayerContext, arguments: int) -> base.LayerHandle:
    """Raises MeasurementError if 1 + 1 is not 2.

    The last result is kept, as ``y = add_one(x)`` does: waiting for it is JAX's way to wait. JAX may submit its calls
    from threads of its own, so an idle GPU does not mean that all is done.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    jax = base.load(PACKAGE, INSTALL)
    x = jax.device_put(np.ones(1, np.float32), _device(jax, context.device_index))
    add_one = jax.jit(lambda value: value + 1)
    y = add_one(x)
    base.check_sum("jax_jit", float(y[0]))

    def call() -> None:
        nonlocal y
        y = add_one(x)

    return base.LayerHandle(
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
    for device in devices:
        if device.local_hardware_id == index:
            return device
    raise Skip(f"JAX does not show the GPU with CUDA's number {index}")


LAYERS = (
    base.Layer(
        name="jax_jit",
        title="JAX jit",
        family="one_op",
        aliases=("jax",),
        package=PACKAGE,
        install=INSTALL,
        about="y = add_one(x) of a jitted x + 1 on one float32; JAX allocates y and submits on a stream of its own",
        arguments=(1,),
        simulated=base.LayerCosts(40000),
        open=open_jit,
        environment=ENVIRONMENT,
        order=1,
    ),
)
