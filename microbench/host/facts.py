"""host_facts: every fact about this machine's CPU side that can change what a launch costs.

The names of the facts are fixed, because old run files and explain/environment.py use them.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from microbench.core.model import Fact
from microbench.host.affinity import CPUS, Cores, allowed_cpus, find_cores, topology_facts
from microbench.host.files import Machine, as_cpu_list, bracketed, cpu_list, fact, known, labelled, stated, unknown
from microbench.host.memory import memory_facts, virtualization_facts

# Slowest first: of several CPUs' governors the slowest is reported.
GOVERNORS = ("powersave", "conservative", "userspace", "ondemand", "schedutil", "performance")
# Slowest first, too: the energy preferences that intel_pstate and amd-pstate have in place of a governor.
ENERGY_PREFERENCES = ("power", "balance_power", "default", "balance_performance", "performance")
IDLE_OPTIONS = ("intel_idle.max_cstate", "processor.max_cstate", "idle", "cpuidle.off", "nohlt")
CLOCKS = "/sys/devices/system/clocksource/clocksource0"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"
HIDDEN = "not shown, as in most virtual machines"


def host_facts(
    root: Path = Path("/"), environment: Mapping[str, str] | None = None, cores: Cores | None = None
) -> tuple[Fact, ...]:
    """Every fact about the host, each with its source, and with a reason if unknown. Never raises.

    ``environment`` defaults to this process's. ``cores`` are looked up by default, which is right only in a process
    that is not pinned yet.
    """
    machine = Machine(root)
    variables = os.environ if environment is None else environment
    usable = allowed_cpus(machine) if cores is None else cores.allowed
    pinning = find_cores(None, root, usable) if cores is None and usable else cores
    tools = dict.fromkeys(_tools(machine, variables))
    launching = sorted(name for name in variables if name in LAUNCH_VARIABLES or name.startswith(LAUNCH_PREFIXES))
    return (
        *topology_facts(machine, usable, pinning),
        _model(machine),
        *_frequency_facts(machine),
        *_idle_facts(machine, pinning.worker_core if pinning else None),
        fact("clock_source", machine.read(f"{CLOCKS}/current_clocksource")),
        fact("clock_sources_available", machine.read(f"{CLOCKS}/available_clocksource")),
        _cpu_set(machine, "isolated_cpus", "isolated"),
        _cpu_set(machine, "nohz_full_cpus", "nohz_full"),
        *memory_facts(machine),
        *virtualization_facts(machine),
        fact("kernel_version", machine.read("/proc/sys/kernel/osrelease")),
        fact("load_average_1min", machine.read("/proc/loadavg"), lambda text: float(text.split()[0])),
        fact("pcie_aspm_policy", machine.read("/sys/module/pcie_aspm/parameters/policy"), bracketed),
        _iommu(machine),
        known("profiler", "; ".join(tools) or "none", "environment variables and /proc/self/maps"),
        _tracer(machine),
        known("preloaded_libraries", variables.get("LD_PRELOAD") or "none", "LD_PRELOAD"),
        _mps(machine, variables),
        known("launch_variables", ", ".join(launching) or "none", "environment variables"),
        *(known(name, variables[name], "environment variable") for name in launching),
    )


def worst(values: tuple[str, ...], from_worst: tuple[str, ...]) -> str:
    """The value that comes first in ``from_worst``; a value that is not listed there counts as worse than all."""
    return min(values, key=lambda word: from_worst.index(word) if word in from_worst else -1)


def _model(machine: Machine) -> Fact:
    """x86 says "model name", POWER "cpu"; ARM gives only numbers, which need lscpu's table to become names."""
    path = "/proc/cpuinfo"
    text = machine.read(path).text
    name = labelled(text, "model name") or labelled(text, "cpu") or labelled(text, "Model")
    if name is None and labelled(text, "CPU part"):
        name = f"implementer {labelled(text, 'CPU implementer')}, part {labelled(text, 'CPU part')}"
    return stated("cpu_model", name, path, "the kernel names no model")


