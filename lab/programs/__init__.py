"""Nineteen small programs on which `microbench diagnose` is tried: what each is, without importing what it needs.

The diagnosis was developed on other programs; those of lab/real_steps.py are other ones too.
The programs that run.py names are apart: they are whole scripts around public models, for lab/watch_programs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from microbench.diagnosis.diagnosis import Bound

Step = Callable[[], object]
TORCH_KINDS = ("cuda", "cpu")  # traces with CUDA activities only, and with CPU and CUDA activities
WITH_STACK = (*TORCH_KINDS, "stack")


class Made(NamedTuple):
    """A program that is set up in this process.

    ``step`` submits one step, ``wait`` returns when all submitted work has ended. ``graph`` captures what can be
    captured and returns the step that replays it; whatever blocks a capture stays outside. It is None where no such
    step exists. ``remedies`` are steps with another change each, by the name that the diagnosis gives it.
    ``without_waits`` makes the step as a graph where its waits are left out too.
    """

    step: Step
    wait: Step
    graph: Callable[[], Step] | None = None
    remedies: Mapping[str, Step] = {}
    without_waits: Callable[[], Step] | None = None


class Program(NamedTuple):
    """What a program is and what a diagnosis of it must say.

    ``name`` is a function of the ``module`` in this package that returns Made. ``bounds`` are the right first findings;
    ``blocker`` is why a call cannot be captured, "" if every call can. ``steps`` are recorded in each trace.
    ``environment`` is that of its processes. Where ``graph_environment`` is given, the library itself makes a graph of
    the step in a process with that environment.
    """

    name: str
    module: str
    bounds: tuple[Bound, ...]
    about: str
    blocker: str = ""
    steps: int = 20
    kinds: tuple[str, ...] = TORCH_KINDS
    environment: Mapping[str, str] = {}
    graph_environment: Mapping[str, str] | None = None


# XLA tries out no products, which takes a minute, and makes graphs of a step by itself only where it is let.
XLA = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": "--xla_gpu_autotune_level=0"}
XLA_WITHOUT_GRAPHS = {**XLA, "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer="}

# The ones that matter most come first: the last are left out if time runs out.
PROGRAMS = (
    Program(
        "decode_grouped", "torch_steps", ("launch-bound",), "a token of a decoder with grouped queries, four at a time",
        steps=10, kinds=WITH_STACK,
    ),
    Program(
        "train_transformer", "torch_steps", ("launch-bound",), "a training step with dropout, clipping and AdamW",
        steps=8,
    ),
    Program("three_streams", "torch_steps", ("launch-bound",), "three branches of other lengths, a stream each"),
    Program(
        "gradient_penalty", "torch_steps", ("launch-bound",), "autograd through a gradient, no optimizer", steps=12
    ),
    Program("triton_norms", "triton_step", ("launch-bound",), "30 launches of three Triton kernels"),
    Program("cupy_wave", "cupy_steps", ("launch-bound",), "a wave equation by RawKernel and ufuncs"),
    Program("numba_particles", "numba_step", ("launch-bound",), "particles in a box by three Numba kernels"),
    Program(
        "jax_coupling", "jax_step", ("launch-bound",), "a jitted training step of a normalizing flow",
        kinds=("xplane",), environment=XLA_WITHOUT_GRAPHS, graph_environment=XLA,
    ),
    Program(
        "loader_stalls", "torch_waits", ("host-bound",), "two micro-batches, each after 2.5 ms in which it is read",
        steps=15, kinds=WITH_STACK,
    ),
    Program(
        "sampler_item", "torch_waits", ("launch-bound",), "six tokens of a GRU, `.item()` after each",
        blocker="waits for the GPU", kinds=WITH_STACK,
    ),
    Program(
        "pageable_images", "torch_waits", ("copy-bound",), "38 MB of images from pageable memory, then a small network",
        blocker="copies pageable memory",
    ),
    Program("large_products", "torch_steps", ("GPU-bound",), "two gated MLPs of 6144 tokens in bf16"),
    Program(
        "train_unet", "torch_steps", ("launch-bound",), "a training step of a small U-Net with batch norms", steps=10,
        kinds=WITH_STACK,
    ),
    Program("prefill", "torch_steps", ("GPU-bound",), "attention over 6144 tokens", steps=15),
    Program(
        "statistics_item", "torch_waits", ("wait-bound",), "six large layers, the largest output of each by `.item()`",
        blocker="waits for the GPU",
    ),
    Program(
        "prefetch_copy", "torch_waits", ("GPU-bound", "copy-bound"),
        "48 MB of pinned memory copied ahead in a stream of its own, which takes longer than the network",
    ),
    Program(
        "loader_worker", "torch_waits", ("host-bound",), "a thread prepares a batch in 5 ms: no graph shortens that",
        steps=15,
    ),
    Program("gan_turns", "torch_steps", ("launch-bound",), "two kinds of steps take turns", steps=16),
    Program(
        "cupy_without_pool", "cupy_steps", ("allocation-bound",), "each result has a cudaMalloc and a cudaFree",
        blocker="allocates",
    ),
)  # fmt: skip
BY_NAME = {program.name: program for program in PROGRAMS}
