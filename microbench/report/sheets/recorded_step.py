"""Draws the typical step of a trace to scale: the host's threads, the GPU's streams, and each idle moment's cause."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from microbench.core.units import as_time, plain
from microbench.diagnose import words
from microbench.diagnose.diagnosis import Diagnosis
from microbench.diagnose.host_time import DRIVER, OVERHEAD, doing
from microbench.diagnose.idle import BY_DOING, CAUSES, Cause, busiest, gaps_of, place_name, stretches
from microbench.diagnose.steps import unnumbered
from microbench.diagnose.window import around, begin_of
from microbench.report.document import Lane, Report, Section, Span, Table, TimeLine, Tone
from microbench.report.suites.timeline import time_ticks
from microbench.traces.trace import NONE, RANGE_KINDS, WORK_KINDS, Trace

# The colour of each cause, in the drawing and in the table of where the time goes.
TONES: Mapping[Cause, Tone] = {
    "host between calls": "first", "launch calls": "third", "other calls": "fifth", "waits": "problem",
    "copies": "fourth", "allocation": "advice", "module load": "sixth", "another stream": "good",
    "way to the GPU": "quiet", "device gaps": "seventh", "profiler": "eighth", "unknown": "plain",
}  # fmt: skip
WORK: Tone = "second"

# Rows of nested host code for a thread, and threads and streams, that a drawing has at most.
MOST_DEPTH, MOST_THREADS, MOST_STREAMS = 6, 8, 16
# The same in a terminal, which shows only the outermost code.
FEW_THREADS, FEW_STREAMS = 3, 6
# Without steps, at most this much work is drawn.
MOST_WORK = 20_000
# A terminal's line is divided into so many cells. Lanes with more spans than FEW show how much of each cell is covered.
CELLS, FEW = 100, 40
# Kernels in the picture of the step's beginning.
BEGINNING = 8
LONGEST_NAME = 200
IDLE = "GPU idle"
# Code that lasts this share of the stretch, like the step's own range, says nothing about it.
MOST_COVERED = 0.9
Kind = Literal["solid", "shaded", "pale"]
SHADES: Mapping[str, Kind] = {"host between calls": "solid", "launch calls": "shaded"}
OTHER_SHADE: Kind = "pale"
SHADES_IN_WORDS = "idle: █ host between calls, ▒ launch calls, ░ other causes"
TEMPLATE = re.compile(r"[<(].*")


class Drawn(NamedTuple):
    """A stretch of the trace with all its lanes; ``left_out`` says which lanes are missing, "" if none is."""

    begin_ns: int
    end_ns: int
    lanes: tuple[Lane, ...]
    left_out: str

    @property
    def length_s(self) -> float:
        """How long it is."""
        return (self.end_ns - self.begin_ns) * 1e-9


def window(diagnosis: Diagnosis) -> tuple[int, int]:
    """Begin and end in ns of the step whose time is nearest to the mean; without steps, of the trace's first work."""
    steps, work = diagnosis.steps, diagnosis.trace.work
    if steps is None:
        first = work[:MOST_WORK]
        return int(first["begin_ns"][0]), int(first["end_ns"].max())
    each = np.diff(steps.begins_ns)
    nearest = int(np.argmin(np.abs(each - each.mean())))
    return int(steps.begins_ns[nearest]), int(steps.begins_ns[nearest + 1])


