"""Arguments and options of the command that makes a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from microbench.options import RUN_NAMES

Reported = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN]...", help=f"{RUN_NAMES} Several: over each other.")
]
PageFile = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="A new file.")]
