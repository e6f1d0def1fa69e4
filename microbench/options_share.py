"""Arguments and options of the commands that hand runs on and look after them: export, history, trend."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Format(StrEnum):
    """What a run can be exported as."""

    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    MARKDOWN = "markdown"


ExportFormat = Annotated[
    Format,
    typer.Option(
        help="csv, jsonl: one row a measurement. json: the run as well, to be shown again. markdown: the report."
    ),
]
Redact = Annotated[
    bool,
    typer.Option(
        "--redact", help="Without host name, UUIDs, serial numbers, addresses, user names and paths: GPU-1, IP-2, …"
    ),
]
Schema = Annotated[bool, typer.Option("--schema", help="Write the JSON Schema of run files instead.")]

RunLabel = Annotated[str | None, typer.Option("--label", metavar="TEXT", help="Call the run TEXT in the history.")]
Label = Annotated[
    tuple[str, str] | None,
    typer.Option("--label", metavar="RUN TEXT", help="Call a run TEXT: it is found by that, and pruned no more."),
]
Note = Annotated[
    tuple[str, str] | None, typer.Option("--note", metavar="RUN TEXT", help='Note something about a run; "": nothing.')
]
Last = Annotated[int, typer.Option("--last", metavar="N", min=1, help="How many runs, from the newest on.")]
All = Annotated[bool, typer.Option("--all", help="All runs.")]
Keep = Annotated[int | None, typer.Option(metavar="N", min=0, help="Leave the newest N runs.")]
OlderThan = Annotated[float | None, typer.Option(metavar="DAYS", min=0, help="Leave what is younger than DAYS.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

MetricName = Annotated[str, typer.Argument(metavar="METRIC", help="BENCHMARK.METRIC, such as launch_cost.submit.")]
CaseName = Annotated[
    str | None,
    typer.Option("--case", metavar="AXIS=VALUE[,…]", help="Of which cases, or a case's whole id; three at most."),
]
