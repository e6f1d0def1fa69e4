"""The commands constants, export, history and trend. Heavy imports stay inside the commands."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import typer

from microbench.cli import options
from microbench.cli.options import ALL_RUNS, REDACT, RUN, ConstantsFormat, Format, Picture
from microbench.cli.output import check_new, command, draw, draw_tables, print_bytes, print_json, write_new
from microbench.core.errors import RunUnreadableError, UsageError
from microbench.core.options import argument, flag, option
from microbench.core.units import counted, plain
from microbench.library.runs import consistent, is_reference, load, located, report_of

if TYPE_CHECKING:
    from microbench.core.model import Run


TREND_RUNS = 100  # read as a whole, some 15 ms each
NO_RUN_YET = ("there is no run yet", "measure one: microbench run")

history_app = typer.Typer(
    help="List, label and prune the recorded runs.",
    epilog="Example: microbench history --label RUN before",
    rich_markup_mode=None,
    add_completion=False,
)


def export(
    name: str | None = RUN,
    format: Format = option(
        None,
        "csv, jsonl: one row a measurement. json: also the run, which show reads again. markdown: the report. "
        "openmetrics: gauges for Prometheus.",
        default="csv",
    ),
    redact: bool = REDACT,
    schema: bool = flag("Write the JSON Schema of run files instead."),
) -> None:
    """Print a run as CSV, JSON, Markdown or OpenMetrics.

    All values are in SI base units: seconds, bytes, hertz.
    """
    if schema:
        from microbench.archive import schema as run_schema

        print_json(run_schema.run_schema())
        return
    path, run = load(name)
    if redact:
        from microbench.archive.redaction import redacted

        run = redacted(run)
    print_bytes(exported(run, format, path))


def exported(run: Run, format: Format, path: Path | None = None) -> bytes:
    """The run in that format."""
    from microbench.archive import export
    from microbench.report import markdown

    with consistent(run):
        if format == "json":
            return export.to_json(run)
        if format == "jsonl":
            return export.to_json_lines(run)
        if format == "openmetrics":
            from microbench.archive import openmetrics

            return openmetrics.to_openmetrics(run).encode()
        if format == "markdown":
            return markdown.to_markdown(report_of(run, path)).encode()
        return export.to_csv(run).encode()


def constants(
    name: str | None = argument(
        "[RUN]", f"A file of constants, or the run: {options.RUN_NAME}; {options.LAST_OR_BUNDLED}", None
    ),
    out: Path | None = option("FILE", "The new file; default: standard output.", "-o", "--out"),
    format: ConstantsFormat | None = option(
        None, "toml, json, or h: a C header; default: by the ending of FILE, else toml."
    ),
    json: bool = flag("Print JSON: as --format json."),
    force: bool = options.FORCE,
) -> None:
    """Write the constants of a machine for other programs to read.

    Costs of launches, graphs, copies, waits and allocations, rates, and from which size or number on one way pays: in
    SI base units, with their intervals. What the run lacks is listed with the command that measures it.
    """
    import msgspec

    from microbench.library.surface import constants as of_machine

    chosen = "json" if json else format or ((out.suffix if out is not None else "").removeprefix(".") or "toml")
    if chosen not in get_args(ConstantsFormat):
        raise UsageError(f"there is no format {plain(chosen, 20)}", "give --format toml, json or h")
    if out is not None:
        check_new(out, force=force)
    found = of_machine(name)
    data = (found.to_header() if chosen == "h" else found.to_toml()).encode()
    if chosen == "json":
        data = msgspec.json.format(msgspec.json.encode(found.to_dict()), indent=2) + b"\n"
    if out is None:
        print_bytes(data)
    else:
        write_new(out, data, force=force)
        typer.echo(f"{plain(out)}: {counted(len(found), 'constant')} of {plain(found.source)}")
        commands = [words for command in found.missing.values() if len(words := command.split()) > 2]
        if commands and not found.source.startswith("bundled"):
            rest = [*commands[0][:2], *(one[2] for one in commands), *commands[0][3:]]
            typer.echo(f"next: {plain(' '.join(rest), 1000)} measures the rest")


def history(
    context: typer.Context,
    label: tuple[str, str] | None = option("RUN TEXT", 'Label a run: the label is a name for it. "" removes it.'),
    note: tuple[str, str] | None = option("RUN TEXT", 'Add a note to a run; "" removes it.'),
    last: int = option("N", "Only the newest N runs.", default=30, least=1),
    everything: bool = ALL_RUNS,
) -> None:
    """List the recorded runs, newest first; or label one, or add a note."""
    if context.invoked_subcommand is not None:
        return
    from microbench.archive import store

    changed = [_remarked(label[0], label=label[1])] if label else []
    changed += [_remarked(note[0], note=note[1])] if note else []
    paths = list(dict.fromkeys(changed)) or store.listing()
    if not paths:
        raise RunUnreadableError(*NO_RUN_YET)
    shown = paths if everything else paths[:last]
    _list(shown, "Label and note now" if changed else "The recorded runs", more=len(paths) - len(shown))


def _remarked(name: str, label: str | None = None, note: str | None = None) -> Path:
    from microbench.archive import remarks

    path = located(name)
    if is_reference(path):
        raise UsageError("a bundled run cannot have a label or a note", "copy the run; a copy can have both")
    remarks.change(path, label, note)
    return path


def _list(paths: list[Path], title: str, more: int = 0) -> None:
    from microbench.archive.history import entries
    from microbench.report.sheets import history as drawing

    draw_tables([drawing.table(entries(paths), title=title, more=more)])


def prune(
    keep: int | None = option("N", "Keep the newest N runs.", least=0),
    older_than: float | None = option("DAYS", "Delete only runs older than DAYS days.", least=0),
    yes: bool = flag("Delete without asking."),
) -> None:
    """Delete old runs after a confirmation.

    Runs with a label or a note are never deleted.
    """
    from microbench.archive import history as recorded
    from microbench.archive import store

    if keep is None and older_than is None:
        raise UsageError("neither --keep nor --older-than is given", "give --keep N, --older-than DAYS, or both")
    try:
        age = timedelta(days=older_than) if older_than is not None else None
    except (ValueError, OverflowError):
        raise UsageError(f"--older-than {older_than:g} is not a possible age", "give days, such as 30") from None
    # The files' states are noted before any file is read, so that a run that changes later is not deleted.
    states = {path: recorded.state(path) for path in store.listing()}
    heads = [(path, recorded.head(path)) for path in states]
    for path, head in heads:
        if head is None:
            typer.echo(f"not deleted, because it is unreadable: {plain(path.name)}")
    going = recorded.prunable(heads, keep, age, datetime.now(UTC))
    if not going:
        typer.echo("there is no run to delete")
        return
    _list(going, "Runs to delete")
    if not (yes or sys.stdin.isatty()):
        raise UsageError("nothing was deleted, because there is no terminal to confirm it", "add --yes")
    if not (yes or typer.confirm(f"Delete {counted(len(going), 'run')}?")):
        typer.echo("nothing was deleted")
        return
    deleted, changed = recorded.delete({path: states[path] for path in going})
    left = ", ".join(plain(path.name.partition(".")[0]) for path in changed)
    kept = f"; not deleted, because they changed: {left}" if left else ""
    typer.echo(f"{counted(len(deleted), 'run')} deleted{kept}")


def trend(
    *,
    metric: str = argument("METRIC", "BENCHMARK.METRIC, such as launch_cost.submit."),
    case: str | None = option(
        "AXIS=VALUE[,…]", "The cases to draw, at most three: size_bytes=64. Or the whole id of a case."
    ),
    last: int = option("N", "Only the newest N runs.", default=TREND_RUNS, least=1),
    everything: bool = ALL_RUNS,
    picture: Picture,
) -> None:
    """Draw one metric over the recorded runs, with its intervals."""
    from microbench.archive import remarks, store
    from microbench.archive import trend as trends
    from microbench.report.sheets import history as drawing

    paths = store.listing() if everything else store.listing()[:last]
    if not paths:
        raise RunUnreadableError(*NO_RUN_YET)
    wanted, case_id = trends.parsed_case(case)
    gathered, unreadable = trends.gathered(paths, metric)
    points = trends.of_cases(gathered, wanted, case_id)
    labels = {trends.name_of(path): remark.label for path, remark in remarks.read_all(paths).items()}
    sheet = drawing.sheet(metric, points, labels, unreadable, looked_at=len(paths), table_rows=20)
    draw(sheet, picture)


history_app.callback(invoke_without_command=True)(command(history))
history_app.command(epilog="Example: microbench history prune --keep 50 --older-than 30")(command(prune))
