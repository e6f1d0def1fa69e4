"""Which CPU a thread runs on: the worker, its watcher and its helpers each get a physical core of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from microbench.core.model import Fact
from microbench.host.files import Machine, as_cpu_list, cpu_list, fact, known, labelled, stated

# Which core does what: physical cores, SMT siblings and NUMA nodes, and the plan for pinning to them.


CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"


class Core(NamedTuple):
    """One physical core: the CPUs (hardware threads) on it that may be used, and its NUMA node."""

    cpus: tuple[int, ...]
    node: int | None


class CorePlan(NamedTuple):
    """CPUs for the three busy threads: the submitting worker, the parent process, the thread that watches flags."""

    worker_core: int
    parent_cores: tuple[int, ...]
    watcher_core: int


def online_cpus(machine: Machine) -> tuple[int, ...]:
    """CPUs that are on; empty when unknown."""
    return _cpus_in(machine, f"{CPUS}/online")


def allowed_cpus(machine: Machine) -> tuple[int, ...]:
    """CPUs that this process may run on; all that are on when /proc does not say."""
    text = labelled(machine.read("/proc/self/status").text, "Cpus_allowed_list")
    try:
        listed = cpu_list(text or "")
    except ValueError:
        listed = ()
    return listed or online_cpus(machine)


def siblings(machine: Machine, cpu: int) -> tuple[int, ...]:
    """All CPUs on the physical core of ``cpu``, itself included; itself alone when the kernel does not say."""
    topology = f"{CPUS}/cpu{cpu}/topology"
    newer = _cpus_in(machine, f"{topology}/core_cpus_list")
    return newer or _cpus_in(machine, f"{topology}/thread_siblings_list") or (cpu,)


def nodes(machine: Machine) -> dict[int, tuple[int, ...]]:
    """CPUs of each NUMA node that has any; empty when the kernel does not say."""
    found = {}
    for name in machine.names(NODES):
        number = name.removeprefix("node")
        cpus = _cpus_in(machine, f"{NODES}/{name}/cpulist") if number != name and number.isdigit() else ()
        if cpus:
            found[int(number)] = cpus
    return dict(sorted(found.items()))


def physical_cores(machine: Machine, allowed: Iterable[int]) -> tuple[Core, ...]:
    """The physical cores of ``allowed``, by their lowest CPU, each with its allowed CPUs only."""
    node_of = {cpu: node for node, cpus in nodes(machine).items() for cpu in cpus}
    left = set(allowed)
    cores = []
    while left:
        first = min(left)
        cpus = tuple(sorted(left.intersection(siblings(machine, first)) | {first}))
        left.difference_update(cpus)
        cores.append(Core(cpus, node_of.get(first)))
    return tuple(cores)


def physical_core_plan(root: Path, allowed: Collection[int], near_node: int | None = None) -> CorePlan:
    """Where to pin the worker, the watcher and the parent.

    The worker goes on ``near_node`` (the GPU's) and off core 0, where interrupts and housekeeping gather; the watcher
    on another physical core of the same node; the parent on all that is left, never on a sibling of the other two
    while there is another core. With one or two cores they share, the worker last of all. Raises ValueError if
    ``allowed`` is empty.
    """
    cores = list(physical_cores(Machine(root), allowed))
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
    return CorePlan(worker_core, parent_cores, watcher_core)


def topology_facts(machine: Machine, allowed: Collection[int], plan: CorePlan | None) -> tuple[Fact, ...]:
    """Facts about cores: how many there are, how many may be used, and what shares a core with what."""
    silent = "the kernel does not say"
    affinity = "/proc/self/status Cpus_allowed_list"
    found = (
        stated("cpu_count", len(online_cpus(machine)) or None, f"{CPUS}/online", silent),
        stated("cpu_affinity_count", len(allowed) or None, affinity, silent),
        stated("physical_core_count", len(physical_cores(machine, allowed)) or None, f"{CPUS}/cpu*/topology", silent),
        fact("smt_active", machine.read(f"{CPUS}/smt/active"), lambda text: bool(int(text))),
        stated("numa_nodes", len(nodes(machine)) or None, NODES, silent),
    )
    return (*found, *(_plan_facts(machine, plan) if plan else ()))


def _plan_facts(machine: Machine, plan: CorePlan) -> tuple[Fact, ...]:
    worker = plan.worker_core
    shared = [cpu for cpu in siblings(machine, worker) if cpu != worker]
    node = next((node for node, cpus in nodes(machine).items() if worker in cpus), None)
    source = "the pinning plan"
    return (
        known("submit_core", worker, source),
        known("submit_core_siblings", as_cpu_list(shared) or "none", f"{CPUS}/cpu{worker}/topology"),
        known("watcher_core", plan.watcher_core, source),
        known("parent_cores", as_cpu_list(plan.parent_cores), source),
        stated("submit_core_numa_node", node, NODES, "the kernel does not say"),
    )


def _cpus_in(machine: Machine, path: str) -> tuple[int, ...]:
    """The CPU list in a file; empty when it is unreadable or not one."""
    try:
        return cpu_list(machine.read(path).text or "")
    except ValueError:
        return ()


Result = TypeVar("Result")


class Cores(NamedTuple):
    """What a process may use and who goes where: found out before it pins itself.

    ``helpers`` is one CPU of each physical core, the worker's first, the watcher's second, then those of the near node.
    """

    plan: CorePlan
    allowed: frozenset[int]
    helpers: tuple[int, ...]

    @property
    def watcher_alone(self) -> bool:
        """True if the watcher has a CPU that is not the worker's."""
        return self.plan.watcher_core != self.plan.worker_core


def find_cores(near_node: int | None = None, root: Path = Path("/"), allowed: Collection[int] | None = None) -> Cores:
    """The cores of ``allowed``: by default those that this thread may use now, so the user's own pinning holds."""
    usable = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    plan = physical_core_plan(root, usable, near_node)
    found = physical_cores(Machine(root), usable)
    near = sorted(found, key=lambda core: (near_node is not None and core.node != near_node, core.cpus[0]))
    first = (plan.worker_core, *((plan.watcher_core,) if len(found) > 1 else ()))
    rest = tuple(core.cpus[0] for core in near if not set(first).intersection(core.cpus))
    return Cores(plan, usable, (*first, *rest))


def cpus_near(node: int | None, allowed: Collection[int]) -> frozenset[int]:
    """Those of ``allowed`` on a NUMA node; all of them where there is no such node or none of its CPUs is allowed."""
    there = frozenset(nodes(Machine(Path("/"))).get(-1 if node is None else node, ()))
    return there.intersection(allowed) or frozenset(allowed)


def pin(cores: Collection[int]) -> None:
    """Pin the calling thread; does nothing where none of the cores may be used."""
    try:
        os.sched_setaffinity(0, cores)
    except (OSError, ValueError):
        return


@contextmanager
def pinned(cores: Collection[int]) -> Iterator[None]:
    """Pin the calling thread for a while. Threads that are started meanwhile inherit it and keep it."""
    before = os.sched_getaffinity(0)
    pin(cores)
    try:
        yield
    finally:
        pin(before)


def on_cores(work: Callable[[], Result], cores: Collection[int]) -> Future[Result]:
    """Start ``work`` in a thread pinned to ``cores`` (where they may be used); its result or error is the future's."""
    executor = ThreadPoolExecutor(1, initializer=pin, initargs=(cores,))
    future = executor.submit(work)
    executor.shutdown(wait=False)
    return future
