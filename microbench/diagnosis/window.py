"""Cuts a trace down to a window of time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.errors import UsageError
from microbench.core.units import as_time
from microbench.diagnosis.health import MOST_UNKNOWN, WITHOUT, Chosen, launches_of
from microbench.diagnosis.idle import busiest
from microbench.diagnosis.turns import COVERED, FEWEST, LONGEST, loops_of
from microbench.traces.collector import MAX_TIME_NS
from microbench.traces.trace import NONE, RANGE_KINDS, Table, Trace

# A trace with more calls is diagnosed in its middle: as many need 0.1 GB and 5 s.
MOST_CALLS = 100_000

# Other parts of a trace in which steps are looked for: how many, and how many calls of each; and the share of the calls
# that a part beside the steps must have.
MOST_OTHERS, OTHER_CALLS, LEAST_REST = 3, 20_000, 0.25
QUARTER = 0.25  # of the first window's time: a shorter one may be cut by the program's end
TENTH = 0.1  # of the most work in a window: with less, loops that turn in another one only prepare

OTHERS = "kernels and copies of other processes on other GPUs"


def begin_of(trace: Trace) -> int:
    """The time of the trace's first event in ns."""
    return min(int(table["begin_ns"].min()) for table in (trace.work, trace.calls, trace.ranges) if len(table))


def between(trace: Trace, from_s: float | None, to_s: float | None) -> Trace:
    """The calls that begin in a window, with the work that they submit and the host code that overlaps it.

    The window is in s since the trace's first event; None is its begin or its end. Raises UsageError for a window
    without work of a GPU, and for one that ends before it begins.
    """
    if from_s is not None and to_s is not None and from_s > to_s:
        raise UsageError(f"the window from {as_time(from_s)} to {as_time(to_s)} ends before it begins", "exchange them")
    if not len(trace.work):
        return trace
    first_ns = begin_of(trace)
    begin_ns = first_ns + round((from_s or 0.0) * 1e9)
    last_ns = int(max(table["end_ns"].max() for table in (trace.work, trace.calls, trace.ranges) if len(table)))
    end_ns = first_ns + round(to_s * 1e9) if to_s is not None else last_ns + 1
    calls = _inside(trace.calls, begin_ns, end_ns)
    work = np.append(calls, False)[trace.work["call"]]
    work |= (trace.work["call"] == NONE) & _inside(trace.work, begin_ns, end_ns)
    if not work.any():
        submitted = np.append(trace.calls["begin_ns"], NONE)[trace.work["call"]]
        submitted = np.where(submitted == NONE, trace.work["begin_ns"], submitted)
        raise UsageError(
            f"no work was submitted between {as_time(from_s or 0.0)} and {as_time((end_ns - first_ns) * 1e-9)}",
            f"give a longer window: from the first event of the trace on, work was submitted between "
            f"{' and '.join(as_time((end - first_ns) * 1e-9) for end in (submitted.min(), submitted.max()))}",
        )
    return with_only(trace, work, calls, _overlapping(trace.ranges, begin_ns, end_ns))


def one_window(trace: Trace) -> Trace:
    """Of a recording of windows the one that submitted most work, without the first, in which a program begins.

    ``unread`` then counts the launches without a record of a later window with more launches, where many have none.
    """
    found, begins_ns = next(_windows(trace), trace), trace.calls["begin_ns"]
    if len(trace.windows) < 2:
        return found
    launches, _, submits = launches_of(trace)
    inside = (launches & (begin_ns <= begins_ns) & (begins_ns < end_ns) for begin_ns, end_ns in trace.windows[1:])
    most = max(inside, key=np.count_nonzero)
    lost = int(np.count_nonzero(most & ~submits))
    if lost <= MOST_UNKNOWN * np.count_nonzero(most) or begins_ns[most][0] <= found.calls["begin_ns"].max(initial=0):
        return found
    first_s, last_s = ((begins_ns[most][place] - begin_of(trace)) * 1e-9 for place in (0, -1))
    kind = f"launches between {as_time(first_s)} and {as_time(last_s)} {WITHOUT}"
    return msgspec.structs.replace(found, unread={**found.unread, kind: lost})


