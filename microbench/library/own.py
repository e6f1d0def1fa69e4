"""Measures a user's own kernel or function: a benchmark takes its name and the axes asked for as parameters.

It also reads what the two sides of `microbench ab` are, measures them in turn, and makes the answer.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

from microbench.comparison.in_turn import FIRST_LOOK, InTurn, compare_in_turn, looks
from microbench.comparison.words import summary
from microbench.core.bench import Axis, Benchmark, discover
from microbench.core.errors import UsageError
from microbench.core.model import Param, Run
from microbench.core.targets import check_function, check_kernel, dimensions, number, target, whole
from microbench.core.units import plain
from microbench.core.version import __version__
from microbench.diagnosis.counts import Counts, count_nodes
from microbench.explain.own import OWN_PARAMETERS
from microbench.library.answers import LIMITS
from microbench.library.options import OwnOptions, RunOptions
from microbench.library.runs import KERNEL, STEP, consistent, measured
from microbench.library.verdicts import as_json, compared_figure
from microbench.session.messages import Listener
from microbench.session.plan import select
from microbench.session.process import Patience
from microbench.session.request import MOST_ROUNDS
from microbench.session.session import PRESET, RunResult, Seams, Side, measure_in_turn

AXIS = re.compile(r"[A-Za-z_]\w*")
GIVEN = ("gpu", "meter")  # parameters that every benchmark has
AS_IT_IS, LONGEST_NAME = "as it is", 200
# NAME=VALUE[,NAME=VALUE]; a comma before anything else belongs to the value.
VARIABLE = re.compile(r"[A-Za-z_]\w*=")
BETWEEN = re.compile(rf",(?={VARIABLE.pattern})")
SOURCES = (".py", ".cu", ".cuh")
IMPORT_S = 60.0


def measured_own(what: str, options: OwnOptions, listener: Listener) -> RunResult:
    """Measure the function or kernel that ``what`` names in worker processes, and save the run.

    Raises UsageError for whatever is wrong with the arguments, and what ``execute`` raises.
    """
    name, catalogue = own_catalogue(what, options)
    asked = RunOptions(
        names=(name,), device=options.device, rounds=options.rounds, out=options.out, into=options.into,
        label=options.label,
    )  # fmt: skip
    return measured(asked, listener, catalogue, options.limit_s)


def own_catalogue(what: str, options: OwnOptions) -> tuple[str, dict[str, Benchmark]]:
    """The benchmark that measures the function or kernel that ``what`` names, and all benchmarks with it. Raises
    UsageError."""
    axes = axes_of(options.axes)
    if target(what).kind == "kernel":
        name, fixed = KERNEL, kernel_parameters(what, axes, options)
    else:
        name, fixed = STEP, function_parameters(what, axes, options)
    benchmark = discover()[name]
    all_axes = {name: Axis.same(benchmark.axes[name].about, (value,)) for name, value in fixed.items()}
    all_axes |= {name: Axis.same("an axis of the user's", values) for name, values in axes.items()}
    return name, {**discover(), name: replace(benchmark, axes=all_axes)}


def counts_of(run: Run) -> list[tuple[str, Counts]]:
    """The counts of a call in the cases of the newest session whose call could be captured into a graph, by what was
    measured and its axes."""
    found = {}
    for one in run.outcomes:
        fact = next((fact for fact in one.facts if fact.name == "kernels"), None)
        if one.session == len(run.sessions) - 1 and fact is not None:
            with suppress(ValueError, TypeError):  # a run file that somebody wrote
                launches = [(str(name), block, int(count)) for name, _, block, count in json.loads(str(fact.value))]
                nodes = [("kernel" if block else name, name, count) for name, block, count in launches]
                found[" ".join(str(value) for value in one.case.params.values())] = count_nodes(nodes)
    return list(found.items())


def text_of(function: Callable[..., object] | str) -> str:
    """The text by which a worker process finds a function. Raises UsageError for one that has no name in a module."""
    if isinstance(function, str):
        return function
    module, name = (str(getattr(function, each, None) or "") for each in ("__module__", "__qualname__"))
    found: Any = reduce(lambda holder, part: getattr(holder, part, None), name.split("."), sys.modules.get(module))
    if found is not function:
        called = f"{plain(name, 60)} of {plain(module, 60)}" if name and module else plain(repr(function), 60)
        cause = f"{called} has no name by which a worker process could import it"
        raise UsageError(cause, 'name one as text, for example "train.py::step"')
    if module == "__main__":
        cause = (
            f"{plain(name, 60)} is defined in the notebook or program itself, which a worker process does not import"
        )
        raise UsageError(cause, f'write it to a file, such as steps.py, and give "steps.py::{plain(name, 60)}"')
    return f"{module}:{name}"


def function_parameters(what: str, axes: Mapping[str, tuple[Param, ...]], options: OwnOptions) -> dict[str, str]:
    """The parameters of a function's cases.

    Raises UsageError for options of kernels, for functions that do not exist, and for what is wrong with --bytes and
    --flop at the first value of each axis.
    """
    of_kernels = {
        "--grid": options.grid, "--block": options.block, "--arg": options.args, "--shared": options.shared,
        "--option": options.options, "--cooperative": options.cooperative,
    }  # fmt: skip
    if wrong := next((name for name, value in of_kernels.items() if value), None):
        raise UsageError(f"{wrong} is for kernels of .cu files", "give a function its arguments by --setup and --axis")
    setup = options.setup
    if setup is not None and target(setup).kind == "kernel":
        raise UsageError("--setup names a kernel", "for example --setup train.py::setup")
    for named in (what, setup):
        if named is not None:
            check_function(target(named))
    names = {name: float(values[0]) for name, values in axes.items() if isinstance(values[0], int)}
    return {"function": what} | ({"setup": setup} if setup is not None else {}) | _work(options, names)


def _work(options: OwnOptions, names: Mapping[str, float]) -> dict[str, str]:
    """The bytes and operations of a call, as parameters. Raises UsageError if one is no whole number."""
    given = {"bytes": options.bytes, "flop": options.flop}
    fixed = {name: text for name, text in given.items() if text is not None}
    for text in fixed.values():
        whole(text, names, least=0)
    return fixed | ({"precision": options.precision} if options.flop is not None else {})


def axes_of(given: Mapping[str, Sequence[Param | float]]) -> dict[str, tuple[Param, ...]]:
    """The axes with their values: whole numbers, and texts, of which a number or formula is also a whole number."""

    def read(value: Param | float) -> Param:
        if type(value) is int:
            return value
        try:
            found = number(str(value))
        except UsageError:
            return str(value)
        return int(found) if found == int(found) else str(value)

    for name, values in given.items():
        if not AXIS.fullmatch(name) or not values or "" in values:
            words = plain(f"{name}={','.join(map(str, values))}", 60)
            raise UsageError(f"--axis {words} is not NAME=VALUE[,VALUE]", "for example --axis batch=1,8,64")
        if name in OWN_PARAMETERS or name in GIVEN:
            raise UsageError(f"--axis {name}: microbench has a parameter of this name", "choose another name")
    return {name: tuple(dict.fromkeys(map(read, values))) for name, values in given.items()}


def kernel_parameters(what: str, axes: Mapping[str, tuple[Param, ...]], options: OwnOptions) -> dict[str, str]:
    """The parameters of a kernel's cases. Raises UsageError for what is wrong with the first value of each axis."""
    if options.setup is not None:
        raise UsageError("--setup is for functions", "give a kernel its arguments by --arg")
    names: dict[str, float] = {}
    for name, values in axes.items():
        first = values[0]
        if not isinstance(first, int):
            raise UsageError(f"--axis {name}: a kernel's axes are whole numbers", "for example --axis n=1024,4096")
        names[name] = first
    fixed = {"kernel": what}
    for name, text in (("grid", options.grid), ("block", options.block)):
        if text is None:
            raise UsageError(f"a kernel needs --{name}", "for example --grid 1024 --block 256")
        dimensions(text, names)
        fixed[name] = text
    check_kernel(target(what), list(options.args), names)
    fixed["arguments"] = " ".join("".join(text.split()) for text in options.args)
    if options.shared is not None:
        whole(options.shared, names, least=0)
        fixed["shared"] = options.shared
    fixed |= _work(options, names)
    extra = [*options.options, *(["cooperative"] if options.cooperative else [])]
    return fixed | ({"options": " ".join(extra)} if extra else {})


