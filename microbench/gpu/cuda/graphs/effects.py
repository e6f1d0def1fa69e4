"""What chains of each kind of node leave behind, so that it can be seen that every node ran, and in its turn."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from cuda.bindings import driver

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda.case import POISON, Case, as_int64, expect_words, wrong
from microbench.gpu.cuda.context import check, check_code, entry_point
from microbench.gpu.cuda.submit import DriverSubmit, Parameters, launch, launch_extended
from microbench.gpu.cuda.timing import capture
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS
from microbench.host import graph_loops
from microbench.host.loops import WIDE_ARGUMENTS
from microbench.host.native import c_address

# A Submit of several different calls in a fixed order, from a compiled loop: work on several streams, mixed chains.


NOTHING_TAKEN = -1


class CallRow(NamedTuple):
    """One driver call: its name (for errors), address and arguments.

    ``takes`` is the place of an argument that is read, when its turn comes, from the program's scratch word; ``keep``
    is what the arguments point to.
    """

    what: str
    address: int
    arguments: Sequence[int]
    takes: int = NOTHING_TAKEN
    keep: tuple[Any, ...] = ()

    @classmethod
    def named(cls, name: str, arguments: Sequence[int], takes: int = NOTHING_TAKEN) -> CallRow:
        """A call of a driver function by name."""
        return cls(name, entry_point(name), arguments, takes)

    @classmethod
    def of(cls, submit: DriverSubmit) -> CallRow:
        """The call of a bound op."""
        return cls(submit.what, submit.address, [int(value) for value in submit.arguments], keep=(submit,))


class Program:
    """``calls`` in their order. One submission is all of them, or the next one of them where ``single``.

    Its own waits are for ``waits_for``, the stream that comes last, or for the whole context where that is None.
    ``queue_slots`` is how many submissions may be outstanding, where a call takes more than one slot of the queue.
    """

    def __init__(
        self,
        calls: Sequence[CallRow],
        *,
        single: bool = False,
        scratch: IntArray | None = None,
        waits_for: int | None = None,
        queue_slots: int | None = None,
    ) -> None:
        self._names = [call.what for call in calls]
        self._keep = [call.keep for call in calls]
        self._addresses: IntArray = np.array([call.address for call in calls], dtype=np.uint64).astype(np.int64)
        self._rows: IntArray = np.zeros((len(calls), WIDE_ARGUMENTS), dtype=np.int64)
        for row, call in zip(self._rows, calls, strict=True):
            row[: len(call.arguments)] = [as_int64(value) for value in call.arguments]
        self._takes: IntArray = np.array([call.takes for call in calls], dtype=np.int64)
        self._scratch: IntArray = scratch if scratch is not None else np.zeros(1, dtype=np.int64)
        self._each = 1 if single else len(calls)
        self._clock = c_address("clock_gettime")
        self._synchronize = entry_point("cuCtxSynchronize" if waits_for is None else "cuStreamSynchronize")
        self._waits_for = waits_for or 0
        self.queue_slots: int | None = queue_slots or max(SAFE_QUEUE_SLOTS // self._each, 1)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def _what(self) -> str:
        return ", ".join(dict.fromkeys(self._names))

    def __call__(self, count: int) -> None:
        code = graph_loops.submit_rows(self._addresses, self._rows, self._takes, self._scratch, count * self._each)
        check_code(code, self._what)

    def burst_ns(self, count: int) -> int:
        stamps: IntArray = np.zeros(2, dtype=np.int64)
        self._stamped(count * self._each, stamps)
        return int(stamps[1] - stamps[0])

    def stamps(self, out_ns: IntArray) -> None:
        self._stamped(self._each, out_ns)

    def _stamped(self, each: int, out_ns: IntArray) -> None:
        code = graph_loops.submit_rows_stamped(
            self._addresses, self._rows, self._takes, self._scratch, each, self._clock, out_ns
        )
        check_code(code, self._what)

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        code = graph_loops.rows_round_trips(
            self._addresses,
            self._rows,
            self._takes,
            self._scratch,
            calls * self._each,
            self._synchronize,
            as_int64(self._waits_for),
            self._clock,
            out_ns,
        )
        check_code(code, self._what)


ORDERED = 8
HELD_S = 0.001
OTHER_STREAM = 1
# CU_EVENT_RECORD_EXTERNAL and CU_EVENT_WAIT_EXTERNAL: a node, and not a dependency within the capture.
EXTERNAL = 1
Replay = Callable[[], None]


class Effects(Protocol):
    """A chain's calls, aimed at one of two targets (an update aims it at the other), and what they must leave there."""

    how: str

    def rows(self, target: int, *, captured: bool) -> list[CallRow]:
        """The calls, in their order; ``captured`` where a node's call differs from the stream's."""
        ...

    def observe(self, target: int, replay: Replay) -> None:
        """Poison, replay, and look. Raises MeasurementError for an effect that is missing, wrong or early."""
        ...


