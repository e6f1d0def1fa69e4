"""The command microbench: each command parses, then calls one function. Heavy imports stay inside commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from microbench import __version__, options
from microbench.ending import open_closed_streams, told
from microbench.errors import RunUnreadableError, UsageError
from microbench.ops import LOOP_LAYER
from microbench.options import REFERENCE_RUN, Format

if TYPE_CHECKING:
    from microbench.model import Run
    from microbench.report.document import Report
    from microbench.report.progress import LiveProgress, PlainProgress

# A launch queue holds about a thousand; in a longer step the calls would wait for it.
MOST_KERNELS = 1000
NEWEST_LOOKED_AT = 20
MEASURE_AGAIN = "measure again, or show another run"

app = typer.Typer(
    name="microbench",
    help="What it costs to submit work to a CUDA GPU, and what limits it.",
    epilog="Example: microbench run --quick",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line."""
    open_closed_streams()
    try:
        with told():
            app()
    except typer.Exit as ended:
        sys.exit(ended.exit_code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"microbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: microbench run launch --quick --set duration_ns=1000,5000 --rounds 3")
def run(
    names: options.Measured = None,
    quick: options.Quick = False,
    full: options.Full = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
    rounds: options.Rounds = 1,
    time_limit: options.TimeLimit = None,
    out: options.Out = None,
    into: options.Into = None,
    resume: options.Resume = None,
    json: options.Json = False,
) -> None:
    """Measure, explain, and save a run."""
    with told():
        from microbench.runner import RunRequest, execute
        from microbench.selection import parse_overrides

        if quick and full:
            raise UsageError("--quick and --full exclude each other", "give one of them, or neither")
        request = RunRequest(
            select=tuple(names or ()),
            preset="quick" if quick else "full" if full else "default",
            overrides=parse_overrides(overrides or ()),
            device=device,
            rounds=rounds,
            time_limit_s=time_limit,
            out=out,
            into=into,
            resume=resume,
        )
        with _progress() as listener:
            result = execute(request, listener)
        if json:
            _print_bytes(_exported(result.run, Format.JSON))
        else:
            _show_result(result.run, result.path)
    raise typer.Exit(result.exit_code)


def _progress() -> LiveProgress | PlainProgress:
    from microbench.bench import discover
    from microbench.report.progress import LiveProgress, PlainProgress
    from microbench.report.terminal import open_console

    console = open_console(sys.stderr)
    metrics = {name: benchmark.metrics for name, benchmark in discover().items()}
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveProgress(console, metrics) if live else PlainProgress(console, metrics)


def _show_result(run: Run, path: Path) -> None:
    """The report, and the recorded reference run below it where this machine has no GPU to show."""
    from microbench import store
    from microbench.report import terminal, view

    console = terminal.open_console()
    footer = (f"saved: {path}", "again: microbench show    as a table: microbench export --format csv")
    terminal.draw(_report(run, footer=footer), console)
    bundled = store.bundled().get(REFERENCE_RUN)
    if not run.sessions[-1].environment.gpus and bundled is not None:
        more = f"all of it: microbench show {REFERENCE_RUN}"
        terminal.draw(view.build(store.read(bundled), reference=True, footer=(more,)), console, brief=True)


@app.command(epilog="Example: microbench show nvidia-h200")
def show(name: options.RunName = None, svg: options.Svg = None, brief: options.Brief = False) -> None:
    """Show a run again: the last one, or a bundled reference."""
    with told():
        from microbench.report import terminal

        path, run = _load(name)
        report = _report(run, path)
        if svg is None:
            terminal.draw(report, terminal.open_console(), brief=brief)
        else:
            _write_new(svg, terminal.svg(report, brief=brief))


