"""Diagnoses a training run from within: a handler for torch.profiler, and callbacks of Lightning and transformers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from microbench.core.errors import MicrobenchError, UsageError
from microbench.core.units import plain
from microbench.library.recordings import Recording


def handler(folder: str | Path, step: str | None) -> Callable[[Any], None]:
    """A function that saves the trace of a torch.profiler into a folder, and shows its diagnosis."""
    return partial(_handle, Path(folder), step)  # which another process may get


def _handle(folder: Path, step: str | None, profiler: Any) -> None:
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
    base = _base((("lightning.pytorch", "Callback"), ("pytorch_lightning", "Callback")), "pip install lightning")

    class Microbench(base):  # type: ignore[misc, valid-type]
        def on_train_batch_start(self, *_: object, **__: object) -> None:
            window.begin_step()

        def on_train_batch_end(self, *_: object, **__: object) -> None:
            window.end_step()

        def __reduce__(self) -> tuple[Any, ...]:  # strategies of several processes hand it over
            return of_lightning, (window,)

        def on_train_end(self, *_: object, **__: object) -> None:
            window.end()

        def on_exception(self, *_: object, **__: object) -> None:
            window.end()

    return Microbench()


def of_transformers(window: Window) -> Any:
    """A callback of transformers' Trainer. Raises UsageError without it."""
    base = _base((("transformers", "TrainerCallback"),), "pip install transformers")

    class Microbench(base):  # type: ignore[misc, valid-type]
        def on_step_begin(self, *_: object, **__: object) -> None:
            window.begin_step()

        def on_step_end(self, *_: object, **__: object) -> None:
            window.end_step()

        def __reduce__(self) -> tuple[Any, ...]:  # strategies of several processes hand it over
            return of_transformers, (window,)

        def on_train_end(self, *_: object, **__: object) -> None:
            window.end()

    return Microbench()


def _base(places: tuple[tuple[str, str], ...], install: str) -> Any:
    """The class of another package that a callback must have as its base."""
    from importlib import import_module

    for module, name in places:
        with suppress(ModuleNotFoundError):
            return getattr(import_module(module), name)
    raise UsageError(f"{places[0][0]} is not installed", f"install it: {install}")
