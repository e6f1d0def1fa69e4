"""The command line's arguments and options: their names, types and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
