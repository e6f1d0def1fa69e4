"""Records this very process for the time of a block, by the recorder that `microbench watch` puts into programs; and
diagnoses a training run from within, by a handler for torch.profiler and callbacks of Lightning and transformers."""

from __future__ import annotations

import os
import pkgutil
import secrets
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from microbench.core.errors import MicrobenchError, UsageError
from microbench.core.units import plain
from microbench.recorder import program, recorder
from microbench.recorder.cupti import NotRecorded

if TYPE_CHECKING:
    import pandas

    from microbench.diagnosis.counts import Counts
    from microbench.library.verdicts import DiagnosedTraces
    from microbench.traces.trace import Table, Trace

WARM_UPS, CALLS = 4, 3  # of a function whose counts are asked for
ANOTHER_PATH = "give another path"


class Tables(NamedTuple):
    """A recording as two DataFrames of pandas: ``work`` of GPUs, and CUDA ``calls``.

    They have a row per kernel, copy or memset, and one per CUDA call, with times in ns. ``work["call"]`` is the index
    of a row's call.
    """

    work: pandas.DataFrame
    calls: pandas.DataFrame


class Recording:
    """What a block of this process submits to the GPU, recorded until the block ends, whatever it raises.

    Without a path the file is temporary: it is removed with this object. The block begins with a UsageError if the
    process cannot be recorded. If the recording ends before the block, as on a full disk, the end of the block warns.
    """

    def __init__(self, path: str | Path | None = None, *, stacks: bool = False) -> None:
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
            raise UsageError("the block that is recorded has not ended", "ask after the block of `with`")
        return self._file

    def diagnosis(self) -> DiagnosedTraces:
        """Why the GPU waits, as `microbench.diagnose` says it. Raises UsageError if the block used no GPU."""
        from microbench.diagnosis.diagnosis import diagnose
        from microbench.library.answers import Diagnosed, costs_of
        from microbench.library.verdicts import DiagnosedTraces

        trace, costs = self._trace, costs_of(None)
        found = diagnose(trace, costs.fit, costs_of=costs.gpu, elsewhere=costs.elsewhere)
        return DiagnosedTraces(Diagnosed([found], [self.path], costs, []))

    def to_pandas(self) -> Tables:
        """The tables of work and calls. Raises UsageError without pandas, or if the block used no GPU."""
        from microbench.library.results import package
        from microbench.traces.trace import NONE

        pandas = package("pandas")
        frames = [pandas.DataFrame(columns(self._trace, table)) for table in (self._trace.work, self._trace.calls)]
        for frame in frames:  # numbers that the trace does not have are missing
            for name in frame.columns:
                if frame[name].dtype.kind == "i" and not name.endswith("_ns"):
                    frame[name] = frame[name].astype("Int64").mask(frame[name] == NONE)
        return Tables(*frames)

    @cached_property
    def _trace(self) -> Trace:
        """The recording as the diagnosis reads it."""
        from microbench.traces.reading import read

        trace = read(self.path)
        if not len(trace.work):
            raise UsageError(
                "the block submitted nothing to a GPU", "record a block that runs kernels, copies or memsets"
            )
        return trace

    def __enter__(self) -> Self:
        if self._file is not None:
            raise UsageError("this recording has been made already", "call microbench.watch() for each block")
        early = self._early  # `tell` keeps no reference to this object, with which the temporary file goes

        def tell(cause: str, next_step: str) -> None:
            early.append(f"not recorded: {plain(cause)}")

        try:
            folder = Path(tempfile.gettempdir(), f"microbench-recording-{secrets.token_hex(8)}")
            held: list[recorder.Recorder] = []
            # First, and twice, because a Ctrl-C may come between any two lines, and in one of the two.
            for _ in range(2):
                weakref.finalize(self, _end, folder, os.getpid(), held)
            folder.mkdir(0o700)
            self._recorder = program.begin_here(folder, tell, held, file=self._given, stacks=self._stacks)
        except NotRecorded as error:
            next_step = ANOTHER_PATH if error.next_step.endswith(" -o") else error.next_step
            raise UsageError(plain(error.cause), next_step) from None
        except OSError as error:
            cause = f"the recording cannot be made: {error.strerror or error}"
            raise UsageError(plain(cause), ANOTHER_PATH) from error
        self._file = Path(self._recorder.path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._recorder is None:
            raise UsageError("no block is recorded", "use it by `with`, once")
        self._recorder.end()
        self._recorder, self._ended = None, True
        if self._early and error is None:
            warnings.warn("; ".join(self._early), RuntimeWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<microbench.Recording{f' {plain(self.path)}' if self._ended else ': not ended'}>"


def counted_call(call: Callable[[], object]) -> Counts:
    """The usual counts of a call, which is made a few times before and then recorded CALLS times. Raises UsageError."""
    from microbench.diagnosis.counts import count_steps, usual_of

    with Recording():  # its end waits for the work of these calls
        for _ in range(WARM_UPS):
            call()
    several = []
    for _ in range(CALLS):
        with Recording() as recording:
            call()
        several.append(count_steps(recording._trace, None))
    return usual_of(several)


def _end(folder: Path, process: int, held: list[recorder.Recorder]) -> None:
    """End a recording whose block was not left, and remove its temporary folder; a forked child leaves that to the
    process that made it."""
    if os.getpid() == process:
        for each in held:
            each.end()
        shutil.rmtree(folder, ignore_errors=True)


def columns(trace: Trace, table: Table) -> dict[str, Any]:
    """The columns of a table of the trace, with names, kinds and memories in words."""
    import numpy as np

    from microbench.traces.trace import MEMORIES, WORK_KINDS

    words: dict[str, tuple[object, ...]] = {
        "name": (*trace.names, None),
        "kind": WORK_KINDS,
        "source": MEMORIES,
        "target": MEMORIES,
        "thread": (*(thread.number for thread in trace.threads), None),
    }
    found = {}
    for name in table.dtype.names or ():
        found[name] = table[name]
        if name in words:  # NONE (-1) is the last of the words
            found[name] = np.array(words[name], object)[table[name]]
    return found


def handle(folder: Path, step: str | None, profiler: Any) -> None:
    """Save the trace of a torch.profiler to a new file in a folder, and show its diagnosis."""
    folder.mkdir(parents=True, exist_ok=True)
    names = (folder / f"trace-{os.getpid()}-{number}.json" for number in count(1))
    path = next(path for path in names if not path.exists())
    profiler.export_chrome_trace(str(path))
    show(path, step)


def show(path: Path, step: str | None = None) -> None:
    """Show the diagnosis of a trace on standard error, or why there is none. The program goes on in any case."""
    from microbench.library.answers import diagnosed
    from microbench.report.terminal import terminal

    console = terminal.open_console(sys.stderr)
    try:
        terminal.draw(diagnosed([path], step=step).screen(), console)
        terminal.tell((f"recorded: {plain(path)}",), console)
    except MicrobenchError as error:
        terminal.tell_error(error, console)


class Window:
    """Some steps of a training run, recorded: those behind the first ``after``. Where they cannot be recorded it says
    so once."""

    def __init__(self, steps: int, after: int, path: str | Path | None) -> None:
        if steps < 1 or after < 0:
            raise UsageError(
                "a window has at least one step, and follows none or more", "for example steps=20, after=10"
            )
        self._steps, self._after, self._path = steps, after, path
        self._begun = 0
        self._recording: Recording | None = None

    def begin_step(self) -> None:
        """A step begins."""
        self._begun += 1
        if self._begun == self._after + 1:
            recording = Recording(self._path)
            try:
                recording.__enter__()
            except MicrobenchError as error:
                from microbench.report.terminal import terminal

                terminal.tell_error(error, terminal.open_console(sys.stderr))
            else:
                self._recording = recording

    def end_step(self) -> None:
        """A step ends."""
        if self._begun >= self._after + self._steps:
            self.end()

    def end(self) -> None:
        """End the recording, if one goes on, and show its diagnosis."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.__exit__(None, None, None)
            with suppress(OSError):  # standard error may be closed
                show(recording.path)


def of_lightning(window: Window) -> Any:
    """A callback of Lightning. Raises UsageError without it."""
    names = {"on_train_batch_start": "begin_step", "on_train_batch_end": "end_step", "on_exception": "end"}
    return _callback(of_lightning, window, ("lightning.pytorch:Callback", "pytorch_lightning:Callback"), names)


def of_transformers(window: Window) -> Any:
    """A callback of transformers' Trainer. Raises UsageError without it."""
    names = {"on_step_begin": "begin_step", "on_step_end": "end_step"}
    return _callback(of_transformers, window, ("transformers:TrainerCallback",), names)


def _callback(made_by: Callable[[Window], Any], window: Window, bases: Sequence[str], names: Mapping[str, str]) -> Any:
    """An object whose class is derived from that of another package, and whose methods of these names call those of the
    window. Strategies of several processes hand it over."""
    for place in bases:
        with suppress(ModuleNotFoundError):
            base = pkgutil.resolve_name(place)
            break
    else:
        package = bases[0].partition(".")[0].partition(":")[0]
        raise UsageError(f"{bases[0].partition(':')[0]} is not installed", f"install it: pip install {package}")
    calls = {name: getattr(window, of_window) for name, of_window in {**names, "on_train_end": "end"}.items()}
    methods = {name: lambda self, *_, call=call, **__: call() for name, call in calls.items()}
    return type("Microbench", (base,), {**methods, "__reduce__": lambda self: (made_by, (window,))})()
