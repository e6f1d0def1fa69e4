"""Models a step of work: plays its calls on a virtual host, queue, GPU and link, and traces the critical path.

The law for kernels of one length d in one stream: time per kernel is max(call, d + gap), in a graph d + gap; call, way
to the GPU and completion are paid once a synchronise. ``play`` is that law for any mixture.
"""

import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import cycle, groupby, islice, starmap
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from microbench.core.ops import ARRAY_LAYERS, LOOP_LAYER
from microbench.model.workload import Copies, Event, HostWork, Kernels, Part, Wait, Workload

Lane = Literal["gpu", "h2d", "d2h"]
Limit = Literal["host", "front end", "kernel", "link", "sync"]
LIMITS: tuple[Limit, ...] = ("host", "front end", "kernel", "link", "sync")
Kind = Literal["launch", "replay", "copy", "sync", "host", "event"]


class Work(NamedTuple):
    """Work that a call submits to an engine of the GPU: its duration, and the gap after the work before it.

    ``branch`` is counted from the call's stream: the branches of a graph run side by side. Work that ``joins`` waits
    for all streams, and all later work waits for it. ``memory_s`` is how long its bytes keep the GPU's memory, and
    ``sms_s`` how long it would take if it filled all SMs: all streams share both. ``early_s`` is how long before the
    return of its call the work was handed to the GPU, ``behind_s`` what the gap after it is longer.
    """

    lane: Lane
    duration_s: float
    gap_s: float = 0.0
    branch: int = 0
    joins: bool = False
    memory_s: float = 0.0
    sms_s: float = 0.0
    early_s: float = 0.0
    behind_s: float = 0.0


class Act(NamedTuple):
    """One thing the host does; times are in seconds.

    ``host_s`` is how long the call takes the host; ``way_s`` lies between its return and the earliest begin of its
    first ``work``. ``wait_s`` is the time of a synchronise from the end of the last work until it returns, None for
    other acts. A copy without work is one that the host itself makes. An act of events only is played without the host.
    """

    kind: Kind
    host_s: float
    way_s: float = 0.0
    work: tuple[Work | Event, ...] = ()
    stream: int = 0
    wait_s: float | None = None


class Span(NamedTuple):
    """An interval in seconds since the first call; ``act`` is the index of the act it belongs to."""

    begin_s: float
    end_s: float
    act: int
    lane: Literal["host", "wait", "gpu", "h2d", "d2h"]


# The fields of a Span as a tuple: most plays need no spans, and creating them takes as long as the rest of the play.
Interval = tuple[float, float, int, Literal["host", "wait", "gpu", "h2d", "d2h"]]
# A moment of a played step: its time, the moment that it waited for (None for the first), and what the time between was
# spent on. Plain tuples, because a step may have a hundred thousand kernels.
Moment = tuple[float, "Moment | None", Limit]


class Played:
    """A played step. ``end_s`` is when host and GPU have finished; the other figures are computed on first use."""

    def __init__(self, host: Sequence[Interval], work: Sequence[Interval], end: Moment) -> None:
        self.end_s = end[0]
        self._host, self._work, self._end = host, work, end

    def __getstate__(self) -> dict[str, Any]:
        """What a copy and another process get: its shares in place of the critical path, each of whose moments holds
        the one before it, too deep to be copied."""
        return {**vars(self), "shares": self.shares, "_end": None}

    @cached_property
    def host(self) -> tuple[Span, ...]:
        """Calls, host work and waits in order."""
        return tuple(starmap(Span, self._host))

    @cached_property
    def work(self) -> tuple[Span, ...]:
        """What ran on the GPU and its copy engines, in the order of submission."""
        return tuple(starmap(Span, self._work))

    @cached_property
    def shares(self) -> Mapping[Limit, float]:
        """Seconds of the critical path by what they were spent on; they add up to ``end_s``."""
        shares: dict[Limit, float] = {}
        end_s, cause, spent = self._end
        while cause is not None:
            shares[spent] = shares.get(spent, 0.0) + end_s - cause[0]
            end_s, cause, spent = cause
        return shares

    @cached_property
    def busy_s(self) -> float:
        """Time in which at least one kernel runs."""
        covered_s, until_s = 0.0, 0.0
        for begin_s, end_s, _, lane in sorted(self._work):
            if lane == "gpu":
                covered_s += max(end_s - max(begin_s, until_s), 0.0)
                until_s = max(until_s, end_s)
        return covered_s


