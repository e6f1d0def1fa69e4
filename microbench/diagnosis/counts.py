"""Counts what a step submits and waits for: figures that no clock decides, the same on a quiet machine and a busy one.

A count is that of the usual step: the median over all steps of a trace. What only some steps do is kept by its rate.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.errors import UsageError
from microbench.core.units import plain, size
from microbench.diagnosis.host_time import FIRST_NS, LAST_NS, LINE_OF_CODE, Slices, called_from, slices
from microbench.diagnosis.kernel_names import Family, bare, family
from microbench.diagnosis.owners import FUNCTION, OWN, owner_of
from microbench.diagnosis.recorded import ALIKE
from microbench.diagnosis.steps import Steps, Tokens
from microbench.traces.trace import BACKWARD_OF, MAIN_AT, MEMORIES, NONE, RANGE_KINDS, WORK_KINDS, Trace, name_of

IntArray = npt.NDArray[np.int64]
OPERATOR = RANGE_KINDS.index("operator")
BoolArray = npt.NDArray[np.bool_]
Rows = dict[str, npt.NDArray[np.float64]]  # by name the counts of each step

FORMAT = "microbench counts 1"
# What is counted: the name of the figure, and its words.
FIGURES: Mapping[str, str] = {
    "launches": "launches", "replays": "graph launches", "graphs": "graphs made", "updates": "graphs updated",
    "kernels": "kernels", "kernels_in_graphs": "kernels in graphs", "waits": "waits for the GPU",
    "stream_waits": "waits of streams for events", "copies": "copies", "pageable": "pageable copies",
    "blocking_copies": "copies that block the host", "memsets": "memsets", "allocations": "allocations by the driver",
    "frees": "frees by the driver", "pool_allocations": "allocations from the driver's pool",
    "modules": "modules loaded", "streams": "streams made", "events": "events made", "records": "events recorded",
    "host_functions": "host functions",
}  # fmt: skip
# The figure that a CUDA call counts for, the first whose pattern its name has.
CALLS = tuple(
    (figure, re.compile(pattern))
    for figure, pattern in (
        ("replays", r"GraphLaunch"),
        ("graphs", r"GraphInstantiate"),
        ("updates", r"GraphExec\w*(?:Update|SetParams)"),
        ("host_functions", r"LaunchHostFunc"),
        ("launches", r"Launch"),
        ("waits", r"Synchronize"),
        ("stream_waits", r"StreamWaitEvent"),
        ("blocking_copies", r"Memcpy(?!.*(?:Async|Batch))"),
        ("modules", r"(?:Module|Library)Load"),
        ("pool_allocations", r"(?:Malloc|MemAlloc)\w*Async"),
        ("allocations", r"Malloc|MemAlloc|HostAlloc|HostRegister|MemCreate"),
        ("frees", r"(?:cudaFree|MemFree|MemRelease|HostUnregister)(?!\w*Async)"),
        ("streams", r"StreamCreate"),
        ("events", r"EventCreate"),
        ("records", r"EventRecord"),
    )
)
# Figures whose places are always kept. Of the first two, which are many, only those of steps and at lines of code are.
MANY = ("launches", "copies")
PLACED = (*MANY, "waits", "blocking_copies", "pageable", "graphs", "updates", "allocations", "frees", "modules")
CHOSEN = ("cuBLAS", "cuDNN", "attention", "NCCL")  # libraries that choose kernels by the GPU
REDUCES = "at::native::reduce_kernel"  # as these libraries do, it clears memory first where a GPU has many SMs
# Kinds of steps take turns if, after so many steps, this share of the calls recurs, as often as this.
IDENTICAL, FEWEST = 0.995, 3
LONGEST_PLACE, LONGEST_NAME = 120, 1000
ONE_CALL = "one call"
DECIDING, NEAR_NS = 20, 10_000  # steps that decide which line a call is in; a sample so far away counts for a quarter
Number = int | float


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU ran, which others may do in other kernels: the ``names`` of each family with their counts, the
    ``extra`` kernels and memsets that libraries added there, and how many kernels were shorter than a launch."""

    names: Mapping[str, Mapping[str, Number]] = {}
    extra: Mapping[str, Number] = {}
    shorter_than_a_launch: Number = 0


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a step.

    ``figures`` has what is not 0 of: launches, replays, graphs, updates, kernels, kernels_in_graphs, waits,
    stream_waits, copies, pageable, blocking_copies, memsets, allocations, frees, pool_allocations, modules, streams,
    events, records, host_functions. ``kernels`` are by family, in graphs or not, ``copies`` by kind and size. Only
    these are compared. ``libraries`` has the kernels of each library. ``places`` says by figure where in the program
    its calls are, a step. ``some`` is what less than half of the steps do beyond the usual step, by its mean. ``seen``
    is by the name of the GPU. ``steps`` of them were counted, 0 for a whole trace without steps, and ``of`` says what a
    step is. ``bare`` says that the names of kernels lack the arguments of templates.
    """

    figures: Mapping[str, Number]
    kernels: Mapping[str, Number] = {}
    copies: Mapping[str, Number] = {}
    libraries: Mapping[str, Number] = {}
    places: Mapping[str, Mapping[str, Number]] = {}
    some: Mapping[str, Number] = {}
    seen: Mapping[str, Seen] = {}
    steps: int = 0
    of: str = ""
    bare: bool = False
    format: str = FORMAT

    @property
    def in_graphs(self) -> float | None:
        """The share of kernels that graphs hold; None without kernels."""
        kernels = self.figures.get("kernels", 0)
        return self.figures.get("kernels_in_graphs", 0) / kernels if kernels else None


def written(counts: Counts, before: Counts | None = None) -> bytes:
    """The counts as JSON, sorted. What other GPUs have shown ``before`` stays."""
    if before is not None:
        counts = msgspec.structs.replace(counts, seen={**before.seen, **counts.seen})
    return msgspec.json.format(msgspec.json.encode(counts, order="sorted"), indent=2) + b"\n"


def read_counts(data: bytes, name: str) -> Counts:
    """Counts from what ``written`` made. Raises UsageError for anything else."""
    try:
        found = msgspec.json.decode(data, type=Counts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{plain(name)} holds no counts: {plain(error)}", "write it again from a trace") from None
    if found.format != FORMAT:
        raise UsageError(f"{plain(name)} is not of the form {FORMAT}", "write it again from a trace")
    return found


def are_counts(head: bytes) -> bool:
    """Whether the first bytes of a file are those of counts, whose keys are sorted."""
    return re.match(rb'\s*\{\s*"bare":\s*(?:true|false),\s*"copies":', head) is not None


def number(value: float) -> Number:
    """A count without needless decimals."""
    return int(value) if value == int(value) else round(float(value), 4)


def count_steps(trace: Trace, steps: Steps | None, launch_s: float = 0.0) -> Counts:
    """The counts of the steps of a trace; of all of it without steps. A kernel shorter than ``launch_s`` is shorter
    than its launch."""
    return Counting(trace, steps).counts(launch_s)


def count_nodes(nodes: Iterable[tuple[str, str, int]], waits: Sequence[str] = ()) -> Counts:
    """The counts of a call whose work is known. A node is a kind (kernel, memcpy, memset), a name, and how often it is
    submitted; ``waits`` are the calls that wait.

    Memsets of libraries are counted too: nothing tells them from the program's own.
    """
    figures, kernels, libraries, extra = (Counter[str]() for _ in range(4))
    exact: dict[str, Counter[str]] = {}
    for kind, name, count in nodes:
        if kind != "kernel":
            figures[{"memcpy": "copies", "memset": "memsets"}.get(kind, "host_functions")] += count
            continue
        found = family(name)
        if found.library in CHOSEN:
            exact.setdefault(found.name, Counter())[plain(name, LONGEST_NAME)] += count
        if found.extra:
            extra[found.name] += count
            continue
        kernels[found.name] += count
        libraries[found.library] += count
        figures["kernels"] += count
        figures["launches"] += count
    if waits:
        figures["waits"] = len(waits)
    return Counts(
        figures=figures, kernels=kernels, libraries=libraries, steps=1, of=ONE_CALL,
        places={"waits": Counter(waits)} if waits else {}, seen={"": Seen(names=exact, extra=extra)},
    )  # fmt: skip


def usual_of(several: Sequence[Counts]) -> Counts:
    """The usual counts of several recordings of one call each: the median of each count."""

    def usual(tables: Sequence[Mapping[str, Number]]) -> dict[str, Number]:
        names = sorted({name for table in tables for name in table})
        counts = {name: number(float(np.median([table.get(name, 0) for table in tables]))) for name in names}
        return {name: count for name, count in counts.items() if count}

    figures, kernels, copies, libraries = (
        usual([getattr(one, field) for one in several]) for field in ("figures", "kernels", "copies", "libraries")
    )
    return msgspec.structs.replace(
        several[0], figures=figures, kernels=kernels, copies=copies, libraries=libraries, steps=len(several),
        of=ONE_CALL,
    )  # fmt: skip


class Counting:
    """Counts by step while they are made: each name has its count in each step. Steps of which several kinds take turns
    are counted together."""

    def __init__(self, trace: Trace, steps: Steps | None) -> None:
        self._trace, self._steps = trace, steps
        turns = steps is not None and steps.likeness >= IDENTICAL and steps.count >= FEWEST * steps.every
        self._every = steps.every if steps is not None and turns else 1
        self._groups = max(steps.count // self._every, 1) if steps is not None else 1
        calls, work = trace.calls, trace.work
        self.group_of_call = self._group(np.arange(len(calls)))
        self._call_of = work["call"].astype(np.int64)
        owner = np.append(self.group_of_call, NONE)[self._call_of]
        if not len(calls) or steps is None:
            owner = np.zeros(len(work), np.int64)
        self._group_of_work = owner
        self.figure_of_call = self._figures()
        self._named: dict[tuple[int, int, int], str] = {}  # places, by thread, stack and call
        self._slices: dict[int, Slices] = {}  # by thread
        self._asked = called_from(trace)

    @property
    def steps(self) -> int:
        """How many steps are counted."""
        return self._groups * self._every

    def _group(self, calls: IntArray) -> IntArray:
        """The number of the steps that count together for each call; NONE outside of whole ones."""
        if self._steps is None:
            return np.zeros(len(calls), np.int64)
        step = np.searchsorted(self._steps.calls, calls, "right") - 1
        inside = (calls < self._steps.calls[-1]) & (step >= 0) & (step < self.steps)
        groups: IntArray = np.where(inside, step // self._every, NONE)
        return groups

    def _figures(self) -> IntArray:
        """For each call its place in CALLS, NONE for others."""
        by_name = [
            next((place for place, (_, pattern) in enumerate(CALLS) if pattern.search(name)), NONE)
            for name in (*self._trace.names, "")
        ]
        found: IntArray = np.array(by_name, np.int64)[self._trace.calls["name"]]
        return found

    def _tally(self, rows: Rows, words: Sequence[str], which: IntArray, group: IntArray) -> None:
        """Add to the counts of ``words`` by step; ``which`` has a place in them for each thing counted."""
        counted = group != NONE
        table = np.zeros((len(words), self._groups))
        np.add.at(table, (which[counted], group[counted]), 1 / self._every)
        for word, row in zip(words, table, strict=True):
            if row.any():
                rows[word] = rows.get(word, np.zeros(self._groups)) + row

    def counts(self, launch_s: float) -> Counts:
        """All counts. Kernels shorter than ``launch_s`` are shorter than their launch."""
        trace, work = self._trace, self._trace.work
        kernel, copy, memset = (work["kind"] == WORK_KINDS.index(kind) for kind in ("kernel", "copy", "memset"))
        used, which = np.unique(work["name"], return_inverse=True)
        known = [family(name_of(trace, name)) for name in used.tolist()] or [family("")]
        extra = (np.array([one.extra for one in known])[which] & kernel) | self._clears(known, which, kernel)
        own = np.where(extra, NONE, self._group_of_work)
        figures, families, libraries, copies = Rows(), Rows(), Rows(), Rows()
        self._tally(families, [one.name for one in known], which[kernel], own[kernel])
        self._tally(libraries, [one.library for one in known], which[kernel], own[kernel])
        pageable, replayed = _pageable(trace) & copy, self._replayed()
        kinds = {
            "kernels": kernel, "kernels_in_graphs": kernel & replayed, "copies": copy, "pageable": pageable,
            "memsets": memset, **({} if len(trace.calls) else {"launches": kernel & ~replayed}),
        }  # fmt: skip
        for figure, chosen in kinds.items():
            self._tally(figures, [figure], np.zeros(int(chosen.sum()), np.int64), own[chosen])
        words, place = self._copies(np.flatnonzero(copy))
        self._tally(copies, words, place, own[copy])
        calls = np.flatnonzero(self.figure_of_call != NONE)
        only_extra = np.setdiff1d(self._call_of[extra], self._call_of[~extra])
        calls = calls[~np.isin(calls, only_extra)]
        self._tally(figures, [name for name, _ in CALLS], self.figure_of_call[calls], self.group_of_call[calls])
        short = kernel & ((work["end_ns"] - work["begin_ns"]) * 1e-9 < launch_s) & (own != NONE)
        seen = Seen(
            names=self._exact(known, used, which, kernel),
            extra=self._usual(self._extras(known, which, extra)),
            shorter_than_a_launch=round(int(short.sum()) / self.steps),
        )
        return Counts(
            figures=self._usual(figures), kernels=self._usual(families), copies=self._usual(copies),
            libraries=self._usual(libraries), some=self._some(figures, families, copies),
            places={figure: found for figure in PLACED if (found := self.places(figure))},
            seen={plain(next(iter(trace.gpus.values()), "")): seen},
            steps=self._steps.count if self._steps is not None else 0, of=self._what(),
            bare=trace.format == "microbench recording",
        )  # fmt: skip

    def _usual(self, rows: Rows) -> dict[str, Number]:
        """The count of the usual step by name, without those that it has none of."""
        usual = {name: number(float(np.median(row))) for name, row in sorted(rows.items())}
        return {name: count for name, count in usual.items() if count}

    def _some(self, figures: Rows, families: Rows, copies: Rows) -> dict[str, Number]:
        """What some steps have beyond the usual step, by its mean."""
        named = ((before, one) for before, one in (("", figures), ("kernel: ", families), ("copy: ", copies)))
        return {
            f"{before}{name}": mean
            for before, rows in named for name, row in sorted(rows.items())
            if (mean := number(float(np.maximum(row - np.median(row), 0).mean())))
        }  # fmt: skip

    def _extras(self, known: Sequence[Family], which: IntArray, extra: BoolArray) -> Rows:
        rows: Rows = {}
        words = [one.name if one.extra else "memsets for a kernel" for one in known]
        self._tally(rows, words, which[extra], self._group_of_work[extra])
        return rows

    def _exact(
        self, known: Sequence[Family], used: IntArray, which: IntArray, kernel: BoolArray
    ) -> dict[str, dict[str, Number]]:
        """The own names of the kernels that libraries choose, by family."""
        rows: Rows = {}
        names = [plain(name_of(self._trace, name), LONGEST_NAME) for name in used.tolist()]
        self._tally(rows, names, which[kernel], self._group_of_work[kernel])
        usual, found = self._usual(rows), dict[str, dict[str, Number]]()
        for one, name in zip(known, names, strict=False):
            if name in usual and one.library in CHOSEN:
                found.setdefault(one.name, {})[name] = usual[name]
        return found

    def _what(self) -> str:
        if self._steps is None:
            return "the whole trace"
        return plain(" ".join(filter(None, (self._steps.found, self._steps.name))), LONGEST_PLACE)

    def _replayed(self) -> BoolArray:
        """Which work a graph's replay submitted."""
        replays = self.figure_of_call == next(place for place, (figure, _) in enumerate(CALLS) if figure == "replays")
        by_call: BoolArray = np.append(replays, False)[self._call_of]
        replayed: BoolArray = by_call | (self._trace.work["node"] != NONE)
        return replayed

    def _clears(self, known: Sequence[Family], which: IntArray, kernel: BoolArray) -> BoolArray:
        """Work right ahead of a kernel of those libraries in its stream, which clears what this adds to.

        Both are of one operator, where the trace has operators; elsewhere it may be the program's own memset.
        """
        work = self._trace.work
        chosen = np.array([one.library in CHOSEN or one.name.startswith(REDUCES) for one in known])[which] & kernel
        order = np.lexsort((work["begin_ns"], work["stream"], work["device"]))
        before, behind = order[:-1], order[1:]
        same = [work[of][before] == work[of][behind] for of in ("stream", "device")]
        clears = chosen[behind] & np.all(same, axis=0) & (work["kind"][before] == WORK_KINDS.index("memset"))
        if (self._trace.ranges["kind"] == OPERATOR).any():
            before, behind = before[clears], behind[clears]
            clears = self._stacks(self._call_of[before]) == self._stacks(self._call_of[behind])
        found = np.zeros(len(work), bool)
        found[before[clears]] = True
        return found

    def _stacks(self, calls: IntArray) -> IntArray:
        """A number for the ranges around each call, the same for the same ones; NONE without a call."""
        found = np.full(len(calls), NONE, np.int64)
        numbers: dict[tuple[str, ...], int] = {}
        threads = np.append(self._trace.calls["thread"].astype(np.int64), NONE)[calls]
        for thread in np.unique(threads[threads != NONE]).tolist():
            of, here = self._slices_of(thread), threads == thread
            at = np.searchsorted(of.edges_ns, self._trace.calls["begin_ns"][calls[here]], side="right") - 1
            number_of = np.array([numbers.setdefault(stack, len(numbers)) for stack in of.stacks], np.int64)
            found[here] = number_of[of.path[at]]
        return found

    def _copies(self, places: IntArray) -> tuple[list[str], IntArray]:
        """Copies in words, "to the GPU, pageable, 4 KiB", and for each of these copies the place of its words."""
        work = self._trace.work[places]
        keys = np.stack([work[field].astype(np.int64) for field in ("source", "target", "bytes")], axis=1)
        different, which = np.unique(keys, axis=0, return_inverse=True) if len(keys) else (keys, np.empty(0, np.int64))
        words = []
        for source, target, length in different.tolist():
            one, other = MEMORIES[source], MEMORIES[target]
            way = (
                "within the GPU"
                if one == other == "device"
                else "to the GPU"
                if other == "device"
                else ("to the host" if one == "device" else "of unknown way")
            )
            memory = next((each for each in (one, other) if each in ("pageable", "pinned", "managed")), "")
            words.append(", ".join(filter(None, (way, memory, size(length) if length >= 0 else ""))))
        return words, which.ravel()

    def _calls(self, figure: str, named: str) -> IntArray:
        """The calls that count for a figure, in whole steps. Kernels count only if their family is ``named``.

        A call appears once for each kernel or copy that it submits.
        """
        work, kind = self._trace.work, {"copies": "copy", "pageable": "copy", "memsets": "memset", "kernels": "kernel"}
        if figure not in kind:
            place = next((place for place, (name, _) in enumerate(CALLS) if name == figure), None)
            return np.flatnonzero((self.figure_of_call == place) & (self.group_of_call != NONE))
        chosen = (work["kind"] == WORK_KINDS.index(kind[figure])) & (self._group_of_work != NONE)
        if figure == "pageable":
            chosen &= _pageable(self._trace)
        if named:
            names = (family(name).name for name in self._trace.names)
            chosen &= np.array([*(named in (name, bare(name)) for name in names), False])[work["name"]]
        return np.sort(self._call_of[chosen & (self._call_of != NONE)])

    def places(self, figure: str, named: str = "") -> dict[str, Number]:
        """Where in the program the calls of a figure are, and how many a step; of kernels those of a named family."""
        many = figure in MANY and not named
        calls = self._calls(figure, named)
        if not len(calls) or (many and self._steps is None):
            return {}
        # The call at the same place in each step has one name. Samples name a short call by a line nearby, so those
        # steps decide in which a sample was nearest to it.
        begins = self._steps.calls if self._steps is not None else np.zeros(1, np.int64)
        at = np.searchsorted(begins, calls, "right") - 1
        position = ((calls - begins[at]) * self._every + at % self._every)[:, None]
        if self._steps is not None and self._steps.likeness < ALIKE:  # then calls with equal neighbours are one
            position = Tokens(self._trace).beside(calls)
        _, which, counts = np.unique(position, axis=0, return_inverse=True, return_counts=True)
        which, far_ns = which.ravel(), self._from_sample_ns(calls)
        order = np.lexsort((far_ns, which))
        rank = np.arange(len(calls)) - np.repeat(np.cumsum(counts) - counts, counts)
        deciding = order[rank < DECIDING] if self._trace.samples is not None or many else order
        weight = (far_ns[deciding] + NEAR_NS) ** -2.0
        named_by: list[dict[str, float]] = [{} for _ in counts]
        for each, call, one in zip(which[deciding].tolist(), calls[deciding].tolist(), weight.tolist(), strict=True):
            place = self._place(call)
            named_by[each][place] = named_by[each].get(place, 0) + one
        whole: Counter[str] = Counter()
        for found, count in zip(named_by, counts.tolist(), strict=True):
            whole[max(found, key=lambda one: (LINE_OF_CODE.search(one) is not None, found[one]))] += count
        kept = {place: count for place, count in sorted(whole.items()) if not many or LINE_OF_CODE.search(place)}
        return {place: number(count / self.steps) for place, count in kept.items()}

    def _from_sample_ns(self, calls: IntArray) -> IntArray:
        """How long before or after each call its thread was sampled; 0 within it, and without samples; least for one
        that was asked for its line."""
        found = np.zeros(len(calls), np.int64)
        rows = self._trace.calls[calls]
        for thread, at_ns in (self._trace.samples.at_ns if self._trace.samples is not None else {}).items():
            here = np.flatnonzero(rows["thread"] == thread)
            begins, ends = rows["begin_ns"][here], rows["end_ns"][here]
            around = np.concatenate([[FIRST_NS], at_ns, [LAST_NS]])
            behind = np.searchsorted(around, begins, "left")
            found[here] = np.minimum(begins - around[behind - 1], np.maximum(around[behind] - ends, 0))
        found[np.isin(calls, [*self._asked])] = 1 - NEAR_NS  # a call that was asked for its line outweighs all others
        return found

    def _slices_of(self, thread: int) -> Slices:
        if thread not in self._slices:
            self._slices[thread] = slices(self._trace, thread)
        return self._slices[thread]

    def _place(self, call: int) -> str:
        """The call's name, the operator around it and the program's line around that."""
        row, thread = self._trace.calls[call], int(self._trace.calls["thread"][call])
        if call in self._asked:
            return _words(name_of(self._trace, int(row["name"])), [name_of(self._trace, self._asked[call])])
        of = self._slices_of(thread)
        at_ns = row["begin_ns"] if self._trace.samples is None else (row["begin_ns"] + row["end_ns"]) // 2
        path = int(of.path[int(np.searchsorted(of.edges_ns, at_ns, side="right")) - 1])
        key = (thread, path, int(row["name"]))
        if key not in self._named:
            self._named[key] = _words(name_of(self._trace, key[2]), of.stacks[path])
        return self._named[key]


