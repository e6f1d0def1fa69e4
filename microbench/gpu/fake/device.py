"""The simulated clocks and GPU: calls enter launch queues, the front end starts items, engines and gates delay them.

A run of equal calls is one Batch, and its events obey two recurrences: a call returns at max(previous return, its slot
is free) + its cost; an item ends at max(previous end + gap, arrival) + duration. ``max_plus`` solves both exactly,
also for calls that block on a full queue.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray
from microbench.gpu.fake.costs import FakeCosts, MemoryCosts, Traffic
from microbench.gpu.protocol.gpu import FloatArray

# Rare long host calls (an interrupt, another process): one call in 500 takes 6 us longer on average.
TAIL_SHARE = 0.002
TAIL_MEAN_NS = 6000.0
# A launch queue's items are kept in arrays of this many times its slots.
ROOM = 4

Engine = Literal["h2d", "d2h", "sm"]  # sm: a kernel that takes all SMs
POWER_CAP = "software power cap"


class VirtualClock:
    """Host time in ns since the simulated machine started; only the simulation moves it, and never back.

    A reading costs ``call_ns`` and shows whole multiples of ``step_ns``; ``time_ns`` is the exact time.
    """

    def __init__(self, call_ns: float = 0.0, step_ns: int = 1) -> None:
        self.time_ns = 1e9
        self._call_ns = call_ns
        self._step_ns = step_ns

    def now_ns(self) -> int:
        self.time_ns += self._call_ns
        return self.shown(self.time_ns)

    def shown(self, time_ns: float) -> int:
        return math.floor(time_ns / self._step_ns) * self._step_ns

    def all_shown(self, times_ns: FloatArray) -> IntArray:
        return (np.floor(times_ns / self._step_ns) * self._step_ns).astype(np.int64)

    def pass_ns(self, duration_ns: float) -> float:
        """Let time pass; returns the new time. Raises ValueError for a negative duration."""
        if duration_ns < 0:
            raise ValueError("time does not run backwards")
        self.time_ns += duration_ns
        return self.time_ns

    def wait_until(self, time_ns: float) -> None:
        """Let time pass until then; a time in the past changes nothing."""
        self.time_ns = max(self.time_ns, time_ns)


class Noise:
    """Seeded noise: log-normal with ``spread`` around each cost (its median), and rare long host calls.

    ``spread`` 0 gives every cost exactly. ``late`` counts the long calls.
    """

    def __init__(self, seed: int, spread: float) -> None:
        self._random = np.random.default_rng(seed)
        self.spread = spread
        self.late = 0

    def device(self, cost_ns: float, count: int) -> FloatArray:
        """``count`` costs of the device: no tails."""
        exact = not self.spread or not cost_ns
        if count == 1:  # most calls come alone, and numpy is slower on an array of one than on a number
            return np.array([cost_ns if exact else cost_ns * math.exp(self.spread * self._random.standard_normal())])
        if exact:
            return np.full(count, cost_ns)
        costs: FloatArray = cost_ns * np.exp(self.spread * self._random.standard_normal(count))
        return costs

    def host(self, cost_ns: float, count: int) -> FloatArray:
        """``count`` costs of the host, tails included."""
        costs = self.device(cost_ns, count)
        if self.spread:
            late = self._random.random(count) < TAIL_SHARE
            if late.any():
                self.late += int(late.sum())
                costs[late] += self._random.exponential(TAIL_MEAN_NS, int(late.sum()))
        return costs

    def one(self, cost_ns: float) -> float:
        return float(self.host(cost_ns, 1)[0]) if self.spread else cost_ns

    def happens(self, share: float) -> bool:
        """True in that share of all times; never without noise."""
        return bool(self.spread) and float(self._random.random()) < share


class Load(msgspec.Struct, frozen=True):
    """Work of the SMs: cycles of their clock, and the shortest time that it takes at any clock, in ns.

    ``tensor`` work lowers the clock.
    """

    cycles: float
    least_ns: float = 0.0
    tensor: bool = False


class Item(msgspec.Struct, frozen=True):
    """An item that one call puts into a stream.

    ``gap_ns`` passes between the end of the preceding item in the stream and its start. ``buffer_bytes`` is its share
    of the queue's buffer; an item that is not ``queued`` takes neither a slot nor a share. ``energy_j`` is its energy
    above idle. An item with a ``load`` takes the time of the load at the current clock, plus ``duration_ns``.
    """

    gap_ns: float = 0.0
    duration_ns: float = 0.0
    queued: bool = True
    buffer_bytes: float = 0.0
    engine: Engine | None = None
    traffic: Traffic = Traffic()
    energy_j: float = 0.0
    load: Load | None = None


GATE = Item()
WAIT = Item(queued=False)


@dataclass
class Hold:
    """A gate kernel: it runs until it sees its flag, or until its time-out after its own start.

    ``opened_ns`` is the time from which the gate sees the flag: None before the host sets it, infinite once the host
    can no longer set it in time.
    """

    timeout_ns: float
    started_ns: float | None = None
    opened_ns: float | None = None

    @property
    def end_ns(self) -> float | None:
        """When the gate opens; None while that is not known."""
        if self.started_ns is None or self.opened_ns is None:
            return None
        return min(max(self.started_ns, self.opened_ns), self.started_ns + self.timeout_ns)

    @property
    def late(self) -> bool:
        """True if the time-out came before the flag."""
        if self.started_ns is None or self.opened_ns is None:
            return False
        return self.opened_ns > self.started_ns + self.timeout_ns


@dataclass
class Batch:
    """A run of equal items of one stream; ``starts_ns`` and ``ends_ns`` of its items are None until they are known.

    ``first`` is the number of its first item in the stream's queue, ``after`` the batch whose end it waits for.
    """

    item: Item
    stream: Stream
    arrivals_ns: FloatArray
    first: int
    after: Batch | None = None
    hold: Hold | None = None
    starts_ns: FloatArray | None = None
    ends_ns: FloatArray | None = None


class Stream:
    """One stream: when it is free, its last event record, and its launch queue.

    The queue remembers the last ``slots`` items: ``starts_ns``, infinite while unknown (an item leaves its slot when it
    starts), and ``filled_bytes``, the buffer bytes taken by all items up to each.
    """

    def __init__(self, slots: int) -> None:
        self.free_ns = -math.inf
        self.recorded: Batch | None = None
        self.entered = 0
        self._slots = slots
        # Items are added at the end; what is remembered moves to the front only when there is no more room.
        self._starts_ns = np.full(ROOM * slots, -math.inf)
        self._filled_bytes = np.zeros(ROOM * slots)
        self._end = slots

    @property
    def starts_ns(self) -> FloatArray:
        return self._starts_ns[self._end - self._slots : self._end]

    @property
    def filled_bytes(self) -> FloatArray:
        return self._filled_bytes[self._end - self._slots : self._end]

    def released_ns(self, item: Item, count: int, buffer_bytes: float) -> FloatArray:
        """The time from which each of the next ``count`` items finds a slot and its share of ``buffer_bytes`` free."""
        known = self.filled_bytes
        if count == 1:
            place = int(known.searchsorted(known[-1] + item.buffer_bytes - buffer_bytes))
            return self.starts_ns[place : place + 1].copy()
        filled = known[-1] + item.buffer_bytes * np.arange(1, count + 1)
        gone_before = np.maximum(np.arange(count), known.searchsorted(filled - buffer_bytes))
        released: FloatArray = self.starts_ns[gone_before]
        return released

    def enter(self, item: Item, count: int) -> int:
        """Put items into the queue, their starts unknown; returns the number of the first."""
        if self._end + count > len(self._starts_ns):
            for remembered in (self._starts_ns, self._filled_bytes):
                remembered[: self._slots] = remembered[self._end - self._slots : self._end].copy()
            self._end = self._slots
        before, begin, self._end = self.filled_bytes[-1], self._end, self._end + count
        numbers = 1 if count == 1 else np.arange(1, count + 1)
        self._filled_bytes[begin : self._end] = before + item.buffer_bytes * numbers
        self._starts_ns[begin : self._end] = math.inf
        self.entered += count
        return self.entered - count

    def leave(self, first: int, starts_ns: FloatArray) -> None:
        """Items from number ``first`` on start at these times, which frees their slots."""
        at = first - self.entered + self._slots
        self.starts_ns[at : at + len(starts_ns)] = starts_ns


class Device:
    """All streams of one simulated GPU; times are host ns.

    A stream runs one kernel at a time, so the limit on resident kernels binds only beyond that many streams:
    ``FakeGpu.resident`` simulates it.
    """

    def __init__(self, costs: FakeCosts, noise: Noise) -> None:
        self._costs = costs
        self._noise = noise
        self._streams: dict[int, Stream] = {}
        self._engine_free_ns: dict[Engine | None, float] = {}
        self._pending: list[Batch] = []
        self.received_bytes = 0.0
        self.sent_bytes = 0.0
        self.energy = EnergyCounter(costs.memory)
        self.governor = Governor(costs)

    def stream(self, index: int) -> Stream:
        if index not in self._streams:
            self._streams[index] = Stream(self._costs.queue_slots)
        return self._streams[index]

    def submit(
        self, index: int, item: Item, begin_ns: float, calls_ns: FloatArray, after: Batch | None = None
    ) -> tuple[FloatArray, list[Batch]]:
        """Put an item into a stream again and again, by calls that take ``calls_ns`` each unless they must wait.

        Returns when each call returned, and the batches that the items became (one, unless the queue filled).
        """
        stream = self.stream(index)
        returns: list[FloatArray] = []
        batches: list[Batch] = []
        while calls_ns.size:
            released_ns = self._released(stream, item, calls_ns.size)
            count = len(released_ns)
            released_ns[0] = max(released_ns[0], begin_ns)
            returned_ns = max_plus(released_ns, calls_ns[:count])
            batches.append(self._enter(stream, item, returned_ns, after, None))
            returns.append(returned_ns)
            begin_ns, calls_ns = float(returned_ns[-1]), calls_ns[count:]
        return returns[0] if len(returns) == 1 else np.concatenate(returns), batches

    def shut(self, indices: tuple[int, ...], begin_ns: float, call_ns: float, timeout_ns: float) -> tuple[float, Hold]:
        """Hold the first stream by a gate kernel, the others by waits for it. Returns when the host is done, and the
        gate."""
        hold = Hold(timeout_ns)
        stream = self.stream(indices[0])
        now_ns = max(begin_ns, float(self._released(stream, GATE, 1)[0])) + call_ns
        gate = self._enter(stream, GATE, np.array([now_ns]), None, hold)
        for other in indices[1:]:
            returned_ns, _ = self.submit(other, WAIT, now_ns, np.array([self._costs.wait_event_ns]), gate)
            now_ns = float(returned_ns[-1])
        return now_ns, hold

    def open(self, hold: Hold, seen_ns: float) -> None:
        """Set the gate's flag, which its kernel sees at that time; too late if the gate has timed out already."""
        if hold.opened_ns is None:
            hold.opened_ns = seen_ns
            self._settle()

    def idle_ns(self, index: int) -> float:
        """When everything submitted to the stream so far has ended. Gates that hold it time out."""
        stream = self.stream(index)
        while any(batch.stream is stream for batch in self._pending):
            self._time_out_a_gate()
        return stream.free_ns

    def all_idle_ns(self) -> float:
        return max((self.idle_ns(index) for index in self._streams), default=-math.inf)

    def forget_streams(self) -> None:
        """Drop all streams. Call when they are idle."""
        self._streams.clear()

    def _released(self, stream: Stream, item: Item, count: int) -> FloatArray:
        """When each of the next items may enter the queue, for one to ``count`` items."""
        if not item.queued:
            return np.full(count, -math.inf)
        count = min(count, self._costs.queue_depth(item.buffer_bytes))
        while True:
            released_ns = stream.released_ns(item, count, self._costs.queue_buffer_bytes)
            known = int(released_ns.searchsorted(math.inf))
            if known:
                return released_ns[:known]
            self._time_out_a_gate()  # the host blocks behind a shut gate, so nobody can open it

    def _enter(
        self, stream: Stream, item: Item, returned_ns: FloatArray, after: Batch | None, hold: Hold | None
    ) -> Batch:
        count = len(returned_ns)
        arrivals_ns = returned_ns + self._noise.device(self._costs.launch_to_start_ns, count)
        first = stream.enter(item, count) if item.queued else 0
        batch = Batch(item, stream, arrivals_ns, first, after, hold)
        self.received_bytes += count * item.traffic.received
        self.sent_bytes += count * item.traffic.sent
        self._pending.append(batch)
        self._settle()
        return batch

    def _settle(self) -> None:
        """Give times to all items for which they can be known, in the order of submission."""
        unknown: list[Batch] = []
        shut: list[Stream] = []
        for batch in self._pending:
            waits = batch.after is not None and batch.after.ends_ns is None
            if waits or batch.stream in shut or not self._run(batch):
                shut.append(batch.stream)
                unknown.append(batch)
        self._pending = unknown

    def _run(self, batch: Batch) -> bool:
        """Simulate a batch. False for a gate that has started and is still shut."""
        item, stream = batch.item, batch.stream
        if batch.starts_ns is None:
            batch.starts_ns, ends_ns = self._times_ns(batch)
            if item.queued:
                stream.leave(batch.first, batch.starts_ns)
            if batch.hold is None:
                batch.ends_ns = ends_ns
            else:
                batch.hold.started_ns = float(batch.starts_ns[0])
        if batch.hold is not None:
            if batch.hold.end_ns is None:
                return False
            batch.ends_ns = np.array([batch.hold.end_ns])
        assert batch.ends_ns is not None
        stream.free_ns = float(batch.ends_ns[-1])
        if item.engine:
            self._engine_free_ns[item.engine] = stream.free_ns
        if item.energy_j:
            self.energy.add(batch.ends_ns, item.energy_j)
        return True

    def _times_ns(self, batch: Batch) -> tuple[FloatArray, FloatArray]:
        """Starts and ends of the items. The first item also waits for an event and for its engine."""
        item, count = batch.item, len(batch.arrivals_ns)
        gaps_ns = self._noise.device(item.gap_ns, count)
        ready_ns = batch.arrivals_ns - gaps_ns
        event_ns = float(batch.after.ends_ns[-1]) if batch.after and batch.after.ends_ns is not None else -math.inf
        held_ns = max(event_ns, self._engine_free_ns.get(item.engine, -math.inf))
        ready_ns[0] = max(ready_ns[0], batch.stream.free_ns, held_ns - gaps_ns[0])
        if item.load is None:
            ends_ns = max_plus(ready_ns, gaps_ns + item.duration_ns)
            return ends_ns - item.duration_ns, ends_ns
        starts_ns, ends_ns, end_ns = np.empty(count), np.empty(count), -math.inf
        for index in range(count):  # the duration of each depends on the clock at its start
            starts_ns[index] = max(end_ns, float(ready_ns[index])) + float(gaps_ns[index])
            end_ns = float(starts_ns[index]) + self.governor.work(item, item.load, float(starts_ns[index]))
            ends_ns[index] = end_ns
        return starts_ns, ends_ns

    def _time_out_a_gate(self) -> None:
        """Time out the shut gate whose time-out comes first: the host can no longer open it."""
        shut = [batch.hold for batch in self._pending if batch.hold and batch.hold.started_ns is not None]
        if not shut:
            raise MeasurementError("the simulated GPU waits for an event that nobody records")
        first = min(shut, key=lambda hold: (hold.started_ns or 0.0) + hold.timeout_ns)
        first.opened_ns = math.inf
        self._settle()


