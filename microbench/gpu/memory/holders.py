"""Who else holds memory of a GPU, in words: what a case that finds too little of it is told."""

from __future__ import annotations

from microbench.gpu.nvml import NvmlGpu
from microbench.gpu.nvml_processes import Holder, memory_holders
from microbench.model import Fact
from microbench.units import about_size

NOBODY = "nobody else"


def holders(nvml: NvmlGpu) -> Fact:
    """See DeviceMemory.peers: "python (pid 12) 1.20 GiB, Xorg (graphics, pid 3)", or "nobody else"."""
    answer = memory_holders(nvml.query)
    if answer.value is None:
        return answer.fact("memory_holders")
    return Fact("memory_holders", ", ".join(map(_words, answer.value.others)) or NOBODY, "NVML")


def held_by(nvml: NvmlGpu) -> str:
    """The same as part of a sentence, whether NVML knows it or not."""
    fact = holders(nvml)
    return f"others not known ({fact.reason})" if fact.value is None else str(fact.value)


def _words(holder: Holder) -> str:
    used = "" if holder.used_bytes is None else f" {about_size(holder.used_bytes)}"
    return f"{holder.name} ({holder.pid}){used}"
