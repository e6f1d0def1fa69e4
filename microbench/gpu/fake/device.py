"""The simulation of the GPU: calls enter launch queues, the front end starts items, copy engines and gates hold them.

A run of equal calls is one Batch, and its events obey two recurrences: a call returns at max(previous return, its slot
is free) + its cost; an item ends at max(previous end + gap, arrival) + duration. ``max_plus`` solves both exactly,
also for calls that block on a full queue.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray
from microbench.gpu.fake.costs import ComputeCosts, FakeCosts, MemoryCosts, Traffic

# The virtual host clock and the seeded noise of the simulation.


FloatArray = npt.NDArray[np.float64]

# Rare long host calls (an interrupt, another process): one call in 500 takes 6 us longer on average.
TAIL_SHARE = 0.002
TAIL_MEAN_NS = 6000.0


class VirtualClock:
    """Host time in ns since the simulated machine started; it moves only when the simulation says so, never back.

    A reading costs ``call_ns`` and shows whole multiples of ``step_ns``.
    """

    def __init__(self, call_ns: float = 0.0, step_ns: int = 1) -> None:
        self._time_ns = 1e9
        self._call_ns = call_ns
        self._step_ns = step_ns

    @property
    def time_ns(self) -> float:
        """The exact time, for the simulation itself: looking costs nothing."""
        return self._time_ns

    def now_ns(self) -> int:
        """A reading, as the Meter takes it."""
        self._time_ns += self._call_ns
        return self.shown(self._time_ns)

    def shown(self, time_ns: float) -> int:
        """What the clock shows at that time."""
        return math.floor(time_ns / self._step_ns) * self._step_ns

    def all_shown(self, times_ns: FloatArray) -> IntArray:
        """What the clock shows at each of those times."""
        return (np.floor(times_ns / self._step_ns) * self._step_ns).astype(np.int64)

    def pass_ns(self, duration_ns: float) -> float:
        """Let time pass; the new time. Raises ValueError for a negative duration."""
        if duration_ns < 0:
            raise ValueError("time does not run backwards")
        self._time_ns += duration_ns
        return self._time_ns

    def wait_until(self, time_ns: float) -> float:
        """Let time pass until then, if it is not past already; the new time."""
        self._time_ns = max(self._time_ns, time_ns)
        return self._time_ns


class Noise:
    """Seeded noise: a share of ``spread`` log-normal about each cost (its median), and rare long host calls.

    ``spread`` 0 gives every cost exactly.
    """

    def __init__(self, seed: int, spread: float) -> None:
        self._random = np.random.default_rng(seed)
        self.spread = spread

    def device(self, cost_ns: float, count: int) -> FloatArray:
        """``count`` costs of the device: no tails."""
        if not self.spread or not cost_ns:
            return np.full(count, cost_ns)
        if count == 1:  # most calls come alone, and an array of one takes numpy longer than a number
            return np.array([cost_ns * math.exp(self.spread * self._random.standard_normal())])
        costs: FloatArray = cost_ns * np.exp(self.spread * self._random.standard_normal(count))
        return costs

    def host(self, cost_ns: float, count: int) -> FloatArray:
        """``count`` costs of the host, tails included."""
        costs = self.device(cost_ns, count)
        if self.spread and count == 1:
            if self._random.random() < TAIL_SHARE:
                costs[0] += self._random.exponential(TAIL_MEAN_NS)
        elif self.spread:
            late = self._random.random(count) < TAIL_SHARE
            costs[late] += self._random.exponential(TAIL_MEAN_NS, int(late.sum()))
        return costs

    def one(self, cost_ns: float) -> float:
        """A single cost of the host."""
        return float(self.host(cost_ns, 1)[0]) if self.spread else cost_ns

    def happens(self, share: float) -> bool:
        """True in that share of all times; never without noise."""
        return bool(self.spread) and float(self._random.random()) < share


# What stands in the simulated streams: items, gates that hold them, and the launch queue of finite depth.


Engine = Literal["h2d", "d2h", "sm"]  # sm: a kernel that takes all SMs
ENGINES: tuple[Engine, ...] = ("h2d", "d2h", "sm")


class Load(msgspec.Struct, frozen=True):
    """What keeps the SMs at work: cycles of their clock, and the time that it takes at any clock, in ns.

    ``tensor`` work holds the clock down.
    """

    cycles: float
    least_ns: float = 0.0
    tensor: bool = False


class Item(msgspec.Struct, frozen=True):
    """What one call puts into a stream.

    ``gap_ns`` passes between the end of what is before it in the stream and its start. ``buffer_bytes`` is its share of
    the queue's buffer; an item that is not ``queued`` takes neither a slot nor a share. ``energy_j`` is what it takes
    beyond what an idle GPU draws. An item with a ``load`` takes as long as that does at the clock that it finds, beyond
    its ``duration_ns``.
    """

    gap_ns: float = 0.0
    duration_ns: float = 0.0
    queued: bool = True
    buffer_bytes: float = 0.0
    engine: Engine | None = None
    traffic: Traffic = Traffic(0.0, 0.0)
    energy_j: float = 0.0
    load: Load | None = None


@dataclass
class Hold:
    """A gate kernel: runs until its flag is seen, or until its time-out after its own start.

    ``opened_ns`` is when the flag can be seen: None while the host has not set it, infinite when it is known that the
    host cannot set it in time.
    """

    timeout_ns: float
    started_ns: float | None = None
    opened_ns: float | None = None

    @property
    def end_ns(self) -> float | None:
        """When the gate lets go, None while that is not known."""
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
    """A run of equal items of one stream: the events of its items, None until they are known.

    ``first`` is the number of its first item in the stream's queue, ``after`` what a wait waits for.
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
        self.starts_ns = np.full(slots, -math.inf)
        self.filled_bytes = np.zeros(slots)

    def released_ns(self, item: Item, count: int, buffer_bytes: float) -> FloatArray:
        """From when on each of the next ``count`` items finds a slot and its share of ``buffer_bytes`` free."""
        filled = self.filled_bytes[-1] + item.buffer_bytes * np.arange(1, count + 1)
        by_bytes = np.searchsorted(self.filled_bytes, filled - buffer_bytes)
        gone_before = np.maximum(np.arange(count), by_bytes)
        released: FloatArray = self.starts_ns[gone_before]
        return released

    def enter(self, item: Item, count: int) -> int:
        """Put items into the queue, their starts unknown; the number of the first."""
        filled = self.filled_bytes[-1] + item.buffer_bytes * np.arange(1, count + 1)
        self.filled_bytes = np.concatenate((self.filled_bytes[count:], filled))
        self.starts_ns = np.concatenate((self.starts_ns[count:], np.full(count, math.inf)))
        self.entered += count
        return self.entered - count

    def leave(self, first: int, starts_ns: FloatArray) -> None:
        """Items from number ``first`` on start at these times, which frees their slots."""
        at = first - self.entered + len(self.starts_ns)
        self.starts_ns[at : at + len(starts_ns)] = starts_ns