def max_plus(floors: FloatArray, steps: FloatArray) -> FloatArray:
    """x[i] = max(x[i - 1], floors[i]) + steps[i], x[-1] being -infinity; arrays of one shape (n,).

    ``floors[0]`` must be finite. Unrolled: x[i] is the greatest of floors[j] + steps[j] + … + steps[i] over j <= i.
    """
    if len(steps) == 1:
        return floors + steps
    total = np.cumsum(steps)
    result: FloatArray = total + np.maximum.accumulate(floors - (total - steps))
    return result


class EnergyCounter:
    """Joules since the simulated machine started, shown in steps. Work counts from its end on."""

    def __init__(self, costs: MemoryCosts) -> None:
        self._idle_power_w = costs.idle_power_w
        self._step_ns = costs.energy_step_s * 1e9
        self._shown_j = 0.0
        self._to_come: list[tuple[FloatArray, float]] = []

    def add(self, ends_ns: FloatArray, each_j: float) -> None:
        """Add work that ends at these times and takes ``each_j`` per item."""
        self._to_come.append((ends_ns, each_j))

    def shown_j(self, now_ns: float) -> float:
        """The energy at the last step before ``now_ns``, which must not decrease from call to call."""
        until_ns = math.floor(now_ns / self._step_ns) * self._step_ns
        to_come = []
        for ends_ns, each_j in self._to_come:
            ended = int(np.searchsorted(ends_ns, until_ns, side="right"))
            self._shown_j += ended * each_j
            if ended < len(ends_ns):
                to_come.append((ends_ns[ended:], each_j))
        self._to_come = to_come
        return self._shown_j + self._idle_power_w * until_ns * 1e-9