def _frequency_facts(machine: Machine) -> tuple[Fact, ...]:
    folder = f"{CPUS}/cpufreq"
    policies = [f"{folder}/{name}" for name in machine.names(folder) if name.startswith("policy")]
    return (
        *_of_policies(machine, "governor", "scaling_governor", policies, GOVERNORS),
        *_of_policies(machine, "energy_preference", "energy_performance_preference", policies, ENERGY_PREFERENCES)[:1],
        *_of_policies(machine, "cpu_frequency_driver", "scaling_driver", policies, ())[:1],
    )


def _of_policies(
    machine: Machine, name: str, file: str, policies: list[str], from_worst: tuple[str, ...]
) -> tuple[Fact, ...]:
    """The worst value of all frequency policies, and how many policies have which."""
    source = f"{CPUS}/cpufreq/policy*/{file}"
    values = tuple(text for policy in policies if (text := machine.read(f"{policy}/{file}").text))
    if not values:
        return (unknown(name, "no frequency policy says" if policies else HIDDEN, source),)
    counts = ", ".join(f"{count} {word}" for word, count in sorted(Counter(values).items()))
    return known(name, worst(values, from_worst), source), known(f"{name}_by_policy", counts, source)


def _idle_facts(machine: Machine, submit_core: int | None) -> tuple[Fact, ...]:
    states = f"{CPUS}/cpu{submit_core or 0}/cpuidle"
    enabled = []
    for name in machine.names(states):
        if machine.read(f"{states}/{name}/disable").text in (None, "0"):
            latency = machine.read(f"{states}/{name}/latency").text or ""
            label = machine.read(f"{states}/{name}/name").text or name
            enabled.append((int(latency) * 1e-6 if latency.isdigit() else 0.0, label))
    source = f"{states}/state*, those not disabled"
    deepest = max(enabled, default=None)
    words = (machine.read("/proc/cmdline").text or "").split()
    shown = " ".join(word for word in words if word.split("=")[0] in IDLE_OPTIONS) or "none"
    return (
        stated("c_state_deepest", deepest and deepest[1], source, HIDDEN),
        known("c_state_exit_latency_s", deepest[0], source, "s")
        if deepest
        else unknown("c_state_exit_latency_s", HIDDEN, source),
        fact("cpuidle_driver", machine.read(f"{CPUS}/cpuidle/current_driver")),
        stated(
            "idle_boot_options", shown if machine.exists("/proc/cmdline") else None, "/proc/cmdline", "no such file"
        ),
    )


def _cpu_set(machine: Machine, name: str, file: str) -> Fact:
    """A CPU list, or "none" if it is empty. Kernels without the feature have no such file."""
    reading = machine.read(f"{CPUS}/{file}")
    if reading.text in ("", "(null)"):
        return known(name, "none", reading.source)
    return fact(name, reading, lambda text: as_cpu_list(cpu_list(text)))


def _iommu(machine: Machine) -> Fact:
    """Off, or how the groups' addresses are translated: "identity" costs nothing, "DMA" one look-up a page."""
    groups = machine.names(IOMMU_GROUPS)
    kinds = {machine.read(f"{IOMMU_GROUPS}/{group}/type").text or "on" for group in groups}
    if not machine.exists("/sys/kernel"):
        return unknown("iommu", "no /sys", IOMMU_GROUPS)
    return known("iommu", ", ".join(sorted(kinds)) or "off", IOMMU_GROUPS)


