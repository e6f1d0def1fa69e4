"""Every error a user can see: its exit code, its cause in one line, the next step in one line."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """What the command's exit code means; the README's table is tested against this."""

    MEASURED = 0
    SOME_FAILED = 1
    USAGE = 2
    NO_DEVICE = 3
    UNREADABLE_RUN = 4
    CHANGED = 5
    INTERRUPTED = 130


class MicrobenchError(Exception):
    """An error with a cause and a next step, each one line; the CLI prints both and exits with ``exit_code``."""

    exit_code = ExitCode.SOME_FAILED

    def __init__(self, cause: str, next_step: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.next_step = next_step


def run_command(benchmarks: Iterable[str], adding: Iterable[str] = ()) -> str:
    """The command that measures these benchmarks; ``adding`` are the options that make it add to a run."""
    return shlex.join(["microbench", "run", *benchmarks, *adding])


class UsageError(MicrobenchError):
    """The command line asks for something that does not exist or cannot be."""

    exit_code = ExitCode.USAGE


class DeviceAbsentError(MicrobenchError):
    """The device asked for by name is not here, or cannot be used."""

    exit_code = ExitCode.NO_DEVICE


class RunUnreadableError(MicrobenchError):
    """A run file is missing, truncated, newer than the tool, or not a run at all."""

    exit_code = ExitCode.UNREADABLE_RUN


class ResultNotWrittenError(MicrobenchError):
    """The result file cannot be written: it exists, or its folder is missing or read-only."""

    exit_code = ExitCode.USAGE


class MeasurementError(Exception):
    """A case failed: a CUDA call returned an error, a result was wrong, a gate timed out too often."""


class Skip(Exception):
    """A case cannot run here; the reason is shown. Unsupported is a skip, never a failure."""
