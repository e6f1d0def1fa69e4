"""The arguments and options of all commands: their names, types and help texts."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from microbench.library.runs import REFERENCE_RUN
from microbench.report.figures.catalogue import KINDS

RUN_NAME = f"a bundled run ({REFERENCE_RUN}), a file, a label, or the beginning of a run's id"
LAST_OR_BUNDLED = "default: the last run that has what is needed, else a bundled one."
EXAMPLES = "decode-7b, small-image-training, streaming-pipeline"
NAMES = ", ".join(KINDS)
Count = int | None
Typed = str | None


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


def _argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help)


def _option(metavar: str | None, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, **more)


def _flag(name: str, help: str) -> Any:
    return typer.Option(name, help=help)


# run, list
WHAT = "[SUITE|BENCHMARK]..."
Measured = Annotated[
    list[str] | None, _argument(WHAT, "What to measure; default: everything. `microbench list` shows the names.")
]
Listed = Annotated[list[str] | None, _argument(WHAT, "What to list; default: everything.")]
Quick = Annotated[bool, _flag("--quick", "Measure the core with fewer samples, in less than a minute.")]
Full = Annotated[bool, _flag("--full", "Measure all values of each axis, for as long as that takes.")]
Overrides = Annotated[
    list[str] | None,
    _option(
        "AXIS=VALUE[,VALUE]", "Measure these values of an axis: size=64,1MiB or duration=2us. Repeatable.", "--set"
    ),
]
# Typer 0.27 takes the metavar for the name where the two are alike, so the name is given.
Device = Annotated[
    Typed, _option("DEVICE", "cuda:N, a GPU's UUID, all, or fake (simulated); default: the first GPU.", "--device")
]
Rounds = Annotated[
    int, _option("N", "Repeat everything in N fresh processes. The grade stable needs 3 within ±10 %, compare needs 5.")
]
ToCompare = Annotated[bool, _flag("--to-compare", "Measure five rounds, as compare needs for a verdict.")]
TimeLimit = Annotated[
    float | None,
    _option("SECONDS", "Leave out cases that do not fit, but none of the core; default: 120 without names."),
]
Out = Annotated[Path | None, _option("FILE", "Save the run to this new file; default: one in the data folder.")]
Into = Annotated[Typed, _option("RUN", "Add the results to this run.")]
Resume = Annotated[Typed, _option("RUN", "Measure what this unfinished run still lacks.")]
RunLabel = Annotated[Typed, _option("TEXT", "Label the run; the label is a name for it in every command.", "--label")]
Json = Annotated[bool, _flag("--json", "Print the run as JSON instead of the report.")]

# measure
OwnTarget = Annotated[
    str, _argument("TARGET", "FILE.cu:KERNEL, FILE.py::FUNCTION or MODULE:FUNCTION, from the current folder.")
]
OwnSetup = Annotated[
    Typed, _option("TARGET", "A function that gets the axes it names and returns the arguments.", "--setup")
]
OwnAxes = Annotated[
    list[str] | None,
    _option("NAME=VALUE[,VALUE]", "Measure each value of a parameter: batch=1,8,64. Repeatable.", "--axis"),
]
OwnGrid = Annotated[Typed, _option("X[,Y[,Z]]", "Blocks of a kernel's grid: 1024, or n//256 with --axis n.", "--grid")]
OwnBlock = Annotated[Typed, _option("X[,Y[,Z]]", "Threads of a block: 256.", "--block")]
OwnArguments = Annotated[
    list[str] | None,
    _option("ARG", "An argument of a kernel: f32[1<<20] (an array), 2.0f, 7 or i64(7). In order.", "--arg"),
]
OwnShared = Annotated[Typed, _option("SIZE", "Dynamic shared memory of a block: 16KiB.", "--shared")]
OwnBytes = Annotated[Typed, _option("SIZE", "Bytes that one launch reads and writes: 12MiB or 12*n.", "--bytes")]
OwnFlop = Annotated[Typed, _option("N", "Operations of one launch: 2*n.", "--flop")]
OwnPrecision = Annotated[str, _option("TYPE", "The type of these operations: fp64, fp32, tf32, fp16, bf16, int8.")]
OwnCooperative = Annotated[bool, _flag("--cooperative", "Launch the kernel as a cooperative grid.")]
OwnCompiler = Annotated[
    list[str] | None, _option("OPTION", "An option of NVRTC: --option=-lineinfo. Repeatable.", "--option")
]
OwnLimit = Annotated[
    Typed,
    _option(
        "TIME",
        "Kill a case that reports no progress for this long: 20s; default: 1 minute, 3 while it loads.",
        "--limit",
    ),
]

# check
WhatToCheck = Annotated[Checked, _argument("{link|memory|compute}", "What to check.")]
CheckedRun = Annotated[Typed, _option("RUN", "Judge this recorded run instead of measuring.", "--run")]

# show
RunName = Annotated[Typed, _argument("[RUN]", f"The run: {RUN_NAME}; default: the last run.")]
Part = Annotated[
    Typed,
    _argument("[PART]", f"A suite, a benchmark or a figure ({NAMES}); default: one screen with all answers."),
]
Traces = Annotated[list[Path], _argument("TRACE...", "Traces, or folders of them: one for each rank.")]
TrueStep = Annotated[Typed, _option("TIME", "The time of a step without a profiler, if you know it: 1.93ms.", "--step")]
DiagnosisFailOn = Annotated[
    Typed, _option("LIMIT", "End with exit code 5 beyond this: launch-bound>30% or idle>50%.", "--fail-on")
]
DiagnosisJson = Annotated[bool, _flag("--json", "Print the diagnosis as JSON, in SI units.")]
DiagnosisAll = Annotated[bool, _flag("--all", "Add tables: causes, places, changes, what a graph cannot hold.")]
DiagnosisFrom = Annotated[
    Typed, _option("TIME", "Diagnose only what was submitted from this time after the first event on: 1.5s.", "--from")
]
DiagnosisTo = Annotated[Typed, _option("TIME", "Diagnose only what was submitted before this time: 2s.", "--to")]
DiagnosisPage = Annotated[
    Path | None,
    _option("FILE", "Write everything to this new HTML page, with a typical step to zoom into.", "-o", "--out"),
]
DiagnosisTimeline = Annotated[bool, _flag("--timeline", "Draw a typical step to scale: host, streams, idle time.")]
DiagnosisSave = Annotated[
    Path | None,
    _option("FILE", "Save the step without the profiler to this new .toml file for predict and whatif.", "--save"),
]
Everything = Annotated[
    bool, _flag("--all", "Show everything, with the tables of all benchmarks, or of the suite that is PART.")
]
Force = Annotated[bool, _flag("--force", "Overwrite the file.")]
Why = Annotated[bool, _flag("--why", "Add to each finding the rule behind it, with its threshold.")]
Svg = Annotated[Path | None, _option("FILE", "Write the output to this new SVG file instead.")]

# watch
WatchedCommand = Annotated[
    list[str] | None, _argument("[COMMAND]...", "The command with its arguments, behind -- or not.")
]
Recordings = Annotated[
    Path | None,
    _option(
        "FOLDER", "Record into this new folder, a file a process; default: recording-1, recording-2, …", "-o", "--out"
    ),
]
WatchedTime = Annotated[
    Typed, _option("TIME", "End the recording of a process this long after its begin: 60s. It runs on.", "--for")
]
Stacks = Annotated[
    bool, _flag("--stacks", "Name the lines of your Python code in which the GPU waits, from samples every 2 ms.")
]

WatchedWindow = Annotated[
    Typed,
    _option("TIME", "Record only this long at a time, and then pause: 2s. The pauses show the true step.", "--window"),
]
WatchedEvery = Annotated[
    Typed, _option("TIME", "From the begin of one window to that of the next; default: 10 windows.", "--every")
]
Utilisation = Annotated[
    bool, _flag("--utilisation", "Also say what NVML and GPM say meanwhile, beside the time in which kernels ran.")
]
WatchedProcess = Annotated[
    Count, _option("PID", "Record nothing: say what NVML says of this running process, until it ends.", "--pid")
]

# predict, whatif, timeline: a step of work
WorkloadName = Annotated[
    Typed, _argument("[WORKLOAD]", f"The step: a .toml file or one of {EXAMPLES}; or describe it by options.")
]
StepKernels = Annotated[Count, _option("N", "Kernels in the step: 1100.", "--kernels")]
StepDuration = Annotated[
    Typed, _option("TIME", "How long each kernel runs, as profilers report it: 6us, 500ns, or 0 (empty).", "--duration")
]
StepLayer = Annotated[
    Typed, _option("LAYER", "What launches them: torch, cupy, numba, …; default: loop (compiled code).", "--layer")
]
Arguments = Annotated[Count, _option("N", "Arguments of each kernel; default: 0.")]
SyncsPerStep = Annotated[Count, _option("N", "Synchronizations in a step; default: 1.")]
CopyIn = Annotated[Typed, _option("SIZE", "Copy this much to the GPU first, from pinned memory: 1MiB.")]
CopyOut = Annotated[Typed, _option("SIZE", "Copy this much from the GPU at the end, to pinned memory: 4KiB.")]
Streams = Annotated[Count, _option("N", "Streams that share the kernels; default: 1.")]
StepHost = Annotated[
    Typed,
    _option(
        "TIME",
        "The program's own host time for each launch, on top of the layer's call: 12us; default: that of the file, or "
        "for PyTorch, CuPy's ufuncs and JAX a range from bare operations to typical model code.",
        "--host",
    ),
]
StepBlocks = Annotated[
    Count, _option("N", "Blocks of each kernel: as many as the GPU has SMs fill it. For several streams.", "--blocks")
]
StepShare = Annotated[
    float | None, _option("SHARE", "Share of the SMs that each kernel fills: 0.25. For several streams.", "--sm-share")
]
Replays = Annotated[
    Count, _option("N", "How many times the step runs, which decides whether a graph pays off; default: 1000.")
]
PredictedRun = Annotated[Typed, _option("RUN", f"The run with the measured costs; {LAST_OR_BUNDLED}", "--run")]
PredictedJson = Annotated[bool, _flag("--json", "Print the prediction as JSON, in SI units.")]

# whatif: what changes
Submit = Annotated[Typed, _option("TIME", "Time of a launch call: 2us.")]
ToLayer = Annotated[Typed, _option("LAYER", "Launch all kernels from this layer: loop.")]
Gap = Annotated[Typed, _option("TIME", "Gap between two kernels of a stream: 1us.")]
GraphGap = Annotated[Typed, _option("TIME", "Gap between two kernels of a graph: 1us.")]
Replay = Annotated[Typed, _option("TIME", "Time of replaying a graph of any size: 5us.")]
Memory = Annotated[Typed, _option("RATE", "Bandwidth of GPU memory: 2039GB/s.")]
PcieGen = Annotated[Count, _option("N", "Generation of the PCIe link: 1 to 6.")]
Lanes = Annotated[Count, _option("N", "Lanes of the PCIe link: 8.")]
KernelTime = Annotated[Typed, _option("FACTOR", "Factor on the kernels' work: 0.5x halves time and bytes.")]
HostTime = Annotated[Typed, _option("FACTOR", "Factor on the program's own time between calls: 0x removes it.")]
Against = Annotated[Typed, _option("RUN", "Predict the step on the machine of this run instead of changing it.")]

# explain
Topic = Annotated[Typed, _argument("[TOPIC]", "What to explain; default: list the topics.")]
ExplainedRun = Annotated[Typed, _option("RUN", f"The run with the figures; {LAST_OR_BUNDLED}", "--run")]

# compare
Base = Annotated[str, _argument("BASE", f"The earlier run: {RUN_NAME}.")]
New = Annotated[Typed, _argument("[NEW]", "The run to judge, named the same way; default: the last run.")]
Fail = Annotated[
    FailOn | None,
    _option(
        None,
        "End with exit code 5 if a suite or figure is slower, suspected (slower, or worse but not confirmed), "
        "faster, or changed at all.",
        "--fail-on",
    ),
]
SameWithin = Annotated[
    str, _option("PERCENT", "A figure is the same if the interval of its change stays within this.", "--same-within")
]
AllFigures = Annotated[bool, _flag("--all", "List every figure, including the same and the unclear ones.")]

# plot, report
PlottedRun = Annotated[str, _argument("RUN", f"The run: {RUN_NAME}.")]
FigureName = Annotated[str, _argument("FIGURE", f"One of {NAMES}.")]
PlotFile = Annotated[Path, _option("FILE", "The new SVG file.", "-o", "--out")]
OverlaidRuns = Annotated[list[str] | None, _option("RUN", "Draw this run into the same figure. Repeatable.", "--with")]
PlotTheme = Annotated[Theme, _option(None, "The background to draw for.")]
Reported = Annotated[
    list[str] | None,
    _argument("[RUN]...", f"The runs, drawn over each other. Each is {RUN_NAME}; default: the last run."),
]
PageFile = Annotated[Path, _option("FILE", "The new HTML file.", "-o", "--out")]

# export
ExportFormat = Annotated[
    Format,
    _option(
        None,
        "csv, jsonl: one row a measurement. json: also the run, which show reads again. markdown: the report. "
        "openmetrics: gauges for Prometheus.",
    ),
]
Redact = Annotated[
    bool, _flag("--redact", "Replace host and user names, UUIDs, serial numbers, addresses and paths by GPU-1, IP-2, …")
]
Schema = Annotated[bool, _flag("--schema", "Write the JSON Schema of run files instead.")]

# history, trend
RemarkedRun = tuple[str, str] | None
Label = Annotated[
    RemarkedRun, _option("RUN TEXT", 'Label a run: the label is a name for it. "" removes it.', "--label")
]
Note = Annotated[RemarkedRun, _option("RUN TEXT", 'Add a note to a run; "" removes it.', "--note")]
Last = Annotated[int, _option("N", "Only the newest N runs.", "--last", min=1)]
AllRuns = Annotated[bool, _flag("--all", "All runs instead of the newest.")]
Keep = Annotated[Count, _option("N", "Keep the newest N runs.", min=0)]
OlderThan = Annotated[float | None, _option("DAYS", "Delete only runs older than DAYS days.", min=0)]
Yes = Annotated[bool, _flag("--yes", "Delete without asking.")]
MetricName = Annotated[str, _argument("METRIC", "BENCHMARK.METRIC, such as launch_cost.submit.")]
CaseName = Annotated[
    Typed,
    _option("AXIS=VALUE[,…]", "The cases to draw, at most three: size_bytes=64. Or the whole id of a case.", "--case"),
]

# fleet run, fleet watch
Store = Annotated[Path, _option("DIR", "The folder that keeps campaigns and their runs.", "--store")]
Local = Annotated[Count, _option("N", "Start N worker processes on this machine.", "--local", min=1)]
Scheduler = Annotated[
    Typed, _option("ADDRESS", "Use the workers of this Dask scheduler: tcp://HOST:8786.", "--scheduler")
]
SshHosts = Annotated[Typed, _option("HOST[,HOST]", "Start a worker on each of these hosts by SSH.", "--ssh")]
SlurmJobs = Annotated[Count, _option("N", "Start a worker in each of N Slurm jobs, one a node.", "--slurm", min=1)]
FleetDevice = Annotated[
    Typed,
    _option(
        "DEVICE", "One run a node, on cuda:N, all, or fake (simulated); default: one run for each GPU.", "--device"
    ),
]
TaskLimit = Annotated[
    float | None, _option("SECONDS", "End the run of a node after this time; default: 1800.", "--limit", min=1)
]
WaitForNodes = Annotated[float, _option("SECONDS", "How long to wait for nodes to come.", "--wait", min=0)]
NodeLabels = Annotated[
    list[str] | None, _option("KEY=VALUE", "Label every node of this campaign: rack=r1. Repeatable.", "--label")
]
LabelsFile = Annotated[
    Path | None, _option("FILE", "Labels of each node: TOML or JSON with a table for each.", "--labels")
]
CampaignEvery = Annotated[
    str, _option("TIME", "From the start of one campaign to that of the next: 30min, 6h, 1d.", "--every")
]
CampaignTimes = Annotated[Count, _option("N", "End after N campaigns; default: at Ctrl-C.", "--times", min=1)]
ResumedCampaign = Annotated[Typed, _option("ID", "Run what this campaign still lacks.", "--resume")]
SimulatedNodes = Annotated[
    Path | None, _option("FILE", "Costs and faults of simulated nodes, as TOML or JSON.", "--simulated", hidden=True)
]
