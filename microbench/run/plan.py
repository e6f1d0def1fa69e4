"""Selects the cases that the user named and plans their order: on which GPU, in which round, in which process."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import NamedTuple

from microbench.core.bench import PRESETS, Axis, Benchmark, Preset
from microbench.core.errors import UsageError
from microbench.core.model import Case, Environment, GpuInfo, Outcome, Param
from microbench.core.units import plain
from microbench.run.messages import Seam

LIST_THEM = "`microbench list` shows suites, benchmarks, axes and values"
VALUES_SHOWN = 12
# difflib's similarity at which "size" still suggests size_bytes.
NEAR = 0.5
FAKE = "fake"


@dataclass(frozen=True)
class Selected:
    """A benchmark and its cases to measure; ``named`` if the user named the benchmark, not only its suite."""

    benchmark: Benchmark
    cases: tuple[Case, ...]
    named: bool


def parse_overrides(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The values of each axis from ``axis=value[,value]`` as given to --set; an axis given twice gets all values.

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
    catalogue: Mapping[str, Benchmark], names: Sequence[str], preset: str, overrides: Mapping[str, Sequence[Param]]
) -> tuple[Selected, ...]:
    """The benchmarks of the suites and benchmarks in ``names`` (all if none), in the order of the catalogue.

    ``overrides`` set the values of an axis in every selected benchmark that has it. A benchmark without cases in the
    preset is left out unless it was named. Raises UsageError for a name, preset, axis or value that does not exist
    (with the nearest one that does), and if no combination of the values is a case.
    """
    if preset not in PRESETS:
        raise _unknown("preset", preset, PRESETS)
    suites = tuple(dict.fromkeys(benchmark.suite for benchmark in catalogue.values()))
    for name in names:
        if name not in suites and name not in catalogue:
            raise _unknown("suite or benchmark", name, (*suites, *catalogue))
    benchmarks = [each for each in catalogue.values() if not names or each.name in names or each.suite in names]
    axes = tuple(dict.fromkeys(axis for benchmark in benchmarks for axis in benchmark.axes))
    for axis in overrides:
        if axis not in axes:
            raise _unknown("axis of the selected benchmarks", axis, axes)
    selected = [Selected(each, _cases(each, preset, overrides), named=each.name in names) for each in benchmarks]
    for chosen in selected:
        if chosen.named and not chosen.cases:
            raise UsageError(f"{chosen.benchmark.name} has no case in the {preset} preset", f"leave out --{preset}")
    return tuple(chosen for chosen in selected if chosen.cases)


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
        listed = {str(name): name for name in (*axis.quick, *axis.default, *axis.full)}
        if str(value) not in listed:
            raise _unknown(f"value of {name} in {benchmark.name}", str(value), tuple(listed))
        return listed[str(value)]
    try:
        number = int(value)
    except ValueError:
        raise UsageError(
            f"{plain(value, 40)} is not a value of {name} in {benchmark.name}", f"{name} takes whole numbers"
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


class AlreadyMeasured(NamedTuple):
    """A case that a resumed run does not measure again."""

    device: str | None
    case_id: str
    round: int


class Block(NamedTuple):
    """A suite in one pass over all suites; each gets a share of the time budget."""

    turn: int
    suite: str


@dataclass(frozen=True)
class Process:
    """A worker process. Consecutive cases with equal values here share one.

    ``device`` is what the worker opens: a UUID, "fake", or None for the real host. ``variables`` are set in its
    environment. ``own`` names what must not share a process with others: an axis value, a cold case.
    """

    seam: Seam
    device: str | None
    round: int
    variables: tuple[tuple[str, str], ...] = ()
    own: str = ""


@dataclass(frozen=True)
class PlannedCase:
    """One case in one round on one GPU; ``device`` is the GPU's UUID, None in the host suite."""

    benchmark: Benchmark
    case: Case
    round: int
    device: str | None
    block: Block
    process: Process


@dataclass(frozen=True)
class Plan:
    """The cases in the order of measuring, and the outcomes of those skipped from the start."""

    cases: tuple[PlannedCase, ...]
    skipped: tuple[Outcome, ...]


