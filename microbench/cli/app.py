"""The command microbench: run, list and doctor, and the table of all commands. Heavy imports stay inside commands."""

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from microbench.cli import check, diagnose, fleet, output, own, predict, share, show, watch
from microbench.cli.options import ANSWER, JSON, WHY
from microbench.core.errors import ExitCode
from microbench.core.options import argument
from microbench.core.version import __version__
from microbench.library.options import RunOptions
from microbench.library.runs import REFERENCE_RUN, measured, screen_of

app = typer.Typer(
    name="microbench",
    help="Measure what it costs to submit work to a CUDA GPU, and what limits it.",
    epilog="Example: microbench run --quick",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line."""
    # Standard streams that the caller closed are reopened; otherwise the next opened file would receive their output.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for as long as the process lives)
    try:
        with output.reported_errors(), output.parser_errors():
            exit_code = app(standalone_mode=False)
    except typer.Exit as ended:
        exit_code = ended.exit_code
    if exit_code == ExitCode.INTERRUPTED:  # a second Ctrl-C would only stop what is tidied up
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:  # if standard error cannot be written, what Python would still flush at exit is discarded
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(exit_code if isinstance(exit_code, int) else ExitCode.MEASURED)


def _version(wanted: bool) -> None:
    if wanted:
        from microbench.session.session import commit

        made_of = f" ({known})" if (known := commit()) else ""  # only a checkout knows its commit
        typer.echo(f"microbench {__version__}{made_of}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version, with its commit.")
    ] = False,
) -> None:
    pass


def run(asked: RunOptions, json: bool = JSON, why: bool = WHY) -> int:
    """Measure this machine, print a report, and save the run."""
    from microbench.archive import store

    with output.progress() as listener:
        result = measured(asked, listener)
    if json:
        output.print_bytes(share.exported(result.run, "json"))
        return result.exit_code
    name = shlex.quote(str(result.path))
    output.draw(screen_of(result.run, result.path, None if result.path == store.last() else name), why=why)
    lines = [f"saved: {result.path}"]
    if result.exit_code == ExitCode.INTERRUPTED:
        lines.append(f"interrupted: microbench run --resume {name} measures the rest")
    output.tell(lines)
    return result.exit_code


def list_(
    names: Sequence[str] = argument("[SUITE|BENCHMARK]...", "What to list; default: everything.", (), read=tuple),
) -> None:
    """List the benchmarks, or the axes and values of one."""
    from microbench.core.bench import discover
    from microbench.report.sheets import listing
    from microbench.session.plan import select

    benchmarks = [selected.benchmark for selected in select(discover(), names, "full", {})]
    by_name = [benchmark for benchmark in benchmarks if benchmark.name in names]
    others = [benchmark for benchmark in benchmarks if benchmark not in by_name]
    output.draw_tables([*listing.suite_tables(others), *(listing.axes_table(benchmark) for benchmark in by_name)])


def doctor(json: bool = ANSWER) -> int:
    """Check what this machine can measure and what to fix.

    The exit code is 1 if there is a problem.
    """
    from microbench.gpu.open import probe_environment
    from microbench.report.sheets import listing
    from microbench.session.doctor import examine

    checks = examine(probe_environment(None))
    if json:
        output.print_json({"checks": checks})
    else:
        output.draw_tables([listing.checks_table(checks)])
        steps = [check.next_step for check in checks if check.state == "problem" and check.next_step]
        output.tell([f"next: {steps[0] if steps else 'microbench run'}"])
    return ExitCode.SOME_FAILED if any(check.state == "problem" for check in checks) else ExitCode.MEASURED


# Every command in the order of --help, with the example in its own help.
COMMANDS = (
    (run, "microbench run launch --set duration=1us,5us --rounds 3"),
    (own.measure, "microbench measure train.py::step --setup train.py::setup --axis batch=1,8,64"),
    (own.graph, "microbench graph train.py::step --setup train.py::setup"),
    (show.show, f"microbench show {REFERENCE_RUN}"),
    (show.compare, "microbench compare nvidia-h200 --fail-on slower"),
    (own.ab, "microbench ab -B CUDA_MODULE_LOADING=EAGER launch_cost"),
    (show.plot, "microbench plot nvidia-h200 ladder -o ladder.svg"),
    (show.report, f"microbench report {REFERENCE_RUN} -o h200.html"),
    (check.check, "microbench check link && echo the link is healthy"),
    (predict.predict, "microbench predict --kernels 1100 --duration 6us --layer torch"),
    (predict.whatif, "microbench whatif --kernels 1100 --duration 6us --submit 2us"),
    (predict.timeline, "microbench timeline --duration 3us --kernels 8"),
    (predict.explain, "microbench explain launch"),
    (diagnose.diagnose, "microbench diagnose trace.json.gz --step 1.93ms"),
    (watch.watch, "microbench watch --for 60s -- python train.py --epochs 1"),
    (share.export, "microbench export nvidia-h200 --format csv > h200.csv"),
    (share.trend, "microbench trend launch_cost.submit"),
    (list_, "microbench list launch"),
    (doctor, "microbench doctor"),
)
for _function, _example in COMMANDS:
    # Options after the watched command belong to that command.
    _settings = {"allow_interspersed_args": _function is not watch.watch}
    app.command(_function.__name__.rstrip("_"), epilog=f"Example: {_example}", context_settings=_settings)(
        output.command(_function)
    )
app.add_typer(share.history_app, name="history")
app.add_typer(fleet.fleet_app, name="fleet")
