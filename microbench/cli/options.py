"""What several commands share: single options, groups of them, and how the parser's options follow from a command."""

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import typer

from microbench.core.options import REQUIRED, Option, argument, flag, option
from microbench.library.options import FULL, QUICK, ROUNDS, SET, TIME_LIMIT
from microbench.library.runs import REFERENCE_RUN
from microbench.report.figures.catalogue import KINDS

RUN_NAME = f"a bundled run ({REFERENCE_RUN}), a file, a label, or the beginning of a run's id"
LAST_OR_BUNDLED = "default: the last run that has what is needed, else a bundled one."
EXAMPLES = "decode-7b, small-image-training, streaming-pipeline"
NAMES = ", ".join(KINDS)

RUN = argument("[RUN]", f"The run: {RUN_NAME}; default: the last run.", None)
COSTS = option("RUN", f"The run with the measured costs; {LAST_OR_BUNDLED}")
WORKLOAD = argument("[WORKLOAD]", f"The step: a .toml file or one of {EXAMPLES}; or describe it by options.", None)
JSON = flag("Print the run as JSON instead of the report.")
ANSWER = flag("Print the answer as JSON, in SI base units.")
WHY = flag("Add to each finding the rule behind it, with its threshold.")
FORCE = flag("Overwrite the file.")
REDACT = flag("Replace host and user names, UUIDs, serial numbers, addresses and paths by GPU-1, IP-2, …")
FAIL_ON = option(
    None,
    "End with exit code 5 if a suite or figure is slower, suspected (slower, or worse but not confirmed), faster, or "
    "changed at all.",
)
SAME_WITHIN = option("PERCENT", "A figure is the same if the interval of its change stays within this.", default="3%")
ALL_RUNS = flag("All runs instead of the newest.", "--all")


# Which changes make compare end with an exit code of its own; the suites that have a verdict; the backgrounds of a
# figure; the formats of export and of constants.
FailOn = Literal["slower", "suspected", "faster", "any"]
Checked = Literal["link", "memory", "compute"]
Theme = Literal["light", "dark"]
Format = Literal["csv", "json", "jsonl", "markdown", "openmetrics"]
ConstantsFormat = Literal["toml", "json", "h"]


@dataclass(frozen=True)
class Picture:
    """Where to draw: into a new SVG file, or to the terminal."""

    svg: Path | None = option("FILE", "Write the output to this new SVG file instead.")
    force: bool = copy(FORCE)


TERMINAL = Picture()


@dataclass(frozen=True)
class CampaignOptions:
    """Where the nodes of a campaign are, and what each of them measures."""

    local: int | None = option("N", "Start N worker processes on this machine.", least=1)
    scheduler: str | None = option("ADDRESS", "Use the workers of this Dask scheduler: tcp://HOST:8786.")
    ssh: str | None = option("HOST[,HOST]", "Start a worker on each of these hosts by SSH.")
    slurm: int | None = option("N", "Start a worker in each of N Slurm jobs, one a node.", least=1)
    quick: bool = copy(QUICK)
    full: bool = copy(FULL)
    overrides: tuple[str, ...] = option(*SET, default=(), read=tuple)
    device: str | None = option(
        "DEVICE", "One run a node, on cuda:N, all, or fake (simulated); default: one run for each GPU."
    )
    rounds: int = copy(ROUNDS)
    time_limit: float | None = copy(TIME_LIMIT)
    limit: float | None = option("SECONDS", "End the run of a node after this time; default: 1800.", least=1)
    wait: float = option("SECONDS", "How long to wait for nodes to come.", default=60.0, least=0)
    label: tuple[str, ...] = option(
        "KEY=VALUE", "Label every node of this campaign: rack=r1. Repeatable.", default=(), read=tuple
    )
    labels: Path | None = option("FILE", "Labels of each node: TOML or JSON with a table for each.")
    simulated: Path | None = option("FILE", "Costs and faults of simulated nodes, as TOML or JSON.")


Arguments = dict[str, Any]


class Without(NamedTuple):
    """Says beside a dataclass which of its options the command lacks."""

    name: str


def signature_of(function: Callable[..., Any]) -> tuple[inspect.Signature, Callable[[Arguments], Arguments]]:
    """The signature for the parser, and a function that turns parsed values into the command's arguments."""
    declared: dict[str, tuple[Field[Any], Any]] = {}  # each option and its type
    groups: dict[str, Any] = {}  # the dataclass of each parameter that has one
    group_of: dict[str, str] = {}  # the parameter that an option goes into
    passed: list[inspect.Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        lacking = getattr(hints[name], "__metadata__", ())
        kind = hints[name].__origin__ if lacking else hints[name]
        if is_dataclass(kind):
            groups[name] = kind
            inner = get_type_hints(kind)
            for field in fields(kind):
                if Without(field.name) not in lacking:
                    group_of[field.name], declared[field.name] = name, (field, inner[field.name])
        elif isinstance(parameter.default, Field):
            declared[name] = parameter.default, kind
        else:  # the parser's own context
            passed.append(parameter.replace(annotation=kind))

    def arguments(parsed: Arguments) -> Arguments:
        values: Arguments = {}
        for name, value in parsed.items():
            read = declared[name][0].metadata["option"].read if name in declared else None
            if value or read is None:
                values[name] = value if read is None else read(value)
            elif name not in group_of:  # a dataclass takes its own default
                values[name] = declared[name][0].default
        for group, kind in groups.items():
            own = [name for name in values if group_of.get(name) == group]
            values[group] = kind(**{name: values.pop(name) for name in own})
        return values

    parameters = [_parameter(name, field, kind) for name, (field, kind) in declared.items()]
    return inspect.Signature([*passed, *parameters]), arguments


def _parameter(name: str, field: Field[Any], kind: Any) -> inspect.Parameter:
    """The option as the parser takes it."""
    option: Option = field.metadata["option"]
    default = inspect.Parameter.empty if field.default is REQUIRED else field.default
    if option.read is not None:
        kind, default = list[str] | None, None
    about: dict[str, Any] = {"metavar": option.metavar, "help": option.help}
    if option.positional:
        shown = typer.Argument(**about)
    else:
        names = option.names or (f"--{name.strip('_').replace('_', '-')}",)
        shown = typer.Option(*names, min=option.least, **about)
    annotation = Annotated[kind, shown]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