def fresh(random: np.random.Generator) -> int:
    """A value that was not there before."""
    return int(random.integers(1, 1 << 30))


class Appends:
    """Each node adds 1 to the word before its own: the last word shows that all ran, one after the other."""

    how = "each node added 1 to what the one before had written"

    def __init__(self, case: Case, count: int, *, pinned: bool = False, skipped: bool = False) -> None:
        self.case = case
        self.count = count
        self.words = [case.words(count + 1, pinned=pinned) for _ in range(2)]
        self._wanted = 1 if skipped else count + 1
        self._random = np.random.default_rng()
        if skipped:
            self.how = "no word was written by the nodes that are to be skipped"

    def rows(self, target: int, *, captured: bool) -> list[CallRow]:
        """A launch a node."""
        return [self.row(target, index) for index in range(self.count)]

    def row(self, target: int, index: int) -> CallRow:
        """The launch of one node."""
        function = self.case.modules.function("graph", "append")
        parameters = Parameters([(self.words[target].address, index)])
        return CallRow.of(launch(function, Launch(), self.case.stream(0), parameters))

    def observe(self, target: int, replay: Replay) -> None:
        seed = fresh(self._random)
        self.words[target].write([seed])
        self.words[1 - target].write([])
        replay()
        self.case.context.synchronize()
        ran = [seed + index for index in range(self._wanted)]
        expect_words(self.words[target], ran)
        expect_words(self.words[1 - target], [])


class DependentAppends(Appends):
    """The same with work before the kernel needs the one in front, and by programmatic dependent launch if ``pdl``."""

    def __init__(self, case: Case, count: int, *, pdl: bool, trigger: bool, prologue_ns: int) -> None:
        super().__init__(case, count)
        self._pdl = pdl
        self._trigger = int(trigger)
        self._cycles = case.cycles(prologue_ns)

    def row(self, target: int, index: int) -> CallRow:
        """A launch; by ``pdl`` it may begin before the one before it has ended."""
        function, stream = self.case.modules.function("graph", "append_dependent"), self.case.stream(0)
        parameters = Parameters([(self.words[target].address, index, self._trigger, self._cycles)])
        if not self._pdl:
            return CallRow.of(launch(function, Launch(), stream, parameters))
        return CallRow.of(launch_extended(self.case.context, function, Launch(kind="pdl"), stream, parameters))


class HostAppends(Appends):
    """The same by functions of the host, in pinned memory."""

    def __init__(self, case: Case, count: int) -> None:
        super().__init__(case, count, pinned=True)

    def row(self, target: int, index: int) -> CallRow:
        """A call of the driver's that has a compiled function called."""
        from microbench.host.graph_loops import append_on_host  # compiled when first asked for

        words = self.words[target]
        return CallRow.named("cuLaunchHostFunc", [self.case.stream(0), append_on_host.address, words.at(index)])


class Sets:
    """Each node sets a word of its own; snapshots between nodes of a graph of their own show the order."""

    how = "each word read back; snapshots in a chain like it showed the order"

    def __init__(self, case: Case, count: int, kind: str) -> None:
        self._case = case
        self._kind = kind
        self._count = count
        self._random = np.random.default_rng()
        self._words = [case.words(count, pinned=kind == "copy_d2h") for _ in range(2)]
        self._sources = [case.words(count, pinned=kind == "copy_h2d") for _ in range(2)]
        self._value = fresh(self._random)  # of memsets, which hold it in their nodes
        self._ordered: driver.CUgraphExec | None = None

    def rows(self, target: int, *, captured: bool) -> list[CallRow]:
        """A memset or copy a word."""
        return [self._row(target, index) for index in range(self._count)]

    def _row(self, target: int, index: int) -> CallRow:
        stream, to = self._case.stream(0), self._words[target].at(index)
        if self._kind == "memset":
            return CallRow.named("cuMemsetD32Async", [to, self._value + target + index, 1, stream])
        names = {"copy_h2d": "cuMemcpyHtoDAsync", "copy_d2h": "cuMemcpyDtoHAsync", "copy_d2d": "cuMemcpyDtoDAsync"}
        return CallRow.named(names[self._kind], [to, self._sources[target].at(index), 4, stream])

    def _poison(self, target: int) -> list[int]:
        """Poison the words, and put fresh values where copies come from; what the words must be afterwards."""
        first = self._value + target if self._kind == "memset" else fresh(self._random)
        wanted = [first + index for index in range(self._count)]
        for words in self._words:
            words.write([])
        self._sources[target].write(wanted)
        return wanted

    def observe(self, target: int, replay: Replay) -> None:
        wanted = self._poison(target)
        replay()
        self._case.context.synchronize()
        expect_words(self._words[target], wanted)
        expect_words(self._words[1 - target], [])
        self._observe_order()

    def _observe_order(self) -> None:
        """Snapshot i holds what the nodes up to i have set, and poison behind it."""
        ordered = min(ORDERED, self._count)
        stream, snapshots = self._case.stream(0), self._case.words(ordered * ordered)
        function = self._case.modules.function("graph", "snapshot")
        calls = []
        for index in range(ordered):
            row = (self._words[0].address, snapshots.at(index * ordered), ordered)
            calls += [self._row(0, index), CallRow.of(launch(function, Launch(), stream, Parameters([row])))]
        program = Program(calls)
        program(1)  # loads the code, which capture would not
        self._case.context.synchronize()
        graph = capture(stream, lambda: program(1))
        executable = check(driver.cuGraphInstantiate(graph, 0))
        wanted = self._poison(0)
        check(driver.cuGraphLaunch(executable, stream))
        self._case.context.synchronize()
        check(driver.cuGraphExecDestroy(executable))
        check(driver.cuGraphDestroy(graph))
        seen = snapshots.read()
        for index in range(ordered):
            now = seen[index * ordered : (index + 1) * ordered]
            due = [*wanted[: index + 1], *[POISON] * (ordered - index - 1)]
            if now != due:
                raise wrong(f"snapshot behind node {index}", now, due)


