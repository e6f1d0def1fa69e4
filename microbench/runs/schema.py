"""Run <-> file. The only file that knows the format: schema_version, its history, and upgrades of older files.

A run file is one JSON document in one line: the run. While a run grows its outcomes follow, one JSON line each; the
last line may be cut short by a crash. The finished file is the growing one without such lines: one reader reads both.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from microbench.core.errors import MeasurementError, RunUnreadableError
from microbench.core.model import SAMPLES_KEPT, Measurement, Outcome, PerCall, Run

# History
#   1  the first: a run with sessions, benchmarks and outcomes; samples are arrays of numbers.
SCHEMA_VERSION = 1

Document = dict[str, Any]

# From version n to n + 1, as pure functions of the decoded document. Files are never rewritten.
UPGRADES: Mapping[int, Callable[[Document], Document]] = {}

LARGE_BYTES = 32 << 20
LARGEST_CARRYING_BYTES = 1 << 30  # beyond, rows might make a file longer than any that is read
MAKE_ANOTHER = "show another one (`microbench show`), or measure again"
# What an array of numbers is written with; msgspec writes NaN and infinities as null.
NUMBERS = b"0123456789+-.eE,[] \t\r\n"
# As msgspec writes it. Inside a text the quotes would be escaped.
OUTCOMES_BEGIN = b'"outcomes":['
DIGIT = re.compile(rb"[0-9]")
INSIDE_BRACKETS = NUMBERS.replace(b"[]", b"")
# Beyond these an int fits neither a float without surprises nor an array.
LEAST_INT, MOST_INT = -(1 << 63), (1 << 64) - 1


class _Version(msgspec.Struct):
    schema_version: int


class _Export(msgspec.Struct):
    """What ``export --format json`` writes: the run, and beside it what is derived from it."""

    run: msgspec.Raw


class _Lines(NamedTuple):
    """A run file taken apart: the run's own line, the outcomes' lines, and what stands after the last line end."""

    head: bytes
    outcomes: list[bytes]
    tail: bytes


def encode(run: Run, *, carrying: bool = True) -> bytes:
    """The run as a finished file, with a line end; a large one carries its rows (``carried``) unless it is to grow.

    Raises MeasurementError naming the place of a NaN or infinity.
    """
    data = _line(run, "run")
    if not carrying or not LARGE_BYTES <= len(data) <= LARGEST_CARRYING_BYTES:
        return data
    from microbench.runs import carried  # it takes NumPy, which a small run is read without

    return carried.with_rows(data, run)


def encode_outcome(outcome: Outcome) -> bytes:
    """One outcome as a line to append. Raises MeasurementError naming the place of a NaN or infinity."""
    return _line(outcome, outcome.case.id)


def _line(value: Run | Outcome, name: str) -> bytes:
    place = _bad_number(value, name)
    if place:
        raise MeasurementError(f"{place} is not a finite number")
    return msgspec.json.encode(value) + b"\n"


def decode(data: bytes, name: str = "the file") -> Run:
    """The run in a file, finished, growing or exported as JSON; older formats are upgraded. Samples stay undecoded.

    Raises RunUnreadableError (``name`` is the file's, for its text) for anything else: truncated, newer than this tool,
    or no run at all. A cut last line of a growing file is what a killed run leaves, and is left out.
    """
    try:
        return _checked(_decoded(data, name), name)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RunUnreadableError(f"{name} cannot be read as a run: {_why(error)}", MAKE_ANOTHER) from None


def decode_head(beginning: bytes) -> Run | None:
    """The run without its outcomes, from the beginning of its file; None if that is too little, or of another kind."""
    end = beginning.find(OUTCOMES_BEGIN)
    if end < 0:
        return None
    try:
        run = msgspec.json.decode(beginning[:end] + OUTCOMES_BEGIN + b"]}", type=Run)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    whole = run.schema_version == SCHEMA_VERSION and run.sessions and within_64_bits((run.sessions, run.benchmarks))
    return run if whole else None


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    return "it is cut short" if "truncated" in str(error) else str(error)


def _decoded(data: bytes, name: str) -> Run:
    lines = _split(data)
    try:  # as what it nearly always is: to ask for the version first would go through a large file twice
        run = msgspec.json.decode(lines.head, type=Run)
    except msgspec.DecodeError as error:
        return _of_another_kind(lines, name, error)
    if run.schema_version != SCHEMA_VERSION:
        return _of_another_kind(lines, name, None)
    appended = [_outcome(line, number) for number, line in enumerate(lines.outcomes, start=2)]
    return msgspec.structs.replace(run, outcomes=(*run.outcomes, *appended, *_last(lines.tail)))


def _of_another_kind(lines: _Lines, name: str, error: msgspec.DecodeError | None) -> Run:
    """The run of an older format, or of an export. Raises ``error`` where it is of this format after all."""
    with contextlib.suppress(msgspec.DecodeError):
        return _decoded(bytes(msgspec.json.decode(lines.head, type=_Export).run), name)
    version = msgspec.json.decode(lines.head, type=_Version).schema_version
    if version > SCHEMA_VERSION:
        raise RunUnreadableError(
            f"{name} has format {version}, newer than this microbench knows ({SCHEMA_VERSION})",
            "update microbench: pip install --upgrade cuda-microbench",
        )
    if version == SCHEMA_VERSION and error is not None:
        raise error
    return msgspec.json.decode(msgspec.json.encode(upgraded(_joined(lines), name)), type=Run)


def _split(data: bytes) -> _Lines:
    end = data.find(b"\n")
    if end < 0 or end == len(data) - 1 or data[max(end - 2, 0) : end].rstrip()[-1:] != b"}":
        return _Lines(data, [], b"")  # finished; or laid out by hand over many lines. Not copied: it may be large
    *outcomes, tail = data[end + 1 :].split(b"\n")
    return _Lines(data[:end], [line for line in outcomes if line.strip()], tail)


def _joined(lines: _Lines) -> Document:
    document = msgspec.json.decode(lines.head, type=Document)
    outcomes = msgspec.convert(document.get("outcomes", []), list[Document])
    document["outcomes"] = [*outcomes, *(msgspec.json.decode(line, type=Document) for line in lines.outcomes)]
    return document


def _outcome(line: bytes, number: int) -> Outcome:
    try:
        return msgspec.json.decode(line, type=Outcome)
    except msgspec.DecodeError as error:
        raise msgspec.DecodeError(f"line {number}: {_why(error)}") from None


def _last(tail: bytes) -> tuple[Outcome, ...]:
    try:
        return (msgspec.json.decode(tail, type=Outcome),)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()  # the process died while it wrote this line


def upgraded(document: Document, name: str) -> Document:
    """The document of an older format as SCHEMA_VERSION has it. Raises RunUnreadableError for one never written."""
    while (version := document["schema_version"]) != SCHEMA_VERSION:
        if version not in UPGRADES:
            raise RunUnreadableError(f"{name} has format {version}, which no microbench ever wrote", MAKE_ANOTHER)
        document = {**UPGRADES[version](document), "schema_version": version + 1}
    return document


def _checked(run: Run, name: str) -> Run:
    """The run, if what its types cannot say holds too: every whole number within 64 bits, samples there."""
    if not within_64_bits((run.sessions, run.benchmarks, *run.outcomes)):
        place = _bad_number(run, "run")
        raise RunUnreadableError(f"{name} holds a number out of range: {place}", MAKE_ANOTHER)
    if not run.sessions:
        raise RunUnreadableError(f"{name} has no session", MAKE_ANOTHER)
    for index, outcome in enumerate(run.outcomes):
        if wrong := wrong_outcome(outcome, len(run.sessions), _wrong_measurement):
            raise RunUnreadableError(f"{name} contradicts itself: outcome {index} {wrong}", MAKE_ANOTHER)
    return run


def wrong_outcome(
    outcome: Outcome, sessions: int, wrong_measurement: Callable[[Measurement], str | None]
) -> str | None:
    """What contradicts itself in an outcome of a run of so many ``sessions``; None if nothing does."""
    if wrong := misplaced(outcome, sessions):
        return wrong
    for one in outcome.measurements:
        if wrong := wrong_measurement(one):
            return wrong
    return None


def misplaced(outcome: Outcome, sessions: int) -> str | None:
    """Why an outcome belongs nowhere in a run of so many ``sessions``."""
    if not 0 <= outcome.session < sessions:
        return f"belongs to session {outcome.session} of {sessions}"
    return f"has round {outcome.round}" if outcome.round < 0 else None


def within_64_bits(parts: Iterable[object]) -> bool:
    """Whether msgpack, which knows no longer ones, can write every number: a large run is looked through at once.

    JSON has no numbers that are not finite, so those of a decoded run are.
    """
    encoder, buffer = msgspec.msgpack.Encoder(), bytearray()
    try:
        for part in parts:
            encoder.encode_into(part, buffer)
    except OverflowError:
        return False
    return True


def _wrong_measurement(measurement: Measurement) -> str | None:
    samples = bytes(measurement.samples)
    if samples.translate(None, INSIDE_BRACKETS) != b"[]":
        return f"has samples of {measurement.metric} that are no array of numbers"
    return wrong_numbers(measurement, sampled=DIGIT.search(samples) is not None)


def wrong_numbers(measurement: Measurement, *, sampled: bool) -> str | None:
    """What contradicts itself in a measurement besides its samples, of which there are some if it is ``sampled``."""
    work = measurement.work
    counts = measurement.n, work.bytes, work.flops, work.launches, work.operations
    if measurement.calls_per_sample < 1 or min(counts) < 0:
        return f"has an impossible count in {measurement.metric}"
    if measurement.n > 0 and not sampled:
        return f"has no samples of {measurement.metric}"
    per_call = measurement.per_call
    if per_call is not None and (per_call.n < 1 or per_call.ratio <= 1 or per_call.first_edge <= 0 or _empty(per_call)):
        return f"has an impossible histogram of {measurement.metric}"
    return None


def _empty(per_call: PerCall) -> bool:
    return not per_call.counts or min(per_call.counts) < 0


def _bad_number(value: object, place: str) -> str | None:
    """Where in ``value`` a number is that is not finite, or an int beyond 64 bits; None if nowhere."""
    if isinstance(value, float):
        return None if math.isfinite(value) else place
    if isinstance(value, int):
        return None if LEAST_INT <= value <= MOST_INT else place
    if isinstance(value, msgspec.Raw):
        return place if bytes(value).translate(None, NUMBERS) else None
    if isinstance(value, msgspec.Struct):
        parts = ((getattr(value, name), f"{place}.{name}") for name in value.__struct_fields__)
    elif isinstance(value, dict):
        parts = ((part, f"{place}.{name}") for name, part in value.items())
    elif isinstance(value, tuple):
        parts = ((part, f"{place}[{index}]") for index, part in enumerate(value))
    else:
        return None
    return next((bad for part, inside in parts if (bad := _bad_number(part, inside))), None)


# The run file's format as a JSON Schema, for whoever reads runs without this package.


DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "A run of microbench"
ABOUT = (
    "One JSON document in UTF-8, in SI base units: a quantity's last word is its unit, bandwidth is decimal, unknown "
    "is null or left out. While a run grows its outcomes follow the document, one JSON line each. Keys that are not "
    "named here belong to a later version and are ignored. A large file ends with the key carried: what was made of all"
    " that stands before, so that it is shown quickly; whoever writes a run may leave it out."
)
SAMPLES = {
    "type": "array",
    "items": {"type": "number"},
    "maxItems": SAMPLES_KEPT,
    "description": f"Raw readings in the metric's base unit (seconds for a rate): {SAMPLES_KEPT} of the n at most.",
}


def run_schema() -> dict[str, Any]:
    """The JSON Schema of a finished run file of SCHEMA_VERSION, made from the types that read and write it."""
    (reference,), parts = msgspec.json.schema_components([Run], ref_template="#/$defs/{name}")
    for part in parts.values():
        part["description"] = inspect.cleandoc(part["description"]).replace("``", "`")
    parts["Measurement"]["properties"]["samples"] = SAMPLES  # undecoded to the reader: its type says nothing
    parts["Run"]["properties"]["sessions"]["minItems"] = 1
    parts["Run"]["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {"$schema": DIALECT, "title": TITLE, "description": ABOUT, **reference, "$defs": parts}


def encoded() -> bytes:
    """The schema as it is published: indented, and the same on every machine."""
    return msgspec.json.format(msgspec.json.encode(run_schema()), indent=2) + b"\n"
