"""Says what changed between two recordings of a program: in what a step submits, where, and in its time.

Counts are compared exactly. A difference in time counts only if the intervals lie apart, and farther than two processes
of one program do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from microbench.analysis.evidence import Finding, Severity
from microbench.analysis.stats import Interval, median_interval
from microbench.core.errors import UsageError
from microbench.core.units import as_time, counted, plain
from microbench.diagnosis.counts import FIGURES, MANY, ONE_CALL, PLACED, Counting, Counts, Number, count_steps, number
from microbench.diagnosis.diagnosis import PROCESSES, Diagnosis, window_of
from microbench.diagnosis.idle import CAUSES, gaps_of, stretches
from microbench.diagnosis.kernel_names import bare
from microbench.diagnosis.recorded import layer_of
from microbench.traces.trace import Trace

# Two boards, or two hours on one, differ by about this share of the GPU's own work.
BOARDS = 0.03
MOST_PARTS = 24  # of the steps, whose times give an interval
NAMED = 0.01  # of a step: a cause that takes less is not shown
MARKED = ("annotations", "loop", ONE_CALL, "the whole")  # how the words for steps that are surely whole begin
MOST_TIMES = 64  # of what repeats, one may be so many of another
ALIKE, NEARER = 0.1, 0.3  # how unlike the counts of matched steps may be, and how much nearer than unmatched ones
FEWEST_PARTS = 4  # of each side, without which intervals that lie apart are chance
FEWEST = 5  # times that something is expected, and never seen, before it counts as gone
LIMIT = re.compile(r"([a-z][a-z_ -]*?)\s*>\s*(\+?)\s*(\d+(?:\.\d+)?)\s*(%?)")
LINE_NUMBER = re.compile(r":\d+(?= )")
LAUNCH_ARGUMENTS = (4, 1, 0)  # of the launch whose cost is the limit of a short kernel, in this order

Line = tuple[int, str, float]  # its number, the place, and how often a step is there
Judged = Literal["slower", "faster", "within noise", "too few steps", "another GPU"]


class Side(NamedTuple):
    """One of the two recordings: its name and its counts; its diagnosis, unless it is a file of counts."""

    name: str
    counts: Counts
    diagnosis: Diagnosis | None = None


class Difference(msgspec.Struct, frozen=True):
    """A count that changed: a figure of FIGURES, or the kernels or copies that are ``named``. ``places`` has the places
    in the program where a step does more or less of it."""

    figure: str
    named: str
    before: Number
    after: Number
    places: Mapping[str, Number] = {}

    @property
    def more(self) -> Number:
        """By how many it is more; negative if it is less."""
        return number(self.after - self.before)


class TimeChange(msgspec.Struct, frozen=True):
    """A part of a step's recorded time in s, before and after, each with its interval, and how the change is judged."""

    what: str
    before: Interval
    after: Interval
    judged: Judged


class Changed(msgspec.Struct, frozen=True):
    """What changed. ``every`` says how many steps of each side make one. ``some`` are differences in what only some of
    the steps do. ``chosen`` are families of which a library ran other kernels. ``lacking`` names records
    that a side may lack, so that it counts too little. ``why_not`` says why nothing can be
    compared."""

    before: Side
    after: Side
    differences: tuple[Difference, ...] = ()
    some: tuple[Difference, ...] = ()
    times: tuple[TimeChange, ...] = ()
    chosen: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    every: tuple[int, int] = (1, 1)
    why_not: str = ""

    @property
    def figures(self) -> tuple[Difference, ...]:
        """The differences in whole figures, without those of single kernels and copies."""
        return tuple(one for one in self.differences if not one.named)


def side(name: str, diagnosis: Diagnosis) -> Side:
    """A diagnosed trace with its counts."""
    layer, costs = layer_of(diagnosis.trace), diagnosis.launch_costs
    found = (costs.get(f"call.{layer}.{arguments}") for arguments in LAUNCH_ARGUMENTS)
    launch_s = next((cost for cost in found if cost is not None), 0.0)
    return Side(name, count_steps(diagnosis.trace, diagnosis.steps, launch_s), diagnosis)


