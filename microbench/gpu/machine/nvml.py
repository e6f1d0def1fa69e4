"""NvmlGpu reads one GPU's state, counters and processes through NVML. No other file imports pynvml.

PCIe bytes come from counters that wrap, or from sampled rates if the driver has no counters. Error counters are read
before and after a load, to see which of them rose.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from microbench.core.errors import Skip
from microbench.core.model import Fact, GpuInfo, LinkInfo, MemoryErrors, Telemetry
from microbench.core.units import about_size
from microbench.gpu.machine.pci import DEVICES, NOT_SHOWN, way_to_root
from microbench.gpu.machine.query import NVLINK_ERROR_FIELDS, Answer, Field, Query, call, clock_reasons, field_value
from microbench.gpu.machine.topology import NvLinks, coherent, nvlink_bytes_per_s, nvlinks
from microbench.gpu.protocol.gpu import PcieBytes
from microbench.host.files import Machine, known, labelled, unknown

# NVML's fields 197 and 198 are 32 bit: at 63 GB/s they wrap every 68 ms.
COUNTER_MODULUS = 1 << 32
FRESH_RATE_S = 1.0


class SampledTotals:
    """Totals from rates that a thread samples; they are right only for traffic that lasts many samples.

    ``rates()`` returns bytes a second (sent, received) and takes tens of milliseconds, as nvmlDeviceGetPcieThroughput
    does. Each rate is an average over a part of that time and counts for all of it. The thread starts with the first
    reading; a reading waits for a sample that ends after it was asked for.
    """

    def __init__(self, rates: Callable[[], tuple[float, float] | None]) -> None:
        self._rates = rates
        self._changed = threading.Condition()
        self._samples = 0
        self._sent = 0.0
        self._received = 0.0
        self._lost: bool = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> PcieBytes | None:
        """The totals so far; None if the rates can no longer be read."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._sample, name="pcie-rates", daemon=True)
            self._thread.start()
        with self._changed:
            wanted = self._samples + 1
            self._changed.wait_for(lambda: self._samples >= wanted or self._lost, timeout=FRESH_RATE_S)
            return None if self._lost else PcieBytes(round(self._sent), round(self._received), coarse=True)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        before = time.monotonic()
        while not self._stop.is_set():
            rates = self._rates()
            now = time.monotonic()
            with self._changed:
                if rates is None:
                    self._lost = True
                else:
                    self._sent += rates[0] * (now - before)
                    self._received += rates[1] * (now - before)
                    self._samples += 1
                self._changed.notify_all()
            if rates is None:
                return
            before = now


RISEN = "_risen"
# Advanced error reporting in sysfs (kernel: Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats): fact, file, the
# line with the total, and NVML's field for the case that no device on the way has the file.
REPORTED_ERRORS = (
    ("pcie_correctable_errors", "aer_dev_correctable", "TOTAL_ERR_COR", Field.PCIE_COUNT_CORRECTABLE_ERRORS),
    ("pcie_nonfatal_errors", "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", Field.PCIE_COUNT_NON_FATAL_ERROR),
    ("pcie_fatal_errors", "aer_dev_fatal", "TOTAL_ERR_FATAL", Field.PCIE_COUNT_FATAL_ERROR),
)


def link_counters(bus_id: str | None, query: Query, root: Path = Path("/")) -> tuple[Fact, ...]:
    """Errors since boot or since the driver was loaded, each unknown with a reason. Never raises.

    The counters are replays, replays that ended in a new training of the link, the sum of errors that the GPU and the
    bridges above it reported, and errors of all NVLinks.
    """
    replays = query.ask_board("nvmlDeviceGetPcieReplayCounter")
    replays = replays if replays.value is not None else query.board_field(Field.PCIE_REPLAY_COUNTER)
    way = [hop.bus_id for hop in way_to_root(bus_id, root).hops]
    return (
        replays.fact("pcie_replays"),
        query.board_field(Field.PCIE_REPLAY_ROLLOVER_COUNTER).fact("pcie_replay_rollovers"),
        *(
            _reported(name, file, line, way, query.board_field(field), root)
            for name, file, line, field in REPORTED_ERRORS
        ),
        nvlink_errors(query, nvlinks(query)).fact("nvlink_errors"),
    )


