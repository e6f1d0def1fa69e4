"""Writes a run to disk: reserves the file name, appends outcomes, and replaces the file when the run is finished."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

from microbench.core.errors import MicrobenchError, ResultNotWrittenError
from microbench.core.model import Outcome, Run
from microbench.core.units import plain
from microbench.runs import files, schema
from microbench.runs.store import finished_path, growing_path

# Measuring an outcome takes about 0.1 s, and fsync 1-10 ms. The page cache survives a crash of this process, so fsync
# guards only against a power cut, which may cost a second of work.
FORCE_EVERY_S = 1.0


class ResultLostError(MicrobenchError):
    """Raised when a result cannot be appended (the disk is full). The run ends; earlier results stay on disk."""


class RunFile:
    """The file ``path`` of a run and the growing file next to it, which one process at a time can lock."""

    def __init__(self, path: Path, *, grow: bool) -> None:
        """Reserve ``path``: with ``grow`` an existing run is added to, otherwise the file must be new.

        Raises ResultNotWrittenError if it cannot be written, so that this shows before anything is measured.
        """
        self.path = path
        self.growing = growing_path(path)
        self._begun = grow and _exists(self.growing)
        self._forced_s = 0.0
        if not grow and (_exists(path) or _exists(self.growing)):
            taken = path if _exists(path) else self.growing
            if taken.is_dir():
                raise ResultNotWrittenError(f"{plain(taken)} is a folder", "name a file in it that does not exist yet")
            raise ResultNotWrittenError(f"{plain(taken)} exists already", "choose another name, or --into adds to it")
        try:
            self._descriptor = os.open(self.growing, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o666)
        except (OSError, ValueError) as error:
            raise _cannot_write(path, error) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise ResultNotWrittenError(
                f"another microbench is measuring into {plain(path)}", "wait for it, or choose another file"
            ) from None

    def begin(self, run: Run) -> None:
        """Write the run as it is before the first new outcome. Raises ResultLostError."""
        try:
            descriptor = files.replace(self.growing, schema.encode(run))
        except OSError as error:
            raise self._lost(error) from None
        os.close(self._descriptor)
        self._descriptor, self._begun = descriptor, True

    def append(self, outcome: Outcome) -> None:
        """Append one outcome, which then survives a crash of this process.

        Raises ResultLostError; the file then ends with the previous outcome.
        """
        line = schema.encode_outcome(outcome)
        length = os.fstat(self._descriptor).st_size
        try:
            files.write(self._descriptor, line)
            if time.monotonic() - self._forced_s > FORCE_EVERY_S:
                os.fsync(self._descriptor)
                self._forced_s = time.monotonic()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, length)
            raise self._lost(error) from None

    def finish(self, run: Run) -> None:
        """Replace the growing file by the finished run, all or nothing. Raises ResultLostError."""
        try:
            os.close(files.replace(self.path, schema.encode(run)))
            self.growing.unlink()
        except OSError as error:
            raise self._lost(error) from None
        finally:
            self.close()

    def close(self) -> None:
        """Release the file; an unused reservation is removed."""
        if self._descriptor < 0:
            return
        if not self._begun:
            self.growing.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1

    def _lost(self, error: OSError) -> ResultLostError:
        where = f"the results so far are in {plain(self.growing)}: free some space, then --resume it"
        cause = f"{plain(self.path)} cannot be written: {error.strerror or error}"
        return ResultLostError(cause, where if self._begun else "free some space, or choose another place with --out")


def is_growing(path: Path) -> bool:
    """True if a process is measuring into the run at ``path``, or if that is unknown."""
    try:
        with files.open_regular(growing_path(finished_path(path))) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _exists(path: Path) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:  # a null byte; opening the file reports it
        return False


def _cannot_write(path: Path, error: OSError | ValueError) -> ResultNotWrittenError:
    if isinstance(error, OSError) and error.errno == errno.ENOENT and not path.parent.is_dir():
        return ResultNotWrittenError(f"there is no folder {plain(path.parent)}", "create it, or choose another")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return ResultNotWrittenError(
        f"{plain(path)} cannot be written: {reason}", "choose a place you may write to: --out FILE, or MICROBENCH_DATA"
    )
