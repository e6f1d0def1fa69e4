"""A run's label and note: a person's words, in a file beside the run's own, which is never rewritten."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from microbench.core.errors import ResultNotWrittenError, UsageError
from microbench.core.units import plain

SUFFIX = ".remarks"
RUN_SUFFIX = re.compile(r"\.jsonl?(\.xz)?$")
LONGEST_LABEL = 60
LONGEST_BYTES = 1 << 20
UNREADABLE = (OSError, ValueError, RecursionError, msgspec.DecodeError)


class Remarks(msgspec.Struct, frozen=True, omit_defaults=True):
    """``label`` is a word or two to find a run by, ``note`` whatever else is to be remembered; "": there is none."""

    label: str = ""
    note: str = ""


def place(path: Path) -> Path:
    """Where the remarks on the run in that file are: RUN.json, RUN.jsonl, RUN.json.xz -> RUN.remarks."""
    return path.with_name(RUN_SUFFIX.sub("", path.name) + SUFFIX)


def read(path: Path) -> Remarks:
    """The remarks on the run in that file; empty ones where there are none, or none that can be read."""
    try:
        return _decoded(path)
    except UNREADABLE:
        return Remarks()


def read_all(paths: Sequence[Path]) -> dict[Path, Remarks]:
    """The remarks on each of those runs; few have any, and their folders tell which."""
    there: dict[Path, frozenset[str]] = {}
    for folder in {path.parent for path in paths}:
        try:
            there[folder] = frozenset(os.listdir(folder))
        except OSError:
            there[folder] = frozenset()
    return {path: read(path) if place(path).name in there[path.parent] else Remarks() for path in paths}


def may_be(path: Path) -> bool:
    """True unless nobody said anything of the run in that file: what cannot be read may be all that a person kept."""
    try:
        return _decoded(path) != Remarks()
    except FileNotFoundError:
        return False
    except UNREADABLE:
        return True


def _decoded(path: Path) -> Remarks:
    with place(path).open("rb") as file:
        return msgspec.json.decode(file.read(LONGEST_BYTES), type=Remarks)


def checked(label: str) -> str:
    """A label as it is kept. Raises UsageError for one that is too long."""
    if len(label) > LONGEST_LABEL:
        raise UsageError(f"a label of {len(label)} characters is too long", f"give {LONGEST_LABEL} or fewer; or a note")
    return label.strip()


def change(path: Path, label: str | None = None, note: str | None = None) -> Remarks:
    """Set what is given, "" takes it away; the remarks as they are then. All or nothing.

    Raises UsageError for a label that is too long, ResultNotWrittenError where it cannot be written.
    """
    remarks = read(path)
    if label is not None:
        remarks = msgspec.structs.replace(remarks, label=checked(label))
    if note is not None:
        remarks = msgspec.structs.replace(remarks, note=note.strip())
    try:
        if remarks == Remarks():
            place(path).unlink(missing_ok=True)
        else:
            _replace(place(path), msgspec.json.encode(remarks) + b"\n")
    except (OSError, ValueError) as error:
        cause = f"{plain(place(path))} cannot be written: {getattr(error, 'strerror', None) or error}"
        raise ResultNotWrittenError(cause, "label a copy in a folder that you may write to") from None
    return remarks


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def labelled(label: str, paths: Iterable[Path]) -> list[Path]:
    """Those of the runs in ``paths`` that have exactly this label."""
    return [path for path in paths if read(path).label == label]
