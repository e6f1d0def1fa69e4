"""Facts about what else acts on this process: CUDA and Numba variables, MPS, profilers, debuggers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from microbench.host.files import Machine, known, labelled, unknown
from microbench.model import Fact

# Variables of the CUDA driver and of Numba that change what a launch does or costs
# (CUDA programming guide, "CUDA environment variables"; Numba reference, "Environment variables").
LAUNCH_VARIABLES = (
    "CUDA_AUTO_BOOST",
    "CUDA_BINARY_LOADER_THREAD_COUNT",
    "CUDA_CACHE_DISABLE",
    "CUDA_CACHE_MAXSIZE",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    "CUDA_FORCE_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_GRAPHS_USE_NODE_PRIORITY",
    "CUDA_INJECTION64_PATH",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_LOG_FILE",
    "CUDA_MANAGED_FORCE_DEVICE_ALLOC",
    "CUDA_MODULE_DATA_LOADING",
    "CUDA_MODULE_LOADING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_SCALE_LAUNCH_QUEUES",
    "CUDA_VISIBLE_DEVICES",
    "NUMBA_DISABLE_JIT",
    "NUMBA_ENABLE_CUDASIM",
    "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES",
)
LAUNCH_PREFIXES = ("NUMBA_CUDA_",)

# What each tool sets in the process that it watches, or loads into it.
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
MPS_FOLDER = "/tmp/nvidia-mps"
# nvidia-cuda-mps-control and -server; the kernel keeps 15 characters of a name.
MPS_DAEMON = "nvidia-cuda-mps"


def variable_facts(environment: Mapping[str, str]) -> tuple[Fact, ...]:
    """``launch_variables``, the names of those set that change launches, then a fact for each of them."""
    names = sorted(name for name in environment if name in LAUNCH_VARIABLES or name.startswith(LAUNCH_PREFIXES))
    source = "environment variable"
    listed = known("launch_variables", ", ".join(names) or "none", "environment variables")
    return (listed, *(known(name, environment[name], source) for name in names))


def attachment_facts(machine: Machine, environment: Mapping[str, str]) -> tuple[Fact, ...]:
    """``profiler`` and ``tracer`` (each "none" or a name), ``preloaded_libraries`` and ``mps``."""
    tools = dict.fromkeys(_tools(machine, environment))
    return (
        known("profiler", "; ".join(tools) or "none", "environment variables and /proc/self/maps"),
        _tracer(machine),
        known("preloaded_libraries", environment.get("LD_PRELOAD") or "none", "LD_PRELOAD"),
        _mps(machine, environment),
    )


def _tools(machine: Machine, environment: Mapping[str, str]) -> Iterator[str]:
    """Names of the tools that are attached. CUDA_INJECTION64_PATH alone is one too: libcuda loads what it names."""
    yield from (tool for name, tool in TOOL_VARIABLES if name in environment)
    loaded = "\n".join(
        (environment.get("LD_PRELOAD", ""), environment.get("CUDA_INJECTION64_PATH", ""), _mapped_files(machine))
    )
    named = [tool for pattern, tool in TOOL_LIBRARIES if re.search(pattern, loaded)]
    yield from named
    if environment.get("CUDA_INJECTION64_PATH") and not named:
        yield f"the library {environment['CUDA_INJECTION64_PATH']}"


def _mapped_files(machine: Machine) -> str:
    """The files mapped into this process, one a line."""
    lines = (machine.read("/proc/self/maps").text or "").splitlines()
    return "\n".join(line.split(maxsplit=5)[5] for line in lines if line.count("/"))


def _tracer(machine: Machine) -> Fact:
    """The debugger or tracer (ptrace) of this process."""
    reading = machine.read("/proc/self/status")
    pid = labelled(reading.text, "TracerPid")
    if pid is None:
        return unknown("tracer", reading.reason or "no TracerPid", reading.source)
    if pid == "0":
        return known("tracer", "none", reading.source)
    return known("tracer", machine.read(f"/proc/{pid}/comm").text or f"process {pid}", reading.source)


def _mps(machine: Machine, environment: Mapping[str, str]) -> Fact:
    """Off, running, or a control pipe whose daemon cannot be seen from here: another container's, or a dead one's."""
    control = f"{environment.get('CUDA_MPS_PIPE_DIRECTORY') or MPS_FOLDER}/control"
    pids = [name for name in machine.names("/proc") if name.isdigit()]
    if any((machine.read(f"/proc/{pid}/comm").text or "").startswith(MPS_DAEMON) for pid in pids):
        return known("mps", "running", "/proc/*/comm")
    if machine.exists(control):
        return known("mps", "control pipe without a visible daemon", control)
    return known("mps", "off", f"no {control}, no daemon in /proc")
