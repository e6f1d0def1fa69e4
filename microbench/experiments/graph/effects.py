"""The effects of node chains in memory, by which a check sees that every node ran, and in which order."""

import itertools
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from microbench.gpu.cuda.submit import CallRow, Parameters, capture, launch, loaded
from microbench.gpu.cuda.timing import SpinGate
from microbench.gpu.experiment import Case, Launch, MeasurementError, check, driver, loops

POISON = 0xDEADBEEF
WORD_BYTES = 4
ORDERED = 8
HELD_S = 0.001
OTHER_STREAM = 1
# CU_EVENT_RECORD_EXTERNAL and CU_EVENT_WAIT_EXTERNAL: a node instead of a dependency within the capture.
EXTERNAL = 1
Replay = Callable[[], None]
CHECKED = "SIMULATED: a replay that has no memory to be wrong"


class Words:
    """32-bit words of device memory, or of pinned host memory, for kernels, copies and memsets to write to."""

    def __init__(self, case: Case, count: int, *, pinned: bool = False) -> None:
        self._case = case
        self.count = count
        self._host = case.pinned(count) if pinned else None
        self.address = int(self._host.ctypes.data) if self._host is not None else case.device_memory(count * WORD_BYTES)

    def at(self, index: int) -> int:
        return self.address + index * WORD_BYTES

    def write(self, values: list[int]) -> None:
        """Set the first words and poison the others."""
        filled = np.full(self.count, POISON, dtype=np.uint32)
        filled[: len(values)] = values
        if self._host is not None:
            self._host[:] = filled
        else:
            self._case.upload(self.address, filled)
        self._case.synchronize()

    def read(self) -> list[int]:
        words = self._host if self._host is not None else self._case.read(self.address, self.count, np.uint32)
        return [int(word) for word in words]

    def expect(self, first: list[int]) -> None:
        """Raise MeasurementError unless the words begin with these, and all others are poison."""
        wanted = [*first, *[POISON] * (self.count - len(first))]
        for index, (word, due) in enumerate(zip(self.read(), wanted, strict=True)):
            if word != due:
                raise wrong(f"word {index} of {self.count}", f"{word:#x}", f"{due:#x}")


def wrong(what: str, seen: object, wanted: object) -> MeasurementError:
    return MeasurementError(f"{what}: {seen} where {wanted} should be")


class Effects(Protocol):
    """The calls of a chain, which write to one of two targets (an update changes the target), and their effect.

    ``how`` says how the effect is checked.
    """

    how: str

    def rows(self, target: int, *, captured: bool) -> list[CallRow]:
        """The calls in their order; ``captured`` if they are to become nodes, whose calls may differ."""

    def observe(self, target: int, replay: Replay) -> None:
        """Poison, replay, and check. Raises MeasurementError if an effect is missing, wrong or early."""


def fresh(random: np.random.Generator) -> int:
    """A value that was not used before."""
    return int(random.integers(1, 1 << 30))


Append = Callable[[Case, Words, int], CallRow]


def append(case: Case, words: Words, index: int) -> CallRow:
    """A kernel that writes word ``index`` plus 1 into the word after it."""
    parameters = Parameters([(words.address, index)])
    return CallRow.of(launch(case, case.function("graph", "append"), Launch(), parameters))


def append_on_host(case: Case, words: Words, index: int) -> CallRow:
    """A function of the host that does the same in pinned memory: a driver call that calls a compiled function."""
    return CallRow.named("cuLaunchHostFunc", [case.stream(0), loops.append_on_host.address, words.at(index)])


def append_dependent(case: Case, words: Words, index: int, *, pdl: bool, trigger: bool, prologue_ns: int) -> CallRow:
    """A kernel that works before it waits for the previous one; programmatic dependent launch if ``pdl``."""
    function, op = case.function("graph", "append_dependent"), Launch(kind="pdl") if pdl else Launch()
    parameters = Parameters([(words.address, index, int(trigger), case.cycles(prologue_ns))])
    return CallRow.of(launch(case, function, op, parameters))


