"""Finds the steps of a trace: from annotations of the program, turns of its loop, or the calls that repeat."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.units import counted
from microbench.diagnosis.events import stream_waits
from microbench.diagnosis.owners import compiler_of
from microbench.diagnosis.turns import LONGEST, Turns, calling, is_file, iterations, loops_of
from microbench.traces.trace import AUTOGRAD, MEMORIES, NONE, RANGE_KINDS, WORK_KINDS, Table, Trace, name_of

IntArray = npt.NDArray[np.int64]

DIFFERENT = 8  # calls that a step has if it is found without the waits of the program, or if it is the only one
FEWEST = 3  # the fewest steps that count as a repetition
COVERED = 0.6  # the share of the trace, or of the GPU's work, that annotated steps must cover
# So many first steps at most are left out if the others are nearly equal, and the last of these differs from them by so
# many times: it loads code, or its work ends a queue that is no longer filled.
EQUAL, ODD, MOST_ODD = 1.2, 1.4, 2
LIKE = 0.9  # the share of a step's calls that the next one must repeat
UNEQUAL, MOST_PARTS = 10, 8  # of so few annotated steps none submits so many times as much as another
MOST_PAIRS = 500  # of steps that are held against each other
REPEATED = 0.5  # the share of calls that must repeat in steps
# The share of the GPU's work that repeating calls have at least if they are the program and not a part of it. In 200
# public traces programs had 0.31 or more, layers and single phases 0.22 or less.
LARGE = 0.25
MOST_ENDED = 5  # annotated steps of which the last one counts, too
MANY, DENSE = 5, 0.8  # so many annotated steps are enough if they follow one another without a break, behind a warm-up
NEARLY_ALL = 0.9  # of the GPU's work is in a single region
STEPS_ALIKE = 0.5  # steps of which less recurs are no steps that a graph could replace
MINORITY = 0.5  # calls that repeat and have less of the kernels' time are the steps if no others have more
MANY_TURNS = 50  # of a loop that is no layer and may follow on a long start
SHORT_LOOP, LITTLE = 10, 0.02  # repetitions so few, of so little of the time, are no steps
MOST_UNLIKE = 2  # layers more or less that a backward pass has than the forward pass before it
MOST_TRIES = 8  # parts that repeat and are too little to be the program
AHEAD = 33  # a step may make the same call fewer than this many times
MOST_SHAPES = 16  # steps of this many kinds may take turns
SAME = 0.01  # shares of equal calls that differ by less are the same
CANDIDATES = 400  # distances between equal calls that are tried as a step's length
SAMPLED = 4096  # calls that show whether such a distance is worth a try
NUMBER = re.compile(r"\d+")
OPTIMIZER = "Optimizer.step#"
OF_PYTHON = re.compile(r"\bat::native::|^(?:triton|cupy|loop_\w*fusion|input_\w*fusion)_")  # kernels of its packages
# A function of Python in a trace of PyTorch: "train.py(20): step".
FUNCTION = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)")
# A pause between two calls of one thread is work of the program's own, which a graph does not remove, if it is this
# long. Optimizers and autograd engines take up to 0.6 ms between two launches (H200, a busy host).
PAUSE_S = 1e-3
# For a wait for something else than the GPU, such as a sleep, and where neither Python runs nor annotations name code.
SHORT_PAUSE_S = 5e-5


Source = Literal["annotations", "loop", "repetition", "region"]


class Steps(msgspec.Struct, frozen=True):
    """The whole steps of a trace, without the first, which often pays for what happens once, and without the last.

    ``begins_ns`` are the begins of each step's first work on the GPU, the step behind the last one included: one more
    than there are steps. ``calls`` are the places in Trace.calls at which these steps begin. ``every`` is the number of
    steps after which they are most alike: 4 where four shapes take turns. ``likeness`` is the share of a step's calls
    that the step ``every`` later repeats, with the same sizes; ``alike_next`` is that share for the next step.
    ``found`` says by what the steps were found; a "region" is a single annotation that holds the work. ``name`` is that
    of their annotations without its number, or the place of the loop. ``calls_of`` is the function, or the line, that
    was asked for, of which each step is a call. ``loops`` are the places of the other loops that submit work, and the
    time of a turn in s. It has first steps that were left out, and of few annotated steps what repeats in them, too.
    """

    begins_ns: IntArray
    calls: IntArray
    every: int
    likeness: float
    alike_next: float
    found: Source
    name: str = ""
    calls_of: str = ""
    loops: tuple[tuple[str, float], ...] = ()

    @property
    def count(self) -> int:
        """The number of whole steps."""
        return len(self.calls) - 1

    @property
    def recur(self) -> bool:
        """Whether one step stands for all, in what the host does too: a single region may do anything once."""
        return self.likeness >= STEPS_ALIKE and self.found != "region"

    @property
    def step_s(self) -> float:
        """The mean time of a step in s, as it was recorded."""
        return float(self.begins_ns[-1] - self.begins_ns[0]) / self.count * 1e-9

    @property
    def spread(self) -> float:
        """The median deviation of a step from the median step, as a share of it."""
        each = np.diff(self.begins_ns)
        middle = float(np.median(each))
        return float(np.median(np.abs(each - middle))) / middle if middle > 0 else 0.0


def find_steps(trace: Trace, asked: str = "") -> Steps | None:
    """The steps of the process that submits most work; None if nothing repeats.

    They are the calls of the function ``asked`` for, "train.py:step", or what the line "train.py:30" is in, or the
    annotations of that name, if the trace tells these.
    """
    tokens, loops = Tokens(trace), loops_of(trace)
    turning = iterations(trace, tokens.names[tokens.submits], loops)
    candidates = _annotated(trace, tokens)
    candidates += [_turning(trace, tokens, turns) for turns in turning]
    steps = None
    if asked:
        calls = calling(trace, asked) if ":" in asked else None
        wanted = [_turning(trace, tokens, calls)] if calls is not None else _called(trace, asked)
        if (steps := _first(trace, tokens, wanted)) is not None:
            steps = msgspec.structs.replace(steps, calls_of=asked)
    steps = steps or _first(trace, tokens, candidates)
    libraries = {turns.place for turns in turning if not turns.own}
    if steps is not None and steps.name in libraries and not steps.calls_of:
        steps = steps if steps.likeness >= REPEATED else None  # such as a compiler's, whose turns are no steps
    part = None
    if steps is None or (steps.count < FEWEST and not steps.calls_of):
        part = _first(trace, tokens, [one for one in _repeated(trace, tokens) if not _is_backward(trace, tokens, one)])
    if steps is None and part is not None and part.count < SHORT_LOOP:
        lasts_s = float(trace.work["end_ns"].max() - trace.work["begin_ns"].min()) * 1e-9
        part = part if part.count * part.step_s >= LITTLE * lasts_s else None  # else it is a part of the start
    if steps is None and part is not None and _is_compiling(trace, part):
        part = None
    steps = steps or part or _first(trace, tokens, _annotated(trace, tokens, single=True))
    if steps is None:
        return None
    own = (one for one in loops if one.own and (steps.found, steps.name) != ("loop", one.place))
    others = [(one.place, one.turn_s) for one in own if one.all_submits or one.turn_s > steps.step_s]
    if part is not None and 2 * part.step_s < steps.step_s:
        others.append(("a part that repeats", part.step_s))
    return msgspec.structs.replace(steps, loops=(*steps.loops, *others))


def _is_compiling(trace: Trace, steps: Steps) -> bool:
    """Whether most work of these steps is submitted in a compiler, or in an autotuner, which launches each kernel
    many times."""
    compiles = np.array([*map(bool, map(compiler_of, trace.names)), False])[trace.ranges["name"]]
    places = np.unique(trace.work["call"][trace.work["call"] != NONE])
    calls = trace.calls[places[(places >= steps.calls[0]) & (places < steps.calls[-1])]]
    within = 0
    for thread in np.unique(calls["thread"]):
        ranges = trace.ranges[compiles & (trace.ranges["thread"] == thread)]
        at_ns = calls["begin_ns"][calls["thread"] == thread]
        begun, ended = (np.searchsorted(np.sort(ranges[edge]), at_ns, "right") for edge in ("begin_ns", "end_ns"))
        within += int(np.count_nonzero(begun > ended))
    return bool(within > REPEATED * len(calls))


def runs_python(trace: Trace) -> bool:
    """Whether the trace shows that Python runs in the program."""
    if trace.format in ("PyTorch profiler", "XLA profiler") or "Python" in trace.versions:
        return True
    of_threads = any("python" in thread.name or thread.name.startswith("pt_") for thread in trace.threads)
    return of_threads or any(OF_PYTHON.search(name) for name in trace.names)


def pause_time(trace: Trace) -> float:
    """The least time in s between two calls that is the program's own work: annotations may be a framework's."""
    marked = (trace.ranges["kind"] == RANGE_KINDS.index("annotation")).any()
    return PAUSE_S if marked or runs_python(trace) else SHORT_PAUSE_S


def found_elsewhere(steps: Steps, parts: Iterable[Trace]) -> Steps:
    """The steps that repetition has found, with what else repeats in other parts of the trace, and its time."""
    lengths, others = [float(np.median(np.diff(steps.calls)))], []
    for part in parts:
        other = find_steps(part) if len(part.work) else None
        length = float(np.median(np.diff(other.calls))) if other is not None else 0.0
        if other is not None and all(abs(length - known) > SAME * known for known in lengths):
            lengths.append(length)
            others.append((f"{counted(round(length), 'other CUDA call')} that repeat, in", other.step_s))
    return msgspec.structs.replace(steps, loops=(*steps.loops, *others))


def _turning(trace: Trace, tokens: Tokens, turns: Turns) -> Found:
    """The first calls of the turns of a loop that submit work."""
    begins = np.searchsorted(trace.calls["begin_ns"], turns.ends_ns)
    first = np.searchsorted(np.flatnonzero(tokens.submits), begins)
    begins = begins[np.append(True, np.diff(first) > 0)]
    return Found(_all_turns(tokens.names, begins) if turns.cut else begins, "loop", turns.place)


def _all_turns(names: IntArray, begins: IntArray) -> IntArray:
    """The begins of a fast loop's turns, of which only some were noted.

    Others begin where calls follow as they do behind noted begins alone, as long as turns have as many calls as noted
    ones. If no number of calls tells the noted begins from other calls, these are all.
    """
    inside, ahead = np.arange(begins[0], begins[-1]), 1
    while ahead <= np.diff(begins).max(initial=0):
        found = np.flatnonzero(np.isin(names, names[begins[:-1]]))
        if np.array_equal(np.intersect1d(found, inside), begins[:-1]):
            lengths, noted = np.diff(found), np.diff(begins)
            others = np.flatnonzero((lengths < noted.min()) | (lengths > noted.max()))
            before, behind = others[found[others] < begins[0]], others[found[others] >= begins[-1]]
            return np.union1d(found[before.max(initial=-1) + 1 : behind.min(initial=len(found)) + 1], begins)
        names, ahead = _mixed(names + _mixed(np.append(names[ahead:], np.zeros(ahead, np.int64)))), 2 * ahead
    return begins


def _called(trace: Trace, asked: str) -> list[Found]:
    """The first CUDA calls of each call of a function of Python, where the trace has its calls, or of each range that
    an annotation names."""
    file, _, where = asked.rpartition(":")
    matches = [FUNCTION.fullmatch(name) for name in trace.names]
    named = [
        match is not None and is_file(match["file"], file) and where in (match["line"], match["function"])
        for match in matches
    ]
    ranges = trace.ranges[np.array([*named, False])[trace.ranges["name"]]]
    marks = trace.ranges[trace.ranges["kind"] == RANGE_KINDS.index("annotation")]
    marks = marks[np.array([*(asked in (name, unnumbered(name)) for name in trace.names), False])[marks["name"]]]
    if marked := len(marks) > 0:
        ranges = marks
    if not len(ranges):
        return []
    outermost = np.append(True, ranges["begin_ns"][1:] >= np.maximum.accumulate(ranges["end_ns"])[:-1])
    begins_ns, count = ranges["begin_ns"][outermost], np.count_nonzero(outermost)
    behind = ranges["end_ns"].max() <= trace.calls["begin_ns"][-1]
    ended = marked and (count < FEWEST or (count <= MOST_ENDED and behind))
    if ended:  # a few have an end of their own
        begins_ns = np.append(begins_ns, ranges["end_ns"].max())
    begins = np.minimum(np.searchsorted(trace.calls["begin_ns"], begins_ns), len(trace.calls) - 1)
    begins, place = np.unique(begins, return_index=True)
    return [Found(begins, "annotations", asked, begins_ns[place] if ended else None, least=1)]


def _first(trace: Trace, tokens: Tokens, candidates: list[Found]) -> Steps | None:
    """The first candidate that has steps."""
    return next((steps for one in candidates if (steps := _steps(trace, tokens, one)) is not None), None)


def unnumbered(name: str) -> str:
    """The name of an annotation without the number of its step: "ProfilerStep" of "ProfilerStep#3"."""
    return NUMBER.sub("", name).strip(" #_-")


class Tokens:
    """Each call as two numbers that are equal for equal calls: with the sizes of its work (``whole``) and without."""

    def __init__(self, trace: Trace) -> None:
        self.first_ns = np.full(len(trace.calls), np.iinfo(np.int64).max)  # begin of each call's first work
        submitted = trace.work[trace.work["call"] != NONE]
        submitted["bytes"][submitted["kind"] == WORK_KINDS.index("kernel")] = NONE  # an all-to-all's differ each time
        np.minimum.at(self.first_ns, submitted["call"], submitted["begin_ns"])
        self.submits = self.first_ns < np.iinfo(np.int64).max
        self.names = trace.calls["name"].astype(np.int64)
        self.whole = self.names.copy()
        for field in ("name", "blocks", "threads", "bytes", "device"):
            np.add.at(self.whole, submitted["call"], _mixed(submitted[field].astype(np.int64)))
            self.whole = _mixed(self.whole)
        of = submitted["name"].astype(np.int64) << 8 | submitted["device"]
        np.add.at(self.names, submitted["call"], _mixed(of))
        self.names = _mixed(self.names)

    def beside(self, calls: IntArray) -> IntArray:
        """What each call stands between: its number, those of the two calls before it, and that of the next one, as an
        array of shape (calls, 4). The numbers include the sizes of the calls' work, unless sizes differ each time."""
        sizes_recur = len(np.unique(self.whole)) < 2 * len(np.unique(self.names))
        padded = np.pad(self.whole if sizes_recur else self.names, 2)
        found: IntArray = padded[calls[:, None] + np.arange(4)]
        return found


