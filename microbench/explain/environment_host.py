"""What in the host distorts a run: governor, idle states, clock source, cores, other load, virtualisation."""

from __future__ import annotations

from microbench.explain.finding import Finding, Severity
from microbench.host.files import cpu_list
from microbench.model import Environment, Scalar, Session
from microbench.units import percent, quantity

# Read in user space, through the vDSO; any other clock source costs a system call or a slow device register.
FAST_CLOCKS = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase"})
# Drivers whose "powersave" follows the load, within the energy preference, rather than staying at the lowest clock.
PREFERENCE_DRIVERS = frozenset({"intel_pstate", "amd-pstate-epp", "amd-pstate"})
DEEP_IDLE_S = 10e-6
CORES_WANTED = 3
LOAD_SHARE = 0.5


def governor(session: Session) -> list[Finding]:
    """The CPU clock follows the load instead of staying up."""
    environment = session.environment
    name, driver = environment.fact("governor"), environment.fact("cpu_frequency_driver")
    preference = environment.fact("energy_preference")
    if name is None or name == "performance":
        return []
    prefers_speed = driver in PREFERENCE_DRIVERS and preference == "performance"
    counts = environment.fact("governor_by_policy")
    return [
        Finding(
            rule="environment.governor",
            severity="note" if prefers_speed else "warning",
            title=f"The CPU governor is {name}, not performance",
            text=(
                f"Frequency policies: {counts or name}; driver {driver or 'unknown'}, energy preference "
                f"{preference or 'unknown'}. The host's share of a launch moves with the clock of the core that "
                "submits: set it by `sudo cpupower frequency-set -g performance`."
            ),
            threshold="a governor other than performance in any frequency policy",
            rests_on=("governor", "cpu_frequency_driver", "energy_preference"),
        )
    ]


def idle_states(session: Session) -> list[Finding]:
    """A core that sleeps deeply wakes late."""
    environment = session.environment
    state, latency_s = environment.fact("c_state_deepest"), _number(environment.fact("c_state_exit_latency_s"))
    if latency_s is None or latency_s < DEEP_IDLE_S:
        return []
    return [
        Finding(
            rule="environment.idle_states",
            severity="advice",
            title=f"Idle cores may sleep as deeply as {state}: {quantity(latency_s, 's')} to wake",
            text=(
                f"By the driver {environment.fact('cpuidle_driver') or 'unknown'}'s own table a core in {state} needs "
                f"{quantity(latency_s, 's')} to wake, and so does whatever waits for it: blocking waits, thread "
                "hand-offs, the first launch after a pause. `sudo cpupower idle-set -D 10` forbids such states."
            ),
            threshold=f"an enabled idle state with an exit latency of {quantity(DEEP_IDLE_S, 's')} or more",
            rests_on=("c_state_deepest", "c_state_exit_latency_s"),
        )
    ]


def sibling(session: Session) -> list[Finding]:
    """The submitting core's other hardware thread competes with it."""
    environment = session.environment
    core, text = environment.fact("submit_core"), environment.fact("submit_core_siblings")
    if core is None or text in (None, "none"):
        return []
    ours = _cpus(environment, "parent_cores") | _cpus(environment, "watcher_core")
    shared = sorted(ours & _cpus(environment, "submit_core_siblings"))
    threads = ", ".join(str(cpu) for cpu in shared)
    return [
        Finding(
            rule="environment.smt_sibling",
            severity="warning" if shared else "note",
            title=f"Core {core}, which submits, shares its execution units with CPU {text}",
            text=(
                f"microbench's own threads on CPU {threads} run on the same physical core and slow the submission down."
                if shared
                else f"microbench keeps its own threads off CPU {text}; what else runs there slows the submission down."
            ),
            threshold="the submitting core has a sibling; a warning if a thread of microbench's own runs on it",
            rests_on=("submit_core", "submit_core_siblings", "parent_cores", "watcher_core"),
        )
    ]


def clock_source(session: Session) -> list[Finding]:
    """Reading the time costs as much as what is timed."""
    name = session.environment.fact("clock_source")
    if name is None or name in FAST_CLOCKS:
        return []
    cost = session.floors.timer_call_s
    measured = f"A reading took {quantity(cost, 's')} here. " if cost is not None else ""
    return [
        Finding(
            rule="environment.clock_source",
            severity="problem",
            title=f"The kernel's clock is {name}, which is slow to read",
            text=(
                f"{measured}Host times of single calls contain the reading of the clock, and their percentiles are "
                "worth little. If the kernel gave up on tsc, `dmesg | grep -i tsc` says why."
            ),
            threshold=f"a clock source other than {', '.join(sorted(FAST_CLOCKS))}",
            rests_on=("clock_source",),
        )
    ]


