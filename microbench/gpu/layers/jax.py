"""JAX: a jitted x + 1, and a jitted step of many kernels; JAX submits both on a stream of its own."""

import os
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.units import plain
from microbench.gpu.layers import base
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS, Submit

# Where a jitted step leaves its result: in new memory at each call, or in that of its argument.
Output = Literal["new", "donated"]
OUTPUTS: dict[str, str] = {"new": "new memory at each call", "donated": "the memory of its donated argument"}

PACKAGE = "jax"
INSTALL = "pip install 'jax[cuda13]' (CUDA 12: 'jax[cuda12]')"
# Without this variable JAX takes three quarters of the GPU's memory when it starts.
ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def open_jit(context: base.LayerContext, arguments: int) -> base.LayerHandle:
    """Raises MeasurementError if 1 + 1 is not 2.

    The last result is kept, as ``y = add_one(x)`` does: waiting for it is JAX's way to wait. JAX may submit its calls
    from threads of its own, so an idle GPU does not mean that all is done.
    """
    jax = _load()
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


def _load() -> Any:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return base.load(PACKAGE, INSTALL)


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
        simulated=base.LayerCosts(40000),
        open=open_jit,
        environment=ENVIRONMENT,
        order=1,
    ),
)


# Steps of many kernels. XLA makes CUDA graphs (command buffers) only of the kinds of kernels that the options allow.
WITHOUT_BUFFERS: dict[str, Any] = {"xla_gpu_enable_command_buffer": ""}
WITH_BUFFERS: dict[str, Any] = {"xla_gpu_enable_command_buffer": "FUSION", "xla_gpu_graph_min_graph_size": 1}
# XLA runs up to 32 computations at a time; the next call waits for the first of them.
UNDER_WAY = 16
WARM_UPS = 3
CHECKED = "XLA's program has the kernels, those of the graph in command buffers; sums are right"


class JaxStep:
    """A JittedStep of ``kernels`` additions of 1 to one number, with a barrier behind each so that XLA fuses none.

    The two programs differ only in compiler options, as in XLA_FLAGS, so both run in turn in one process.
    """

    def __init__(self, device_index: int, kernels: int, output: Output) -> None:
        jax = _load()
        device = _device(jax, device_index)
        self._programs = [_Program(jax, device, kernels, output, buffers) for buffers in (False, True)]
        self.stream, self.graph = (program.submit for program in self._programs)

    def check(self) -> str:
        for program in self._programs:
            program.check()
        return CHECKED


class _Program:
    """One compilation of the step. Only XLA's dump shows both its kernels and its command buffers."""

    def __init__(self, jax: Any, device: Any, kernels: int, output: Output, buffers: bool) -> None:
        def step(x: Any) -> Any:
            for _ in range(kernels):
                x = jax.lax.optimization_barrier(x + 1)
            return x

        self._kernels, self._donated = kernels, output == "donated"
        x = jax.device_put(np.zeros(1, np.uint32), device)
        with tempfile.TemporaryDirectory(prefix="microbench-") as folder:
            options = {**(WITH_BUFFERS if buffers else WITHOUT_BUFFERS), "xla_dump_to": folder}
            try:
                jitted = jax.jit(step, compiler_options=options, donate_argnums=(0,) if self._donated else ())
                self._y = jitted(x)
            except (TypeError, RuntimeError) as error:
                raise Skip(f"this JAX does not take XLA's options for one function: {plain(error)}") from error
            found, graphs = dumped(Path(folder))
        if found != kernels:
            raise MeasurementError(f"XLA made {found} kernels of {kernels} additions")
        if bool(graphs) != buffers:
            raise Skip(f"XLA's program has {graphs} command buffers where they are {'on' if buffers else 'off'}")

        def anew() -> None:
            self._y = jitted(x)

        def in_place() -> None:
            self._y = jitted(self._y)

        self._call = in_place if self._donated else anew
        for _ in range(WARM_UPS):
            self._call()
        handle = base.LayerHandle(self._call, None, synchronize=lambda: self._y.block_until_ready())
        self.submit: Submit = base.LayerSubmit(handle, driver=None)
        self.submit.queue_slots = UNDER_WAY if buffers else max(min(SAFE_QUEUE_SLOTS // kernels, UNDER_WAY), 1)

    def check(self) -> None:
        """Raises MeasurementError unless a call adds 1 with each of its kernels."""
        before = int(self._y[0]) if self._donated else 0
        self._call()
        if (found := int(self._y[0])) != (before + self._kernels) % (1 << 32):
            raise MeasurementError(f"a step of {self._kernels} additions to {before} gave {found}")


def dumped(folder: Path) -> tuple[int, int]:
    """Numbers of kernels and of command buffers in XLA's dump of one program whose kernels are all fusions.

    Until 2025 command buffers were computations of the optimised program, since then they are a pass of their own.
    """
    program = "".join(path.read_text(errors="replace") for path in folder.glob("*gpu_after_optimizations.txt"))
    passes = "".join(path.read_text(errors="replace") for path in folder.glob("*thunk_sequence_after_thunk_passes.txt"))
    return program.count(" fusion("), passes.count("kCommandBuffer") + program.count("to_apply=%command_buffer")
