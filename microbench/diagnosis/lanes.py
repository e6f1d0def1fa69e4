"""Lays out a stretch of a trace in lanes: the host's threads, the GPU's streams, and idle time with its causes. Writes
them as a timeline for Perfetto."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from microbench.core.units import plain
from microbench.diagnosis.diagnosis import Diagnosis, window_of
from microbench.diagnosis.host_time import BETWEEN, DRIVER, OVERHEAD, doing
from microbench.diagnosis.idle import BY_DOING, CAUSES, Cause, busiest, gaps_of, place_name, said, stretches
from microbench.diagnosis.steps import unnumbered
from microbench.diagnosis.window import around, begin_of
from microbench.traces.trace import NONE, RANGE_KINDS, WORK_KINDS, Trace

# Without steps, at most this much work is laid out.
MOST_WORK = 20_000
LONGEST_NAME = 200
IDLE = "GPU idle"
ALL = 1 << 30
# Code that lasts this share of the stretch, like the step's own range, says nothing about it.
MOST_COVERED = 0.9

What = Cause | Literal["work"]


class Piece(NamedTuple):
    """A stretch of time on a lane: begin and end in s, its name, what it is, and whether it is a range of host code.

    For calls and host code, ``what`` is the cause to which idle time during them would be attributed.
    """

    begin_s: float
    end_s: float
    name: str
    what: What
    code: bool = False


class Lane(NamedTuple):
    """One thread's calls, one depth of its code, one stream, or the idle time."""

    name: str
    pieces: tuple[Piece, ...]


class Stretch(NamedTuple):
    """A stretch of the trace with all its lanes; ``left_out`` says which lanes are missing, "" if none is."""

    begin_ns: int
    end_ns: int
    lanes: tuple[Lane, ...]
    left_out: str

    @property
    def length_s(self) -> float:
        """How long it is."""
        return (self.end_ns - self.begin_ns) * 1e-9

    def after_s(self, trace: Trace) -> float:
        """When it begins, since the trace's first event."""
        return (self.begin_ns - begin_of(trace)) * 1e-9


def beginning(trace: Trace, begin_ns: int, end_ns: int, count: int) -> int | None:
    """When the busiest GPU's first ``count`` pieces of work between two times have ended, in ns; None if it has no
    more."""
    work = trace.work[trace.work["device"] == busiest(trace)]
    inside = work[(work["begin_ns"] >= begin_ns) & (work["begin_ns"] < end_ns)]
    return int(inside["end_ns"][:count].max()) if len(inside) > count else None


def window(diagnosis: Diagnosis) -> tuple[int, int]:
    """Begin and end in ns of the step whose time is nearest to the mean; without steps, of the trace's first work."""
    steps, work = diagnosis.steps, diagnosis.trace.work
    if steps is None:
        first = work[:MOST_WORK]
        return int(first["begin_ns"][0]), int(first["end_ns"].max())
    each = np.diff(steps.begins_ns)
    nearest = int(np.argmin(np.abs(each - each.mean())))
    return int(steps.begins_ns[nearest]), int(steps.begins_ns[nearest + 1])


def lanes_of(diagnosis: Diagnosis, begin_ns: int, end_ns: int, *, threads: int, streams: int, depth: int) -> Stretch:
    """All lanes of a stretch of time, with at most so many threads, streams and nested rows of code.

    A single row of code is that inside the steps' own annotations.
    """
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
    return Stretch(begin_ns, end_ns, tuple(lanes), f"without {' and '.join(left_out)}" if left_out else "")


def perfetto(diagnosis: Diagnosis) -> bytes:
    """Idle time by cause, the streams, and each thread's code and calls, of all steps, as Chrome's trace events."""
    begin_ns, end_ns = window_of(diagnosis.trace, diagnosis.steps)
    stretch = lanes_of(diagnosis, begin_ns, end_ns, threads=ALL, streams=ALL, depth=ALL)
    tracks: list[tuple[str, list[Piece]]] = []
    for lane in stretch.lanes:
        if lane.name:
            tracks.append((lane.name, []))
        tracks[-1][1].extend(lane.pieces)
    events: list[dict[str, object]] = []
    for process, of_gpu in enumerate((True, False), start=1):
        events.append(_named("process", process, 0, "GPU" if of_gpu else "host"))
        thread = 0
        for name, pieces in reversed(tracks) if of_gpu else tracks:
            if (name == IDLE or name.startswith("stream ")) == of_gpu:
                for number, row in enumerate(_rows(pieces), start=1):
                    thread += 1
                    words = "GPU idle, by cause" if name == IDLE else name
                    events.append(_named("thread", process, thread, f"{words} ({number})" if number > 1 else words))
                    for begin, end, piece in row:
                        cause, _, place = piece.name.partition(": ") if name == IDLE else (piece.name, "", "")
                        events.append(
                            {
                                "ph": "X", "pid": process, "tid": thread, "name": cause or "without a name",
                                "ts": begin / 1000, "dur": (end - begin) / 1000,
                            }
                            | ({"args": {"in": place}} if place else {})
                        )  # fmt: skip
    return msgspec.json.encode({"displayTimeUnit": "ns", "traceEvents": events})