def of_one_gpu(trace: Trace) -> Trace:
    """Of processes that use a GPU each, what belongs to the busiest GPU; ``unread`` then counts the others' work.

    GPUs without work, which may be another maker's, are left out of ``gpus``.
    """
    used = {gpu: name for gpu, name in trace.gpus.items() if gpu in trace.work["device"]}
    trace = msgspec.structs.replace(trace, gpus=used or trace.gpus)
    process = np.array([thread.process for thread in trace.threads] + [NONE])[np.append(trace.calls["thread"], NONE)]
    own, of = trace.work["device"] == busiest(trace), process[trace.work["call"]]
    users = np.unique(of[own & (of != NONE)])
    calls = np.isin(process[:-1], users)
    work = own | np.isin(of, users)
    if not len(users) or work.all() or own[~work].any():
        return trace
    ranges = np.isin(np.array([thread.process for thread in trace.threads])[trace.ranges["thread"]], users)
    unread = {**trace.unread, OTHERS: int(np.count_nonzero(~work))}
    return msgspec.structs.replace(with_only(trace, work, calls, ranges), unread=unread)


def other_parts(whole: Trace, trace: Trace, first: int, last: int) -> Iterator[Trace]:
    """Parts of the whole trace in which the steps should be those that ``trace`` has from its call ``first`` to its
    call ``last``: other windows, or what comes before and behind them, if that is not little."""
    for window in itertools.islice(_windows(whole), 1, 1 + MOST_OTHERS):
        yield _calls(window, max(len(window.calls) - OTHER_CALLS, 0) // 2, OTHER_CALLS)
    of = trace if whole.windows else whole
    begin, end = np.searchsorted(of.calls["begin_ns"], trace.calls["begin_ns"][[first, last]])
    for start, count in ((max(begin - OTHER_CALLS, 0), min(begin, OTHER_CALLS)), (end, len(of.calls) - end)):
        if count >= LEAST_REST * min(len(of.calls), OTHER_CALLS):
            yield _calls(of, start, min(count, OTHER_CALLS))


def _calls(trace: Trace, first: int, count: int) -> Trace:
    """So many calls of a trace, with the work that they submit."""
    calls = np.zeros(len(trace.calls), bool)
    calls[first : first + count] = True
    return with_only(trace, np.append(calls, False)[trace.work["call"]], calls, np.zeros(len(trace.ranges), bool))


def _windows(trace: Trace) -> Iterator[Trace]:
    """The windows of a recording that submit work, most work first; without the first one, unless all others are
    short, as one is that the program's end has cut.

    Those whose work is submitted while a loop of the program's own turns come before those in which it still begins.
    Last come those in which the program's loop turns and does little: they may be full of an evaluation.
    """
    # When its call began; kernels without a call belong to no window.
    owners = np.append(trace.calls["begin_ns"], MAX_TIME_NS)[trace.work["call"]]
    counts = [int(np.count_nonzero((begin_ns <= owners) & (owners < end_ns))) for begin_ns, end_ns in trace.windows]
    last_ns = int(trace.calls["end_ns"].max(initial=0))
    lasts_ns = [min(end_ns, last_ns) - begin_ns for begin_ns, end_ns in trace.windows]
    if any(count and lasts > QUARTER * lasts_ns[0] for count, lasts in zip(counts[1:], lasts_ns[1:], strict=True)):
        counts[0] = 0
    own = [loop for loop in loops_of(trace) if loop.own and len(loop.submits)] if len(counts) > 1 else []
    submits_ns = np.sort(trace.calls["begin_ns"][np.unique(trace.work["call"][trace.work["call"] != NONE])])

    def turns(window: tuple[int, int], ends_ns: npt.NDArray[np.int64], longest_ns: float = math.inf) -> bool:
        """Whether turns that end at these times submit most of the window's work."""
        inside = ends_ns[slice(*np.searchsorted(ends_ns, window))]
        if len(inside) < FEWEST:
            return False
        each = np.diff(np.searchsorted(submits_ns, inside))[np.diff(inside) <= longest_ns]
        return bool(each.sum() >= COVERED * np.diff(np.searchsorted(submits_ns, window))[0])

    ends_ns = np.sort(np.concatenate([np.empty(0, np.int64), *(loop.all_ns for loop in own)]))
    likely = [count >= TENTH * max(counts) for count in counts]
    turning = [one and turns(of, ends_ns) for one, of in zip(likely, trace.windows, strict=True)]
    behind, widest = [False] * len(counts), (0, 0.0)  # by the loop that turns in most windows, and has most of one
    for loop in own:
        longest_ns, at_ns = LONGEST * loop.turn_s * 1e9, loop.all_ns
        most = [one and turns(of, at_ns, longest_ns) for one, of in zip(likely, trace.windows, strict=True)]
        ends = [int(np.diff(np.searchsorted(at_ns, of))[0]) for of in trace.windows]
        several = sum(count >= FEWEST for count in ends)
        if any(most) and (several, loop.turn_s) > widest:
            widest, best = (several, loop.turn_s), max(itertools.compress(ends, most))
            behind = [FEWEST <= count <= best / 2 and not one for count, one in zip(ends, most, strict=True)]
    order = sorted(range(len(counts)), key=lambda at: (behind[at], not turning[at], -counts[at]))
    for number in (one for one in order if counts[one]):
        yield _window(trace, *trace.windows[number], owners)


def _window(trace: Trace, begin_ns: int, end_ns: int, owners: npt.NDArray[np.int64]) -> Trace:
    # Calls whose work had not run when the window ended have none.
    submitting = trace.work["call"][(begin_ns <= owners) & (owners < end_ns)]
    end_ns = min(end_ns, int(trace.calls["end_ns"][submitting].max()))
    first_ns = begin_of(trace)
    return between(trace, (begin_ns - first_ns) * 1e-9, (end_ns - first_ns) * 1e-9)


def middle(trace: Trace) -> Trace:
    """The MOST_CALLS calls in the middle of a longer trace; ``unread`` then counts the others.

    If there were too many operators or functions to keep, it is the middle of the part in which they were kept.
    """
    if len(trace.calls) <= MOST_CALLS:
        return trace
    begins_ns = np.sort(trace.calls["begin_ns"])
    named = len(begins_ns) - 1
    for kind in ("operator", "python"):
        kept = trace.ranges["begin_ns"][trace.ranges["kind"] == RANGE_KINDS.index(kind)]
        if kind in trace.unread and len(kept):
            named = min(named, int(np.searchsorted(begins_ns, kept.max())))
    first = max(named - MOST_CALLS, 0) // 2
    begin_s, end_s = ((begins_ns[place] - begin_of(trace)) * 1e-9 for place in (first, first + MOST_CALLS))
    cut = between(trace, begin_s, end_s)
    left_out = f"calls before {as_time(begin_s)} and after {as_time(end_s)}"
    return msgspec.structs.replace(cut, unread={**cut.unread, left_out: len(trace.calls) - len(cut.calls)})


def around(trace: Trace, begin_ns: int, end_ns: int, more_work: Chosen) -> Trace:
    """Everything that overlaps a stretch of time, ``more_work``, and all calls since the first that submitted it."""
    work = _overlapping(trace.work, begin_ns, end_ns) | more_work
    calls = _overlapping(trace.calls, begin_ns, end_ns)
    submitted = trace.work["call"][work]
    submitted = submitted[submitted != NONE]
    calls[submitted] = True
    since = slice(submitted.min(initial=len(calls)), None)  # so that waits for events are among them
    calls[since] |= trace.calls["begin_ns"][since] < end_ns
    return with_only(trace, work, calls, _overlapping(trace.ranges, begin_ns, end_ns))


def with_only(trace: Trace, work: Chosen, calls: Chosen, ranges: Chosen) -> Trace:
    """The trace with only these rows. Work and waits of calls that are left out lose their call."""
    places = np.append(np.where(calls, np.cumsum(calls) - 1, NONE), NONE).astype(np.int32)
    kept, syncs = trace.work[work], trace.syncs.copy()
    kept["call"] = places[kept["call"]]
    for field in ("call", "on_call"):
        syncs[field] = places[syncs[field]]
    return msgspec.structs.replace(
        trace, work=kept, calls=trace.calls[calls], ranges=trace.ranges[ranges], syncs=syncs[syncs["call"] != NONE]
    )


def _inside(table: Table, begin_ns: int, end_ns: int) -> Chosen:
    chosen: Chosen = (table["begin_ns"] >= begin_ns) & (table["begin_ns"] < end_ns)
    return chosen


def _overlapping(table: Table, begin_ns: int, end_ns: int) -> Chosen:
    chosen: Chosen = (table["end_ns"] > begin_ns) & (table["begin_ns"] < end_ns)
    return chosen
