"""Pairs of kernels with a signal between them in streams: events, host functions, stream memory operations."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda import loops
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check_code, entry_point
from microbench.gpu.cuda.signals import LINE_WORDS, WATCH_TIMEOUT_NS, clock_tie, on_host_clock
from microbench.gpu.cuda.submit import CallRow, Parameters, as_int64, launch
from microbench.gpu.cuda.timing import globaltimer_step_ns
from microbench.gpu.protocol.gpu import SIGNAL_HELD_NS, SIGNAL_KERNEL_NS, SignalStamps, SignalWay
from microbench.host.affinity import Cores, pinned
from microbench.host.native import c_address

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


class StreamSignals:
    """``count`` pairs of kernels with one way between them, prepared once and run often.

    Raises Skip if GPU or driver have no such operations.
    """

    def __init__(self, case: Case, cores: Cores, way: SignalWay, count: int) -> None:
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
        with pinned(cores.allowed):  # the driver's thread for host functions must not sit on the launching core
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
        """Raises MeasurementError unless every second kernel waited for the first one, and for the host's answer."""
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