def make_plan(
    selected: Sequence[Selected],
    environment: Environment,
    *,
    device: str | None = None,
    rounds: int = 1,
    session: int = 0,
    measured: AbstractSet[AlreadyMeasured] = frozenset(),
) -> Plan:
    """Every selected case on the GPUs of ``environment`` (only the first unless ``device`` says otherwise).

    Rounds are outermost, so that drift affects all cases alike. Inside a round it goes suite by suite and GPU by GPU;
    benchmarks that start many processes come last, so that the fewest cases are lost when time runs out. A benchmark
    that needs more rounds than asked for takes them in its turn. Without a GPU a benchmark that needs one is skipped
    once, or case by case if the user named it. Cases that make no sense on this machine are left out; if none is left,
    the benchmark is skipped once.
    """
    skipped: list[Outcome] = []
    runnable: list[Selected] = []
    for chosen in selected:
        cases, reason = _cases_here(chosen, environment)
        if reason is None:
            runnable.append(replace(chosen, cases=cases))
        else:
            skipped += [Outcome(case, session, 0, "skipped", reason) for case in cases]
    gpus = environment.under_test(device)
    planned = [case for turn in range(rounds) for case in _turn(runnable, gpus, turn, rounds)]
    return Plan(
        tuple(each for each in planned if AlreadyMeasured(each.device, each.case.id, each.round) not in measured),
        tuple(skipped),
    )


def _cases_here(chosen: Selected, environment: Environment) -> tuple[tuple[Case, ...], str | None]:
    """The cases to measure on this machine and None, or the cases to report as skipped and the reason."""
    benchmark, count = chosen.benchmark, len(environment.gpus)
    reasons = [benchmark.here(environment, case.params) for case in chosen.cases]
    cases = tuple(case for case, reason in zip(chosen.cases, reasons, strict=True) if reason is None)
    needed = 1 if benchmark.gpus == "all" else benchmark.gpus
    whole = (Case(benchmark.name),)
    if needed > count:
        reason = f"needs {needed} GPUs, {count} here" if count else environment.no_gpu_reason or "no GPU"
        return ((chosen.named or count > 0) and cases) or whole, reason
    if not cases:
        return whole, next(filter(None, reasons), "nothing to measure here")
    return cases, None


def _turn(selected: Sequence[Selected], gpus: Sequence[GpuInfo], turn: int, rounds: int) -> Iterator[PlannedCase]:
    """One pass over all suites, in the order of ``selected``."""
    simulated = any(gpu.simulated for gpu in gpus)
    for suite in dict.fromkeys(chosen.benchmark.suite for chosen in selected):
        block = Block(turn, suite)
        members = sorted((chosen for chosen in selected if chosen.benchmark.suite == suite), key=_priority)
        for chosen in members:
            if chosen.benchmark.gpus == 0:
                yield from _of_benchmark(chosen, None, FAKE if simulated else None, block, rounds)
        parts = [
            replace(chosen, cases=tuple(case for case in chosen.cases if chosen.benchmark.late(case.params) == late))
            for late in (False, True)
            for chosen in members
        ]
        for index, gpu in enumerate(gpus):
            for chosen in parts:
                # A benchmark of several GPUs finds the others itself and is not repeated for each of them.
                if chosen.benchmark.gpus == 1 or (chosen.benchmark.gpus != 0 and index == 0):
                    yield from _of_benchmark(chosen, gpu.uuid, FAKE if gpu.simulated else gpu.uuid, block, rounds)


def _priority(chosen: Selected) -> tuple[bool, bool, int]:
    """Sorts essential benchmarks first, cold starts and those that start many processes of their own last.

    What comes last is what a short budget drops.
    """
    benchmark = chosen.benchmark
    processes = {_process(benchmark, case, None, 0) for case in chosen.cases}
    own = any(process.own or process.variables for process in processes)
    return not benchmark.essential, benchmark.cold, len(processes) * benchmark.minimum_rounds if own else 0


def _of_benchmark(
    chosen: Selected, device: str | None, opens: str | None, block: Block, rounds: int
) -> Iterator[PlannedCase]:
    benchmark = chosen.benchmark
    for number in range(block.turn, max(rounds, benchmark.minimum_rounds), rounds):
        by_process: dict[Process, list[Case]] = {}
        for case in chosen.cases:
            by_process.setdefault(_process(benchmark, case, opens, number), []).append(case)
        for process, cases in by_process.items():
            for case in cases:
                yield PlannedCase(benchmark, case, number, device, block, process)


def _process(benchmark: Benchmark, case: Case, opens: str | None, number: int) -> Process:
    seam: Seam = "host" if benchmark.gpus == 0 else "cold" if benchmark.cold else "gpu"
    apart = [f"{name}={case.params[name]}" for name in benchmark.fresh_process_by]
    own = f"{benchmark.name}[{','.join(apart)}]" if apart else ""
    return Process(
        seam=seam,
        device=opens,
        round=number,
        variables=tuple(sorted(benchmark.process_environment(case).items())),
        own=case.id if benchmark.cold else own,
    )
