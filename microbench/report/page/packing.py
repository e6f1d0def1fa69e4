"""What a page carries besides its words: compressed, in letters that no markup can come out of; runs made to fit."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from microbench import schema
from microbench.model import SAMPLES_KEPT, Measurement, Run

if TYPE_CHECKING:
    from markupsafe import Markup

# How many samples of a measurement may stay, the most first: a page takes the most of them that fit.
SAMPLE_STEPS = (SAMPLES_KEPT, 256, 128, 64, 32)
# The strongest takes three times as long for one percent.
LEVEL = 6


class Fitting(NamedTuple):
    """Runs as a page carries them: packed files, how many samples a measurement keeps, whether any lost some."""

    files: tuple[Markup, ...]
    samples: int
    thinned: bool


def packed(data: bytes) -> Markup:
    """``data`` through gzip and base64: letters, digits, ``+``, ``/`` and ``=``, so nothing in it is markup."""
    from markupsafe import Markup

    return Markup(base64.b64encode(gzip.compress(data, LEVEL, mtime=0)).decode("ascii"))


def fitting(runs: Sequence[Run], room_bytes: int) -> Fitting:
    """The runs with as many samples of each measurement as fit into ``room_bytes`` together, else the fewest."""
    longest = max((_count(one) for run in runs for one in _measurements(run)), default=0)
    for samples in SAMPLE_STEPS:
        files = tuple(packed(schema.encode(thinned(run, samples), carrying=False)) for run in runs)
        if samples == SAMPLE_STEPS[-1] or sum(map(len, files)) <= room_bytes:
            break
    return Fitting(files, min(samples, longest), longest > samples)


def thinned(run: Run, most: int) -> Run:
    """The run with at most ``most`` samples of each measurement, evenly spaced over those there are; their true count
    stays."""
    outcomes = tuple(
        msgspec.structs.replace(outcome, measurements=tuple(_thinned(one, most) for one in outcome.measurements))
        for outcome in run.outcomes
    )
    return msgspec.structs.replace(run, outcomes=outcomes)


def _thinned(measurement: Measurement, most: int) -> Measurement:
    # Cut as text, so that those which stay keep every digit they were stored with.
    samples = bytes(measurement.samples).strip(b"[] \t\r\n").split(b",")
    if len(samples) <= most:
        return measurement
    kept = b",".join(samples[index * len(samples) // most] for index in range(most))
    return msgspec.structs.replace(measurement, samples=msgspec.Raw(b"[" + kept + b"]"))


def _count(measurement: Measurement) -> int:
    return bytes(measurement.samples).count(b",") + 1


def _measurements(run: Run) -> Sequence[Measurement]:
    return [one for outcome in run.outcomes for one in outcome.measurements]