def drawn(diagnosis: Diagnosis, begin_ns: int, end_ns: int, *, threads: int, streams: int, depth: int) -> Drawn:
    """All lanes of a stretch of time, each span with its own name; ``threads``, ``streams`` and nested rows of code are
    at most so many. A single row of code is that inside the steps' own annotations."""
    device = diagnosis.idle.device if diagnosis.idle is not None else busiest(diagnosis.trace)
    work = diagnosis.trace.work
    later = np.zeros(len(work), dtype=bool)  # the work that ends the last gap
    later[np.flatnonzero((work["device"] == device) & (work["begin_ns"] >= end_ns))[:1]] = True
    trace = around(diagnosis.trace, begin_ns, end_ns, later)
    steps = diagnosis.steps
    of = _Lanes(trace, begin_ns, end_ns, device, steps.name if steps is not None and depth == 1 else "")
    calling, used = of.threads(), of.streams()
    lanes = [lane for place, thread in enumerate(calling[:threads]) for lane in of.host(thread, calling, place, depth)]
    lanes += [of.stream(stream) for stream in used[:streams]]
    if diagnosis.idle is not None:
        lanes.append(of.idle())
    missing = ((len(calling) - threads, "thread"), (len(used) - streams, "stream"))
    left_out = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in missing if count > 0]
    return Drawn(begin_ns, end_ns, tuple(lanes), f"without {' and '.join(left_out)}" if left_out else "")


class _Lanes:
    """The lanes of a stretch of a trace."""

    def __init__(self, trace: Trace, begin_ns: int, end_ns: int, device: int, without: str) -> None:
        self.trace, self.begin_ns, self.end_ns, self.device = trace, begin_ns, end_ns, device
        annotated = trace.ranges["kind"] == RANGE_KINDS.index("annotation")
        names = np.unique(trace.ranges["name"][annotated]).tolist() if without else []
        marks = [name for name in names if unnumbered(trace.names[name]) == without]
        own = annotated & np.isin(trace.ranges["name"], marks)
        self.ranges = trace.ranges[~own]

    def threads(self) -> list[int]:
        """The threads that call CUDA, the one with most calls first."""
        numbers, counts = np.unique(self.trace.calls["thread"], return_counts=True)
        return [int(number) for number in numbers[np.argsort(-counts, kind="stable")]]

    def streams(self) -> list[int]:
        """The streams with work on the GPU, the one with most work first."""
        own = self.trace.work["device"] == self.device
        numbers, counts = np.unique(self.trace.work["stream"][own], return_counts=True)
        return [int(number) for number in numbers[np.argsort(-counts, kind="stable")]]

    def host(self, thread: int, threads: Sequence[int], place: int, depth: int) -> Iterator[Lane]:
        """What a thread's code does, the outermost first, and its CUDA calls."""
        named = f" {place + 1}" if len(threads) > 1 else ""
        for row, spans in enumerate(self._code(thread, depth)):
            yield Lane(f"host code{named}" if row == 0 else "", tuple(spans))
        calls = self.trace.calls[self.trace.calls["thread"] == thread]
        yield Lane(f"CUDA calls{named}", tuple(self._call(row) for row in calls if self._seen(row)))

    def stream(self, stream: int) -> Lane:
        """The work of a stream."""
        own = (self.trace.work["device"] == self.device) & (self.trace.work["stream"] == stream)
        copy = WORK_KINDS.index("copy")
        return Lane(
            f"stream {stream}",
            tuple(
                self._span(
                    row["begin_ns"], row["end_ns"], self._name(row), TONES["copies"] if row["kind"] == copy else WORK
                )
                for row in self.trace.work[own]
                if self._seen(row)
            ),
        )

    def idle(self) -> Lane:
        """When nothing runs on the GPU, and why."""
        gaps = gaps_of(self.trace.work, self.device, self.begin_ns, self.end_ns)
        spans = []
        for pieces in stretches(self.trace, gaps):
            for begin, end, cause, call, name in zip(*(column.tolist() for column in pieces), strict=True):
                place = place_name(self.trace, call, name)
                text = f"{CAUSES[cause]}: {plain(place, LONGEST_NAME)}" if place else CAUSES[cause]
                spans.append(self._span(begin, end, text, TONES[CAUSES[cause]]))
        return Lane(IDLE, tuple(sorted((span for span in spans if span.begin_s < span.end_s), key=_begin)))

    def _code(self, thread: int, depth: int) -> list[list[Span]]:
        """Nested ranges by depth, without those that last nearly as long as the whole stretch."""
        ranges = self.ranges
        inside = np.minimum(ranges["end_ns"], self.end_ns) - np.maximum(ranges["begin_ns"], self.begin_ns)
        whole = inside >= MOST_COVERED * (self.end_ns - self.begin_ns)
        chosen = ranges[(ranges["thread"] == thread) & ~whole & (ranges["kind"] != DRIVER)]
        chosen = chosen[np.lexsort((-chosen["end_ns"], chosen["begin_ns"]))]
        rows: list[list[Span]] = []
        ends: list[int] = []
        for row in chosen:
            while ends and ends[-1] <= row["begin_ns"]:
                ends.pop()
            if len(ends) < depth and row["end_ns"] > row["begin_ns"]:
                rows += [[]] if len(rows) == len(ends) else []
                own = row["kind"] == OVERHEAD
                tone = TONES["profiler" if own else "host between calls"]
                rows[len(ends)].append(
                    self._span(row["begin_ns"], row["end_ns"], self._name(row), tone, shaded=not own)
                )
            ends.append(int(row["end_ns"]))
        return rows

    def _call(self, row: np.void) -> Span:
        return self._span(row["begin_ns"], row["end_ns"], self._name(row), TONES[BY_DOING[doing(self._name(row))]])

    def _seen(self, row: np.void) -> bool:
        return bool(row["begin_ns"] < self.end_ns and row["end_ns"] > self.begin_ns)

    def _name(self, row: np.void) -> str:
        return plain(self.trace.names[row["name"]], LONGEST_NAME) if row["name"] != NONE else ""

    def _span(self, begin_ns: int, end_ns: int, text: str, tone: Tone, *, shaded: bool = False) -> Span:
        begin, end = (min(max(int(at), self.begin_ns), self.end_ns) - self.begin_ns for at in (begin_ns, end_ns))
        return Span(begin * 1e-9, end * 1e-9, text, tone, "shaded" if shaded else "solid")


