"""Reads the description of a step from a TOML file, a shipped example or options, and writes one; reads what-ifs."""

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from microbench.analysis.evidence import listed
from microbench.core import files
from microbench.core.errors import UsageError, nearest
from microbench.core.model import TRANSFERS_PER_S
from microbench.core.units import plain, short_size, typed_factor, typed_rate, typed_size, typed_time
from microbench.model.whatif import Changes
from microbench.model.workload import (
    MOST_BYTES,
    MOST_KERNELS,
    MOST_STREAMS,
    ChangeOptions,
    Copies,
    Event,
    HostWork,
    Kernels,
    Part,
    StepOptions,
    Wait,
    Workload,
)

LONGEST_SHOWN = 40
# Times of a trace are at most a day.
LONGEST_TRACE_S = 86400.0
# Every name and alias of a layer (lower case), and the layer's name.
LayerNames = Mapping[str, str]

# Each reader checks a value, returns it in SI units and raises UsageError. ``where`` is the place for the error:
# "decode.toml, part 3, size" or "--copy-in".
Reader = Callable[[Any, str], object]


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


def durations(value: object, where: str) -> tuple[float, ...]:
    """A time, or a list of times that the kernels use in turn."""
    several = value if isinstance(value, list) else [value]
    if not several:
        raise UsageError(f"{where}: the list is empty", 'give "6us", or ["3us", "9us"] to be used in turn')
    return tuple(seconds(each, where) for each in several)


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


def unit(value: object, where: str) -> str:
    """What a step makes, in a word short enough for a table."""
    text = words(value, where).strip()
    if not 0 < len(text) <= LONGEST_UNIT:
        cause = f"{where}: {shown(value)} is too long" if text else f"{where}: it is empty"
        raise UsageError(cause, f'give a word of at most {LONGEST_UNIT} characters, such as "token"')
    return text


