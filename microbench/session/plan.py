"""Selects the cases that the user named and plans their order: on which GPU, in which round, in which process."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec

from microbench.core.bench import PRESETS, Axis, Benchmark, Preset
from microbench.core.errors import UsageError, nearest
from microbench.core.model import Case, Environment, GpuInfo, Outcome, Param
from microbench.core.units import plain, typed_size, typed_time
from microbench.session.messages import Seam

LIST_THEM = "`microbench list` shows suites, benchmarks, axes and values"
# difflib's cutoff, low enough that "size" suggests size_bytes.
NEAR = 0.5
FAKE = "fake"
# By an axis's suffix: the parser of values with a unit, the factor from its result to the axis's unit, an example.
UNITS: Mapping[str, tuple[Callable[[str], float], float, str]] = {
    "_ns": (typed_time, 1e9, "2us"),
    "_bytes": (typed_size, 1, "1MiB"),
    "_s": (typed_time, 1, "2s"),
}
# At the power limit a case's speed depends on what ran before it, so a fixed order would bias every round alike.
DRAWN_SUITES = ("compute",)


@dataclass(frozen=True)
class Selected:
    """A benchmark and its cases to measure; ``named`` if the user named the benchmark, not only its suite.
    ``absent`` is the reason if there are no cases."""

    benchmark: Benchmark
    cases: tuple[Case, ...]
    named: bool
    absent: str = ""


def select(
    catalogue: Mapping[str, Benchmark], names: Sequence[str], preset: str, overrides: Mapping[str, Sequence[Param]]
) -> tuple[Selected, ...]:
    """The benchmarks of the suites and benchmarks in ``names`` (all if none), in the order of the catalogue.

    Without names the quick preset selects the core. ``overrides`` set the values of an axis in every selected benchmark
    that has it. A benchmark without cases in the preset is left out unless it was named. Raises UsageError for an
    unknown name, preset, axis or value (and suggests the nearest one), if no combination of the values is a case, and
    if no named benchmark has a case in the preset.
    """
    if preset not in PRESETS:
        raise _unknown("preset", preset, PRESETS)
    suites = tuple(dict.fromkeys(benchmark.suite for benchmark in catalogue.values()))
    for name in names:
        if name not in suites and name not in catalogue:
            raise _unknown("suite or benchmark", name, (*suites, *catalogue))
    wanted = [each for each in catalogue.values() if not names or each.name in names or each.suite in names]
    benchmarks = wanted if names or preset != "quick" else [each for each in wanted if each.core]
    axes = tuple(dict.fromkeys(axis for benchmark in benchmarks for axis in benchmark.axes))
    for name in overrides:
        if all(_axis_of(name, benchmark) is None for benchmark in benchmarks):
            raise _unknown("axis of the selected benchmarks", name, axes)
    selected = [Selected(each, _cases(each, preset, overrides), named=each.name in names) for each in benchmarks]
    for chosen in selected:
        if chosen.named and not chosen.cases:
            if chosen.benchmark.suite == "own":
                raise UsageError(f"{chosen.benchmark.name} measures your own code", "see `microbench measure --help`")
            if not any(other.cases for other in selected):
                raise UsageError(f"{chosen.benchmark.name} has no case in the {preset} preset", f"leave out --{preset}")
    absent = f"it has no case in the {preset} preset: leave out --{preset}"
    return tuple(replace(one, absent=absent * (not one.cases)) for one in selected if one.cases or one.named)


def _cases(benchmark: Benchmark, preset: Preset, overrides: Mapping[str, Sequence[Param]]) -> tuple[Case, ...]:
    own = {
        name: tuple(dict.fromkeys(_value(benchmark, name, benchmark.axes[name], value) for value in values))
        for given, values in overrides.items()
        if (name := _axis_of(given, benchmark)) is not None
    }
    cases = tuple(benchmark.cases(preset, own))
    if not cases and benchmark.cases(preset):
        given = ", ".join(f"{name}={value}" for name, values in own.items() for value in values)
        raise UsageError(f"{benchmark.name} has no case with {plain(given)}", f"set other axes too; {LIST_THEM}")
    return cases


def _axis_of(given: str, benchmark: Benchmark) -> str | None:
    """The axis of a benchmark that the user named; "duration" means duration_ns, "size" means size_bytes."""
    return next((name for name in (given, *(given + suffix for suffix in UNITS)) if name in benchmark.axes), None)


def _value(benchmark: Benchmark, name: str, axis: Axis, value: Param) -> Param:
    if not axis.numeric:
        listed = {str(name): name for name in (*axis.quick, *axis.default, *axis.full)}
        if str(value) not in listed:
            raise _unknown(f"value of {name} in {benchmark.name}", str(value), tuple(listed))
        return listed[str(value)]
    number = _number(benchmark, name, value)
    if not axis.minimum <= number <= axis.maximum:
        cause = f"{name}={plain(value, 40)} is out of range in {benchmark.name}"
        raise UsageError(cause, f"{name} takes {axis.minimum} to {axis.maximum}")
    return number


def _number(benchmark: Benchmark, name: str, value: Param) -> int:
    """A whole number; a time or a size may have its unit."""
    with suppress(ValueError):
        return int(value)
    suffix = next((suffix for suffix in UNITS if name.endswith(suffix)), "")
    wanted = f"{name} takes whole numbers"
    if suffix:
        typed, per_unit, example = UNITS[suffix]
        wanted += f", or numbers with a unit: {example}"
        with suppress(UsageError):
            number = typed(str(value)) * per_unit
            if abs(number - round(number)) < 1e-9 * max(number, 1.0):
                return round(number)
    raise UsageError(f"{plain(value, 40)} is not a value of {name} in {benchmark.name}", wanted)


def _unknown(what: str, name: str, known: Sequence[str]) -> UsageError:
    next_step = f"one of: {', '.join(known)}" if 0 < len(known) <= 12 else LIST_THEM
    if near := nearest(name[:100], known, NEAR):
        next_step = f"{near} {LIST_THEM}"
    return UsageError(f"there is no {what} called {plain(name, 100)}", next_step)


@dataclass(frozen=True)
class Process:
    """What a worker process needs. Consecutive cases with equal needs share a process.

    ``device`` is what the worker opens: a UUID, "fake", or None for the real host. ``variables`` are set in its
    environment. ``own`` names the axis value or the cold case that has a process to itself. ``side`` tells two sides
    apart that are measured in turn; ``python`` is the interpreter of one, by default the one that runs.
    """

    seam: Seam
    device: str | None
    round: int
    variables: tuple[tuple[str, str], ...] = ()
    own: str = ""
    side: int = 0
    python: str = ""


@dataclass(frozen=True)
class PlannedCase:
    """One case in one round on one GPU. ``device`` is the GPU's UUID, or None in the host suite.

    A benchmark may need more rounds than the run has; ``turn`` is the round of the run that contains this round.
    """

    benchmark: Benchmark
    case: Case
    round: int
    turn: int
    device: str | None
    process: Process

    @cached_property
    def core(self) -> bool:
        """Whether the case is measured even without time left."""
        return self.case.id in self.benchmark.core_ids


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
    measured: AbstractSet[tuple[str | None, str, int]] = frozenset(),
    order_seed: str | None = None,
    limited: bool = True,
    elsewhere: bool = False,
) -> Plan:
    """Every selected case on the GPUs of ``environment`` (only the first unless ``device`` says otherwise).

    Rounds are outermost, so that drift affects all cases alike. A round goes GPU by GPU and process by process, the
    main process first, so that each process is started once. If the time is ``limited``, a round has three parts, each
    of which starts its own processes: the core, which is always measured; most other cases; and last the cases that are
    cold or that their benchmark declares late, which a short budget drops first. If a benchmark needs more rounds than
    the run has, a round of the run contains several of them. In DRAWN_SUITES the order of a benchmark's cases is
    random; ``order_seed`` and the round's number are the seed. ``measured`` has the GPU, case id and round of what a
    resumed run does not measure again. ``elsewhere``: another Python measures, whose packages are not known here.

    Without a GPU a benchmark that needs a GPU is skipped once, or case by case if the user named it. Cases that make no
    sense on this machine are left out; if no case is left, the benchmark is skipped once.
    """
    skipped: list[Outcome] = []
    runnable: list[Selected] = []
    for chosen in selected:
        cases, reason = _cases_here(chosen, environment)
        reasons = {
            case.id: reason or (None if elsewhere else _missing(chosen.benchmark, case, environment)) for case in cases
        }
        runnable.append(replace(chosen, cases=tuple(case for case in cases if reasons[case.id] is None)))
        skipped += [
            Outcome(case, session, 0, "skipped", why) for case in cases if (why := reasons[case.id]) is not None
        ]
    gpus = environment.under_test(device)
    every = [case for turn in range(rounds) for case in _turn(runnable, gpus, turn, rounds, order_seed)]
    processes = list(dict.fromkeys(case.process for case in every))
    places = {process: (bool(process.own or process.variables), place) for place, process in enumerate(processes)}
    devices = [None, *(gpu.uuid for gpu in gpus)]
    every.sort(
        key=lambda case: (
            case.turn,
            limited and not case.core,
            limited and not case.core and (case.benchmark.cold or case.benchmark.late(case.case.params)),
            devices.index(case.device),
            places[case.process],
        )
    )
    return Plan(
        tuple(case for case in every if (case.device, case.case.id, case.round) not in measured), tuple(skipped)
    )


def _missing(benchmark: Benchmark, case: Case, environment: Environment) -> str | None:
    """Why a case is skipped: its package is missing. The simulated GPU needs no package."""
    package = benchmark.needs(case.params)
    if package is None or any(gpu.simulated for gpu in environment.gpus) or find_spec(package.name.partition(".")[0]):
        return None
    return f"needs {package.name}: {package.install}"


def _cases_here(chosen: Selected, environment: Environment) -> tuple[tuple[Case, ...], str | None]:
    """The cases to measure on this machine and None, or the cases to report as skipped and the reason."""
    benchmark, count = chosen.benchmark, len(environment.gpus)
    reasons = [benchmark.here(environment, case.params) for case in chosen.cases]
    cases = tuple(case for case, reason in zip(chosen.cases, reasons, strict=True) if reason is None)
    needed = 1 if benchmark.gpus == "all" else benchmark.gpus
    whole = (Case(benchmark.name),)
    if chosen.absent:
        return whole, chosen.absent
    if needed > count:
        reason = f"needs {needed} GPUs, {count} here" if count else environment.no_gpu_reason or "no GPU"
        return ((chosen.named or count > 0) and cases) or whole, reason
    if not cases:
        return whole, next(filter(None, reasons), "nothing to measure here")
    return cases, None


def _turn(
    selected: Sequence[Selected], gpus: Sequence[GpuInfo], turn: int, rounds: int, order_seed: str | None
) -> Iterator[PlannedCase]:
    """Every case once, or as often as its benchmark needs, in the order of ``selected``."""
    simulated = any(gpu.simulated for gpu in gpus)
    for chosen in selected:
        benchmark = chosen.benchmark
        # A benchmark of several GPUs finds the others itself and is not repeated for each of them.
        places: Sequence[GpuInfo | None] = [None] if benchmark.gpus == 0 else gpus if benchmark.gpus == 1 else gpus[:1]
        for gpu, number in itertools.product(places, range(turn, max(rounds, benchmark.minimum_rounds), rounds)):
            device = gpu.uuid if gpu is not None else None
            cases = list(chosen.cases)
            if order_seed is not None and benchmark.suite in DRAWN_SUITES:
                random.Random(f"{order_seed} round {number}").shuffle(cases)
            for case in cases:
                process = Process(
                    seam="host" if benchmark.gpus == 0 else "cold" if benchmark.cold else "gpu",
                    device=FAKE if (simulated if gpu is None else gpu.simulated) else device,
                    round=number,
                    variables=tuple(sorted(benchmark.process_environment(case).items())),
                    own=case.id if benchmark.cold else benchmark.own_process(case.params),
                )
                yield PlannedCase(benchmark, case, number, turn, device, process)