class Appends:
    """Each node writes the word before its own plus 1: the last word shows that all ran, one after the other."""

    how = "each node added 1 to what the one before had written"

    def __init__(
        self, case: Case, count: int, *, pinned: bool = False, skipped: bool = False, call: Append = append
    ) -> None:
        self.case, self.count, self._call = case, count, call
        self.words = [Words(case, count + 1, pinned=pinned) for _ in range(2)]
        self._wanted = 1 if skipped else count + 1
        self._random = np.random.default_rng()
        if skipped:
            self.how = "no word was written by the nodes that are to be skipped"

    def rows(self, target: int, *, captured: bool) -> list[CallRow]:
        return [self.row(target, index) for index in range(self.count)]

    def row(self, target: int, index: int) -> CallRow:
        return self._call(self.case, self.words[target], index)

    def observe(self, target: int, replay: Replay) -> None:
        seed = fresh(self._random)
        self.words[target].write([seed])
        self.words[1 - target].write([])
        replay()
        self.case.synchronize()
        self.words[target].expect([seed + index for index in range(self._wanted)])
        self.words[1 - target].expect([])


class Sets:
    """Each node sets a word of its own. Snapshots between the nodes of another graph show the order."""

    how = "each word read back; snapshots in a chain like it showed the order"

    def __init__(self, case: Case, count: int, kind: str) -> None:
        self._case = case
        self._kind = kind
        self._count = count
        self._random = np.random.default_rng()
        self._words = [Words(case, count, pinned=kind == "copy_d2h") for _ in range(2)]
        self._sources = [Words(case, count, pinned=kind == "copy_h2d") for _ in range(2)]
        self._value = fresh(self._random)  # of memsets; their nodes store it

    def rows(self, target: int, *, captured: bool) -> list[CallRow]:
        return [self._row(target, index) for index in range(self._count)]

    def _row(self, target: int, index: int) -> CallRow:
        stream, to = self._case.stream(0), self._words[target].at(index)
        if self._kind == "memset":
            return CallRow.named("cuMemsetD32Async", [to, self._value + target + index, 1, stream])
        names = {"copy_h2d": "cuMemcpyHtoDAsync", "copy_d2h": "cuMemcpyDtoHAsync", "copy_d2d": "cuMemcpyDtoDAsync"}
        return CallRow.named(names[self._kind], [to, self._sources[target].at(index), WORD_BYTES, stream])

    def _poison(self, target: int) -> list[int]:
        """Poison the words and write fresh values where copies come from. Returns what the words must become."""
        first = self._value + target if self._kind == "memset" else fresh(self._random)
        wanted = [first + index for index in range(self._count)]
        for words in self._words:
            words.write([])
        self._sources[target].write(wanted)
        return wanted

    def observe(self, target: int, replay: Replay) -> None:
        wanted = self._poison(target)
        replay()
        self._case.synchronize()
        self._words[target].expect(wanted)
        self._words[1 - target].expect([])
        self._observe_order()

    def _observe_order(self) -> None:
        """Snapshot i holds what the nodes up to i have set, and poison after it."""
        ordered = min(ORDERED, self._count)
        stream, snapshots = self._case.stream(0), Words(self._case, ordered * ordered)
        function = self._case.function("graph", "snapshot")
        calls = []
        for index in range(ordered):
            row = (self._words[0].address, snapshots.at(index * ordered), ordered)
            calls += [self._row(0, index), CallRow.of(launch(self._case, function, Launch(), Parameters([row])))]
        program = loaded(self._case, calls)
        graph = capture(stream, lambda: program(1))
        executable = check(driver.cuGraphInstantiate(graph, 0))
        wanted = self._poison(0)
        check(driver.cuGraphLaunch(executable, stream))
        self._case.synchronize()
        check(driver.cuGraphExecDestroy(executable))
        check(driver.cuGraphDestroy(graph))
        seen = snapshots.read()
        for index in range(ordered):
            now = seen[index * ordered : (index + 1) * ordered]
            due = [*wanted[: index + 1], *[POISON] * (ordered - index - 1)]
            if now != due:
                raise wrong(f"snapshot behind node {index}", now, due)


