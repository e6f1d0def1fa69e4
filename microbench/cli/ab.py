"""The command ab: two Pythons, two sets of variables or two versions of own code, measured in turn."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from microbench.cli.options import ANSWER, FAIL_ON, SAME_WITHIN, FailOn, Picture
from microbench.cli.output import draw, print_json, progress
from microbench.cli.signature import Without
from microbench.core.errors import ExitCode
from microbench.core.model import Param
from microbench.core.options import REQUIRED, argument, option
from microbench.library.options import SET, OwnOptions, overrides_of

# Options of measure that ab has not: it saves nothing, and rates follow from times.
NEITHER = ("rounds", "out", "into", "label", "bytes", "flop", "precision")
SIDE = (
    "NAME=VALUE[,NAME=VALUE], a Python or virtual environment that has microbench, or FILE.py::FUNCTION and what else "
    "measure takes"
)


def ab(
    names: Sequence[str] = argument(
        "[SUITE|BENCHMARK]...", "What to measure, in its quick values; default: the core.", (), read=tuple
    ),
    *,
    a: str = option("SIDE", f"{SIDE}; default: this Python as it is.", "-A", default=""),
    b: str = option("SIDE", "The side to judge, named the same way.", "-B", default=REQUIRED),
    rounds: int = option("N", "Measure each side at most N times, 6 or more.", default=10),
    values: Mapping[str, Sequence[Param]] | None = option(*SET, read=overrides_of),
    asked: Annotated[OwnOptions, *map(Without, NEITHER)],
    fail_on: FailOn | None = FAIL_ON,
    same_within: str = SAME_WITHIN,
    json: bool = ANSWER,
    picture: Picture,
) -> int:
    """Measure two sides in turn, A B, B A, …, and say which figures differ.

    Each round is a fresh process. What the host does to both of a pair falls out of their ratio. It stops when the
    figures are decided, or at the first change that --fail-on names. Two equal sides are called different in at most 1
    of 100 measurements. Nothing is saved.
    """
    from microbench.library.answers import fails, share_of
    from microbench.library.in_turn import compared_in_turn

    within = share_of(same_within)
    with progress() as listener:
        found = compared_in_turn((a, b), names, values or {}, rounds, asked, within, fail_on, listener)
    if json:
        print_json(found.to_dict())
    else:
        draw(found.sheet(), picture, brief=True)
    comparison = found.found.comparison
    return ExitCode.CHANGED if fail_on is not None and fails(comparison, fail_on) else ExitCode.MEASURED


COMMANDS = ((ab, "microbench ab -B CUDA_MODULE_LOADING=EAGER launch_cost"),)
