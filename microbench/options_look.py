"""Arguments and options of the commands that draw figures and pages."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from microbench.options import RUN_NAME
from microbench.report.figures import KINDS

NAMES = ", ".join(KINDS)


class Theme(StrEnum):
    """On which ground a figure is drawn."""

    LIGHT = "light"
    DARK = "dark"


PlottedRun = Annotated[str, typer.Argument(metavar="RUN", help=f"{RUN_NAME}.")]
FigureName = Annotated[str, typer.Argument(metavar="FIGURE", help=f"One of {NAMES}.")]
ShownFigure = Annotated[
    str | None, typer.Argument(metavar="[FIGURE]", help=f"One figure only: {NAMES}. Left out: the whole report.")
]
PlotFile = Annotated[
    Path, typer.Option("-o", "--out", metavar="FILE", help="A new file; .png, .svg or .pdf says which kind.")
]
OverlaidRuns = Annotated[
    list[str] | None, typer.Option("--with", metavar="RUN", help="Draw this run over it. Repeatable.")
]
PlotTheme = Annotated[Theme, typer.Option(help="The ground to draw on.")]
