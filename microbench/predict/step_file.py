"""Steps of work described in a file, by a shipped example's name or by options: ``read`` and ``described``."""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeVar, cast

import msgspec

from microbench.analysis.graph_steps import TITLES
from microbench.core.errors import UsageError
from microbench.core.model import TRANSFERS_PER_S
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import plain, short_size, typed_factor, typed_rate, typed_size, typed_time
from microbench.predict.whatif import Changes
from microbench.predict.workload import (
    MOST_BYTES,
    MOST_KERNELS,
    MOST_STREAMS,
    Copies,
    HostMemory,
    HostWork,
    Kernels,
    Part,
    Wait,
    Workload,
)

# One value of a workload as somebody wrote it: checked, and in SI units; its error says where and what would be right.
#
# Each takes ``where``, the place for the error: "decode.toml, part 3, size" or "--copy-in".


LONGEST_SHOWN = 40
# What people call a layer, and what stands for it.
ALIASES = {
    "c": "loop", "c++": "loop", "cpp": "loop", "compiled": "loop", "torch": "torch_eager", "pytorch": "torch_eager",
    "numba": "numba_configured", "cupy": "cupy_raw", "jax": "jax_jit", "cuda.core": "cuda_core",
    "cuda.bindings": "cuda_bindings",
}  # fmt: skip


def whole(value: object, where: str, least: int, most: int) -> int:
    """A whole number from ``least`` to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool):
        written = f'"{shown(value)}"' if isinstance(value, str) else shown(value)
        raise UsageError(f"{where}: {written} is no whole number", f"give one from {least} to {most}")
    if not least <= value <= most:
        cause = "too small" if value < least else "too large"
        raise UsageError(f"{where}: {shown(value)} is {cause}", f"give a whole number from {least} to {most}")
    return value


def number(value: object, where: str, most: float) -> float:
    """A number above 0, up to ``most``."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
        raise UsageError(f"{where}: {shown(value)} is no number above 0", "give one, such as 1 or 0.5")
    if value > most:
        raise UsageError(f"{where}: {shown(value)} is too large", f"give a number of at most {most:g}")
    return float(value)


def seconds(value: object, where: str) -> float:
    """A time with its unit, or 0."""
    text = value if isinstance(value, str) else "0" if value == 0 and not isinstance(value, bool) else None
    if text is None:
        raise UsageError(f"{where}: {shown(value)} is no time", 'give a number and its unit: "6us", "0.2ms", or 0')
    return typed(typed_time, text, where)


def size_bytes(value: object, where: str, least: int = 0) -> int:
    """A size with its unit, or a whole number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        found = value
    elif isinstance(value, str):
        found = round(typed(typed_size, value, where))
    else:
        raise UsageError(f"{where}: {shown(value)} is no size", 'give a number and its unit: "16 KiB", "12 MB"')
    if not least <= found <= MOST_BYTES:
        sizes = f"from {least} B to {short_size(MOST_BYTES)}"
        raise UsageError(f"{where}: {shown(value)} is too {'small' if found < least else 'large'}", f"give {sizes}")
    return found


def words(value: object, where: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise UsageError(f"{where}: {shown(value)} is no text", 'give a text in quotes, such as "token"')
    return value


def one_of(value: object, where: str, allowed: Iterable[str]) -> str:
    """One of a few words."""
    choices = list(allowed)
    if not isinstance(value, str) or value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        listed = ", ".join(choices)
        step = f"did you mean {near[0]}? there are {listed}" if near else f"choose one of {listed}"
        raise UsageError(f"{where}: there is no {shown(value)}", step)
    return value


def layer_named(value: object, where: str) -> str:
    """A layer by its own name or by what people call it: "torch" is torch_eager, "c" the compiled loop."""
    text = words(value, where).strip().lower()
    if text in TITLES:
        return text
    if text in ALIASES:
        return ALIASES[text]
    near = difflib.get_close_matches(text, [*TITLES, *ALIASES], n=1)
    listed = ", ".join(TITLES)
    step = f"did you mean {near[0]}? there are {listed}" if near else f"choose one of {listed}"
    raise UsageError(f"{where}: there is no layer {shown(value)}", step)


def typed(read: Callable[[str], float], text: str, where: str) -> float:
    """What ``read`` makes of it, with the place before its error."""
    try:
        return read(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error.cause}", error.next_step) from None


def shown(value: object) -> str:
    """A value as its file has it."""
    text = "true" if value is True else "false" if value is False else value
    return plain(text, LONGEST_SHOWN)


# What a command line asks to be different: each value as typed, checked and in SI units.


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
        submit_s=_read(typed.submit, "--submit", seconds),
        gap_s=_read(typed.gap, "--gap", seconds),
        graph_gap_s=_read(typed.graph_gap, "--graph-gap", seconds),
        replay_s=_read(typed.replay, "--replay", seconds),
        memory_rate=_read(typed.memory, "--memory", _placed(typed_rate)),
        pcie_generation=_read(typed.pcie_gen, "--pcie-gen", _generation),
        lanes=_read(typed.lanes, "--lanes", _lanes),
        kernel_time=_read(typed.kernel_time, "--kernel-time", _placed(typed_factor)),
        host_time=_read(typed.host_time, "--host-time", _placed(typed_factor)),
        layer=_read(typed.to_layer, "--to-layer", layer_named),
    )


def _read(value: str | int | None, where: str, read: Callable[[object, str], Value]) -> Value | None:
    return None if value is None else read(value, where)


def _placed(read: Callable[[str], float]) -> Callable[[object, str], float]:
    """``read`` with the option's name before its error."""
    return lambda value, where: typed(read, str(value), where)