def counters_risen(before: Iterable[Fact], after: Iterable[Fact]) -> tuple[Fact, ...]:
    """How far each counter rose between two readings, as ``<name>_risen``; unknown if either reading is unknown."""
    earlier = {fact.name: fact for fact in before}
    return tuple(_risen(earlier[fact.name], fact) for fact in after if fact.name in earlier)


def _risen(before: Fact, after: Fact) -> Fact:
    name, first, last = after.name + RISEN, before.value, after.value
    if not isinstance(first, int) or not isinstance(last, int):
        return unknown(name, before.reason or after.reason or "no number", after.source)
    if last < first:
        return unknown(name, "the counter was reset in between", after.source)
    if before.source != after.source:
        return unknown(name, f"not the same counters: {before.source}, then {after.source}", after.source)
    return known(name, last - first, after.source)


def _reported(name: str, file: str, line: str, way: list[str], answer: Answer, root: Path) -> Fact:
    """The sum over the devices on the way that have the counter, or NVML's count of the GPU alone if none has it."""
    machine = Machine(root)
    totals = {hop: labelled(machine.read(f"{DEVICES}/{hop}/{file}").text, line, " ") for hop in way}
    counted = {hop: int(total) for hop, total in totals.items() if total and total.isdigit()}
    if counted:
        return known(name, sum(counted.values()), f"{file} of {', '.join(counted)}")
    if answer.value is not None:
        return known(name, answer.value, "NVML")
    hidden = "no device on the way reports errors in sysfs" if way else NOT_SHOWN
    return unknown(name, f"{hidden}; {answer.why_none}", file)


def nvlink_errors(query: Query, links: NvLinks) -> Answer:
    """Replays, recoveries and damaged packets of all NVLinks, summed, since the driver was loaded."""
    answer = links.none_up
    for fields in NVLINK_ERROR_FIELDS if links.active else ():
        counts = [query.board_field(field, link) for link in links.active for field in fields]
        values = [count.value for count in counts if count.value is not None]
        if values:
            return Answer(sum(values))
        answer = counts[0]
    return answer


# Constants of nvml.h; all releases of the bindings agree on them.
CLOCK_SM, CLOCK_MEMORY = 1, 2
TEMPERATURE_GPU = 0
# nvmlMemoryErrorType_t, nvmlEccCounterType_t and nvmlPageRetirementCause_t.
CORRECTED, UNCORRECTED = 0, 1
VOLATILE, AGGREGATE = 0, 1
RETIREMENT_CAUSES = (0, 1)
# NVML_PCIE_UTIL_TX_BYTES and _RX_BYTES of nvmlDeviceGetPcieThroughput, which answers in kB/s.
PCIE_SENT, PCIE_RECEIVED = 0, 1
VIRTUALIZATION_MODES = {0: "none", 1: "passed through", 2: "vGPU", 3: "host of vGPUs", 4: "host of shared graphics"}
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
MEGAHERTZ = 1e6
MILLIWATT = 1e-3
MILLIJOULE = 1e-3
KILOBYTE = 1e3
CLOCK_REASON_NAMES = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
TEMPERATURE_NAMES = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
# The enforced limit may be lower than the one that was set.
POWER_LIMIT_NAMES = ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit")


