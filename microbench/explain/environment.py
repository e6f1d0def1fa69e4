"""Turns the facts of a session's environment into findings: what distorts its figures, and what cannot be seen."""

from collections.abc import Callable, Iterator

import msgspec

from microbench.analysis.evidence import SEVERITIES, Finding, Severity, said, sentence
from microbench.core.model import Environment, GpuInfo, MemoryErrors, Run, Scalar, Session
from microbench.core.units import percent, quantity
from microbench.host.files import cpu_list


def findings(run: Run) -> list[Finding]:
    """Everything that distorts a run, worst first. A finding that not all sessions share names its own.

    A fact that an old file does not have is unknown, never fine.
    """
    where: dict[Finding, list[int]] = {}
    for number, session in enumerate(run.sessions, start=1):
        for finding in session_findings(session):
            where.setdefault(finding, []).append(number)
    named = []
    for finding, numbers in where.items():
        title = finding.title
        if len(numbers) < len(run.sessions):
            plural = "" if len(numbers) == 1 else "s"
            title += f" (in session{plural} {', '.join(map(str, numbers))} of {len(run.sessions)})"
        named.append(msgspec.structs.replace(finding, title=title))
    return sorted(named, key=lambda finding: -SEVERITIES.index(finding.severity))


def session_findings(session: Session) -> list[Finding]:
    """What distorts one session, in the order of the rules. A real host does not distort virtual clocks."""
    if session.simulated:
        title = "SIMULATED: no GPU was measured"
        text = "Every figure comes from the simulated GPU's constants and shows only what a report looks like."
        threshold = "the session ran with --device fake"
        simulated = Finding("environment.simulated", "problem", title, text, threshold, ("simulated",))
        return [simulated, *_of_gpus(session, _of_memory)]
    found = (_of_cores, _of_time, _of_what_is_between, _of_variables)
    result = [finding for rules in found for finding in rules(session)]
    result += _of_gpus(session, lambda gpu: _of_gpu(gpu, session))
    return [*result, *_of_hidden_facts(session)]


def _of_gpus(session: Session, rules: Callable[[GpuInfo], Iterator[Finding]]) -> Iterator[Finding]:
    """What the rules find about each GPU, which is named if there are several."""
    for gpu in session.gpus:
        name = f"GPU {gpu.index}: " if len(session.gpus) > 1 else ""
        yield from (msgspec.structs.replace(finding, title=name + finding.title) for finding in rules(gpu))


# Read in user space, through the vDSO; any other clock source costs a system call or a slow device register.
FAST_CLOCKS = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase"})
# Drivers whose "powersave" follows the load, within the energy preference, rather than staying at the lowest clock.
PREFERENCE_DRIVERS = frozenset({"intel_pstate", "amd-pstate-epp", "amd-pstate"})
DEEP_IDLE_S = 10e-6
# Submitting, watching for a kernel's first act, and saving and drawing want a physical core each.
CORES_WANTED = 3
LOAD_SHARE = 0.5