def _generation(value: object, where: str) -> int:
    return whole(value, where, min(TRANSFERS_PER_S), max(TRANSFERS_PER_S))


def _lanes(value: object, where: str) -> int:
    if value not in LANES:
        raise UsageError(f"{where}: there is no link of {value} lanes", f"choose one of {', '.join(map(str, LANES))}")
    return int(str(value))


# The parts of a workload's file: each table becomes a part, or an error that names it, its key and what is right.


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
                raise UsageError(f"{where}, sync: {shown(table['sync'])} is not true", "sync = true, or leave it out")
            yield Wait()
        case "repeat":
            yield from _repeated(table, where)
        case _:
            yield HostWork(seconds(table["host"], f"{where}, host"))


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
        count=whole(table["kernels"], f"{where}, kernels", 1, MOST_KERNELS),
        durations_s=_durations(table.get("duration", 0), f"{where}, duration"),
        bytes=float(size_bytes(table.get("bytes", 0), f"{where}, bytes")),
        arguments=whole(table.get("arguments", 0), f"{where}, arguments", 0, MOST_ARGUMENTS),
        host_s=seconds(table.get("host", 0), f"{where}, host"),
        layer=None if layer is None else layer_named(layer, f"{where}, layer"),
        stream=_stream(table, where) if "stream" in table else None,
    )


def _durations(value: object, where: str) -> tuple[float, ...]:
    """One, or a list that the kernels use in turn."""
    several = value if isinstance(value, list) else [value]
    if not several:
        raise UsageError(f"{where}: the list is empty", 'give "6us", or ["3us", "9us"] to be used in turn')
    return tuple(seconds(one, where) for one in several)


def _copies(table: Table, where: str) -> Copies:
    if "size" not in table:
        raise UsageError(f"{where}: nothing says how much it copies", EXAMPLES["size"])
    direction = one_of(table["copy"], f"{where}, copy", ("h2d", "d2h"))
    memory = one_of(table.get("memory", "pinned"), f"{where}, memory", ("pinned", "pageable"))
    return Copies(
        direction=cast(Literal["h2d", "d2h"], direction),
        size_bytes=size_bytes(table["size"], f"{where}, size", least=1),
        count=whole(table.get("count", 1), f"{where}, count", 1, MOST_KERNELS),
        memory=cast(HostMemory, memory),
        stream=_stream(table, where) if "stream" in table else None,
    )


def _stream(table: Table, where: str) -> int:
    """Which stream, counted from 0; whether the workload has so many is for the whole to say."""
    return whole(table["stream"], f"{where}, stream", 0, MOST_STREAMS - 1)


