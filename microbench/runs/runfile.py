"""One run on its way to disk: reserved before anything is measured, appended to, finished atomically."""

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
from microbench.runs import schema
from microbench.runs.store import finished_path, growing_path

# An outcome takes some 0.1 s to measure and 1-10 ms to force onto a disk: the page cache survives our crash, so
# forcing guards against a power cut only, and a second of work is little to lose.
FORCE_EVERY_S = 1.0


class ResultLostError(MicrobenchError):
    """A result could not be appended (the disk is full): the run ends, what was measured before is kept."""


class RunFile:
    """The file that will be ``path`` and grows beside it. One process at a time: the growing file is locked."""

    def __init__(self, path: Path, *, grow: bool) -> None:
        """Reserve ``path``: with ``grow`` it is there already and is added to, otherwise it must be new.

        Raises ResultNotWrittenError when it cannot be written, so that nobody measures for nothing.
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
        """Write the run as it is before the first outcome. Raises ResultLostError."""
        try:
            descriptor = self._replace(self.growing, schema.encode(run))
        except OSError as error:
            raise self._lost(error) from None
        os.close(self._descriptor)
        self._descriptor, self._begun = descriptor, True

    def append(self, outcome: Outcome) -> None:
        """Add one outcome; it survives this process from here on. Raises ResultLostError, the file left readable."""
        line = schema.encode_outcome(outcome)
        length = os.fstat(self._descriptor).st_size
        try:
            _write(self._descriptor, line)
            if time.monotonic() - self._forced_s > FORCE_EVERY_S:
                os.fsync(self._descriptor)
                self._forced_s = time.monotonic()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, length)
            raise self._lost(error) from None

    def finish(self, run: Run) -> None:
        """Put the whole run in place of the growing file, all or nothing. Raises ResultLostError."""
        try:
            os.close(self._replace(self.path, schema.encode(run)))
            self.growing.unlink()
        except OSError as error:
            raise self._lost(error) from None
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the file; a reservation that was never begun leaves no trace."""
        if self._descriptor < 0:
            return
        if not self._begun:
            self.growing.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1

    def _replace(self, path: Path, data: bytes) -> int:
        """``path`` becomes ``data``; the new file, locked and open for appending."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(temporary, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_TRUNC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(descriptor, data)
            os.fsync(descriptor)
            temporary.replace(path)
        except OSError:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise
        _force_folder(path.parent)
        return descriptor

    def _lost(self, error: OSError) -> ResultLostError:
        where = f"what was measured is in {plain(self.growing)}: free some space, then --resume it"
        cause = f"{plain(self.path)} cannot be written: {error.strerror or error}"
        return ResultLostError(cause, where if self._begun else "free some space, or choose another place with --out")


def is_growing(path: Path) -> bool:
    """True if a process is measuring into the run at ``path`` at this moment."""
    try:
        with growing_path(finished_path(path)).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _force_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _exists(path: Path) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:  # a null byte: opening it tells why
        return False


def _cannot_write(path: Path, error: OSError | ValueError) -> ResultNotWrittenError:
    if isinstance(error, OSError) and error.errno == errno.ENOENT and not path.parent.is_dir():
        return ResultNotWrittenError(f"there is no folder {plain(path.parent)}", "make it first, or choose another")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return ResultNotWrittenError(
        f"{plain(path)} cannot be written: {reason}", "choose a place you may write to: --out FILE, or MICROBENCH_DATA"
    )
