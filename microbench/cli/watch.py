"""The command watch. Heavy imports stay inside it."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from microbench.cli.output import draw, tell, tell_error
from microbench.core.errors import ExitCode, MicrobenchError, UsageError
from microbench.core.options import argument, flag, option
from microbench.core.units import as_time, counted, percent, plain, to_ascii, typed_share, typed_size

if TYPE_CHECKING:
    from microbench.diagnosis.live import Live
    from microbench.gpu.machine.utilisation import Sampler
    from microbench.recorder.program import Ended
    from microbench.traces.trace import Trace

USUAL_WINDOW_S, USUAL_EVERY = 2.0, 10
UNSEEN = (
    "no process of the command started CUDA; those with a cleaned environment are not seen; start the program itself: "
    "microbench watch -- python train.py"
)
NOTHING = (
    "the command submitted nothing to a GPU while it was recorded; of a process that ends by a kill or os._exit the "
    "last thousands of rows are lost"
)
# A core dump of microbench itself would be useless.
DUMPING = (signal.SIGQUIT, signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)


def watch(
    command: Sequence[str] = argument(
        "[COMMAND]...", "The command with its arguments, behind -- or not.", (), read=tuple
    ),
    out: Path | None = option(
        "FOLDER", "Record into this new folder, a file a process; default: recording-1, recording-2, …", "-o", "--out"
    ),
    for_: str | None = option(
        "TIME", "End the recording of a process so long after its first launch: 60s. It runs on."
    ),
    window: str | None = option(
        "TIME", "Record only this long at a time, and then pause: 2s. Default: longer and longer."
    ),
    every: str | None = option("TIME", "From the begin of one window to that of the next; default: 10 windows."),
    whole: bool = flag("Record without pauses, as a short program of long steps needs."),
    step: str | None = option("TIME", "As for `diagnose`: the time of a step, or whose call is one: train.py:step."),
    no_stacks: bool = flag("Do not sample, each 2 to 4 ms, in which lines and functions of Python the GPU waits."),
    utilisation: bool = flag("Also say what NVML and GPM say meanwhile, beside the time in which kernels ran."),
    counts: bool = flag("Also show the counts of a step at the end, which `diagnose` compares."),
    pid: int | None = option("PID", "Record nothing: say what NVML says of this running process, until it ends."),
    budget: str | None = option(
        "SHARE", "Go on for as long as the command runs: short windows, so that recording takes at most 1% of the time."
    ),
    dormant: bool = flag("Record nothing until somebody asks by --attach."),
    attach: int | None = option(
        "PID", "Record a process that runs under `microbench watch --dormant` or --budget, for --for (5s)."
    ),
    metrics: str | None = option("[ADDRESS]:PORT", "Serve metrics for Prometheus, of this machine alone: :9464."),
    keep: str = option("SIZE", "The newest recordings that --budget and --dormant keep.", default="1GiB"),
) -> int:
    """Run a command, record what its processes submit to the GPU, and say at the end why the GPU waits.

    The command is not changed, and its output, signals and exit code stay its own; the diagnosis, that of `microbench
    diagnose`, goes to standard error. Each process is recorded, by CUPTI: one of Python from its first import of
    PyTorch, CuPy, Numba, JAX, Triton or another GPU package on, any other one from the start of CUDA on. Meanwhile the
    terminal's title shows the step time and how busy the GPU is; if the output goes elsewhere, the right end of the
    terminal's row does.

    Recording makes each CUDA call and each kernel slower, so it pauses now and then; the time of a step is taken from
    the pauses. Only one profiler can record a process: torch.profiler in the command sees no GPU, and under nsys
    nothing is recorded.
    """
    from microbench.recorder import program

    with program.signals_held():
        from microbench.model.step_file import typed_seconds, typed_step

        asked = typed_step(step)
        for_s, window_s, every_s = (
            typed_seconds(*each) for each in (("--for", for_), ("--window", window), ("--every", every))
        )
        sampler = None
        if utilisation and command:
            from microbench.gpu.machine.utilisation import Sampler

            sampler = Sampler()
    if pid is not None:
        if command or out is not None or utilisation or no_stacks or whole or counts or any((window, every, step)):
            raise UsageError(
                "--pid records nothing and samples a process that runs already",
                "leave out the command and all options but --for, or --pid",
            )
        from microbench.gpu.machine.utilisation import Process
        from microbench.report.sheets import utilisation as drawing

        process = Process(pid)
        gpus = ", ".join(f"GPU {number}" for number in process.numbers)
        tell([f"sampling {gpus} of process {pid} ({process.name}); Ctrl-C ends it"], error=True)
        draw(drawing.screen(process.follow(for_s)))
        return ExitCode.MEASURED
    if attach is not None:
        if command or any((out, window, every, whole, sampler, utilisation, budget, dormant, metrics, no_stacks)):
            cause = "--attach records by the watch that runs already"
            raise UsageError(cause, "leave out the command and all options but --for, --step and --counts")
        return _attach(attach, 5.0 if for_s is None else for_s, asked, counts=counts)
    if not command:
        raise UsageError("no command is given", "microbench watch -- python train.py")
    if budget is not None or dormant or metrics is not None:
        if any((for_, window, every, whole, sampler)) or (budget is not None and dormant):
            raise UsageError(
                "--budget, --dormant and --metrics choose the windows themselves",
                "leave out --for, --window, --every, --whole, --utilisation, and one of --budget and --dormant",
            )
        share = None if dormant else typed_share(budget or "1%")
        bytes_kept = typed_size(keep)
        folder, stacks = _new_folder(out), not no_stacks
        return _serve(list(command), folder, share, bytes_kept, metrics, asked, stacks=stacks, counts=counts)
    how = program.How(for_s, *_windows(window_s, every_s), not no_stacks, whole)
    folder = _new_folder(out)
    try:
        with sampler or contextlib.nullcontext(), LiveLine(folder) as live:

            def begun(reasons: Path) -> None:
                if sampler is not None:
                    sampler.begin()

            ended = program.watch(list(command), folder, how, begun, live.update)
        with contextlib.suppress(OSError, KeyboardInterrupt):  # a full or closed standard error does not change the end
            _explain(folder, ended, sampler, asked, counts=counts)
    finally:
        _remove_empty(folder)
    return _end_like(ended.status)


def _serve(
    command: list[str],
    folder: Path,
    share: float | None,
    keep_bytes: int,
    metrics: str | None,
    step: tuple[float | None, str],
    *,
    stacks: bool,
    counts: bool,
) -> int:
    """Run a command and record it now and then, or only when somebody asks."""
    from microbench.library.answers import costs_of
    from microbench.recorder import program

    with contextlib.ExitStack() as stack:
        with program.signals_held():  # threads that start here take no signal
            from microbench.service.door import Door
            from microbench.service.service import Service

            stack.callback(_remove_empty, folder)
            served = None
            if metrics is not None:
                from microbench.service.metrics import Metrics

                served = Metrics(metrics)
                tell([f"metrics: {served.address}"], error=True)
            service = Service(folder, costs_of(None), share, keep_bytes, lambda line: tell([line], error=True), served)
            stack.callback(service.end)
            door = None
            try:
                door = Door(service.asked)
                stack.callback(door.close)
            except UsageError as error:
                if share is None:
                    raise
                tell([f"nobody can ask by --attach: {error.cause}"], error=True)

        def begin(reasons: Path) -> None:
            service.begin(reasons)
            if door is not None:
                door.open()

        how = program.How(stacks=stacks, orders=str(service.orders))
        ended = program.watch(command, service.now, how, begin)
    with contextlib.suppress(OSError, KeyboardInterrupt):
        newest = sorted(_recordings(folder), key=lambda path: path.stat().st_mtime_ns)[-1:]
        _diagnose(newest, step, counts=counts)
        lines = [f"not recorded: {cause}; {next_step}" for cause, next_step in ended.reasons]
        if newest:
            took = f", which took at most {percent(service.lost)} of the time" if share is not None else ""
            lines.append(f"recorded: {counted(service.windows, 'window')}{took}; newest {newest[0]}")
        elif service.processes:
            lines.append(
                "recorded: nothing, because "
                + ("nobody asked by --attach" if share is None else "the command ended before its first window")
            )
        tell(lines or [f"not recorded: {UNSEEN}"], error=True)
    return _end_like(ended.status)


def _attach(process: int, for_s: float, step: tuple[float | None, str], *, counts: bool) -> int:
    """Have the watch of a process record it, and print the diagnosis."""
    from microbench.service.door import LONGEST_S, ask

    tell([f"recording for {as_time(for_s)}; Ctrl-C shows what was recorded until then"], error=True)
    answer = ask(process, for_s)
    if not answer["files"]:
        cause = "no process of the command has imported a GPU package or started CUDA"
        if answer["processes"]:
            cause = f"nothing was submitted to a GPU in {as_time(for_s)}"
        longer = f"microbench watch --attach {process} --for {min(2 * for_s, LONGEST_S):g}s"
        raise UsageError(*(answer["reasons"] or [[cause, longer]])[-1])
    paths = [Path(name) for name in answer["files"]]
    _diagnose(paths, step, counts=counts)
    tell([f"recorded: {path}" for path in paths], error=True)
    return ExitCode.MEASURED


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it holds recordings
        folder.rmdir()


def _new_folder(out: Path | None) -> Path:
    """Make the folder that is named, else the first free one of recording-1, recording-2, …"""
    for name in [out] if out is not None else [Path(f"recording-{number}") for number in range(1, 10_000)]:
        try:
            name.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            if out is None:
                break
            raise UsageError(f"{plain(out)} cannot be made: {error.strerror}", "give another folder by -o") from error
        return name
    if out is not None:
        raise UsageError(f"{plain(out)} exists", "give a new folder by -o")
    return Path(tempfile.mkdtemp(prefix="microbench-recording-"))


def _windows(window_s: float | None, every_s: float | None) -> tuple[float | None, float | None]:
    """The length of a window, and the time from the begin of one to that of the next. Raises UsageError."""
    if window_s is None and every_s is None:
        return None, None
    window_s = USUAL_WINDOW_S if window_s is None else window_s
    every_s = USUAL_EVERY * window_s if every_s is None else every_s
    if not 0 < window_s < every_s:
        raise UsageError("--every is not longer than --window", "--window 2s --every 20s")
    return window_s, every_s


def _explain(
    folder: Path, ended: Ended, sampler: Sampler | None, step: tuple[float | None, str], *, counts: bool
) -> None:
    """Print the diagnosis of all recordings, what NVML said meanwhile, where they are, and what is not recorded."""
    from microbench.diagnosis import utilisation

    lines = [f"not recorded: {cause}; {next_step}" for cause, next_step in ended.reasons]

    def said(traces: list[Trace]) -> list[str]:
        """NVML's figures for the same time."""
        return utilisation.lines(sampler.readings, traces, sampler.reason) if sampler is not None else []

    if not (paths := _recordings(folder)):
        tell([*said([]), *(lines or [f"not recorded: {UNSEEN}"])], error=True)
        return
    with contextlib.suppress(KeyboardInterrupt):
        tell(said(_diagnose(paths, step, counts=counts)), error=True)
    if paths := _recordings(folder):
        tell([f"recorded: {paths[0] if len(paths) == 1 else folder}"], error=True)
    elif not lines:
        lines = [f"not recorded: {NOTHING}"]
    tell(lines, error=True)


