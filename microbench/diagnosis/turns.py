"""Finds the loop of Python whose turns are the program's own steps, and the time of a turn while nothing records."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.traces.trace import NONE, WORK_KINDS, Pause, Table, Trace

IntArray = npt.NDArray[np.int64]

FEWEST = 4  # ends of turns that count as a repetition
# A loop within another one is the program's iteration if it does all that the outer one does, or if it turns at least
# so often in each turn of it and submits at least this share of its work. The outer one is over epochs or prompts.
OFTEN, MOST_OF = 5, 0.8
# It has to turn more often, and submit nearly all, in a function that an outer one calls whose turn is short: there it
# goes over environments, tiles or requests of an iteration. Epochs take longer, but for tiny ones; their functions, and
# those over tokens or denoisings, mostly say so.
SHORT_S, CALLED_OFTEN, NEARLY_ALL = 0.5, 40, 0.95
OF_STEPS = re.compile("(?:^|_)(?:epoch|train|fit|eval|valid|test|generat|decod|sampl|denois)", re.IGNORECASE)
OF_MODEL, CALL = "forward", "__call__"
MOST_AROUND = 8  # loops before one in its function that are looked at
MOST_A_VISIT = 3  # a loop that turns less often, each time the program comes to it, is no iteration
COVERED = 0.5  # the share of the trace's work that must be submitted while a loop turns
LONGEST = 10  # times as long as a usual turn: the program did something else in between
USUAL = 2.0  # times a usual turn, within which a function runs that each turn calls
PLACE = re.compile(r"(?P<file>.+):(?P<line>[0-9]{1,9}) (?P<function>.+)")
AT_ONCE, STRETCHES = 10, 8  # turns whose mean is one time of a step, and how many times there are at least


class Turns(NamedTuple):
    """A loop that submits work: where it is, the ends in ns of all its turns in the trace and of those that follow one
    another, how many calls submit in each of the latter, and in all usual turns together, and the median time of a
    turn in s, recorded or not."""

    place: str
    own: bool
    all_ns: IntArray
    ends_ns: IntArray
    submits: IntArray
    all_submits: int
    turn_s: float
    cut: bool  # of a fast loop only some turns are noted
    recorded: int  # turns in the recording, of which the trace is a part


def loops_of(trace: Trace, *, beneath: bool = False) -> list[Turns]:
    """The loops that submit work, the longest turn first; those ``beneath`` PyTorch's modules on request. Those that do
    so in less than half of their turns have no ``submits``.

    Their threads call CUDA, if not in each turn: a backward pass has a thread of its own.
    """
    submits_ns = trace.calls["begin_ns"][np.unique(trace.work["call"][trace.work["call"] != NONE])]
    turns = np.sort(trace.turns[np.isin(trace.turns["thread"], trace.calls["thread"])], order="at_ns")
    found = []
    lines: dict[tuple[str, str], list[tuple[int, int]]] = {}  # of the loops of each function, with their numbers
    for number, loop in enumerate(trace.loops):
        if place := PLACE.fullmatch(loop.place):
            lines.setdefault((place["file"], place["function"]), []).append((int(place["line"]), number))
    around = {
        number: [one for at, one in each[max(place - MOST_AROUND, 0) : place] if at < line]
        for each in map(sorted, lines.values()) for place, (line, number) in enumerate(each)
    }  # fmt: skip
    for number, loop in enumerate(trace.loops):
        rows = turns[turns["loop"] == number]
        if (loop.beneath and not beneath) or not len(submits_ns) or not len(rows):
            continue
        rows = _of_one_thread(rows)
        inside = rows[(rows["at_ns"] >= submits_ns[0]) & (rows["at_ns"] <= submits_ns[-1])]
        times_ns = np.concatenate([np.diff(one["at_ns"]) for one in _stretches(rows)])
        if not len(times_ns) or _turns_less(turns, around.get(number, []), rows["at_ns"]):
            continue
        turn_ns = float(np.median(times_ns))
        stretches = _stretches(inside, LONGEST * turn_ns, turns)
        each = [np.diff(np.searchsorted(submits_ns, one["at_ns"])) for one in stretches]
        stretch, submits = max(zip(stretches, each, strict=True), key=lambda one: len(one[0]))
        often = bool(len(submits)) and np.median(submits) >= 1
        if not len(submits) or often or submits.sum() >= FEWEST:
            cut = bool(inside["last"].any())  # the longest stretch may end before, where the program did not run
            all_ns, ends_ns = inside["at_ns"], stretch["at_ns"]
            all_submits = sum(int(one.sum()) for one in each)
            submits = submits if often else submits[:0]
            turn_s = turn_ns * 1e-9
            found.append(Turns(loop.place, loop.own, all_ns, ends_ns, submits, all_submits, turn_s, cut, len(rows)))
    return sorted(found, key=lambda one: -one.turn_s)


def _turns_less(turns: Table, around: list[int], ends_ns: IntArray) -> bool:
    """Whether one of these loops turns at least as often as this one while both do, and in between."""
    for number in around:
        stretches = [one["at_ns"] for one in _stretches(_of_one_thread(turns[turns["loop"] == number])) if len(one)]
        during = [ends_ns[(ends_ns >= one[0]) & (ends_ns <= one[-1])] for one in stretches]
        visits = sum(len(np.unique(np.searchsorted(*both))) for both in zip(stretches, during, strict=True))
        count = sum(map(len, during))
        if FEWEST <= count <= sum(map(len, stretches)) and count < MOST_A_VISIT * visits:
            return True
    return False


def _of_one_thread(rows: Table) -> Table:
    """The turns of the thread with most of them."""
    threads, counts = np.unique(rows["thread"], return_counts=True)
    return rows[rows["thread"] == threads[np.argmax(counts)]] if len(threads) else rows


def _stretches(
    rows: Table, longest_ns: float = np.inf, turns: Table | None = None, several: float = FEWEST
) -> list[Table]:
    """Turns that follow one another within a time.

    With ``turns`` of all loops, sorted, also the longer ones, if there are ``several``: such as those that wait for the
    GPU, save the model or stall. Not those in which a loop around ends, and not a first one, which warms up.
    """
    apart = rows["last"].copy()
    longer = np.flatnonzero(np.diff(rows["at_ns"]) > longest_ns)
    if turns is not None and len(longer):
        ended = _ends_around(rows, longer, turns)
        apart[longer[ended]] = True
        longer = longer[~ended]
        longer = longer[longer == 0] if len(longer) >= several else longer
    apart[longer] = True
    return np.split(rows, np.flatnonzero(apart) + 1)


def _ends_around(rows: Table, longer: IntArray, turns: Table) -> npt.NDArray[np.bool_]:
    """Which of the longer turns hold the end of an enclosing loop: one that ends once in them, and hardly elsewhere."""
    edges_ns = rows["at_ns"]
    inside = (turns["thread"] == rows["thread"][0]) & (turns["loop"] != rows["loop"][0])
    inside &= (turns["at_ns"] > edges_ns[0]) & (turns["at_ns"] <= edges_ns[-1])
    ended = np.zeros(len(longer), bool)
    loops, turn = turns["loop"][inside], np.searchsorted(edges_ns, turns["at_ns"][inside]) - 1
    place = np.searchsorted(longer, turn)
    within = np.append(longer, -1)[place] == turn
    totals = np.bincount(loops, minlength=1)
    for loop in np.unique(loops[within]):
        ends = np.bincount(place[within][loops[within] == loop], minlength=len(longer))
        if ends.sum() >= MOST_OF * totals[loop] and np.median(ends[ends > 0]) == 1:
            ended |= ends > 0
    return ended


def iterations(trace: Trace, names: IntArray, loops: list[Turns]) -> list[Turns]:
    """The loop whose turns are the program's steps, and those around it; its own code comes before that of packages.

    ``names`` are numbers of the submitting calls that are equal for equal calls.
    """
    idle = _without_kernels(trace)
    submits_ns = trace.calls["begin_ns"][np.unique(trace.work["call"][trace.work["call"] != NONE])]
    for own in (True, False):
        chosen: list[Turns] = []
        parts = set[tuple[str, str]]()  # functions whose outermost loop goes over parts of an iteration
        for loop in (one for one in loops if one.own == own and len(one.submits)):
            share, function = _share(names, submits_ns, loop), function_of(loop.place)
            if share < COVERED or function in parts:
                continue
            if not chosen or _is_iteration(chosen[0], loop, share, idle):
                chosen.insert(0, loop)
            elif _is_called(chosen[0], loop):
                parts.add(function)
        # A program's own loop with fewer ends in a part of the recording is better than a library's.
        if found := [loop for loop in chosen if len(loop.ends_ns) >= FEWEST - own and loop.recorded >= FEWEST]:
            return found
    return []


def _share(names: IntArray, submits_ns: IntArray, loop: Turns) -> float:
    """The share of all submitting calls that a loop makes.

    Of a fast loop only some turns are noted. Then calls count that these turns make, too, and that come again one turn
    later.
    """
    turn = int(np.median(loop.submits))
    if loop.cut and 0 < turn < len(names):
        noted = names[slice(*np.searchsorted(submits_ns, loop.ends_ns[[0, -1]]))]
        return float(np.mean(np.isin(names[turn:], noted) & (names[:-turn] == names[turn:])))
    return loop.all_submits / max(len(names), 1)


def _without_kernels(trace: Trace) -> tuple[IntArray, IntArray]:
    """When no kernel runs: the middle of each such time, and its length, both in ns."""
    kernels = np.sort(trace.work[trace.work["kind"] != WORK_KINDS.index("copy")], order="begin_ns")
    ends_ns = np.maximum.accumulate(kernels["end_ns"].astype(np.int64))
    lasts_ns = np.maximum(kernels["begin_ns"][1:] - ends_ns[:-1], 0)
    return ends_ns[:-1] + lasts_ns // 2, lasts_ns


def _is_iteration(outer: Turns, inner: Turns, share: float, idle: tuple[IntArray, IntArray]) -> bool:
    """Whether the turns of the inner loop, and not those of the outer one, are the program's iterations.

    They are not if the GPU has no kernels in most of the time, and that outside of the inner loop: it only launches
    some. Of a fast one, of which only some turns are noted, nobody knows. A loop in a model's forward() is over its
    layers. One in a function that a short iteration calls is over parts of it, unless it turns often and has nearly all
    of the calls: ``share`` tells that where no noted turn has the rest.
    """
    name, called = function_of(inner.place)[1].rpartition(".")[2], _is_called(outer, inner)
    if (name == OF_MODEL and outer.recorded >= FEWEST) or (name == CALL and called):
        return False
    middles_ns, lasts_ns = idle
    turn = np.searchsorted(inner.all_ns, middles_ns)
    around = np.isin(turn, np.searchsorted(inner.all_ns, outer.all_ns)) & (middles_ns > outer.all_ns[0])
    around &= middles_ns < outer.all_ns[-1]
    if not inner.cut and len(outer.all_ns) >= FEWEST and lasts_ns[around].sum() > COVERED * np.ptp(outer.all_ns):
        return False
    ends = np.searchsorted(inner.ends_ns, outer.all_ns)
    last = np.unique(ends[(ends > 0) & (ends < len(inner.ends_ns))]) - 1  # turns with an end of the outer loop
    if called and (inner.cut or not len(last)) and share < NEARLY_ALL:
        return False
    others = np.delete(inner.submits, last)
    span_s = float(inner.ends_ns[-1] - inner.ends_ns[0]) * 1e-9
    if not len(others) or (not len(last) and span_s > 2 * outer.turn_s):
        return False
    if not called and len(last) and np.median(inner.submits[last]) == np.median(others):  # the outer does nothing else
        return True
    least, most = (CALLED_OFTEN, NEARLY_ALL) if called else (OFTEN, MOST_OF)
    often = len(others) / max(len(last), 1) + 1
    return often >= least and bool(others.mean() >= most * inner.submits.mean())


def _is_called(outer: Turns, inner: Turns) -> bool:
    """Whether the inner loop is in a function that the outer one calls in each of its short turns. It is not, if that
    function's name is one of steps."""
    function = function_of(inner.place)[1]
    short = outer.turn_s <= SHORT_S and outer.recorded >= FEWEST
    elsewhere = bool(function) and function_of(inner.place) != function_of(outer.place)
    name = function.removesuffix(f".{CALL}").rpartition(".")[2]  # of its class, for objects that are called
    return short and elsewhere and not OF_STEPS.search(name)