def play(acts: Sequence[Act], *, queue: int = 1 << 30, front_end_s: float = 0.0) -> Played:
    """Play ``acts`` one after another from the host.

    A call that finds ``queue`` launches not yet begun waits until one begins. Work begins when its call has returned
    and its way to the GPU has passed, when the work before it in its stream has ended and its gap has passed, when its
    engine is free (copies), and, with a ``front_end_s``, at least that long from the begin of any other kernel. A
    replay comes after all work before it, because a graph is one piece of work to its stream. Work behind an awaited
    event comes after that event's work like after work of its own stream. Kernels side by side end
    no sooner than the memory can have moved the bytes, and the SMs can have run the blocks, of all of them.
    """
    state = _State(queue, front_end_s)
    for index, act in enumerate(acts):
        state.do(index, act)
    return Played(state.host, state.work, state.end())


class _State:
    """The state of a play: the host's time, the ends of each stream and engine, and recorded events."""

    def __init__(self, queue: int, front_end_s: float) -> None:
        self.host: list[Interval] = []
        self.work: list[Interval] = []
        self._now: Moment = (0.0, None, "host")  # the host's last moment
        self._queue = queue
        self._front_end_s = front_end_s
        self._begins: list[Moment] = []  # of each submission's first work
        self._ends: dict[int, Moment] = {}  # of each stream's last work, or of the event that it waits for
        self._events: dict[int, Moment | None] = {}  # when each event happens; None if no work is before it
        self._earlier: dict[int, Moment | None] = {}  # the same of the time before
        self._engines: dict[Lane, Moment] = {}
        self._shared: dict[str, Moment] = {}  # when the GPU's memory, or its SMs, can have done everything
        self._joined: Moment | None = None  # the end that streams without work of their own wait for
        self._last: Moment | None = None  # the work that ends last
        self._starts: list[Moment] = []  # begins of kernels, in the order of time

    def do(self, index: int, act: Act) -> None:
        called = now = self._now
        if act.kind == "event":
            self._submit(index, act, called)
            return
        if act.work and len(self._begins) >= self._queue:
            called = _later(now, self._begins[-self._queue])  # a launch a queue's length ago has begun
        self._now = now = (called[0] + act.host_s, called, _spent(act))
        self.host.append((called[0], now[0], index, "host"))
        if act.work:
            self._submit(index, act, called)
        if act.wait_s is not None and self._last is not None:
            self._now = _later(now, (self._last[0] + act.wait_s, self._last, "sync"))
            self.host.append((now[0], self._now[0], index, "wait"))

    def end(self) -> Moment:
        """The last moment: the host's, or that of work that no wait follows."""
        return self._now if self._last is None else _later(self._now, self._last)

    def _submit(self, index: int, act: Act, called: Moment) -> None:
        now, front_end = self._now, self._front_end_s > 0
        arrived: Moment = (now[0] + act.way_s, now, "front end")
        if act.kind == "replay" and self._ends:
            self._joined = max(self._ends.values(), key=itemgetter(0))
            self._ends = {}
        begun = False
        for work in act.work:
            if isinstance(work, Event):
                self._event(work)
                continue
            lane, duration_s, gap_s, branch, joins, memory_s, sms_s, early_s, behind_s = work
            stream, ready = act.stream + branch, arrived
            if early_s > 0:
                handed_over: Moment = (called[0] + max(act.host_s - early_s, 0.0), called, _spent(act))
                ready = (handed_over[0] + act.way_s, handed_over, "front end")
            begin = ready
            before = self._ends.get(stream, self._joined)
            alone = () if before is None else (before,)
            for end in self._ends.values() if joins and self._ends else alone:
                if end[0] + gap_s > begin[0]:
                    begin = (end[0] + gap_s, end, "front end")
            if lane != "gpu":
                begin = _later(begin, self._engines.get(lane, begin))
            elif front_end:
                begin = self._started(begin)
            if not begun:
                self._begins.append(begin)
                begun = True
            end = (begin[0] + duration_s, begin, "kernel" if lane == "gpu" else "link")
            if memory_s > 0:
                end = _later(end, self._served("memory", ready, begin, memory_s))
            if sms_s > 0:
                end = _later(end, self._served("SMs", ready, begin, sms_s))
            self.work.append((begin[0], end[0], index, lane))
            if self._last is None or end[0] > self._last[0]:
                self._last = end
            left: Moment = (end[0] + behind_s, end, "front end") if behind_s else end
            self._ends[stream] = left
            if joins:
                self._ends, self._joined = {}, left
            if lane != "gpu":
                self._engines[lane] = end

    def _event(self, event: Event) -> None:
        """Record an event behind its stream's work, or let the stream wait for it."""
        before = self._ends.get(event.stream, self._joined)
        if not event.awaited:
            self._earlier[event.number] = self._events.get(event.number)
            self._events[event.number] = before
        elif (end := (self._earlier if event.earlier else self._events).get(event.number)) is not None:
            self._ends[event.stream] = end if before is None else _later(before, end)

    def _served(self, what: str, ready: Moment, begin: Moment, seconds: float) -> Moment:
        """When the memory or the SMs can have done this work and all work since the GPU was idle."""
        alone = what not in self._shared or self._last is None or ready[0] >= self._last[0]
        cause = begin if alone else self._shared[what]
        self._shared[what] = (cause[0] + seconds, cause, "kernel")
        return self._shared[what]

    def _started(self, begin: Moment) -> Moment:
        """The first moment from ``begin`` on at which the front end begins no other kernel."""
        apart_s, starts, from_s = self._front_end_s, self._starts, begin[0]
        first = place = bisect.bisect_right(starts, from_s - apart_s, key=itemgetter(0))
        while place < len(starts) and starts[place][0] < from_s + apart_s:
            from_s = starts[place][0] + apart_s
            place += 1
        if place > first:
            begin = (starts[place - 1][0] + apart_s, starts[place - 1], "front end")
        bisect.insort(starts, begin, key=itemgetter(0))
        return begin