def _recordings(folder: Path) -> list[Path]:
    from microbench.recorder.cells import ENDING

    return sorted(folder.glob(f"*{ENDING}"))


def _diagnose(paths: list[Path], step: tuple[float | None, str], *, counts: bool) -> list[Trace]:
    """Print one diagnosis, or several beside each other, then the counts if they are wanted, and give the recordings.

    Those of processes that used no GPU are removed.
    """
    from microbench.diagnosis.changed import side
    from microbench.diagnosis.diagnosis import diagnose
    from microbench.library.answers import Diagnosed, costs_of
    from microbench.report.sheets.counts import counts_screen
    from microbench.report.terminal import terminal
    from microbench.traces.reading import read

    console, costs = terminal.open_console(sys.stderr), costs_of(None)
    several, files = [], []
    for path in paths:
        try:
            trace = read(path)
            if len(trace.work):
                several.append(diagnose(trace, costs.fit, step[0], costs.gpu, elsewhere=costs.elsewhere, asked=step[1]))
                files.append(path)
            else:
                path.unlink()
        except MicrobenchError as error:
            tell_error(error)
    if several:
        terminal.draw(Diagnosed(several, files, costs, []).screen(), console)
    for path, one in zip(files, several if counts else (), strict=False):
        terminal.draw(counts_screen(side(path.name, one)), console)
    return [one.trace for one in several]


