"""The command microbench: run, list and doctor, and the table of all commands. Heavy imports stay inside commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from microbench import __version__
from microbench.cli import options, predict, share, show
from microbench.cli.options import REFERENCE_RUN
from microbench.cli.output import command, open_closed_streams, parser_errors, print_bytes, reported_errors
from microbench.cli.runs import read, report_of
from microbench.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from microbench.core.model import Run
    from microbench.report.terminal.progress import LiveProgress, PlainProgress


app = typer.Typer(
    name="microbench",
    help="Measure what it costs to submit work to a CUDA GPU, and what limits it.",
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
        with reported_errors(), parser_errors():
            exit_code = app(standalone_mode=False)
    except typer.Exit as ended:
        exit_code = ended.exit_code
    sys.exit(exit_code if isinstance(exit_code, int) else ExitCode.MEASURED)


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
) -> int:
    """Measure this machine, print a report, and save the run."""
    from microbench.run.plan import parse_overrides
    from microbench.run.request import RunRequest
    from microbench.run.session import execute
    from microbench.runs import remarks

    checked_label = remarks.checked(label) if label is not None else None
    if quick and full:
        raise UsageError("--quick and --full cannot be combined", "give one of them, or neither")
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
    return result.exit_code


def _progress() -> LiveProgress | PlainProgress:
    from microbench.core.bench import discover
    from microbench.report.terminal.progress import LiveProgress, PlainProgress
    from microbench.report.terminal.terminal import open_console

    console = open_console(sys.stderr)
    metrics = {name: benchmark.metrics for name, benchmark in discover().items()}
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveProgress(console, metrics) if live else PlainProgress(console, metrics)


def _show_result(run: Run, path: Path, *, why: bool) -> None:
    """Draw the report; without a GPU the bundled reference run follows it."""
    from microbench.report.sheets import view
    from microbench.report.terminal import terminal
    from microbench.runs import store

    console = terminal.open_console()
    terminal.draw(report_of(run), console, why=why)
    terminal.tell((f"saved: {path}", "again: microbench show    as a table: microbench export --format csv"), console)
    bundled = store.bundled().get(REFERENCE_RUN)
    if not run.sessions[-1].environment.gpus and bundled is not None:
        more = f"the whole report: microbench show {REFERENCE_RUN}"
        terminal.draw(view.build(read(bundled), reference=True, footer=(more,)), console, brief=True)


def list_(names: options.Listed = None) -> None:
    """List the benchmarks with their questions, axes and values."""
    from microbench.core.bench import discover
    from microbench.report.sheets import listing
    from microbench.report.terminal import terminal
    from microbench.run.plan import select

    benchmarks = [selected.benchmark for selected in select(discover(), tuple(names or ()), "full", {})]
    infos = [benchmark.info(benchmark.cases("full")) for benchmark in benchmarks]
    terminal.draw_tables(listing.suite_tables(infos), terminal.open_console())


def doctor() -> None:
    """Check what this machine can measure and what to fix."""
    from microbench.gpu.open import probe_environment
    from microbench.report.sheets import listing
    from microbench.report.terminal import terminal
    from microbench.run.doctor import examine

    diagnosis = examine(probe_environment(None))
    terminal.draw_tables([listing.checks_table(diagnosis.checks)], terminal.open_console())


# Every command in the order of --help, with the example in its own help.
COMMANDS = (
    (run, "microbench run launch --quick --set duration_ns=1000,5000 --rounds 3"),
    *show.COMMANDS,
    *predict.COMMANDS,
    *share.COMMANDS,
    (list_, "microbench list launch"),
    (doctor, "microbench doctor"),
)
for _function, _example in COMMANDS:
    app.command(_function.__name__.rstrip("_"), epilog=f"Example: {_example}")(command(_function))
app.add_typer(share.history_app, name="history")
