"""The command microbench: each command parses, then calls one function. Heavy imports stay inside commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from microbench import __version__
from microbench.cli import options, predict, share
from microbench.cli import show as show_commands
from microbench.cli.options import REFERENCE_RUN
from microbench.cli.runs import draw, located, open_closed_streams, parsed, print_bytes, report_at, report_of, told
from microbench.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from microbench.core.model import Run
    from microbench.report.terminal.progress import LiveProgress, PlainProgress


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
        with told(), parsed():
            ended_with = app(standalone_mode=False)
    except typer.Exit as ended:
        ended_with = ended.exit_code
    sys.exit(ended_with if isinstance(ended_with, int) else ExitCode.MEASURED)


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
    label: options.RunLabel = None,
    json: options.Json = False,
    why: options.Why = False,
) -> None:
    """Measure, explain, and save a run."""
    with told():
        from microbench.run.plan import parse_overrides
        from microbench.run.request import RunRequest
        from microbench.run.session import execute
        from microbench.runs import remarks

        checked_label = remarks.checked(label) if label is not None else None
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
        if checked_label is not None:
            remarks.change(result.path, checked_label)
        if json:
            print_bytes(share.exported(result.run, options.Format.JSON))
        else:
            _show_result(result.run, result.path, why=why)
    raise typer.Exit(result.exit_code)


def _progress() -> LiveProgress | PlainProgress:
    from microbench.core.bench import discover
    from microbench.report.terminal.progress import LiveProgress, PlainProgress
    from microbench.report.terminal.terminal import open_console

    console = open_console(sys.stderr)
    metrics = {name: benchmark.metrics for name, benchmark in discover().items()}
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveProgress(console, metrics) if live else PlainProgress(console, metrics)


def _show_result(run: Run, path: Path, *, why: bool) -> None:
    """The report, and the recorded reference run below it where this machine has no GPU to show."""
    from microbench.report import kept
    from microbench.report.sheets import view
    from microbench.report.terminal import terminal
    from microbench.runs import store

    console = terminal.open_console()
    report = report_of(run)
    terminal.draw(report, console, why=why)
    terminal.tell((f"saved: {path}", "again: microbench show    as a table: microbench export --format csv"), console)
    kept.keep(path, report)
    bundled = store.bundled().get(REFERENCE_RUN)
    if not run.sessions[-1].environment.gpus and bundled is not None:
        more = f"all of it: microbench show {REFERENCE_RUN}"
        terminal.draw(view.build(store.read(bundled), reference=True, footer=(more,)), console, brief=True)


@app.command(epilog="Example: microbench show nvidia-h200")
def show(
    name: options.RunName = None,
    figure: options.ShownFigure = None,
    svg: options.Svg = None,
    brief: options.Brief = False,
    why: options.Why = False,
) -> None:
    """Show a run again: the last one, or a bundled reference; all of it, or one figure."""
    with told():
        from microbench.report import kept
        from microbench.runs import store

        path = located(name)
        if figure is not None:
            draw(show_commands.figure_sheet(figure, path, store.read(path)), svg, brief=True)
            return
        draw(kept.report_of(path, lambda: report_at(path)), svg, brief=brief, why=why)


for _command, _example in (
    *predict.COMMANDS,
    *show_commands.COMPARE_COMMANDS,
    *show_commands.PLOT_COMMANDS,
    *show_commands.PAGE_COMMANDS,
    *share.COMMANDS,
):
    app.command(epilog=f"Example: {_example}")(_command)


@app.command("list", epilog="Example: microbench list launch")
def list_benchmarks(names: options.Listed = None) -> None:
    """List suites and benchmarks: their questions, axes and values."""
    with told():
        from microbench.core.bench import discover
        from microbench.report.sheets import listing
        from microbench.report.terminal import terminal
        from microbench.run.plan import select

        chosen = [one.benchmark for one in select(discover(), tuple(names or ()), "full", {})]
        infos = [benchmark.info(benchmark.cases("full")) for benchmark in chosen]
        terminal.draw_tables(listing.suite_tables(infos), terminal.open_console())


app.add_typer(share.history_app, name="history")


@app.command(epilog="Example: microbench doctor")
def doctor() -> None:
    """Say what this machine can and cannot measure, and what to do about it."""
    with told():
        from microbench.gpu.open import probe_environment
        from microbench.report.sheets import listing
        from microbench.report.terminal import terminal
        from microbench.run.doctor import examine

        found = examine(probe_environment(None))
        terminal.draw_tables([listing.checks_table(found.checks)], terminal.open_console())