def _of_cores(session: Session) -> Iterator[Finding]:
    """A CPU clock that follows the load, cores that sleep deeply, and a thread that shares the submitting core."""
    environment = session.environment
    name, driver = environment.fact("governor"), environment.fact("cpu_frequency_driver")
    if name not in (None, "performance"):
        preference = environment.fact("energy_preference")
        prefers_speed = driver in PREFERENCE_DRIVERS and preference == "performance"
        policies, known = environment.fact("governor_by_policy") or name, driver or "unknown"
        how = f"policies: {policies}; driver {known}, energy preference {preference or 'unknown'}"
        title = f"The CPU governor is {name}, not performance"
        text = f"The host's share of a launch moves with the CPU clock ({how})."
        advice = "" if prefers_speed else "Set it by `sudo cpupower frequency-set -g performance`."
        names: tuple[str, ...] = ("governor", "cpu_frequency_driver", "energy_preference")
        threshold = "a governor other than performance in any frequency policy"
        severity: Severity = "note" if prefers_speed else "warning"
        yield Finding("environment.governor", severity, title, text, threshold, names, advice=advice)
    latency_s = _number(environment.fact("c_state_exit_latency_s"))
    if latency_s is not None and latency_s >= DEEP_IDLE_S:
        state = environment.fact("c_state_deepest")
        title = f"Idle cores may sleep as deeply as {state}: {quantity(latency_s, 's')} to wake"
        text = "Blocking waits, thread hand-offs and the first launch after a pause wait for that."
        advice = "Forbid such states by `sudo cpupower idle-set -D 10`."
        names = ("c_state_deepest", "c_state_exit_latency_s")
        threshold = f"an enabled idle state with an exit latency of {quantity(DEEP_IDLE_S, 's')} or more"
        yield said(title, text, advice, names=names, rule="environment.idle_states", threshold=threshold)
    core, siblings = environment.fact("submit_core"), environment.fact("submit_core_siblings")
    if core is not None and siblings not in (None, "none"):
        ours = _cpus(environment, "parent_cores") | _cpus(environment, "watcher_core")
        shared = sorted(ours & _cpus(environment, "submit_core_siblings"))
        on_it = f"microbench's own threads run on CPU {', '.join(map(str, shared))}, the same physical core."
        off_it = "microbench keeps its own threads off it; other programs there slow launches down."
        title = f"Core {core}, which submits, shares its execution units with CPU {siblings}"
        advice = "Allow microbench more physical cores." if shared else ""
        names = ("submit_core", "submit_core_siblings", "parent_cores", "watcher_core")
        threshold = "the submitting core has a sibling; a warning if a thread of microbench's own runs on it"
        severity = "warning" if shared else "note"
        text = on_it if shared else off_it
        yield Finding("environment.smt_sibling", severity, title, text, threshold, names, advice=advice)


def _of_time(session: Session) -> Iterator[Finding]:
    """A clock that is slow to read, and too little time of the CPU: few cores, a quota, other programs."""
    environment = session.environment
    name, cost_s = environment.fact("clock_source"), session.floors.timer_call_s
    if name is not None and name not in FAST_CLOCKS:
        each = f" of {quantity(cost_s, 's')}" if cost_s is not None else ""
        title = f"The kernel's clock is {name}, which is slow to read"
        text = f"Host times of single calls contain a reading{each}, and their percentiles are worth little."
        threshold = f"a clock source other than {', '.join(sorted(FAST_CLOCKS))}"
        advice = "If the kernel gave up on tsc, `dmesg | grep -i tsc` says why."
        yield Finding("environment.clock_source", "problem", title, text, threshold, ("clock_source",), advice=advice)
    cores = _number(environment.fact("physical_core_count"))
    if cores is not None and cores < CORES_WANTED:
        severity: Severity = "warning" if cores < 2 else "advice"
        shared = "share two cores, which shows in the worst cases."
        if cores < 2:
            shared = "share one core: start times contain the scheduler's time slices."
        title = f"{cores:.0f} physical core{'s' if cores != 1 else ''} for {CORES_WANTED} busy threads"
        text = f"The threads that submit, watch and save {shared}"
        threshold = f"fewer than {CORES_WANTED} physical cores that this process may use"
        names: tuple[str, ...] = ("physical_core_count",)
        yield Finding("environment.few_cores", severity, title, text, threshold, names, advice="Allow more cores.")
    share = _number(environment.fact("cpu_quota"))
    if share is not None and share < CORES_WANTED:
        title = f"A cgroup allows {share:g} CPUs' worth of time for {CORES_WANTED} busy threads"
        text = "Once that is used, the kernel stops them all until the period ends (100 ms by default)."
        threshold = f"a CPU quota below {CORES_WANTED} CPUs"
        advice = "Raise the container's CPU limit."
        yield Finding("environment.cpu_quota", "warning", title, text, threshold, ("cpu_quota",), advice=advice)
    average, cpus = _number(environment.fact("load_average_1min")), _number(environment.fact("cpu_affinity_count"))
    if average is not None and cpus is not None and average > max(1.0, LOAD_SHARE * cpus):
        title = f"The host was busy: load average {average:.1f} on {cpus:.0f} CPUs"
        text = "Other programs share caches, memory and clock with the thread that submits."
        threshold = f"1-minute load average above 1 and above {percent(LOAD_SHARE)} of the CPUs allowed"
        names, advice = ("load_average_1min", "cpu_affinity_count"), "Close them and repeat."
        yield Finding("environment.load", "warning", title, text, threshold, names, advice=advice)


