"""The options that describe a step of work, and those that say what a what-if changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from microbench.core.options import Option

Count = int | None
Typed = str | None


@dataclass(frozen=True)
class StepOptions:
    """A step of work as the options of `microbench predict` describe it; None was left out."""

    kernels: Annotated[Count, Option("N", "Kernels in the step: 1100.")] = None
    duration: Annotated[
        Typed, Option("TIME", "How long each kernel runs, as profilers report it: 6us, 500ns, or 0 (empty).")
    ] = None
    layer: Annotated[
        Typed, Option("LAYER", "What launches them: torch, cupy, numba, …; default: loop (compiled code).")
    ] = None
    arguments: Annotated[Count, Option("N", "Arguments of each kernel; default: 0.")] = None
    syncs_per_step: Annotated[Count, Option("N", "Synchronizations in a step; default: 1.")] = None
    copy_in: Annotated[Typed, Option("SIZE", "Copy this much to the GPU first, from pinned memory: 1MiB.")] = None
    copy_out: Annotated[Typed, Option("SIZE", "Copy this much from the GPU at the end, to pinned memory: 4KiB.")] = None
    streams: Annotated[Count, Option("N", "Streams that share the kernels; default: 1.")] = None
    replays: Annotated[
        Count, Option("N", "How many times the step runs, which decides whether a graph pays off; default: 1000.")
    ] = None
    host: Annotated[
        Typed,
        Option(
            "TIME",
            "The program's own host time for each launch, on top of the layer's call: 12us; default: that of the file, "
            "or for PyTorch, CuPy's ufuncs and JAX a range from bare operations to typical model code.",
        ),
    ] = None
    blocks: Annotated[
        Count, Option("N", "Blocks of each kernel: as many as the GPU has SMs fill it. For several streams.")
    ] = None
    sm_share: Annotated[
        float | None, Option("SHARE", "Share of the SMs that each kernel fills: 0.25. For several streams.")
    ] = None


@dataclass(frozen=True)
class ChangeOptions:
    """What a what-if changes, as the options of `microbench whatif` give it; None stays as it is."""

    submit: Annotated[Typed, Option("TIME", "Time of a launch call: 2us.")] = None
    to_layer: Annotated[Typed, Option("LAYER", "Launch all kernels from this layer: loop.")] = None
    gap: Annotated[Typed, Option("TIME", "Gap between two kernels of a stream: 1us.")] = None
    graph_gap: Annotated[Typed, Option("TIME", "Gap between two kernels of a graph: 1us.")] = None
    replay: Annotated[Typed, Option("TIME", "Time of replaying a graph of any size: 5us.")] = None
    memory: Annotated[Typed, Option("RATE", "Bandwidth of GPU memory: 2039GB/s.")] = None
    pcie_gen: Annotated[Count, Option("N", "Generation of the PCIe link: 1 to 6.")] = None
    lanes: Annotated[Count, Option("N", "Lanes of the PCIe link: 8.")] = None
    kernel_time: Annotated[Typed, Option("FACTOR", "Factor on the kernels' work: 0.5x halves time and bytes.")] = None
    host_time: Annotated[Typed, Option("FACTOR", "Factor on the program's own time between calls: 0x removes it.")] = (
        None
    )