def flag(value: object, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise UsageError(f"{where} is neither true nor false", f"{where.rpartition(' ')[2]} = true, or leave it out")
    return value


def true(value: object, where: str) -> bool:
    """True."""
    if value is not True:
        raise UsageError(f"{where}: {shown(value)} is not true", f"{where.rpartition(' ')[2]} = true, or leave it out")
    return value


def one_of(value: object, where: str, allowed: Sequence[str]) -> str:
    """A word out of a few."""
    if not isinstance(value, str) or value not in allowed:
        raise UsageError(f"{where}: there is no {shown(value)}", _nearest(str(value), allowed, allowed))
    return value


def lanes(value: int, where: str) -> int:
    """The lanes of a PCIe link."""
    if value not in LANES:
        raise UsageError(f"{where}: there is no link of {value} lanes", f"choose one of {', '.join(map(str, LANES))}")
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
    near = nearest(text, known)
    return (f"{near} there are " if near else "choose one of ") + ", ".join(listed)


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
    """What --step says: the time of a step in s, or whose call or turn is one, "train.py:step" or "train.py:30", or the
    name of an annotation.

    Raises UsageError.
    """
    if text is not None and ":" not in text and text.strip()[:1].isalpha():
        return None, text.strip()
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
# A kernel's parameters are 8 bytes or less each in at most 32 764 bytes. Source: CUDA C++ Programming Guide, 12.1.
MOST_ARGUMENTS = 4095
# A grid's x dimension. Source: CUDA C++ Programming Guide, technical specifications.
MOST_BLOCKS = (1 << 31) - 1
MOST_PARTS = 10_000
MOST_REPLAYS = 10**9
# What fits a column of a table.
MOST_PER_STEP, LONGEST_UNIT = 10**9, 24

COUNT, STREAM = partial(whole, least=1, most=MOST_KERNELS), partial(whole, least=0, most=MOST_STREAMS - 1)
# What both files and options say of kernels and of a step; a layer is read by the names that the caller knows.
OF_KERNELS: Mapping[str, Reader] = {
    "arguments": partial(whole, least=0, most=MOST_ARGUMENTS), "host": seconds,
    "blocks": partial(whole, least=1, most=MOST_BLOCKS), "sm_share": partial(number, most=1.0),
}  # fmt: skip
OF_A_STEP: Mapping[str, Reader] = {
    "streams": partial(whole, least=1, most=MOST_STREAMS), "replays": partial(whole, least=1, most=MOST_REPLAYS),
}  # fmt: skip
# The keys of each kind of part, first the one that says which it is, and how the value of each is read.
KINDS: Mapping[str, Mapping[str, Reader]] = {
    "kernels": {
        "kernels": COUNT, "duration": durations, "bytes": size_bytes, **OF_KERNELS, "layer": words, "stream": STREAM,
        "memset": flag,
    },
    "copy": {
        "copy": partial(one_of, allowed=("h2d", "d2h")), "size": partial(size_bytes, least=1), "count": COUNT,
        "memory": partial(one_of, allowed=("pinned", "pageable")), "host": seconds, "stream": STREAM,
    },
    "sync": {"sync": true},
    "repeat": {"repeat": partial(whole, least=1, most=MOST_PARTS), "parts": lambda value, where: value},
    "host": {"host": seconds},
    "record_event": {"record_event": partial(whole, least=0, most=MOST_KERNELS), "stream": STREAM},
    "wait_event": {"wait_event": partial(whole, least=0, most=MOST_KERNELS), "stream": STREAM, "earlier": flag},
}  # fmt: skip
KEYS: Mapping[str, Reader] = {
    "title": words, "about": words, "layer": words, **OF_A_STEP, "unit": unit,
    "per_step": partial(number, most=MOST_PER_STEP), "part": lambda value, where: value,
}  # fmt: skip
OPTIONS: Mapping[str, Reader] = {
    "kernels": COUNT, "duration": durations, "layer": words, **OF_KERNELS, **OF_A_STEP,
    "syncs_per_step": partial(whole, least=0, most=MOST_PARTS), "copy_in": partial(size_bytes, least=1),
    "copy_out": partial(size_bytes, least=1),
}  # fmt: skip
# Of each option of a what-if the change that it makes, and how its value is read.
CHANGES: Mapping[str, tuple[str, Reader]] = {
    "submit": ("submit_s", seconds), "gap": ("gap_s", seconds), "graph_gap": ("graph_gap_s", seconds),
    "replay": ("replay_s", seconds), "memory": ("memory_rate", lambda text, where: typed(typed_rate, text, where)),
    "pcie_gen": ("pcie_generation", partial(whole, least=min(TRANSFERS_PER_S), most=max(TRANSFERS_PER_S))),
    "lanes": ("lanes", lanes), "kernel_time": ("kernel_time", lambda text, where: typed(typed_factor, text, where)),
    "host_time": ("host_time", lambda text, where: typed(typed_factor, text, where)), "to_layer": ("layer", words),
}  # fmt: skip
# What a part lacks without any of these keys, and an example.
NEEDED = {
    "kernels": (("duration", "bytes"), "how long its kernels take", 'duration = "6us" or bytes = "12 MB"'),
    "copy": (("size",), "how much it copies", 'size = "16 KiB"'),
    "repeat": (("parts",), "what is repeated", 'parts = [{kernels = 3, duration = "2us"}, …]'),
    "record_event": (("stream",), "which stream", "record_event = 1, stream = 0"),
    "wait_event": (("stream",), "which stream", "wait_event = 1, stream = 0"),
}
# What the fields of the parts are called where their keys have other names.
FIELDS = {
    "kernels": "count", "duration": "durations_s", "host": "host_s", "copy": "direction", "size": "size_bytes",
    "record_event": "number", "wait_event": "number", "part": "parts",
}  # fmt: skip
WHAT_A_PART_IS = (
    'each part is one of: kernels = N, copy = "h2d" or "d2h", sync = true, host = "200us", repeat = N, '
    "record_event = N, wait_event = N"
)
AN_EXAMPLE = "see the examples: microbench predict --help names them"


def _fields(given: Mapping[str, Any], readers: Mapping[str, Reader], where: str, layers: LayerNames) -> dict[str, Any]:
    """What was given, checked and in SI units, by the names of the fields. Keys without a value are left out."""
    readers = dict(readers) | dict.fromkeys(("layer", "to_layer"), partial(layer_named, layers=layers))
    places = {key: f"{where}, {key}" if where else _option(key) for key in given}
    read = ((key, readers[key](value, places[key])) for key, value in given.items() if value is not None)
    return {FIELDS.get(key, key): value for key, value in read}


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def changes(options: ChangeOptions, layers: LayerNames) -> Changes:
    """The changes that the options ask for. Raises UsageError for a text that cannot be read."""
    read = _fields(vars(options), {option: reader for option, (_, reader) in CHANGES.items()}, "", layers)
    return Changes(**{CHANGES[option][0]: value for option, value in read.items()})


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
        yield from _part(table, f"{where}, part {index}", layers)


def _part(table: Mapping[str, Any], where: str, layers: LayerNames) -> Iterator[Part]:
    kinds = [kind for kind in KINDS if kind in table]
    if kinds in (["kernels", "host"], ["copy", "host"]):  # a host time by itself is a part of its own
        kinds = kinds[:1]
    if len(kinds) != 1:
        cause = f"is both {' and '.join(kinds)}" if kinds else "does not say what it is"
        raise UsageError(f"{where} {cause}", WHAT_A_PART_IS)
    (kind,) = kinds
    unknown = [key for key in table if key not in KINDS[kind]]
    if unknown:
        allowed = ", ".join(KINDS[kind])
        raise UsageError(f"{where}: there is no key {plain(unknown[0], 40)} in a {kind} part", f"it may have {allowed}")
    keys, what, example = NEEDED.get(kind, ((), "", ""))
    if keys and not any(key in table for key in keys):
        raise UsageError(f"{where}: nothing says {what}", example)
    read = _fields(table, KINDS[kind], where, layers)
    match kind:
        case "kernels":
            lengths_s = read.pop("durations_s", (0.0,))[: read["count"]]
            yield Kernels(durations_s=lengths_s, **read | {"bytes": float(read.get("bytes", 0))})
        case "copy":
            yield Copies(**read)
        case "sync":
            yield Wait()
        case "repeat":
            yield from _repeated(read["parts"], read["repeat"], where, layers)
        case "host":
            yield HostWork(read["host_s"])
        case _:
            yield Event(**read, awaited=kind == "wait_event")


def _repeated(inner: object, count: int, where: str, layers: LayerNames) -> list[Part]:
    if isinstance(inner, list) and any(isinstance(part, dict) and "repeat" in part for part in inner):
        raise UsageError(f"{where}: a repeat stands inside a repeat", "write out one of the two")
    read = list(_each(inner, where, "parts", layers))
    if len(read) * count > MOST_PARTS:
        raise UsageError(f"{where}: {count} times {len(read)} parts are too many", f"at most {MOST_PARTS} in all")
    return read * count


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
        step = nearest(unknown[0], KEYS) or f"it may have {', '.join(KEYS)}"
        raise UsageError(f"{name}: there is no key {plain(unknown[0], 40)}", step)
    read = {"title": name} | _fields(table, KEYS, name, layers)
    return checked(Workload(**read | {"parts": parts(table.get("part", []), name, layers)}), name)


def checked(workload: Workload, name: str) -> Workload:
    """The workload, if a single step can be that large. Raises UsageError."""
    if workload.kernels == 0:
        raise UsageError(f"{name} launches no kernel", "give it at least one part with kernels = 1")
    placed = (part.stream for part in workload.parts if isinstance(part, Kernels | Copies | Event))
    streams = [stream for stream in placed if stream is not None]
    if max(streams, default=0) >= workload.streams:
        cause = f"{name}: a part goes to stream {max(streams)}, and the step has {workload.streams}"
        raise UsageError(cause, f"give it streams = {max(streams) + 1}; they are counted from 0")
    submitted = sum(part.count for part in workload.parts if isinstance(part, Kernels | Copies))
    if submitted > MOST_KERNELS:
        next_step = f"describe one with at most {MOST_KERNELS}"
        raise UsageError(f"{name}: {submitted} kernels and copies are too many for one step", next_step)
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
    step = f"the examples are {', '.join(shipped)}; a file of your own ends in {ENDING}"
    raise UsageError(f"there is no workload {plain(name, 40)}", f"{nearest(name, shipped)} {step}".lstrip())


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
        case Wait():
            yield "sync", True
        case HostWork():
            yield "host", _time(part.seconds)
        case _:
            kind = "kernels" if isinstance(part, Kernels) else "copy"
            if isinstance(part, Event):
                kind = "wait_event" if part.awaited else "record_event"
            defaults = dict(zip(reversed(part.__struct_fields__), reversed(part.__struct_defaults__), strict=False))
            for key in KINDS[kind]:
                value = getattr(part, field := FIELDS.get(key, key))
                if field not in defaults or value != defaults[field] or key in ALWAYS:
                    yield key, WRITTEN[key](value) if key in WRITTEN else value


def _time(seconds_: float) -> str:
    """A time to the ps, as this file is read."""
    return f"{seconds_ * 1e6:.6f}".rstrip("0").rstrip(".") + "us"


# What is written also where it is the default, and how values are written that are read from a text.
ALWAYS = ("duration", "count", "memory")
WRITTEN: Mapping[str, Callable[[Any], object]] = {
    "bytes": int, "host": _time,
    "duration": lambda lengths: _time(lengths[0]) if len(lengths) == 1 else [_time(each) for each in lengths],
}  # fmt: skip


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
    for field, value in vars(options).items():
        if name is not None and value is not None and field not in OVER_A_NAME:
            both = f"{listed([_option(each) for each in OVER_A_NAME])} go with both"
            cause = f"a named workload has its own {_option(field)}"
            raise UsageError(cause, f"give either a workload or options for its kernels; {both}")
    if name is None and (options.kernels is None or options.duration is None):
        causes = {(True, False): "nothing says how many kernels", (False, True): "nothing says how long a kernel runs"}
        cause = causes.get((options.kernels is None, options.duration is None), "nothing says what the step does")
        raise UsageError(cause, f"give --kernels and --duration, a .toml file, or one of {', '.join(examples())}")
    given = _fields(vars(options), OPTIONS, "", layers)
    of_step = {field: given.pop(field) for field in ("layer", *OF_A_STEP) if field in given}
    of_kernels = {field: given.pop(field) for field in ("host_s", "blocks", "sm_share") if field in given}
    workload = msgspec.structs.replace(Workload(_uniform(**given)) if name is None else read(name, layers), **of_step)
    if name is None:
        checked(workload, "the step")
    return workload.with_kernels(lambda part: msgspec.structs.replace(part, **of_kernels))


def _uniform(
    count: int, durations_s: tuple[float, ...], arguments: int = 0, syncs_per_step: int = 1, copy_in: int = 0,
    copy_out: int = 0,
) -> tuple[Part, ...]:  # fmt: skip
    """Copy in, kernels parted evenly by the waits, copy out before the last wait."""
    waits = whole(syncs_per_step, "--syncs-per-step", 0, min(count, MOST_PARTS))
    each, more = divmod(count, max(waits, 1))
    parts: list[Part] = [Copies("h2d", copy_in)] if copy_in else []
    for index in range(max(waits, 1)):
        parts += [Kernels(each + (index < more), durations_s, arguments=arguments), Wait()]
    parts[-1:] = [*([Copies("d2h", copy_out)] if copy_out else []), *([Wait()] if waits else [])]
    return tuple(parts)
