"""Reads and writes the label and note of a run, in a file next to the run file, which is never changed."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from microbench.core import files
from microbench.core.errors import ResultNotWrittenError, UsageError
from microbench.core.units import plain

LONGEST_LABEL = 60
LONGEST_BYTES = 1 << 20
UNREADABLE = (OSError, ValueError, RecursionError, msgspec.DecodeError)


class Remarks(msgspec.Struct, frozen=True, omit_defaults=True):
    """``label`` is a short name that finds the run, ``note`` is free text; "" means none."""

    label: str = ""
    note: str = ""


def place(path: Path) -> Path:
    """The file of a run's remarks: RUN.remarks for RUN.json, RUN.jsonl, RUN.json.xz and RUN.json.gz."""
    return path.with_name(re.sub(r"\.jsonl?(\.[xg]z)?$", "", path.name) + ".remarks")


def read(path: Path) -> Remarks:
    """The remarks on the run in that file; empty if there are none or they cannot be read."""
    try:
        return _decoded(path)
    except UNREADABLE:
        return Remarks()


def read_all(paths: Sequence[Path]) -> dict[Path, Remarks]:
    """The remarks on each run. Few runs have any, so each folder is listed once and only existing files are opened."""
    names: dict[Path, frozenset[str]] = {}
    for folder in {path.parent for path in paths}:
        try:
            names[folder] = frozenset(os.listdir(folder))
        except OSError:
            names[folder] = frozenset()
    return {path: read(path) if place(path).name in names[path.parent] else Remarks() for path in paths}


def may_exist(path: Path) -> bool:
    """False if the run has no remarks. Unreadable remarks count as remarks, because a person wrote them."""
    try:
        return _decoded(path) != Remarks()
    except FileNotFoundError:
        return False
    except UNREADABLE:
        return True


def _decoded(path: Path) -> Remarks:
    with files.open_regular(place(path)) as file:
        return msgspec.json.decode(file.read(LONGEST_BYTES), type=Remarks)


def checked(label: str) -> str:
    """The label without surrounding blanks. Raises UsageError if it is too long."""
    if len(label) > LONGEST_LABEL:
        raise UsageError(f"a label of {len(label)} characters is too long", f"give {LONGEST_LABEL} or fewer; or a note")
    return label.strip()


def change(path: Path, label: str | None = None, note: str | None = None) -> Remarks:
    """Set the label, the note, or both, and return the remarks; "" removes one. The file changes all or nothing.

    Raises UsageError for a label that is too long, ResultNotWrittenError if the file cannot be written.
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
            os.close(files.replace(place(path), msgspec.json.encode(remarks) + b"\n"))
    except (OSError, ValueError) as error:
        cause = f"{plain(place(path))} cannot be written: {getattr(error, 'strerror', None) or error}"
        raise ResultNotWrittenError(cause, "label a copy in a folder that you may write to") from None
    return remarks