# Variables of the CUDA driver and of Numba that change what a launch does or costs
# (CUDA programming guide, "CUDA environment variables"; Numba reference, "Environment variables").
LAUNCH_VARIABLES = (
    "CUDA_AUTO_BOOST", "CUDA_BINARY_LOADER_THREAD_COUNT", "CUDA_CACHE_DISABLE", "CUDA_CACHE_MAXSIZE",
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS", "CUDA_DEVICE_ORDER",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION", "CUDA_DISABLE_PTX_JIT", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_FORCE_JIT",
    "CUDA_FORCE_PTX_JIT", "CUDA_GRAPHS_USE_NODE_PRIORITY", "CUDA_INJECTION64_PATH", "CUDA_LAUNCH_BLOCKING",
    "CUDA_LOG_FILE", "CUDA_MANAGED_FORCE_DEVICE_ALLOC", "CUDA_MODULE_DATA_LOADING", "CUDA_MODULE_LOADING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_SCALE_LAUNCH_QUEUES",
    "CUDA_VISIBLE_DEVICES", "NUMBA_DISABLE_JIT", "NUMBA_ENABLE_CUDASIM", "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip
LAUNCH_PREFIXES = ("NUMBA_CUDA_",)

# Variables that each tool sets in the process that it watches, and libraries that it loads into it.
TOOL_VARIABLES = (
    ("NSYS_PROFILING_SESSION_ID", "Nsight Systems"),
    ("QUADD_INJECTION_PROXY", "Nsight Systems"),
    ("NV_NSIGHT_INJECTION_PORT_BASE", "Nsight Compute"),
    ("NV_NSIGHT_INJECTION_TRANSPORT_TYPE", "Nsight Compute"),
    ("NV_COMPUTE_PROFILER_PERFWORKS_DIR", "Nsight Compute"),
    ("NV_SANITIZER_INJECTION_PORT_BASE", "Compute Sanitizer"),
    ("NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN", "Compute Sanitizer"),
    ("NVPROF_ID", "nvprof"),
)
TOOL_LIBRARIES = (
    (r"libToolsInjection", "Nsight Systems"),
    (r"libcuda-injection", "Nsight Compute"),
    (r"libsanitizer-collection|libInterceptorInjectionTarget", "Compute Sanitizer"),
    (r"libcupti_?trace|libaccinj", "nvprof"),
)
# nvidia-cuda-mps-control and -server; the kernel keeps 15 characters of a name.
MPS_DAEMON = "nvidia-cuda-mps"


def _tools(machine: Machine, environment: Mapping[str, str]) -> Iterator[str]:
    """Names of the attached tools. Any CUDA_INJECTION64_PATH counts as a tool, because libcuda loads that library."""
    yield from (tool for name, tool in TOOL_VARIABLES if name in environment)
    injected = environment.get("CUDA_INJECTION64_PATH", "")
    maps = (machine.read("/proc/self/maps").text or "").splitlines()
    mapped = (line.split(maxsplit=5)[5] for line in maps if "/" in line)
    loaded = "\n".join((environment.get("LD_PRELOAD", ""), injected, *mapped))
    named = [tool for pattern, tool in TOOL_LIBRARIES if re.search(pattern, loaded)]
    yield from named
    if injected and not named:
        yield f"the library {injected}"


def _tracer(machine: Machine) -> Fact:
    reading = machine.read("/proc/self/status")
    pid = labelled(reading.text, "TracerPid")
    if pid is None:
        return unknown("tracer", reading.reason or "no TracerPid", reading.source)
    if pid == "0":
        return known("tracer", "none", reading.source)
    return known("tracer", machine.read(f"/proc/{pid}/comm").text or f"process {pid}", reading.source)


def _mps(machine: Machine, environment: Mapping[str, str]) -> Fact:
    """Off, running, or a control pipe whose daemon is not visible: it runs in another container, or it is dead."""
    control = f"{environment.get('CUDA_MPS_PIPE_DIRECTORY') or '/tmp/nvidia-mps'}/control"
    pids = [name for name in machine.names("/proc") if name.isdigit()]
    if any((machine.read(f"/proc/{pid}/comm").text or "").startswith(MPS_DAEMON) for pid in pids):
        return known("mps", "running", "/proc/*/comm")
    if machine.exists(control):
        return known("mps", "control pipe without a visible daemon", control)
    return known("mps", "off", f"no {control}, no daemon in /proc")
