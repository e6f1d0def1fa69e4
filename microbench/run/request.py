"""What the user asked for, checked whole before anything is measured: settings, cases, the file it goes to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

from microbench.core.bench import Benchmark, Preset
from microbench.core.errors import UsageError
from microbench.core.model import BenchmarkInfo, Param, Run, Settings
from microbench.core.units import plain
from microbench.run.plan import AlreadyMeasured, Selected, select
from microbench.runs import store

MOST_ROUNDS = 100
SHORTEST_LIMIT_S = 1.0
LONGEST_LIMIT_S = 7 * 86400.0


@dataclass(frozen=True)
class RunRequest:
    """``microbench run`` as called; a default is what was not given. ``overrides`` may hold the texts given to --set.

    ``out`` is a new file, ``into`` a run that gets another session, ``resume`` a run whose last session is completed:
    at most one of them. A resumed run keeps its own selection and settings; only ``time_limit_s`` may be given anew.
    """

    select: Sequence[str] = ()
    preset: str = "default"
    overrides: Mapping[str, Sequence[Param]] = field(default_factory=dict)
    device: str | None = None
    rounds: int = 1
    time_limit_s: float | None = None
    out: Path | None = None
    into: str | None = None
    resume: str | None = None


@dataclass(frozen=True)
class Intent:
    """A request that can be carried out. ``path`` is the finished file, ``earlier`` the run that it already holds."""

    settings: Settings
    preset: Preset
    selected: tuple[Selected, ...]
    path: Path
    run_id: str
    earlier: Run | None
    measured: frozenset[AlreadyMeasured]

    @property
    def session(self) -> int:
        """Index of the session to come."""
        return len(self.earlier.sessions) if self.earlier else 0

    def infos(self) -> tuple[BenchmarkInfo, ...]:
        """The benchmarks of the run with this session: of one that it had already, the axis values are joined."""
        infos = {info.name: info for info in self.earlier.benchmarks} if self.earlier else {}
        for one in self.selected:
            info = one.benchmark.info(list(one.cases))
            infos[info.name] = _joined(infos.get(info.name, info), info)
        return tuple(infos.values())


def _joined(old: BenchmarkInfo, new: BenchmarkInfo) -> BenchmarkInfo:
    values = {axis.name: axis.values for axis in old.axes}
    axes = tuple(
        msgspec.structs.replace(axis, values=tuple(dict.fromkeys((*values.get(axis.name, ()), *axis.values))))
        for axis in new.axes
    )
    return msgspec.structs.replace(new, axes=axes)


def examine(request: RunRequest, catalogue: Mapping[str, Benchmark], now: datetime) -> Intent:
    """The request as an Intent; ``now`` (UTC) goes into the name of a new run.

    Raises UsageError for what does not exist or contradicts itself, RunUnreadableError for a run to grow that is none.
    """
    if sum(given is not None for given in (request.out, request.into, request.resume)) > 1:
        raise UsageError("--out, --into and --resume exclude each other", "give one of them")
    if request.out is not None and request.out.suffix == store.GROWING:
        raise UsageError(
            f"{plain(request.out)} is the name of a run that still grows", f"end it in {store.FINISHED} instead"
        )
    if request.out is not None and request.out.suffix == store.PACKED:
        raise UsageError(
            f"{plain(request.out)} is the name of a compressed run", f"end it in {store.FINISHED}, and xz it after"
        )
    path, earlier = _to_grow(request)
    settings = _resumed(request, earlier.sessions[-1].settings) if request.resume and earlier else _settings(request)
    _check_limits(settings)
    selected = select(catalogue, settings.select, settings.preset, settings.overrides)
    run_id = earlier.run_id if earlier else store.new_run_id(now)
    if earlier:
        _check_versions(selected, earlier)
    return Intent(
        settings=settings,
        preset=settings.preset,  # type: ignore[arg-type]  # select() accepts no other
        selected=selected,
        path=path or request.out or store.data_folder() / f"{run_id}{store.FINISHED}",
        run_id=run_id,
        earlier=earlier,
        measured=_measured(earlier) if request.resume and earlier else frozenset(),
    )


def _to_grow(request: RunRequest) -> tuple[Path | None, Run | None]:
    name = request.into if request.into is not None else request.resume
    if name is None:
        return None, None
    path = store.find(name)
    if path.resolve() in {one.resolve() for one in store.bundled().values()}:
        raise UsageError(f"{plain(name)} comes with microbench and is not changed", "measure a run of your own")
    if store.is_packed(store.newest(path)):
        unpack = f"add to an unpacked copy: xz -dc {plain(path)} > COPY{store.FINISHED}"
        raise UsageError(f"{plain(name)} is compressed, and nothing is added to it", unpack)
    return store.finished_path(path), store.read(path)


def _settings(request: RunRequest) -> Settings:
    return Settings(
        preset=request.preset,
        select=tuple(request.select),
        overrides={axis: tuple(values) for axis, values in request.overrides.items()},
        device=request.device,
        rounds=request.rounds,
        time_limit_s=request.time_limit_s,
    )


def _resumed(request: RunRequest, stored: Settings) -> Settings:
    """The settings of the session to complete. Raises UsageError where the request says something else."""
    given, not_given = _settings(request), _settings(RunRequest())
    words = {"select": "names", "overrides": "--set", "preset": "a preset", "device": "--device", "rounds": "--rounds"}
    for name, word in words.items():
        if getattr(given, name) not in (getattr(not_given, name), getattr(stored, name)):
            raise UsageError(f"--resume completes a run as it was asked for; {word} would change it", "try --into")
    return msgspec.structs.replace(stored, time_limit_s=request.time_limit_s)


def _check_limits(settings: Settings) -> None:
    if not 1 <= settings.rounds <= MOST_ROUNDS:
        raise UsageError(f"{plain(settings.rounds, 40)} rounds are not possible", f"give 1 to {MOST_ROUNDS}")
    limit_s = settings.time_limit_s
    if limit_s is not None and not (math.isfinite(limit_s) and SHORTEST_LIMIT_S <= limit_s <= LONGEST_LIMIT_S):
        raise UsageError(
            f"a time limit of {plain(limit_s, 40)} s is not possible",
            f"give {SHORTEST_LIMIT_S:g} to {LONGEST_LIMIT_S:g} seconds",
        )


def _check_versions(selected: Sequence[Selected], earlier: Run) -> None:
    """One run holds one method a benchmark, or its figures could not stand in one table. Raises UsageError."""
    for one in selected:
        had = earlier.benchmark(one.benchmark.name)
        if had is not None and had.version != one.benchmark.version:
            raise UsageError(
                f"the run has {had.name} by method {had.version}, this microbench measures by {one.benchmark.version}",
                "measure a new run, and compare the two",
            )


def _measured(earlier: Run) -> frozenset[AlreadyMeasured]:
    done = (outcome for outcome in earlier.outcomes if outcome.status == "ok")
    return frozenset(AlreadyMeasured(outcome.device, outcome.case.id, outcome.round) for outcome in done)
