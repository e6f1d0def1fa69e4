"""Reads the description of a step from a TOML file, a shipped example or options, and writes one; reads what-ifs."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from microbench.analysis.evidence import listed
from microbench.core import files
from microbench.core.errors import UsageError
from microbench.core.model import TRANSFERS_PER_S
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import plain, short_size, typed_factor, typed_rate, typed_size, typed_time
from microbench.model.options import ChangeOptions, StepOptions
from microbench.model.whatif import Changes
from microbench.model.workload import (
    MOST_BYTES,
    MOST_KERNELS,
    MOST_STREAMS,
    Copies,
    Event,
    HostMemory,
    HostWork,
    Kernels,
    Part,
    Wait,
    Workload,
)

#
# Each reader checks a value, returns it in SI units and raises UsageError. ``where`` is the place for the error:
# "decode.toml, part 3, size" or "--copy-in".

LONGEST_SHOWN = 40
# Times of a trace are at most a day.
LONGEST_TRACE_S = 86400.0
# Every name and alias of a layer (lower case), and the layer's name.
LayerNames = Mapping[str, str]


def whole(value: object, where: str, least: int, most: int) -> int:
    """A whole number from ``least`` to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool):
        written = f'"{shown(value)}"' if isinstance(value, str) else shown(value)
        raise UsageError(f"{where}: {written} is not a whole number", f"give one from {least} to {most}")
    if not least <= value <= most:
        cause = "too small" if value < least else "too large"
        raise UsageError(f"{where}: {shown(value)} is {cause}", f"give a whole number from {least} to {most}")
    return value


def number(value: object, where: str, most: float) -> float:
    """A number above 0, up to ``most``."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
        raise UsageError(f"{where}: {shown(value)} is not a number above 0", "give one, such as 1 or 0.5")
    if value > most:
        raise UsageError(f"{where}: {shown(value)} is too large", f"give a number of at most {most:g}")
    return float(value)


def seconds(value: object, where: str) -> float:
    """A time with its unit, or 0."""
    text = value if isinstance(value, str) else "0" if value == 0 and not isinstance(value, bool) else None
    if text is None:
        raise UsageError(f"{where}: {shown(value)} is not a time", 'give a number and its unit: "6us", "0.2ms", or 0')
    return typed(typed_time, text, where)


def size_bytes(value: object, where: str, least: int = 0) -> int:
    """A size with its unit, or a whole number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        count = value
    elif isinstance(value, str):
        count = round(typed(typed_size, value, where))
    else:
        raise UsageError(f"{where}: {shown(value)} is not a size", 'give a number and its unit: "16 KiB", "12 MB"')
    if not least <= count <= MOST_BYTES:
        cause = "too small" if count < least else "too large"
        raise UsageError(f"{where}: {shown(value)} is {cause}", f"give from {least} B to {short_size(MOST_BYTES)}")
    return count