def _words(call: str, stack: Sequence[str]) -> str:
    """A call with the operator around it and the program's line around that; the outermost range comes first."""
    names = [name[:LONGEST_NAME] for name in reversed(stack)]
    own = (name for name in names if owner_of([name])[0] == OWN)
    line = next(own, "") or next(filter(FUNCTION.search, names), "")
    inner = next((name for name in names if "::" in name and not FUNCTION.search(name)), "")
    words = [call, *([f"in {inner}"] if inner else []), *([f"at {_line(line)}"] if line else [])]
    if not line and (main := next((name for name in names if name.startswith(MAIN_AT)), "")):
        words.append(f"while the main thread is at {main.removeprefix(MAIN_AT)}")
    elif not line and (backward := next((name for name in names if name.startswith(BACKWARD_OF)), "")):
        words.append(f"in the {backward}")
    return plain(" ".join(words), LONGEST_PLACE)


def _pageable(trace: Trace) -> BoolArray:
    page = MEMORIES.index("pageable")
    found: BoolArray = (trace.work["source"] == page) | (trace.work["target"] == page)
    return found


def _line(name: str) -> str:
    """A line of code as people write it: "train.py:20 step" of "train.py(20): step"."""
    return name if LINE_OF_CODE.search(name) else re.sub(r"\((\d+)\): ", r":\1 ", name)