def _begin(span: Span) -> float:
    return span.begin_s


# In a terminal's line, short spans are shown by how much of each cell they cover.


def simplified(lane: Lane, length_s: float) -> Lane:
    """The lane as CELLS cells can show it."""
    spans = tuple(span for span in (_short(span) for span in lane.spans) if span.end_s > span.begin_s)
    if lane.name == IDLE:
        spans = tuple(_joined(spans))
    if len(spans) <= FEW or length_s <= 0:
        return Lane(lane.name, spans)
    cell_s = length_s / CELLS
    covered: list[dict[tuple[str, Tone], float]] = [{} for _ in range(CELLS)]
    for span in spans:
        last = min(int(span.end_s / cell_s), CELLS - 1)
        for cell in range(int(span.begin_s / cell_s), last + 1):
            part_s = min(span.end_s, (cell + 1) * cell_s) - max(span.begin_s, cell * cell_s)
            key = (span.text, span.tone)
            covered[cell][key] = covered[cell].get(key, 0.0) + max(part_s, 0.0)
    if lane.name == IDLE:
        return Lane(lane.name, tuple(_most(covered, cell_s)))
    long = [span for span in spans if span.end_s - span.begin_s >= 2 * cell_s]
    within = [any(span.begin_s <= (cell + 0.5) * cell_s < span.end_s for span in long) for cell in range(CELLS)]
    levels = [
        Span(cell * cell_s, (cell + 1) * cell_s, "", spans[0].tone, "level", min(sum(parts.values()) / cell_s, 1.0))
        for cell, parts in enumerate(covered)
        if parts and not within[cell]
    ]
    return Lane(lane.name, tuple(sorted([*long, *levels], key=_begin)))


def _most(covered: Sequence[Mapping[tuple[str, Tone], float]], cell_s: float) -> Iterator[Span]:
    """The cause that takes most of each cell, where the GPU idles for at least half of it."""
    idle = [sum(parts.values()) >= cell_s / 2 for parts in covered]
    causes = [
        max(parts, key=lambda key: parts[key]) if shown else None for parts, shown in zip(covered, idle, strict=True)
    ]
    for cause, cells in itertools.groupby(enumerate(causes), key=lambda pair: pair[1]):
        places = [place for place, _ in cells]
        if cause is not None:
            yield _of_cause(places[0] * cell_s, (places[-1] + 1) * cell_s, *cause)