def max_plus(floors: FloatArray, steps: FloatArray) -> FloatArray:
    """x[i] = max(x[i - 1], floors[i]) + steps[i], x[-1] being -infinity; arrays of one shape (n,).

    ``floors[0]`` must be finite. Unrolled: x[i] is the greatest of floors[j] + steps[j] + … + steps[i] over j <= i.
    """
    if len(steps) == 1:
        return floors + steps
    total = np.cumsum(steps)
    result: FloatArray = total + np.maximum.accumulate(floors - (total - steps))
    return result


# The energy counter of the simulated GPU: what idling draws, and what ended work took, shown in steps of time.


MOST_OPEN = 256


class EnergyCounter:
    """Joules since the simulated machine started. An item's energy counts from its end on."""

    def __init__(self, costs: MemoryCosts) -> None:
        self._idle_power_w = costs.idle_power_w
        self._step_ns = costs.energy_step_s * 1e9
        self._work_j = 0.0
        self._open: list[Batch] = []

    def add(self, batch: Batch, now_ns: float) -> None:
        """Count a batch's items as they end."""
        self._open.append(batch)
        if len(self._open) > MOST_OPEN:
            self.shown_j(now_ns)

    def shown_j(self, now_ns: float) -> float:
        """What the counter shows: the energy up to its last step. Time must not run backwards between two looks."""
        until_ns = math.floor(now_ns / self._step_ns) * self._step_ns
        shown_j = self._work_j + self._idle_power_w * until_ns * 1e-9
        still_open: list[Batch] = []
        for batch in self._open:
            ended = 0 if batch.ends_ns is None else int(np.searchsorted(batch.ends_ns, until_ns, side="right"))
            shown_j += ended * batch.item.energy_j
            if ended == len(batch.arrivals_ns):
                self._work_j += ended * batch.item.energy_j
            else:
                still_open.append(batch)
        self._open = still_open
        return shown_j