def load() -> Any:
    """The module pynvml (distribution nvidia-ml-py), or None when it is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


class NvmlGpu:
    """One GPU through NVML, found by UUID, because CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER change indices.

    The constructor never raises: ``query.reason`` says why NVML cannot be used (not installed, no driver, …), and every
    value is then unknown for that reason. ``library`` replaces pynvml in tests.
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        self.uuid = uuid
        self.query = Query(load() if library is None else library, uuid)
        self._counted: list[tuple[int, int]] = []  # last reading and total of the counters: sent, received
        self._sampled = SampledTotals(self._pcie_rates)

    def close(self) -> None:
        self._sampled.close()
        self.query.close()

    def describe(self, info: GpuInfo, own_pids: Collection[int] = (), context_open: bool = True) -> GpuInfo:
        """``info`` with NVML's answers in place of the fields that are None. Never raises.

        ``own_pids`` are processes of this run; ``context_open`` says that this process has a CUDA context.
        """
        ask = self.query.ask
        answers: dict[str, Any] = {
            "pci_bus_id": ask("nvmlDeviceGetPciInfo").member("busId").value,
            "memory_bytes": ask("nvmlDeviceGetMemoryInfo").member("total").value,
            "sm_clock_max_hz": ask("nvmlDeviceGetMaxClockInfo", CLOCK_SM).scaled(MEGAHERTZ),
            "memory_clock_max_hz": ask("nvmlDeviceGetMaxClockInfo", CLOCK_MEMORY).scaled(MEGAHERTZ),
            "memory_bus_bits": ask("nvmlDeviceGetMemoryBusWidth").value,
            "ecc": ask("nvmlDeviceGetEccMode").flag(),
            "mig": self._mig().flag(),
            "persistence": ask("nvmlDeviceGetPersistenceMode").flag(),
            "confidential_computing": self._confidential().flag(),
            "power_limit_w": self.query.ask_first(POWER_LIMIT_NAMES).scaled(MILLIWATT),
            "other_processes": other_processes(self.query, own_pids, context_open).value,
            "memory_errors": self._memory_errors(),
        }
        fields = {name: value for name, value in answers.items() if getattr(info, name) is None and value is not None}
        return msgspec.structs.replace(info, **fields, link=self._link(info.link))

    def facts(self, prefix: str = "") -> tuple[Fact, ...]:
        """Values without a field in GpuInfo, and the reasons for its unknown fields. ``prefix`` is such as "gpu0_"."""
        ask = self.query.ask
        mode, compute = ask("nvmlDeviceGetVirtualizationMode"), ask("nvmlDeviceGetComputeMode")
        answers = {
            "virtualization_mode": mode._replace(value=VIRTUALIZATION_MODES.get(mode.value)),
            "compute_mode": compute._replace(value=COMPUTE_MODES.get(compute.value)),
            "vbios_version": ask("nvmlDeviceGetVbiosVersion"),
        }
        fields = {
            "ecc": ask("nvmlDeviceGetEccMode"),
            "mig": self._mig(),
            "persistence": ask("nvmlDeviceGetPersistenceMode"),
            "confidential_computing": self._confidential(),
            "power_limit_w": self.query.ask_first(POWER_LIMIT_NAMES),
            "other_processes": other_processes(self.query),
        }
        answers |= {name: answer for name, answer in fields.items() if answer.value is None}
        return tuple(answer.fact(f"{prefix}{name}") for name, answer in answers.items())

    def telemetry(self) -> Telemetry:
        """The GPU's state now, without the SMs' own clock; values that NVML does not know are None. Never raises."""
        ask = self.query.ask
        return Telemetry(
            nvml_sm_clock_hz=ask("nvmlDeviceGetClockInfo", CLOCK_SM).scaled(MEGAHERTZ),
            memory_clock_hz=ask("nvmlDeviceGetClockInfo", CLOCK_MEMORY).scaled(MEGAHERTZ),
            temperature_c=self.query.ask_first(TEMPERATURE_NAMES, TEMPERATURE_GPU).scaled(1.0),
            power_w=ask("nvmlDeviceGetPowerUsage").scaled(MILLIWATT),
            throttle_reasons=clock_reasons(self.query.ask_first(CLOCK_REASON_NAMES).value or 0),
        )

    def pcie_bytes(self) -> PcieBytes:
        """Bytes that the GPU sent and received over PCIe, headers included, since the first call.

        They are exact if the driver counts them (fields 197 and 198) and at most 4 GB pass between two calls, because
        the counters wrap (68 ms at full rate). Otherwise they are ``coarse``: a thread samples rates, which is good for
        lasting traffic. Raises Skip if the driver has neither.
        """
        fields = self.query.ask("nvmlDeviceGetFieldValues", [Field.PCIE_COUNT_TX_BYTES, Field.PCIE_COUNT_RX_BYTES])
        values = [field_value(entry) for entry in fields.value or ()]
        known = [value for value in values if value is not None]
        if len(known) == 2:
            before = self._counted or [(now, 0) for now in known]
            self._counted = [
                (now, total + (now - last) % COUNTER_MODULUS) for now, (last, total) in zip(known, before, strict=True)
            ]
            (_, sent), (_, received) = self._counted
            return PcieBytes(sent, received, coarse=False)
        if self._counted:
            raise Skip("NVML's PCIe counters stopped answering")
        totals = self._sampled.read()
        if totals is None:
            raise Skip(f"no PCIe counters: {self.query.ask('nvmlDeviceGetPcieThroughput', PCIE_SENT).reason}")
        return totals

    def energy_j(self) -> float:
        """Joules since the driver was loaded. Raises Skip without a counter, and if the counter is of the whole board.

        The counter moves about every 100 ms (nvmlDeviceGetTotalEnergyConsumption, from Volta on).
        """
        if self._mig().flag():
            raise Skip("no energy counter: the board's counter includes other MIG instances")
        answer = self.query.ask("nvmlDeviceGetTotalEnergyConsumption")
        energy_j = answer.scaled(MILLIJOULE)
        if energy_j is None:
            raise Skip(f"no energy counter: {answer.why_none}")
        return energy_j

    def _mig(self) -> Answer:
        """MIG mode; off if the GPU does not have it."""
        answer = self.query.ask("nvmlDeviceGetMigMode")
        return Answer(0) if answer.unsupported else answer

    def _confidential(self) -> Answer:
        """The machine's confidential-computing feature; off if it does not have it."""
        answer = self.query.ask_system("nvmlSystemGetConfComputeState")
        return Answer(0) if answer.unsupported else answer.member("ccFeature")

    def _memory_errors(self) -> MemoryErrors | None:
        """The board's memory errors, because a MIG instance does not know its DRAM's; None where the driver refuses."""
        ask = self.query.ask_board
        counts = {
            f"{kind}_{since}": ask("nvmlDeviceGetTotalEccErrors", error_type, counter).value
            for since, counter in (("volatile", VOLATILE), ("aggregate", AGGREGATE))
            for kind, error_type in (("corrected", CORRECTED), ("uncorrected", UNCORRECTED))
        }
        corrected, uncorrected, pending, failed = ask("nvmlDeviceGetRemappedRows").value or (None,) * 4
        pages = [ask("nvmlDeviceGetRetiredPages", cause).value for cause in RETIREMENT_CAUSES]
        found = MemoryErrors(
            **counts,
            rows_remapped_corrected=corrected,
            rows_remapped_uncorrected=uncorrected,
            remap_pending=Answer(pending).flag(),
            remap_failed=Answer(failed).flag(),
            pages_retired=None if None in pages else sum(map(len, pages)),
            retirement_pending=ask("nvmlDeviceGetRetiredPagesPendingStatus").flag(),
        )
        return None if found == MemoryErrors() else found

    def _link(self, link: LinkInfo) -> LinkInfo:
        ask = self.query.ask_board
        links = nvlinks(self.query)
        pcie = {
            "generation_now": ask("nvmlDeviceGetCurrPcieLinkGeneration").value,
            "generation_max": ask("nvmlDeviceGetMaxPcieLinkGeneration").value,
            "lanes_now": ask("nvmlDeviceGetCurrPcieLinkWidth").value,
            "lanes_max": ask("nvmlDeviceGetMaxPcieLinkWidth").value,
        }
        joined = {
            "nvlinks": links.up,
            "nvlink_bytes_per_s": nvlink_bytes_per_s(self.query, links).value,
            "coherent": coherent(self.query).value,
        }
        # For PCIe, NVML's 0 means unknown; 0 NVLinks is an answer.
        fields = {name: value for name, value in pcie.items() if value} | joined
        return msgspec.structs.replace(link, **{name: fields[name] for name in fields if getattr(link, name) is None})

    def _pcie_rates(self) -> tuple[float, float] | None:
        """Bytes a second (sent, received), each averaged over 20 ms; None if NVML does not answer."""
        sent = self.query.ask("nvmlDeviceGetPcieThroughput", PCIE_SENT).scaled(KILOBYTE)
        received = self.query.ask("nvmlDeviceGetPcieThroughput", PCIE_RECEIVED).scaled(KILOBYTE)
        return None if sent is None or received is None else (sent, received)