def _later(first: Moment, second: Moment) -> Moment:
    return second if second[0] > first[0] else first


def _spent(act: Act) -> Limit:
    if act.kind == "sync":
        return "sync"
    return "link" if act.kind == "copy" and not act.work else "host"


Way = Literal["stream", "graph"]
WAYS: tuple[Way, ...] = ("stream", "graph")

# The constants of a machine by name: unit, meaning, and the benchmark that shows it. Two more kinds exist for each
# layer: ``call.LAYER.ARGUMENTS`` is the launch call of a kernel with that number of arguments, ``replay.LAYER`` the
# replay call of a graph.
CONSTANTS: Mapping[str, tuple[str, str, str]] = {
    "way": ("s", "launch call's return to its kernel's begin", "launch_cost"),
    "empty": ("s", "an empty kernel: no kernel takes less", "launch_cost"),
    "complete": ("s", "last kernel's end to the synchronise's return", "launch_cost"),
    "sync": ("s", "a synchronise of an idle stream", "launch_sync"),
    "gap_stream": ("s", "stream gap, kernels that do not write, two streams", "launch_gap"),
    "write_stream": ("s", "stream gap, longer behind a kernel that writes by", "launch_gap"),
    "one_stream_stream": ("s", "stream gap, shorter in a program of one stream by", "launch_gap"),
    "gap_graph": ("s", "graph gap, nodes that do not write, two streams", "launch_gap"),
    "write_graph": ("s", "graph gap, longer behind a kernel that writes by", "launch_gap"),
    "code_graph": ("s", "graph gap, longer between kernels of model code by", "launch_gap"),
    "branch_graph": ("s", "graph gap, longer for each further branch of it by", "launch_gap"),
    "wide_graph": ("s", "graph gap, shorter behind a large grid by", "launch_gap"),
    "wide_blocks": ("block", "blocks of a large grid", "launch_gap"),
    "one_stream_graph": ("s", "graph gap, shorter in a program of one stream by", "launch_gap"),
    "memset_graph": ("s", "graph gaps, extra before and behind a memset", "launch_gap"),
    "h2d_graph": ("s", "graph gaps, extra before and behind a copy to the GPU", "launch_gap"),
    "h2d_small_graph": ("s", "graph gaps, extra around a copy of a few bytes to the GPU", "launch_gap"),
    "d2h_graph": ("s", "graph gaps, extra before and behind a copy from the GPU", "launch_gap"),
    "replay_node": ("s", "time that each node adds to the replay call", "graph_lifecycle"),
    "replay_way": ("s", "replay call's return to its first kernel", "graph_gain"),
    "replay_root": ("s", "time that each further root of a graph adds to the replay call", "graph_shape"),
    "make": ("s", "capture, instantiate and upload this step's graphs", "graph_lifecycle"),
    "queue": ("launch", "launches that wait before a call blocks", "launch_queue"),
    "front_end": ("s", "between begins of kernels side by side", "graph_shape"),
    "watched.call": ("s", "what PyTorch's profiler adds to a call", "launch_watched"),
    "watched.operator": ("s", "what PyTorch's profiler adds to an operator", "launch_watched"),
    "watched.function": ("s", "what PyTorch's profiler adds to a Python function", "launch_watched"),
    "watched.own_call": ("s", "what microbench watch adds to a call", "launch_watched"),
    "memory": ("B/s", "the GPU's memory, read", "memory_stream"),
    "h2d_call": ("s", "the call of a copy to the GPU", "link_latency"),
    "h2d_way": ("s", "return of a copy's call to its begin, to the GPU", "link_latency"),
    "h2d_latency": ("s", "a pinned copy to the GPU, of any size", "link_copy"),
    "h2d_rate": ("B/s", "bytes of a pinned copy to the GPU", "link_copy"),
    "d2h_call": ("s", "the call of a copy from the GPU", "link_latency"),
    "d2h_way": ("s", "return of a copy's call to its begin, from the GPU", "link_latency"),
    "d2h_latency": ("s", "a pinned copy from the GPU, of any size", "link_copy"),
    "d2h_rate": ("B/s", "bytes of a pinned copy from the GPU", "link_copy"),
    "h2d_pageable_latency": ("s", "a pageable copy to the GPU, of any size", "link_copy"),
    "h2d_pageable_rate": ("B/s", "bytes of a pageable copy to the GPU", "link_copy"),
    "d2h_pageable_latency": ("s", "a pageable copy from the GPU, of any size", "link_copy"),
    "d2h_pageable_rate": ("B/s", "bytes of a pageable copy from the GPU", "link_copy"),
}
COMMON = ("way", "empty", "complete", "sync", "gap_stream", "queue")
IN_GRAPHS = ("gap_graph", "replay_node", "replay_way", "make")
# Constants that a step needs, but that do not change its played time.
UNPLAYED: Mapping[Way, tuple[str, ...]] = {"stream": (), "graph": ("way", "gap_stream", "make")}
# Layers whose programs launch and capture in a stream of their own choice. Frameworks warm up a capture in a side
# stream, which lengthens every later gap.
OWN_STREAM_LAYERS = (LOOP_LAYER, "cuda_bindings", "cuda_core")