OFF = (None, "", "0", "none", "off")


def _of_what_is_between(session: Session) -> Iterator[Finding]:
    """What stands between this system and the hardware: a hypervisor, a sleeping link, tools that intercept calls."""
    environment = session.environment
    hypervisor, container = environment.fact("virtualization"), environment.fact("container")
    severity: Severity = "warning"
    what, effect = "", ""
    if container == "gvisor":
        what, effect = "gVisor", "Every call into the driver is intercepted, and the hardware is hidden."
    elif hypervisor == "wsl":
        what, effect = "WSL", "The Windows driver batches launches and shows little of the GPU's state."
    elif hypervisor not in (None, "none"):
        severity, what = "note", f"a virtual machine ({hypervisor})"
        effect = "Its host may take cores away unseen: figures hold for this machine, not for the GPU on bare metal."
    if what:
        advice = "Compare only with runs on such a machine." if severity == "warning" else ""
        threshold, names = "a hypervisor, WSL or gVisor was recognised", ("virtualization", "container")
        title = f"This is {what}"
        yield Finding("environment.virtualization", severity, title, effect, threshold, names, advice=advice)
    policy = environment.fact("pcie_aspm_policy")
    if policy in ("powersave", "powersupersave"):
        title = f"PCIe links may sleep: the kernel's power policy is {policy}"
        text = "An idle link powers down, and the first launch after a pause waits for it."
        advice = "Switch it off by `echo performance | sudo tee /sys/module/pcie_aspm/parameters/policy`."
        threshold = "an ASPM policy of powersave or powersupersave"
        yield said(title, text, advice, names=("pcie_aspm_policy",), rule="environment.pcie_aspm", threshold=threshold)
    if (tool := environment.fact("profiler")) not in OFF:
        title = f"A profiler is attached: {tool}"
        text = "It intercepts driver calls and may serialise kernels: every launch figure contains it."
        threshold = "a tool's variable is set, or its library is preloaded, injected or mapped"
        advice = "Measure without it; under it, look only at the timeline."
        yield Finding("environment.profiler", "problem", title, text, threshold, ("profiler",), advice=advice)
    if (tracer := environment.fact("tracer")) not in OFF:
        title = f"The process is traced by {tracer}"
        text = "It stops at system calls or breakpoints, also inside what is timed."
        threshold = "the process has a ptrace tracer"
        advice = "Measure without a tracer."
        yield Finding("environment.tracer", "problem", title, text, threshold, ("tracer",), advice=advice)
    if (mps := environment.fact("mps")) not in OFF:
        running = mps == "running"
        title = "MPS is running" if running else f"MPS may be running: {mps}"
        text = "Contexts of several processes then share the GPU's queues, and cold starts include the server."
        threshold = "the daemon is among the processes, or its control pipe exists"
        advice = "End it by `echo quit | nvidia-cuda-mps-control`."
        yield Finding(
            "environment.mps", "warning" if running else "note", title, text, threshold, ("mps",), advice=advice
        )


