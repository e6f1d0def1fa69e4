"""The errors that a user can see, each with an exit code, a one-line cause and a one-line next step."""

import difflib
import shlex
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """The command's exit codes; a test compares the README's table with them."""

    MEASURED = 0
    SOME_FAILED = 1
    USAGE = 2
    NO_DEVICE = 3
    UNREADABLE_RUN = 4
    CHANGED = 5
    INTERRUPTED = 130


class MicrobenchError(Exception):
    """An error whose ``cause`` and ``next_step`` are one line each; a traceback shows both.

    The command prints them and exits with ``exit_code``.
    """

    exit_code = ExitCode.SOME_FAILED

    def __init__(self, cause: str, next_step: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.next_step = next_step
        self.add_note(f"next: {next_step}")

    def __reduce__(self) -> tuple[object, ...]:
        """How it is pickled. A pool of processes waits for ever if an error of its workers cannot be read."""
        return type(self), (self.cause, self.next_step), self.__dict__


def run_command(benchmarks: Iterable[str], adding: Iterable[str] = ()) -> str:
    """The command that measures these benchmarks; ``adding`` are the options that make it add to a run."""
    return shlex.join(["microbench", "run", *benchmarks, *adding])


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The next step of an error about an unknown name: "did you mean X?"; "" if no known one is as near as that."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else ""


class UsageError(MicrobenchError):
    """Something was asked for that does not exist or is impossible."""

    exit_code = ExitCode.USAGE


class DeviceAbsentError(MicrobenchError):
    """The device asked for by name is absent or cannot be used."""

    exit_code = ExitCode.NO_DEVICE


class RunUnreadableError(MicrobenchError):
    """A file is missing, truncated, newer than the tool, or not a run."""

    exit_code = ExitCode.UNREADABLE_RUN


class ResultNotWrittenError(MicrobenchError):
    """The result file cannot be written: it exists, or its folder is missing or read-only."""

    exit_code = ExitCode.USAGE


class MeasurementError(Exception):
    """A case failed: a CUDA call returned an error, a result was wrong, a gate timed out too often."""


class Skip(Exception):
    """A case cannot run here; the reason is shown. What a machine does not support is skipped, never a failure."""