def _end_like(status: int) -> int:
    """The exit code of the command. If a signal ended it, the same signal ends this process, for a shell to see."""
    if status >= 0:
        return status
    number = -status
    sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):
        if number in DUMPING:
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return 128 + number  # a shell's exit code for the signal, which is blocked here


# Escape sequences with which xterm and its like save and restore the title.
TITLED = ("xterm", "screen", "tmux", "rxvt", "alacritty", "foot")
KEEP_TITLE, GIVE_TITLE_BACK = "\x1b[22;2t", "\x1b]2;\a\x1b[23;2t"
KEEP_CURSOR, GIVE_CURSOR_BACK, ERASE = "\x1b7", "\x1b8", "\x1b[K"
LIVE_SHARE = 0.03  # the most of one core's time that updates take


class LiveLine:
    """Shows how the program runs at the moment, where standard error is a terminal.

    If the program's output goes to the same terminal, it is the terminal's title; otherwise it stands at the right end
    of the row in which the program has left the cursor, which stays there. Nothing that the program prints is moved.
    """

    def __init__(self, folder: Path) -> None:
        name = os.environ.get("TERM", "dumb")
        self._folder = folder
        self._live: Live | None = None
        self._as_title = os.isatty(1)
        self._on = os.isatty(2) and name != "dumb" and (name.startswith(TITLED) or not self._as_title)
        self._due_s, self._shown, self._column = 0.0, "", 0

    def __enter__(self) -> LiveLine:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._show("")

    def update(self) -> None:
        """Show the newest figures; seldom where that takes long. The first problem ends it."""
        if not self._on or time.monotonic() < self._due_s:
            return
        try:
            if self._live is None:
                from microbench.diagnosis.live import Live

                self._live = Live()
            began_s = time.thread_time()
            self._show(self._live.line(_recordings(self._folder)))
            self._due_s = time.monotonic() + (time.thread_time() - began_s) / LIVE_SHARE
        except (ArithmeticError, LookupError, MicrobenchError, OSError, ValueError):
            self._on = False

    def _show(self, line: str) -> None:
        """Put a line in the place of the last one; "" removes that."""
        text = line if "utf" in (sys.stderr.encoding or "").lower() else to_ascii(line)
        columns = os.get_terminal_size(2).columns
        if not self._as_title and len(text) >= columns:
            text = ""
        if text == self._shown or not _writable():
            return
        if self._as_title:
            shown = f"{'' if self._shown else KEEP_TITLE}\x1b]2;{text}\a" if text else GIVE_TITLE_BACK
        else:
            column = columns - len(text)
            from_column = min(self._column or column, column)
            shown = f"{KEEP_CURSOR}\x1b[{from_column}G{ERASE}\x1b[{column}G{text}{GIVE_CURSOR_BACK}"
            self._column = column
        os.write(2, shown.encode(errors="replace"))
        self._shown = text


def _writable() -> bool:
    """Whether a terminal takes something at once, and takes it from this process: it may be in the background."""
    try:
        in_front = os.tcgetpgrp(2) == os.getpgrp()
    except OSError:  # it is the terminal of another session
        in_front = True
    return in_front and bool(select.select([], [2], [], 0)[1])
