"""Runs a command with the recorder in its processes; its signals, exit and standard streams stay its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from microbench.core.errors import UsageError
from microbench.core.units import plain
from microbench.recorder import cupti, library, recorder

INJECTED = Path(__file__).parent / "inject"
VARIABLE = "MICROBENCH_WATCH"
# Signals that somebody sends to microbench are meant for the program.
PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
LONGEST_WAIT_S = 1.0
# Python ignores these; the program must not inherit that.
DEFAULT = (signal.SIGPIPE, signal.SIGXFSZ)


class Reason(NamedTuple):
    """Why a process was not recorded, or not to its end, and what to do; one line each."""

    cause: str
    next_step: str


class Ended(NamedTuple):
    """The exit code of a command, or minus the number of the signal that ended it, and what was not recorded."""

    status: int
    reasons: tuple[Reason, ...]


OTHERS_INJECTION = Reason(
    f"programs that are not Python, because {library.VARIABLE} is set already",
    "unset it, unless another tool needs it",
)


class How(NamedTuple):
    """How processes are recorded. ``for_s`` is the time after its first work on the GPU at which a process ends its
    recording, in s.

    With ``window_s`` and ``every_s`` a process records everything in the first ``window_s`` of each ``every_s``, and
    only waits and the turns of its loops in the rest. With neither it pauses now and then, unless it is recorded
    ``whole``. With ``stacks`` the recording of a Python process also says in which functions its threads were.
    """

    for_s: float | None = None
    window_s: float | None = None
    every_s: float | None = None
    stacks: bool = False
    whole: bool = False


WHOLE = How(whole=True)  # everything, from the begin to the end


def begin_here(
    folder: Path, tell: Callable[[str, str], None], *, file: Path | None = None, stacks: bool = False
) -> recorder.Recorder:
    """Record this process itself from now on, into ``file`` or a file in ``folder``, which exists.

    ``tell`` is called with a cause and a next step if the recording ends early. Raises NotRecorded and OSError.
    """
    made = library.library()
    if made is None:
        raise cupti.NotRecorded(*library.MISSING)
    settings = {**_settings(folder, WHOLE._replace(stacks=stacks), made), "file": None if file is None else str(file)}
    return recorder.begin("", settings, tell)


def _settings(folder: Path, how: How, made: Path) -> dict[str, object]:
    """What recorder.begin takes."""
    return {"folder": str(folder), "library": str(made), **how._asdict()}


def watch(
    command: list[str],
    folder: Path,
    how: How = WHOLE,
    when_begun: Callable[[], None] = lambda: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command to its end; each process that imports a GPU package of Python, or that starts CUDA in another way,
    writes a recording into ``folder``.

    ``when_begun`` is called after the command has begun, which inherits no file opened in it. ``meanwhile`` is called
    about once a second until the command ends; signals wait until it returns. Neither may raise. Raises UsageError,
    before the command begins, if the recorder or the command cannot be started.
    """
    with contextlib.ExitStack() as stack:
        try:
            reasons = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="microbench-")))
        except OSError as error:
            raise UsageError(
                f"the temporary folder cannot be used: {error.strerror or error}", "name another one by TMPDIR"
            ) from error
        made = library.library()
        taken = os.environ.get(library.VARIABLE, "") not in ("", str(made))  # it is ours under another watch
        missed = [Reason(*library.MISSING)] if made is None else [OTHERS_INJECTION] * taken
        added = {} if made is None else variables(folder.absolute(), reasons, how, made, injected=not taken)
        status = _run(command, {**os.environ, **added}, when_begun, meanwhile)
        return Ended(status, (*_reasons(reasons), *missed))


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Block signals, also in threads that start here and live on, such as those of NumPy.

    A program that imports NumPy before ``watch`` must import it within this block: ``watch`` blocks signals in its own
    thread only, and a Ctrl-C that another thread receives ends this process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def variables(folder: Path, reasons: Path, how: How, made: Path, *, injected: bool = True) -> dict[str, str]:
    """The variables of the environment by which processes record themselves; those of programs that are not Python only
    if the library is ``injected``."""
    settings = {**_settings(folder, how, made), "reasons": str(reasons), "injected": injected}
    path = os.pathsep.join(filter(None, (str(INJECTED), os.environ.get("PYTHONPATH"))))
    ours = {VARIABLE: json.dumps(settings), "PYTHONPATH": path}
    if not injected:
        return ours
    times = {"FOR_MS": how.for_s, "WINDOW_MS": how.window_s, "EVERY_MS": how.every_s}
    words = {name: "" if seconds is None else str(round(seconds * 1000)) for name, seconds in times.items()}
    words |= {"FOLDER": str(folder), "REASONS": str(reasons), "WHOLE": "1" if how.whole else ""}
    words |= {"CUDA": ",".join(map(str, cupti.majors())), "CUPTI": next(cupti.paths(), "")}
    return {**ours, library.VARIABLE: str(made), **{f"{VARIABLE}_{name}": value for name, value in words.items()}}


def _run(
    command: list[str],
    environment: Mapping[str, str],
    when_begun: Callable[[], None],
    meanwhile: Callable[[], None],
) -> int:
    """Run a command to its end, in the process group of this process; the status that it ends with.

    A signal of the terminal, such as Ctrl-C, goes to the whole group, so the program has it already. Any other that
    reaches this process is passed on. None of them ends this process before the program.
    """
    awaited = {*PASSED_ON, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        try:
            process = os.posix_spawnp(command[0], command, environment, setsigmask=before, setsigdef=DEFAULT)
        except OSError as error:
            raise UsageError(
                f"{plain(command[0])} cannot be run: {error.strerror}", "microbench watch -- python train.py"
            ) from error
        when_begun()
        ended, status = os.waitpid(process, os.WNOHANG)
        while not ended:
            # A thread of another library may have taken the signal of a command that ended before this line.
            received = signal.sigtimedwait(awaited, LONGEST_WAIT_S)
            if received is None or received.si_signo == signal.SIGCHLD:
                ended, status = os.waitpid(process, os.WNOHANG)
                if received is None and not ended:
                    meanwhile()
            elif received.si_code <= 0:  # sent by a process and not by the terminal
                os.kill(process, received.si_signo)
        return os.waitstatus_to_exitcode(status)
    finally:
        while signal.sigtimedwait(PASSED_ON, 0):  # signals that came too late for the program must not end this process
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reasons(folder: Path) -> list[Reason]:
    """What the recorders have left, each reason once."""
    found: dict[Reason, None] = {}
    for path in sorted(folder.iterdir()):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, TypeError):
                cause, next_step = json.loads(line)
                found[Reason(plain(cause), plain(next_step))] = None
    return list(found)