def are_two(several: Sequence[Diagnosis]) -> bool:
    """Whether these are two recordings of a program, not of ranks that ran together: those run at the same time, and
    have different numbers."""
    if len(several) != 2:
        return False
    one, other = (each.trace for each in several)
    known = one.epoch_ns is not None and other.epoch_ns is not None
    (first, last), (begin, end) = (_span_ns(each, each.epoch_ns or 0) for each in (one, other))
    if known and (first >= end or begin >= last):
        return True
    if one.rank is not None and other.rank is not None:
        return one.rank == other.rank
    return not known


def _span_ns(trace: Trace, epoch_ns: int) -> tuple[int, int]:
    """When a trace was recorded, in Unix time."""
    ends = trace.windows or ((int(trace.work["begin_ns"].min()), int(trace.work["end_ns"].max())),)
    return epoch_ns + ends[0][0], epoch_ns + max(min(ends[-1][1], int(trace.work["end_ns"].max())), ends[0][0] + 1)


def compare(before: Side, after: Side) -> Changed:
    """What changed from one recording to another."""
    one, other = before.counts, after.counts
    if bool(one.steps) != bool(other.steps):
        without = before.name if not one.steps else after.name
        return Changed(before, after, why_not=f"no step repeats in {without}, so its steps cannot be matched")
    every = _matched(one, other)
    differences = [*_differences(one, other, every, (before, after))]
    return Changed(
        before, after, tuple(differences), tuple(_some(one, other, every)), tuple(_times(before, after, every)),
        tuple(_chosen(one, other)), (*_lacking(before), *_lacking(after)), every,
    )  # fmt: skip


def _matched(one: Counts, other: Counts) -> tuple[int, int]:
    """How many steps of each side are one: what repeats may be a part of a step on one side, and several on the
    other."""
    marked = all(counts.of.startswith(MARKED) for counts in (one, other))
    totals = [sum(counts.kernels.values()) for counts in (one, other)]
    if marked or not all(totals):
        return 1, 1
    several = max(min(round(max(totals) / min(totals)), MOST_TIMES), 1)
    every = (several, 1) if totals[0] < totals[1] else (1, several)
    unlike = _unlike(one, other, every)
    return every if unlike <= ALIKE and unlike < NEARER * _unlike(one, other, (1, 1)) else (1, 1)


def _unlike(one: Counts, other: Counts, every: tuple[int, int]) -> float:
    """The share of kernels that only one of the two has."""
    names = one.kernels.keys() | other.kernels.keys()
    pairs = [(every[0] * one.kernels.get(name, 0), every[1] * other.kernels.get(name, 0)) for name in names]
    return sum(abs(a - b) for a, b in pairs) / max(sum(a + b for a, b in pairs), 1)


def _differences(one: Counts, other: Counts, every: tuple[int, int], sides: tuple[Side, Side]) -> Iterator[Difference]:
    counting = [Counting(each.diagnosis.trace, each.diagnosis.steps) if each.diagnosis else None for each in sides]

    def places(figure: str, name: str) -> dict[str, Number]:
        both = []
        for each, counter in zip((one, other), counting, strict=True):
            if not name and figure in PLACED:
                both.append(each.places.get(figure, {}))
            elif counter is None:
                return {}
            else:
                both.append(counter.places(figure, name))
        moved = _moved(both[0], both[1], every)
        return _without_swaps(moved) if figure in MANY and not name else moved

    tables = [
        (figure, "", one.figures.get(figure, 0), other.figures.get(figure, 0)) for figure in FIGURES
    ]  # fmt: skip
    for figure, (left, right) in (("kernels", _named(one, other, "kernels")), ("copies", (one.copies, other.copies))):
        tables += [(figure, name, left.get(name, 0), right.get(name, 0)) for name in sorted(left.keys() | right.keys())]
    for figure, name, before, after in tables:
        before, after = number(before * every[0]), number(after * every[1])
        if before != after:
            told = figure in PLACED or (name and figure == "kernels")
            yield Difference(figure, name, before, after, places(figure, name) if told else {})