def _mixed(values: IntArray) -> IntArray:
    """A number that differs for different values: they are multiplied by a large odd constant and folded."""
    with np.errstate(over="ignore"):
        product = (values + 1) * np.int64(-7046029254386353131)
    return product ^ (product >> 29)


class Found(NamedTuple):
    """The calls at which steps begin, and of few annotated ones when each begins and the last ends."""

    begins: IntArray
    source: Source
    name: str = ""
    edges_ns: IntArray | None = None
    least: int = DIFFERENT  # calls that submit work, of few annotated steps


def _annotated(trace: Trace, tokens: Tokens, *, single: bool = False) -> list[Found]:
    """The first calls of ranges like ProfilerStep#3: they follow one another, and hold most of the time or of the work.

    One or two of them have to be numbered, or PyTorch's steps of an optimizer, whose parameters repeat within. The last
    of these begins is that of the first call behind them. ``single`` asks for ranges of one name that hold the work.
    """
    annotations = trace.ranges[trace.ranges["kind"] == RANGE_KINDS.index("annotation")]
    if not len(annotations):
        return []
    calls = trace.calls[~_waits(trace)]  # a host that runs ahead waits most of the time, outside of its steps
    if not len(calls):
        return []
    waited_ns = (trace.calls["end_ns"] - trace.calls["begin_ns"])[_waits(trace)].sum()
    span_ns = int(calls["end_ns"].max() - calls["begin_ns"][0] - waited_ns)
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, (name, thread) in enumerate(zip(annotations["name"], annotations["thread"], strict=True)):
        if not name_of(trace, name).startswith(("nccl", "## Call Compiled")):  # a library's own ranges of its calls
            groups[NUMBER.sub("", name_of(trace, name)), int(thread)].append(place)
    work = trace.work[trace.work["call"] != NONE]
    at_ns, lasts_ns = trace.calls["begin_ns"][work["call"]], work["end_ns"] - work["begin_ns"]
    middle_ns, sorted_ns = np.median(at_ns) if len(at_ns) else 0, np.sort(at_ns)
    found: list[tuple[float, Found]] = []
    for (name, _), places in groups.items():
        ranges = annotations[places]
        apart = np.all(ranges["begin_ns"][1:] >= ranges["end_ns"][:-1])
        submits = np.diff(np.searchsorted(sorted_ns, [ranges["begin_ns"], ranges["end_ns"]]), axis=0)[0]
        ranges = ranges[submits > 0]  # a server's idle turns are no steps
        if not len(ranges):
            continue
        covered = float((ranges["end_ns"] - ranges["begin_ns"]).sum()) / max(span_ns, 1)
        begins_ns, few = ranges["begin_ns"], len(ranges) < FEWEST
        works = (at_ns >= begins_ns[-1]) & (at_ns < ranges["end_ns"][-1])  # the last one
        ended = len(ranges) <= MOST_ENDED and ranges["end_ns"][-1] <= trace.calls["begin_ns"][-1] and works.any()
        ended |= few
        if ended:
            begins_ns = np.append(begins_ns, ranges["end_ns"][-1])
        numbered = name != name_of(trace, int(annotations["name"][places[0]])) or name.startswith(OPTIMIZER)
        if not apart or (len(ranges) > 1 if single else few and not numbered):
            continue
        if single and not ranges["begin_ns"][0] <= middle_ns < ranges["end_ns"][0]:
            continue  # it does not hold half of the work
        place = np.maximum(np.searchsorted(ranges["begin_ns"], at_ns, "right") - 1, 0)
        inside = (at_ns >= ranges["begin_ns"][place]) & (at_ns < ranges["end_ns"][place])
        share = float(lasts_ns[inside].sum()) / max(lasts_ns.sum(), 1)
        whole_ns = ranges["end_ns"][-1] - ranges["begin_ns"][0]
        dense = len(ranges) >= MANY and (ranges["end_ns"] - ranges["begin_ns"]).sum() >= DENSE * whole_ns
        if share >= (NEARLY_ALL if single else LARGE) and (dense or max(covered, share) >= COVERED):
            begins = np.searchsorted(trace.calls["begin_ns"], begins_ns)
            begins = np.minimum(begins, len(trace.calls) - 1)
            submits = np.diff(np.searchsorted(np.flatnonzero(tokens.submits), begins[: len(ranges)]))
            if not few and len(ranges) <= MOST_PARTS and submits.max() > UNEQUAL * max(submits.min(), 1):
                continue  # parts of the program
            source: Source = "region" if single else "annotations"
            one = Found(begins, source, unnumbered(name), begins_ns if ended else None, DIFFERENT if few else 1)
            found.append((covered, one))
    return [one for _, one in sorted(found, key=lambda each: -each[0])]