# What a variable does to a launch, and the values that do it; None for any value but an unset one.
# CUDA programming guide, "CUDA environment variables"; Numba reference, "Environment variables".
EFFECTS: tuple[tuple[str, Severity, str, tuple[str, ...] | None], ...] = (
    ("CUDA_LAUNCH_BLOCKING", "problem", "Each launch waits for its kernel to end", ("1",)),
    ("NUMBA_ENABLE_CUDASIM", "problem", "Numba's kernels are simulated on the CPU", ("1",)),
    ("NUMBA_DISABLE_JIT", "problem", "The measuring loops are interpreted, not compiled", ("1",)),
    ("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "warning", "Kernels run under the debugger's support", ("1",)),
    ("CUDA_DEVICE_WAITS_ON_EXCEPTION", "warning", "Kernels run under the debugger's support", ("1",)),
    ("CUDA_FORCE_PTX_JIT", "warning", "Machine code is ignored and PTX compiled at load", ("1",)),
    ("CUDA_FORCE_JIT", "warning", "Machine code is ignored and PTX compiled at load", ("1",)),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "warning", "Streams share that many queues (8 by default)", None),
    ("CUDA_SCALE_LAUNCH_QUEUES", "warning", "Launch queues are longer or shorter than this driver's own", None),
    ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "warning", "Under MPS only that share of the SMs is used", None),
    ("NVIDIA_TF32_OVERRIDE", "warning", "Libraries are kept from using TF32", ("0",)),
    ("CUDA_MODULE_LOADING", "note", "Whole modules are loaded at once: slower cold starts", ("EAGER",)),
    ("CUDA_CACHE_DISABLE", "note", "Compiled PTX is not kept: slower cold starts", ("1",)),
    ("NUMBA_CUDA_DEBUGINFO", "warning", "Numba's kernels carry debug code", ("1",)),
)


def _of_variables(session: Session) -> Iterator[Finding]:
    for name, severity, effect, when in EFFECTS:
        value = session.environment.fact(name)
        if isinstance(value, str) and value and (when is None or value.upper() in when):
            title = f"{name}={value} changes what is measured"
            threshold = f"{name} is " + (f"set to {' or '.join(when)}" if when else "set")
            advice, rule = "Unset it and repeat, unless that is what you want to see.", f"environment.{name.lower()}"
            yield Finding(rule, severity, title, f"{effect}.", threshold, (name,), advice=advice)


# A memory bus this wide is HBM, whose ECC has bits of its own; GDDR keeps its ECC in the memory it protects.
HBM_BUS_BITS = 1024
PROCESSES_NAMED = 4
GRAPHICS_MARK = "graphics"