def _moved(one: Mapping[str, Number], other: Mapping[str, Number], every: tuple[int, int]) -> dict[str, Number]:
    """The places that a step is at more or less often, by how much, those with most more first. The numbers of lines
    may change: in a function the lines of both sides that belong together are those that leave the fewest changes."""
    groups: dict[str, tuple[list[Line], list[Line]]] = {}
    for side, (places, count) in enumerate(zip((one, other), every, strict=True)):
        for place, times in places.items():
            line = re.search(LINE_NUMBER, place)
            of = groups.setdefault(LINE_NUMBER.sub("", place), ([], []))
            of[side].append((int(line[0][1:]) if line else 0, place, count * times))
    moved = [change for both in groups.values() for change in _of_lines(*map(sorted, both))]
    return {place: number(more) for place, more in sorted(moved, key=lambda each: -each[1]) if number(more)}


def _without_swaps(moved: dict[str, Number]) -> dict[str, Number]:
    """The places of calls of which there are many, without what is less at one line and as much more at another one:
    which of two neighbours samples name differs from one recording to the next."""
    rising = sum(moved.values()) > 0
    kept = {place: abs(more) for place, more in moved.items() if (more > 0) == rising}
    for less in sorted((abs(more) for more in moved.values() if (more > 0) != rising), reverse=True):
        while less > 0 and kept:
            place = min(kept, key=lambda one: (abs(kept[one] - less), one))
            both = min(kept[place], less)
            less -= both
            kept[place] -= both
            kept = {one: count for one, count in kept.items() if count > 0}
    return {one: number(count if rising else -count) for one, count in sorted(kept.items(), key=lambda each: -each[1])}


def _of_lines(before: list[Line], after: list[Line]) -> list[tuple[str, float]]:
    """The change at each line of a function. Lines keep their order; one without a partner is gone or new."""
    best: dict[tuple[int, int], tuple[float, int, list[tuple[str, float]]]] = {(0, 0): (0.0, 0, [])}
    for row, column in product(range(len(before) + 1), range(len(after) + 1)):
        old, new = before[:row][-1:], after[:column][-1:]
        ways = []  # what the changes cost, how far the lines move, and the changes
        for gone, came in ((old, new), (old, []), ([], new)):
            if gone or came:
                cost, moves, changes = best[row - len(gone), column - len(came)]
                more = sum(one[2] for one in came) - sum(one[2] for one in gone)
                far = abs(came[0][0] - gone[0][0]) if gone and came else 0
                place = (came or gone)[0][1]
                ways.append((cost + abs(more) ** 0.5, moves + far, [*changes, (place, more)]))
        if ways:
            best[row, column] = min(ways, key=lambda way: way[:2])
    return best[len(before), len(after)][2]


def _named(one: Counts, other: Counts, table: Literal["kernels", "some"]) -> list[dict[str, Number]]:
    """The counts of each side by name. If one side's names lack the arguments of templates, so do the other's."""
    both = []
    for counts in (one, other):
        whole = dict[str, Number]()
        for name, count in getattr(counts, table).items():
            key = bare(name) if one.bare or other.bare else name
            whole[key] = whole.get(key, 0) + count
        both.append(whole)
    return both


def _some(one: Counts, other: Counts, every: tuple[int, int]) -> Iterator[Difference]:
    """What only one side does in some of its steps, beyond its usual step.

    The other side has enough steps to have shown it, and the usual steps of both are the same.
    """
    some, kernels = _named(one, other, "some"), _named(one, other, "kernels")
    for name in sorted(some[0].keys() | some[1].keys()):
        figure, colon, named = name.partition(": ")
        tables: Sequence[Mapping[str, Number]] = (one.figures, other.figures)
        if colon:
            figure, tables = ("kernels", kernels) if figure == "kernel" else ("copies", (one.copies, other.copies))
        usual = [count * table.get(named or figure, 0) for count, table in zip(every, tables, strict=True)]
        before, after = (table.get(name, 0) for table in some)
        gone, came = before * other.steps >= FEWEST and not after, after * one.steps >= FEWEST and not before
        if usual[0] == usual[1] and (gone or came):
            yield Difference(figure, named, before, after)


def _lacking(one: Side) -> Iterator[str]:
    """What the recording may lack of what is counted."""
    for check in one.diagnosis.health if one.diagnosis is not None else ():
        lost = check.name.startswith("lost: ") and check.forbids
        if lost or check.name in ("launches without work", "graphs without their kernels"):
            yield f"{one.name} has {check.words}"


