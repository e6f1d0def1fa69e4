"""What this machine can and cannot measure: the environment of a run, judged by the same rules as a run's findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from microbench.doctor.report import Check, DoctorReport, State
from microbench.doctor.surroundings import Surroundings, look_around
from microbench.explain.environment import session_findings
from microbench.explain.finding import Finding, Severity
from microbench.model import Environment, Session, Settings
from microbench.units import quantity

STATE_OF: Mapping[Severity, State] = {
    "good": "ok", "note": "note", "advice": "note", "warning": "warning", "problem": "problem",
}  # fmt: skip
RUN_FILE_BYTES = 100_000_000

# What a host check is called, the fact that it shows when all is well, and the rule that speaks when it is not.
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
GPU_CHECKS = (
    ("other processes", "other_processes", "environment.other_processes"),
    ("MIG", "mig", "environment.mig"),
    ("ECC", "ecc", "environment.ecc"),
    ("persistence mode", "persistence", "environment.persistence"),
    ("confidential computing", "confidential_computing", "environment.confidential_computing"),
)


def examine(environment: Environment, surroundings: Surroundings | None = None) -> DoctorReport:
    """Every check of this machine. ``environment`` comes from the probe, as a run's does."""
    around = look_around(environment) if surroundings is None else surroundings
    session = Session(environment=environment, settings=Settings(device="all"), tool_version="", started_at="")
    found = session_findings(session)
    parts: tuple[Iterator[Check], ...] = (
        _gpus(environment),
        _driver(environment),
        _measuring(environment, around),
        _layers(around),
        _gpu_states(environment, found),
        _host(environment, found),
        _other_findings(found),
        _permissions(environment),
        _storage(around),
    )
    return DoctorReport(tuple(check for part in parts for check in part))


def _gpus(environment: Environment) -> Iterator[Check]:
    if not environment.gpus:
        reason = environment.no_gpu_reason or "no GPU was found"
        yield Check("GPU", "problem", reason, environment.no_gpu_next_step)
    for gpu in environment.gpus:
        capability = ".".join(map(str, gpu.compute_capability)) if gpu.compute_capability else "unknown"
        yield Check(f"GPU {gpu.index}", "ok", f"{gpu.name}, compute capability {capability}, {gpu.uuid}")


def _driver(environment: Environment) -> Iterator[Check]:
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


def _measuring(environment: Environment, around: Surroundings) -> Iterator[Check]:
    """The packages that measuring itself needs, and the counters that launch_traffic reads."""
    for name, wanted in (
        ("cuda-bindings", ("cuda-bindings",)),
        ("NVRTC", ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")),
        ("NVML bindings", ("nvidia-ml-py",)),
    ):
        installed = [package for package in wanted if package in environment.packages]
        if installed:
            yield Check(name, "ok", ", ".join(f"{package} {environment.packages[package]}" for package in installed))
        else:
            yield Check(name, "warning", "not installed", f"pip install {wanted[0]}")
    for gpu in environment.gpus:
        counting = around.counters.get(gpu.uuid)
        name = f"GPU {gpu.index} PCIe counters"
        if counting == "exact":
            yield Check(name, "ok", "bytes are counted exactly")
        elif counting == "coarse":
            yield Check(name, "note", "only sampled rates", "a newer driver may count bytes")
        elif counting is not None:
            yield Check(name, "warning", counting, "launch_traffic will be skipped")


def _layers(around: Surroundings) -> Iterator[Check]:
    if around.layers:
        yield Check("Python layers", "ok", ", ".join(around.layers))
    for install in dict.fromkeys(around.missing_layers.values()):
        names = ", ".join(name for name, line in around.missing_layers.items() if line == install)
        yield Check("Python layers", "note", f"not installed, so skipped: {names}", install)


def _gpu_states(environment: Environment, found: list[Finding]) -> Iterator[Check]:
    reasons = {fact.name: fact.reason for fact in environment.facts}
    several = len(environment.gpus) > 1
    for gpu in environment.gpus:
        mine = [finding for finding in found if not several or finding.title.startswith(f"GPU {gpu.index}: ")]
        for name, field, rule in GPU_CHECKS:
            value = getattr(gpu, field)
            text = None if value is None else _word(value)
            reason = reasons.get(f"gpu{gpu.index}_{field}") or "NVML does not say"
            yield _check(f"GPU {gpu.index} {name}", text, reason, rule, mine)


def _host(environment: Environment, found: list[Finding]) -> Iterator[Check]:
    facts = {fact.name: fact for fact in environment.facts}
    for name, fact_name, rule in HOST_CHECKS:
        fact = facts.get(fact_name)
        text = None if fact is None or fact.value is None else _word(fact.value)
        yield _check(name, text, (fact and fact.reason) or "not looked at", rule, found)


def _check(name: str, value: str | None, reason: str, rule: str, found: list[Finding]) -> Check:
    """The rule's finding if it has one, else the value, else why there is none."""
    finding = next((finding for finding in found if finding.rule == rule), None)
    if finding is not None:
        return Check(name, STATE_OF[finding.severity], finding.title, finding.text)
    return Check(name, "unknown", reason) if value is None else Check(name, "ok", value)


def _other_findings(found: list[Finding]) -> Iterator[Check]:
    """What distorts and has no line of its own above: variables, NUMA, a narrow link."""
    shown = {rule for _, _, rule in (*HOST_CHECKS, *GPU_CHECKS)} | {"environment.unseen"}
    for finding in found:
        if finding.rule not in shown:
            name = finding.rule.removeprefix("environment.").replace("_", " ")
            yield Check(name, STATE_OF[finding.severity], finding.title, finding.text)


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


def _storage(around: Surroundings) -> Iterator[Check]:
    free = around.data_free_bytes
    move = "set MICROBENCH_DATA to another folder"
    if free is None:
        yield Check("result folder", "problem", f"{around.data_folder}: {around.data_reason}", move)
    else:
        text = f"{around.data_folder}, {quantity(float(free), 'B')} free"
        scarce = free < RUN_FILE_BYTES
        yield Check("result folder", "warning" if scarce else "ok", text, move if scarce else None)
    if around.loop_cache is None:
        step = "set NUMBA_CACHE_DIR to a folder that can be written"
        yield Check("compiled loops", "warning", "cannot be kept: each process compiles them again", step)
    else:
        yield Check("compiled loops", "ok", f"kept in {around.loop_cache}")


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value)
