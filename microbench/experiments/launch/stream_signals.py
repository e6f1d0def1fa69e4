"""Pairs of kernels with a signal between them in streams: events, host functions, stream memory operations."""

import threading
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from microbench.experiments.launch.exchanges import LINE_WORDS, WATCH_TIMEOUT_NS, clock_tie, on_host_clock
from microbench.gpu.cuda.context import check_code, entry_point
from microbench.gpu.cuda.submit import CallRow, Parameters, as_int64, launch
from microbench.gpu.cuda.timing import globaltimer_step_ns
from microbench.gpu.experiment import Case, IntArray, Item, Launch, MeasurementError, Skip, experiment, loops
from microbench.gpu.fake.machine import Call, Machine, call_of
from microbench.host.affinity import pinned
from microbench.host.native import c_address

# The signal between two kernels in ``stream_signals``: none, an event (without and with timing) that a second
# stream waits for, a host function, or stream memory operations on words of 32 or 64 bits in pinned host memory.
# wait_ready waits for a value that is there already, wait_32 and wait_64 for one that the host writes later. In
# write_wait the stream writes a word, and the host answers as soon as it sees it.
SignalWay = Literal[
    "same_stream", "event", "event_timed", "host_function", "write_32", "write_64", "wait_ready", "wait_32", "wait_64",
    "write_wait",
]  # fmt: skip
# How long the first of the two kernels runs, so that all calls have been made before it ends; and how long after the
# first call the host answers, so that the stream is already waiting.
SIGNAL_KERNEL_NS, SIGNAL_HELD_NS = 50_000, 100_000
NOT_SUPPORTED = 801  # CUDA_ERROR_NOT_SUPPORTED
NOT_SEEN, RELEASED = -1, -2  # codes of loops.signal_rounds
# If launches block until their kernel has run, a launch behind a wait never returns. Therefore another thread releases
# the stream after this time, a thousand times that of all rounds.
RELEASE_S = 10.0
# The last call must have returned at least this long before the first kernel's end, and the stream must have been
# waiting at least this long when the host answers late: a launch reaches an idle GPU within 3 us.
EARLY_NS = 10_000
# The argument of a call that counts the rounds: kernelParams of a launch, the value or the data of other calls.
PARAMETERS, VALUE = 9, 2
HOST_WORDS = 3  # of stamp_on_host
NEVER_NS = 1e9  # the time-out of a wait, which the host always answers before that


class SignalStamps(NamedTuple):
    """Pairs of kernels with one SignalWay between them, on the host's clock in ns.

    ``stamps`` has the shape (pairs, 5): after the last call, the first kernel's last instruction, the second kernel's
    first one, when the host saw the first kernel's end (its function began, or it read the word), and when it answered
    (before its function returned, or before it wrote); 0 where a way does not reach the host. Pairs whose calls came
    too late are left out. ``round_trip_ns`` is that of LaunchStamps, ``step_ns`` the smallest step of %globaltimer.
    """

    stamps: IntArray
    round_trip_ns: int
    step_ns: int


