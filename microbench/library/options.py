"""The options of `microbench run` and `measure`, which `microbench.run` and `microbench.measure` take as well."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from microbench.core.errors import UsageError
from microbench.core.model import Param
from microbench.core.options import argument, flag, option
from microbench.core.units import plain, typed_time

LONGEST_LIMIT_S = 86400.0


def _values(texts: Iterable[str], name: str, form: str, example: str) -> dict[str, tuple[Param, ...]]:
    """The values of each axis from ``axis=value[,value]`` as given to an option; one given twice gets all of them."""
    values: dict[str, tuple[Param, ...]] = {}
    for text in texts:
        axis, equals, listed = text.partition("=")
        several = tuple(value.strip() for value in listed.split(","))
        if not equals or not axis.strip() or not all(several):
            raise UsageError(f"{name} {plain(text)} is not {form}", f"for example {name} {example}")
        values[axis.strip()] = (*values.get(axis.strip(), ()), *several)
    return values


def overrides_of(texts: Iterable[str]) -> dict[str, tuple[Param, ...]]:
    """The values of each axis as given to --set. Raises UsageError."""
    return _values(texts, "--set", "axis=value[,value]", "duration_ns=1000,5000")


def own_axes(texts: Iterable[str]) -> dict[str, tuple[Param, ...]]:
    """The values of each axis as given to --axis. Raises UsageError."""
    return _values(texts, "--axis", "NAME=VALUE[,VALUE]", "batch=1,8,64")


def preset_of(quick: bool, full: bool) -> str:
    """The preset that --quick and --full choose. Raises UsageError for both."""
    if quick and full:
        raise UsageError("--quick and --full cannot be combined", "give one of them, or neither")
    return "quick" if quick else "full" if full else "default"


# Options of several commands.
NAMES = argument(
    "[SUITE|BENCHMARK]...", "What to measure; default: everything. `microbench list` shows the names.", (), read=tuple
)
QUICK = flag("Measure the core with fewer samples, in less than a minute.")
FULL = flag("Measure all values of each axis, for as long as that takes.")
SET = "AXIS=VALUE[,VALUE]", "Measure these values of an axis: size=64,1MiB or duration=2us. Repeatable.", "--set"
DEVICE = option("DEVICE", "cuda:N, a GPU's UUID, all, or fake (simulated); default: the first GPU.")
ROUNDS = option(
    "N", "Repeat everything in N fresh processes. The grade stable needs 3 within ±10 %, compare needs 5.", default=1
)
TIME_LIMIT = option(
    "SECONDS", "Leave out cases that do not fit, but none of the core; default: 120 without names.", "--time-limit"
)
OUT = option("FILE", "Save the run to this new file; default: one in the data folder.")
INTO = option("RUN", "Add the results to this run.")
LABEL = option("TEXT", "Label the run; the label is a name for it in every command.")


@dataclass(frozen=True)
class RunOptions:
    """What to measure, how, and where to save it. ``axes`` sets the values of axes."""

    names: Sequence[str] = copy(NAMES)
    quick: bool = copy(QUICK)
    full: bool = copy(FULL)
    axes: Mapping[str, Sequence[Param]] = option(*SET, default=dict, read=overrides_of)
    device: str | None = copy(DEVICE)
    rounds: int = copy(ROUNDS)
    to_compare: bool = flag("Measure five rounds, as compare needs for a verdict.")
    time_limit_s: float | None = copy(TIME_LIMIT)
    out: Path | None = copy(OUT)
    into: str | None = copy(INTO)
    resume: str | None = option("RUN", "Measure what this unfinished run still lacks.")
    label: str | None = copy(LABEL)


@dataclass(frozen=True)
class OwnOptions:
    """How to measure a function or kernel of a user's own.

    A grid, a block, a size and an argument are formulas, which a case's parameters hold as texts.
    """

    setup: str | None = option("TARGET", "A function that gets the axes it names and returns the arguments.")
    axes: Mapping[str, Sequence[Param | float]] = option(
        "NAME=VALUE[,VALUE]", "Measure each value of a parameter: batch=1,8,64. Repeatable.", "--axis",
        default=dict, read=own_axes,
    )  # fmt: skip
    grid: str | None = option("X[,Y[,Z]]", "Blocks of a kernel's grid: 1024, or n//256 with --axis n.")
    block: str | None = option("X[,Y[,Z]]", "Threads of a block: 256.")
    args: Sequence[str] = option(
        "ARG", "An argument of a kernel: f32[1<<20] (an array), 2.0f, 7 or i64(7). In order.", "--arg",
        default=(), read=tuple,
    )  # fmt: skip
    shared: str | None = option("SIZE", "Dynamic shared memory of a block: 16KiB.")
    bytes: str | None = option("SIZE", "Bytes that one launch or call reads and writes: 12MiB or 12*n.")
    flop: str | None = option("N", "Operations of one launch or call: 2*n.")
    precision: str = option("TYPE", "The type of these operations: fp64, fp32, tf32, fp16, bf16, int8.", default="fp32")
    cooperative: bool = flag("Launch the kernel as a cooperative grid.")
    options: Sequence[str] = option(
        "OPTION", "An option of NVRTC: --option=-lineinfo. Repeatable.", "--option", default=(), read=tuple
    )
    device: str | None = copy(DEVICE)
    rounds: int = copy(ROUNDS)
    limit: str | None = option(
        "TIME", "Kill a case that reports no progress for this long: 20s; default: 1 minute, 3 while it loads."
    )
    out: Path | None = copy(OUT)
    into: str | None = copy(INTO)
    label: str | None = copy(LABEL)

    @property
    def limit_s(self) -> float | None:
        """The limit in seconds; None for the usual one. Raises UsageError."""
        return typed_time(self.limit, LONGEST_LIMIT_S) if self.limit is not None else None
