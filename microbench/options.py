"""The command line's arguments and options: their names, types and help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

REFERENCE_RUN = "nvidia-h200"
RUN_NAMES = f"A bundled run ({REFERENCE_RUN}), a file, a run's id or the beginning of one; left out: the last run."
WHAT = "[SUITE|BENCHMARK]..."


class Format(StrEnum):
    """What a run can be exported as."""

    CSV = "csv"
    JSON = "json"


Measured = Annotated[list[str] | None, typer.Argument(metavar=WHAT, help="What to measure; left out: everything.")]
Listed = Annotated[list[str] | None, typer.Argument(metavar=WHAT, help="What to list; left out: everything.")]
RunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help=RUN_NAMES)]

Quick = Annotated[bool, typer.Option("--quick", help="Coarse grids, 20 s.")]
Full = Annotated[bool, typer.Option("--full", help="Fine grids, as long as they take.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="AXIS=VALUE[,VALUE]", help="Values of an axis. Repeatable.")
]
Device = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="cuda:N, a UUID, all, or fake (simulated). Left out: the first.")
]
Rounds = Annotated[int, typer.Option(metavar="N", help="Fresh processes for each figure; stable takes 3 or more.")]
TimeLimit = Annotated[float | None, typer.Option(metavar="SECONDS", help="The run's budget of wall time.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the run here; the file must not exist.")]
Into = Annotated[str | None, typer.Option(metavar="RUN", help="Add this session to a run.")]
Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Measure what a run still lacks.")]
Json = Annotated[bool, typer.Option("--json", help="Print the run as JSON instead of a report.")]
Brief = Annotated[bool, typer.Option("--brief", help="Pictures and findings only, no tables.")]
Svg = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the report into a new SVG file instead.")]
Duration = Annotated[
    str, typer.Option(metavar="TIME", help="How long each kernel runs: 3us, 500ns, 0.2ms, 0 (an empty one).")
]
Kernels = Annotated[int, typer.Option(metavar="N", help="Kernels in the step.")]
Layer = Annotated[str, typer.Option(metavar="LAYER", help="Who launches them: loop, cuda_core, cupy_raw, …")]
DrawnRun = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="Whose costs; left out: the last run that has them, else a bundled one."),
]
ExportFormat = Annotated[Format, typer.Option(help="csv: one row a measurement. json: the run as well.")]
