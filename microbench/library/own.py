"""Measures a user's own kernel or function: a benchmark takes its name as a parameter, and the axes that were asked
for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from microbench.core.errors import UsageError
from microbench.core.units import plain, typed_time
from microbench.library.options import OwnOptions, RunOptions
from microbench.library.runs import KERNEL, STEP, measured

if TYPE_CHECKING:
    from microbench.core.bench import Benchmark
    from microbench.core.model import Param, Run
    from microbench.diagnosis.counts import Counts
    from microbench.session.events import Listener
    from microbench.session.session import RunResult

AXIS = re.compile(r"[A-Za-z_]\w*")
GIVEN = ("gpu", "meter")  # parameters that every benchmark has
LONGEST_LIMIT_S = 86400.0


def measured_own(what: str, options: OwnOptions, listener: Listener) -> RunResult:
    """Measure the function or kernel that ``what`` names in worker processes, and save the run.

    Raises UsageError for whatever is wrong with the arguments, and what ``execute`` raises.
    """
    name, catalogue = own_catalogue(what, options)
    limit_s = typed_time(options.limit, LONGEST_LIMIT_S) if options.limit is not None else None
    asked = RunOptions(
        names=(name,), device=options.device, rounds=options.rounds, out=options.out, into=options.into,
        label=options.label,
    )  # fmt: skip
    return measured(asked, listener, catalogue, limit_s)


def own_catalogue(what: str, options: OwnOptions) -> tuple[str, dict[str, Benchmark]]:
    """The benchmark that measures the function or kernel that ``what`` names, and all benchmarks with it. Raises
    UsageError."""
    from microbench.core.bench import Axis, discover
    from microbench.core.targets import target

    axes = axes_of(options.axes)
    if target(what).kind == "kernel":
        name, fixed = KERNEL, kernel_parameters(what, axes, options)
    else:
        name, fixed = STEP, function_parameters(what, options)
    benchmark = discover()[name]
    all_axes = {name: Axis.same(benchmark.axes[name].about, (value,)) for name, value in fixed.items()}
    all_axes |= {name: Axis.same("an axis of the user's", values) for name, values in axes.items()}
    return name, {**discover(), name: replace(benchmark, axes=all_axes)}


def counts_of(run: Run) -> list[tuple[str, Counts]]:
    """The counts of a call in the cases of the newest session whose call could be captured into a graph, by what was
    measured and its axes."""
    import json

    from microbench.diagnosis.counts import count_nodes

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


def function_parameters(what: str, options: OwnOptions) -> dict[str, str]:
    """The parameters of a function's cases.

    Raises UsageError for options of kernels, and for functions that do not exist.
    """
    from microbench.core.targets import check_function, target

    of_kernels = {
        "--grid": options.grid, "--block": options.block, "--arg": options.args, "--shared": options.shared,
        "--bytes": options.bytes, "--flop": options.flop, "--option": options.options,
        "--cooperative": options.cooperative,
    }  # fmt: skip
    if wrong := next((name for name, value in of_kernels.items() if value), None):
        raise UsageError(f"{wrong} is for kernels of .cu files", "give a function its arguments by --setup and --axis")
    setup = options.setup
    if setup is not None and target(setup).kind == "kernel":
        raise UsageError("--setup names a kernel", "for example --setup train.py::setup")
    for named in (what, setup):
        if named is not None:
            check_function(target(named))
    return {"function": what} | ({"setup": setup} if setup is not None else {})


def axes_of(given: Mapping[str, Sequence[Param | float]]) -> dict[str, tuple[Param, ...]]:
    """The axes with their values: whole numbers, and texts, of which a number or formula is also a whole number."""
    from microbench.core.targets import number
    from microbench.explain.own import OWN_PARAMETERS

    def whole(value: Param | float) -> Param:
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
    return {name: tuple(dict.fromkeys(map(whole, values))) for name, values in given.items()}


def kernel_parameters(what: str, axes: Mapping[str, tuple[Param, ...]], options: OwnOptions) -> dict[str, str]:
    """The parameters of a kernel's cases. Raises UsageError for what is wrong with the first value of each axis."""
    from microbench.core.targets import check_kernel, dimensions, target, whole

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
    for name, text in (("shared", options.shared), ("bytes", options.bytes), ("flop", options.flop)):
        if text is not None:
            whole(text, names, least=0)
            fixed[name] = text
    if options.flop is not None:
        fixed["precision"] = options.precision
    extra = [*options.options, *(["cooperative"] if options.cooperative else [])]
    return fixed | ({"options": " ".join(extra)} if extra else {})