# The simulated GPU's SM clock, power and temperature: work beyond the power limit pulls the clock down, rest lifts it.
#
# Every item with a ``Load`` takes a fixed energy, so its power is the higher the faster it runs. While the power would
# be above the limit, the clock falls towards the one at which it is the limit, with a time constant.


STEP_NS = 0.5e6
SETTLED = 1e-6
# What can be looked back at: more stretches than the calls between two kernels that read the clock.
REMEMBERED = 4096
POWER_CAP = "software power cap"


class Stretch(NamedTuple):
    """A time in which the GPU did one thing: its mean clock and power, the temperature at its end."""

    begin_ns: float
    end_ns: float
    clock_hz: float
    power_w: float
    temperature_c: float
    tensor: bool = False
    capped: bool = False


class Governor:
    """One GPU's clock. Work must be told in the order of time; what was may be looked back at."""

    def __init__(self, costs: ComputeCosts, highest_hz: float, idle_power_w: float) -> None:
        self._costs = costs
        self._highest_hz = highest_hz
        self._idle_power_w = idle_power_w
        self._by_power_hz = highest_hz
        self._by_kind_hz = highest_hz
        self._temperature_c = costs.idle_temperature_c
        self._now_ns = 0.0
        self._stretches: deque[Stretch] = deque(maxlen=REMEMBERED)

    @property
    def _clock_hz(self) -> float:
        return min(self._by_power_hz, self._by_kind_hz)

    def work(self, item: Item, load: Load, start_ns: float) -> float:
        """How long an item takes that starts then, in ns."""
        self._rest_until(start_ns)
        allowed_hz = self._allowed_hz(item, load)
        if load.tensor:
            self._by_kind_hz = min(self._by_kind_hz, self._highest_hz - self._costs.tensor_offset_hz)
        busy_ns, left = 0.0, load.cycles
        while left > 0:
            clock_hz = self._clock_hz
            settled = abs(self._by_power_hz - allowed_hz) <= SETTLED * allowed_hz
            rest_ns = left / clock_hz * 1e9
            step_ns = rest_ns if settled else min(rest_ns, STEP_NS)
            left = left - clock_hz * step_ns * 1e-9 if step_ns < rest_ns else 0.0
            busy_ns += step_ns
            self._drift(step_ns, allowed_hz, load.tensor)
        waited_ns = max(load.least_ns - busy_ns, 0.0) + item.duration_ns
        self._drift(waited_ns, allowed_hz, load.tensor)
        clock_hz = load.cycles / busy_ns * 1e9 if busy_ns > waited_ns else self._clock_hz
        self._pass(busy_ns + waited_ns, clock_hz, item.energy_j, load.tensor, capped=allowed_hz < self._highest_hz)
        return busy_ns + waited_ns

    def mean_hz(self, begin_ns: float, end_ns: float) -> float:
        """The mean clock between two times."""
        cycles, until_ns = 0.0, end_ns
        for one in reversed(self._stretches):
            last_ns = max(min(one.end_ns, until_ns), begin_ns)
            first_ns = max(one.begin_ns, begin_ns)
            if last_ns > first_ns:
                cycles += (until_ns - last_ns) * self._clock_hz + (last_ns - first_ns) * one.clock_hz
                until_ns = first_ns
            if until_ns <= begin_ns or one.end_ns <= begin_ns:
                break
        return (cycles + (until_ns - begin_ns) * self._clock_hz) / (end_ns - begin_ns)

    def at(self, now_ns: float) -> Stretch:
        """What the GPU does at that time. A time to come is one of rest."""
        if now_ns >= self._now_ns:
            self._rest_until(now_ns)
            return Stretch(now_ns, now_ns, self._clock_hz, self._idle_power_w, self._temperature_c)
        for one in reversed(self._stretches):
            if one.begin_ns <= now_ns < one.end_ns:
                return one
        return self._stretches[0]

    def _allowed_hz(self, item: Item, load: Load) -> float:
        """The clock at which the item draws what the limit allows; the highest where it never draws as much."""
        at_limit_ns = item.energy_j / (self._costs.power_limit_w - self._idle_power_w) * 1e9 - item.duration_ns
        if at_limit_ns <= load.least_ns:
            return self._highest_hz
        return min(load.cycles / at_limit_ns * 1e9, self._highest_hz)

    def _rest_until(self, time_ns: float) -> None:
        rested_ns = time_ns - self._now_ns
        if rested_ns <= 0:
            return
        before_hz = self._clock_hz
        self._drift(rested_ns, self._highest_hz, tensor=False)
        self._pass(rested_ns, (before_hz + self._clock_hz) / 2, 0.0, tensor=False, capped=False)

    def _drift(self, passed_ns: float, allowed_hz: float, tensor: bool) -> None:
        """Let the clock move towards what is allowed for so long."""
        costs, passed_s = self._costs, passed_ns * 1e-9
        constant_s = costs.fall_s if allowed_hz < self._by_power_hz else costs.recovery_s
        self._by_power_hz = allowed_hz + (self._by_power_hz - allowed_hz) * math.exp(-passed_s / constant_s)
        if not tensor:
            missing_hz = self._highest_hz - self._by_kind_hz
            self._by_kind_hz = self._highest_hz - missing_hz * math.exp(-passed_s / costs.recovery_s)

    def _pass(self, passed_ns: float, clock_hz: float, energy_j: float, tensor: bool, *, capped: bool) -> None:
        costs, passed_s = self._costs, passed_ns * 1e-9
        work_w = energy_j / passed_s if passed_s else 0.0
        goal_c = costs.idle_temperature_c + costs.kelvin_per_watt * work_w
        self._temperature_c = goal_c + (self._temperature_c - goal_c) * math.exp(-passed_s / costs.warming_s)
        begin_ns, self._now_ns = self._now_ns, self._now_ns + passed_ns
        power_w = self._idle_power_w + work_w
        self._stretches.append(Stretch(begin_ns, self._now_ns, clock_hz, power_w, self._temperature_c, tensor, capped))


