"""Writes a run to disk: reserves the file name, appends outcomes, and replaces the file when the run is finished."""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from microbench.archive import schema
from microbench.archive.store import FINISHED, finished_path, growing_path
from microbench.core import files
from microbench.core.errors import MicrobenchError, ResultNotWrittenError
from microbench.core.model import Outcome, Run
from microbench.core.units import plain

# Measuring an outcome takes about 0.1 s, and fsync 1-10 ms. The page cache survives a crash of this process, so fsync
# guards only against a power cut, which may cost a second of work.
FORCE_EVERY_S = 1.0


class ResultLostError(MicrobenchError):
    """Raised when a result cannot be appended (the disk is full). The run ends; earlier results stay on disk."""


class RunFile:
    """The file ``path`` of a run and the growing file next to it, which one process at a time can lock.

    ``no_lock_reason`` says why there is no lock, where the file system has none.
    """

    def __init__(self, path: Path, *, grow: bool) -> None:
        """Reserve ``path``: with ``grow`` an existing run is added to, otherwise the file must be new.

        Raises ResultNotWrittenError if it cannot be written, so that this shows before anything is measured.
        """
        self.path = path
        self.growing = growing_path(path)
        self.no_lock_reason: str | None = None
        self._forced_s = 0.0
        self._whole = True  # the growing file has every outcome
        if not grow and _exists(path):
            if path.is_dir():
                raise ResultNotWrittenError(f"{plain(path)} is a folder", "name a file in it that does not exist yet")
            raise _exists_already(path)
        self._descriptor = self._locked()
        self._new = not _exists(path)
        status = os.fstat(self._descriptor)
        self._begun = status.st_size > 0  # a process that is killed during its probe leaves an empty file
        if not stat.S_ISREG(status.st_mode) or (self._begun and not grow):
            os.close(self._descriptor)
            raise _exists_already(self.growing)
        files.remove_leftovers(path.parent)

    def _locked(self) -> int:
        """A descriptor of the growing file, which is made if need be, with its lock."""
        while True:
            try:
                flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW
                self._descriptor = os.open(self.growing, flags, 0o666)
            except (OSError, ValueError) as error:
                if isinstance(error, FileNotFoundError) and not self.path.parent.is_dir():
                    cause = f"there is no folder {plain(self.path.parent)}"
                    raise ResultNotWrittenError(cause, "create it, or choose another") from None
                cause = f"{plain(self.path)} cannot be written: {getattr(error, 'strerror', None) or error}"
                next_step = "choose a place you may write to: --out FILE, or MICROBENCH_DATA"
                raise ResultNotWrittenError(cause, next_step) from None
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._descriptor)
                cause = f"another microbench is measuring into {plain(self.path)}"
                raise ResultNotWrittenError(cause, "wait for it, or choose another file") from None
            except OSError as error:  # some network file systems have no locks
                self.no_lock_reason = error.strerror or str(error)
            if self._has_its_name():
                return self._descriptor
            os.close(self._descriptor)  # its owner replaced or removed it after it was opened here

    def _has_its_name(self) -> bool:
        """True if the open file is still the growing file."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.lstat(self.growing))
        except OSError:
            return False

    def begin(self, run: Run) -> None:
        """Write the run as it is before the first new outcome.

        Raises ResultLostError, also if somebody put another file in the place of the growing one.
        """
        try:
            if not self._has_its_name() and os.path.lexists(self.growing):
                raise FileExistsError(errno.EEXIST, f"{plain(self.growing)} was replaced meanwhile")
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
            self._whole = False
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, length)
            raise self._lost(error) from None

    def finish(self, run: Run) -> None:
        """Replace the growing file by the finished run, all or nothing.

        Raises ResultLostError, which says where the results are: in the growing file if that has them all, otherwise in
        a new file next to the run, in the working folder or in the temporary folder.
        """
        data = schema.encode(run)
        try:
            os.close(files.replace(self.path, data, new=self._new))
            self._remove_growing()
        except OSError as error:
            if not isinstance(error, FileExistsError) and self._whole and self._has_its_name():
                raise self._lost(error) from None
            elsewhere = self._saved_elsewhere(data)
            if elsewhere is None:
                raise self._lost(error) from None
            if self._whole:
                self._remove_growing()
            cause = f"{plain(self.path)} cannot be written: {error.strerror or error}"
            raise ResultLostError(cause, f"everything that was measured is in {plain(elsewhere)}") from None
        finally:
            self.close()

    def abandon(self, earlier: Run | None) -> None:
        """Leave the run as it was before this process: ``earlier``, or no run at all."""
        if earlier is not None:
            self.finish(earlier)
        else:
            self._begun = False
            self.close()

    def _saved_elsewhere(self, data: bytes) -> Path | None:
        """A new file with ``data`` in the first folder that takes it; None if none does."""
        name = f"{self.path.stem}-{secrets.token_hex(4)}{FINISHED}"
        folders: tuple[Callable[[], Path | str], ...] = (self.path.parent.absolute, os.getcwd, tempfile.gettempdir)
        for folder in folders:
            with contextlib.suppress(OSError):  # a working folder that was deleted has no path
                path = Path(folder()) / name
                os.close(files.replace(path, data, new=True))
                return path
        return None

    def _remove_growing(self) -> None:
        """Remove the growing file. What somebody puts in its place after the check gets its name back."""
        if not self._has_its_name():
            return
        aside = self.growing.with_name(f".{self.growing.name}.{secrets.token_hex(4)}{files.ASIDE}")
        with contextlib.suppress(OSError):  # the folder may have become read-only meanwhile
            self.growing.rename(aside)
            if os.path.samestat(os.fstat(self._descriptor), os.lstat(aside)):
                aside.unlink()
            else:
                aside.rename(self.growing)

    def close(self) -> None:
        """Release the file; an unused reservation is removed."""
        if self._descriptor < 0:
            return
        if not self._begun:
            self._remove_growing()
        os.close(self._descriptor)
        self._descriptor = -1

    def _lost(self, error: OSError) -> ResultLostError:
        where = f"the results so far are in {plain(self.growing)}: free some space, then --resume it"
        cause = f"{plain(self.path)} cannot be written: {error.strerror or error}"
        kept = self._begun and self._has_its_name()
        return ResultLostError(cause, where if kept else "free some space, or choose another place with --out")


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


def _exists_already(path: Path) -> ResultNotWrittenError:
    return ResultNotWrittenError(f"{plain(path)} exists already", "choose another name, or --into adds to it")


def _exists(path: Path) -> bool:
    try:
        return os.path.lexists(path)
    except ValueError:  # a null byte; opening the file reports it
        return False