class StreamSignals:
    """``count`` pairs of kernels with one way between them, prepared once and run often.

    Raises Skip if GPU or driver have no such operations.
    """

    def __init__(self, case: Case, way: SignalWay, count: int) -> None:
        if way.endswith("64") and not case.context.attribute("CAN_USE_64_BIT_STREAM_MEM_OPS"):
            raise Skip("this GPU or driver has no stream memory operations on 64 bits")
        self._case, self._way, self._count = case, way, count
        self._out = case.device_memory(4 * 8 * count)
        self._words = case.pinned(2 * LINE_WORDS)  # what the stream writes; a line further, what it waits for
        self._written = int(self._words.ctypes.data)
        self._answered = self._written + 4 * LINE_WORDS
        self._stamps: IntArray = np.zeros((count, HOST_WORDS), dtype=np.int64)  # of the host function
        self._clock = c_address("clock_gettime")
        self._streams = (0, 1 if way in ("event", "event_timed") else 0)  # of the two kernels
        self._keep: list[CallRow] = []
        self._addresses, self._rows = self._calls()
        # The driver's thread for host functions must not sit on the launching core.
        with pinned(case.board.cores.allowed):
            self._run()

    def _calls(self) -> tuple[IntArray, IntArray]:
        """The addresses of a round's calls, and their arguments, shape (rounds, calls, 11)."""
        first, second = (self._kernel(place) for place in range(2))
        calls = [first, *self._between(), second]
        self._keep = [row for row, _, _ in calls]
        rows: IntArray = np.zeros((self._count, len(calls), loops.WIDE_ARGUMENTS), dtype=np.int64)
        for call, (row, place, step) in enumerate(calls):
            rows[:, call, : len(row.arguments)] = [as_int64(value) for value in row.arguments]
            rows[:, call, place] += step * np.arange(self._count)
        return np.array([as_int64(row.address) for row in self._keep], dtype=np.int64), rows

    def _kernel(self, place: int) -> tuple[CallRow, int, int]:
        """The first or second kernel of a pair, which stamps its begin and end. Only the first one spins."""
        cycles = 0 if place else self._case.cycles(SIGNAL_KERNEL_NS)
        parameters = Parameters([(self._out, 2 * index + place, cycles) for index in range(self._count)])
        op = Launch(stream=self._streams[place])
        submit = launch(self._case, self._case.function("launch", "record"), op, parameters)
        return CallRow.of(submit), PARAMETERS, submit.stride

    def _between(self) -> list[tuple[CallRow, int, int]]:
        """The calls between the two launches: each with the argument that changes from round to round, and its step."""
        way, (stream, other) = self._way, map(self._case.stream, self._streams)
        bits = 64 if way.endswith("64") else 32
        write = CallRow.named(f"cuStreamWriteValue{bits}", [stream, self._written, 1, 0]), VALUE, 1
        wait = CallRow.named(f"cuStreamWaitValue{bits}", [stream, self._answered, 1, 0]), VALUE, 1
        match way:
            case "same_stream":
                return []
            case "event" | "event_timed":
                event = self._case.event(timed=way == "event_timed")
                record = CallRow.named("cuEventRecord", [event, stream])
                return [(record, VALUE, 0), (CallRow.named("cuStreamWaitEvent", [other, event, 0]), VALUE, 0)]
            case "host_function":
                self._stamps[:, 0] = self._clock
                data = int(self._stamps.ctypes.data)
                call = CallRow.named("cuLaunchHostFunc", [stream, loops.stamp_on_host.address, data])
                return [(call, VALUE, self._stamps.strides[0])]
            case "write_32" | "write_64":
                return [write]
            case "wait_ready" | "wait_32" | "wait_64":
                return [wait]
            case "write_wait":
                return [write, wait]

    def _run(self) -> IntArray:
        """Run all rounds; returns the stamps of loops.signal_rounds. Raises Skip if the driver refuses."""
        way = self._way
        self._words[:] = 0
        self._stamps[:, 1:] = 0
        if way == "wait_ready":
            self._words[LINE_WORDS] = self._count
        out: IntArray = np.zeros((self._count, 3), dtype=np.int64)
        rounds = partial(
            loops.signal_rounds,
            self._addresses,
            self._rows,
            self._written if way.startswith("write") else 0,
            self._answered if way in ("wait_32", "wait_64", "write_wait") else 0,
            0 if way == "write_wait" else SIGNAL_HELD_NS,
            entry_point("cuStreamSynchronize"),
            as_int64(self._case.stream(self._streams[1])),
            self._clock,
            WATCH_TIMEOUT_NS,
        )
        rounds(out[:0])  # loads the loop, which may take seconds, before a stream waits
        watchdog = threading.Timer(RELEASE_S, lambda: self._words.__setitem__(LINE_WORDS, self._count))
        watchdog.start()
        try:
            code = rounds(out)
        finally:
            watchdog.cancel()
        if code == NOT_SUPPORTED:
            raise Skip("this driver refuses stream memory operations here (CUDA_ERROR_NOT_SUPPORTED)")
        if code == RELEASED:
            raise MeasurementError(
                f"a launch blocked behind a wait for {RELEASE_S:g} s: CUDA_LAUNCH_BLOCKING, a debugger or a profiler?"
            )
        if code == NOT_SEEN:
            raise MeasurementError("the host did not see the word that the stream should write")
        check_code(code, "two kernels and a signal between them")
        if way == "host_function":
            out[:, 1:] = self._stamps[:, 1:]
        return out

    def stamps(self) -> SignalStamps:
        """One run of all pairs.

        Raises MeasurementError unless every second kernel waited for the first one, and for the host's answer.
        """
        self._case.clear(self._out, 4 * 8 * self._count)
        before = clock_tie(self._case)
        host_ns = self._run()
        after = clock_tie(self._case)
        gpu_ns = self._case.read(self._out, 4 * self._count, np.int64).reshape(self._count, 4)
        if not gpu_ns.all():
            raise MeasurementError("a recording kernel did not run")
        ended, begun = on_host_clock(gpu_ns[:, 1:3], before, after).T
        queued, seen, answered = host_ns.T
        error_ns = max(before.round_trip_ns, after.round_trip_ns)
        reached, replied = seen > 0, answered > 0
        if (gpu_ns[:, 2] < gpu_ns[:, 1]).any() or (begun[replied] < answered[replied] - error_ns).any():
            raise MeasurementError("the second kernel began before the signal that it waits for")
        if (seen[reached] < ended[reached] - error_ns).any():
            raise MeasurementError("the host saw the signal before the first kernel had ended")
        if self._way.startswith("write") and int(self._words.view(np.uint64)[0]) != self._count:
            raise MeasurementError("the stream wrote a wrong word")
        in_time = queued + EARLY_NS <= ended
        if self._way in ("wait_32", "wait_64"):
            in_time &= ended + EARLY_NS <= answered
        stamps = np.column_stack([queued, ended, begun, seen, answered])[in_time]
        return SignalStamps(stamps, error_ns, self._case.once(globaltimer_step_ns))


