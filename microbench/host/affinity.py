"""Chooses and sets the CPUs of threads: the worker, its watcher and its helpers each get a physical core of their own.

A physical core is a group of SMT siblings; its NUMA node decides how far the GPU is. What took a thread off its core is
counted here, too.
"""

import os
import resource
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from microbench.core.errors import Skip
from microbench.core.model import Fact
from microbench.host.files import Machine, as_cpu_list, cpu_list, fact, known, labelled, stated

CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"
INTERRUPTS = "/proc/interrupts"

Result = TypeVar("Result")


class Core(NamedTuple):
    """One physical core: its CPUs (hardware threads) that may be used, and its NUMA node."""

    cpus: tuple[int, ...]
    node: int | None


class Cores(NamedTuple):
    """The CPUs that a process may use, found before it pins itself, and those of the three busy threads: the submitting
    worker, the parent process, the thread that watches flags.

    ``helpers`` is one CPU of each physical core: the worker's, the watcher's, then those of the near node first.
    """

    worker_core: int
    parent_cores: tuple[int, ...]
    watcher_core: int
    helpers: tuple[int, ...]
    allowed: frozenset[int]

    @property
    def watcher_alone(self) -> bool:
        return self.watcher_core != self.worker_core


def find_cores(near_node: int | None = None, root: Path = Path("/"), allowed: Collection[int] | None = None) -> Cores:
    """Where to pin the worker, the watcher and the parent.

    ``allowed`` are by default the CPUs of this thread's affinity, so that the user's pinning holds. The worker goes on
    ``near_node`` (the GPU's) and off core 0, which serves interrupts and housekeeping. The watcher goes on another
    physical core of the same node. The parent gets all other cores, and siblings of the two only if there is no other
    core. With one or two cores they share; the worker's is shared last. Raises ValueError if ``allowed`` is empty.
    """
    usable = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    cores = list(physical_cores(Machine(root), usable))
    if not cores:
        raise ValueError("no CPU is allowed")

    def preference(core: Core, node: int | None) -> tuple[bool, bool, int]:
        return (node is not None and core.node != node, 0 in core.cpus, core.cpus[0])

    worker = min(cores, key=lambda core: preference(core, near_node))
    others = [core for core in cores if core is not worker]
    watcher = min(others, key=lambda core: preference(core, worker.node), default=worker)
    rest = [core for core in others if core is not watcher]
    worker_core = worker.cpus[0]
    watcher_core = watcher.cpus[0] if watcher is not worker else worker.cpus[-1]
    spare = tuple(cpu for cpu in watcher.cpus if cpu not in (worker_core, watcher_core))
    parent_cores = tuple(cpu for core in rest for cpu in core.cpus) or spare or (watcher_core,)
    near = sorted(rest, key=lambda core: (near_node is not None and core.node != near_node, core.cpus[0]))
    helpers = (worker_core, *((watcher_core,) if others else ()), *(core.cpus[0] for core in near))
    return Cores(worker_core, parent_cores, watcher_core, helpers, usable)


def cpus_near(node: int | None, allowed: Collection[int]) -> frozenset[int]:
    """The CPUs of ``allowed`` on a NUMA node, or all of ``allowed`` if none is on it."""
    local = frozenset(nodes(Machine()).get(-1 if node is None else node, ()))
    return local.intersection(allowed) or frozenset(allowed)


def pin(cores: Collection[int]) -> None:
    """Pin the calling thread. Does nothing if none of the cores may be used."""
    try:
        os.sched_setaffinity(0, cores)
    except (OSError, ValueError):
        return


@contextmanager
def pinned(cores: Collection[int]) -> Iterator[None]:
    """Pin the calling thread for the block. Threads started inside inherit the pinning and keep it."""
    before = os.sched_getaffinity(0)
    pin(cores)
    try:
        yield
    finally:
        pin(before)


def on_cores(work: Callable[[], Result], cores: Collection[int]) -> Future[Result]:
    """Start ``work`` in a thread pinned to ``cores``; the future holds its result or error."""
    executor = ThreadPoolExecutor(1, initializer=pin, initargs=(cores,))
    future = executor.submit(work)
    executor.shutdown(wait=False)
    return future


def allowed_cpus(machine: Machine) -> tuple[int, ...]:
    """CPUs that this process may run on; all online CPUs if /proc does not say."""
    text = labelled(machine.read("/proc/self/status").text, "Cpus_allowed_list")
    try:
        listed = cpu_list(text or "")
    except ValueError:
        listed = ()
    return listed or _cpus_in(machine, f"{CPUS}/online")


