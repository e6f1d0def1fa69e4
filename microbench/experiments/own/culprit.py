"""Finds the line of a user's code, and the function called there, after which a capture is no longer valid."""

import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from microbench.core.errors import MeasurementError, MicrobenchError, Skip
from microbench.core.units import plain

PACKAGE = Path(__file__).parents[2]
INSTALLED = "-packages" + os.sep  # site-packages and dist-packages
LONGEST_SOURCE, LONGEST_ERROR = 60, 300
# Functions that only turn an error code into an exception.
CHECKING = re.compile(r"check|raise|assert", re.IGNORECASE)
Place = tuple[str, int, str]  # file, line, function


class Followed(NamedTuple):
    """What a call returned or raised, and where the capture broke: a line in words, and the called function."""

    result: object = None
    error: Exception | None = None
    line: str = ""
    called: str = ""


def attempt(call: Callable[[], object]) -> Followed:
    """Make a call of the user's function, which may raise anything."""
    try:
        return Followed(call())
    except Exception as error:  # noqa: BLE001 - a user's function raises what its libraries raise
        return Followed(error=error)


def called(call: Callable[[], object], file: str) -> Any:
    """The result of a call of the user's function.

    If the call raises an exception, raises MeasurementError with the user's line. This package's own errors pass
    through.
    """
    ended = attempt(call)
    error = ended.error
    if error is None:
        return ended.result
    if isinstance(error, MeasurementError | MicrobenchError | Skip):
        raise error
    place = _Follower(lambda: False, file).place_of(error)
    where = f" ({words(place)})" if place is not None else ""
    raise MeasurementError(f"{plain(said(error), LONGEST_ERROR)}{where}") from error


def said(error: BaseException) -> str:
    """The type of an exception and what it says; saying it may fail, too."""
    lines = traceback.format_exception_only(error)
    line = lines[-1 if isinstance(error, SyntaxError) else 0].strip()
    return f"{type(error).__name__}{line[line.find(':') :] if ':' in line else ''}"


def follow(call: Callable[[], object], broken: Callable[[], bool], file: str) -> Followed:
    """Make a call, and check after each line of the user's code whether the capture is ``broken``.

    The user's code is all code in the folder of ``file``, and code outside it that belongs neither to Python, nor to an
    installed package, nor to microbench.
    """
    follower = _Follower(broken, file)
    before = sys.gettrace(), sys.getprofile()
    sys.settrace(follower.trace)
    sys.setprofile(follower.profile)
    try:
        ended = attempt(call)
    finally:
        sys.setprofile(before[1])
        sys.settrace(before[0])
    place, called = follower.found, follower.found_call
    if place is None and ended.error is not None:
        place = follower.place_of(ended.error)
    if place is None and broken():
        place = follower.last
    if ended.error is not None:
        called = follower.called_from(ended.error) or called or follower.failed_call
    return ended._replace(line=words(place) if place is not None else "", called=called)


def words(place: Place) -> str:
    """A line as a report shows it: "train.py:12 in step: loss.item()"."""
    file, line, function = place
    source = linecache.getline(file, line).strip()
    return plain(f"{Path(file).name}:{line} in {function}: {source[:LONGEST_SOURCE]}".rstrip(": "))


class _Follower:
    """The functions for sys.settrace and sys.setprofile.

    ``found`` is the first line after which the capture was broken, ``found_call`` the C function that broke it, and
    ``failed_call`` the last C function that raised.
    """

    def __init__(self, broken: Callable[[], bool], file: str) -> None:
        self._broken = broken
        self._own = os.path.join(Path(file).resolve().parent, "") if file else ""
        paths = sysconfig.get_paths()
        installed = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        self._others = tuple(sorted({*installed, str(PACKAGE), "<"}))
        self._known: dict[str, bool] = {}
        self.last: Place | None = None
        self.found: Place | None = None
        self.found_call = ""
        self.failed_call = ""

    def is_user(self, file: str) -> bool:
        """Whether a source file is the user's.

        Installed packages may lie below the user's folder, in a virtual environment. Compiled ones give their sources
        relative paths: "cuda/core/_launcher.pyx".
        """
        if file not in self._known:
            own = bool(self._own) and not self._own.startswith(str(PACKAGE)) and file.startswith(self._own)
            installed = INSTALLED in file or not os.path.isabs(file)
            self._known[file] = not installed and (own or not file.startswith(self._others))
        return self._known[file]

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Check the capture between two lines of the user's code."""
        if not self.is_user(frame.f_code.co_filename):
            return None
        if event in ("line", "return"):
            if self.found is None and self.last is not None and self._broken():
                self.found = self.last
            at: FrameType | None = frame if event == "line" else frame.f_back
            while event == "return" and at is not None and not self.is_user(at.f_code.co_filename):
                at = at.f_back
            if at is not None:
                self.last = at.f_code.co_filename, at.f_lineno, at.f_code.co_name
        return self.trace

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Check the capture after each C function."""
        if event not in ("c_return", "c_exception") or self.found is not None:
            return
        name = f"{getattr(argument, '__qualname__', None) or argument}"
        if event == "c_exception":
            self.failed_call = name
        if self.last is not None and self._broken():
            self.found, self.found_call = self.last, name

    def called_from(self, error: Exception) -> str:
        """The functions called below the user's innermost line in an error's traceback: the first one, and the last one
        that does not only check an error code."""
        names: list[str] = []
        step = error.__traceback__
        while step is not None:
            code = step.tb_frame.f_code
            names = [] if self.is_user(code.co_filename) else [*names, getattr(code, "co_qualname", code.co_name)]
            step = step.tb_next
        doing = [name for name in names if not CHECKING.search(name)]
        return " → ".join(dict.fromkeys((*doing[:1], *doing[-1:])))

    def place_of(self, error: Exception) -> Place | None:
        """The innermost line of the user's code in an error's traceback."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if self.is_user(frame.filename)]
        return (frames[-1].filename, frames[-1].lineno or 0, frames[-1].name) if frames else None
