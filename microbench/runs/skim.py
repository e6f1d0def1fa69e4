"""A large run as its report needs it: its rows, and its outcomes without what these were made of. In a single pass.

Only for a finished file laid out as this tool writes it and sound throughout; any other is for ``store.read``, which
also says what is wrong with it.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from msgspec.structs import force_setattr

from microbench.analysis.stats import Row, rows
from microbench.core.errors import RunUnreadableError
from microbench.core.model import Measurement, Outcome, Run
from microbench.runs import carried, schema
from microbench.runs.store import GROWING

# As msgspec writes it: the end of one outcome and the beginning of the next. Inside a text the quotes would be escaped.
BETWEEN = b'},{"case":'
# Of the size of a processor's cache, and below what the allocator returns to the system each time.
PIECE_BYTES = 1 << 16
LONGEST_BYTES = 1 << 22  # of one outcome, or of what stands before the first
GONE = None  # whoever asks for it falls over: nothing at all would pass for nothing measured
NOT_THIS_WAY = (OSError, ArithmeticError, ValueError, RecursionError, msgspec.DecodeError, RunUnreadableError)


class Skimmed(NamedTuple):
    """A run whose outcomes have no measurements any more, and the rows that were made of these."""

    run: Run
    rows: list[Row]


class _Sampled(Measurement, frozen=True, omit_defaults=True):
    """A measurement whose samples are decoded with it, and gone once they were seen."""

    samples: tuple[float, ...]  # type: ignore[assignment]

    @property
    def values(self) -> tuple[float, ...]:
        return self.samples


class _Measured(Outcome, frozen=True, omit_defaults=True):
    measurements: tuple[_Sampled, ...] = ()


class _Bare(Outcome, frozen=True, omit_defaults=True):
    measurements: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]


class _Own:
    """A file up to what it carries, closed there like a run that carries nothing, and the checksum of what was read."""

    def __init__(self, file: BinaryIO, end: int | None) -> None:
        self._file = file
        self._left, self._closing = (sys.maxsize, b"") if end is None else (end, b"}")
        self.crc32 = 0
        file.seek(0)

    def read(self, count: int, /) -> bytes:
        data = self._file.read(min(count, self._left))
        self._left -= len(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        if not data:
            data, self._closing = self._closing, b""
        return data


def is_large(path: Path) -> bool:
    """Whether a file is so large that reading it all takes more than a moment."""
    try:
        return path.stat().st_size >= schema.LARGE_BYTES
    except OSError:
        return False


def skimmed(path: Path) -> Skimmed | None:
    """The run in that file and its rows, as ``store.read`` and ``stats.rows`` have them; None where it takes these."""
    if path.suffix == GROWING:
        return None
    return _by(_as_carried, path) or _by(_made, path)


def _by(way: Callable[[BinaryIO], Skimmed], path: Path) -> Skimmed | None:
    try:
        with path.open("rb", buffering=0) as file:
            return way(file)
    except NOT_THIS_WAY:
        return None


def _as_carried(file: BinaryIO) -> Skimmed:
    """By the rows that the file carries. Raises one of NOT_THIS_WAY where it carries none, or none of these bytes."""
    if (end := carried.begin(file)) is None:
        raise ValueError("it carries nothing")
    found = carried.read(file, end)
    own = _Own(file, end)
    head, rest = _head(own)
    decoder = msgspec.json.Decoder(tuple[_Bare, ...])
    outcomes: list[Outcome] = []
    for piece in _pieces(own, rest):
        some = decoder.decode(piece)
        for outcome in some:
            force_setattr(outcome, "measurements", GONE)
        outcomes += some
    _check_all(outcomes, len(head.sessions))
    if zlib.crc32(found.rows, own.crc32) != found.crc32:
        raise ValueError("it is not what its rows were made of")
    return Skimmed(msgspec.structs.replace(head, outcomes=tuple(outcomes)), found.of(outcomes, len(head.sessions)))


def _check_all(outcomes: list[Outcome], sessions: int) -> None:
    if any(schema.misplaced(outcome, sessions) for outcome in outcomes) or not schema.within_64_bits(outcomes):
        raise ValueError("a number is out of range")


def _made(file: BinaryIO) -> Skimmed:
    """By rows made of its samples. Raises one of NOT_THIS_WAY where anything is not as it should be."""
    if (end := carried.begin(file)) is not None:
        carried.check(file, end)
    own = _Own(file, end)
    head, rest = _head(own)
    outcomes: list[Outcome] = []
    found = rows(head, _passing(own, rest, len(head.sessions), outcomes))
    return Skimmed(msgspec.structs.replace(head, outcomes=tuple(outcomes)), found)


def _head(own: _Own) -> tuple[Run, bytes]:
    """The run without outcomes, and what was read beyond it. Raises ValueError where there is no such beginning."""
    data = b""
    while data[:1] in (b"", b"{") and len(data) < LONGEST_BYTES and (more := own.read(PIECE_BYTES)):
        data += more
        if (run := schema.decode_head(data)) is not None:
            return run, data[data.find(schema.OUTCOMES_BEGIN) + len(schema.OUTCOMES_BEGIN) :]
    raise ValueError("its beginning is another one")


def _passing(own: _Own, rest: bytes, sessions: int, kept: list[Outcome]) -> Iterator[Outcome]:
    """Each outcome with its samples; as soon as the next one is asked for it has none, and is among those ``kept``."""
    decoder = msgspec.json.Decoder(tuple[_Measured, ...])
    for piece in _pieces(own, rest):
        outcomes = decoder.decode(piece)
        for outcome in outcomes:
            if wrong := schema.wrong_outcome(outcome, sessions, _wrong_measurement):
                raise ValueError(wrong)
            yield outcome
            for measurement in outcome.measurements:
                force_setattr(measurement, "samples", GONE)
        if not schema.within_64_bits(outcomes):
            raise ValueError("a number is out of range")
        for outcome in outcomes:
            force_setattr(outcome, "measurements", GONE)
        kept += outcomes


def _wrong_measurement(measurement: Measurement) -> str | None:
    return schema.wrong_numbers(measurement, sampled=bool(measurement.values))


def _pieces(own: _Own, rest: bytes) -> Iterator[bytes]:
    """The outcomes of a file, ``rest`` and what follows, as arrays of some of them each. Put together they are the
    file's: one is sound if all are."""
    searched = 0
    while more := own.read(PIECE_BYTES):
        rest += more
        end = rest.rfind(BETWEEN, searched)
        searched = 0 if end >= 0 else max(len(rest) - len(BETWEEN), 0)
        if end >= 0:
            yield b"[" + rest[: end + 1] + b"]"
            rest = rest[end + 2 :]
        elif len(rest) > LONGEST_BYTES:
            raise ValueError("one outcome is too long")
    end = len(rest.rstrip(b" \t\r\n")) - 1
    if rest[end : end + 1] != b"}":
        raise ValueError("it does not end as a run does")
    yield b"[" + rest[:end]