@app.command(epilog="Example: microbench timeline --duration 3us --kernels 8")
def timeline(
    duration: options.Duration,
    kernels: options.Kernels = 8,
    layer: options.Layer = LOOP_LAYER,
    run: options.DrawnRun = None,
    svg: options.Svg = None,
) -> None:
    """Draw a step of kernels to scale, in a stream and as a graph, from a run's measured costs."""
    with told():
        from microbench import store
        from microbench.report import terminal
        from microbench.report import timeline as drawing
        from microbench.units import typed_time

        duration_s = typed_time(duration)
        if not 1 <= kernels <= MOST_KERNELS:
            cause = f"a step of {kernels} kernels cannot be drawn"
            raise UsageError(cause, f"give --kernels from 1 to {MOST_KERNELS}: more fill the launch queue")
        path, found = _load(run) if run is not None else _last_drawable(drawing.drawable)
        reference = path in store.bundled().values()
        with _consistent(found):
            sheet = drawing.sheet(found, duration_s, kernels, layer, reference=reference)
        if svg is None:
            terminal.draw(sheet, terminal.open_console(), brief=True)
        else:
            _write_new(svg, terminal.svg(sheet, brief=True))


@app.command("list", epilog="Example: microbench list launch")
def list_benchmarks(names: options.Listed = None) -> None:
    """List suites and benchmarks: their questions, axes and values."""
    with told():
        from microbench.bench import discover
        from microbench.report import catalogue, terminal
        from microbench.selection import select

        chosen = [one.benchmark for one in select(discover(), tuple(names or ()), "full", {})]
        infos = [benchmark.info(benchmark.cases("full")) for benchmark in chosen]
        terminal.draw_tables(catalogue.tables(infos), terminal.open_console())


@app.command(epilog="Example: microbench export nvidia-h200 --format csv > h200.csv")
def export(name: options.RunName = None, format: options.ExportFormat = Format.CSV) -> None:
    """Write a run to standard output, in SI base units."""
    with told():
        _print_bytes(_exported(_load(name)[1], format))


@app.command(epilog="Example: microbench doctor")
def doctor() -> None:
    """Say what this machine can and cannot measure, and what to do about it."""
    with told():
        from microbench.doctor import examine
        from microbench.gpu.open import probe_environment
        from microbench.report import catalogue, terminal

        found = examine(probe_environment(None))
        terminal.draw_tables([catalogue.checks_table(found.checks)], terminal.open_console())


def _load(name: str | None) -> tuple[Path, Run]:
    from microbench import store

    path = store.find(name) if name is not None else store.last()
    if path is None:
        raise RunUnreadableError(
            "there is no run yet", f"microbench run makes one; microbench show {REFERENCE_RUN} shows a recorded one"
        )
    path = store.newest(path)
    return path, store.read(path)


def _last_drawable(drawable: Callable[[Run], bool]) -> tuple[Path, Run]:
    """The newest run that has what it takes, else the bundled one."""
    from microbench import store

    for path in store.listing()[:NEWEST_LOOKED_AT]:
        with suppress(RunUnreadableError):
            run = store.read(path)
            with _consistent(run):
                if drawable(run):
                    return path, run
    return _load(REFERENCE_RUN)


def _report(run: Run, path: Path | None = None, footer: tuple[str, ...] = ()) -> Report:
    from microbench import store
    from microbench.report import view

    with _consistent(run):
        return view.build(
            run,
            reference=path in store.bundled().values(),
            unfinished=path is not None and path.suffix == store.GROWING,
            footer=footer,
        )


def _exported(run: Run, format: Format) -> bytes:
    from microbench import export

    with _consistent(run):
        return export.to_json(run) if format is Format.JSON else export.to_csv(run).encode()


@contextmanager
def _consistent(run: Run) -> Iterator[None]:
    """A file can be read and yet hold samples that no arithmetic bears: say so."""
    import msgspec

    try:
        yield
    except (ArithmeticError, ValueError, msgspec.DecodeError) as error:
        raise RunUnreadableError(f"run {run.run_id} holds impossible figures: {error}", MEASURE_AGAIN) from None


def _print_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _write_new(path: Path, text: str) -> None:
    from microbench.errors import ResultNotWrittenError

    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ResultNotWrittenError(f"{path} cannot be written: {error.strerror}", "choose another place") from None