def _of_gpu(gpu: GpuInfo, session: Session) -> Iterator[Finding]:
    """What distorts figures of one GPU: who else uses it, its modes, its memory, and its place in the machine."""
    if others := gpu.other_processes:
        named = ", ".join(others[:PROCESSES_NAMED]) + (", …" if len(others) > PROCESSES_NAMED else "")
        only_drawing = all(GRAPHICS_MARK in name for name in others)
        severity: Severity = "advice" if only_drawing else "problem"
        title = f"{len(others)} other process{'es' if len(others) > 1 else ''} on the GPU: {named}"
        text = "The GPU switches between them and this run: every figure may be wrong."
        text = "They draw the screen: the worst cases contain them." if only_drawing else text
        advice = "Measure from a text console or another machine." if only_drawing else "End them and repeat."
        threshold = "NVML lists a process other than microbench; advice if all of them only draw"
        names: tuple[str, ...] = ("gpu other_processes",)
        yield Finding("environment.other_processes", severity, title, text, threshold, names, advice=advice)
    if gpu.confidential_computing:
        title = "Confidential computing is on"
        text = (
            "Launches cost a multiple, and copies on several streams take turns in the CPU's bounce buffers, as "
            "published (arXiv 2606.23969): not measured by us."
        )
        advice = (
            "Compare only with runs in the same mode. `microbench run link_chunks link_latency memory_allocate --full` "
            "shows copies over 1 to 4 streams, the time that calls block, and small allocations."
        )
        threshold = "NVML reports the confidential-computing feature as enabled"
        names = ("gpu confidential_computing",)
        yield Finding("environment.confidential_computing", "warning", title, text, threshold, names, advice=advice)
    if gpu.mig:
        title = "This is a MIG instance, not a whole GPU" + (f": {gpu.sm_count} SMs" if gpu.sm_count else "")
        text = "SMs, caches and memory bandwidth are a share of the board's; neighbours share the PCIe link."
        threshold = "NVML reports MIG mode as enabled"
        yield said(title, text, names=("gpu mig", "gpu sm_count"), rule="environment.mig", threshold=threshold)
    bus = gpu.memory_bus_bits
    if gpu.ecc is False or (gpu.ecc and bus is not None and bus < HBM_BUS_BITS):
        off = "Boards in data centres usually run with it on, which costs bandwidth on GDDR memory."
        title = f"ECC is on, on a {bus}-bit memory bus" if gpu.ecc else "ECC is off"
        text = "Such memory has no bits of its own for ECC: check bits take memory bandwidth." if gpu.ecc else off
        threshold = f"ECC off, or on with a memory bus under {HBM_BUS_BITS} bit"
        yield said(title, text, names=("gpu ecc", "gpu memory_bus_bits"), rule="environment.ecc", threshold=threshold)
    yield from _of_memory(gpu)
    if gpu.persistence is False:
        title = "Persistence mode is off"
        text = "The driver shuts the GPU down when the last process leaves: cold starts contain its start."
        advice = "Keep it up by `sudo nvidia-smi -pm 1`."
        threshold = "NVML reports persistence mode as disabled"
        yield said(title, text, advice, names=("gpu persistence",), rule="environment.persistence", threshold=threshold)
    now, most = gpu.link.lanes_now, gpu.link.lanes_max
    if now is not None and most is not None and now < most and not gpu.integrated and not gpu.link.coherent:
        title, why = f"The PCIe link has {now} of {most} lanes", "the slot is narrower, shared, or badly seated"
        text = f"Copies reach {now}/{most} of what this GPU could carry: {why}."
        advice = "Move the GPU to a full slot, or reseat it."
        names = ("gpu link.lanes_now", "gpu link.lanes_max")
        no_verdict = "the speed is no verdict: an idle link slows down"
        threshold = f"fewer lanes in use than GPU and slot could use ({no_verdict})"
        yield Finding("environment.narrow_link", "warning", title, text, threshold, names, advice=advice)
    node = session.environment.fact("submit_core_numa_node")
    if gpu.numa_node is not None and node is not None and node != gpu.numa_node:
        title = f"The core that submits is on NUMA node {node}, the GPU on node {gpu.numa_node}"
        text = "Launches cross to another socket, which lengthens start and complete and may slow copies."
        advice = f"Allow a core of the GPU's node: `numactl --cpunodebind={gpu.numa_node} microbench run`."
        names = ("submit_core_numa_node", "gpu numa_node")
        threshold = "the submitting core's NUMA node is not the GPU's"
        yield Finding("environment.numa", "warning", title, text, threshold, names, advice=advice)


def _of_memory(gpu: GpuInfo) -> Iterator[Finding]:
    """The GPU's memory must be repaired, or data in it was lost."""
    errors, due = gpu.memory_errors, repair_due(gpu.memory_errors)
    lost = errors.uncorrected_volatile if errors is not None else None
    if due is None and lost:
        step = "look for the driver's Xid messages (`dmesg | grep Xid`), and reset the GPU"
        due = "warning", f"{lost} uncorrected ECC error{'s' * (lost != 1)} since the driver was loaded", step
    elif due is not None:
        due = due[0], f"GPU memory: {due[1]}", due[2]
    if due is not None:
        severity, title, step = due
        text, names = f"NVML says: {errors_in_words(errors)}.", ("gpu memory_errors",)
        threshold = "NVML reports a failed or pending row remap, a pending page retirement, or uncorrected ECC errors "
        threshold += "since the driver was loaded"
        advice = sentence(f"{step}.")
        yield Finding("environment.memory_errors", severity, title, text, threshold, names, advice=advice)