def call_name(layer: str, arguments: int) -> str:
    """The constant of a launch call."""
    return f"call.{layer}.{arguments}"


def told(name: str) -> tuple[str, str]:
    """The unit of a constant, and what it is in a few words."""
    if name in CONSTANTS:
        return CONSTANTS[name][:2]
    kind, layer, *arguments = name.split(".")
    takes = f", {arguments[0]} argument{'' if arguments == ['1'] else 's'}" if kind == "call" else ""
    return "s", f"{'launch' if kind == 'call' else 'replay'} call of {layer}{takes}"


def copy_name(part: Copies) -> str:
    """The constant of the call of a pinned copy."""
    return f"{part.direction}_call"


# The GPU gets so few bytes with the call, without its copy engine: up to 1 KiB, but not 4 KiB (H100).
SMALL_COPY = 4096


def around_copy(part: Copies) -> str:
    """The constant of the gaps around a copy in a graph."""
    small = part.direction == "h2d" and part.size_bytes < SMALL_COPY
    return "h2d_small_graph" if small else f"{part.direction}_graph"


def replay_name(layer: str) -> str:
    """The constant of a replay call."""
    return f"replay.{layer}"


def one_stream(workload: Workload, way: Way) -> bool:
    """Whether all kernels go into one stream, which shortens the gaps between them."""
    if workload.streams > 1 or any(isinstance(part, Kernels) and part.stream for part in workload.parts):
        return False
    if workload.second_stream is not None:
        return not workload.second_stream
    return way == "stream" or all(layer in OWN_STREAM_LAYERS for layer in workload.layers)