def _repeated(trace: Trace, tokens: Tokens) -> list[Found]:
    """The calls that repeat. If that is little of the work, such as the layers of one prefill, they are those before or
    behind them if these have more of it."""
    found = _repeated_at(trace, tokens, np.arange(len(trace.calls)))
    if found and (most := _kernel_share(trace, found[0])) < MINORITY:
        first, last = found[0].begins[[0, -1]].tolist()
        for places in (np.arange(first), np.arange(last, len(trace.calls))):
            other = _repeated_at(trace, tokens, places)
            if other and (share := _kernel_share(trace, other[0])) > most:
                found, most = other, share
    return found


def _is_backward(trace: Trace, tokens: Tokens, one: Found) -> bool:
    """Whether these are the layers of a single backward pass of PyTorch: all from a thread of its own, while another
    thread has submitted much of the kernels' time before, and nothing among them. That thread is named so, or what the
    other one has submitted are as many layers."""
    first, last = one.begins[[min(1, len(one.begins) - 1), -1]].tolist()  # the first may begin before
    threads = np.unique(trace.calls["thread"][first:last])
    if trace.format != "PyTorch profiler" or len(threads) != 1:
        return False
    kernels = trace.work[(trace.work["kind"] == WORK_KINDS.index("kernel")) & (trace.work["call"] != NONE)]
    lasts, others = kernels["end_ns"] - kernels["begin_ns"], trace.calls["thread"][kernels["call"]] != threads[0]
    if lasts[others & (kernels["call"] < first)].sum() <= LARGE * lasts.sum():
        return False
    if AUTOGRAD in trace.threads[threads[0]].name:
        return True
    before = _repeating(trace, tokens, _waits(trace), np.flatnonzero(tokens.submits[:first]), 0, least=0.0)
    return bool(before) and abs(len(before[0].begins) - len(one.begins)) <= MOST_UNLIKE