def _repeated(table: Table, where: str) -> list[Part]:
    if "parts" not in table:
        raise UsageError(f"{where}: nothing says what is repeated", EXAMPLES["parts"])
    count = whole(table["repeat"], f"{where}, repeat", 1, MOST_PARTS)
    inner = table["parts"]
    if isinstance(inner, list) and any(isinstance(one, dict) and "repeat" in one for one in inner):
        raise UsageError(f"{where}: a repeat stands inside a repeat", "write out one of the two")
    found = list(_each(inner, where, "parts"))
    if len(found) * count > MOST_PARTS:
        raise UsageError(f"{where}: {count} times {len(found)} parts are too many", f"at most {MOST_PARTS} in all")
    return found * count


# A workload's TOML file: its own keys, then its parts.


KEYS = ("title", "about", "layer", "streams", "replays", "unit", "per_step", "part")
MOST_REPLAYS = 10**9
# What a column of a table holds.
MOST_PER_STEP, LONGEST_UNIT = 10**9, 24
AN_EXAMPLE = "see the examples: microbench predict --help names them"


def parsed(text: str, name: str) -> Workload:
    """The workload that a TOML text describes; ``name`` is the file's, for errors. Raises UsageError."""
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{name} is no TOML: {plain(error)}", AN_EXAMPLE) from None
    unknown = [key for key in table if key not in KEYS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], KEYS, n=1)
        step = f"did you mean {near[0]}?" if near else f"it may have {', '.join(KEYS)}"
        raise UsageError(f"{name}: there is no key {plain(unknown[0], 40)}", step)
    return checked(
        Workload(
            parts=parts(table.get("part", []), name),
            layer=layer_named(table.get("layer", LOOP_LAYER), f"{name}, layer"),
            streams=whole(table.get("streams", 1), f"{name}, streams", 1, MOST_STREAMS),
            replays=whole(table.get("replays", 1000), f"{name}, replays", 1, MOST_REPLAYS),
            title=words(table.get("title", name), f"{name}, title"),
            about=words(table.get("about", ""), f"{name}, about"),
            unit=_unit(table.get("unit", "step"), f"{name}, unit"),
            per_step=number(table.get("per_step", 1), f"{name}, per_step", MOST_PER_STEP),
        ),
        name,
    )


def _unit(value: object, where: str) -> str:
    """What a step makes, in a word: it stands in a table."""
    text = words(value, where).strip()
    if not 0 < len(text) <= LONGEST_UNIT:
        cause = f"{where}: {shown(value)} is too long" if text else f"{where}: it is empty"
        raise UsageError(cause, f'give a word of at most {LONGEST_UNIT} characters, such as "token"')
    return text


def checked(workload: Workload, name: str) -> Workload:
    """The workload, if it is of a size that a step can have. Raises UsageError."""
    if workload.kernels == 0:
        raise UsageError(f"{name} launches no kernel", "give it at least one part with kernels = 1")
    streams = [part.stream for part in workload.parts if isinstance(part, Kernels | Copies) and part.stream is not None]
    if max(streams, default=0) >= workload.streams:
        raise UsageError(
            f"{name}: a part goes to stream {max(streams)}, and the step has {workload.streams}",
            f"give it streams = {max(streams) + 1}; they are counted from 0",
        )
    submitted = sum(part.count for part in workload.parts if isinstance(part, Kernels | Copies))
    if submitted > MOST_KERNELS:
        raise UsageError(
            f"{name}: {submitted} kernels and copies are no single step", f"describe one with at most {MOST_KERNELS}"
        )
    return workload


# Which file a workload's name means: one of the user's, or an example that comes with the package.


ENDING = ".toml"
LARGEST_BYTES = 1 << 20


def examples() -> dict[str, Path]:
    """The workloads that come with the package, by name."""
    folder = Path(__file__).parent / "examples"
    return {path.stem: path for path in sorted(folder.glob(f"*{ENDING}"))}


def read(name: str | Path) -> Workload:
    """The workload in that file, or the example of that name. Raises UsageError."""
    path = _found(str(name))
    shown = plain(path.name)
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)  # a device or a pipe has no size to ask for, and may have no end
        if len(data) > LARGEST_BYTES:
            raise UsageError(f"{shown} is too large to describe a step", AN_EXAMPLE)
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{shown} is not UTF-8", AN_EXAMPLE) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{shown} cannot be read: {plain(reason)}", "check the path") from None
    return parsed(text, path.name)


