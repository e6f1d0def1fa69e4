"""The simulation of the GPU: calls enter launch queues, the front end starts items, copy engines and gates hold them.

A run of equal calls is one Batch, and its events obey two recurrences: a call returns at max(previous return, its slot
is free) + its cost; an item ends at max(previous end + gap, arrival) + duration. ``max_plus`` solves both exactly,
also for calls that block on a full queue.
"""

from __future__ import annotations

import math

import numpy as np

from microbench.errors import MeasurementError
from microbench.gpu.fake.clock import FloatArray, Noise
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.energy import EnergyCounter
from microbench.gpu.fake.governor import Governor
from microbench.gpu.fake.stream import ENGINES, Batch, Engine, Hold, Item, Load, Stream, max_plus

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
