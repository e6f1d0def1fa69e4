"""Facts about the processor and the kernel's handling of it: model, frequency, idle states, clock source."""

from __future__ import annotations

from collections import Counter

from microbench.host.files import Machine, as_cpu_list, cpu_list, fact, known, labelled, stated, unknown
from microbench.host.topology import CPUS
from microbench.model import Fact

# From the one that holds the clock down to the one that holds it up: the first found is the worst.
GOVERNORS = ("powersave", "conservative", "userspace", "ondemand", "schedutil", "performance")
# The same for what intel_pstate and amd-pstate take in place of a governor.
ENERGY_PREFERENCES = ("power", "balance_power", "default", "balance_performance", "performance")
IDLE_OPTIONS = ("intel_idle.max_cstate", "processor.max_cstate", "idle", "cpuidle.off", "nohlt")
CLOCKS = "/sys/devices/system/clocksource/clocksource0"
HIDDEN = "not shown, as in most virtual machines"


def processor_facts(machine: Machine, submit_core: int | None) -> tuple[Fact, ...]:
    """Everything about the processor that changes what a launch costs."""
    return (
        _model(machine),
        *_frequency_facts(machine),
        *_idle_facts(machine, submit_core),
        fact("clock_source", machine.read(f"{CLOCKS}/current_clocksource")),
        fact("clock_sources_available", machine.read(f"{CLOCKS}/available_clocksource")),
        _cpu_set(machine, "isolated_cpus", "isolated"),
        _cpu_set(machine, "nohz_full_cpus", "nohz_full"),
    )


def worst(found: tuple[str, ...], from_worst: tuple[str, ...]) -> str:
    """The entry of ``found`` that comes first in ``from_worst``; one that is not in it counts as worse than all."""
    return min(found, key=lambda word: from_worst.index(word) if word in from_worst else -1)


def _model(machine: Machine) -> Fact:
    """x86 says "model name", POWER "cpu"; ARM only numbers, which lscpu's table would be needed for."""
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
    """The worst of what the frequency policies say, and how many say what."""
    source = f"{CPUS}/cpufreq/policy*/{file}"
    found = tuple(text for policy in policies if (text := machine.read(f"{policy}/{file}").text))
    if not found:
        return (unknown(name, "no frequency policy says" if policies else HIDDEN, source),)
    counts = ", ".join(f"{count} {word}" for word, count in sorted(Counter(found).items()))
    return known(name, worst(found, from_worst), source), known(f"{name}_by_policy", counts, source)


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
    options = [word for word in words if word.split("=")[0] in IDLE_OPTIONS]
    return (
        stated("c_state_deepest", deepest and deepest[1], source, HIDDEN),
        known("c_state_exit_latency_s", deepest[0], source, "s")
        if deepest
        else unknown("c_state_exit_latency_s", HIDDEN, source),
        fact("cpuidle_driver", machine.read(f"{CPUS}/cpuidle/current_driver")),
        known("idle_boot_options", " ".join(options) or "none", "/proc/cmdline")
        if machine.exists("/proc/cmdline")
        else unknown("idle_boot_options", "no such file", "/proc/cmdline"),
    )


def _cpu_set(machine: Machine, name: str, file: str) -> Fact:
    """A CPU list, "none" for an empty one. Kernels without the feature have no such file."""
    reading = machine.read(f"{CPUS}/{file}")
    if reading.text in ("", "(null)"):
        return known(name, "none", reading.source)
    return fact(name, reading, lambda text: as_cpu_list(cpu_list(text)))
