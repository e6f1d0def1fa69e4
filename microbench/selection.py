"""What the user named -> benchmarks and their cases; every name that is wrong gets the nearest right one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from microbench.bench import PRESETS, Axis, Benchmark, Preset
from microbench.errors import UsageError
from microbench.model import Case, Param
from microbench.text import plain

LIST_THEM = "`microbench list` shows suites, benchmarks, axes and values"
VALUES_SHOWN = 12
# difflib's likeness at which "size" still finds size_bytes.
NEAR = 0.5


@dataclass(frozen=True)
class Selected:
    """A benchmark with the cases of it to measure; ``named`` if the user named it, not only its suite."""

    benchmark: Benchmark
    cases: tuple[Case, ...]
    named: bool


def parse_overrides(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """``axis=value[,value]`` as given to --set, by axis; an axis given twice gathers its values.

    Raises UsageError for anything else.
    """
    values: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        several = tuple(value.strip() for value in listed.split(","))
        if not equals or not name.strip() or not all(several):
            raise UsageError(
                f"--set {plain(text)} is not axis=value[,value]", "for example --set duration_ns=1000,5000"
            )
        values[name.strip()] = (*values.get(name.strip(), ()), *several)
    return values


def select(
    catalogue: Mapping[str, Benchmark],
    names: Sequence[str],
    preset: str,
    overrides: Mapping[str, Sequence[Param]],
) -> tuple[Selected, ...]:
    """Benchmarks of the suites and benchmarks in ``names`` (all of them if none), in the order of the catalogue.

    ``overrides`` give an axis its values in every selected benchmark that has it. A benchmark that nobody named and
    that the preset leaves out is not among them. Raises UsageError for a name, preset, axis or value that does not
    exist, and where no combination of the values is a case.
    """
    if preset not in PRESETS:
        raise _unknown("preset", preset, PRESETS)
    suites = tuple(dict.fromkeys(benchmark.suite for benchmark in catalogue.values()))
    for name in names:
        if name not in suites and name not in catalogue:
            raise _unknown("suite or benchmark", name, (*suites, *catalogue))
    chosen = [one for one in catalogue.values() if not names or one.name in names or one.suite in names]
    axes = tuple(dict.fromkeys(axis for benchmark in chosen for axis in benchmark.axes))
    for axis in overrides:
        if axis not in axes:
            raise _unknown("axis of the selected benchmarks", axis, axes)
    found = [Selected(one, _cases(one, preset, overrides), named=one.name in names) for one in chosen]
    for one in found:
        if one.named and not one.cases:
            raise UsageError(f"{one.benchmark.name} has no case in the {preset} preset", f"leave out --{preset}")
    return tuple(one for one in found if one.cases)


def _cases(benchmark: Benchmark, preset: Preset, overrides: Mapping[str, Sequence[Param]]) -> tuple[Case, ...]:
    own = {
        name: tuple(dict.fromkeys(_value(benchmark, name, axis, value) for value in overrides[name]))
        for name, axis in benchmark.axes.items()
        if name in overrides
    }
    cases = tuple(benchmark.cases(preset, own))
    if not cases and benchmark.cases(preset):
        given = ", ".join(f"{name}={value}" for name, values in own.items() for value in values)
        raise UsageError(f"{benchmark.name} has no case with {plain(given)}", f"set other axes too; {LIST_THEM}")
    return cases


def _value(benchmark: Benchmark, name: str, axis: Axis, value: Param) -> Param:
    if not axis.numeric:
        listed = {str(one): one for one in (*axis.quick, *axis.default, *axis.full)}
        if str(value) not in listed:
            raise _unknown(f"value of {name} in {benchmark.name}", str(value), tuple(listed))
        return listed[str(value)]
    try:
        number = int(value)
    except ValueError:
        raise UsageError(
            f"{plain(value, 40)} is no value of {name} in {benchmark.name}", f"{name} takes whole numbers"
        ) from None
    if not axis.minimum <= number <= axis.maximum:
        raise UsageError(
            f"{name}={plain(value, 40)} is out of range in {benchmark.name}",
            f"{name} takes {axis.minimum} to {axis.maximum}",
        )
    return number


def _unknown(what: str, name: str, known: Sequence[str]) -> UsageError:
    near = difflib.get_close_matches(name[:100], known, n=1, cutoff=NEAR)
    if near:
        next_step = f"did you mean {near[0]}? {LIST_THEM}"
    elif 0 < len(known) <= VALUES_SHOWN:
        next_step = f"one of: {', '.join(known)}"
    else:
        next_step = LIST_THEM
    return UsageError(f"there is no {what} called {plain(name, 100)}", next_step)