def _chosen(one: Counts, other: Counts) -> Iterator[str]:
    """Families of which a library ran other kernels on the same GPU."""
    for gpu in one.seen.keys() & other.seen.keys():
        for name, names in one.seen[gpu].names.items():
            then = other.seen[gpu].names.get(name, {})
            if then and set(names) != set(then):
                yield name


def _parts(diagnosis: Diagnosis) -> dict[str, list[float]]:
    """For parts of the trace, of whole steps each: the time of a step in s, and what of it is work and each cause."""
    trace, steps, idle = diagnosis.trace, diagnosis.steps, diagnosis.idle
    if steps is None or idle is None:
        return {}
    begins = steps.begins_ns[:: steps.every]
    edges = np.unique(np.linspace(0, len(begins) - 1, min(len(begins) - 1, MOST_PARTS) + 1).astype(np.int64))
    pieces = [*stretches(trace, gaps_of(trace.work, idle.device, *window_of(trace, steps)))]
    found: dict[str, list[float]] = {name: [] for name in ("a step", "the GPU works", *CAUSES)}
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        low, high, count = int(begins[first]), int(begins[last]), (last - first) * steps.every
        causes = np.zeros(len(CAUSES))
        for each in pieces:
            ns = np.maximum(np.minimum(each.end_ns, high) - np.maximum(each.begin_ns, low), 0)
            causes += np.bincount(each.cause, weights=ns, minlength=len(CAUSES))
        found["a step"].append((high - low) * 1e-9 / count)
        found["the GPU works"].append((high - low - causes.sum()) * 1e-9 / count)
        for cause, ns in zip(CAUSES, causes.tolist(), strict=True):
            found[cause].append(ns * 1e-9 / count)
    return found


def _times(before: Side, after: Side, every: tuple[int, int]) -> Iterator[TimeChange]:
    """The step's recorded time and its parts that are not small, before and after."""
    if before.diagnosis is None or after.diagnosis is None:
        return
    one, other = _parts(before.diagnosis), _parts(after.diagnosis)
    same_gpu = not set(before.counts.seen).isdisjoint(after.counts.seen)
    if not one or not other:
        return
    both = {
        what: tuple(
            _times_of(median_interval(values[what]), count) for values, count in zip((one, other), every, strict=True)
        )
        for what in one
    }
    whole_s = max(each.median for each in both["a step"])
    works_s = max(each.median for each in both["the GPU works"])
    for what, (left, right) in both.items():
        if max(left.median, right.median) < NAMED * whole_s:
            continue
        larger_s = max(left.median, right.median)
        noise_s = PROCESSES * larger_s
        if what == "the GPU works":
            noise_s = BOARDS * larger_s
        elif what == "a step":
            noise_s = BOARDS * works_s + PROCESSES * max(whole_s - works_s, 0.0)
        more_s = right.median - left.median
        judged: Judged = "within noise"
        if not same_gpu:
            judged = "another GPU"
        elif min(len(one[what]), len(other[what])) < FEWEST_PARTS:
            judged = "too few steps"
        elif not left.overlaps(right) and abs(more_s) > noise_s:
            judged = "slower" if more_s > 0 else "faster"
        yield TimeChange(what, left, right, judged)


def _times_of(interval: Interval, count: int) -> Interval:
    return Interval(*(count * each for each in (interval.median, interval.low, interval.high)))


class Limit(NamedTuple):
    """How many of a figure a step may have; with ``more`` how many more than before, or what share more."""

    text: str
    figure: str
    most: float
    more: bool
    share: bool

    def passed(
        self,
        before: Counts | None,
        after: Counts,
        every: tuple[int, int] = (1, 1),
        some: Sequence[Difference] = (),
    ) -> bool:
        """Whether a step exceeds the limit. A limit of +0 is also exceeded if only ``some`` steps do more.

        Raises UsageError for a limit that needs counts from before.
        """
        count = every[1] * _figure(after, self.figure)
        if not self.more:
            return count > self.most
        if before is None:
            raise UsageError(f"--fail-on {self.text} needs counts from before", "give BEFORE and AFTER")
        if not self.most and any(one.more > 0 and self.figure == one.figure for one in some):
            return True
        old = every[0] * _figure(before, self.figure)
        return count > old * (1 + self.most / 100) if self.share else count > old + self.most


