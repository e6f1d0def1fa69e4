"""The command microbench: run, list, doctor and check, and the table of all commands. Heavy imports stay inside."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated

import typer

from microbench.cli import output
from microbench.cli.options import ANSWER, JSON, WHY, Checked
from microbench.core.errors import ExitCode, RunUnreadableError
from microbench.core.options import argument, option
from microbench.core.units import percent, round_percent
from microbench.core.version import __version__
from microbench.library.options import DEVICE, RunOptions
from microbench.library.runs import REFERENCE_RUN, consistent, load, measured, screen_of

if TYPE_CHECKING:
    from microbench.analysis.evidence import Finding
    from microbench.core.model import Run


def main() -> None:
    """Run the command line."""
    # Standard streams that the caller closed are reopened; otherwise the next opened file would receive their output.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for as long as the process lives)
    try:
        with output.reported_errors(), output.parser_errors():
            exit_code = parser(sys.argv[1:2])(standalone_mode=False)
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

        typer.echo(f"microbench {__version__}{f' ({known})' if (known := commit()) else ''}")  # a checkout knows it
        raise typer.Exit


VERSION = typer.Option("--version", callback=_version, is_eager=True, help="Print the version, with its commit.")


def _root(version: Annotated[bool, VERSION] = False) -> None: ...


def run(asked: RunOptions, json: bool = JSON, why: bool = WHY) -> int:
    """Measure this machine, print a report, and save the run."""
    from microbench.cli import share

    with output.progress() as listener:
        result = measured(asked, listener)
    if json:
        output.print_bytes(share.exported(result.run, "json"))
        return result.exit_code
    output.draw(screen_of(result.run, result.path), why=why)
    lines = [f"saved: {result.path}"]
    if result.exit_code == ExitCode.INTERRUPTED:
        lines.append(f"interrupted: microbench run --resume {shlex.quote(str(result.path))} measures the rest")
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


# The benchmarks that each verdict rests on.
NEEDED: dict[Checked, tuple[str, ...]] = {
    "link": ("link_state", "link_copy", "link_bidirectional"),
    "memory": ("memory_stream", "memory_levels"),
    "compute": ("gemm_throughput",),
}
# A measurement that is not healthy, or below this many times the limit, is repeated until there are so many.
NEAR, MEASUREMENTS = 1.01, 3
UNHEALTHY = ("warning", "problem")
CODES = {"warning": ExitCode.SOME_FAILED, "problem": ExitCode.SOME_FAILED, "good": ExitCode.MEASURED}
# A verdict's name in JSON by the exit code that it alone would give.
NAMES = {ExitCode.MEASURED: "healthy", ExitCode.SOME_FAILED: "unhealthy", ExitCode.UNREADABLE_RUN: "none"}
BETWEEN = "between"


def check(
    what: Checked = argument("{link|memory|compute}", "What to check."),
    run: str | None = option("RUN", "Judge this recorded run instead of measuring."),
    device: str | None = DEVICE,
    json: bool = ANSWER,
) -> int:
    """Check whether the link, the memory or the compute is healthy.

    Measures what the verdict needs (seconds), or takes --run. What is not clearly healthy is measured three times. The
    exit code is 0 if all is well, 1 if something is unhealthy in every measurement, and 4 if there is no verdict, or if
    the measurements lie on both sides of the limit: 90 % of the link's ceiling, 88 % of the memory's (reads), 80 % of
    the tensor cores' at their clock.
    """
    from microbench.core.model import Settings
    from microbench.report.terminal import terminal
    from microbench.session.request import RunRequest
    from microbench.session.session import execute

    verdicts: dict[str | None, list[Finding]] = {}
    if run is not None:
        recorded = load(run)[1]
        _judge(what, recorded, verdicts)
    else:
        with output.progress() as listener:
            into = None
            for _ in range(MEASUREMENTS):
                settings = Settings("quick", NEEDED[what], device=device)
                result = execute(RunRequest(settings, into=into), listener)
                recorded, into = result.run, str(result.path)
                _judge(what, recorded, verdicts)
                clear = (
                    each.severity not in UNHEALTHY and not (each.reached and each.reached[0] < each.reached[1] * NEAR)
                    for (each, *_) in verdicts.values()
                )
                if all(clear) or result.exit_code == ExitCode.INTERRUPTED:
                    break
    if not verdicts:
        reasons = (outcome.reason for outcome in recorded.outcomes if outcome.status != "ok" and outcome.reason)
        cause = f"there is no verdict on {what}: {next(reasons, 'the run lacks its figures')}"
        raise RunUnreadableError(cause, f"microbench run {' '.join(NEEDED[what])} measures what it needs")
    agreed = {gpu: in_all(several) for gpu, several in verdicts.items()}
    codes = {gpu: CODES.get(verdict.severity, ExitCode.UNREADABLE_RUN) for gpu, verdict in agreed.items()}
    if json:
        found = {"check": what, "run": recorded.run_id, "simulated": recorded.simulated, "gpus": [
            {
                "device": gpu,
                "verdict": BETWEEN if verdict.rule.endswith(BETWEEN) else NAMES[codes[gpu]],
                "shares": [one.reached[0] for one in verdicts[gpu] if one.reached],
                "healthy_from": verdict.reached[1] if verdict.reached else None,
                **verdict.words,
            }
            for gpu, verdict in agreed.items()
        ]}  # fmt: skip
        output.print_json(found)
    else:
        terminal.draw_findings(agreed.values(), terminal.open_console(), mark="SIMULATED" if recorded.simulated else "")
    return max(codes.values(), key=(ExitCode.MEASURED, ExitCode.UNREADABLE_RUN, ExitCode.SOME_FAILED).index)


def _judge(what: Checked, run: Run, verdicts: dict[str | None, list[Finding]]) -> None:
    """Add the verdict on the newest figures of each GPU that has one."""
    from microbench.analysis.evidence import evidence_by_device
    from microbench.explain.rules import of_suite

    with consistent(run):
        for group in evidence_by_device(run):
            for each in of_suite(group, what):
                if each.rule == f"{what}.verdict":
                    verdicts.setdefault(group.device, []).append(each)


def in_all(several: Sequence[Finding]) -> Finding:
    """One verdict for repeated measurements of a GPU: the worst of healthy ones, the best of unhealthy ones.

    If they disagree, the verdict is that the GPU lies between.
    """
    import msgspec

    def share(verdict: Finding) -> float:
        return verdict.reached[0] if verdict.reached else 0.0

    if len(several) == 1:
        return several[0]
    worst, *_, best = sorted(several, key=lambda one: (one.severity not in UNHEALTHY, share(one)))
    limit = worst.reached or best.reached
    shares = [percent(share(one)) for one in several if one.reached]
    told = f"{len(several)} measurements: {', '.join(shares)} of the ceiling." if shares else ""
    if best.severity in UNHEALTHY or worst.severity not in UNHEALTHY:
        chosen = best if best.severity in UNHEALTHY else worst
        return msgspec.structs.replace(chosen, text=f"{chosen.text} {told}".strip())
    slow = sum(one.severity in UNHEALTHY for one in several)
    healthy_from = f" Healthy begins at {round_percent(limit[1])}." if limit else ""
    return msgspec.structs.replace(
        worst,
        rule=f"{worst.suite}.{BETWEEN}",
        severity="advice",
        title=f"Between healthy and slow: {slow} of {len(several)} measurements of {worst.suite} below the limit",
        text=f"{told}{healthy_from} The slowest: {worst.title}.".strip(),
        advice="Other work on the machine can cause this. Repeat the check while it is idle.",
    )


# The function of every command in the order of --help, which is imported when it is needed, and an example.
COMMANDS = {
    "app.run": "microbench run launch --set duration=1us,5us --rounds 3",
    "own.measure": "microbench measure train.py::step --setup train.py::setup --axis batch=1,8,64",
    "own.graph": "microbench graph train.py::step --setup train.py::setup",
    "show.show": f"microbench show {REFERENCE_RUN}",
    "show.compare": "microbench compare nvidia-h200 --fail-on slower",
    "own.ab": "microbench ab -B CUDA_MODULE_LOADING=EAGER launch_cost",
    "show.plot": "microbench plot nvidia-h200 ladder -o ladder.svg",
    "show.report": f"microbench report {REFERENCE_RUN} -o h200.html",
    "app.check": "microbench check link && echo the link is healthy",
    "predict.predict": "microbench predict --kernels 1100 --duration 6us --layer torch",
    "predict.whatif": "microbench whatif --kernels 1100 --duration 6us --submit 2us",
    "predict.timeline": "microbench timeline --duration 3us --kernels 8",
    "predict.explain": "microbench explain launch",
    "share.constants": "microbench constants -o machine.toml",
    "diagnose.diagnose": "microbench diagnose trace.json.gz --step 1.93ms",
    "watch.watch": "microbench watch --for 60s -- python train.py --epochs 1",
    "share.export": "microbench export nvidia-h200 --format csv > h200.csv",
    "share.trend": "microbench trend launch_cost.submit",
    "app.list_": "microbench list launch",
    "app.doctor": "microbench doctor",
}


def parser(called: Sequence[str] = ()) -> typer.Typer:
    """The parser of all commands, or of the one that is ``called`` alone, which is made in a fraction of the time."""
    app = typer.Typer(
        name="microbench",
        help="Measure what it costs to submit work to a CUDA GPU, and what limits it.",
        epilog="Example: microbench run --quick",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    chosen = {place: example for place, example in COMMANDS.items() if example.split()[1] in called} or COMMANDS
    for place, example in chosen.items():
        name, function = example.split()[1], resolve_name(f"microbench.cli.{place}")
        settings = {"allow_interspersed_args": name != "watch"}  # options after its command are that one's
        app.command(name, epilog=f"Example: {example}", context_settings=settings)(output.command(function))
    for name, place in (("history", "share.history_app"), ("fleet", "fleet.fleet_app")) if chosen is COMMANDS else ():
        app.add_typer(resolve_name(f"microbench.cli.{place}"), name=name)
    return app