def answer(a: str, b: str, found: InTurn) -> dict[str, Any]:
    """Everything that `microbench ab --json` prints of two sides, in SI base units."""
    figures = [
        msgspec.to_builtins(compared_figure(change)) | {"would_find": smallest}
        for change, smallest in zip(found.comparison.changes, found.smallest, strict=True)
    ]
    verdict = {"verdict": summary(found.comparison).title, "pairs": found.pairs, "confidence": found.confidence}
    return as_json({"a": a, "b": b, **verdict, "figures": figures, "not_measured": found.unmeasured})


def compared_in_turn(
    named: tuple[str, str],
    names: Sequence[str],
    values: Mapping[str, Sequence[Param]],
    rounds: int,
    own: OwnOptions,
    same_within: float,
    fail_on: str | None,
    listener: Listener,
) -> tuple[str, str, InTurn]:
    """Measure the two ``named`` sides in turn, until the rule of ``comparison/in_turn.py`` knows enough, or the first
    change of the limit ``fail_on`` is found. Returns what the sides are called, and what came out.

    ``names`` and ``values`` choose benchmarks, ``own`` says how code of the user's own is called. Raises UsageError for
    whatever is wrong, and what ``measure_in_turn`` raises.
    """
    if not FIRST_LOOK <= rounds <= MOST_ROUNDS:
        raise UsageError(f"{rounds} rounds are not possible", f"give {FIRST_LOOK} to {MOST_ROUNDS}")
    sides = [_side(text, names, values, own) for text in named]
    if len({tuple(one.benchmark.name for one in side.selected) for side in sides}) > 1:
        raise UsageError("A and B are not of one kind", "give two functions, or two kernels, or no code of your own")
    when = looks(rounds)
    found: list[InTurn] = []

    def enough(pairs: int, one: Run, other: Run) -> bool:
        if pairs in when:
            with consistent(one), consistent(other):
                found.append(compare_in_turn(one, other, pairs, rounds, same_within))
        limit = LIMITS[fail_on] if fail_on is not None else ()
        return bool(found) and (found[-1].decided or found[-1].comparison.has_changed(*limit))

    seams = Seams(patience=Patience.of(own.limit_s))
    measure_in_turn(sides, rounds, own.device, enough, listener, seams)
    a, b = (plain(text, LONGEST_NAME) or AS_IT_IS for text in named)
    return a, b, found[-1]


