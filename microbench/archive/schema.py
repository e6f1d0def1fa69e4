"""Encodes and decodes run files. Only this module knows the format.

A run file is one JSON document on one line. While a run is being measured, each outcome is appended as one more JSON
line; a crash may cut the last line short. A finished file has no such lines, so one reader serves both.
"""

import contextlib
import inspect
import math
from collections.abc import Iterable
from typing import Any

import msgspec

from microbench.archive.damage import without_damage
from microbench.core.errors import MeasurementError, RunUnreadableError
from microbench.core.model import SAMPLES_KEPT, Measurement, Outcome, Run

SCHEMA_VERSION = 1
NEXT_STEP = "show another run; if it is a profiler's trace: microbench diagnose FILE"
# The characters of an array of numbers; msgspec writes NaN and infinities as null, which is refused.
NUMBERS = b"0123456789+-.eE,[] \t\r\n"
INSIDE_BRACKETS = NUMBERS.replace(b"[]", b"")
# msgspec writes no blanks, and quotes inside a text are escaped, so this can only be the key.
OUTCOMES_BEGIN = b'"outcomes":['
# A run of 200 MB has half a million objects and sixteen million values; each fills up to 200 bytes of memory.
MOST_OBJECTS, MOST_VALUES = 1 << 21, 1 << 24
LEAST_INT, MOST_INT = -(1 << 63), (1 << 64) - 1

ABOUT = (
    "One JSON document in UTF-8, in SI base units: a quantity's last word is its unit, bandwidth is decimal, unknown "
    "is null or left out. While a run grows its outcomes follow the document, one JSON line each. Readers ignore keys "
    "that are not named here."
)
SAMPLES = {
    "type": "array",
    "items": {"type": "number"},
    "maxItems": SAMPLES_KEPT,
    "description": f"Raw readings in the metric's base unit (seconds for a rate): {SAMPLES_KEPT} of the n at most.",
}


class _Version(msgspec.Struct):
    schema_version: int


class _Export(msgspec.Struct):
    """The output of `export --format json`: the run, and derived values that are ignored here."""

    run: msgspec.Raw


def encode(run: Run) -> bytes:
    """Encode the run as a finished file. Raises MeasurementError that names the place of a NaN or infinity."""
    return _line(msgspec.structs.replace(run, deviations={}, damaged_lines=0), "run")


def encode_outcome(outcome: Outcome) -> bytes:
    """Encode one outcome as a line to append. Raises MeasurementError that names the place of a NaN or infinity."""
    return _line(outcome, outcome.case.id)


def _line(value: Run | Outcome, name: str) -> bytes:
    if (place := _bad_number(value)) is not None:
        raise MeasurementError(f"{name}{place} is not a finite number")
    return msgspec.json.encode(value) + b"\n"


def decode(data: bytes, name: str = "the file", keep_damage: bool = False) -> Run:
    """Decode a run file: finished, growing, or exported as JSON. Samples stay undecoded.

    An incomplete last line of a growing file, as a killed process leaves it, is dropped; other damaged lines after the
    first are skipped and counted. Impossible numbers are taken out; with ``keep_damage`` they stay, for a file that is
    written again. Raises RunUnreadableError, with ``name`` in its text, for all other data that is not a run of a
    known format.
    """
    if data.count(b"{") > MOST_OBJECTS or (len(data) > MOST_VALUES and data.count(b",") > MOST_VALUES):
        raise RunUnreadableError(f"{name} holds too many values to be a run", NEXT_STEP)
    try:
        run = _decoded(data, name)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        why = "it is cut short" if "truncated" in str(error) else str(error)
        if not isinstance(error, msgspec.DecodeError):
            why = "it is nested too deeply" if isinstance(error, RecursionError) else "it is not text in UTF-8"
        raise RunUnreadableError(f"{name} cannot be read as a run: {why}", NEXT_STEP) from None
    if fault := _fault(run):
        raise RunUnreadableError(f"{name} {fault}", NEXT_STEP)
    run = msgspec.structs.replace(run, deviations={})  # a file has none, whatever it claims
    return run if keep_damage else without_damage(run)


def decode_head(beginning: bytes) -> Run | None:
    """Decode a run without its outcomes from the first bytes of its file; None if these bytes are not enough."""
    end = beginning.find(OUTCOMES_BEGIN)
    if end < 0:
        return None
    try:
        run = msgspec.json.decode(beginning[:end] + OUTCOMES_BEGIN + b"]}", type=Run)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return without_damage(run) if run.schema_version == SCHEMA_VERSION and _fault(run) is None else None


