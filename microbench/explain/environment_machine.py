"""What in a GPU's state distorts a run: other processes, MIG, confidential computing, ECC, persistence, its place."""

from __future__ import annotations

from collections.abc import Callable

from microbench.analysis.evidence import Finding, Severity
from microbench.core.model import Environment, GpuInfo, Scalar, Session
from microbench.core.units import percent, quantity
from microbench.host.files import cpu_list

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


# What in the host distorts a run: governor, idle states, clock source, cores, other load, virtualisation.


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
