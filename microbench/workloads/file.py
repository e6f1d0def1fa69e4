"""A workload's TOML file: its own keys, then its parts."""

from __future__ import annotations

import difflib
import tomllib

from microbench.errors import UsageError
from microbench.ops import LOOP_LAYER
from microbench.text import plain
from microbench.workload import MOST_KERNELS, MOST_STREAMS, Copies, Kernels, Workload
from microbench.workloads import fields
from microbench.workloads.parts import parts

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
            layer=fields.layer_named(table.get("layer", LOOP_LAYER), f"{name}, layer"),
            streams=fields.whole(table.get("streams", 1), f"{name}, streams", 1, MOST_STREAMS),
            replays=fields.whole(table.get("replays", 1000), f"{name}, replays", 1, MOST_REPLAYS),
            title=fields.words(table.get("title", name), f"{name}, title"),
            about=fields.words(table.get("about", ""), f"{name}, about"),
            unit=_unit(table.get("unit", "step"), f"{name}, unit"),
            per_step=fields.number(table.get("per_step", 1), f"{name}, per_step", MOST_PER_STEP),
        ),
        name,
    )


def _unit(value: object, where: str) -> str:
    """What a step makes, in a word: it stands in a table."""
    text = fields.words(value, where).strip()
    if not 0 < len(text) <= LONGEST_UNIT:
        cause = f"{where}: {fields.shown(value)} is too long" if text else f"{where}: it is empty"
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