def siblings(machine: Machine, cpu: int) -> tuple[int, ...]:
    """All CPUs on the physical core of ``cpu``, itself included; itself alone if the kernel does not say."""
    topology = f"{CPUS}/cpu{cpu}/topology"
    newer = _cpus_in(machine, f"{topology}/core_cpus_list")
    return newer or _cpus_in(machine, f"{topology}/thread_siblings_list") or (cpu,)


def nodes(machine: Machine) -> dict[int, tuple[int, ...]]:
    """CPUs of each NUMA node that has any; empty if the kernel does not say."""
    names = [name.removeprefix("node") for name in machine.names(NODES) if name.startswith("node")]
    numbers = sorted(int(name) for name in names if name.isdigit())
    return {number: cpus for number in numbers if (cpus := _cpus_in(machine, f"{NODES}/node{number}/cpulist"))}


def physical_cores(machine: Machine, allowed: Iterable[int]) -> tuple[Core, ...]:
    """The physical cores of ``allowed``, in the order of their lowest CPU, each with its allowed CPUs only."""
    node_of = {cpu: node for node, cpus in nodes(machine).items() for cpu in cpus}
    left = set(allowed)
    cores = []
    while left:
        first = min(left)
        cpus = tuple(sorted(left.intersection(siblings(machine, first)) | {first}))
        left.difference_update(cpus)
        cores.append(Core(cpus, node_of.get(first)))
    return tuple(cores)


def topology_facts(machine: Machine, allowed: Collection[int], plan: Cores | None) -> tuple[Fact, ...]:
    """Facts about cores: how many exist, how many may be used, and which CPUs share the submitting core."""
    silent = "the kernel does not say"
    by_node = nodes(machine)
    facts = (
        stated("cpu_count", len(_cpus_in(machine, f"{CPUS}/online")) or None, f"{CPUS}/online", silent),
        stated("cpu_affinity_count", len(allowed) or None, "/proc/self/status Cpus_allowed_list", silent),
        stated("physical_core_count", len(physical_cores(machine, allowed)) or None, f"{CPUS}/cpu*/topology", silent),
        fact("smt_active", machine.read(f"{CPUS}/smt/active"), lambda text: bool(int(text))),
        stated("numa_nodes", len(by_node) or None, NODES, silent),
    )
    if plan is None:
        return facts
    worker, source = plan.worker_core, "the pinning plan"
    shared = as_cpu_list(cpu for cpu in siblings(machine, worker) if cpu != worker)
    node = next((node for node, cpus in by_node.items() if worker in cpus), None)
    return (
        *facts,
        known("submit_core", worker, source),
        known("submit_core_siblings", shared or "none", f"{CPUS}/cpu{worker}/topology"),
        known("watcher_core", plan.watcher_core, source),
        known("parent_cores", as_cpu_list(plan.parent_cores), source),
        stated("submit_core_numa_node", node, NODES, silent),
    )


def _cpus_in(machine: Machine, path: str) -> tuple[int, ...]:
    """The CPU list in a file; empty if the file is unreadable or not a list."""
    try:
        return cpu_list(machine.read(path).text or "")
    except ValueError:
        return ()


class ThreadState(NamedTuple):
    """How often a thread has left its CPU so far: to wait, and because it was preempted.

    They are the voluntary and involuntary context switches of getrusage(2).
    """

    waits: int
    preemptions: int


def thread_state() -> ThreadState:
    """The state of the calling thread. Takes a few microseconds."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return ThreadState(used.ru_nvcsw, used.ru_nivcsw)


def core_interrupts(cpu: int, root: Path = Path("/")) -> int:
    """How many interrupts of any kind a CPU has served since the machine started.

    Reading them takes up to some milliseconds on large machines. Raises Skip, with the reason, if the kernel does not
    say.
    """
    reading = Machine(root).read(INTERRUPTS)
    header, *rows = (reading.text or "").splitlines() or [""]
    cpus = header.split()
    if f"CPU{cpu}" not in cpus:
        raise Skip(f"{INTERRUPTS}: {reading.reason or f'no column for CPU {cpu}'}")
    counts = [row.split()[1 : len(cpus) + 1] for row in rows]
    # Rows with one figure (ERR, MIS) count for all CPUs together.
    each = [row[cpus.index(f"CPU{cpu}")] for row in counts if len(row) == len(cpus) and all(map(str.isdigit, row))]
    return sum(map(int, each))