class Records:
    """Each node records a timed event: their times ascend, between one recorded before the replay and one after."""

    how = "each event's time lay behind that of the one before"

    def __init__(self, case: Case, count: int) -> None:
        self._case = case
        self._events = [[case.context.event(timed=True) for _ in range(count)] for _ in range(2)]
        self._begin, self._end = (case.context.event(timed=True) for _ in range(2))

    def rows(self, target: int, *, captured: bool) -> list[CallRow]:
        """A record an event."""
        stream, flags = self._case.stream(0), EXTERNAL if captured else 0
        return [CallRow.named("cuEventRecordWithFlags", [event, stream, flags]) for event in self._events[target]]

    def observe(self, target: int, replay: Replay) -> None:
        """See Effects: an event that this replay did not record lies before its begin."""
        stream = self._case.stream(0)
        check(driver.cuEventRecord(self._begin, stream))
        replay()
        check(driver.cuEventRecord(self._end, stream))
        self._case.context.synchronize()
        times = [self._begin, *self._events[target], self._end]
        for index, (before, after) in enumerate(itertools.pairwise(times)):
            apart_ms = float(check(driver.cuEventElapsedTime(before, after)))
            if apart_ms < 0:
                raise wrong(f"event {index}", f"{apart_ms} ms behind the one before", "a later time")


class Waits:
    """Each node waits for an event of another stream: while a gate holds that, the kernel behind the chain is held."""

    how = "a kernel behind the waits ran only when the other stream's event had happened"

    def __init__(self, case: Case, count: int) -> None:
        self._case = case
        self._count = count
        self._events = [case.context.event(timed=False) for _ in range(2)]
        self.frame = Appends(case, 1, pinned=True)
        for event in self._events:
            check(driver.cuEventRecord(event, case.stream(OTHER_STREAM)))
        case.context.synchronize()

    def rows(self, target: int, *, captured: bool) -> list[CallRow]:
        """A wait a node, and in a graph a kernel behind them."""
        stream, flags = self._case.stream(0), EXTERNAL if captured else 0
        waits = [CallRow.named("cuStreamWaitEvent", [stream, self._events[target], flags]) for _ in range(self._count)]
        return [*waits, self.frame.row(target, 0)] if captured else waits

    def observe(self, target: int, replay: Replay) -> None:
        words, seed = self.frame.words[target], 1
        words.write([seed])
        gate = self._case.gate()
        gate.shut((OTHER_STREAM,))
        check(driver.cuEventRecord(self._events[target], self._case.stream(OTHER_STREAM)))
        replay()
        time.sleep(HELD_S)
        early = words.read()[1] != POISON
        gate.open()
        self._case.context.synchronize()
        if gate.was_late():
            raise MeasurementError("the gate that should hold the event timed out")
        if early:
            raise MeasurementError("a kernel behind a wait ran before the event had happened")
        expect_words(words, [seed, seed + 1])


class Framed:
    """Nodes without an effect, between two kernels that show that the chain was passed."""

    how = "a kernel before and one behind them ran in their order"

    def __init__(self, case: Case, count: int) -> None:
        self._case = case
        self._count = count
        self.frame = Appends(case, 2)

    def rows(self, target: int, *, captured: bool) -> list[CallRow]:
        """Launches of an empty kernel, in a graph with the kernels around them."""
        function = self._case.modules.function("launch", "empty")
        empty = [CallRow.of(launch(function, Launch(), self._case.stream(0), None)) for _ in range(self._count)]
        return [self.frame.row(target, 0), *empty, self.frame.row(target, 1)] if captured else empty

    def observe(self, target: int, replay: Replay) -> None:
        self.frame.observe(target, replay)