def _named(what: str, process: int, thread: int, name: str) -> dict[str, object]:
    return {"ph": "M", "pid": process, "tid": thread, "name": f"{what}_name", "args": {"name": name}}


def _rows(pieces: Sequence[Piece]) -> list[list[tuple[int, int, Piece]]]:
    """Pieces in the fewest rows in which they lie beside or within each other; begin and end of each in ns.

    Host code ends at the latest with the code around it, because the ends of samples are estimates.
    """
    rows: list[list[tuple[int, int, Piece]]] = []
    around: list[list[int]] = []
    for piece in sorted(pieces, key=lambda one: (one.begin_s, -one.end_s)):
        begin, end = round(piece.begin_s * 1e9), round(piece.end_s * 1e9)
        for ends in around:
            while ends and ends[-1] <= begin:
                ends.pop()
        place = next((at for at, ends in enumerate(around) if not ends or end <= ends[-1] or piece.code), len(rows))
        if place == len(rows):
            rows.append([])
            around.append([])
        end = min(end, *around[place][-1:]) if around[place] else end
        rows[place].append((begin, end, piece))
        around[place].append(end)
    return rows


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
        for row, pieces in enumerate(self._code(thread, depth)):
            yield Lane(f"host code{named}" if row == 0 else "", tuple(pieces))
        calls = self.trace.calls[self.trace.calls["thread"] == thread]
        yield Lane(f"CUDA calls{named}", tuple(self._call(row) for row in calls if self._seen(row)))

    def stream(self, stream: int) -> Lane:
        """The work of a stream."""
        own = (self.trace.work["device"] == self.device) & (self.trace.work["stream"] == stream)
        copy = WORK_KINDS.index("copy")
        return Lane(
            f"stream {stream}",
            tuple(
                self._piece(
                    row["begin_ns"], row["end_ns"], self._name(row), "copies" if row["kind"] == copy else "work"
                )
                for row in self.trace.work[own]
                if self._seen(row)
            ),
        )

    def idle(self) -> Lane:
        """When nothing runs on the GPU, and why."""
        gaps = gaps_of(self.trace.work, self.device, self.begin_ns, self.end_ns)
        found = []
        for pieces in stretches(self.trace, gaps):
            for begin, end, cause, call, name in zip(*(column.tolist() for column in pieces[:5]), strict=True):
                place = place_name(self.trace, call, name)
                words = said(self.trace, CAUSES[cause])
                text = f"{words}: {plain(place, LONGEST_NAME)}" if place else words
                found.append(self._piece(begin, end, text, CAUSES[cause]))
        return Lane(IDLE, tuple(sorted((piece for piece in found if piece.begin_s < piece.end_s), key=_begin)))

    def _code(self, thread: int, depth: int) -> list[list[Piece]]:
        """Nested ranges by depth, without those that last nearly as long as the whole stretch."""
        ranges = self.ranges
        inside = np.minimum(ranges["end_ns"], self.end_ns) - np.maximum(ranges["begin_ns"], self.begin_ns)
        whole = inside >= MOST_COVERED * (self.end_ns - self.begin_ns)
        chosen = ranges[(ranges["thread"] == thread) & ~whole & (ranges["kind"] != DRIVER)]
        chosen = chosen[np.lexsort((-chosen["end_ns"], chosen["begin_ns"]))]
        rows: list[list[Piece]] = []
        ends: list[int] = []
        for row in chosen:
            while ends and ends[-1] <= row["begin_ns"]:
                ends.pop()
            if len(ends) < depth and row["end_ns"] > row["begin_ns"]:
                rows += [[]] if len(rows) == len(ends) else []
                what: Cause = "profiler" if row["kind"] == OVERHEAD else BETWEEN
                code = what != "profiler"
                rows[len(ends)].append(self._piece(row["begin_ns"], row["end_ns"], self._name(row), what, code=code))
            ends.append(int(row["end_ns"]))
        return rows

    def _call(self, row: np.void) -> Piece:
        name = self._name(row)
        return self._piece(row["begin_ns"], row["end_ns"], name, BY_DOING[doing(name)])

    def _seen(self, row: np.void) -> bool:
        return bool(row["begin_ns"] < self.end_ns and row["end_ns"] > self.begin_ns)

    def _name(self, row: np.void) -> str:
        return plain(self.trace.names[row["name"]], LONGEST_NAME) if row["name"] != NONE else ""

    def _piece(self, begin_ns: int, end_ns: int, name: str, what: What, *, code: bool = False) -> Piece:
        begin, end = (min(max(int(at), self.begin_ns), self.end_ns) - self.begin_ns for at in (begin_ns, end_ns))
        return Piece(begin * 1e-9, end * 1e-9, name, what, code)


def _begin(piece: Piece) -> float:
    return piece.begin_s
