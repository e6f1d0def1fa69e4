"""What this machine is, as facts: everything about the host that a reader needs to distrust a run.

The names are fixed: files of old runs keep them, and explain/environment.py asks for them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from microbench.host.cpu import processor_facts
from microbench.host.files import Machine, bracketed, fact, known, stated
from microbench.host.memory import memory_facts
from microbench.host.topology import CorePlan, allowed_cpus, physical_core_plan, topology_facts
from microbench.host.variables import attachment_facts, variable_facts
from microbench.host.virtualization import virtualization_facts
from microbench.model import Fact

IOMMU_GROUPS = "/sys/kernel/iommu_groups"


def host_facts(
    root: Path = Path("/"),
    environment: Mapping[str, str] | None = None,
    allowed: Collection[int] | None = None,
    plan: CorePlan | None = None,
) -> tuple[Fact, ...]:
    """Every fact about the host, each with its source, and its reason when unknown. Never raises.

    ``environment`` is this process's by default. ``allowed`` are the CPUs that may be used and ``plan`` the pinning:
    a process that is pinned already must be told both, one that is not finds them out.
    """
    machine = Machine(root)
    variables = os.environ if environment is None else environment
    usable = allowed_cpus(machine) if allowed is None else allowed
    pinning = physical_core_plan(root, usable) if plan is None and usable else plan
    return (
        *topology_facts(machine, usable, pinning),
        *processor_facts(machine, pinning.worker_core if pinning else None),
        *memory_facts(machine),
        *virtualization_facts(machine),
        *_system_facts(machine),
        *attachment_facts(machine, variables),
        *variable_facts(variables),
    )


def _system_facts(machine: Machine) -> tuple[Fact, ...]:
    return (
        fact("kernel_version", machine.read("/proc/sys/kernel/osrelease")),
        fact("load_average_1min", machine.read("/proc/loadavg"), lambda text: float(text.split()[0])),
        fact("pcie_aspm_policy", machine.read("/sys/module/pcie_aspm/parameters/policy"), bracketed),
        _iommu(machine),
    )


def _iommu(machine: Machine) -> Fact:
    """Off, or how the groups' addresses are translated: "identity" costs nothing, "DMA" a look-up a page."""
    groups = machine.names(IOMMU_GROUPS)
    kinds = {machine.read(f"{IOMMU_GROUPS}/{group}/type").text or "on" for group in groups}
    if not machine.exists("/sys/kernel"):
        return stated("iommu", None, IOMMU_GROUPS, "no /sys")
    return known("iommu", ", ".join(sorted(kinds)) or "off", IOMMU_GROUPS)
