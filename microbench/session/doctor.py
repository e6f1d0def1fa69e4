"""``examine(environment)`` returns checks of what this machine can and cannot measure, each with its next step."""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

import microbench
from microbench.analysis.evidence import Finding, Severity
from microbench.archive.store import data_folder
from microbench.core.errors import Skip
from microbench.core.model import Environment, GpuInfo, Session, Settings
from microbench.core.units import quantity
from microbench.explain.environment import errors_in_words, session_findings
from microbench.gpu.layers.base import layers
from microbench.gpu.machine.nvml import NvmlGpu

State = Literal["ok", "note", "warning", "problem", "unknown"]
STATE_OF: Mapping[Severity, State] = {
    "good": "ok", "note": "note", "advice": "note", "warning": "warning", "problem": "problem",
}  # fmt: skip

# A check's name, the fact that it shows if all is well, and the rule whose finding it shows if not.
HOST_CHECKS = (
    ("CPU cores", "physical_core_count", "environment.few_cores"),
    ("CPU governor", "governor", "environment.governor"),
    ("CPU idle states", "c_state_deepest", "environment.idle_states"),
    ("CPU sibling", "submit_core_siblings", "environment.smt_sibling"),
    ("CPU quota", "cpu_quota", "environment.cpu_quota"),
    ("clock source", "clock_source", "environment.clock_source"),
    ("load average", "load_average_1min", "environment.load"),
    ("virtualisation", "virtualization", "environment.virtualization"),
    ("PCIe power policy", "pcie_aspm_policy", "environment.pcie_aspm"),
    ("profiler", "profiler", "environment.profiler"),
    ("debugger", "tracer", "environment.tracer"),
    ("MPS", "mps", "environment.mps"),
)
# The same with a field of GpuInfo in place of the fact.
GPU_CHECKS = (
    ("other processes", "other_processes", "environment.other_processes"),
    ("MIG", "mig", "environment.mig"),
    ("ECC", "ecc", "environment.ecc"),
    ("persistence mode", "persistence", "environment.persistence"),
    ("confidential computing", "confidential_computing", "environment.confidential_computing"),
)
# How a GPU's PCIe bytes are counted.
COUNTERS: Mapping[str, tuple[State, str, str | None]] = {
    "exact": ("ok", "bytes are counted exactly", None),
    "coarse": ("note", "only sampled rates", "a newer driver may count bytes"),
}
# Boards without ECC do not report these errors, and get no check.
MEMORY_ERRORS = "environment.memory_errors"


class Check(msgspec.Struct, frozen=True):
    """One check: its result, and what to do unless it is ok."""

    name: str
    state: State
    found: str
    next_step: str | None = None


def examine(environment: Environment) -> list[Check]:
    """All checks of this machine, in reading order. ``environment`` comes from the probe, as in a run.

    It also looks at disks, caches, installed layers and PCIe counters. Opens NVML, but no CUDA context.
    """
    session = Session(environment=environment, settings=Settings(device="all"), tool_version="", started_at="")
    findings = session_findings(session)
    parts: tuple[Iterator[Check], ...] = (
        _gpus(environment),
        _measuring(environment),
        _gpu_states(environment, findings),
        _host(environment, findings),
        _permissions(environment),
        _storage(),
    )
    return [check for part in parts for check in part]


def free_bytes(folder: Path) -> tuple[int | None, str | None]:
    """Free bytes where ``folder`` is or would be created; None and the reason if nothing can be written there."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=existing):
            return shutil.disk_usage(existing).free, None
    except OSError as error:
        return None, (error.strerror or str(error)).lower()


def loop_cache_folder() -> str | None:
    """Where Numba caches compiled loops: NUMBA_CACHE_DIR if set, else the package or the user's cache folder."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    package = Path(microbench.__file__).parent / "host"
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "numba"
    return next((str(path) for path in ((Path(chosen),) if chosen else (package, user)) if free_bytes(path)[0]), None)


def importable(package: str) -> bool:
    """True if the package can be found. Only its parent packages are imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def counting(gpu: GpuInfo) -> str:
    """How the GPU's PCIe bytes are counted ("exact" or "coarse"), or why they are not."""
    nvml = NvmlGpu(gpu.uuid)
    try:
        return "coarse" if nvml.pcie_bytes().coarse else "exact"
    except Skip as skip:
        return str(skip)
    finally:
        nvml.close()


def _gpus(environment: Environment) -> Iterator[Check]:
    if not environment.gpus:
        reason = environment.no_gpu_reason or "no GPU was found"
        yield Check("GPU", "problem", reason, environment.no_gpu_next_step)
    for gpu in environment.gpus:
        capability = ".".join(map(str, gpu.compute_capability)) if gpu.compute_capability else "unknown"
        yield Check(f"GPU {gpu.index}", "ok", f"{gpu.name}, compute capability {capability}, {gpu.uuid}")

    driver, toolkit = environment.cuda_driver_version, environment.cuda_toolkit_version
    if environment.gpus and environment.driver_version is None:
        yield Check("driver version", "unknown", "NVML does not say", "pip install nvidia-ml-py, or see `nvidia-smi`")
    elif environment.driver_version:
        yield Check("driver version", "ok", environment.driver_version)
    if driver is None or toolkit is None:
        return
    older = int(driver.split(".")[0]) < int(toolkit.split(".")[0])
    text = f"the driver supports CUDA {driver}, NVRTC is of CUDA {toolkit}"
    step = "update the driver, or install the packages of its CUDA version" if older else None
    yield Check("driver and toolkit", "problem" if older else "ok", text, step)