def repair_due(errors: MemoryErrors | None) -> tuple[Severity, str, str] | None:
    """What repair of a GPU's memory is due, how severe that is, and what to do; None if none is."""
    diagnose = "run NVIDIA's field diagnostic, which decides whether the board is replaced"
    reset = "drain the node and reset the GPU (`nvidia-smi --gpu-reset`)"
    if errors is None:
        return None
    if errors.remap_failed:
        return "problem", "row remap failed", diagnose
    if errors.remap_pending:
        return "warning", "row remap pending", reset
    return ("warning", "page retirement pending", reset) if errors.retirement_pending else None


def errors_in_words(errors: MemoryErrors | None) -> str | None:
    """Errors and repairs that there are, such as "2 corrected ECC errors, 1 row remapped"; None if nothing is known."""
    if errors is None or errors == MemoryErrors():
        return None
    said = []
    for kind in ("uncorrected", "corrected"):
        newest = getattr(errors, f"{kind}_volatile") or 0
        if count := max(newest, getattr(errors, f"{kind}_aggregate") or 0):
            since = f" ({newest} since the driver was loaded)" if newest else ""
            said.append(f"{count} {kind} ECC error{'s' * (count != 1)}{since}")
    if rows := (errors.rows_remapped_corrected or 0) + (errors.rows_remapped_uncorrected or 0):
        said.append(f"{rows} row{'s' * (rows != 1)} remapped")
    if pages := errors.pages_retired:
        said.append(f"{pages} page{'s' * (pages != 1)} retired")
    told = {
        "row remap failed": errors.remap_failed, "row remap pending": errors.remap_pending,
        "page retirement pending": errors.retirement_pending,
    }  # fmt: skip
    said += [words for words, there in told.items() if there]
    return ", ".join(said) or "none"


# Facts that a rule needs and that some machines hide, with the words for them.
NEEDED_FACTS = {
    "governor": "CPU governor",
    "c_state_deepest": "idle states",
    "clock_source": "clock source",
    "virtualization": "virtualisation",
    "tracer": "tracing",
}
NEEDED_GPU_FIELDS = {
    "other_processes": "other processes",
    "mig": "MIG mode",
    "ecc": "ECC",
    "persistence": "persistence mode",
    "confidential_computing": "confidential computing",
}


def _of_hidden_facts(session: Session) -> Iterator[Finding]:
    """The facts that could not be read, so that silence about them means nothing."""
    environment = session.environment
    hidden = {name: words for name, words in NEEDED_FACTS.items() if environment.fact(name) is None}
    for gpu in session.gpus:
        hidden |= {f"gpu {name}": words for name, words in NEEDED_GPU_FIELDS.items() if getattr(gpu, name) is None}
    if hidden:
        reasons = {fact.name: fact.reason for fact in environment.facts if fact.value is None and fact.reason}
        listed = [f"{words} ({reasons[name]})" if name in reasons else words for name, words in hidden.items()]
        title = f"{len(hidden)} possible distortion{'s' if len(hidden) > 1 else ''} cannot be seen from here"
        text = f"These are unknown, which does not mean fine: {', '.join(listed)}."
        threshold = "a fact that a rule needs is unknown"
        yield said(title, text, names=tuple(hidden), rule="environment.unseen", threshold=threshold)


def _number(value: Scalar) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _cpus(environment: Environment, name: str) -> set[int]:
    """The CPUs that a fact lists. The set is empty if the fact is missing or is not a list of CPUs."""
    try:
        return set(cpu_list(str(environment.fact(name))))
    except ValueError:
        return set()
