"""Says which GPUs became slower or faster over the campaigns of a store: in what, since when, and what changed with it.

Each GPU is compared with itself, in campaigns that asked for the same.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from microbench.fleet import causes, store
from microbench.fleet.causes import Cause, Gpu
from microbench.fleet.changes import LEAST_CAMPAIGNS, LEAST_SIDE, Change, bar, changes, places, scatters, smallest
from microbench.fleet.series import Board, Key, Moment, Point, Series, comparable
from microbench.fleet.verdict import gpus_of

# Campaigns on each side of a change, and GPUs, whose facts are looked at.
FACTS_OF, MOST_LOOKED = 8, 20
BEFORE = "before"


class Moved(NamedTuple):
    """A group of figures that changed: by how much in the middle of the GPUs, at least and at most.

    The sizes are logarithms of how much slower it became, below 0 if it became faster.
    """

    group: str
    size: float
    low: float
    high: float


class Event(NamedTuple):
    """GPUs that changed at one time, and in what. They are all GPUs of a class or of a ``node``, except those in
    ``but``, or a single one.

    ``since`` is the time of the first campaign after it, and ``campaigns`` how many there are from then on.
    """

    gpus: tuple[Board, ...]
    but: tuple[Board, ...]
    node: str
    of_class: str
    since: str
    campaigns: int
    moved: tuple[Moved, ...]
    causes: tuple[Cause, ...]

    @property
    def slower(self) -> bool:
        return any(one.size > 0 for one in self.moved)


class Trend(NamedTuple):
    """What changed over the campaigns until ``campaign``, of those that asked for the same as it.

    ``others`` counts campaigns with other settings among them. ``swapped`` are GPUs that replaced others, each with the
    time of its first campaign. ``gpus`` are there, ``judged`` of them have enough
    campaigns, the most that any has is ``longest``. ``smallest`` has for each group the smallest change that is
    reported LEAST_SIDE campaigns after it, as a logarithm. Batches of the store are ``left_out``. Times are UTC in ISO
    8601.
    """

    campaign: str
    simulated: bool
    first: str
    last: str
    campaigns: int
    others: int
    classes: int
    gpus: tuple[Board, ...]
    judged: int
    longest: int
    events: tuple[Event, ...]
    swapped: tuple[tuple[Board, str], ...]
    smallest: tuple[tuple[str, float], ...]
    left_out: tuple[str, ...] = ()


class _Shift(NamedTuple):
    """A change of a series. It came between the moments ``early`` and ``late``, most likely just before ``since``.

    ``of`` is the GPU as it was at last, ``before`` and ``after`` are the points next to the change, ``campaigns`` how
    many there are from then on.
    """

    of: Point
    group: str
    size: float
    early: Moment
    since: Moment
    late: Moment
    before: tuple[Point, ...]
    after: tuple[Point, ...]
    campaigns: int


def trend(directory: Path, campaign: str | None, last: int) -> Trend:
    """What changed over the ``last`` campaigns of a store until that one, or the newest. Raises UsageError."""
    made, left_out = store.answered(directory, lambda connection: _trend(connection, directory, campaign, last))
    return made._replace(left_out=left_out)


def _trend(connection: Any, directory: Path, campaign: str | None, last: int) -> Trend:
    newest_campaign, simulated, others, points, series = comparable(connection, directory, campaign, last)
    swapped, gone = _swapped(points)
    newest = {point.key: point for point in points if point.key not in gone}
    several = [one for one in series if one.points[-1].key in newest]
    steps, least = _steps(several)
    recorded = cache(lambda name: gpus_of(connection, name))
    events = [_event(recorded, *told) for told in _told(steps, list(newest.values()))]
    events.sort(key=lambda event: (event.slower, event.since), reverse=True)
    times = sorted(point.moment[0] for point in points)
    return Trend(
        campaign=newest_campaign,
        simulated=simulated,
        first=times[0] if times else "",
        last=times[-1] if times else "",
        campaigns=len({point.moment[1] for point in points}),
        others=others,
        classes=len({point.of_class for point in newest.values()}),
        gpus=tuple(point.board for point in newest.values()),
        judged=len({one.points[-1].key for one in several if len(one.points) >= LEAST_CAMPAIGNS}),
        longest=max((len(one.points) for one in several), default=0),
        events=tuple(events),
        swapped=tuple(swapped),
        smallest=tuple(least),
    )


def _swapped(points: Iterable[Point]) -> tuple[list[tuple[Board, str]], set[Key]]:
    """GPUs that replaced others that were not seen again, and the keys of the replaced ones."""
    first: dict[Key, Point] = {}
    newest: dict[Key, Point] = {}
    for point in points:
        first.setdefault(point.key, point)
        newest[point.key] = point
    by_place: dict[Board, list[Key]] = {}
    for key, point in first.items():
        by_place.setdefault(point.board, []).append(key)
    found, gone = [], set()
    for board, keys in by_place.items():
        keys.sort(key=lambda key: first[key].moment)
        for before, after in pairwise(keys):
            if board.number is not None and newest[before].moment < first[after].moment:
                found.append((board, first[after].moment[0]))
                gone.add(before)
    return found, gone


def _steps(several: Sequence[Series]) -> tuple[list[_Shift], list[tuple[str, float]]]:
    """The changes that are reported, and the smallest that would be reported in each group."""
    by_class: dict[tuple[str, str], list[Series]] = {}
    for one in several:
        if len(one.points) >= LEAST_CAMPAIGNS:
            by_class.setdefault((one.points[-1].of_class, one.group), []).append(one)
    times = bar(sum(places(len(one.points)) for judged in by_class.values() for one in judged))
    found: list[_Shift] = []
    least: dict[str, list[float]] = {}
    for (_, group), judged in by_class.items():
        known = scatters([one.values for one in judged], [one.repeated for one in judged])
        for one, scatter in zip(judged, known, strict=True):
            found += [_step(one, change) for change in _lasting(changes(one.values, scatter, times))]
            least.setdefault(group, []).append(smallest(scatter, len(one.points) - LEAST_SIDE, LEAST_SIDE, times))
    return found, [(group, float(np.median(sizes))) for group, sizes in least.items()]


def _lasting(newest_first: Iterable[Change]) -> Iterator[Change]:
    """The changes that no later change undid."""
    later = 0.0
    for change in newest_first:
        if (change.size + later) / change.size >= 0.5:
            yield change
        later += change.size


def _step(one: Series, change: Change) -> _Shift:
    place, moments = change.place, [point.moment for point in one.points]
    return _Shift(
        one.points[-1], one.group, change.size, moments[place - 2], moments[place], moments[place + 1],
        tuple(one.points[change.begin : place][-FACTS_OF:]), tuple(one.points[place : change.end][:FACTS_OF]),
        len(moments) - place,
    )  # fmt: skip


# Changes that came together are reported together.


def _told(steps: Sequence[_Shift], points: Sequence[Point]) -> Iterator[tuple[list[_Shift], str, tuple[Board, ...]]]:
    """The changes of most GPUs of a class, then of most of a node, then of single GPUs, each by time.

    Each comes with the class or node that it is of, and with the other GPUs there.
    """
    left = list(steps)
    for place in (attrgetter("of_class"), attrgetter("board.node")):
        wide = _wide(left, points, place)
        told = {id(one) for several in wide.values() for one in several}
        left = [one for one in left if id(one) not in told]
        for name, several in wide.items():
            for moment in _moments(several):
                of = {one.of.key for one in moment}
                yield moment, name, tuple(p.board for p in points if place(p) == name and p.key not in of)
    for several in _by(left, lambda one: one.of.key).values():
        for moment in _moments(several):
            yield moment, "", ()


def _wide(steps: Sequence[_Shift], points: Sequence[Point], place: Callable[[Point], str]) -> dict[str, list[_Shift]]:
    """The changes that most GPUs of a place have at one moment, by place."""
    members = Counter(place(point) for point in points)
    found: dict[str, list[_Shift]] = {}
    for (name, _, _), alike in _by(steps, lambda one: (place(one.of), one.group, one.size > 0)).items():
        for moment in _moments(alike):
            if len(moment) > max(members[name] / 2, 1):
                found.setdefault(name, []).extend(moment)
    return found


def _by(steps: Iterable[_Shift], key: Callable[[_Shift], Any]) -> Mapping[Any, list[_Shift]]:
    found: dict[Any, list[_Shift]] = {}
    for one in steps:
        found.setdefault(key(one), []).append(one)
    return found


def _moments(steps: Sequence[_Shift]) -> Iterator[list[_Shift]]:
    """The changes grouped by time: each group is the largest one that may have come at one moment."""
    left = list(steps)
    while left:
        begins, ends = sorted(one.early for one in left), sorted(one.late for one in left)
        # Those that may have come just before a moment began before it, and did not end before it.
        best = max({one.since for one in left}, key=lambda at: (bisect_left(begins, at) - bisect_left(ends, at), at))
        yield [one for one in left if one.early < best <= one.late]
        left = [one for one in left if not one.early < best <= one.late]


def _event(
    recorded: Callable[[str], Mapping[Key, Gpu]], steps: Sequence[_Shift], place: str, but: tuple[Board, ...]
) -> Event:
    one_each = list({one.of.key: one for one in steps}.values())
    moved = []
    for group, several in _by(steps, lambda one: one.group).items():
        sizes = [one.size for one in several]
        moved.append(Moved(group, float(np.median(sizes)), min(sizes), max(sizes)))
    moved.sort(key=lambda one: (one.size > 0, abs(one.size)), reverse=True)
    middle = sorted(one_each, key=lambda one: one.since)[len(one_each) // 2]
    of_class = place == middle.of.of_class
    losses = {one.group: float(np.expm1(one.size)) for one in moved if one.size > 0}
    return Event(
        gpus=tuple(one.of.board for one in one_each),
        but=but,
        node="" if of_class else place,
        of_class=middle.of.of_class,
        since=middle.since[0],
        campaigns=middle.campaigns,
        moved=tuple(moved),
        causes=tuple(_causes(recorded, one_each, losses)),
    )


def _causes(
    recorded: Callable[[str], Mapping[Key, Gpu]], steps: Sequence[_Shift], slow: Mapping[str, float]
) -> list[Cause]:
    """What changed with the GPUs, and why they may be slower: what most of them have and had not before."""
    looked = []
    for one in steps[:MOST_LOOKED]:
        before, after = ([_gpu(recorded, point) for point in side] for side in (one.before, one.after))
        gpu = _usually(after)
        if slow and len(steps) == 1:
            return causes.likely(gpu, before, slow, BEFORE)
        found = causes.seen(gpu, before, slow, BEFORE) if slow else []
        told = causes.TOLD if found else ()
        looked.append([*found, *(Cause("", words, "") for words in causes.facts(gpu, before, BEFORE, told))])
    common = Counter(cause.kind or cause.seen for found in looked for cause in found)
    return [cause for cause in looked[0] if common[cause.kind or cause.seen] >= causes.USUAL * len(looked)]


def _gpu(recorded: Callable[[str], Mapping[Key, Gpu]], point: Point) -> Gpu:
    """The GPU of a point, with its labels and versions among its facts."""
    gpu = recorded(point.moment[1])[point.key]
    labels = {f"label {name}": value for name, value in gpu.labels.items()}
    versions = {"microbench": point.tool_version, **({"CUDA": point.cuda} if point.cuda else {})}
    return gpu._replace(facts={**gpu.facts, **labels, **versions})


def _usually(several: Sequence[Gpu]) -> Gpu:
    """The newest of several records of a GPU, with only those facts and findings that most of them share."""
    newest = several[-1]
    rules = Counter(rule for one in several for rule in {rule for rule, *_ in one.findings})
    return newest._replace(
        facts={name: value for name, value in newest.facts.items() if causes.usual(several, name) == value},
        findings=tuple(one for one in newest.findings if rules[one[0]] >= causes.USUAL * len(several)),
        temperature_c=causes.middle([one.temperature_c for one in several]),
        throttled=causes.middle([one.throttled for one in several]),
        power_limit_w=causes.middle([one.power_limit_w for one in several]),
    )