def calling(trace: Trace, asked: str) -> Turns | None:
    """The loop that calls the function "train.py:step", or that is at the line "train.py:30" or around it. None if the
    recording does not tell it.

    Samples show from which lines a function is called. The loop around such a line is the innermost one that turns at
    its usual pace while the function runs; else it is one around the call of that code.
    """
    file, _, where = asked.rpartition(":")
    function = where.rpartition(".")[2]
    found = {loop.place: loop for loop in loops_of(trace, beneath=True)}

    def is_asked(place: str) -> bool:
        its_file, line, name = parts_of(place)
        return is_file(its_file, file) and (str(line) if where.isdigit() else name) == function

    if where.isdigit() and (at_line := next(filter(is_asked, found), None)) is not None:
        return found[at_line]
    within = set(filter(is_asked, trace.callers))
    places = within if where.isdigit() else set[str]().union(*(trace.callers[place] for place in within))
    while more := {place for place, by in trace.callers.items() if by and by <= within} - within:
        within = within | more
    lines = trace.ranges[np.isin([*trace.names, ""], [*within])[trace.ranges["name"]]]
    times_ns, seen = (lines["begin_ns"] + lines["end_ns"]) // 2, set[str]()
    loops = [(*parts_of(loop.place), number) for number, loop in enumerate(trace.loops)]
    while places:
        for its_file, line, name in sorted(map(parts_of, places)):
            around = (one for one in loops if one[::2] == (its_file, name) and one[1] <= line)
            for *_, number in sorted(around, reverse=True):
                if _turns_during(trace, number, times_ns):
                    return found.get(trace.loops[number].place)
        seen |= places
        places = set[str]().union(*(trace.callers.get(place, ()) for place in places)) - seen
    return None