def _side(text: str, names: Sequence[str], values: Mapping[str, Sequence[Param]], own: OwnOptions) -> Side:
    """The side that a text describes: this Python (no text), variables, another Python, or code of the user's own."""
    path = Path(text).expanduser()
    if not text or VARIABLE.match(text):
        parts = (one.partition("=") for one in BETWEEN.split(text) if one)
        return Side(select(discover(), names, PRESET, values), tuple((name, value) for name, _, value in parts))
    if path.is_dir() or (path.is_file() and os.access(path, os.X_OK) and path.suffix not in SOURCES):
        python = _checked(path / "bin" / "python" if path.is_dir() else path)
        return Side(select(discover(), names, PRESET, values), python=python)
    if names or values:
        raise UsageError("code of your own has no suites and benchmarks", "leave out their names and --set")
    if own.setup is not None and ":" not in own.setup:  # of the side's own file
        own = replace(own, setup=f"{text.rpartition(':')[0]}:{own.setup}")
    name, catalogue = own_catalogue(text, own)
    return Side(select(catalogue, (name,), PRESET, {}))


def _checked(python: Path) -> str:
    """The interpreter, if it has this version of microbench. Raises UsageError."""
    code = "from microbench.core.version import __version__ as version; print(version)"
    try:
        asked = subprocess.run(
            [python, "-P", "-c", code], capture_output=True, text=True, timeout=IMPORT_S, check=False
        )
        version, error = asked.stdout.strip(), asked.stderr.strip().rpartition("\n")[2]
    except (OSError, subprocess.TimeoutExpired) as failure:
        version, error = "", str(failure)
    if version != __version__:
        has = f"has microbench {plain(version, 20)}" if version else f"has no microbench: {plain(error, 120)}"
        raise UsageError(
            f"{plain(python)} {has}", f"install {__version__} there: {plain(python)} -m pip install CHECKOUT"
        )
    return str(python.absolute())
