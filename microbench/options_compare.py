"""Arguments and options of compare."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from microbench.options import RUN_NAME


class FailOn(StrEnum):
    """Which changes end compare with an exit code of their own."""

    SLOWER = "slower"
    FASTER = "faster"
    ANY = "any"


Base = Annotated[str, typer.Argument(metavar="BASE", help=f"What to hold it against. {RUN_NAME}.")]
New = Annotated[
    str | None,
    typer.Argument(metavar="[NEW]", help="What is held against it, named the same way; left out: the last run."),
]
Fail = Annotated[
    FailOn | None,
    typer.Option("--fail-on", help="End with exit code 5 if a figure is slower, faster, or changed in any way."),
]
All = Annotated[bool, typer.Option("--all", help="List every figure, also those that are the same or unclear.")]