def _kernel_share(trace: Trace, one: Found) -> float:
    """The share of the time of all kernels, and of graphs recorded as one piece, that those of these steps have."""
    kernels = trace.work[np.isin(trace.work["kind"], [WORK_KINDS.index(kind) for kind in ("kernel", "graph")])]
    inside = (kernels["call"] >= one.begins[0]) & (kernels["call"] < one.begins[-1])
    lasts = kernels["end_ns"] - kernels["begin_ns"]
    return float(lasts[inside].sum() / max(lasts.sum(), 1))


def _repeated_at(trace: Trace, tokens: Tokens, places: IntArray) -> list[Found]:
    """The longest stretch of the calls at these places that repeat. If without waits and copies to the host a part of
    it repeats by itself, with so many different calls that it is no layer, it is the step: a program may wait or read a
    number in some alone. If nothing repeats, it is that of calls that submit work, where these are nearly all.
    """
    work = trace.work
    looks = _waits(trace)
    looks[work["call"][to_host(work) & (work["call"] != NONE)]] = True
    whole = _repeating(trace, tokens, looks, places)
    parts = _repeating(trace, tokens, looks, places[~looks[places]]) if looks[places].any() else []
    if whole and parts:
        (longer, *_), (shorter, *_) = whole[0], parts[0]
        submits = np.append(0, np.cumsum(tokens.submits & ~looks))
        more, fewer = (float(np.median(np.diff(submits[begins]))) for begins in (longer, shorter))
        step = tokens.names[shorter[0] : shorter[1]][tokens.submits[shorter[0] : shorter[1]]]
        if more >= 2 * fewer > 0 and more % fewer == 0 and len(np.unique(step)) >= DIFFERENT:
            return parts
    submits = places[tokens.submits[places]]
    if whole and (alone := _alone_in(trace, tokens, looks, submits, whole[0].begins)):
        return alone
    if whole or parts or len(submits) in (len(places), np.count_nonzero(~looks[places])):  # the same calls as before
        return whole or parts
    return [
        one for one in _repeating(trace, tokens, looks, submits)
        if np.diff(np.searchsorted(submits, one.begins))[:1].sum() * len(one.begins) >= LIKE * len(submits)
        or _kernel_share(trace, one) >= LIKE
    ]  # fmt: skip