def _figure(counts: Counts, figure: str) -> float:
    """The count of a figure; a graph that is updated counts as one that is made."""
    more = counts.figures.get("updates", 0) if figure == "graphs" else 0
    return counts.figures.get(figure, 0) + more


def limits(text: str) -> list[Limit]:
    """The limits in a text, "launches>+0, waits>2, kernels>+5%". Raises UsageError."""
    found = []
    by_words = {words.lower(): figure for figure, words in FIGURES.items()}
    for part in text.split(","):
        match = LIMIT.fullmatch(part.strip().lower())
        figure = match[1].replace("-", " ") if match is not None else ""
        figure = by_words.get(figure, figure.replace(" ", "_"))
        if match is None or figure not in FIGURES or (match[4] and not match[2]):
            names = ", ".join(each for each in FIGURES if "_" not in each)
            raise UsageError(
                f"--fail-on {plain(part, 60)} is not understood", f"for example launches>+0; counts: {names}"
            )
        found.append(Limit(plain(part.strip(), 60), figure, float(match[3]), bool(match[2]), bool(match[4])))
    return found


def verdict(changed: Changed) -> Finding:
    """The comparison in one line."""
    told = [one for one in changed.figures if one.figure != "kernels_in_graphs"]
    more, fewer = ([one for one in told if (one.more > 0) == rising] for rising in (True, False))
    worse = [one for one in more if one.figure != "replays" or all(other.figure != "launches" for other in fewer)]
    whole = next((one for one in changed.times if one.what == "a step"), None)
    slower = whole is not None and whole.judged == "slower"
    often = [one for one in changed.some if one.more > 0]
    severity: Severity = "warning" if worse or often or slower or changed.lacking else "good"
    if changed.why_not:
        severity, title = "warning", f"Nothing can be compared: {changed.why_not}"
    elif not changed.differences and often:
        listed = ", ".join(f"{FIGURES[one.figure]} {one.named}".strip() for one in often[:4])
        title = f"The usual step is the same, but some steps do more: {listed}"
    elif not changed.differences:
        title = f"The counts of a step are the same: {figure_words(changed.after.counts)}"
    else:
        listed = ", ".join(change_words(one) for one in (more + fewer)[:4]) or "as many kernels and copies as before"
        how = " and ".join(word for word, of in (("more", more), ("less", fewer)) if of) or "other work"
        title = f"A step does {how}: {listed}"
    if whole is not None:
        title += (
            f"; its recorded time is {as_time(whole.before.median)} before and {as_time(whole.after.median)} after, "
        )
        title += {"too few steps": "of too few steps to judge", "another GPU": "on another GPU"}.get(
            whole.judged, whole.judged
        )
    return Finding(
        rule="diagnose.changed",
        severity=severity,
        title=title,
        text="",
        threshold="counts differ; times by more than their intervals and what two processes of one program differ by",
    )


def change_words(one: Difference) -> str:
    """A difference in words: "2 more launches", "1 fewer wait for the GPU"."""
    count = number(abs(one.more))
    words = FIGURES[one.figure] if not one.named else f"{FIGURES[one.figure]} {one.named}"
    if count == 1:
        words = _single(words) if not one.named else words
    return f"{count:,} {'more' if one.more > 0 else 'fewer'} {words}"


def _single(words: str) -> str:
    """ "wait for the GPU" of "waits for the GPU"."""
    first, space, rest = words.partition(" ")
    for several, one in (("copies", "copy"), ("launches", "launch")):
        if first == several:
            return f"{one}{space}{rest}"
    if first.endswith("s"):
        return f"{first[:-1]}{space}{rest}"
    return words.replace("launches", "launch")


def figure_words(counts: Counts) -> str:
    """The largest counts in a line: "146 launches, 1 wait for the GPU"."""
    listed = [
        f"{counts.figures[figure]:,} {FIGURES[figure] if counts.figures[figure] != 1 else _single(FIGURES[figure])}"
        for figure in ("launches", "replays", "kernels", "waits", "copies")
        if counts.figures.get(figure)
    ]
    return ", ".join(listed[:4]) or counted(0, "launch", "launches")
