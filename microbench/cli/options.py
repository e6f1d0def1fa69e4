"""The arguments and options of all commands: their names, types and help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from microbench.report.figures.catalogue import KINDS

REFERENCE_RUN = "nvidia-h200"
RUN_NAME = f"A bundled run ({REFERENCE_RUN}), a file, a run's label, its id or the beginning of it"
RUN_NAMES = f"{RUN_NAME}; default: the last run."
LAST_OR_BUNDLED = "default: the last run that has them, else a bundled one."
WHAT = "[SUITE|BENCHMARK]..."
EXAMPLES = "decode-7b, small-image-training, streaming-pipeline"
NAMES = ", ".join(KINDS)
Count = int | None
Typed = str | None


class FailOn(StrEnum):
    """Which changes make compare end with an exit code of its own."""

    SLOWER = "slower"
    FASTER = "faster"
    ANY = "any"


class Theme(StrEnum):
    """The background that a figure is drawn for."""

    LIGHT = "light"
    DARK = "dark"


class Format(StrEnum):
    """The formats of export."""

    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    MARKDOWN = "markdown"


# run, list
Measured = Annotated[list[str] | None, typer.Argument(metavar=WHAT, help="What to measure; default: everything.")]
Listed = Annotated[list[str] | None, typer.Argument(metavar=WHAT, help="What to list; default: everything.")]
Quick = Annotated[bool, typer.Option("--quick", help="Measure coarse grids, in 20 s.")]
Full = Annotated[bool, typer.Option("--full", help="Measure fine grids, for as long as they take.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="AXIS=VALUE[,VALUE]", help="Set the values of an axis. Repeatable.")
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="DEVICE", help="cuda:N, a UUID, all, or fake (simulated); default: the first GPU."
    ),
]
Rounds = Annotated[int, typer.Option(metavar="N", help="Measure in N fresh processes; the grade stable needs 3.")]
TimeLimit = Annotated[float | None, typer.Option(metavar="SECONDS", help="The run's budget of wall time.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the run to a new file.")]
Into = Annotated[str | None, typer.Option(metavar="RUN", help="Add this session to a run.")]
Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Measure what a run still lacks.")]
RunLabel = Annotated[str | None, typer.Option("--label", metavar="TEXT", help="Label the run in the history.")]
Json = Annotated[bool, typer.Option("--json", help="Print the run as JSON instead of a report.")]

# show
RunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help=RUN_NAMES)]
ShownFigure = Annotated[
    str | None, typer.Argument(metavar="[FIGURE]", help=f"One figure only: {NAMES}; default: the whole report.")
]
Brief = Annotated[bool, typer.Option("--brief", help="Show pictures and findings only, no tables.")]
Why = Annotated[bool, typer.Option("--why", help="Add the rule and threshold behind each finding.")]
Svg = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the report into a new SVG file instead.")]

# predict, whatif, timeline: a step of work
WorkloadName = Annotated[
    Typed, typer.Argument(metavar="[WORKLOAD]", help=f"A .toml file that describes a step, or one of {EXAMPLES}.")
]
StepKernels = Annotated[Count, typer.Option("--kernels", metavar="N", help="Kernels in the step.")]
StepDuration = Annotated[
    Typed, typer.Option("--duration", metavar="TIME", help="How long each kernel runs: 6us, 500ns, 0 (empty).")
]
StepLayer = Annotated[
    Typed, typer.Option("--layer", metavar="LAYER", help="What launches them: torch, cupy, numba, loop (compiled), …")
]
Arguments = Annotated[Count, typer.Option(metavar="N", help="Arguments of each kernel.")]
SyncsPerStep = Annotated[Count, typer.Option(metavar="N", help="Synchronizations in a step; default: 1.")]
CopyIn = Annotated[Typed, typer.Option(metavar="SIZE", help="Copied to the GPU first, from pinned memory: 1MiB.")]
CopyOut = Annotated[Typed, typer.Option(metavar="SIZE", help="Copied from the GPU at the end, to pinned memory.")]
Streams = Annotated[Count, typer.Option(metavar="N", help="Streams among which the kernels are divided.")]
Replays = Annotated[
    Count, typer.Option(metavar="N", help="How many times the step runs: decides whether building a graph pays off.")
]
PredictedRun = Annotated[Typed, typer.Option("--run", metavar="RUN", help=f"The run with the costs; {LAST_OR_BUNDLED}")]
PredictedJson = Annotated[bool, typer.Option("--json", help="Print the prediction as JSON, in SI units.")]

# whatif: what changes
Submit = Annotated[Typed, typer.Option(metavar="TIME", help="A launch call takes this long.")]
ToLayer = Annotated[Typed, typer.Option(metavar="LAYER", help="This layer launches all kernels.")]
Gap = Annotated[Typed, typer.Option(metavar="TIME", help="The gap between two kernels of a stream.")]
GraphGap = Annotated[Typed, typer.Option(metavar="TIME", help="The gap between two kernels of a graph.")]
Replay = Annotated[Typed, typer.Option(metavar="TIME", help="Replaying a graph takes this long, whatever its size.")]
Memory = Annotated[Typed, typer.Option(metavar="RATE", help="The GPU memory's bandwidth: 2039GB/s.")]
PcieGen = Annotated[Count, typer.Option(metavar="N", help="Another generation of the PCIe link.")]
Lanes = Annotated[Count, typer.Option(metavar="N", help="Another width of the PCIe link.")]
KernelTime = Annotated[Typed, typer.Option(metavar="FACTOR", help="The kernels' work: 0.5x halves time and bytes.")]
HostTime = Annotated[Typed, typer.Option(metavar="FACTOR", help="The program's own time between calls: 0x is none.")]
Against = Annotated[Typed, typer.Option(metavar="RUN", help="The same step on the machine of another run.")]

# explain
Topic = Annotated[Typed, typer.Argument(metavar="[TOPIC]", help="What to explain; default: list the topics.")]
ExplainedRun = Annotated[
    Typed, typer.Option("--run", metavar="RUN", help=f"The run with the figures; {LAST_OR_BUNDLED}")
]

# compare
Base = Annotated[str, typer.Argument(metavar="BASE", help=f"The run to compare with. {RUN_NAME}.")]
New = Annotated[
    str | None, typer.Argument(metavar="[NEW]", help="The run to judge, named the same way; default: the last run.")
]
Fail = Annotated[
    FailOn | None,
    typer.Option("--fail-on", help="End with exit code 5 if a figure is slower, faster, or changed in any way."),
]
AllFigures = Annotated[
    bool, typer.Option("--all", help="List every figure, including those that are the same or unclear.")
]

# plot, report
PlottedRun = Annotated[str, typer.Argument(metavar="RUN", help=f"{RUN_NAME}.")]
FigureName = Annotated[str, typer.Argument(metavar="FIGURE", help=f"One of {NAMES}.")]
PlotFile = Annotated[
    Path, typer.Option("-o", "--out", metavar="FILE", help="A new file; its ending .png, .svg or .pdf sets the kind.")
]
OverlaidRuns = Annotated[
    list[str] | None, typer.Option("--with", metavar="RUN", help="Draw another run over it. Repeatable.")
]
PlotTheme = Annotated[Theme, typer.Option(help="The background to draw for.")]
Reported = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN]...", help=f"{RUN_NAMES} Several are drawn over each other.")
]
PageFile = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="A new file.")]

# export
ExportFormat = Annotated[
    Format,
    typer.Option(
        help="csv, jsonl: one row a measurement. json: the run as well, to be shown again. markdown: the report."
    ),
]
Redact = Annotated[
    bool,
    typer.Option(
        "--redact", help="Replace host names, UUIDs, serial numbers, addresses, user names and paths: GPU-1, IP-2, …"
    ),
]
Schema = Annotated[bool, typer.Option("--schema", help="Write the JSON Schema of run files instead.")]

# history, trend
Label = Annotated[
    tuple[str, str] | None,
    typer.Option("--label", metavar="RUN TEXT", help="Label a run: it is found by that name, and never pruned."),
]
Note = Annotated[
    tuple[str, str] | None,
    typer.Option("--note", metavar="RUN TEXT", help='Add a note to a run; "" removes it.'),
]
Last = Annotated[int, typer.Option("--last", metavar="N", min=1, help="The newest N runs only.")]
AllRuns = Annotated[bool, typer.Option("--all", help="All runs.")]
Keep = Annotated[int | None, typer.Option(metavar="N", min=0, help="Keep the newest N runs.")]
OlderThan = Annotated[float | None, typer.Option(metavar="DAYS", min=0, help="Keep runs younger than DAYS.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
MetricName = Annotated[str, typer.Argument(metavar="METRIC", help="BENCHMARK.METRIC, such as launch_cost.submit.")]
CaseName = Annotated[
    str | None,
    typer.Option("--case", metavar="AXIS=VALUE[,…]", help="The cases, at most three, or the whole id of one."),
]