def run_schema() -> dict[str, Any]:
    """The JSON Schema of a finished run file of SCHEMA_VERSION, made from the types that read and write it."""
    (reference,), parts = msgspec.json.schema_components([Run], ref_template="#/$defs/{name}")
    for part in parts.values():
        part["description"] = inspect.cleandoc(part["description"]).replace("``", "`")
    parts["Measurement"]["properties"]["samples"] = SAMPLES  # the type is Raw, which says nothing about the content
    parts["Run"]["properties"]["sessions"]["minItems"] = 1
    del parts["Run"]["properties"]["deviations"], parts["Deviation"]  # the reader of a file knows them
    del parts["Run"]["properties"]["damaged_lines"]
    parts["Run"]["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    dialect, title = "https://json-schema.org/draft/2020-12/schema", "A run of microbench"
    return {"$schema": dialect, "title": title, "description": ABOUT, **reference, "$defs": parts}


def _decoded(data: bytes, name: str) -> Run:
    head, lines, tail = _split(data)
    try:  # most files have this format; reading the version first would parse a large file twice
        run = msgspec.json.decode(head, type=Run)
    except msgspec.DecodeError as error:
        return _of_another_format(head, name, error)
    if run.schema_version != SCHEMA_VERSION:
        return _of_another_format(head, name, None)
    outcomes = [outcome for line in lines if (outcome := _outcome(line, len(run.sessions)))]
    damaged_lines = len(lines) - len(outcomes)
    if last := _outcome(tail, len(run.sessions)):  # None if the process died while it wrote this line
        outcomes.append(last)
    return msgspec.structs.replace(run, outcomes=(*run.outcomes, *outcomes), damaged_lines=damaged_lines)


def _of_another_format(head: bytes, name: str, error: msgspec.DecodeError | None) -> Run:
    """Decode an export. Raises ``error`` if the file claims to have this format."""
    with contextlib.suppress(msgspec.DecodeError):
        return _decoded(bytes(msgspec.json.decode(head, type=_Export).run), name)
    version = msgspec.json.decode(head, type=_Version).schema_version
    if version > SCHEMA_VERSION:
        cause = f"{name} has format {version}, newer than this microbench knows ({SCHEMA_VERSION})"
        raise RunUnreadableError(cause, "update microbench: install a newer checkout or wheel")
    if version == SCHEMA_VERSION and error is not None:
        raise error
    raise RunUnreadableError(f"{name} has format {version}, which no microbench ever wrote", NEXT_STEP)


def _split(data: bytes) -> tuple[bytes, list[bytes], bytes]:
    """The run's own line, the outcome lines, and the text after the last line end."""
    end = data.find(b"\n")
    if end < 0 or end == len(data) - 1 or data[max(end - 2, 0) : end].rstrip()[-1:] != b"}":
        return data, [], b""  # finished, or indented over many lines; not copied, because it may be large
    *outcomes, tail = data[end + 1 :].split(b"\n")
    return data[:end], [line for line in outcomes if line.strip()], tail


def _outcome(line: bytes, sessions: int) -> Outcome | None:
    """The outcome of a line; None if the line is damaged."""
    try:
        outcome = msgspec.json.decode(line, type=Outcome)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return outcome if _within_64_bits((outcome,)) and _outcome_fault(outcome, sessions) is None else None


def _fault(run: Run) -> str | None:
    """An error in a decoded run that its types cannot express, or None."""
    if not _within_64_bits((run.sessions, run.benchmarks, *run.outcomes)):
        return f"holds a number out of range: run{_bad_number(run)}"
    if not run.sessions:
        return "has no session"
    for index, outcome in enumerate(run.outcomes):
        if fault := _outcome_fault(outcome, len(run.sessions)):
            return f"contradicts itself: outcome {index} {fault}"
    return None


def _within_64_bits(parts: Iterable[object]) -> bool:
    """True if msgpack, whose integers have 64 bits, can write every number: the fastest check of all of them.

    JSON has neither NaN nor infinity, so all floats of a decoded run are finite.
    """
    encoder, buffer = msgspec.msgpack.Encoder(), bytearray()
    try:
        for part in parts:
            encoder.encode_into(part, buffer)
    except OverflowError:
        return False
    return True


def _outcome_fault(outcome: Outcome, sessions: int) -> str | None:
    if not 0 <= outcome.session < sessions:
        return f"belongs to session {outcome.session} of {sessions}"
    if outcome.round < 0:
        return f"has round {outcome.round}"
    return next((fault for measurement in outcome.measurements if (fault := _measurement_fault(measurement))), None)


def _measurement_fault(measurement: Measurement) -> str | None:
    samples, work, per_call = bytes(measurement.samples), measurement.work, measurement.per_call
    if samples.translate(None, INSIDE_BRACKETS) != b"[]":
        return f"has samples of {measurement.metric} that are not an array of numbers"
    counts = measurement.n, work.bytes, work.flops, work.launches, work.operations
    if measurement.calls_per_sample < 1 or min(counts) < 0:
        return f"has an impossible count in {measurement.metric}"
    if measurement.n > 0 and not samples.strip(b"[] \t\r\n"):
        return f"has no samples of {measurement.metric}"
    if per_call is None or (
        per_call.n >= 1 and per_call.ratio > 1 and per_call.first_edge > 0 and min(per_call.counts, default=-1) >= 0
    ):
        return None
    return f"has an impossible histogram of {measurement.metric}"


def _bad_number(value: object) -> str | None:
    """The place inside ``value`` of a float that is not finite or an int beyond 64 bits; None if there is none."""
    if value is None or isinstance(value, str):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    if isinstance(value, int):
        return None if LEAST_INT <= value <= MOST_INT else ""
    if isinstance(value, msgspec.Raw):
        return "" if bytes(value).translate(None, NUMBERS) else None
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            if (inside := _bad_number(getattr(value, field))) is not None:
                return f".{field}{inside}"
    elif isinstance(value, dict):
        for key, part in value.items():
            if (inside := _bad_number(part)) is not None:
                return f".{key}{inside}"
    elif isinstance(value, tuple):
        for index, part in enumerate(value):
            if (inside := _bad_number(part)) is not None:
                return f"[{index}]{inside}"
    return None