def few_cores(session: Session) -> list[Finding]:
    """Submitting, watching and drawing want a physical core each."""
    cores = _number(session.environment.fact("physical_core_count"))
    if cores is None or cores >= CORES_WANTED:
        return []
    return [
        Finding(
            rule="environment.few_cores",
            severity="warning" if cores < 2 else "advice",
            title=f"{cores:.0f} physical core{'s' if cores != 1 else ''} for {CORES_WANTED} busy threads",
            text=(
                "The thread that submits, the one that watches for a kernel's first act, the one that saves and draws "
                + (
                    "share one core, so start times contain the scheduler's time slices. Allow more cores."
                    if cores < 2
                    else "share two, which shows in the worst cases. Allow more cores."
                )
            ),
            threshold=f"fewer than {CORES_WANTED} physical cores that this process may use",
            rests_on=("physical_core_count",),
        )
    ]


def quota(session: Session) -> list[Finding]:
    """A cgroup stops the process for the rest of each period once its share is used."""
    share = _number(session.environment.fact("cpu_quota"))
    if share is None or share >= CORES_WANTED:
        return []
    return [
        Finding(
            rule="environment.cpu_quota",
            severity="warning",
            title=f"A cgroup allows {share:g} CPUs' worth of time",
            text=(
                f"microbench keeps up to {CORES_WANTED} threads busy; when {share:g} CPUs' worth is used, the kernel "
                "stops them all until the period ends (100 ms by default). Raise the container's CPU limit."
            ),
            threshold=f"a CPU quota below {CORES_WANTED} CPUs",
            rests_on=("cpu_quota",),
        )
    ]


def load(session: Session) -> list[Finding]:
    """Other programs were running when the session began."""
    environment = session.environment
    average, cpus = _number(environment.fact("load_average_1min")), _number(environment.fact("cpu_affinity_count"))
    if average is None or cpus is None or average <= max(1.0, LOAD_SHARE * cpus):
        return []
    return [
        Finding(
            rule="environment.load",
            severity="warning",
            title=f"The host was busy: load average {average:.1f} on {cpus:.0f} CPUs",
            text=(
                f"In the minute before, {average:.1f} threads wanted to run, {percent(average / cpus)} of the CPUs "
                "allowed. They share caches, memory and clock with the one that submits: close them."
            ),
            threshold=f"1-minute load average above 1 and above {percent(LOAD_SHARE)} of the CPUs allowed",
            rests_on=("load_average_1min", "cpu_affinity_count"),
        )
    ]


def virtualization(session: Session) -> list[Finding]:
    """A hypervisor, WSL or gVisor stands between this system and the hardware."""
    environment = session.environment
    hypervisor, container = environment.fact("virtualization"), environment.fact("container")
    if container == "gvisor":
        return [_between("warning", "gVisor", "every call into the driver is intercepted, and the hardware is hidden")]
    if hypervisor == "wsl":
        return [_between("warning", "WSL", "the Windows driver batches launches and shows little of the GPU's state")]
    if hypervisor in (None, "none"):
        return []
    return [_between("note", f"a virtual machine ({hypervisor})", "cores may be taken away unseen")]


def _between(severity: Severity, what: str, effect: str) -> Finding:
    return Finding(
        rule="environment.virtualization",
        severity=severity,
        title=f"This is {what}",
        text=f"Under {what} {effect}. Figures hold for this machine as rented, not for the GPU on bare metal.",
        threshold="a hypervisor, WSL or gVisor was recognised",
        rests_on=("virtualization", "container"),
    )


def link_power(session: Session) -> list[Finding]:
    """An idle PCIe link goes to sleep and wakes late."""
    policy = session.environment.fact("pcie_aspm_policy")
    if policy not in ("powersave", "powersupersave"):
        return []
    return [
        Finding(
            rule="environment.pcie_aspm",
            severity="advice",
            title=f"PCIe links may sleep: the kernel's power policy is {policy}",
            text=(
                f"Under {policy} an idle link powers down, and the first launch after a pause waits for it. Switch it "
                "off by `echo performance | sudo tee /sys/module/pcie_aspm/parameters/policy`."
            ),
            threshold="an ASPM policy of powersave or powersupersave",
            rests_on=("pcie_aspm_policy",),
        )
    ]


RULES = (governor, idle_states, sibling, clock_source, few_cores, quota, load, virtualization, link_power)


def _number(value: Scalar) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _cpus(environment: Environment, name: str) -> set[int]:
    """The CPUs that a fact lists; empty for an unknown one or one that a foreign file spells otherwise."""
    try:
        return set(cpu_list(str(environment.fact(name))))
    except ValueError:
        return set()