GATE = Item()
WAIT = Item(queued=False)


class Device:
    """All streams of one simulated GPU; times are host ns.

    A stream runs one kernel at a time, so the limit on resident kernels binds only beyond that many streams:
    ``FakeGpu.resident`` plays it out.
    """

    def __init__(self, costs: FakeCosts, noise: Noise) -> None:
        self._costs = costs
        self._noise = noise
        self._streams: dict[int, Stream] = {}
        self._engine_free_ns: dict[Engine, float] = dict.fromkeys(ENGINES, -math.inf)
        self._pending: list[Batch] = []
        self.received_bytes = 0.0
        self.sent_bytes = 0.0
        self.energy = EnergyCounter(costs.memory)
        self.governor = Governor(costs.compute, costs.sm_clock_hz, costs.memory.idle_power_w)

    def stream(self, index: int) -> Stream:
        """The stream of that index, made when first asked for."""
        if index not in self._streams:
            self._streams[index] = Stream(self._costs.queue_slots)
        return self._streams[index]

    # -- what the host does ------------------------------------------------------------------------------------

    def submit(
        self, index: int, item: Item, begin_ns: float, calls_ns: FloatArray, after: Batch | None = None
    ) -> tuple[FloatArray, list[Batch]]:
        """Put one item after another into a stream, by calls that take ``calls_ns`` each when they need not wait.

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

    def _released(self, stream: Stream, item: Item, count: int) -> FloatArray:
        """When each of the next items may enter the queue: at most ``count``, at least one of them."""
        if not item.queued:
            return np.full(count, -math.inf)
        most = self._costs.queue_slots
        if item.buffer_bytes:
            most = min(most, int(self._costs.queue_buffer_bytes // item.buffer_bytes))
        while True:
            released_ns = stream.released_ns(item, min(count, most), self._costs.queue_buffer_bytes)
            known = int(np.searchsorted(released_ns, math.inf))
            if known:
                return released_ns[:known]
            self._time_out_a_gate()  # the host blocks behind a shut gate: nobody is left to open it

    def shut(self, indices: tuple[int, ...], begin_ns: float, call_ns: float, timeout_ns: float) -> tuple[float, Hold]:
        """A gate kernel in the first stream, a wait for its end in the others; when the host is done, and the gate."""
        hold = Hold(timeout_ns)
        first, others = indices[0], indices[1:]
        stream = self.stream(first)
        now_ns = max(begin_ns, float(self._released(stream, GATE, 1)[0])) + call_ns
        gate = self._enter(stream, GATE, np.array([now_ns]), None, hold)
        for other in others:
            returned_ns, _ = self.submit(other, WAIT, now_ns, np.array([self._costs.wait_event_ns]), gate)
            now_ns = float(returned_ns[-1])
        return now_ns, hold

    def open(self, hold: Hold, seen_ns: float) -> None:
        """Set the gate's flag, which its kernel sees at that time; too late if the gate has timed out already."""
        if hold.opened_ns is None:
            hold.opened_ns = seen_ns
            self._settle()

    def idle_ns(self, index: int) -> float:
        """When all that was submitted to the stream so far has ended. Gates that hold it time out."""
        stream = self.stream(index)
        while any(batch.stream is stream for batch in self._pending):
            self._time_out_a_gate()
        return stream.free_ns

    def all_idle_ns(self) -> float:
        """When all streams have ended what was submitted so far."""
        return max((self.idle_ns(index) for index in self._streams), default=-math.inf)

    def forget_streams(self) -> None:
        """Drop all streams. Call when they are idle."""
        self._streams.clear()

    # -- what the GPU does -------------------------------------------------------------------------------------

    def _enter(
        self, stream: Stream, item: Item, returned_ns: FloatArray, after: Batch | None, hold: Hold | None
    ) -> Batch:
        count = len(returned_ns)
        arrivals_ns = returned_ns + self._noise.device(self._costs.launch_to_start_ns, count)
        first = stream.enter(item, count) if item.queued else 0
        batch = Batch(item, stream, arrivals_ns, first, after, hold)
        self.received_bytes += count * item.traffic.received
        self.sent_bytes += count * item.traffic.sent
        if item.energy_j:
            self.energy.add(batch, float(returned_ns[0]))
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
        """Play a batch out. False for a gate that has started and is still shut."""
        item, stream, count = batch.item, batch.stream, len(batch.arrivals_ns)
        if batch.starts_ns is None:
            gaps_ns = self._noise.device(item.gap_ns, count)
            ready_ns = batch.arrivals_ns - gaps_ns
            ready_ns[0] = max(ready_ns[0], stream.free_ns, self._held_until_ns(batch) - gaps_ns[0])
            if item.load is None:
                ends_ns = max_plus(ready_ns, gaps_ns + item.duration_ns)
                batch.starts_ns = ends_ns - item.duration_ns
            else:
                batch.starts_ns, ends_ns = self._worked(item, item.load, ready_ns, gaps_ns)
            if item.queued:
                stream.leave(batch.first, batch.starts_ns)
            if batch.hold is None:
                batch.ends_ns = ends_ns
            else:
                batch.hold.started_ns = float(batch.starts_ns[0])
        if batch.hold is not None:
            end_ns = batch.hold.end_ns
            if end_ns is None:
                return False
            batch.ends_ns = np.array([end_ns])
        assert batch.ends_ns is not None
        stream.free_ns = float(batch.ends_ns[-1])
        if item.engine:
            self._engine_free_ns[item.engine] = stream.free_ns
        return True

    def _worked(
        self, item: Item, load: Load, ready_ns: FloatArray, gaps_ns: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Starts and ends of items that each take as long as the clock that they find makes them."""
        starts_ns, ends_ns = np.empty_like(ready_ns), np.empty_like(ready_ns)
        end_ns = -math.inf
        for index, (floor_ns, gap_ns) in enumerate(zip(ready_ns.tolist(), gaps_ns.tolist(), strict=True)):
            start_ns = max(end_ns, floor_ns) + gap_ns
            end_ns = start_ns + self.governor.work(item, load, start_ns)
            starts_ns[index], ends_ns[index] = start_ns, end_ns
        return starts_ns, ends_ns

    def _held_until_ns(self, batch: Batch) -> float:
        """What other streams keep the batch from: an event it waits for, a copy engine in use."""
        event_ns = float(batch.after.ends_ns[-1]) if batch.after and batch.after.ends_ns is not None else -math.inf
        engine = batch.item.engine
        return max(event_ns, self._engine_free_ns[engine]) if engine else event_ns

    def _time_out_a_gate(self) -> None:
        """Let the shut gate that times out first do so: the host cannot open it any more."""
        shut = [batch.hold for batch in self._pending if batch.hold and batch.hold.started_ns is not None]
        if not shut:
            raise MeasurementError("the simulated GPU waits for an event that nobody records")
        first = min(shut, key=lambda hold: (hold.started_ns or 0.0) + hold.timeout_ns)
        first.opened_ns = math.inf
        self._settle()
