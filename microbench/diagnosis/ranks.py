"""Compares the traces of the ranks of one program: which ones the others wait for, why, and which are outliers."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.analysis.evidence import Finding, Severity, listed
from microbench.core.units import as_time, counted, percent, round_percent
from microbench.diagnosis import words
from microbench.diagnosis.communication import Exchanged
from microbench.diagnosis.diagnosis import PROCESSES, Diagnosis, each
from microbench.diagnosis.health import HELD
from microbench.traces.trace import NONE

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# With fewer traces nobody can tell which one is odd.
FEWEST = 3
# A rank is odd if it lies this many median deviations, and this share, from the median of all ranks. 1.4826 times the
# median deviation is the standard deviation of normal noise.
DEVIATIONS, LEAST_SHARE = 3.5 * 1.4826, 0.05
# So many steps with the same collectives of all ranks show who comes late; of fewer steps, so many collectives.
FEWEST_STEPS, FEWEST_COLLECTIVES = 4, 10
# The late ranks are fewer than half. For all others together the ranks wait no more than this part of the time.
APART = 4
# Who is last in each step is drawn anew so often. If the last ones are late in few of these draws by as much, it is no
# chance. Steps beyond so many are taken together, since more make it slow.
DRAWS, BY_CHANCE, MOST_PARTS = 1000, 0.04, 64
MOST_SAID = 6  # kinds of advice for separate runs


class Rank(NamedTuple):
    """What a rank does in a step: its GPU computes for so many s."""

    name: str
    works_s: float
    kernels: float
    host_s: float | None


class Odd(msgspec.Struct, frozen=True):
    """One trace that differs from the others in a figure: ``value`` against the ``median``, and whether it is more."""

    name: str
    what: str
    value: str
    median: str
    more: bool


def names(several: Sequence[Diagnosis]) -> list[str]:
    """The name of each trace: its rank, or else its file without the folder and the ending that all of them share."""
    paths = [one.trace.source.split("/") for one in several]
    while all(len(own) > 1 for own in paths) and len({own[0] for own in paths}) == 1:
        paths = [own[1:] for own in paths]
    parts = ["/".join(own).split(".") for own in paths]
    while all(len(own) > 1 for own in parts) and len({own[-1] for own in parts}) == 1:
        parts = [own[:-1] for own in parts]
    ranks = [one.trace.rank for one in several]
    return [".".join(own) if rank is None else f"rank {rank}" for own, rank in zip(parts, ranks, strict=True)]


def busy_s(diagnosis: Diagnosis) -> float | None:
    """The time in which the GPU works, of a step in s, without communication that no other work hides."""
    idle = diagnosis.idle
    return each(diagnosis, idle.busy_s - idle.exposed_s) if idle is not None else None


def exposed_s(diagnosis: Diagnosis) -> float | None:
    """The part of that in which the GPU does no other work."""
    return each(diagnosis, diagnosis.idle.exposed_s) if diagnosis.idle and diagnosis.idle.collectives else None


def communication_s(diagnosis: Diagnosis) -> float | None:
    """The time of all collectives together, of a step in s; None for a program without them."""
    idle = diagnosis.idle
    if idle is None or not idle.collectives:
        return None
    return each(diagnosis, sum(one.seconds for one in idle.collectives))


def step_s(diagnosis: Diagnosis) -> float | None:
    """The time of a recorded step in s."""
    return diagnosis.step.watched_s if diagnosis.step is not None else None


def host_s(diagnosis: Diagnosis) -> float | None:
    """The host time for a launch in s."""
    return words.launch_time(diagnosis)


FIGURES: tuple[tuple[str, Callable[[Diagnosis], float | None]], ...] = (
    ("a step", step_s),
    ("computing in a step", busy_s),
    ("host time for a launch", host_s),
)


class Compared(NamedTuple):
    """Ranks side by side: the time of a step in s, all of them, those that come last to the collectives, for how many s
    of a step the others wait for these, and what the collectives need in s if nobody waits; 0 if unknown. Most of that
    waiting is in one of ``in_one_of`` steps, unless that is 0."""

    step_s: float
    ranks: list[Rank]
    late: list[Rank]
    late_s: float
    needs_s: float = 0.0
    in_one_of: int = 0


def compared(several: Sequence[Diagnosis]) -> Compared | None:
    """The ranks side by side; None if it is unknown which rank is which, or how long they wait."""
    if len(several) < 2 or any(one.trace.rank is None or one.idle is None for one in several):
        return None
    step_s = statistics.median(each(one, one.idle.span_s) for one in several if one.idle is not None)
    if (found := _together(several, step_s) or _apart(several, step_s)) is None:
        return None
    of, late = dict(zip(names(several), several, strict=True)), {rank.name for rank in found.late}
    waited_s = max((communication_s(of[name]) or 0.0 for name in of.keys() - late), default=0.0)
    found = found._replace(late_s=min(found.late_s, waited_s))  # clocks and moments may differ
    return found if found.late_s > LEAST_SHARE * found.step_s else found._replace(late=[])


def _fewest(several: Sequence[object]) -> range:
    """How many ranks may be late."""
    return range(1, max((len(several) - 1) // 2, 1) + 1)


def _apart(several: Sequence[Diagnosis], step_s: float) -> Compared | None:
    """The ranks, of traces of different moments.

    A collective ends on all ranks together and begins on each when that rank comes. So it is shortest on the last ones.
    """
    counts = [each(one, sum(kind.pieces for kind in one.idle.collectives)) if one.idle else 0.0 for one in several]
    if min(counts) <= 0 or max(counts) > (1 + LEAST_SHARE) * min(counts):
        return None
    every = [
        Rank(name, busy_s(one) or 0.0, one.step.kernels if one.step else 0.0, host_s(one))
        for name, one in zip(names(several), several, strict=True)
    ]
    waits_s = [communication_s(one) or 0.0 for one in several]
    order = sorted(range(len(every)), key=lambda place: waits_s[place])
    sorted_s = [waits_s[place] for place in order]
    for number in _fewest(several):
        late_s = statistics.median(sorted_s[number:]) - statistics.fmean(sorted_s[:number])
        if APART * (sorted_s[number] - sorted_s[number - 1]) >= late_s:
            return Compared(step_s, every, [every[place] for place in order[:number]], late_s)
    return Compared(step_s, every, [], 0.0)


def _together(several: Sequence[Diagnosis], step_s: float) -> Compared | None:
    """The ranks, over the moments that all of them recorded: by each collective of all ranks.

    Its ranks wait for the last one that comes. What is between a collective and the one a step later is a step. If such
    steps are few, all collectives count as one long step.
    """
    ranks = [one.exchanged for one in several if one.exchanged is not None]
    in_step = max(map(_in_step, several))
    if len(ranks) < len(several) or not in_step:
        return None
    places = [np.flatnonzero(rank.kind != NONE) for rank in ranks]
    alike = _alike(ranks, places)  # a row for each rank, a column for each collective
    if not alike.shape[1]:
        return None
    begins_ns, ends_ns = (
        np.array([time[place[own]] for time, place, own in zip(times, places, alike, strict=True)])
        for times in ([rank.begin_ns for rank in ranks], [rank.end_ns for rank in ranks])
    )
    needs_ns = (ends_ns - begins_ns).min(axis=0)
    begins_ns -= np.median(ends_ns - ends_ns[0], axis=1).astype(np.int64)[:, None]  # by how much clocks differ
    steps_ns = ends_ns[0, in_step:] - ends_ns[0, :-in_step]
    chosen = np.flatnonzero((alike[:, in_step:] - alike[:, :-in_step] == in_step).all(axis=0))
    chosen = chosen[steps_ns[chosen] <= 2 * np.median(steps_ns[chosen])] if len(chosen) else chosen
    behind, parts = chosen + in_step, 1.0
    if len(chosen) >= FEWEST_STEPS * in_step:
        step_s = float(np.median(steps_ns[chosen])) * 1e-9
    elif alike.shape[1] >= FEWEST_COLLECTIVES:
        chosen, behind = np.array([0]), np.array([alike.shape[1] - 1])
        parts = float(ends_ns[0, -1] - ends_ns[0, 0]) * 1e-9 / step_s
    else:
        return None
    waits_ns, every = begins_ns.max(axis=0) - begins_ns, []
    for place, (rank, one, name) in enumerate(zip(ranks, several, names(several), strict=True)):
        begin_ns, end_ns = (times[rank.kind == NONE] for times in (rank.begin_ns, rank.end_ns))
        comes_ns, ended_ns = rank.begin_ns[places[place][alike[place]]], ends_ns[place]
        until_ns = comes_ns + waits_ns[place]
        waits_ns[place] -= _worked(begin_ns, end_ns, until_ns) - _worked(begin_ns, end_ns, comes_ns)
        sums = _worked(begin_ns, end_ns, ended_ns), np.searchsorted(begin_ns, ended_ns)
        works, kernels = (float(np.median(one[behind] - one[chosen])) / parts for one in sums)
        every.append(Rank(name, works * 1e-9, kernels, host_s(one)))
    lost_ns = lost(begins_ns, waits_ns)
    sums_ns = np.cumsum(np.vstack([lost_ns, needs_ns]), axis=1)
    each_ns = sums_ns[:, behind] - sums_ns[:, chosen]
    *late_s, needs_s = (each_ns.mean(axis=1) / parts * 1e-9).tolist()
    late = late_places(lost_ns, late_s, in_step)
    for_late_ns = each_ns[late, ::in_step].sum(axis=0)
    one_of = len(for_late_ns) if 2 * for_late_ns.max() > for_late_ns.sum() and len(for_late_ns) > 2 else 0
    return Compared(step_s, every, [every[at] for at in late], sum(late_s[at] for at in late), needs_s, one_of)


def lost(begins_ns: IntArray, waits_ns: IntArray) -> FloatArray:
    """How many ns the others wait for the rank that comes last: a row for each rank, a column for each collective."""
    last = begins_ns.argmax(axis=0) == np.arange(len(begins_ns))[:, None]
    found: FloatArray = last * waits_ns.sum(axis=0) / (len(begins_ns) - 1)
    return found


def late_places(lost_ns: FloatArray, late_s: Sequence[float], in_step: int) -> list[int]:
    """The ranks that the others wait for; none if chance explains it.

    If it were, any rank could be the last one in any step: then exchanging the ranks in each step loses as much. Where
    too few steps could tell, that is done in each collective.
    """
    order = sorted(range(len(late_s)), key=lambda place: -late_s[place])
    for number in _fewest(late_s):
        if sum(late_s[place] for place in order[:number]) >= (1 - 1 / APART) * sum(late_s):
            late = order[:number]
            break
    else:
        return []
    count = lost_ns.shape[1]
    few = len(late_s) ** (1 - count // in_step) > BY_CHANCE
    size = max(1 if few else in_step, -(-count // MOST_PARTS))
    parts_ns, random = np.add.reduceat(lost_ns, np.arange(0, count, size), axis=1), np.random.default_rng(0)
    draws_ns = [np.sort(random.permuted(parts_ns, axis=0).sum(axis=1))[-number:].sum() for _ in range(DRAWS)]
    as_much = np.array(draws_ns) >= (1 - 1e-9) * parts_ns[late].sum()
    return late if as_much.mean() <= BY_CHANCE else []


def _in_step(one: Diagnosis) -> int:
    """How many collectives begin in a step that has any; 0 if there is none."""
    if one.exchanged is None or one.steps is None or one.trace.epoch_ns is None:
        return 0
    begins_ns = one.exchanged.begin_ns[one.exchanged.kind != NONE] - one.trace.epoch_ns
    counts = np.diff(np.searchsorted(begins_ns, one.steps.begins_ns))
    return int(np.median(counts[counts > 0])) if counts.any() else 0


def _alike(ranks: Sequence[Exchanged], places: Sequence[IntArray]) -> IntArray:
    """For each collective that all ranks recorded its number among those of each rank. It ends on all at about the
    same time: the nearest of the same kind, which overlaps it."""
    first, kinds = ranks[0], [np.array(rank.kinds)[rank.kind[own]] for rank, own in zip(ranks, places, strict=True)]
    found, known = [np.arange(len(places[0]))], np.ones(len(places[0]), bool)
    begins_ns, ends_ns = first.begin_ns[places[0]], first.end_ns[places[0]]
    for rank, own, kind in zip(ranks[1:], places[1:], kinds[1:], strict=True):
        order = np.argsort(rank.end_ns[own], kind="stable")
        theirs_ns = rank.end_ns[own][order]
        behind = np.clip(np.searchsorted(theirs_ns, ends_ns), 1, max(len(order) - 1, 1))
        nearer = ends_ns - theirs_ns[behind - 1] < theirs_ns[np.minimum(behind, len(order) - 1)] - ends_ns
        nearest = order[np.minimum(behind - nearer, len(order) - 1)]
        known &= (rank.begin_ns[own][nearest] < ends_ns) & (rank.end_ns[own][nearest] > begins_ns)
        known &= kind[nearest] == kinds[0]
        found.append(nearest)
    return np.array(found)[:, known]


def _worked(begins_ns: IntArray, ends_ns: IntArray, times_ns: IntArray) -> IntArray:
    """For how many ns at least one of these kernels, sorted by their begins, ran until each time."""
    until = np.maximum.accumulate(ends_ns)
    worked = np.append(0, np.cumsum(until - np.maximum(begins_ns, np.append(begins_ns[:1], until[:-1]))))
    place = np.searchsorted(begins_ns, times_ns)
    found: IntArray = worked[place] - np.maximum(np.append(0, until)[place] - times_ns, 0) * (place > 0)
    return found


def odd_ranks(several: Sequence[Diagnosis]) -> list[Odd]:
    """The outliers, by figure."""
    found, named = [], names(several)
    for what, figure in FIGURES:
        known = [(name, value) for name, one in zip(named, several, strict=True) if (value := figure(one)) is not None]
        if len(known) < FEWEST:
            continue
        median = statistics.median(value for _, value in known)
        deviation = statistics.median(abs(value - median) for _, value in known)
        limit = max(DEVIATIONS * deviation, LEAST_SHARE * median)
        found += [
            Odd(name, what, as_time(value), as_time(median), value > median)
            for name, value in known
            if abs(value - median) > limit
        ]
    return found


ON_ITS_HOST = "Most of that is no work of"


def _why_late(last: Rank, others: Sequence[Rank], late_s: float, it: str = "it") -> tuple[Severity, str]:
    """Why a rank comes late, with what to do: it has more kernels, its kernels take longer, or its host is slower.

    Hosts that differ no more than two processes of one program do are no problem.
    """
    works_s, kernels = (
        statistics.median(values) for values in zip(*((one.works_s, one.kernels) for one in others), strict=True)
    )
    longer_s, more, its = last.works_s - works_s, round(last.kernels - kernels), "its" if it == "it" else f"{it}'s"
    first, own = (word[0].upper() + word[1:] if it == "it" else word for word in (it, its))
    if 2 * longer_s >= late_s and more > 0:
        kernels_more = f"{counted(more, 'kernel')} more a step, and computes {as_time(longer_s)} longer"
        return "warning", f"{first} runs {kernels_more}: give every rank the same work"
    if 2 * longer_s >= late_s:
        longer = f"take {as_time(last.works_s)} of a step, others' {as_time(works_s)}"
        return "warning", f"{own} kernels {longer}: look for larger batches, or a slower GPU (`microbench check` there)"
    hosts_s = [one.host_s for one in others if one.host_s is not None]
    if last.host_s is not None and hosts_s and (share := last.host_s / statistics.median(hosts_s)) > 1 + LEAST_SHARE:
        host = f"takes {as_time(last.host_s)} a launch, others {as_time(statistics.median(hosts_s))}"
        if share <= 1 + PROCESSES:
            return (
                "note",
                f"{own} host {host}, as two processes of one program may differ: record again before you look",
            )
        return "warning", f"{own} host {host}: look for other programs there, or fewer processors"
    return "warning", f"{ON_ITS_HOST} {its} GPU: look at what {its} host does before, such as loading data"


def finding(several: Sequence[Diagnosis]) -> Finding:
    """Which ranks the others wait for, or which are odd, in words; none is odd where their steps differ in kernels."""
    known = compared(several)
    if known is not None and known.late:
        late, others = known.late, [one for one in known.ranks if one not in known.late]
        one = len(late) == 1
        waiting = f"{others[0].name} waits" if len(others) == 1 else "the others wait"
        severity, change = _why_late(late[0], others, known.late_s, "it" if one else late[0].name)
        of = dict(zip(names(several), several, strict=True))
        if any(check.name == HELD for check in of[late[0].name].health):
            change = "Its work waits in its queue meanwhile: another program probably uses that GPU (`nvidia-smi`)"
        title = f"{listed([rank.name for rank in late])} {'comes' if one else 'come'} late: {waiting} about "
        which, them = f"in {known.in_one_of} steps" if known.in_one_of else "of each step", "it" if one else "them"
        title += f"{as_time(known.late_s * max(known.in_one_of, 1))} {which} for {them}"
        title += ", most of that in one" if known.in_one_of else ""
        needs = f", and the collectives themselves need {as_time(known.needs_s)}" if known.needs_s else ""
        return Finding(
            rule="diagnose.late_rank",
            severity=severity,
            title=title + needs,
            text="",
            threshold=f"ranks wait for few of them in collectives for more than {round_percent(LEAST_SHARE)} of a step",
            advice=change,
        )
    if known is not None:
        *others, most = sorted(known.ranks, key=lambda rank: rank.works_s)
        longer_s = most.works_s - statistics.median(one.works_s for one in others)
        if longer_s > LEAST_SHARE * known.step_s:
            than = others[0].name if len(others) == 1 else "the others"
            return Finding(
                rule="diagnose.ranks",
                severity="note",
                title=f"{most.name} has more work than {than}, but nobody waits for it yet",
                text="The hosts decide how long the step takes. Once they are faster, the others wait for this rank.",
                threshold=f"a rank computes longer by more than {round_percent(LEAST_SHARE)} of a step",
                advice=_why_late(most, others, longer_s)[1],
            )
    kernels = [one.step.kernels for one in several if one.step is not None]
    if known is not None:  # where they are of the same steps
        kernels = [rank.kernels for rank in known.ranks]
    if kernels and max(kernels) > (1 + LEAST_SHARE) * min(kernels):
        ranked = all(one.trace.rank is not None for one in several)
        what = "The ranks do different work" if ranked else "The traces are of different programs"
        return Finding(
            rule="diagnose.ranks",
            severity="note",
            title=f"{what}: a step has {min(kernels):.0f} to {max(kernels):.0f} kernels",
            text="",
            threshold=f"kernels in a step differ by more than {round_percent(LEAST_SHARE)}",
        )
    odd = odd_ranks(several)
    threshold = f"farther than {percent(LEAST_SHARE)} and 3.5 standard deviations from the median of the ranks"
    if len(several) < FEWEST:
        title = f"{len(several)} traces: at least {FEWEST} are needed to say which one is odd"
        title += "; neither is late beyond chance" if known is not None else ""
        return Finding(rule="diagnose.ranks", severity="note", title=title, text="", threshold=threshold)
    if not odd and (without := sum(one.idle is None for one in several)):
        title = f"{without} of {len(several)} traces have no idle time, so nobody knows whether they are alike"
        why = "`microbench diagnose FILE` of one says why"
        return Finding(rule="diagnose.ranks", severity="warning", title=title, text="", threshold=threshold, advice=why)
    usual = Counter(one.bound for one in several).most_common(1)[0][0]
    idles = [1 - one.idle.busy_s / one.idle.span_s if one.idle is not None else 0.0 for one in several]
    unlike = [
        f"{name} is {one.bound}" for name, one, idle in zip(names(several), several, idles, strict=True)
        if one.bound != usual and abs(idle - statistics.median(idles)) > LEAST_SHARE
    ]  # fmt: skip
    if (unlike or odd) and not kernels and separate(several):
        bounds = Counter(one.bound or "without a verdict" for one in several).most_common()
        title = f"{len(several)} runs: {listed([f'{count} {bound}' for bound, count in bounds])}"
        return Finding(rule="diagnose.ranks", severity="note", title=title, text="", threshold=threshold)
    if unlike and len(unlike) < len(several) / 2:
        title = f"The others are {usual}, but {listed(unlike[:3])}"
        waits = "The others wait for it where its collectives are short. " if any(map(communication_s, several)) else ""
        return Finding(
            rule="diagnose.ranks",
            severity="warning",
            title=title,
            text="",
            threshold=f"another verdict, and idle for {round_percent(LEAST_SHARE)} of the time more or less",
            advice=f"{waits}Look at what its host does",
        )
    if not odd:
        title = f"{len(several)} traces are alike"
        return Finding(rule="diagnose.ranks", severity="good", title=title, text="", threshold=threshold)
    outliers = list(dict.fromkeys(one.name for one in odd))
    first = next((one for one in odd if one.more), odd[0])
    change = " Look at that rank's host" if first.more else ""
    if not first.more and first.what.startswith("computing"):
        change = " It has less to do: give every rank the same work"
    return Finding(
        rule="diagnose.ranks",
        severity="warning",
        title=f"Outliers among the ranks: {', '.join(outliers[:3])}{' and others' if len(outliers) > 3 else ''}",
        text=f"{first.name}: {first.what} takes {first.value}, in the median {first.median}.",
        threshold=threshold,
        advice=f"{first.name} takes {first.value} for {first.what} (median {first.median}).{change}",
    )


def separate(several: Sequence[Diagnosis]) -> bool:
    """Whether the traces are of runs that have nothing to do with each other: no ranks, and nothing exchanged."""
    return all(one.trace.rank is None and not communication_s(one) for one in several)


def to_do(several: Sequence[Diagnosis]) -> Iterator[Finding]:
    """What to do first: on the late rank, if its host makes it late; if none is late, on a rank like most others. Runs
    that have nothing to do with each other have their own."""
    if separate(several):
        yield from _each_best(several)
    if any(one.trace.rank is None for one in several):
        return
    known, first = compared(several), finding(several)
    of = dict(zip(names(several), several, strict=True))
    if late := known.late[0].name if known is not None and known.late else "":
        chosen = [late] if first.advice.startswith(ON_ITS_HOST) else []
    else:
        chosen = [name for name, one in of.items() if one.bound is not None]
        bounds = Counter(of[name].bound for name in chosen)
        chosen = [name for name in chosen if 2 * bounds[of[name].bound] > len(several)][:1]
    for name in chosen:
        found = [one for one in words.findings(of[name]) if one.severity == "advice" and one.advice]
        exchange = "diagnose.communication" if late else ""  # which its lateness explains
        if best := next((one for one in found if one.rule != exchange), None):
            often = sum(one.bound == of[name].bound for one in several)
            who = f"{name} is" if late else f"{often} of {len(several)} ranks are"
            whose = "" if late else f" {name}, for one:"
            change = best.advice.partition(f". {words.GIVE}")[0]
            title = f"{who} {of[name].bound}.{whose} {best.title}"
            yield msgspec.structs.replace(best, rule="diagnose.rank", title=title, advice=change)


def _each_best(several: Sequence[Diagnosis]) -> Iterator[Finding]:
    """The first advice for each run. Runs with the same advice share one finding."""
    best, whose = dict[str, Finding](), defaultdict[str, list[str]](list)
    for name, one in zip(names(several), several, strict=True):
        advised = (it for it in words.findings(one) if it.severity == "advice" and it.advice)
        if (own := next(advised, None)) is not None:
            whose[best.setdefault(own.advice, own).advice].append(name)
    for own in list(best.values())[:MOST_SAID]:
        name, *others = whose[own.advice]
        alike = f", like {counted(len(others), 'other')}" * bool(others)
        yield msgspec.structs.replace(own, rule="diagnose.rank", title=f"{name}{alike}: {own.title}")
