"""Which CPU a thread runs on: the worker, its watcher and its helpers each get a physical core of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from microbench.host.files import Machine
from microbench.host.topology import CorePlan, nodes, physical_core_plan, physical_cores

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
