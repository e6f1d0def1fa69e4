"""What differs between the machines of two runs: boards, driver, packages, and every fact that is not of the moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from microbench.model import Environment, Fact, GpuInfo, Run

# These are another thing every time they are asked for, or follow from what is asked.
OF_THE_MOMENT = frozenset(
    {
        "load_average_1min", "swap_used_bytes", "submit_core", "submit_core_siblings", "watcher_core", "parent_cores",
        "cpu_affinity_count", "NVIDIA_VISIBLE_DEVICES",
    }
)  # fmt: skip
GPU_FIELDS = (
    "memory_bytes", "sm_clock_max_hz", "memory_clock_max_hz", "power_limit_w", "ecc", "mig", "persistence",
    "confidential_computing", "numa_node", "link.generation_max", "link.lanes_max", "link.lanes_now",
    "link.max_payload_bytes", "link.nvlinks", "other_processes",
)  # fmt: skip


class Difference(msgspec.Struct, frozen=True):
    """Something that both runs know and that is not the same: its name, and its values as facts."""

    name: str
    base: Fact
    new: Fact


def differences(base: Run, new: Run, gpus: Sequence[tuple[GpuInfo, GpuInfo]]) -> tuple[Difference, ...]:
    """What the newest sessions of two runs tell differently of their machines; what one of them does not know is left
    out. ``gpus`` are the boards held against each other, BASE's first."""
    if not base.sessions or not new.sessions:
        return ()
    before, after = base.sessions[-1], new.sessions[-1]
    told: list[tuple[str, Any, Any]] = [
        *((f"GPU {one.index}", one.uuid, other.uuid) for one, other in gpus),
        *_versions(before.environment, after.environment),
        ("microbench", before.tool_version, after.tool_version),
        ("commit", before.commit, after.commit),
        *_boards(gpus),
    ]
    simple = [
        Difference(name, Fact(name, _scalar(one)), Fact(name, _scalar(other)))
        for name, one, other in told
        if one is not None and other is not None and one != other
    ]
    return (*simple, *_facts(before.environment.facts, after.environment.facts))


def _versions(base: Environment, new: Environment) -> Iterator[tuple[str, Any, Any]]:
    yield "driver", base.driver_version, new.driver_version
    yield "CUDA", base.cuda_driver_version, new.cuda_driver_version
    yield "toolkit", base.cuda_toolkit_version, new.cuda_toolkit_version
    for package in sorted(base.packages.keys() & new.packages.keys()):
        yield package, base.packages[package], new.packages[package]


def _boards(gpus: Sequence[tuple[GpuInfo, GpuInfo]]) -> Iterator[tuple[str, Any, Any]]:
    for one, other in gpus:
        for field in GPU_FIELDS:
            place = f"GPU {one.index} {field}" if len(gpus) > 1 else f"GPU {field}"
            yield place, _field(one, field), _field(other, field)


def _field(gpu: GpuInfo, path: str) -> Any:
    value: Any = gpu
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _facts(base: Iterable[Fact], new: Iterable[Fact]) -> Iterator[Difference]:
    known = {fact.name: fact for fact in base if fact.value is not None and fact.name not in OF_THE_MOMENT}
    for fact in new:
        other = known.get(fact.name)
        if other is not None and fact.value is not None and fact.value != other.value:
            yield Difference(fact.name, other, fact)


def _scalar(value: Any) -> Any:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else value