def _joined(spans: Sequence[Span]) -> Iterator[Span]:
    """Neighbouring spans of one cause as one."""
    whole: Span | None = None
    for span in spans:
        if whole is not None and whole.end_s == span.begin_s and whole.text == span.text:
            whole = _of_cause(whole.begin_s, span.end_s, span.text, span.tone)
            continue
        if whole is not None:
            yield whole
        whole = span
    if whole is not None:
        yield whole


def _of_cause(begin_s: float, end_s: float, cause: str, tone: Tone) -> Span:
    """Idle time of one cause, shaded for terminals without colour."""
    return Span(begin_s, end_s, cause, tone, SHADES.get(cause, OTHER_SHADE))


def _short(span: Span) -> Span:
    """The span with a name that may fit into a line: the cause alone, a function without its template."""
    cause = span.text.partition(": ")[0]
    if cause in CAUSES:
        return _of_cause(span.begin_s, span.end_s, cause, span.tone)
    text = TEMPLATE.sub("", span.text.removeprefix("void ")).strip()
    text = text if text.startswith("aten::") else text.rpartition("::")[2]
    return Span(span.begin_s, span.end_s, text or span.text, span.tone, span.kind)


def about(diagnosis: Diagnosis, step: Drawn) -> str:
    """Which stretch of the trace this is."""
    after = as_time((step.begin_ns - begin_of(diagnosis.trace)) * 1e-9)
    return "; ".join(
        filter(None, ("to scale, as recorded", f"it begins {after} after the trace's first event", step.left_out))
    )


def pictures(diagnosis: Diagnosis) -> list[TimeLine]:
    """The typical step for a terminal: all of it, and its first kernels."""
    begin_ns, end_ns = window(diagnosis)
    work = diagnosis.trace.work
    inside = work[(work["begin_ns"] >= begin_ns) & (work["begin_ns"] < end_ns)]
    what = "A typical step" if diagnosis.steps is not None else "The trace"
    titled = [(f"{what}, {as_time((end_ns - begin_ns) * 1e-9)}", end_ns)]
    if len(inside) > BEGINNING:
        until_ns = int(inside["end_ns"][:BEGINNING].max())
        titled.append((f"Its first {as_time((until_ns - begin_ns) * 1e-9)}, with {BEGINNING} pieces of work", until_ns))
    result: list[TimeLine] = []
    for title, until_ns in titled:
        shown = drawn(diagnosis, begin_ns, until_ns, threads=FEW_THREADS, streams=FEW_STREAMS, depth=1)
        lanes = tuple(simplified(lane, shown.length_s) for lane in shown.lanes)
        said = [about(diagnosis, shown)] if not result else []
        if not result and any(span.kind == "level" for one in lanes for span in one.spans):
            said.append("height: the share of the time")
        if not result and diagnosis.idle is not None:
            said.append(SHADES_IN_WORDS)
        result.append(TimeLine(title, "; ".join(said), shown.length_s, time_ticks(shown.length_s), lanes))
    return result


def sheet(diagnosis: Diagnosis, costs: str, tables: Sequence[Table]) -> Report:
    """The typical step drawn in a terminal, below the verdict; the first table has the causes in the same colours."""
    verdict, *_ = [*words.findings(diagnosis), None]
    section = Section(
        words.SUITE, plain(diagnosis.trace.source), (*pictures(diagnosis), *tables[:1]), (), (), verdict
    )  # fmt: skip
    gpu = diagnosis.trace.gpus.get(diagnosis.idle.device) if diagnosis.idle is not None else None
    facts = (("trace", diagnosis.trace.format), ("constants", costs))
    return Report(plain(gpu or "unknown GPU"), "", (), facts, sections=(section,))