def _longer(workload: Workload, part: Kernels, way: Way) -> str:
    """The constant that writing kernels add to the gap behind them; frameworks' kernels have their own in graphs."""
    return "code_graph" if way == "graph" and _code(workload, part) else f"write_{way}"


def _code(workload: Workload, part: Kernels) -> bool:
    """Whether a framework launches them: such a graph's gaps are known from whole steps, large grids among them."""
    return (part.layer or workload.layer) in ARRAY_LAYERS


def needed(workload: Workload, way: Way) -> tuple[str, ...]:
    """The constants that a step rests on."""
    names = [*COMMON, *(("front_end",) if workload.streams > 1 else ())]
    for part in workload.parts:
        if isinstance(part, Kernels):
            if part.writes:
                names.append(_longer(workload, part, way))
            if way == "graph" and part.blocks is not None and not _code(workload, part):
                names += ["wide_graph", "wide_blocks"]
            if way == "graph" and part.memset:
                names.append("memset_graph")
            if way == "stream":
                names.append(call_name(part.layer or workload.layer, part.arguments))
            if part.bytes:
                names.append("memory")
        elif isinstance(part, Copies):
            prefix = part.direction if part.memory == "pinned" else f"{part.direction}_pageable"
            own = ("call", "way", "latency", "rate") if part.memory == "pinned" else ("latency", "rate")
            names += [f"{prefix}_{name}" for name in own]
            if way == "graph" and part.memory == "pinned":
                names.append(around_copy(part))
    if one_stream(workload, way):
        names.append(f"one_stream_{way}")
    if way == "graph":
        names += [*IN_GRAPHS, replay_name(workload.layer), *(("replay_root",) if workload.streams > 1 else ())]
        names += ["branch_graph"] if _further_branches(workload) else []
    return tuple(dict.fromkeys(names))


def acts(workload: Workload, constants: Mapping[str, float], way: Way) -> list[Act]:
    """What the host does in one step; ``constants`` has every constant of ``needed``.

    In a graph, neighbouring kernels and pinned copies are replayed by one call; a synchronise, host work and a pageable
    copy part graphs. A replay does not spend the program's own time for each call.
    """
    result: list[Act] = []
    gap = f"gap_{way}"
    if one_stream(workload, way):
        constants = {**constants, gap: constants[gap] - constants[f"one_stream_{way}"]}
    if way == "graph" and (further := _further_branches(workload)):
        constants = {**constants, "code_graph": constants["code_graph"] + further * constants["branch_graph"]}
    stream = cycle(range(workload.streams))
    for parts in _pieces(workload):
        if way == "graph" and _is_graph(parts):
            result += _replay(workload, parts, constants)
        else:
            for part in parts:
                result += _direct(workload, part, constants, stream)
    return result


