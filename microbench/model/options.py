"""The options that describe a step of work, and those that say what a what-if changes."""

from __future__ import annotations

from dataclasses import dataclass

from microbench.core.options import option

HOST = (
    "The program's own host time for each launch, on top of the layer's call: 12us; default: that of the file, or for "
    "PyTorch, CuPy's ufuncs and JAX two cases, bare operations and typical model code."
)


@dataclass(frozen=True)
class StepOptions:
    """A step of work as the options of `microbench predict` describe it; None was left out."""

    kernels: int | None = option("N", "Kernels in the step: 1100.")
    duration: str | None = option(
        "TIME", "How long each kernel runs, as profilers report it: 6us, 500ns, or 0 (empty)."
    )
    layer: str | None = option("LAYER", "What launches them: torch, cupy, numba, …; default: loop (compiled code).")
    arguments: int | None = option("N", "Arguments of each kernel; default: 0.")
    syncs_per_step: int | None = option("N", "Synchronizations in a step; default: 1.")
    copy_in: str | None = option("SIZE", "Copy this much to the GPU first, from pinned memory: 1MiB.")
    copy_out: str | None = option("SIZE", "Copy this much from the GPU at the end, to pinned memory: 4KiB.")
    streams: int | None = option("N", "Streams that share the kernels; default: 1.")
    replays: int | None = option(
        "N", "How many times the step runs, which decides whether a graph pays off; default: 1000."
    )
    host: str | None = option("TIME", HOST)
    blocks: int | None = option("N", "Blocks of each kernel: as many as the GPU has SMs fill it. For several streams.")
    sm_share: float | None = option("SHARE", "Share of the SMs that each kernel fills: 0.25. For several streams.")


@dataclass(frozen=True)
class ChangeOptions:
    """What a what-if changes, as the options of `microbench whatif` give it; None stays as it is."""

    submit: str | None = option("TIME", "Time of a launch call: 2us.")
    to_layer: str | None = option("LAYER", "Launch all kernels from this layer: loop.")
    gap: str | None = option("TIME", "Gap between two kernels of a stream: 1us.")
    graph_gap: str | None = option("TIME", "Gap between two kernels of a graph: 1us.")
    replay: str | None = option("TIME", "Time of replaying a graph of any size: 5us.")
    memory: str | None = option("RATE", "Bandwidth of GPU memory: 2039GB/s.")
    pcie_gen: int | None = option("N", "Generation of the PCIe link: 1 to 6.")
    lanes: int | None = option("N", "Lanes of the PCIe link: 8.")
    kernel_time: str | None = option("FACTOR", "Factor on the kernels' work: 0.5x halves time and bytes.")
    host_time: str | None = option("FACTOR", "Factor on the program's own time between calls: 0x removes it.")