class Records:
    """Each node records a timed event: their times ascend, between an event before the replay and one after it."""

    how = "each event's time lay behind that of the one before"

    def __init__(self, case: Case, count: int) -> None:
        self._case = case
        self._events = [[case.event(timed=True) for _ in range(count)] for _ in range(2)]
        self._begin, self._end = (case.event(timed=True) for _ in range(2))

    def rows(self, target: int, *, captured: bool) -> list[CallRow]:
        stream, flags = self._case.stream(0), EXTERNAL if captured else 0
        return [CallRow.named("cuEventRecordWithFlags", [event, stream, flags]) for event in self._events[target]]

    def observe(self, target: int, replay: Replay) -> None:
        """An event that this replay did not record has a time before its begin."""
        stream = self._case.stream(0)
        check(driver.cuEventRecord(self._begin, stream))
        replay()
        check(driver.cuEventRecord(self._end, stream))
        self._case.synchronize()
        times = [self._begin, *self._events[target], self._end]
        for index, (before, after) in enumerate(itertools.pairwise(times)):
            apart_ms = float(check(driver.cuEventElapsedTime(before, after)))
            if apart_ms < 0:
                raise wrong(f"event {index}", f"{apart_ms} ms behind the one before", "a later time")


class Waits:
    """Each node waits for an event of another stream: while a gate holds it, a kernel after the chain must not run."""

    how = "a kernel behind the waits ran only when the other stream's event had happened"

    def __init__(self, case: Case, count: int) -> None:
        self._case = case
        self._count = count
        self._events = [case.event(timed=False) for _ in range(2)]
        self.frame = Appends(case, 1, pinned=True)
        for event in self._events:
            check(driver.cuEventRecord(event, case.stream(OTHER_STREAM)))
        case.synchronize()

    def rows(self, target: int, *, captured: bool) -> list[CallRow]:
        """In a graph a kernel follows the waits."""
        stream, flags = self._case.stream(0), EXTERNAL if captured else 0
        waits = [CallRow.named("cuStreamWaitEvent", [stream, self._events[target], flags]) for _ in range(self._count)]
        return [*waits, self.frame.row(target, 0)] if captured else waits

    def observe(self, target: int, replay: Replay) -> None:
        words, seed = self.frame.words[target], 1
        words.write([seed])
        gate = self._case.once(SpinGate)
        gate.shut((OTHER_STREAM,))
        check(driver.cuEventRecord(self._events[target], self._case.stream(OTHER_STREAM)))
        replay()
        time.sleep(HELD_S)
        early = words.read()[1] != POISON
        gate.open()
        self._case.synchronize()
        if gate.was_late():
            raise MeasurementError("the gate that should hold the event timed out")
        if early:
            raise MeasurementError("a kernel behind a wait ran before the event had happened")
        words.expect([seed, seed + 1])


class Framed:
    """Nodes without an effect, between two kernels that show that the chain was executed."""

    how = "a kernel before and one behind them ran in their order"

    def __init__(self, case: Case, count: int) -> None:
        self._case = case
        self._count = count
        self.frame = Appends(case, 2)

    def rows(self, target: int, *, captured: bool) -> list[CallRow]:
        """Launches of an empty kernel; in a graph with the two kernels around them."""
        function = self._case.function("launch", "empty")
        empty = [CallRow.of(launch(self._case, function, Launch())) for _ in range(self._count)]
        return [self.frame.row(target, 0), *empty, self.frame.row(target, 1)] if captured else empty

    def observe(self, target: int, replay: Replay) -> None:
        self.frame.observe(target, replay)