def boards_in_mig_mode(library: Any = None) -> int | None:
    """How many boards have MIG mode on, even if CUDA shows none of their instances; None if NVML cannot say."""
    nvml = load() if library is None else library
    if nvml is None or call(nvml, "nvmlInit").reason is not None:
        return None
    count = call(nvml, "nvmlDeviceGetCount").value or 0
    handles = [call(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(count)]
    modes = [call(nvml, "nvmlDeviceGetMigMode", handle.value).flag() for handle in handles if handle.value is not None]
    call(nvml, "nvmlShutdown")
    return sum(mode is True for mode in modes)


# Processes that use a GPU. Other processes distort every figure.

# The link /proc/self/ns/pid in the first PID namespace (PROC_PID_INIT_INO in linux/proc_ns.h); a container has another.
FIRST_PID_NAMESPACE = "pid:[4026531836]"
# Kinds of work, and the functions that list their processes, newest first.
LISTS = (
    ("", ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")),
    ("MPS client, ", ("nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses_v2")),
    ("graphics, ", ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v2")),
)


class Holder(NamedTuple):
    """A process with work on a GPU: its name, its pid and kind of work as text, and its GPU memory if NVML knows."""

    name: str
    pid: str
    used_bytes: int | None


class Holders(NamedTuple):
    """The processes that hold memory of a GPU: this one (None if NVML lists it by an unknown pid) and all others."""

    own: Holder | None
    others: tuple[Holder, ...]


def other_processes(
    query: Query, own_pids: Collection[int] = (), context_open: bool = True, machine: Machine | None = None
) -> Answer:
    """Processes with work on this GPU other than this one and ``own_pids``, as a tuple of "name (pid 123)".

    In a container with its own process ids NVML lists the host's ids, so the id of this process is unknown. With
    ``context_open`` (this process has a context) one listed id that does not exist here is assumed to be this process.
    """
    tree = machine or Machine()
    answer = _listed(query, tree)
    if answer.value is None:
        return answer
    ours = _ours(answer.value, {os.getpid(), *own_pids}, context_open, tree)
    others = (holder for pid, holder in sorted(answer.value.items()) if pid not in ours)
    return Answer(tuple(f"{holder.name} ({holder.pid})" for holder in others))


def memory_holders(query: Query, machine: Machine | None = None) -> Answer:
    """The Holders of a GPU that this process has a context on.

    The answer is None if NVML lists no process at all: it must be hiding them, because this process has a context.
    """
    tree = machine or Machine()
    answer = _listed(query, tree)
    if answer.value is None:
        return answer
    if not answer.value:
        return Answer(None, "NVML lists no process here, not even this one")
    ours = _ours(answer.value, {os.getpid()}, True, tree)
    holders = dict(sorted(answer.value.items()))
    # If several listed pids do not exist here, one of them is this process, but it is unknown which.
    sure = os.getpid() in ours or sum(not tree.exists(f"/proc/{pid}") for pid in holders) == 1
    own = next((holder for pid, holder in holders.items() if pid in ours), None) if sure else None
    return Answer(Holders(own, tuple(holder for pid, holder in holders.items() if pid not in ours)))


def _listed(query: Query, machine: Machine) -> Answer:
    """The Holder of each process that NVML lists, by pid. A process with several kinds of work counts for the first."""
    listed: dict[int, Holder] = {}
    for kind, names in LISTS:
        answer = query.ask_first(names)
        if not kind and answer.value is None:
            return answer
        for process in answer.value or ():
            pid = int(process.pid)
            if pid not in listed:
                path = query.ask_system("nvmlSystemGetProcessName", pid).value
                name = Path(path).name if path else machine.read(f"/proc/{pid}/comm").text
                used_bytes = getattr(process, "usedGpuMemory", None)
                listed[pid] = Holder(name or "a process not visible from here", f"{kind}pid {pid}", used_bytes)
    return Answer(listed)


def _ours(listed: Collection[int], own_pids: Collection[int], context_open: bool, machine: Machine) -> set[int]:
    ours = set(listed) & set(own_pids)
    if ours or not context_open:
        return ours
    unseen = [pid for pid in sorted(listed) if not machine.exists(f"/proc/{pid}")]
    return set(unseen[:1]) if contained(machine) else ours


def contained(machine: Machine) -> bool:
    """Whether this is a container with its own process ids. There NVML lists the host's ids."""
    try:
        return os.readlink(machine.at("/proc/self/ns/pid")) != FIRST_PID_NAMESPACE
    except OSError:
        return False


NOBODY = "nobody else"


def holders(nvml: NvmlGpu) -> Fact:
    """For example "python (pid 12) 1.20 GiB, Xorg (graphics, pid 3)", or "nobody else"."""
    answer = memory_holders(nvml.query)
    if answer.value is None:
        return answer.fact("memory_holders")
    return Fact("memory_holders", ", ".join(map(_words, answer.value.others)) or NOBODY, "NVML")


def held_by(nvml: NvmlGpu) -> str:
    """The holders as part of a sentence, or why they are unknown."""
    fact = holders(nvml)
    return f"others not known ({fact.reason})" if fact.value is None else str(fact.value)


def _words(holder: Holder) -> str:
    used = "" if holder.used_bytes is None else f" {about_size(holder.used_bytes)}"
    return f"{holder.name} ({holder.pid}){used}"
