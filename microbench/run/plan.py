"""The order of a run: which case, on which GPU, in which round, in a process shared with which others."""

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

# What the user named -> benchmarks and their cases; every name that is wrong gets the nearest right one.


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


FAKE = "fake"


class AlreadyMeasured(NamedTuple):
    """What a resumed run need not measure again."""

    device: str | None
    case_id: str
    round: int


class Block(NamedTuple):
    """A suite in one pass over all suites: what a share of the time budget goes to."""

    turn: int
    suite: str


@dataclass(frozen=True)
class Process:
    """Cases with equal ones, one after the other, share a worker process.

    ``device`` is what the worker opens: a UUID, "fake", or None for the real host. ``variables`` are set in its
    environment. ``own`` sets apart what must not share: an axis value, a cold case.
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
    """What to measure in this order, and what is skipped from the start, with its reason."""

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
    """Every selected case on the GPUs of ``environment`` (the first alone unless ``device`` says otherwise).

    Rounds are outermost, so that what drifts meets every case alike; inside, suite by suite, on one GPU after the
    other, benchmarks that start many processes last: when time runs out, the fewest cases are lost. A benchmark that
    needs more rounds than asked for takes them in its turn. Without a GPU a benchmark that needs one is skipped: once,
    or case by case if the user named it. Cases that mean nothing on this machine are left out; where no other is left,
    the benchmark is skipped once.
    """
    gpus = environment.under_test(device)
    meant = [_meant_here(one, environment) for one in selected]
    skipped = tuple(_skipped(meant, environment, session, {one.benchmark.name: one.cases for one in selected}))
    absent = {outcome.case.benchmark for outcome in skipped}
    runnable = [one for one in meant if one.benchmark.name not in absent]
    planned = [case for turn in range(rounds) for case in _turn(runnable, gpus, turn, rounds)]
    return Plan(
        tuple(one for one in planned if AlreadyMeasured(one.device, one.case.id, one.round) not in measured),
        skipped,
    )


def _meant_here(one: Selected, environment: Environment) -> Selected:
    here = one.benchmark.here
    return replace(one, cases=tuple(case for case in one.cases if here(environment, case.params) is None))


def _skipped(
    selected: Iterable[Selected], environment: Environment, session: int, asked: Mapping[str, Sequence[Case]]
) -> Iterator[Outcome]:
    here = len(environment.gpus)
    for one in selected:
        benchmark = one.benchmark
        needs = 1 if benchmark.gpus == "all" else benchmark.gpus
        if needs > here:
            reason = f"needs {needs} GPUs, {here} here" if here else environment.no_gpu_reason or "no GPU"
            cases = one.cases if one.named or here else ()
        elif one.cases:
            continue
        else:
            reasons = (benchmark.here(environment, case.params) for case in asked[benchmark.name])
            reason, cases = next(filter(None, reasons), "nothing to measure here"), ()
        for case in cases or (Case(benchmark.name),):
            yield Outcome(case, session, 0, "skipped", reason)


def _turn(selected: Sequence[Selected], gpus: Sequence[GpuInfo], turn: int, rounds: int) -> Iterator[PlannedCase]:
    """One pass over all suites, in the order of ``selected``."""
    simulated = any(gpu.simulated for gpu in gpus)
    for suite in dict.fromkeys(one.benchmark.suite for one in selected):
        block = Block(turn, suite)
        members = sorted((one for one in selected if one.benchmark.suite == suite), key=_place)
        for one in (member for member in members if member.benchmark.gpus == 0):
            yield from _of_benchmark(one, None, FAKE if simulated else None, block, rounds)
        for index, gpu in enumerate(gpus):
            for one in [*(_part(one, late=False) for one in members), *(_part(one, late=True) for one in members)]:
                # A benchmark of several GPUs finds the others itself: it is not repeated for each of them.
                if one.benchmark.gpus == 1 or (one.benchmark.gpus != 0 and index == 0):
                    yield from _of_benchmark(one, gpu.uuid, FAKE if gpu.simulated else gpu.uuid, block, rounds)


def _part(one: Selected, *, late: bool) -> Selected:
    """Of a benchmark's cases those that can wait, or the others."""
    return replace(one, cases=tuple(case for case in one.cases if one.benchmark.late(case.params) == late))


def _place(one: Selected) -> tuple[bool, bool, int]:
    """What a verdict rests on comes first, whatever time is left for the rest."""
    return not one.benchmark.essential, *_processes_of_its_own(one)


def _processes_of_its_own(one: Selected) -> tuple[bool, int]:
    """Whether a benchmark is of cold starts, and how many processes it starts for itself alone; 0 if it shares one.

    What stays out of every other figure comes last: it is what a short budget can do without.
    """
    processes = {_process(one.benchmark, case, None, 0) for case in one.cases}
    own = any(process.own or process.variables for process in processes)
    return one.benchmark.cold, len(processes) * one.benchmark.minimum_rounds if own else 0


def _of_benchmark(
    one: Selected, device: str | None, opens: str | None, block: Block, rounds: int
) -> Iterator[PlannedCase]:
    benchmark = one.benchmark
    for number in range(block.turn, max(rounds, benchmark.minimum_rounds), rounds):
        by_process: dict[Process, list[Case]] = {}
        for case in one.cases:
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
