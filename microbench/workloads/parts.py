"""The parts of a workload's file: each table becomes a part, or an error that names it, its key and what is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, cast

from microbench.errors import UsageError
from microbench.text import plain
from microbench.workload import MOST_KERNELS, MOST_STREAMS, Copies, HostMemory, HostWork, Kernels, Part, Wait
from microbench.workloads import fields

Table = Mapping[str, object]
# What makes a part what it is, and what else may stand in it. A kernels part has a host time of its own too.
KINDS: Mapping[str, tuple[str, ...]] = {
    "kernels": ("duration", "bytes", "arguments", "host", "layer", "stream"),
    "copy": ("size", "count", "memory", "stream"),
    "sync": (),
    "repeat": ("parts",),
    "host": (),
}
WHAT_A_PART_IS = 'each part is one of: kernels = N, copy = "h2d" or "d2h", sync = true, host = "200us", repeat = N'
# A kernel's parameters are 8 bytes or less each in at most 32 764 bytes. Source: CUDA C++ Programming Guide, 12.1.
MOST_ARGUMENTS = 4095
MOST_PARTS = 10_000
EXAMPLES = {
    "duration": 'duration = "6us" or bytes = "12 MB"',
    "size": 'size = "16 KiB"',
    "parts": 'parts = [{kernels = 3, duration = "2us"}, …]',
}


def parts(tables: object, where: str) -> tuple[Part, ...]:
    """The parts in order, repeated ones one after another. ``where`` is the file's name. Raises UsageError."""
    found = tuple(_each(tables, where, "part"))
    if not found:
        raise UsageError(f"{where} describes no part", WHAT_A_PART_IS)
    return found


def _each(tables: object, where: str, word: str) -> Iterator[Part]:
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise UsageError(f"{where}: {word} is no list of tables", f"write [[{word}]] above each; {WHAT_A_PART_IS}")
    for index, table in enumerate(tables, start=1):
        yield from _one(cast(Table, table), f"{where}, part {index}")


def _one(table: Table, where: str) -> Iterator[Part]:
    kind = _kind(table, where)
    unknown = [key for key in table if key not in (kind, *KINDS[kind])]
    if unknown:
        allowed = ", ".join((kind, *KINDS[kind]))
        raise UsageError(f"{where}: there is no key {plain(unknown[0], 40)} in a {kind} part", f"it may have {allowed}")
    match kind:
        case "kernels":
            yield _kernels(table, where)
        case "copy":
            yield _copies(table, where)
        case "sync":
            if table["sync"] is not True:
                raise UsageError(
                    f"{where}, sync: {fields.shown(table['sync'])} is not true", "sync = true, or leave it out"
                )
            yield Wait()
        case "repeat":
            yield from _repeated(table, where)
        case _:
            yield HostWork(fields.seconds(table["host"], f"{where}, host"))


def _kind(table: Table, where: str) -> str:
    """What the part is. ``host`` beside ``kernels`` is theirs."""
    found = [kind for kind in KINDS if kind in table]
    if found == ["kernels", "host"]:
        return "kernels"
    if len(found) != 1:
        cause = f"is both {' and '.join(found)}" if found else "does not say what it is"
        raise UsageError(f"{where} {cause}", WHAT_A_PART_IS)
    return found[0]


def _kernels(table: Table, where: str) -> Kernels:
    if "duration" not in table and "bytes" not in table:
        raise UsageError(f"{where}: nothing says how long its kernels take", EXAMPLES["duration"])
    layer = table.get("layer")
    return Kernels(
        count=fields.whole(table["kernels"], f"{where}, kernels", 1, MOST_KERNELS),
        durations_s=_durations(table.get("duration", 0), f"{where}, duration"),
        bytes=float(fields.size_bytes(table.get("bytes", 0), f"{where}, bytes")),
        arguments=fields.whole(table.get("arguments", 0), f"{where}, arguments", 0, MOST_ARGUMENTS),
        host_s=fields.seconds(table.get("host", 0), f"{where}, host"),
        layer=None if layer is None else fields.layer_named(layer, f"{where}, layer"),
        stream=_stream(table, where) if "stream" in table else None,
    )


def _durations(value: object, where: str) -> tuple[float, ...]:
    """One, or a list that the kernels use in turn."""
    several = value if isinstance(value, list) else [value]
    if not several:
        raise UsageError(f"{where}: the list is empty", 'give "6us", or ["3us", "9us"] to be used in turn')
    return tuple(fields.seconds(one, where) for one in several)


def _copies(table: Table, where: str) -> Copies:
    if "size" not in table:
        raise UsageError(f"{where}: nothing says how much it copies", EXAMPLES["size"])
    direction = fields.one_of(table["copy"], f"{where}, copy", ("h2d", "d2h"))
    memory = fields.one_of(table.get("memory", "pinned"), f"{where}, memory", ("pinned", "pageable"))
    return Copies(
        direction=cast(Literal["h2d", "d2h"], direction),
        size_bytes=fields.size_bytes(table["size"], f"{where}, size", least=1),
        count=fields.whole(table.get("count", 1), f"{where}, count", 1, MOST_KERNELS),
        memory=cast(HostMemory, memory),
        stream=_stream(table, where) if "stream" in table else None,
    )


def _stream(table: Table, where: str) -> int:
    """Which stream, counted from 0; whether the workload has so many is for the whole to say."""
    return fields.whole(table["stream"], f"{where}, stream", 0, MOST_STREAMS - 1)


def _repeated(table: Table, where: str) -> list[Part]:
    if "parts" not in table:
        raise UsageError(f"{where}: nothing says what is repeated", EXAMPLES["parts"])
    count = fields.whole(table["repeat"], f"{where}, repeat", 1, MOST_PARTS)
    inner = table["parts"]
    if isinstance(inner, list) and any(isinstance(one, dict) and "repeat" in one for one in inner):
        raise UsageError(f"{where}: a repeat stands inside a repeat", "write out one of the two")
    found = list(_each(inner, where, "parts"))
    if len(found) * count > MOST_PARTS:
        raise UsageError(f"{where}: {count} times {len(found)} parts are too many", f"at most {MOST_PARTS} in all")
    return found * count