def _measuring(environment: Environment) -> Iterator[Check]:
    """The packages that measuring needs, the counters that launch_traffic reads, and the Python layers."""
    for name, wanted in (
        ("cuda-bindings", ("cuda-bindings",)),
        ("NVRTC", ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")),
        ("NVML bindings", ("nvidia-ml-py",)),
        ("Numba", ("numba",)),
    ):
        found = [f"{one} {environment.packages[one]}" for one in wanted if one in environment.packages]
        missing: tuple[State, str, str] = ("warning", "not installed", f"pip install {wanted[0]}")
        yield Check(name, "ok", ", ".join(found)) if found else Check(name, *missing)
    for gpu in environment.gpus:
        if not gpu.simulated:
            skipped: tuple[State, str, str] = ("warning", counted := counting(gpu), "launch_traffic will be skipped")
            yield Check(f"GPU {gpu.index} PCIe counters", *COUNTERS.get(counted, skipped))

    absent = {layer.name: layer.install for layer in layers() if not importable(layer.package)}
    if installed := ", ".join(layer.name for layer in layers() if layer.name not in absent):
        yield Check("Python layers", "ok", installed)
    for install in dict.fromkeys(absent.values()):
        names = ", ".join(name for name, line in absent.items() if line == install)
        yield Check("Python layers", "note", f"not installed, so skipped: {names}", install)


def _gpu_states(environment: Environment, findings: list[Finding]) -> Iterator[Check]:
    reasons = {fact.name: fact.reason for fact in environment.facts}
    several = len(environment.gpus) > 1
    for gpu in environment.gpus:
        mine = [finding for finding in findings if not several or finding.title.startswith(f"GPU {gpu.index}: ")]
        for name, field, rule in GPU_CHECKS:
            value = getattr(gpu, field)
            text = None if value is None else _word(value)
            reason = reasons.get(f"gpu{gpu.index}_{field}") or "NVML does not say"
            yield _check(f"GPU {gpu.index} {name}", text, reason, rule, mine)
        if errors := errors_in_words(gpu.memory_errors):
            yield _check(f"GPU {gpu.index} memory errors", errors, "", MEMORY_ERRORS, mine)


def _host(environment: Environment, findings: list[Finding]) -> Iterator[Check]:
    facts = {fact.name: fact for fact in environment.facts}
    for name, fact_name, rule in HOST_CHECKS:
        fact = facts.get(fact_name)
        text = None if fact is None or fact.value is None else _word(fact.value)
        yield _check(name, text, (fact and fact.reason) or "not looked at", rule, findings)
    # Findings without a check of their own: variables, NUMA, a narrow link.
    shown = {rule for _, _, rule in (*HOST_CHECKS, *GPU_CHECKS)} | {"environment.unseen", MEMORY_ERRORS}
    for finding in findings:
        if finding.rule not in shown:
            name = finding.rule.removeprefix("environment.").replace("_", " ")
            yield Check(name, STATE_OF[finding.severity], finding.title, f"{finding.text} {finding.advice}".strip())


def _check(name: str, value: str | None, reason: str, rule: str, findings: list[Finding]) -> Check:
    """The rule's finding if it has one, else the value, else the reason why there is none."""
    finding = next((finding for finding in findings if finding.rule == rule), None)
    if finding is not None:
        return Check(name, STATE_OF[finding.severity], finding.title, f"{finding.text} {finding.advice}".strip())
    return Check(name, "unknown", reason) if value is None else Check(name, "ok", value)


def _permissions(environment: Environment) -> Iterator[Check]:
    for gpu in environment.gpus:
        if gpu.simulated or gpu.integrated or gpu.link.coherent:
            continue
        payload = gpu.link.max_payload_bytes
        if payload is None:
            step = "run `sudo microbench doctor` to see them; ceilings of the link assume 256 bytes"
            yield Check(f"GPU {gpu.index} PCIe packet sizes", "note", "configuration space is not readable", step)
        else:
            yield Check(f"GPU {gpu.index} PCIe packet sizes", "ok", f"maximum payload {payload} bytes")
    limit = environment.fact("locked_memory_limit_bytes")
    text = quantity(float(limit), "B") if isinstance(limit, int) else str(limit or "unknown")
    yield Check("locked memory", "ok", f"{text}; CUDA's pinned memory is not held to this limit")


def _storage() -> Iterator[Check]:
    folder, move = data_folder(), "set MICROBENCH_DATA to another folder"
    free, reason = free_bytes(folder)
    if free is None:
        yield Check("result folder", "problem", f"{folder}: {reason}", move)
    else:
        scarce = free < 100_000_000
        text = f"{folder}, {quantity(float(free), 'B')} free"
        yield Check("result folder", "warning" if scarce else "ok", text, move if scarce else None)
    if (cache := loop_cache_folder()) is None:
        step = "set NUMBA_CACHE_DIR to a folder that can be written"
        yield Check("compiled loops", "warning", "cannot be cached, so each process compiles them again", step)
    else:
        yield Check("compiled loops", "ok", f"cached in {cache}")


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value)