class Stretch(NamedTuple):
    """The GPU's state from ``begin_ns`` until the next stretch begins."""

    begin_ns: float
    clock_hz: float
    power_w: float
    temperature_c: float
    tensor: bool = False
    capped: bool = False


class Governor:
    """The SM clock: after a rest it is the highest for ``boost_s``, and then the one at which the work draws the power
    limit.

    Work must come in the order of time.
    """

    def __init__(self, costs: FakeCosts) -> None:
        self._costs = costs
        self._rest_ns = costs.compute.rest_s * 1e9
        self._stretches = [self._resting(-math.inf)]
        self._ended_ns = -math.inf
        self._boost_end_ns = -math.inf

    def work(self, item: Item, load: Load, start_ns: float) -> float:
        """How long an item takes that starts at ``start_ns``, in ns."""
        own, highest_hz = self._costs.compute, self._costs.sm_clock_hz
        if start_ns > self._ended_ns + self._rest_ns:
            self._begin(self._resting(self._ended_ns))
            self._boost_end_ns = start_ns + own.boost_s * 1e9
        top_hz = highest_hz - own.tensor_offset_hz if load.tensor else highest_hz
        top_ns = load.cycles / top_hz * 1e9  # all of it at the highest clock
        boost_ns = min(max(self._boost_end_ns - start_ns, 0.0), top_ns)
        # The clock at which the item draws the power limit; the highest if it never does.
        at_limit_ns = item.energy_j / (own.power_limit_w - self._costs.memory.idle_power_w) * 1e9 - item.duration_ns
        held_hz = min(load.cycles / at_limit_ns * 1e9, top_hz) if at_limit_ns > load.least_ns else top_hz
        busy_ns = boost_ns + (top_ns - boost_ns) * top_hz / held_hz
        if boost_ns > 0:
            self._begin(self._working(start_ns, item, load, top_hz, capped=False))
        if boost_ns < top_ns:
            self._begin(self._working(start_ns + boost_ns, item, load, held_hz, capped=held_hz < top_hz))
        self._ended_ns = start_ns + max(busy_ns, load.least_ns) + item.duration_ns
        return self._ended_ns - start_ns

    def at(self, now_ns: float) -> Stretch:
        """The GPU's state at that time. After the last work it is idle, first at the clock of that work."""
        if now_ns < self._ended_ns:
            return self._stretches[bisect_right(self._stretches, (now_ns, math.inf)) - 1]
        resting = self._resting(now_ns)
        if now_ns > self._ended_ns + self._rest_ns:
            return resting
        return resting._replace(clock_hz=self._stretches[-1].clock_hz)

    def mean_hz(self, begin_ns: float, end_ns: float) -> float:
        cycles, until_ns = 0.0, end_ns
        for stretch in reversed(self._stretches):
            since_ns = max(stretch.begin_ns, begin_ns)
            if since_ns < until_ns:
                cycles += stretch.clock_hz * (until_ns - since_ns)
                until_ns = since_ns
            if stretch.begin_ns <= begin_ns:
                break
        return cycles / (end_ns - begin_ns)

    def _resting(self, begin_ns: float) -> Stretch:
        costs = self._costs
        return Stretch(begin_ns, costs.sm_clock_hz, costs.memory.idle_power_w, costs.compute.idle_temperature_c)

    def _working(self, begin_ns: float, item: Item, load: Load, clock_hz: float, *, capped: bool) -> Stretch:
        taken_ns = max(load.cycles / clock_hz * 1e9, load.least_ns) + item.duration_ns
        work_w = item.energy_j / taken_ns * 1e9
        temperature_c = self._costs.compute.idle_temperature_c + self._costs.compute.kelvin_per_watt * work_w
        power_w = self._costs.memory.idle_power_w + work_w
        return Stretch(begin_ns, clock_hz, power_w, temperature_c, load.tensor, capped)

    def _begin(self, stretch: Stretch) -> None:
        if stretch[1:] != self._stretches[-1][1:]:
            self._stretches.append(stretch)
