"""Records this very process for the time of a block, by the recorder that `microbench watch` puts into programs."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from microbench.core.errors import UsageError
from microbench.core.units import plain
from microbench.watch import machine_code, recorder
from microbench.watch.cupti import NotRecorded

ANOTHER_PATH = "give another path"


class ProcessRecording:
    """The recording of a block: it begins with the block and ends with it, whatever the block raises.

    Without a path the file is temporary: it is removed with this object. Beginning raises UsageError if the process
    cannot be recorded. If the recording ends before the block, as on a full disk, the end of the block warns.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, stacks: bool = False) -> None:
        self._given = None if path is None else Path(path).absolute()
        self._stacks = stacks
        self._recorder: recorder.Recorder | None = None
        self._file: Path | None = None
        self._ended = False
        self._early: list[str] = []

    @property
    def path(self) -> Path:
        """The file of the recording. Raises UsageError until the block has ended."""
        if self._file is None or not self._ended:
            raise in_words("the block that is recorded has not ended", "ask after the block of `with`")
        return self._file

    def __enter__(self) -> Self:
        if self._file is not None:
            raise in_words("this recording has been made already", "call microbench.watch() for each block")
        try:
            folder = Path(tempfile.mkdtemp(prefix="microbench-recording-"))
            weakref.finalize(self, _remove, folder, os.getpid())
            code = folder / "callbacks"
            code.write_bytes(machine_code.callbacks())
            settings = {
                "folder": str(folder),
                "file": None if self._given is None else str(self._given),
                "code": str(code),
                "stacks": self._stacks,
                "for_s": None,
                "window_s": None,
                "every_s": None,
            }
            self._recorder = recorder.begin("", settings, self._tell)
        except NotRecorded as error:
            raise in_words(error.cause, error.next_step) from None
        except OSError as error:
            raise in_words(f"the recording cannot be made: {error.strerror or error}", ANOTHER_PATH) from error
        self._file = Path(self._recorder.path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._recorder is not None
        self._recorder.end()
        self._recorder, self._ended = None, True
        if self._early and error is None:
            warnings.warn("; ".join(self._early), RuntimeWarning, stacklevel=2)

    def _tell(self, cause: str, next_step: str) -> None:
        """Keep why the recording has ended early."""
        self._early.append(f"not recorded: {plain(cause)}")


def in_words(cause: str, next_step: str) -> UsageError:
    """The error, whose next step a traceback shows too."""
    if next_step == recorder.ELSEWHERE:
        next_step = ANOTHER_PATH
    error = UsageError(plain(cause), next_step)
    error.add_note(next_step)
    return error


def _remove(folder: Path, process: int) -> None:
    """Remove a temporary folder; a forked child leaves it to the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