def _found(name: str) -> Path:
    shipped = examples()
    if name in shipped:
        return shipped[name]
    if name.endswith(ENDING) or os.sep in name:
        return Path(name)
    near = difflib.get_close_matches(name, shipped, n=1)
    listed = f"the examples are {', '.join(shipped)}; a file of your own ends in {ENDING}"
    step = f"did you mean {near[0]}? {listed}" if near else listed
    raise UsageError(f"there is no workload {plain(name, 40)}", step)


# A workload from a command line: a name with what is changed of it, or kernels of one length with copies and waits.


class Options(msgspec.Struct, frozen=True):
    """What was typed of each option, None where it was left out."""

    kernels: int | None = None
    duration: str | None = None
    layer: str | None = None
    arguments: int | None = None
    syncs_per_step: int | None = None
    copy_in: str | None = None
    copy_out: str | None = None
    streams: int | None = None
    replays: int | None = None


# What a named workload can be given besides.
OVER_A_NAME = ("layer", "streams", "replays")
ONE_WAIT = 1


def described(name: str | None, options: Options) -> Workload:
    """The named workload with its layer, streams and replays as given, or the one that the options describe.

    Raises UsageError.
    """
    if name is None:
        return _uniform(options)
    given = [one for one in options.__struct_fields__ if getattr(options, one) is not None and one not in OVER_A_NAME]
    if given:
        raise UsageError(
            f"a named workload says itself what --{given[0].replace('_', '-')} is",
            "give either a workload or options for its kernels; --layer, --streams and --replays go with both",
        )
    return msgspec.structs.replace(read(name), **_common(options))


def _common(options: Options) -> dict[str, object]:
    """Who launches, on how many streams, how often."""
    found: dict[str, object] = {}
    if options.layer is not None:
        found["layer"] = layer_named(options.layer, "--layer")
    if options.streams is not None:
        found["streams"] = whole(options.streams, "--streams", 1, MOST_STREAMS)
    if options.replays is not None:
        found["replays"] = whole(options.replays, "--replays", 1, MOST_REPLAYS)
    return found


def _uniform(options: Options) -> Workload:
    """Copy in, kernels in as many runs as there are waits, copy out before the last wait."""
    if options.kernels is None or options.duration is None:
        causes = {(True, False): "nothing says how many kernels", (False, True): "nothing says how long a kernel runs"}
        raise UsageError(
            causes.get((options.kernels is None, options.duration is None), "nothing says what the step does"),
            f"give --kernels and --duration, a .toml file, or one of {', '.join(examples())}",
        )
    count = whole(options.kernels, "--kernels", 1, MOST_KERNELS)
    waits = ONE_WAIT if options.syncs_per_step is None else options.syncs_per_step
    whole(waits, "--syncs-per-step", 0, min(count, MOST_PARTS))
    kernels = Kernels(
        count,
        (seconds(options.duration, "--duration"),),
        arguments=whole(options.arguments or 0, "--arguments", 0, MOST_ARGUMENTS),
    )
    parts: list[Part] = []
    for run in _runs(count, max(waits, 1)):
        parts += [msgspec.structs.replace(kernels, count=run), Wait()]
    last = parts.pop()
    if options.copy_in is not None:
        parts.insert(0, Copies("h2d", size_bytes(options.copy_in, "--copy-in", least=1)))
    if options.copy_out is not None:
        parts.append(Copies("d2h", size_bytes(options.copy_out, "--copy-out", least=1)))
    if waits:
        parts.append(last)
    workload = Workload(parts=tuple(parts), layer=LOOP_LAYER)
    return checked(msgspec.structs.replace(workload, **_common(options)), "the step")


def _runs(count: int, waits: int) -> list[int]:
    """``count`` kernels as evenly as it goes."""
    each, more = divmod(count, waits)
    return [each + 1] * more + [each] * (waits - more)


__all__ = ["Options", "TypedChanges", "changes", "described", "examples", "read"]