def real_signals(case: Case, way: SignalWay, count: int) -> SignalStamps:
    """Up to ``count`` pairs of kernels, one pair at a time, with this way from the first to the second.

    Checks that no second kernel began too early. Raises Skip for operations that GPU or driver lack, and
    MeasurementError if the host does not see the stream's word in time. The host answers even then, so that no
    stream waits forever.
    """
    return case.once(StreamSignals, way, count).stamps()


def simulated_signals(machine: Machine, way: SignalWay, count: int) -> SignalStamps:
    costs = machine.costs
    stamps: IntArray = np.array([_pair(machine, way) for _ in range(count)], dtype=np.int64)
    return SignalStamps(stamps, round(costs.host_read_ns + costs.flag_to_host_ns), costs.globaltimer_step_ns)


def _pair(machine: Machine, way: SignalWay) -> tuple[int, int, int, int, int]:
    """One row of SignalStamps. The signal between the kernels delays the second one on top of the stream's gap."""
    costs, own, clock = machine.costs, machine.costs.signals, machine.clock
    to_host_ns, from_host_ns = (
        float(machine.noise.device(cost_ns, 1)[0])
        for cost_ns in (
            own.host_function_to_ns if way == "host_function" else own.write_to_host_ns,
            own.host_function_from_ns if way == "host_function" else own.wait_from_host_ns,
        )
    )
    began_ns = clock.time_ns
    first = machine.make(call_of(Launch(SIGNAL_KERNEL_NS), costs), 1).batches[0]
    hold, stream = None, 0
    if way in ("event", "event_timed"):
        timed, stream = way == "event_timed", 1
        machine.spend(costs.timed_record_ns if timed else costs.untimed_record_ns)
        delay = Item(duration_ns=own.event_timed_ns if timed else own.event_ns, queued=False)
        machine.make(Call(costs.wait_event_ns, delay, stream), 1, after=first)
    elif way == "host_function":
        machine.make(Call(own.call_ns, Item(duration_ns=to_host_ns + from_host_ns, queued=False)), 1)
    if way.startswith("write"):
        machine.make(Call(own.call_ns, Item(duration_ns=own.write_ns, queued=False)), 1)
    if way == "wait_ready":
        machine.make(Call(own.call_ns, Item(duration_ns=own.wait_ready_ns, queued=False)), 1)
    elif way in ("wait_32", "wait_64", "write_wait"):
        returned_ns, hold = machine.device.shut((0,), clock.time_ns, machine.noise.one(own.call_ns), NEVER_NS)
        clock.wait_until(returned_ns)
    second = machine.make(call_of(Launch(stream=stream), costs), 1).batches[0]
    queued_ns, seen_ns, answered_ns = clock.now_ns(), 0, 0
    assert first.ends_ns is not None, "nothing may hold the first kernel"
    ended_ns = float(first.ends_ns[0])
    if way == "host_function":
        seen_ns = answered_ns = clock.shown(ended_ns + to_host_ns)
    elif way.startswith("write"):
        clock.wait_until(ended_ns + to_host_ns)
        seen_ns = clock.now_ns()
    if hold is not None:
        clock.wait_until(began_ns + (0 if way == "write_wait" else SIGNAL_HELD_NS))
        answered_ns = clock.now_ns()
        machine.device.open(hold, clock.time_ns + from_host_ns)
    machine.synchronize(stream)
    assert second.starts_ns is not None, "all work of a synchronised stream has ended"
    ended, begun = machine.globaltimer_ns(np.array([ended_ns, second.starts_ns[0]]))
    return queued_ns, int(ended), int(begun), seen_ns, answered_ns


stream_signals = experiment(real_signals, simulated_signals)
