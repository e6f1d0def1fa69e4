"""What a command line asks to be different: each value as typed, checked and in SI units."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from microbench.errors import UsageError
from microbench.explain.changes import Changes
from microbench.limits import TRANSFERS_PER_S
from microbench.units import typed_factor, typed_rate
from microbench.workloads import fields

Value = TypeVar("Value")
LANES = (1, 2, 4, 8, 12, 16, 32)


class TypedChanges(msgspec.Struct, frozen=True):
    """What was typed of each option, None where it was left out."""

    submit: str | None = None
    to_layer: str | None = None
    gap: str | None = None
    graph_gap: str | None = None
    replay: str | None = None
    memory: str | None = None
    pcie_gen: int | None = None
    lanes: int | None = None
    kernel_time: str | None = None
    host_time: str | None = None


def changes(typed: TypedChanges) -> Changes:
    """The changes that were typed. Raises UsageError."""
    return Changes(
        submit_s=_read(typed.submit, "--submit", fields.seconds),
        gap_s=_read(typed.gap, "--gap", fields.seconds),
        graph_gap_s=_read(typed.graph_gap, "--graph-gap", fields.seconds),
        replay_s=_read(typed.replay, "--replay", fields.seconds),
        memory_rate=_read(typed.memory, "--memory", _placed(typed_rate)),
        pcie_generation=_read(typed.pcie_gen, "--pcie-gen", _generation),
        lanes=_read(typed.lanes, "--lanes", _lanes),
        kernel_time=_read(typed.kernel_time, "--kernel-time", _placed(typed_factor)),
        host_time=_read(typed.host_time, "--host-time", _placed(typed_factor)),
        layer=_read(typed.to_layer, "--to-layer", fields.layer_named),
    )


def _read(value: str | int | None, where: str, read: Callable[[object, str], Value]) -> Value | None:
    return None if value is None else read(value, where)


def _placed(read: Callable[[str], float]) -> Callable[[object, str], float]:
    """``read`` with the option's name before its error."""
    return lambda value, where: fields.typed(read, str(value), where)


def _generation(value: object, where: str) -> int:
    return fields.whole(value, where, min(TRANSFERS_PER_S), max(TRANSFERS_PER_S))


def _lanes(value: object, where: str) -> int:
    if value not in LANES:
        raise UsageError(f"{where}: there is no link of {value} lanes", f"choose one of {', '.join(map(str, LANES))}")
    return int(str(value))
