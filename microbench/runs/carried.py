"""What a large run's file carries at its end: the run's rows, so that nobody has to make them of its samples again.

They hold for the very bytes before them and for the very source that made them, else they are made anew: a corrected
formula mends old runs. Small files carry nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from microbench.analysis import quantiles, stats
from microbench.analysis.stats import Interval, Row, Summary, Trust, rows
from microbench.core import model
from microbench.core.errors import RunUnreadableError
from microbench.core.model import Measurement, Metric, Outcome, Param, Run

KEY = b',"carried":'
# It is found from the file's end, where its length stands.
ENDING = b',"length":"%012d"}}\n'
ENDS = re.compile(rb',"length":"([0-9]{12})"\}\}\n$')
NOTHING = msgspec.Raw(b"null")


class _Row(msgspec.Struct):
    """A row; its outcomes are places in the run, its measurement is without samples."""

    case_id: str
    benchmark: str
    suite: str
    metric: Metric
    params: dict[str, Param]
    measurement: Measurement
    interval: Interval
    summaries: tuple[Summary, ...]
    outcomes: tuple[int, ...]
    trust: Trust
    session: int
    device: str | None


class _Anything(msgspec.Struct):
    """What nothing is asked of."""


class Carried(msgspec.Struct):
    """``by`` names the source that made the rows; ``crc32`` is that of all before the key, and then of the rows."""

    by: str
    crc32: int
    rows: msgspec.Raw

    def of(self, outcomes: Sequence[Outcome], sessions: int) -> list[Row]:
        """The rows, those being the run's outcomes. Raises msgspec.DecodeError or ValueError for what are none."""
        found = msgspec.json.decode(self.rows, type=tuple[_Row, ...])
        if not all(_is_sound(row, len(outcomes), sessions) for row in found):
            raise ValueError("a row of what the run does not have")
        return [
            Row(**(msgspec.structs.asdict(row) | {"outcomes": tuple(outcomes[place] for place in row.outcomes)}))
            for row in found
        ]


def _is_sound(row: _Row, outcomes: int, sessions: int) -> bool:
    places = row.outcomes
    there = len(places) == len(row.summaries) > 0 and 0 <= min(places) <= max(places) < outcomes
    return there and 0 <= row.session < sessions


def with_rows(data: bytes, run: Run) -> bytes:
    """The encoded ``run`` with its rows, which it carries from here on; as it was where they cannot be made."""
    body = memoryview(data)[: -len(b"}\n")]
    try:
        by, places = source(), {id(outcome): place for place, outcome in enumerate(run.outcomes)}
        stored = msgspec.json.encode([_stored(row, places) for row in rows(run)])
    except (OSError, ArithmeticError, LookupError, ValueError, msgspec.DecodeError, RunUnreadableError):
        return data
    beginning = KEY + b'{"by":"%s","crc32":%d,"rows":' % (by.encode(), zlib.crc32(stored, zlib.crc32(body)))
    length = len(beginning) + len(stored) + len(ENDING % 0)
    return b"".join((body, beginning, stored, ENDING % length))


def _stored(row: Row, places: Mapping[int, int]) -> dict[str, Any]:
    return msgspec.structs.asdict(row) | {
        "measurement": msgspec.structs.replace(row.measurement, samples=NOTHING),
        "outcomes": [places[id(outcome)] for outcome in row.outcomes],
    }


def source() -> str:
    """The source that rows are made by, to the letter. Raises OSError where it is not at hand."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for module in (model, quantiles, stats, quantiles):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()[:16]


def begin(file: BinaryIO) -> int | None:
    """Where in a file what it carries begins; None where it carries nothing."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - len(ENDING % 0), 0))
    if (ending := ENDS.search(file.read())) is None:
        return None
    place = file.seek(max(size - int(ending[1]), 0))
    return place if file.read(len(KEY)) == KEY else None


def read(file: BinaryIO, place: int) -> Carried:
    """What a file carries from that place on. Raises ValueError where another source made it."""
    file.seek(place + len(KEY))
    found = msgspec.json.decode(file.read()[: -len(b"}\n")], type=Carried)
    if found.by != source():
        raise ValueError("another source made it")
    return found


def check(file: BinaryIO, place: int) -> None:
    """Raises msgspec.DecodeError where what a file carries from that place on is damaged beyond being read over."""
    file.seek(place + 1)
    msgspec.json.decode(b"{" + file.read(), type=_Anything)
