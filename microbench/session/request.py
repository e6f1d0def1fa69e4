"""Checks a whole request before anything is measured, and turns it into an Intent: settings, cases and the file."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from microbench.archive import store
from microbench.core.bench import Benchmark, Preset
from microbench.core.errors import UsageError
from microbench.core.model import BenchmarkInfo, Outcome, Run, Settings
from microbench.core.units import plain
from microbench.session.plan import Selected, select

MOST_ROUNDS = 100
SHORTEST_LIMIT_S = 1.0
LONGEST_LIMIT_S = 7 * 86400.0


@dataclass(frozen=True)
class RunRequest:
    """The arguments of ``microbench run``. The settings' ``overrides`` may hold the texts given to --set.

    At most one is given of ``out`` (a new file), ``into`` (a run to add a session to) and ``resume`` (a run whose last
    session is completed). A resumed run keeps its selection and settings; only ``time_limit_s`` may change.
    """

    settings: Settings
    out: Path | None = None
    into: str | None = None
    resume: str | None = None


@dataclass(frozen=True)
class Intent:
    """A checked request. ``path`` is the file to write, ``earlier`` the run that the file already holds; ``resumed`` is
    True if the last session of that run continues."""

    settings: Settings
    preset: Preset
    selected: tuple[Selected, ...]
    path: Path
    run_id: str
    earlier: Run | None
    resumed: bool
    measured: frozenset[tuple[str | None, str, int]]

    @property
    def session(self) -> int:
        return len(self.earlier.sessions) - self.resumed if self.earlier else 0

    def infos(self) -> tuple[BenchmarkInfo, ...]:
        """The benchmarks of all sessions and this one; each has the axis values of all sessions."""
        infos = {info.name: info for info in self.earlier.benchmarks} if self.earlier else {}
        for chosen in self.selected:
            if chosen.absent:
                continue
            info = chosen.benchmark.info(list(chosen.cases))
            before = {axis.name: axis.values for axis in infos[info.name].axes} if info.name in infos else {}
            axes = tuple(
                msgspec.structs.replace(axis, values=tuple(dict.fromkeys((*before.get(axis.name, ()), *axis.values))))
                for axis in info.axes
            )
            infos[info.name] = msgspec.structs.replace(info, axes=axes)
        return tuple(infos.values())


def examine(request: RunRequest, catalogue: Mapping[str, Benchmark], now: datetime) -> Intent:
    """The request as an Intent; ``now`` (UTC) goes into the name of a new run.

    Raises UsageError for names that do not exist and for contradictions, RunUnreadableError if the file to add to is
    not a run.
    """
    if sum(given is not None for given in (request.out, request.into, request.resume)) > 1:
        raise UsageError("--out, --into and --resume exclude each other", "give one of them")
    if request.out is not None and request.out.suffix == store.GROWING:
        cause = f"{plain(request.out)} is the name of an unfinished run"
        raise UsageError(cause, f"use a name that ends in {store.FINISHED}")
    if request.out is not None and request.out.suffix in store.PACKED:
        next_step = f"use a name that ends in {store.FINISHED}, and compress it afterwards with xz or gzip"
        raise UsageError(f"{plain(request.out)} is the name of a compressed run", next_step)
    path, earlier = _file_to_grow(request)
    resumed = earlier if request.resume else None
    if resumed:  # the cases of damaged lines are measured again
        resumed = earlier = msgspec.structs.replace(resumed, outcomes=current(resumed.outcomes), damaged_lines=0)
    settings = _resumed(request.settings, resumed.sessions[-1].settings) if resumed else request.settings
    if not 1 <= settings.rounds <= MOST_ROUNDS:
        raise UsageError(f"{plain(settings.rounds, 40)} rounds are not possible", f"give 1 to {MOST_ROUNDS}")
    limit_s = settings.time_limit_s
    if limit_s is not None and not (math.isfinite(limit_s) and SHORTEST_LIMIT_S <= limit_s <= LONGEST_LIMIT_S):
        cause = f"a time limit of {plain(limit_s, 40)} s is not possible"
        raise UsageError(cause, f"give {SHORTEST_LIMIT_S:g} to {LONGEST_LIMIT_S:g} seconds")
    selected = select(catalogue, settings.select, settings.preset, settings.overrides)
    if earlier:
        for chosen in selected:
            before = earlier.benchmark(chosen.benchmark.name)
            if before is not None and before.version != chosen.benchmark.version:
                cause = f"the run measured {before.name} by method {before.version}; "
                cause += f"this microbench uses method {chosen.benchmark.version}"
                raise UsageError(cause, "measure a new run and compare the two")
    run_id = earlier.run_id if earlier else store.new_run_id(now)
    last = len(resumed.sessions) - 1 if resumed else 0
    done = [one for one in resumed.outcomes if one.session == last and one.status == "ok"] if resumed else []
    return Intent(
        settings=settings,
        preset=settings.preset,  # type: ignore[arg-type]  # select() accepts no other
        selected=selected,
        path=path or request.out or store.data_folder() / f"{run_id}{store.FINISHED}",
        run_id=run_id,
        earlier=earlier,
        resumed=resumed is not None,
        measured=frozenset((outcome.device, outcome.case.id, outcome.round) for outcome in done),
    )


def _file_to_grow(request: RunRequest) -> tuple[Path | None, Run | None]:
    name = request.into if request.into is not None else request.resume
    if name is None:
        return None, None
    path = store.find(name)
    if path.resolve() in {bundled.resolve() for bundled in store.bundled().values()}:
        raise UsageError(f"{plain(name)} comes with microbench and cannot be changed", "measure a run of your own")
    if store.is_packed(store.newest(path)):
        cause = f"{plain(name)} is compressed and cannot be added to"
        tool = "gzip" if path.suffix == ".gz" else "xz"
        raise UsageError(cause, f"add to an unpacked copy: {tool} -dc {plain(path)} > COPY{store.FINISHED}")
    # --resume measures a case with impossible numbers again; --into keeps the recorded ones.
    return store.finished_path(path), store.read(path, keep_damage=request.into is not None)


def _resumed(given: Settings, stored: Settings) -> Settings:
    """The settings of the session to complete. Raises UsageError if those given contradict them."""
    defaults = Settings()
    words = {"select": "names", "overrides": "--set", "preset": "a preset", "device": "--device", "rounds": "--rounds"}
    for name, word in words.items():
        if getattr(given, name) not in (getattr(defaults, name), getattr(stored, name)):
            raise UsageError(f"--resume keeps the settings of the run, so {word} cannot be changed", "use --into")
    return msgspec.structs.replace(stored, time_limit_s=given.time_limit_s)


def current(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """The outcomes, in their order, without those that a later one replaces.

    An outcome replaces earlier outcomes of the same session, case, round and GPU, and earlier skips of that case, round
    and GPU in any session. A skip that names no GPU is replaced by the case on any GPU. A skip replaces only skips.
    """
    kept: list[Outcome] = []
    later: set[object] = set()
    for outcome in reversed(outcomes):
        place = outcome.device, outcome.case.id, outcome.round
        if outcome.status == "skipped":
            replaced = place in later or (outcome.device is None and outcome.case.id in later)
        else:
            replaced = (outcome.session, place) in later
            later.add((outcome.session, place))
        later.add(place)
        if outcome.device is not None:
            later.add(outcome.case.id)
        if not replaced:
            kept.append(outcome)
    return tuple(reversed(kept))