def graphs(workload: Workload) -> list[int]:
    """The number of nodes of each graph that the step becomes."""
    captured = filter(_is_graph, _pieces(workload))
    return [sum(part.count for part in parts if isinstance(part, Kernels | Copies)) for parts in captured]


def _pieces(workload: Workload) -> Iterator[list[Part]]:
    """The parts of a step between what parts graphs."""
    return (list(parts) for _, parts in groupby(workload.parts, key=_capturable))


def _capturable(part: Part) -> bool:
    return isinstance(part, Kernels | Event) or (isinstance(part, Copies) and part.memory == "pinned")


def _is_graph(parts: Sequence[Part]) -> bool:
    """Whether a piece is worth a graph: events and a copy alone are not."""
    work = [part for part in parts if isinstance(part, Kernels | Copies)]
    return _capturable(parts[0]) and (any(isinstance(part, Kernels) for part in work) or len(work) > 1)


# A stream with a smaller share of the kernels is no branch to the others, and no more branches were measured.
SIDE, MOST_BRANCHES = 0.1, 8


def _further_branches(workload: Workload) -> int:
    """How many branches of a framework's graph run beside each other, less one."""
    if workload.streams == 1:
        return 0
    counts: Counter[int] = Counter()
    dealt = cycle(range(workload.streams))
    for part in workload.parts:
        if isinstance(part, Kernels) and _code(workload, part) and part.writes:
            if part.stream is None:
                counts.update(islice(dealt, part.count))
            else:
                counts[part.stream] += part.count
    branches = sum(count >= SIDE * counts.total() for count in counts.values())
    return max(min(branches, MOST_BRANCHES) - 1, 0)


def _direct(workload: Workload, part: Part, constants: Mapping[str, float], stream: Iterator[int]) -> Iterator[Act]:
    match part:
        case Kernels():
            call_s = constants[call_name(part.layer or workload.layer, part.arguments)] + (part.host_s or 0.0)
            way_s, works = constants["way"], _kernels(workload, part, constants, "stream")
            if (to := _stream_of(workload, part)) is None:
                for work in islice(cycle(works), part.count):
                    yield Act("launch", call_s, way_s, (work,), next(stream))
            else:
                acts = [Act("launch", call_s, way_s, (work,), to) for work in works]
                yield from islice(cycle(acts), part.count)
        case Copies(memory="pinned"):
            copy = Act("copy", constants[copy_name(part)] + part.host_s, constants[f"{part.direction}_way"])
            for _ in range(part.count):
                yield copy._replace(work=(_copy(part, constants),))
        case Copies():
            prefix = f"{part.direction}_pageable"
            seconds = constants[f"{prefix}_latency"] + part.size_bytes / constants[f"{prefix}_rate"]
            for _ in range(part.count):
                yield Act("sync", 0.0, wait_s=0.0)  # the host first waits for all work before the copy
                yield Act("copy", seconds + part.host_s)
        case Wait():
            yield Act("sync", constants["sync"], wait_s=constants["complete"])
        case HostWork():
            yield Act("host", part.seconds)
        case Event():
            yield Act("event", 0.0, work=(part,))