def _alone_in(
    trace: Trace, tokens: Tokens, looks: npt.NDArray[np.bool_], submits: IntArray, begins: IntArray
) -> list[Found]:
    """What repeats by the calls that submit work, if each of the steps that begin there is several of it, and each of
    these copies something to the host: then others of the program's calls differ from one to the next."""
    alone = _repeating(trace, tokens, looks, submits)
    if not alone or len(alone[0].begins) < 2:
        return []
    several, one = (np.median(np.diff(np.searchsorted(submits, each))) for each in (begins, alone[0].begins))
    copies = np.unique(trace.work["call"][to_host(trace.work) & (trace.work["call"] != NONE)])
    each_copies = (np.diff(np.searchsorted(copies, alone[0].begins)) > 0).all()
    return alone if several >= 2 * one > 0 and several % one == 0 and each_copies else []


def _repeating(
    trace: Trace, tokens: Tokens, looks: npt.NDArray[np.bool_], places: IntArray, tries: int = MOST_TRIES,
    least: float = LARGE,
) -> list[Found]:  # fmt: skip
    """The longest stretch of the calls at these places that repeat, cut behind the wait or at the pause that comes once
    in each step.

    Where what repeats is too little of the program, the larger part beside it is tried, ``tries`` times: that is most.
    Where streams wait for each other, the cut is where as few of them as possible are between an event and the work
    that waits for it. Where long pauses come after every so many repetitions, these are one step.
    """
    calls = trace.calls
    if len(places) < FEWEST:
        return []
    before = np.append(0, places[:-1] + 1)  # of each place the first call behind the one before it
    pauses_ns = np.zeros(len(calls))
    pauses_ns[1:] = calls["begin_ns"][1:] - np.maximum.accumulate(calls["end_ns"])[:-1]
    pauses_ns = np.maximum.reduceat(pauses_ns, before)
    waited = np.append(0, np.cumsum(looks))
    waits, between = waited[places] > waited[np.append(0, places[:-1])], _between_streams(trace)[places]
    found: list[Found] = []
    for values in (tokens.whole[places], tokens.names[places]):
        length = _period(values)
        if length is None:
            continue
        begin, end = _stretch(values, length)
        if begin == end:
            continue
        if not _is_most(trace, places[begin], places[end - 1], least):
            rest = max(places[:begin], places[end:], key=len)
            others = _repeating(trace, tokens, looks, rest, tries - 1, max(least, MINORITY)) if tries else []
            if others or not _is_long_loop(trace, looks, places[begin:end], (end - begin) // length):
                return others
        length *= _between_pauses(pauses_ns[begin:end], length)
        offsets = range(begin, begin + min(length, (end - begin) // FEWEST))
        if not offsets:
            continue
        pause = {offset: float(np.median(pauses_ns[offset:end:length])) for offset in offsets}
        behind = {offset: bool(waits[offset:end:length].mean() > 1 - LIKE) for offset in offsets}
        open_ = {offset: float(np.median(between[offset:end:length])) for offset in offsets}
        first = max(offsets, key=lambda offset: (behind[offset], -open_[offset], pause[offset]))
        found.append(Found(places[first:end:length], "repetition"))
    return found


def _is_most(trace: Trace, first: int, last: int, least: float, uploads: bool = True) -> bool:
    """Whether the calls from ``first`` to ``last`` are enough of the program to hold its steps: they submit a large
    part of the work of their GPUs, and a kernel unless they take that part of the time. On request copies before them,
    which bring the data, do not count."""
    work, calls = trace.work[trace.work["call"] != NONE], trace.calls
    inside, lasts = (work["call"] >= first) & (work["call"] <= last), work["end_ns"] - work["begin_ns"]
    theirs, kernels = np.isin(work["device"], work["device"][inside]), work["kind"] == WORK_KINDS.index("kernel")
    theirs &= uploads | kernels | (work["call"] >= first)
    span_ns = calls["end_ns"][last] - calls["begin_ns"][first]
    runs = not kernels.any() or bool(kernels[inside].any())
    long = bool(span_ns >= least * (calls["end_ns"].max() - calls["begin_ns"][0]))
    return bool(lasts[inside].sum() >= least * lasts[theirs].sum()) and (runs or long)


def _is_long_loop(trace: Trace, looks: npt.NDArray[np.bool_], places: IntArray, turns: int) -> bool:
    """Whether the calls at these places are the program's loop, however little of its work they submit.

    Each turn has a kernel and a look at results, which no layer has, and there are many turns, or only data is brought
    before.
    """
    kernels = np.unique(trace.work["call"][trace.work["kind"] == WORK_KINDS.index("kernel")])
    least = min(np.isin(places, kernels).sum(), np.count_nonzero(looks[places]))
    many = turns >= MANY_TURNS or _is_most(trace, places[0], places[-1], LARGE, uploads=False)
    return bool(many and least >= turns)


def to_host(work: Table) -> npt.NDArray[np.bool_]:
    """Which pieces of work are copies from a GPU to the host."""
    device = MEMORIES.index("device")
    copies = work["kind"] == WORK_KINDS.index("copy")
    found: npt.NDArray[np.bool_] = copies & (work["source"] == device) & (work["target"] != device)
    return found


def _between_streams(trace: Trace) -> IntArray:
    """For each call, how many events were recorded before it that hold back work of another stream from it on."""
    change = np.zeros(len(trace.calls) + 2, np.int64)
    work = trace.work[trace.work["call"] != NONE]
    submitted = {
        stream: np.sort(work["call"][work["stream"] == stream]) for stream in np.unique(work["stream"]).tolist()
    }
    for wait in stream_waits(trace):
        calls = submitted.get(int(wait["stream"]), np.empty(0, np.int64))
        place = int(np.searchsorted(calls, wait["call"]))
        if place < len(calls):
            change[wait["on_call"] + 1] += 1
            change[calls[place] + 1] -= 1
    return np.cumsum(change)[:-2]


def _between_pauses(pauses_ns: npt.NDArray[np.float64], length: int) -> int:
    """The number of repetitions from one long pause to the next; 1 if there is no usual number."""
    apart = np.diff(np.flatnonzero(pauses_ns > PAUSE_S * 1e9))
    if len(apart) < FEWEST:
        return 1
    usual = int(np.median(apart))
    return usual // length if usual % length == 0 and np.mean(apart == usual) > REPEATED else 1


def _waits(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which calls only wait for the GPU."""
    waits: npt.NDArray[np.bool_] = np.array(["Synchronize" in name for name in (*trace.names, "")])
    return np.take(waits, trace.calls["name"])


def _period(values: IntArray) -> int | None:
    """The number of calls after which they repeat: the shortest that explains what repeats as well as the best.

    What does not repeat, such as loading code, is like itself after one of these numbers by chance, so it is left out.
    """
    order = np.lexsort((np.arange(len(values)), values))
    apart = np.concatenate(
        [(order[ahead:] - order[:-ahead])[values[order[ahead:]] == values[order[:-ahead]]] for ahead in range(1, AHEAD)]
    )
    distances, counts = np.unique(apart[apart <= len(values) // FEWEST], return_counts=True)
    likely = distances[np.argsort(-counts, kind="stable")[:CANDIDATES]]
    # A call that comes once in a step says its length better than those of a part that a step repeats. So each call's
    # most frequent distance counts, the first of equal ones.
    size, same = len(values), np.flatnonzero(np.diff(values[order]) == 0)
    call = np.cumsum(np.append(0, np.diff(values[order]) != 0))[same]
    usual, first, often = np.unique(call * size + order[same + 1] - order[same], return_index=True, return_counts=True)
    usual = usual[np.lexsort((first, -often, usual // size))]
    voted, first, often = np.unique(
        usual[np.unique(usual // size, return_index=True)[1]] % size, return_index=True, return_counts=True
    )
    voted = voted[np.lexsort((first, -often))[:CANDIDATES]]
    likely = np.union1d(likely, voted[voted <= size // FEWEST])
    if size > SAMPLED:  # without distances at which some of the calls are hardly ever equal
        some = np.random.default_rng(0).integers(0, size, SAMPLED)
        equal = [np.mean(values[(held := some[some < size - one])] == values[held + one]) for one in likely.tolist()]
        likely = likely[np.array(equal) > REPEATED / 2]
    unlike = {int(length): float(np.mean(values[:-length] != values[length:])) for length in likely}
    if not unlike or min(unlike.values()) > 1 - REPEATED:
        return None
    best = min(unlike, key=lambda length: (unlike[length], length))
    begin, end = _stretch(values, best)
    own = values[begin:end] if begin < end else values
    most = float(np.mean(own[:-best] != own[best:])) + 0.5 / max(best, 2)
    return min(
        length
        for length in unlike
        if length == best or (length < len(own) and np.mean(own[:-length] != own[length:]) <= most)
    )


def _stretch(values: IntArray, length: int) -> tuple[int, int]:
    """The longest stretch in which LIKE of any ``length`` calls are equal to those ``length`` later."""
    equal = np.concatenate([[0], np.cumsum(values[:-length] == values[length:])])
    good = np.concatenate([[False], equal[length:] - equal[:-length] >= LIKE * length, [False]])
    edges = np.flatnonzero(good[1:] != good[:-1])
    if not len(edges):
        return 0, 0
    begins, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - begins))
    return int(begins[longest]), int(ends[longest] - 1 + 2 * length)


def _steps(trace: Trace, tokens: Tokens, one: Found) -> Steps | None:
    """The steps that begin at these calls, each at the first work that one of its calls submitted."""
    begins, found, name, edges_ns, least = one
    submitting = np.flatnonzero(tokens.submits)
    if len(begins) > FEWEST + 1 + (edges_ns is not None):  # without the first step
        begins, edges_ns = begins[1:], edges_ns[1:] if edges_ns is not None else None
    marked = found in ("annotations", "region")
    fewest = 2 if marked else FEWEST
    if len(begins) < fewest or not len(submitting):
        return None
    begins_ns = np.append(tokens.first_ns, int(trace.work["end_ns"].max()))[
        np.append(submitting, len(trace.calls))[np.searchsorted(submitting, begins)]
    ]
    if not marked:  # a break between two phases is no step, unless turns of one loop have several
        apart_ns = np.diff(begins_ns)
        pairs_ns = (apart_ns[1:] + apart_ns[:-1]) / 2  # two streams may begin a step each at the same time
        usual_ns = max(np.median(apart_ns), np.median(pairs_ns)) if len(pairs_ns) else np.median(apart_ns)
        breaks = np.flatnonzero(apart_ns > LONGEST * usual_ns)
        breaks = breaks[: 0 if found == "loop" and len(breaks) >= FEWEST else None]
        longest = max(np.split(np.arange(len(begins)), breaks + 1), key=len)
        begins, begins_ns = begins[longest], begins_ns[longest]
    if edges_ns is not None:
        several = name == "ProfilerStep" and len(begins) > 2  # PyTorch's profiler counts the program's own steps
        least = 1 if several else least
        if np.count_nonzero(tokens.submits[begins[0] : begins[-1]]) < least:
            return None
        begins_ns = _lasting(trace.work, begins, edges_ns)
    if len(begins) < fewest or np.any(np.diff(begins_ns) <= 0) or np.any(np.diff(begins) <= 0):  # one has no call
        return None
    each_ns = np.diff(begins_ns)
    own = trace.work[(trace.work["call"] >= begins[0]) & (trace.work["call"] < begins[-1])]
    longest_ns = (own["end_ns"] - own["begin_ns"]).max(initial=0)
    if not marked and len(each_ns) <= FEWEST + 1 and longest_ns > ODD * each_ns.min():
        return None  # a few of a queue that is not yet full: their work ends far behind them
    odd = next((count for count in range(1, MOST_ODD + 1) if _is_odd(each_ns[:count], each_ns[count:])), 0)
    made = _made(tokens, begins_ns[odd:], begins[odd:].astype(np.int64), found, name)
    if not odd:
        return made
    left_out = "the first step, left out," if odd == 1 else f"the first {odd} steps, left out, together"
    return msgspec.structs.replace(made, loops=((left_out, float(each_ns[:odd].sum()) * 1e-9),))


def part_of(trace: Trace, steps: Steps, first: int, last: int) -> Steps:
    """Some of the steps: from number ``first`` to the one before number ``last``."""
    begins_ns, calls = steps.begins_ns[first : last + 1], steps.calls[first : last + 1]
    some = _made(Tokens(trace), begins_ns, calls, steps.found, steps.name)
    return msgspec.structs.replace(some, calls_of=steps.calls_of, loops=steps.loops)


def _made(tokens: Tokens, begins_ns: IntArray, begins: IntArray, found: Source, name: str) -> Steps:
    """Steps with how alike they are."""
    most = max(min(MOST_SHAPES, (len(begins) - 1) // 2), 1)
    alike = [_likeness(tokens.whole, begins, every) for every in range(1, most + 1)]
    every = next(place for place, share in enumerate(alike, start=1) if share >= max(alike) - SAME)
    return Steps(
        begins_ns=begins_ns,
        calls=begins,
        every=every,
        likeness=alike[every - 1],
        alike_next=alike[0],
        found=found,
        name=name,
    )


def _lasting(work: Table, begins: IntArray, edges_ns: IntArray) -> IntArray:
    """When the steps of a few annotations begin, and the last one ends: the GPU may still be busy with what came before
    them, and with their own work behind them."""
    own = work[(work["call"] >= begins[0]) & (work["call"] < begins[-1])]
    work, found = work[work["device"] == own["device"][0]], []
    for call, edge_ns in zip(begins[:-1].tolist(), edges_ns[:-1].tolist(), strict=True):
        begin_ns = int(own["begin_ns"][own["call"] >= call].min(initial=np.iinfo(np.int64).max))
        before_ns = work["end_ns"][(work["call"] < call) & (work["begin_ns"] < begin_ns)].max(initial=0)
        found.append(max(edge_ns, min(begin_ns, int(before_ns))))
    return np.array([*found, max(int(edges_ns[-1]), int(own["end_ns"].max()))])


def _is_odd(first_ns: IntArray, others_ns: IntArray) -> bool:
    """Whether the last of these first steps takes far more or less than the others, which all take about as long."""
    if len(others_ns) < 2 or others_ns.max() > EQUAL * others_ns.min():
        return False
    return not 1 / ODD <= first_ns[-1] / np.median(others_ns) <= ODD


def _likeness(values: IntArray, begins: IntArray, every: int) -> float:
    """The mean share of a step's calls that the step ``every`` later has at the same place.

    Of steps with unequal numbers of calls it is the share that the later one has anywhere.
    """
    lengths = np.diff(begins)
    if np.all(lengths == lengths[0]):
        steps = values[begins[0] : begins[-1]].reshape(-1, lengths[0])
        return float(np.mean(steps[:-every] == steps[every:])) if len(steps) > every else 1.0
    shares = []
    for step in range(0, len(begins) - 1 - every, max(len(begins) // MOST_PAIRS, 1)):
        own, other = (values[begins[one] : begins[one + 1]] for one in (step, step + every))
        _, both = np.unique(np.concatenate([own, other]), return_inverse=True)
        counts = (np.bincount(one, minlength=len(both)) for one in (both[: len(own)], both[len(own) :]))
        shares.append(float(np.minimum(*counts).sum()) / max(len(own), len(other), 1))
    return float(np.mean(shares)) if shares else 1.0
