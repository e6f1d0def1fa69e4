"""Which CPU a thread runs on: the worker, its watcher and its helpers each get a physical core of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from microbench.host.topology import CorePlan, physical_core_plan

Result = TypeVar("Result")


def on_cores(work: Callable[[], Result], cores: Collection[int]) -> Future[Result]:
    """Start ``work`` in a thread pinned to ``cores`` (where they may be used); its result or error is the future's."""
    executor = ThreadPoolExecutor(1, initializer=pin, initargs=(cores,))
    future = executor.submit(work)
    executor.shutdown(wait=False)
    return future


def pin(cores: Collection[int]) -> None:
    """Pin the calling thread; does nothing where none of the cores may be used."""
    try:
        os.sched_setaffinity(0, cores)
    except (OSError, ValueError):
        return


def allowed_cores() -> frozenset[int]:
    """Every CPU that this process could be given, also after it was pinned to one.

    Asked in a thread of its own, which asks for all CPUs: the kernel grants those of the cpuset.
    """
    every = range(os.cpu_count() or 1)
    return frozenset(on_cores(lambda: os.sched_getaffinity(0), every).result())


def core_plan(near_node: int | None = None) -> CorePlan:
    """The plan for this machine: where worker, watcher and parent go."""
    return physical_core_plan(Path("/"), allowed_cores(), near_node)
