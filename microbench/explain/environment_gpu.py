"""What in a GPU's state distorts a run: other processes, MIG, confidential computing, ECC, persistence, its place."""

from __future__ import annotations

from collections.abc import Callable

from microbench.explain.finding import Finding
from microbench.model import GpuInfo, Session

# A memory bus this wide is HBM, whose ECC has bits of its own; GDDR keeps its ECC in the memory it protects.
HBM_BUS_BITS = 1024
PROCESSES_NAMED = 4
GRAPHICS_MARK = "graphics"


def other_processes(gpu: GpuInfo) -> Finding | None:
    """Somebody else uses the GPU."""
    others = gpu.other_processes
    if not others:
        return None
    named = ", ".join(others[:PROCESSES_NAMED]) + (", …" if len(others) > PROCESSES_NAMED else "")
    only_drawing = all(GRAPHICS_MARK in name for name in others)
    return Finding(
        rule="environment.other_processes",
        severity="advice" if only_drawing else "problem",
        title=f"{len(others)} other process{'es' if len(others) > 1 else ''} on the GPU",
        text=(
            f"{named}. "
            + (
                "They draw the screen: the worst cases contain them. Measure from a text console or another machine."
                if only_drawing
                else "The GPU switches between them and this run, so every figure may be wrong: end them and repeat."
            )
        ),
        threshold="NVML lists a process other than microbench; advice if all of them only draw",
        rests_on=("gpu other_processes",),
    )


def confidential(gpu: GpuInfo) -> Finding | None:
    """Commands and copies are encrypted."""
    if not gpu.confidential_computing:
        return None
    return Finding(
        rule="environment.confidential_computing",
        severity="warning",
        title="Confidential computing is on",
        text=(
            "Commands and copies cross the bus encrypted, through staging buffers: a launch costs a multiple of what "
            "it does without, and copies are bound by the CPU's encryption. Compare only with runs in the same mode."
        ),
        threshold="NVML reports the confidential-computing feature as enabled",
        rests_on=("gpu confidential_computing",),
    )


def mig(gpu: GpuInfo) -> Finding | None:
    """The GPU is partitioned."""
    if not gpu.mig:
        return None
    size = f"It has {gpu.sm_count} SMs. " if gpu.sm_count else ""
    return Finding(
        rule="environment.mig",
        severity="note",
        title="This is a MIG instance, not a whole GPU",
        text=f"{size}SMs, caches and memory bandwidth are a share of the board's; neighbours share the PCIe link.",
        threshold="NVML reports MIG mode as enabled",
        rests_on=("gpu mig", "gpu sm_count"),
    )


def ecc(gpu: GpuInfo) -> Finding | None:
    """ECC is off, or takes memory bandwidth."""
    bus = gpu.memory_bus_bits
    if gpu.ecc is None or (gpu.ecc and (bus is None or bus >= HBM_BUS_BITS)):
        return None
    return Finding(
        rule="environment.ecc",
        severity="note",
        title=f"ECC is {'on' if gpu.ecc else 'off'}",
        text=(
            f"On a {bus}-bit bus without bits of its own for ECC, check bits take a part of the memory bandwidth."
            if gpu.ecc
            else "Boards in data centres usually run with it on, which costs bandwidth on GDDR memory."
        ),
        threshold=f"ECC off, or on with a memory bus under {HBM_BUS_BITS} bit",
        rests_on=("gpu ecc", "gpu memory_bus_bits"),
    )


def persistence(gpu: GpuInfo) -> Finding | None:
    """The driver forgets the GPU between processes."""
    if gpu.persistence is not False:
        return None
    return Finding(
        rule="environment.persistence",
        severity="advice",
        title="Persistence mode is off",
        text=(
            "When the last process leaves, the driver shuts the GPU down, and the next context pays for its start: "
            "cold figures contain it. `sudo nvidia-smi -pm 1` keeps it up."
        ),
        threshold="NVML reports persistence mode as disabled",
        rests_on=("gpu persistence",),
    )


def narrow_link(gpu: GpuInfo) -> Finding | None:
    """The slot has fewer lanes than the GPU."""
    now, most = gpu.link.lanes_now, gpu.link.lanes_max
    if now is None or most is None or now >= most or gpu.integrated or gpu.link.coherent:
        return None
    return Finding(
        rule="environment.narrow_link",
        severity="warning",
        title=f"The PCIe link has {now} of {most} lanes",
        text=f"Copies reach {now}/{most} of what this GPU could carry. The slot is narrower, shared, or badly seated.",
        threshold="fewer lanes in use than GPU and slot could use (the speed is no verdict: an idle link slows down)",
        rests_on=("gpu link.lanes_now", "gpu link.lanes_max"),
    )


def far_node(gpu: GpuInfo, session: Session) -> Finding | None:
    """The submitting core and the GPU hang on different sockets."""
    core, node = session.environment.fact("submit_core"), session.environment.fact("submit_core_numa_node")
    if gpu.numa_node is None or node is None or node == gpu.numa_node:
        return None
    return Finding(
        rule="environment.numa",
        severity="warning",
        title=f"The core that submits is on NUMA node {node}, the GPU on node {gpu.numa_node}",
        text=(
            f"Core {core} reaches the GPU through another socket, which lengthens start and complete and may slow "
            f"copies. Allow a core of node {gpu.numa_node}: `numactl --cpunodebind={gpu.numa_node} microbench run`."
        ),
        threshold="the submitting core's NUMA node is not the GPU's",
        rests_on=("submit_core_numa_node", "gpu numa_node"),
    )


GPU_RULES: tuple[Callable[[GpuInfo], Finding | None], ...] = (
    other_processes,
    confidential,
    mig,
    ecc,
    persistence,
    narrow_link,
)


def gpu_findings(gpu: GpuInfo, session: Session) -> list[Finding]:
    """All findings about one GPU's state."""
    found = [rule(gpu) for rule in GPU_RULES] + [far_node(gpu, session)]
    return [finding for finding in found if finding is not None]
