"""The command line's arguments and options: their names, types and help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from microbench.report.figures.catalogue import KINDS

REFERENCE_RUN = "nvidia-h200"
RUN_NAME = f"A bundled run ({REFERENCE_RUN}), a file, a run's label, id or the beginning of one"
RUN_NAMES = f"{RUN_NAME}; left out: the last run."
LAST_OR_BUNDLED = "left out: the last run that has them, or a bundled one."
WHAT = "[SUITE|BENCHMARK]..."


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
Why = Annotated[bool, typer.Option("--why", help="Add the rule and threshold behind each finding.")]
Svg = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the report into a new SVG file instead.")]

# A step of work, for the commands that predict one.
EXAMPLES = "decode-7b, small-image-training, streaming-pipeline"
Count = int | None
Typed = str | None
WorkloadName = Annotated[
    Typed, typer.Argument(metavar="[WORKLOAD]", help=f"A .toml file that describes a step, or one of {EXAMPLES}.")
]
StepKernels = Annotated[Count, typer.Option("--kernels", metavar="N", help="Kernels in the step.")]
StepDuration = Annotated[
    Typed, typer.Option("--duration", metavar="TIME", help="How long each runs: 6us, 500ns, 0 (an empty one).")
]
StepLayer = Annotated[
    Typed, typer.Option("--layer", metavar="LAYER", help="Who launches them: torch, cupy, numba, loop (compiled), …")
]
Arguments = Annotated[Count, typer.Option(metavar="N", help="Arguments of each kernel.")]
SyncsPerStep = Annotated[Count, typer.Option(metavar="N", help="Waits in a step, 1 if left out; 0: it never waits.")]
CopyIn = Annotated[Typed, typer.Option(metavar="SIZE", help="Copied to the GPU first, from pinned memory: 1MiB.")]
CopyOut = Annotated[Typed, typer.Option(metavar="SIZE", help="Copied from the GPU at the end, to pinned memory.")]
Streams = Annotated[Count, typer.Option(metavar="N", help="Streams that the kernels are dealt to.")]
Replays = Annotated[Count, typer.Option(metavar="N", help="How often the step is run: has a graph paid by then?")]
PredictedRun = Annotated[Typed, typer.Option("--run", metavar="RUN", help=f"Whose costs; {LAST_OR_BUNDLED}")]
PredictedJson = Annotated[bool, typer.Option("--json", help="Print the prediction as JSON, in SI units.")]

# What whatif changes.
Submit = Annotated[Typed, typer.Option(metavar="TIME", help="A launch call takes this long.")]
ToLayer = Annotated[Typed, typer.Option(metavar="LAYER", help="All kernels are launched by this one.")]
Gap = Annotated[Typed, typer.Option(metavar="TIME", help="Between two kernels of a stream.")]
GraphGap = Annotated[Typed, typer.Option(metavar="TIME", help="Between two kernels of a graph.")]
Replay = Annotated[Typed, typer.Option(metavar="TIME", help="A replay call takes this long, whatever its graph.")]
Memory = Annotated[Typed, typer.Option(metavar="RATE", help="The GPU's memory: 2039GB/s.")]
PcieGen = Annotated[Count, typer.Option(metavar="N", help="Another generation of the PCIe link.")]
Lanes = Annotated[Count, typer.Option(metavar="N", help="Another width of it.")]
KernelTime = Annotated[Typed, typer.Option(metavar="FACTOR", help="What kernels do: 0.5x is half the time and bytes.")]
HostTime = Annotated[Typed, typer.Option(metavar="FACTOR", help="The program's own time between calls: 0x is none.")]
Against = Annotated[Typed, typer.Option(metavar="RUN", help="Another machine instead: the same step on RUN.")]

Topic = Annotated[Typed, typer.Argument(metavar="[TOPIC]", help="What to explain; left out: list the topics.")]
ExplainedRun = Annotated[Typed, typer.Option("--run", metavar="RUN", help=f"Whose figures; {LAST_OR_BUNDLED}")]


# Arguments and options of compare.


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
AllFigures = Annotated[bool, typer.Option("--all", help="List every figure, also those that are the same or unclear.")]


# Arguments and options of the commands that draw figures and pages.


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


# Arguments and options of the command that makes a page.


Reported = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN]...", help=f"{RUN_NAMES} Several: over each other.")
]
PageFile = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="A new file.")]


# Arguments and options of the commands that hand runs on and look after them: export, history, trend.


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
AllRuns = Annotated[bool, typer.Option("--all", help="All runs.")]
Keep = Annotated[int | None, typer.Option(metavar="N", min=0, help="Leave the newest N runs.")]
OlderThan = Annotated[float | None, typer.Option(metavar="DAYS", min=0, help="Leave what is younger than DAYS.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

MetricName = Annotated[str, typer.Argument(metavar="METRIC", help="BENCHMARK.METRIC, such as launch_cost.submit.")]
CaseName = Annotated[
    str | None,
    typer.Option("--case", metavar="AXIS=VALUE[,…]", help="Of which cases, or a case's whole id; three at most."),
]
