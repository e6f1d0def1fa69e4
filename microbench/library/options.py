"""The options of `microbench run` and `measure`, which `microbench.run` and `microbench.measure` take as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from microbench.core.errors import UsageError
from microbench.core.model import Param
from microbench.core.options import Argument, Option
from microbench.core.units import plain


def _overrides(texts: list[str]) -> dict[str, tuple[str, ...]]:
    from microbench.session.plan import parse_overrides

    return parse_overrides(texts)


def _own_axes(texts: list[str]) -> dict[str, list[str]]:
    """The values of each axis from NAME=VALUE[,VALUE] as given to --axis. Raises UsageError."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        if not equals:
            raise UsageError(f"--axis {plain(text, 60)} is not NAME=VALUE[,VALUE]", "for example --axis batch=1,8,64")
        axes.setdefault(name, []).extend(value.strip() for value in listed.split(","))
    return axes


Names = Annotated[
    Sequence[str],
    Argument(
        "[SUITE|BENCHMARK]...", "What to measure; default: everything. `microbench list` shows the names.", read=tuple
    ),
]
Quick = Annotated[bool, Option(None, "Measure the core with fewer samples, in less than a minute.")]
Full = Annotated[bool, Option(None, "Measure all values of each axis, for as long as that takes.")]
Rounds = Annotated[
    int, Option("N", "Repeat everything in N fresh processes. The grade stable needs 3 within ±10 %, compare needs 5.")
]
TimeLimit = Annotated[
    float | None,
    Option(
        "SECONDS",
        "Leave out cases that do not fit, but none of the core; default: 120 without names.",
        "--time-limit",
    ),
]
SET, SET_HELP = "AXIS=VALUE[,VALUE]", "Measure these values of an axis: size=64,1MiB or duration=2us. Repeatable."
Device = Annotated[
    str | None, Option("DEVICE", "cuda:N, a GPU's UUID, all, or fake (simulated); default: the first GPU.")
]
Out = Annotated[Path | None, Option("FILE", "Save the run to this new file; default: one in the data folder.")]
Into = Annotated[str | None, Option("RUN", "Add the results to this run.")]
Label = Annotated[str | None, Option("TEXT", "Label the run; the label is a name for it in every command.")]


@dataclass(frozen=True)
class RunOptions:
    """What to measure, how, and where to save it. ``axes`` sets the values of axes."""

    names: Names = ()
    quick: Quick = False
    full: Full = False
    axes: Annotated[Mapping[str, Sequence[Param]], Option(SET, SET_HELP, "--set", read=_overrides)] = field(
        default_factory=dict
    )
    device: Device = None
    rounds: Rounds = 1
    to_compare: Annotated[bool, Option(None, "Measure five rounds, as compare needs for a verdict.")] = False
    time_limit_s: TimeLimit = None
    out: Out = None
    into: Into = None
    resume: Annotated[str | None, Option("RUN", "Measure what this unfinished run still lacks.")] = None
    label: Label = None


@dataclass(frozen=True)
class OwnOptions:
    """How to measure a function or kernel of a user's own.

    A grid, a block, a size and an argument are formulas, which a case's parameters hold as texts.
    """

    setup: Annotated[
        str | None, Option("TARGET", "A function that gets the axes it names and returns the arguments.")
    ] = None
    axes: Annotated[
        Mapping[str, Sequence[Param | float]],
        Option(
            "NAME=VALUE[,VALUE]",
            "Measure each value of a parameter: batch=1,8,64. Repeatable.",
            "--axis",
            read=_own_axes,
        ),
    ] = field(default_factory=dict)
    grid: Annotated[str | None, Option("X[,Y[,Z]]", "Blocks of a kernel's grid: 1024, or n//256 with --axis n.")] = None
    block: Annotated[str | None, Option("X[,Y[,Z]]", "Threads of a block: 256.")] = None
    args: Annotated[
        Sequence[str],
        Option(
            "ARG",
            "An argument of a kernel: f32[1<<20] (an array), 2.0f, 7 or i64(7). In order.",
            "--arg",
            read=tuple,
        ),
    ] = ()
    shared: Annotated[str | None, Option("SIZE", "Dynamic shared memory of a block: 16KiB.")] = None
    bytes: Annotated[str | None, Option("SIZE", "Bytes that one launch reads and writes: 12MiB or 12*n.")] = None
    flop: Annotated[str | None, Option("N", "Operations of one launch: 2*n.")] = None
    precision: Annotated[str, Option("TYPE", "The type of these operations: fp64, fp32, tf32, fp16, bf16, int8.")] = (
        "fp32"
    )
    cooperative: Annotated[bool, Option(None, "Launch the kernel as a cooperative grid.")] = False
    options: Annotated[
        Sequence[str],
        Option("OPTION", "An option of NVRTC: --option=-lineinfo. Repeatable.", "--option", read=tuple),
    ] = ()
    device: Device = None
    rounds: Rounds = 1
    limit: Annotated[
        str | None,
        Option("TIME", "Kill a case that reports no progress for this long: 20s; default: 1 minute, 3 while it loads."),
    ] = None
    out: Out = None
    into: Into = None
    label: Label = None