def parts_of(place: str) -> tuple[str, int, str]:
    """File, line and function of a place like "train.py:30 main"."""
    match = PLACE.fullmatch(place)
    return (match["file"], int(match["line"]), match["function"]) if match else (place, 0, "")


def function_of(place: str) -> tuple[str, str]:
    """File and function of a place like "train.py:30 main"."""
    return parts_of(place)[::2]


def is_file(path: str, asked: str) -> bool:
    """Whether two paths are of one file, where one of them may lack folders."""
    shorter, longer = sorted((path, asked), key=len)
    return bool(shorter) and f"/{longer}".endswith(f"/{shorter}")


def _turns_during(trace: Trace, number: int, times_ns: IntArray) -> bool:
    """Whether most of these times lie in turns of a loop that take no longer than usual ones."""
    rows = _of_one_thread(trace.turns[trace.turns["loop"] == number])
    behind = np.searchsorted(rows["at_ns"], times_ns)
    behind = behind[(behind > 0) & (behind < len(rows))] - 1
    behind = behind[~rows["last"][behind]]
    turns_ns = np.diff(rows["at_ns"])
    return bool(len(behind)) and bool(np.median(turns_ns[behind]) <= USUAL * np.quantile(turns_ns, 0.4))


def in_pauses(
    trace: Trace, pauses: list[Pause], place: str, every: int, stalls: bool, longest: float = LONGEST
) -> list[npt.NDArray[np.float64]]:
    """Times in ns of one turn of the loop at a place in pauses of the recording, each the mean of several turns: a
    multiple of ``every``. Turns ``longest`` times as long as the usual one count if the steps have ``stalls``, too."""
    found, turns = [], np.sort(trace.turns, order="at_ns")
    numbers = [number for number, loop in enumerate(trace.loops) if loop.place == place]
    for number in numbers[:1]:
        rows = _of_one_thread(trace.turns[trace.turns["loop"] == number])
        turns_ns = np.concatenate([np.empty(0), *(np.diff(one["at_ns"]) for one in _stretches(rows))])
        longest_ns = longest * float(np.median(turns_ns)) if len(turns_ns) else np.inf
        for pause in pauses:
            inside = rows[(rows["at_ns"] > pause.begin_ns) & (rows["at_ns"] < pause.end_ns)]
            for stretch in _stretches(inside, longest_ns, turns, 1 if stalls else np.inf):
                at_once = every * max(min(AT_ONCE, len(stretch) // (STRETCHES * every)), 1)
                found.append(np.diff(stretch["at_ns"][::at_once]) / at_once)
    return found
