"""The commands fleet import, fleet query and fleet report: a store of many runs. Heavy imports stay inside."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from microbench.cli.output import check_new, draw, print_bytes, write_new
from microbench.core.errors import ExitCode, UsageError
from microbench.core.units import plain

# What a query draws on a terminal; --csv and --json write everything.
MOST_DRAWN = 200
# Failed files that are named.
MOST_NAMED = 5
IMPORTED = "imported"
# Campaigns of a trend: a month of four a day, or a week of one an hour.
USUAL_LAST = 200

Store = Annotated[Path, typer.Option("--store", metavar="DIR", help="The folder of the store.")]
Imported = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Run files, ids or labels of runs, or folders of campaigns."),
]
Campaign = Annotated[
    str | None,
    typer.Option("--campaign", metavar="ID", help="The campaign; default: imported, or the newest."),
]
Until = Annotated[
    str | None, typer.Option("--campaign", metavar="ID", help="The last campaign that counts; default: the newest.")
]
Last = Annotated[int, typer.Option("--last", metavar="N", help="Only the newest N campaigns.", min=1)]
Node = Annotated[str, typer.Option("--node", metavar="NAME", help="The machine of the runs; default: its GPU's UUID.")]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="A label of the node, such as rack=r1. Repeatable."),
]
Sql = Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over the views rows, runs, nodes and findings.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a row.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Write CSV.")]
Page = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write a page to this new HTML file instead.")
]
Why = Annotated[bool, typer.Option("--why", help="Show the rule behind each finding.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]


def import_(names: Imported, store: Store, campaign: Campaign = None, node: Node = "", labels: Labels = None) -> int:
    """Add recorded runs to a store.

    A run that the store has already is left out. The folder of a campaign names its nodes and labels itself.
    """
    from microbench.fleet import store as stores
    from microbench.fleet.campaign import CAMPAIGN_FILE
    from microbench.fleet.records import Source
    from microbench.library.runs import located

    given = dict(_label(text) for text in labels or ())
    sources: list[Source] = []
    for name in names:
        if (Path(name) / CAMPAIGN_FILE).is_file():
            sources += stores.campaign_sources(Path(name))
        else:
            sources.append(Source(located(name), campaign or IMPORTED, node, given))
    added = stores.add_all(store, sources)
    known = f"; {added.known} were there already" if added.known else ""
    typer.echo(f"{added.rows} rows of {added.runs} run{'' if added.runs == 1 else 's'} stored{known}")
    for path, reason in added.failed[:MOST_NAMED]:
        typer.echo(f"not stored: {plain(path)}: {plain(reason)}", err=True)
    if len(added.failed) > MOST_NAMED:
        typer.echo(f"and {len(added.failed) - MOST_NAMED} more were not stored", err=True)
    typer.echo(f"next: microbench fleet report --store {plain(store)}")
    return ExitCode.SOME_FAILED if added.failed else ExitCode.MEASURED


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"{plain(text, 40)} is not a label", "give KEY=VALUE, such as --label rack=r1")
    return key, value


def query(sql: Sql, store: Store, json: AsJson = False, csv: AsCsv = False) -> None:
    """Ask a store in SQL.

    It can only be read, and no file outside of it. Values are in SI base units.
    """
    from microbench.fleet import store as stores

    if json and csv:
        raise UsageError("--json and --csv are two formats", "give one of them")
    answer = stores.query(store, sql)
    if json:
        for lines in _chunks(_as_json(answer.columns, answer.rows)):
            print_bytes(lines)
    elif csv:
        for lines in _chunks(_as_csv(answer.columns, answer.rows)):
            print_bytes(lines)
    else:
        _draw_answer(answer.columns, answer.rows)


def _chunks(lines: Iterator[bytes]) -> Iterator[bytes]:
    while several := b"".join(islice(lines, 1000)):
        yield several


def _as_json(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Iterator[bytes]:
    import msgspec

    for row in rows:
        yield msgspec.json.encode(dict(zip(columns, row, strict=True)), enc_hook=str) + b"\n"


def _as_csv(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Iterator[bytes]:
    from microbench.archive.export import written

    yield _csv_line(map(written, columns))
    for row in rows:
        yield _csv_line(map(written, row))


def _csv_line(cells: Iterable[str]) -> bytes:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue().encode()


def _draw_answer(columns: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> None:
    """The first rows as a table. Numbers stand on the right."""
    from microbench.report.document import Cell, Column, Table
    from microbench.report.terminal import terminal

    shown = list(islice(rows, MOST_DRAWN))
    more = next(rows, None) is not None
    numbers = [
        all(isinstance(row[place], int | float) for row in shown if row[place] is not None)
        for place in range(len(columns))
    ]
    title = f"{len(shown)}{' or more' if more else ''} row{'' if len(shown) == 1 and not more else 's'}"
    table = Table(
        title, "",
        tuple(Column(name, "right" if right else "left") for name, right in zip(columns, numbers, strict=True)),
        tuple(tuple(Cell(_shown(value)) for value in row) for row in shown),
        (f"the first {MOST_DRAWN}; --csv and --json write all",) if more else (),
    )  # fmt: skip
    terminal.draw_tables([table], terminal.open_console())


def _shown(value: object) -> str:
    """A value as the table shows it: numbers with six digits, nothing for NULL."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{key}={one}" for key, one in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def report(store: Store, campaign: Campaign = None, out: Page = None, force: Force = False, why: Why = False) -> None:
    """Say which GPUs of a campaign are outliers, and why.

    Without -o it is one screen, with it one HTML page: a map, distributions, and what to check on which node.
    """
    from microbench.fleet import sheet
    from microbench.fleet.verdict import judged

    if out is not None:
        check_new(out, force=force)
    verdict = judged(store, campaign)
    if out is None:
        draw(sheet.screen(verdict, str(store)), why=why)
        return
    data = sheet.page(verdict).encode()
    write_new(out, data, force=force)
    typer.echo(f"{plain(out)}: {len(data) / 1e6:.2f} MB")


def trend(store: Store, campaign: Until = None, last: Last = USUAL_LAST, why: Why = False) -> None:
    """Say which GPUs became slower or faster, and since when.

    It also says in what, and what changed with it. Each GPU is compared with itself over the campaigns of a store that
    asked for the same as the newest one.
    """
    from microbench.fleet import trend as trends
    from microbench.fleet import trend_sheet

    found = trends.trend(store, campaign, last)
    footer = f"more: microbench fleet report --store {plain(store)} compares the GPUs with each other"
    draw(trend_sheet.screen(found, footer), why=why)


COMMANDS = (
    (import_, "microbench fleet import RUN --store DIR --label rack=r1"),
    (query, 'microbench fleet query --store DIR "SELECT suite, count(*) FROM rows GROUP BY suite"'),
    (report, "microbench fleet report --store DIR -o fleet.html"),
    (trend, "microbench fleet trend --store DIR"),
)
