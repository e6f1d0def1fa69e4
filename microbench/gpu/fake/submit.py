"""Submit, Gate and EventPair of the simulated GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from microbench.errors import MeasurementError
from microbench.gpu.api import IntArray
from microbench.gpu.fake.calls import Call, Graph, call_of
from microbench.gpu.fake.machine import Machine, Made
from microbench.gpu.fake.stream import Batch, Hold
from microbench.ops import Op, Record, Wait


def bound(machine: Machine, op: Op, graphs: Mapping[int, Graph]) -> FakeSubmit:
    """An op made ready. Raises what ``call_of`` does."""
    other = op.other if isinstance(op, Wait) else None
    return FakeSubmit(machine, call_of(op, machine.costs, graphs), records=isinstance(op, Record), other=other)


class FakeSubmit:
    """A bound op of the simulated GPU. ``records`` makes its last call the stream's event record; ``other`` is the
    stream whose last event record a wait waits for."""

    def __init__(self, machine: Machine, call: Call, *, records: bool = False, other: int | None = None) -> None:
        self.queue_slots = call.queue_slots(machine.costs)
        self._machine = machine
        self._scope = machine.scope
        self._call = call
        self._records = records
        self._other = other

    def make(self, count: int, extra_ns: float = 0.0) -> Made:
        """See Machine.make."""
        self._machine.check(self._scope)
        device = self._machine.device
        after = None if self._other is None else device.stream(self._other).recorded
        made = self._machine.make(self._call, count, extra_ns, after)
        if self._records:
            device.stream(self._call.stream).recorded = made.batches[-1]
        return made

    def __call__(self, count: int) -> None:
        if count > 0:
            self.make(count)

    def burst_ns(self, count: int) -> int:
        clock = self._machine.clock
        began_ns = clock.now_ns()
        self(count)
        return clock.now_ns() - began_ns

    def stamps(self, out_ns: IntArray) -> None:
        clock = self._machine.clock
        out_ns[0] = clock.now_ns()
        if len(out_ns) > 1:
            out_ns[1:] = clock.all_shown(self.make(len(out_ns) - 1, self._machine.costs.timer_call_ns).returned_ns)

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        clock = self._machine.clock
        for index in range(len(out_ns)):
            began_ns = clock.now_ns()
            self.make(calls)
            self._machine.synchronize(self._call.stream)
            out_ns[index] = clock.now_ns() - began_ns


class FakeGate:
    """A kernel that holds simulated streams until ``open``, or until its time-out."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._hold: Hold | None = None

    def shut(self, streams: Sequence[int] = (0,), timeout_s: float = 0.5) -> None:
        machine = self._machine
        machine.check(self._scope)
        if not streams:
            raise MeasurementError("a gate needs a stream to hold")
        call_ns = machine.noise.one(machine.costs.submit_ns)
        now_ns, self._hold = machine.device.shut(tuple(streams), machine.clock.time_ns, call_ns, timeout_s * 1e9)
        machine.clock.wait_until(now_ns)

    def open(self) -> None:
        if self._hold is None:
            raise MeasurementError("the gate was never shut")
        now_ns = self._machine.clock.pass_ns(self._machine.costs.gate_open_ns)
        self._machine.device.open(self._hold, now_ns + self._machine.costs.host_read_ns)

    def was_late(self) -> bool:
        return self._hold is not None and self._hold.late


class FakeEventPair:
    """Two timing events in a simulated stream."""

    def __init__(self, machine: Machine, record: Call) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._record = record
        self._first: Batch | None = None
        self._last: Batch | None = None

    def start(self) -> None:
        self._first = self._put()

    def stop(self) -> None:
        self._last = self._put()

    def elapsed_s(self) -> float:
        if self._first is None or self._last is None:
            raise MeasurementError("both events must be recorded before their difference is asked for")
        self._machine.synchronize(self._record.stream)
        return (self._stamp_ns(self._last) - self._stamp_ns(self._first)) * 1e-9

    def _put(self) -> Batch:
        self._machine.check(self._scope)
        return self._machine.make(self._record, 1).batches[0]

    def _stamp_ns(self, batch: Batch) -> int:
        assert batch.ends_ns is not None, "a synchronised stream has no event to come"
        return int(self._machine.globaltimer_ns(batch.ends_ns)[0])
