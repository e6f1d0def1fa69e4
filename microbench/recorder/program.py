"""Runs a command with the recorder in its processes; its signals, exit and standard streams stay its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from microbench.core import c_library, files
from microbench.core.errors import UsageError
from microbench.core.units import plain
from microbench.recorder import cupti, recorder
from microbench.recorder.job import HARMLESS, HELD, Job

INJECTED = Path(__file__).parent / "inject"
VARIABLE = "MICROBENCH_WATCH"
SOURCE = Path(__file__).with_name("recorder.c")
# The driver loads what this names into each process that starts CUDA. Programs of Python load the recorder themselves.
INJECTION = "CUDA_INJECTION64_PATH"
MOST_BYTES = 1 << 20  # of the reasons of one process


class Reason(NamedTuple):
    """Why a process was not recorded, or not to its end, and what to do; one line each."""

    cause: str
    next_step: str


class Ended(NamedTuple):
    """The exit code of a command, or minus the number of the signal that ended it, and what was not recorded."""

    status: int
    reasons: tuple[Reason, ...]


NO_PATH = Reason(
    "Python from its first import on, because the path of this package and that of the temporary folder have a colon",
    "name another temporary folder by TMPDIR",
)
OTHERS_INJECTION = Reason(
    f"programs that are not Python, because {INJECTION} is set already",
    "unset it, unless another tool needs it",
)


class How(NamedTuple):
    """How processes are recorded. ``for_s`` is the time after its first work on the GPU at which a process ends its
    recording, in s.

    With ``window_s`` and ``every_s`` a process records everything in the first ``window_s`` of each ``every_s``, and
    only waits and the turns of its loops in the rest. With neither it pauses now and then, unless it is recorded
    ``whole``. With ``stacks`` the recording of a Python process also says in which functions its threads were. With
    ``orders`` it records as often as that file orders it.
    """

    for_s: float | None = None
    window_s: float | None = None
    every_s: float | None = None
    stacks: bool = False
    whole: bool = False
    orders: str = ""


WHOLE = How(whole=True)  # everything, from the begin to the end


def begin_here(
    folder: Path,
    tell: Callable[[str, str], None],
    held: list[recorder.Recorder] | None = None,
    *,
    file: Path | None = None,
    stacks: bool = False,
) -> recorder.Recorder:
    """Record this process itself from now on, into ``file`` or a file in ``folder``, which exists.

    ``tell`` and ``held`` are as in recorder.begin. Raises NotRecorded and OSError.
    """
    made = c_library.library(SOURCE)
    if made is None:
        raise cupti.NotRecorded(*c_library.MISSING)
    settings = {**_settings(folder, WHOLE._replace(stacks=stacks), made), "file": None if file is None else str(file)}
    return recorder.begin("", settings, tell, held)


def _settings(folder: Path, how: How, made: Path) -> dict[str, object]:
    """What recorder.begin takes."""
    return {"folder": str(folder), "library": str(made), **how._asdict()}


def watch(
    command: list[str],
    folder: Path,
    how: How = WHOLE,
    when_begun: Callable[[Path], None] = lambda reasons: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command to its end; each process that imports a GPU package of Python, or that starts CUDA in another way,
    writes a recording into ``folder``.

    ``when_begun`` is called after the command has begun, which inherits no file opened in it, with the folder in which
    recorders leave reasons. ``meanwhile`` is called
    about once a second until the command ends; signals wait until it returns. Neither may raise. Raises UsageError,
    before the command begins, if the recorder or the command cannot be started.
    """
    made = c_library.library(SOURCE)
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(signals_held())
        try:
            reasons = _folder_of_reasons(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="microbench-"))))
        except OSError as error:
            raise UsageError(
                f"the temporary folder cannot be used: {error.strerror or error}", "name another one by TMPDIR"
            ) from error
        taken = os.environ.get(INJECTION, "") not in ("", str(made))  # it is ours under another watch
        missed = [Reason(*c_library.MISSING)] if made is None else [OTHERS_INJECTION] * taken
        added = {} if made is None else variables(folder.absolute(), reasons, how, made, injected=not taken)
        if made is not None and os.pathsep in str(_on_python_path(reasons)):
            missed.append(NO_PATH)
        if early := signal.sigpending() - HARMLESS:  # they end this process as soon as they are not held any more
            return Ended(-min(early), ())
        job = Job(command, {**os.environ, **added}, before)
        when_begun(reasons)
        status = job.wait(meanwhile)
        if not folder.exists():
            missed.append(Reason(f"{plain(folder)} was removed while the command ran", "let the command keep it"))
        return Ended(status, (*left(reasons), *missed))


def _folder_of_reasons(folder: Path) -> Path:
    """Where recorders leave why they did not record. A process that gives up root's rights leaves it too."""
    reasons = folder / "reasons"
    reasons.mkdir()
    if os.pathsep in str(INJECTED):
        (folder / "inject").symlink_to(INJECTED)
    if os.geteuid() == 0:
        folder.chmod(0o711)
        reasons.chmod(0o1733)
    return reasons


def _on_python_path(reasons: Path) -> Path:
    """The folder of sitecustomize.py, or a link to it: no entry of PYTHONPATH can have a colon."""
    return reasons.parent / "inject" if os.pathsep in str(INJECTED) else INJECTED


@contextlib.contextmanager
def signals_held() -> Iterator[set[int]]:
    """Block signals, also in threads that start here and live on, such as those of NumPy; gives those blocked before.

    A program that imports NumPy before ``watch`` must import it within this block: ``watch`` blocks signals in its own
    thread only, and a Ctrl-C that another thread receives ends this process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield set(before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def variables(folder: Path, reasons: Path, how: How, made: Path, *, injected: bool = True) -> dict[str, str]:
    """The variables of the environment by which processes record themselves; those of programs that are not Python only
    if the library is ``injected``."""
    settings = {**_settings(folder, how, made), "reasons": str(reasons), "injected": injected}
    entry = str(_on_python_path(reasons))
    path = os.pathsep.join(filter(None, (entry if os.pathsep not in entry else "", os.environ.get("PYTHONPATH"))))
    ours = {VARIABLE: json.dumps(settings), f"{VARIABLE}_REASONS": str(reasons), "PYTHONPATH": path}
    if not injected:
        return ours
    times = {"FOR_MS": how.for_s, "WINDOW_MS": how.window_s, "EVERY_MS": how.every_s}
    words = {name: "" if seconds is None else str(round(seconds * 1000)) for name, seconds in times.items()}
    words |= {"FOLDER": str(folder), "WHOLE": "1" if how.whole else "", "ORDERS": how.orders}
    words |= {"PYTHON": str(INJECTED / "sitecustomize.py")}
    words |= {"CUDA": ",".join(map(str, cupti.majors())), "CUPTI": next(cupti.paths(), "")}
    return {**ours, INJECTION: str(made), **{f"{VARIABLE}_{name}": value for name, value in words.items()}}


def left(folder: Path) -> list[Reason]:
    """What the recorders have left in the lines of files, and in symbolic links; each reason once."""
    found: dict[Reason, None] = {}
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            if path.is_symlink():
                lines = [os.readlink(os.fsencode(path))]
            else:
                lines = stack.enter_context(files.open_regular(path)).read(MOST_BYTES).splitlines()
            for line in lines:
                with contextlib.suppress(ValueError, TypeError):
                    cause, next_step = json.loads(line.decode(errors="replace"))
                    found[Reason(plain(cause), plain(next_step))] = None
    return list(found)
