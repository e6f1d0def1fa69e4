"""The commands fleet import, fleet query and fleet report: a store of many runs. Heavy imports stay inside."""

import csv
import io
import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import typer

from microbench.cli.options import ANSWER
from microbench.cli.output import check_new, draw, draw_tables, print_bytes, print_json, write_new
from microbench.core.errors import ExitCode, UsageError
from microbench.core.options import REQUIRED, argument, flag, option
from microbench.core.units import counted, plain

# What a query draws on a terminal; --csv and --json write everything.
MOST_DRAWN = 200
# Failed files that are named.
MOST_NAMED = 5
# Campaigns of a trend: a month of four a day, or a week of one an hour.
USUAL_LAST = 200

STORE = option("DIR", "The folder of the store.", default=REQUIRED)
CAMPAIGN = option("ID", "The campaign; default: imported, or the newest.")
IDLE = "SELECT campaign, name, sum(seconds) FROM windows WHERE kind = 'cause' GROUP BY ALL ORDER BY 1, 3 DESC"
WHY = flag("Show the rule behind each finding.")


def import_(
    names: list[str] = argument("RUN...", "Run files, ids or labels of runs, folders of campaigns or of long watches."),
    store: Path = STORE,
    campaign: str | None = CAMPAIGN,
    node: str = option("NAME", "The machine of the runs; default: its GPU's UUID.", default=""),
    labels: list[str] = option(
        "KEY=VALUE", "A label of the node, such as rack=r1. Repeatable.", "--label", default=(), read=list
    ),
) -> int:
    """Add recorded runs to a store.

    A run that the store has already is left out. The folder of a campaign names its nodes and labels itself.
    """
    from microbench.fleet import store as stores
    from microbench.fleet.campaign import CAMPAIGN_FILE, parsed_labels
    from microbench.fleet.records import Source
    from microbench.fleet.windows import LOG
    from microbench.library.runs import located

    given = parsed_labels(labels)
    sources: list[Source] = []
    for name in names:
        if (Path(name) / CAMPAIGN_FILE).is_file():
            sources += stores.campaign_sources(Path(name))
        elif (log := Path(name) / LOG).is_file():
            own = node or os.uname().nodename
            rows = stores.add_windows(store, Source(log, campaign or "imported", own, given))
            typer.echo(f"{rows} rows of windows stored")
        else:
            sources.append(Source(located(name), campaign or "imported", node, given))
    if not sources:
        typer.echo(f'next: microbench fleet query --store {plain(store)} "{IDLE}"')
        return ExitCode.MEASURED
    added = stores.add_all(store, sources)
    known = f"; {added.known} were there already" if added.known else ""
    typer.echo(f"{added.rows} rows of {counted(added.runs, 'run')} stored{known}")
    for path, reason in added.failed[:MOST_NAMED]:
        typer.echo(f"not stored: {plain(path)}: {plain(reason)}", err=True)
    if len(added.failed) > MOST_NAMED:
        typer.echo(f"and {len(added.failed) - MOST_NAMED} more were not stored", err=True)
    typer.echo(f"next: microbench fleet report --store {plain(store)}")
    return ExitCode.SOME_FAILED if added.failed else ExitCode.MEASURED


def query(
    sql: str = argument("SQL", "One SELECT over the views rows, runs, nodes, findings and windows."),
    store: Path = STORE,
    json: bool = flag("Write JSON, one object a row."),
    csv: bool = flag("Write CSV."),
) -> None:
    """Ask a store in SQL.

    It can only be read, and no file outside of it. Values are in SI base units.
    """
    import msgspec

    from microbench.fleet import store as stores

    if json and csv:
        raise UsageError("--json and --csv are two formats", "give one of them")
    columns, rows, left_out = stores.query(store, sql)
    for words in left_out[:MOST_NAMED]:
        typer.echo(words, err=True)
    if not json and not csv:
        _draw_answer(columns, rows)
        return
    lines = rows if json else chain([columns], rows)
    while several := list(islice(lines, 1000)):
        if json:
            objects = (dict(zip(columns, row, strict=True)) for row in several)
            print_bytes(b"".join(msgspec.json.encode(each, enc_hook=str) + b"\n" for each in objects))
        else:
            print_bytes(_as_csv(several))


def _as_csv(rows: Iterable[tuple[Any, ...]]) -> bytes:
    from microbench.archive.export import written

    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(map(written, row) for row in rows)
    return stream.getvalue().encode()


def _draw_answer(columns: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> None:
    """The first rows as a table. Numbers stand on the right."""
    from microbench.report.document import Cell, Column, Table

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
    draw_tables([table])


def _shown(value: object) -> str:
    """A value as the table shows it: numbers with six digits, nothing for NULL."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{key}={one}" for key, one in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def report(
    store: Path = STORE,
    campaign: str | None = CAMPAIGN,
    out: Path | None = option("FILE", "Write a page to this new HTML file instead.", "-o", "--out"),
    force: bool = flag("Overwrite an existing file."),
    json: bool = ANSWER,
    why: bool = WHY,
) -> None:
    """Say which GPUs of a campaign are outliers, and why.

    Without -o it is one screen, with it one HTML page: a map, distributions, and what to check on which node.
    """
    from microbench.fleet import sheet
    from microbench.fleet.verdict import judged

    if out is not None:
        check_new(out, force=force)
    verdict = judged(store, campaign)
    if out is not None:
        data = sheet.page(verdict).encode()
        write_new(out, data, force=force)
        typer.echo(f"{plain(out)}: {len(data) / 1e6:.2f} MB", err=json)
    if json:
        print_json(sheet.answer(verdict))
    elif out is None:
        draw(sheet.screen(verdict, str(store)), why=why)


def trend(
    store: Path = STORE,
    campaign: str | None = option("ID", "The last campaign that counts; default: the newest."),
    last: int = option("N", "Only the newest N campaigns.", default=USUAL_LAST, least=1),
    json: bool = ANSWER,
    why: bool = WHY,
) -> None:
    """Say which GPUs became slower or faster, and since when.

    It also says in what, and what changed with it. Each GPU is compared with itself over the campaigns of a store that
    asked for the same as the newest one.
    """
    from microbench.fleet import sheet
    from microbench.fleet import trend as trends

    found = trends.trend(store, campaign, last)
    footer = f"more: microbench fleet report --store {plain(store)} compares the GPUs with each other"
    if json:
        print_json(sheet.trend_answer(found))
    else:
        draw(sheet.trend_screen(found, footer), why=why)