def words(value: object, where: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise UsageError(f"{where}: {shown(value)} is not a text", 'give a text in quotes, such as "token"')
    return value


def one_of(value: object, where: str, allowed: Sequence[str]) -> str:
    """A word out of a few."""
    if not isinstance(value, str) or value not in allowed:
        raise UsageError(f"{where}: there is no {shown(value)}", _nearest(str(value), allowed, allowed))
    return value


def layer_named(value: object, where: str, layers: LayerNames) -> str:
    """A layer by its own name or by an alias: "torch" is torch_eager, "c" the compiled loop."""
    text = words(value, where).strip().lower()
    if text not in layers:
        step = _nearest(text, layers, dict.fromkeys(layers.values()))
        raise UsageError(f"{where}: there is no layer {shown(value)}", step)
    return layers[text]


def _nearest(text: str, known: Iterable[str], listed: Iterable[str]) -> str:
    """The next step of an error about an unknown word: the nearest known one, and what there is."""
    near = difflib.get_close_matches(text, list(known), n=1)
    return (f"did you mean {near[0]}? there are " if near else "choose one of ") + ", ".join(listed)


def typed(read: Callable[[str], float], text: str, where: str) -> float:
    """What ``read`` makes of a text; its error then begins with the place."""
    try:
        return read(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error.cause}", error.next_step) from None


def typed_seconds(option: str, text: str | None) -> float | None:
    """The time that an option was given, in s. Raises UsageError."""
    return typed(partial(typed_time, longest_s=LONGEST_TRACE_S), text, option) if text is not None else None


def typed_step(text: str | None) -> tuple[float | None, str]:
    """What --step says: the time of a step in s, or whose call or turn is one, "train.py:step" or "train.py:30".

    Raises UsageError.
    """
    if text is None or ":" not in text:
        return typed_seconds("--step", text), ""
    if not all(text.strip().rpartition(":")[::2]):
        raise UsageError(f"--step {plain(text, 60)} names no function", "--step train.py:step, or --step train.py:30")
    return None, text.strip()


def shown(value: object) -> str:
    """A value as its file writes it."""
    text = "true" if value is True else "false" if value is False else value
    return plain(text, LONGEST_SHOWN)


LANES = (1, 2, 4, 8, 12, 16, 32)


Reader = Callable[[Any, str], object]


def _lanes(value: int, where: str) -> int:
    if value not in LANES:
        raise UsageError(f"{where}: there is no link of {value} lanes", f"choose one of {', '.join(map(str, LANES))}")
    return value


# Of each change its option and how its value is read.
CHANGES: Mapping[str, tuple[str, Reader]] = {
    "submit_s": ("submit", seconds),
    "gap_s": ("gap", seconds),
    "graph_gap_s": ("graph_gap", seconds),
    "replay_s": ("replay", seconds),
    "memory_rate": ("memory", partial(typed, typed_rate)),
    "pcie_generation": ("pcie_gen", partial(whole, least=min(TRANSFERS_PER_S), most=max(TRANSFERS_PER_S))),
    "lanes": ("lanes", _lanes),
    "kernel_time": ("kernel_time", partial(typed, typed_factor)),
    "host_time": ("host_time", partial(typed, typed_factor)),
}


def changes(options: ChangeOptions, layers: LayerNames) -> Changes:
    """The changes that the options ask for. Raises UsageError for a text that cannot be read."""
    read: dict[str, Any] = {}
    for name, (option, reader) in CHANGES.items():
        value = getattr(options, option)
        read[name] = None if value is None else reader(value, _option(option))
    layer = options.to_layer
    return Changes(**read, layer=None if layer is None else layer_named(layer, "--to-layer", layers))


Table = Mapping[str, object]
# The key that says what kind of part a table is, and the other keys it may have.
KINDS: Mapping[str, tuple[str, ...]] = {
    "kernels": ("duration", "bytes", "arguments", "host", "layer", "stream", "blocks", "sm_share", "memset"),
    "copy": ("size", "count", "memory", "stream", "host"),
    "sync": (),
    "repeat": ("parts",),
    "host": (),
    "record_event": ("stream",),
    "wait_event": ("stream", "earlier"),
}
WHAT_A_PART_IS = (
    'each part is one of: kernels = N, copy = "h2d" or "d2h", sync = true, host = "200us", repeat = N, '
    "record_event = N, wait_event = N"
)
# A kernel's parameters are 8 bytes or less each in at most 32 764 bytes. Source: CUDA C++ Programming Guide, 12.1.
MOST_ARGUMENTS = 4095
# A grid's x dimension. Source: CUDA C++ Programming Guide, technical specifications.
MOST_BLOCKS = (1 << 31) - 1
MOST_PARTS = 10_000
EXAMPLES = {
    "duration": 'duration = "6us" or bytes = "12 MB"',
    "size": 'size = "16 KiB"',
    "parts": 'parts = [{kernels = 3, duration = "2us"}, …]',
}


def parts(tables: object, where: str, layers: LayerNames) -> tuple[Part, ...]:
    """The parts in order, repeated ones written out. ``where`` is the file's name. Raises UsageError."""
    read = tuple(_each(tables, where, "part", layers))
    if not read:
        raise UsageError(f"{where} describes no part", WHAT_A_PART_IS)
    return read


def _each(tables: object, where: str, word: str, layers: LayerNames) -> Iterator[Part]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{where}: {word} is not a list of tables", f"write [[{word}]] above each; {WHAT_A_PART_IS}")
    for index, table in enumerate(tables, start=1):
        yield from _part(cast(Table, table), f"{where}, part {index}", layers)


def _part(table: Table, where: str, layers: LayerNames) -> Iterator[Part]:
    kind = _kind(table, where)
    unknown = [key for key in table if key not in (kind, *KINDS[kind])]
    if unknown:
        allowed = ", ".join((kind, *KINDS[kind]))
        raise UsageError(f"{where}: there is no key {plain(unknown[0], 40)} in a {kind} part", f"it may have {allowed}")
    match kind:
        case "kernels":
            yield _kernels(table, where, layers)
        case "copy":
            yield _copies(table, where)
        case "sync":
            if table["sync"] is not True:
                raise UsageError(f"{where}, sync: {shown(table['sync'])} is not true", "sync = true, or leave it out")
            yield Wait()
        case "repeat":
            yield from _repeated(table, where, layers)
        case "host":
            yield HostWork(seconds(table["host"], f"{where}, host"))
        case _:
            if "stream" not in table:
                raise UsageError(f"{where}: nothing says which stream", f"{kind} = 1, stream = 0")
            number = whole(table[kind], f"{where}, {kind}", 0, MOST_KERNELS)
            earlier = _flag(table, "earlier", where, "wait_event = 1, stream = 0, earlier = true")
            yield Event(number, _stream(table, where), awaited=kind == "wait_event", earlier=earlier)


def _kind(table: Table, where: str) -> str:
    """What kind of part a table is. Kernels may have a host time, which by itself is a part of its own."""
    kinds = [kind for kind in KINDS if kind in table]
    if kinds in (["kernels", "host"], ["copy", "host"]):
        return kinds[0]
    if len(kinds) != 1:
        cause = f"is both {' and '.join(kinds)}" if kinds else "does not say what it is"
        raise UsageError(f"{where} {cause}", WHAT_A_PART_IS)
    return kinds[0]


def _flag(table: Table, key: str, where: str, example: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise UsageError(f"{where}, {key} is neither true nor false", example)
    return value


def _kernels(table: Table, where: str, layers: LayerNames) -> Kernels:
    if "duration" not in table and "bytes" not in table:
        raise UsageError(f"{where}: nothing says how long its kernels take", EXAMPLES["duration"])
    layer = table.get("layer")
    count = whole(table["kernels"], f"{where}, kernels", 1, MOST_KERNELS)
    return Kernels(
        count=count,
        durations_s=durations(table.get("duration", 0), f"{where}, duration")[:count],
        bytes=float(size_bytes(table.get("bytes", 0), f"{where}, bytes")),
        arguments=whole(table.get("arguments", 0), f"{where}, arguments", 0, MOST_ARGUMENTS),
        host_s=seconds(table["host"], f"{where}, host") if "host" in table else None,
        layer=None if layer is None else layer_named(layer, f"{where}, layer", layers),
        stream=_stream(table, where) if "stream" in table else None,
        blocks=whole(table["blocks"], f"{where}, blocks", 1, MOST_BLOCKS) if "blocks" in table else None,
        sm_share=number(table["sm_share"], f"{where}, sm_share", 1.0) if "sm_share" in table else None,
        memset=_flag(table, "memset", where, 'kernels = 1, duration = "0.8us", memset = true'),
    )


def durations(value: object, where: str) -> tuple[float, ...]:
    """A time, or a list of times that the kernels use in turn."""
    several = value if isinstance(value, list) else [value]
    if not several:
        raise UsageError(f"{where}: the list is empty", 'give "6us", or ["3us", "9us"] to be used in turn')
    return tuple(seconds(each, where) for each in several)


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
        host_s=seconds(table["host"], f"{where}, host") if "host" in table else 0.0,
    )


def _stream(table: Table, where: str) -> int:
    """Which stream, counted from 0; ``checked`` says later whether the workload has that many streams."""
    return whole(table["stream"], f"{where}, stream", 0, MOST_STREAMS - 1)


def _repeated(table: Table, where: str, layers: LayerNames) -> list[Part]:
    if "parts" not in table:
        raise UsageError(f"{where}: nothing says what is repeated", EXAMPLES["parts"])
    count = whole(table["repeat"], f"{where}, repeat", 1, MOST_PARTS)
    inner = table["parts"]
    if isinstance(inner, list) and any(isinstance(part, dict) and "repeat" in part for part in inner):
        raise UsageError(f"{where}: a repeat stands inside a repeat", "write out one of the two")
    read = list(_each(inner, where, "parts", layers))
    if len(read) * count > MOST_PARTS:
        raise UsageError(f"{where}: {count} times {len(read)} parts are too many", f"at most {MOST_PARTS} in all")
    return read * count


KEYS = ("title", "about", "layer", "streams", "replays", "unit", "per_step", "part")
MOST_REPLAYS = 10**9
# What fits a column of a table.
MOST_PER_STEP, LONGEST_UNIT = 10**9, 24
AN_EXAMPLE = "see the examples: microbench predict --help names them"
# The parser's time grows with the square of a dotted key's words, and Python refuses to write an endless whole number.
MOST_WORDS, MOST_DIGITS = 16, 200
TOO_MUCH = re.compile(
    rf"""(?:\.[ \t]*(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*){{{MOST_WORDS}}}|\d\w{{{MOST_DIGITS}}}"""
)


def parsed(text: str, name: str, layers: LayerNames) -> Workload:
    """The workload that a TOML text describes; ``name`` is the file's, for errors. Raises UsageError."""
    if TOO_MUCH.search(text):
        cause = f"{name} has a key of over {MOST_WORDS} words or a number of over {MOST_DIGITS} digits"
        raise UsageError(cause, AN_EXAMPLE)
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{name} is not TOML: {plain(error)}", AN_EXAMPLE) from None
    unknown = [key for key in table if key not in KEYS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], KEYS, n=1)
        step = f"did you mean {near[0]}?" if near else f"it may have {', '.join(KEYS)}"
        raise UsageError(f"{name}: there is no key {plain(unknown[0], 40)}", step)
    return checked(
        Workload(
            parts=parts(table.get("part", []), name, layers),
            layer=layer_named(table.get("layer", LOOP_LAYER), f"{name}, layer", layers),
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
    """What a step makes, in a word short enough for a table."""
    text = words(value, where).strip()
    if not 0 < len(text) <= LONGEST_UNIT:
        cause = f"{where}: {shown(value)} is too long" if text else f"{where}: it is empty"
        raise UsageError(cause, f'give a word of at most {LONGEST_UNIT} characters, such as "token"')
    return text


def checked(workload: Workload, name: str) -> Workload:
    """The workload, if a single step can be that large. Raises UsageError."""
    if workload.kernels == 0:
        raise UsageError(f"{name} launches no kernel", "give it at least one part with kernels = 1")
    placed = (part.stream for part in workload.parts if isinstance(part, Kernels | Copies | Event))
    streams = [stream for stream in placed if stream is not None]
    if max(streams, default=0) >= workload.streams:
        raise UsageError(
            f"{name}: a part goes to stream {max(streams)}, and the step has {workload.streams}",
            f"give it streams = {max(streams) + 1}; they are counted from 0",
        )
    submitted = sum(part.count for part in workload.parts if isinstance(part, Kernels | Copies))
    if submitted > MOST_KERNELS:
        raise UsageError(
            f"{name}: {submitted} kernels and copies are too many for one step",
            f"describe one with at most {MOST_KERNELS}",
        )
    return workload


ENDING = ".toml"
LARGEST_BYTES = 1 << 20


def examples() -> dict[str, Path]:
    """The workloads that come with the package, by name."""
    folder = Path(__file__).parent / "examples"
    return {path.stem: path for path in sorted(folder.glob(f"*{ENDING}"))}


def read(name: str | Path, layers: LayerNames) -> Workload:
    """The workload in that file, or the example of that name. Raises UsageError."""
    path = _path(str(name))
    file_name = plain(path.name)
    try:
        with files.open_regular(path) as file:
            data = file.read(LARGEST_BYTES + 1)
        if len(data) > LARGEST_BYTES:
            raise UsageError(f"{file_name} is too large to describe a step", AN_EXAMPLE)
        text = data.decode()
    except UnicodeDecodeError:
        next_step = "if it is a profiler's trace: microbench diagnose FILE --save step.toml"
        raise UsageError(f"{file_name} is not UTF-8, so it does not describe a step", next_step) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{file_name} cannot be read: {plain(reason)}", "check the path") from None
    return parsed(text, path.name, layers)


def _path(name: str) -> Path:
    shipped = examples()
    if name in shipped:
        return shipped[name]
    if name.endswith(ENDING) or os.sep in name:
        return Path(name)
    near = difflib.get_close_matches(name, shipped, n=1)
    listed = f"the examples are {', '.join(shipped)}; a file of your own ends in {ENDING}"
    step = f"did you mean {near[0]}? {listed}" if near else listed
    raise UsageError(f"there is no workload {plain(name, 40)}", step)


# Neighbouring kernels whose times differ by less become one part where a file would be too large.
ALIKE = 0.01
LONGEST_TITLE = 150


def written(workload: Workload) -> str:
    """The TOML text of a step, a line for each part; ``read`` reads it again.

    Neighbouring kernels that are alike share a line. Raises UsageError for a step that is too long or too large.
    """
    texts = (_written(workload, within) for within in (0.0, ALIKE))
    text = next((text for text in texts if len(text.encode()) <= LARGEST_BYTES), None)
    if text is None:
        cause = f"a step of {len(workload.parts)} parts does not fit into a file of {short_size(LARGEST_BYTES)}"
        raise UsageError(cause, "take a window of the trace with fewer kernels in a step")
    parsed(text, "the step", {workload.layer: workload.layer})
    return text


def _written(workload: Workload, within: float) -> str:
    """The text with kernels merged whose times differ by at most this share."""
    keys = {
        "title": plain(workload.title, LONGEST_TITLE), "about": plain(workload.about, LONGEST_TITLE),
        "layer": workload.layer, "streams": workload.streams, "replays": workload.replays, "unit": workload.unit,
        "per_step": workload.per_step,
    }  # fmt: skip
    lines = [f"{key} = {_value(value)}" for key, value in keys.items()]
    parts = (", ".join(f"{key} = {_value(value)}" for key, value in _keys(part)) for part in _merged(workload, within))
    return "\n".join([*lines, "part = [", *(f"    {{ {part} }}," for part in parts), "]", ""])


def _merged(workload: Workload, within: float) -> Iterator[Part]:
    """The parts, with runs of single kernels that are alike as one part of their mean times."""
    run: list[Kernels] = []
    for part in workload.parts:
        if run and not _alike(run[0], part, within):
            yield _mean(run)
            run = []
        if isinstance(part, Kernels) and part.count == len(part.durations_s) == 1:
            run.append(part)
        else:
            yield part
    if run:
        yield _mean(run)


def _alike(first: Kernels, part: Part, within: float) -> bool:
    if not isinstance(part, Kernels) or part.count != 1:
        return False
    times = ((first.durations_s[0], part.durations_s[0]), (first.host_s or 0.0, part.host_s or 0.0))
    same = msgspec.structs.replace(part, durations_s=first.durations_s, host_s=first.host_s) == first
    return same and all(abs(one - other) <= within * one for one, other in times)


def _mean(run: Sequence[Kernels]) -> Kernels:
    duration_s = sum(part.durations_s[0] for part in run) / len(run)
    host_s = None if run[0].host_s is None else sum(part.host_s or 0.0 for part in run) / len(run)
    return msgspec.structs.replace(run[0], count=len(run), durations_s=(duration_s,), host_s=host_s)


def _keys(part: Part) -> Iterator[tuple[str, object]]:
    """The keys of a part's table and their values; those that are not given are left out."""
    match part:
        case Kernels():
            durations = [_time(each) for each in part.durations_s]
            yield "kernels", part.count
            yield "duration", durations[0] if len(durations) == 1 else durations
            yield from (
                (key, value) for key, value in (("bytes", int(part.bytes)), ("arguments", part.arguments)) if value
            )
            if part.host_s is not None:
                yield "host", _time(part.host_s)
            yield from _given(part, "layer", "stream", "blocks", "sm_share")
            if part.memset:
                yield "memset", True
        case Copies():
            yield from (("copy", part.direction), ("size", part.size_bytes), ("count", part.count))
            yield "memory", part.memory
            if part.host_s:
                yield "host", _time(part.host_s)
            yield from _given(part, "stream")
        case Wait():
            yield "sync", True
        case HostWork():
            yield "host", _time(part.seconds)
        case Event():
            yield from (("wait_event" if part.awaited else "record_event", part.number), ("stream", part.stream))
            if part.earlier:
                yield "earlier", True


def _given(part: Part, *names: str) -> Iterator[tuple[str, object]]:
    return ((name, value) for name in names if (value := getattr(part, name)) is not None)


def _time(seconds_: float) -> str:
    """A time to the ps, as this file is read."""
    return f"{seconds_ * 1e6:.6f}".rstrip("0").rstrip(".") + "us"


def _value(value: object) -> str:
    """A value as TOML writes it, which is how JSON writes texts on one line, numbers, lists and true."""
    text = json.dumps(value, ensure_ascii=False)
    many = isinstance(value, str) and value.count(".") >= MOST_WORDS  # a text that TOO_MUCH takes for a long key
    return text.replace(".", "\\u002e") if many else text


# The options that also apply to a named workload.
OVER_A_NAME = ("layer", "streams", "replays", "host", "blocks", "sm_share")


def described(name: str | None, options: StepOptions, layers: LayerNames) -> Workload:
    """The named workload with its layer, streams, replays and what its kernels need as given, or the one that the
    options describe.

    Raises UsageError.
    """
    if name is None:
        return _of_kernels(_uniform(options, layers), options)
    for field, value in vars(options).items():
        if value is not None and field not in OVER_A_NAME:
            raise UsageError(
                f"a named workload has its own {_option(field)}",
                "give either a workload or options for its kernels; "
                f"{listed([_option(field) for field in OVER_A_NAME])} go with both",
            )
    return _of_kernels(msgspec.structs.replace(read(name, layers), **_common(options, layers)), options)


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _of_kernels(workload: Workload, options: StepOptions) -> Workload:
    """The workload with what was typed about each of its kernels: host time for each launch, blocks, share of SMs."""
    typed: dict[str, object] = {}
    if options.host is not None:
        typed["host_s"] = seconds(options.host, "--host")
    if options.blocks is not None:
        typed["blocks"] = whole(options.blocks, "--blocks", 1, MOST_BLOCKS)
    if options.sm_share is not None:
        typed["sm_share"] = number(options.sm_share, "--sm-share", 1.0)
    parts = tuple(
        msgspec.structs.replace(part, **typed) if isinstance(part, Kernels) else part for part in workload.parts
    )
    return msgspec.structs.replace(workload, parts=parts)


def _common(options: StepOptions, layers: LayerNames) -> dict[str, object]:
    """Who launches, on how many streams, how often; only what was typed."""
    read: dict[str, object] = {}
    if options.layer is not None:
        read["layer"] = layer_named(options.layer, "--layer", layers)
    if options.streams is not None:
        read["streams"] = whole(options.streams, "--streams", 1, MOST_STREAMS)
    if options.replays is not None:
        read["replays"] = whole(options.replays, "--replays", 1, MOST_REPLAYS)
    return read


def _uniform(options: StepOptions, layers: LayerNames) -> Workload:
    """Copy in, kernels parted evenly by the waits, copy out before the last wait."""
    if options.kernels is None or options.duration is None:
        causes = {(True, False): "nothing says how many kernels", (False, True): "nothing says how long a kernel runs"}
        raise UsageError(
            causes.get((options.kernels is None, options.duration is None), "nothing says what the step does"),
            f"give --kernels and --duration, a .toml file, or one of {', '.join(examples())}",
        )
    count = whole(options.kernels, "--kernels", 1, MOST_KERNELS)
    waits = 1 if options.syncs_per_step is None else options.syncs_per_step
    whole(waits, "--syncs-per-step", 0, min(count, MOST_PARTS))
    kernels = Kernels(
        count,
        (seconds(options.duration, "--duration"),),
        arguments=whole(options.arguments or 0, "--arguments", 0, MOST_ARGUMENTS),
    )
    parts: list[Part] = []
    each, more = divmod(count, max(waits, 1))
    for index in range(max(waits, 1)):
        parts += [msgspec.structs.replace(kernels, count=each + (index < more)), Wait()]
    last = parts.pop()
    if options.copy_in is not None:
        parts.insert(0, Copies("h2d", size_bytes(options.copy_in, "--copy-in", least=1)))
    if options.copy_out is not None:
        parts.append(Copies("d2h", size_bytes(options.copy_out, "--copy-out", least=1)))
    if waits:
        parts.append(last)
    workload = Workload(parts=tuple(parts), layer=LOOP_LAYER)
    return checked(msgspec.structs.replace(workload, **_common(options, layers)), "the step")
