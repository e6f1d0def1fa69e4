"""The arguments and options that only the command has, not the library: their types and help texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from microbench.core.options import Argument, Option
from microbench.library.options import SET, SET_HELP, Full, Quick, Rounds, TimeLimit
from microbench.library.runs import REFERENCE_RUN
from microbench.report.figures.catalogue import KINDS

RUN_NAME = f"a bundled run ({REFERENCE_RUN}), a file, a label, or the beginning of a run's id"
LAST_OR_BUNDLED = "default: the last run that has what is needed, else a bundled one."
EXAMPLES = "decode-7b, small-image-training, streaming-pipeline"
NAMES = ", ".join(KINDS)
Count = int | None
Typed = str | None
OUT = "-o --out"


class FailOn(StrEnum):
    """Which changes make compare end with an exit code of its own."""

    SLOWER = "slower"
    SUSPECTED = "suspected"
    FASTER = "faster"
    ANY = "any"


class Checked(StrEnum):
    """What can be checked: the suites that have a verdict."""

    LINK = "link"
    MEMORY = "memory"
    COMPUTE = "compute"


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
    OPENMETRICS = "openmetrics"


# of several commands
Force = Annotated[bool, Option(None, "Overwrite the file.")]
Why = Annotated[bool, Option(None, "Add to each finding the rule behind it, with its threshold.")]


@dataclass(frozen=True)
class Picture:
    """Where to draw: into a new SVG file, or to the terminal."""

    svg: Annotated[Path | None, Option("FILE", "Write the output to this new SVG file instead.")] = None
    force: Force = False


TERMINAL = Picture()

# run, measure, list
Json = Annotated[bool, Option(None, "Print the run as JSON instead of the report.")]
OwnTarget = Annotated[
    str, Argument("TARGET", "FILE.cu:KERNEL, FILE.py::FUNCTION or MODULE:FUNCTION, from the current folder.")
]
Listed = Annotated[Sequence[str], Argument("[SUITE|BENCHMARK]...", "What to list; default: everything.", read=tuple)]

# check
WhatToCheck = Annotated[Checked, Argument("{link|memory|compute}", "What to check.")]
CheckedRun = Annotated[Typed, Option("RUN", "Judge this recorded run instead of measuring.")]

# show
RunName = Annotated[Typed, Argument("[RUN]", f"The run: {RUN_NAME}; default: the last run.")]
Part = Annotated[
    Typed, Argument("[PART]", f"A suite, a benchmark or a figure ({NAMES}); default: one screen with all answers.")
]
Everything = Annotated[
    bool, Option(None, "Show everything, with the tables of all benchmarks, or of the suite that is PART.", "--all")
]

# diagnose
Traces = Annotated[list[Path], Argument("TRACE...", "Traces, or folders of them: one for each rank.")]
TrueStep = Annotated[Typed, Option("TIME", "The time of a step without a profiler, if you know it: 1.93ms.")]
DiagnosisFailOn = Annotated[Typed, Option("LIMIT", "End with exit code 5 beyond this: launch-bound>30% or idle>50%.")]
DiagnosisJson = Annotated[bool, Option(None, "Print the diagnosis as JSON, in SI units.")]
DiagnosisAll = Annotated[bool, Option(None, "Add tables: causes, places, changes, what a graph cannot hold.", "--all")]
DiagnosisFrom = Annotated[
    Typed, Option("TIME", "Diagnose only what was submitted from this time after the first event on: 1.5s.")
]
DiagnosisTo = Annotated[Typed, Option("TIME", "Diagnose only what was submitted before this time: 2s.")]
DiagnosisPage = Annotated[
    Path | None, Option("FILE", "Write everything to this new HTML page, with a typical step to zoom into.", OUT)
]
DiagnosisTimeline = Annotated[bool, Option(None, "Draw a typical step to scale: host, streams, idle time.")]
DiagnosisSave = Annotated[
    Path | None, Option("FILE", "Save the step without the profiler to this new .toml file for predict and whatif.")
]

# watch
WatchedCommand = Annotated[
    Sequence[str], Argument("[COMMAND]...", "The command with its arguments, behind -- or not.", read=tuple)
]
Recordings = Annotated[
    Path | None,
    Option("FOLDER", "Record into this new folder, a file a process; default: recording-1, recording-2, …", OUT),
]
WatchedTime = Annotated[
    Typed, Option("TIME", "End the recording of a process this long after its begin: 60s. It runs on.")
]
WatchedWindow = Annotated[
    Typed, Option("TIME", "Record only this long at a time, and then pause: 2s. The pauses show the true step.")
]
WatchedEvery = Annotated[
    Typed, Option("TIME", "From the begin of one window to that of the next; default: 10 windows.")
]
Stacks = Annotated[
    bool, Option(None, "Name the lines of your Python code in which the GPU waits, from samples every 2 ms.")
]
Utilisation = Annotated[
    bool, Option(None, "Also say what NVML and GPM say meanwhile, beside the time in which kernels ran.")
]
WatchedProcess = Annotated[
    Count, Option("PID", "Record nothing: say what NVML says of this running process, until it ends.")
]

# predict, whatif, timeline, explain
WorkloadName = Annotated[
    Typed, Argument("[WORKLOAD]", f"The step: a .toml file or one of {EXAMPLES}; or describe it by options.")
]
PredictedRun = Annotated[Typed, Option("RUN", f"The run with the measured costs; {LAST_OR_BUNDLED}")]
PredictedJson = Annotated[bool, Option(None, "Print the prediction as JSON, in SI units.")]
Against = Annotated[Typed, Option("RUN", "Predict the step on the machine of this run instead of changing it.")]
Topic = Annotated[Typed, Argument("[TOPIC]", "What to explain; default: list the topics.")]
ExplainedRun = Annotated[Typed, Option("RUN", f"The run with the figures; {LAST_OR_BUNDLED}")]

# compare
Base = Annotated[str, Argument("BASE", f"The earlier run: {RUN_NAME}.")]
New = Annotated[Typed, Argument("[NEW]", "The run to judge, named the same way; default: the last run.")]
Fail = Annotated[
    FailOn | None,
    Option(
        None,
        "End with exit code 5 if a suite or figure is slower, suspected (slower, or worse but not confirmed), "
        "faster, or changed at all.",
    ),
]
SameWithin = Annotated[str, Option("PERCENT", "A figure is the same if the interval of its change stays within this.")]
AllFigures = Annotated[bool, Option(None, "List every figure, including the same and the unclear ones.", "--all")]

# plot, report
PlottedRun = Annotated[str, Argument("RUN", f"The run: {RUN_NAME}.")]
FigureName = Annotated[str, Argument("FIGURE", f"One of {NAMES}.")]
PlotFile = Annotated[Path, Option("FILE", "The new SVG file.", OUT)]
OverlaidRuns = Annotated[
    Sequence[str], Option("RUN", "Draw this run into the same figure. Repeatable.", "--with", read=tuple)
]
PlotTheme = Annotated[Theme, Option(None, "The background to draw for.")]
Reported = Annotated[
    Sequence[str],
    Argument("[RUN]...", f"The runs, drawn over each other. Each is {RUN_NAME}; default: the last run.", read=tuple),
]
PageFile = Annotated[Path, Option("FILE", "The new HTML file.", OUT)]

# export
ExportFormat = Annotated[
    Format,
    Option(
        None,
        "csv, jsonl: one row a measurement. json: also the run, which show reads again. markdown: the report. "
        "openmetrics: gauges for Prometheus.",
    ),
]
Redact = Annotated[
    bool, Option(None, "Replace host and user names, UUIDs, serial numbers, addresses and paths by GPU-1, IP-2, …")
]
Schema = Annotated[bool, Option(None, "Write the JSON Schema of run files instead.")]

# history, trend
RemarkedRun = tuple[str, str] | None
Label = Annotated[RemarkedRun, Option("RUN TEXT", 'Label a run: the label is a name for it. "" removes it.')]
Note = Annotated[RemarkedRun, Option("RUN TEXT", 'Add a note to a run; "" removes it.')]
Last = Annotated[int, Option("N", "Only the newest N runs.", least=1)]
AllRuns = Annotated[bool, Option(None, "All runs instead of the newest.", "--all")]
Keep = Annotated[Count, Option("N", "Keep the newest N runs.", least=0)]
OlderThan = Annotated[float | None, Option("DAYS", "Delete only runs older than DAYS days.", least=0)]
Yes = Annotated[bool, Option(None, "Delete without asking.")]
MetricName = Annotated[str, Argument("METRIC", "BENCHMARK.METRIC, such as launch_cost.submit.")]
CaseName = Annotated[
    Typed, Option("AXIS=VALUE[,…]", "The cases to draw, at most three: size_bytes=64. Or the whole id of a case.")
]

# fleet run, fleet watch
Store = Annotated[Path, Option("DIR", "The folder that keeps campaigns and their runs.")]
CampaignEvery = Annotated[str, Option("TIME", "From the start of one campaign to that of the next: 30min, 6h, 1d.")]
CampaignTimes = Annotated[Count, Option("N", "End after N campaigns; default: at Ctrl-C.", least=1)]
ResumedCampaign = Annotated[Typed, Option("ID", "Run what this campaign still lacks.")]


@dataclass(frozen=True)
class CampaignOptions:
    """Where the nodes of a campaign are, and what each of them measures."""

    local: Annotated[Count, Option("N", "Start N worker processes on this machine.", least=1)] = None
    scheduler: Annotated[Typed, Option("ADDRESS", "Use the workers of this Dask scheduler: tcp://HOST:8786.")] = None
    ssh: Annotated[Typed, Option("HOST[,HOST]", "Start a worker on each of these hosts by SSH.")] = None
    slurm: Annotated[Count, Option("N", "Start a worker in each of N Slurm jobs, one a node.", least=1)] = None
    quick: Quick = False
    full: Full = False
    overrides: Annotated[tuple[str, ...], Option(SET, SET_HELP, "--set", read=tuple)] = ()
    device: Annotated[
        Typed, Option("DEVICE", "One run a node, on cuda:N, all, or fake (simulated); default: one run for each GPU.")
    ] = None
    rounds: Rounds = 1
    time_limit: TimeLimit = None
    limit: Annotated[
        float | None, Option("SECONDS", "End the run of a node after this time; default: 1800.", least=1)
    ] = None
    wait: Annotated[float, Option("SECONDS", "How long to wait for nodes to come.", least=0)] = 60.0
    label: Annotated[
        list[str], Option("KEY=VALUE", "Label every node of this campaign: rack=r1. Repeatable.", read=list)
    ] = field(default_factory=list)
    labels: Annotated[Path | None, Option("FILE", "Labels of each node: TOML or JSON with a table for each.")] = None
    simulated: Annotated[
        Path | None, Option("FILE", "Costs and faults of simulated nodes, as TOML or JSON.", hidden=True)
    ] = None


# the store of a fleet
StoreFolder = Annotated[Path, Option("DIR", "The folder of the store.", "--store")]
Imported = Annotated[list[str], Argument("RUN...", "Run files, ids or labels of runs, or folders of campaigns.")]
ImportedCampaign = Annotated[Typed, Option("ID", "The campaign; default: imported, or the newest.", "--campaign")]
LastCampaign = Annotated[Typed, Option("ID", "The last campaign that counts; default: the newest.", "--campaign")]
LastCampaigns = Annotated[int, Option("N", "Only the newest N campaigns.", "--last", least=1)]
Node = Annotated[str, Option("NAME", "The machine of the runs; default: its GPU's UUID.")]
NodeLabels = Annotated[
    Sequence[str], Option("KEY=VALUE", "A label of the node, such as rack=r1. Repeatable.", "--label", read=tuple)
]
Sql = Annotated[str, Argument("SQL", "One SELECT over the views rows, runs, nodes and findings.")]
AsJson = Annotated[bool, Option(None, "Write JSON, one object a row.")]
AsCsv = Annotated[bool, Option(None, "Write CSV.")]
FleetPage = Annotated[Path | None, Option("FILE", "Write a page to this new HTML file instead.", OUT)]
FleetWhy = Annotated[bool, Option(None, "Show the rule behind each finding.")]
FleetForce = Annotated[bool, Option(None, "Overwrite an existing file.")]