def _replay(workload: Workload, parts: list[Part], constants: Mapping[str, float]) -> Iterator[Act]:
    """Kernels and pinned copies as one graph; branches are streams, and events are edges between them.

    The call hands the first node of each independent branch, a root of the graph, to the GPU one after another.
    """
    work: list[Work | Event] = []
    stream = cycle(range(workload.streams))
    for part in parts:
        if isinstance(part, Kernels):
            kernels = islice(cycle(_kernels(workload, part, constants, "graph")), part.count)
            dealt = _stream_of(workload, part) is None
            work += (kernel._replace(branch=next(stream)) for kernel in kernels) if dealt else kernels
        elif isinstance(part, Copies):
            around_s = constants[around_copy(part)] / 2
            work += [_copy(part, constants)._replace(gap_s=around_s, behind_s=around_s)] * part.count
        elif isinstance(part, Event) and not part.earlier:  # a replay comes after all of the one before
            work.append(part)
    nodes = sum(isinstance(one, Work) for one in work)
    if not nodes:
        return
    roots = _roots(work)
    for place, (index, root) in enumerate(roots, start=1):
        work[index] = root._replace(early_s=(len(roots) - place) * constants["replay_root"])
    more_s = (len(roots) - 1) * constants["replay_root"] if len(roots) > 1 else 0.0
    call_s = constants[replay_name(workload.layer)] + constants["replay_node"] * nodes
    yield Act("replay", call_s + more_s, constants["replay_way"], tuple(work))


def _roots(work: Sequence[Work | Event]) -> list[tuple[int, Work]]:
    """The nodes that depend on no other, with their places; none if there is only one."""
    roots: list[tuple[int, Work]] = []
    begun: set[int] = set()  # branches in which a node has come before, or an event behind one
    behind: set[int] = set()  # events behind a node
    for index, one in enumerate(work):
        if isinstance(one, Work):
            if one.joins:
                break
            if one.branch not in begun:
                roots.append((index, one))
            begun.add(one.branch)
        elif one.awaited:
            begun.update({one.stream} if one.number in behind else ())
        elif one.stream in begun:
            behind.add(one.number)
        else:
            behind.discard(one.number)
    return roots if len(roots) > 1 else []


def _stream_of(workload: Workload, part: Kernels) -> int | None:
    """The stream of all these kernels, or the branch of a graph; None if they go to the streams in turn."""
    return 0 if part.stream is None and workload.streams == 1 else part.stream


def _kernels(workload: Workload, part: Kernels, constants: Mapping[str, float], way: Way) -> list[Work]:
    """A kernel of each of the part's durations, which is at least that of an empty one and of moving its bytes.

    Its gap is the one behind it; the durations are those that profilers report.
    """
    gap_s = constants[f"gap_{way}"] + (constants[_longer(workload, part, way)] if part.writes else 0.0)
    if way == "graph" and wide(workload, part, constants):
        gap_s -= constants["wide_graph"]
    around_s = constants["memset_graph"] / 2 if part.memset and way == "graph" else 0.0
    memory_s = part.bytes / constants["memory"] if part.bytes else 0.0
    least_s = max(constants["empty"], memory_s)
    share = (part.sm_share or 0.0) if workload.streams > 1 else 0.0
    branch = _stream_of(workload, part) or 0 if way == "graph" else 0
    durations = (max(duration_s, least_s) for duration_s in part.durations_s[: part.count])
    return [
        Work("gpu", duration_s, gap_s + around_s, branch, False, memory_s, duration_s * share, 0.0, around_s)
        for duration_s in durations
    ]


def wide(workload: Workload, part: Kernels, constants: Mapping[str, float]) -> bool:
    """Whether the kernels' grid is so large that in a graph the next node begins while it ends."""
    return part.blocks is not None and not _code(workload, part) and part.blocks >= constants["wide_blocks"]


def _copy(part: Copies, constants: Mapping[str, float]) -> Work:
    latency_s, rate = constants[f"{part.direction}_latency"], constants[f"{part.direction}_rate"]
    seconds = latency_s + part.size_bytes / rate
    gap_s = constants.get("gap_copy", 0.0)  # only a trace shows it
    return Work(part.direction, seconds, gap_s, branch=part.stream or 0, joins=part.stream is None)
