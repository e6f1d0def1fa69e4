"""The real Host of the host suite: clock readings, calls, copies and hand-offs between threads, by compiled loops."""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray
from microbench.host.affinity import find_cores, on_cores

Bytes = npt.NDArray[np.uint8]

LINE_BYTES = 128


def c_address(name: str) -> int:
    """Address of a function of the C library."""
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


class MonotonicClock:
    """CLOCK_MONOTONIC, as the compiled loops read it."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


class NativeHost:
    """The Host (gpu/protocol/gpu.py) of this machine."""

    simulated = False

    def __init__(self) -> None:
        from microbench.host import loops  # imports Numba, which what needs only c_address must not pay for

        self._loops = loops
        self.clock = MonotonicClock()
        self._clock_gettime = c_address("clock_gettime")
        self._cores = find_cores()
        self._buffers: dict[int, tuple[Bytes, Bytes]] = {}

    def clock_stamps(self, count: int) -> IntArray:
        out: IntArray = np.zeros(count, dtype=np.int64)
        self._loops.clock_stamps(self._clock_gettime, out)
        return out

    def call_s(self, how: str, count: int) -> float:
        """Calls abs(0) of the C library in each way, and an empty Python function."""
        arguments: IntArray = np.zeros(4, dtype=np.int64)
        address = c_address("abs")
        if how == "compiled":
            return int(self._loops.submit_timed(address, arguments, 0, count, self._clock_gettime)[1]) * 1e-9
        by_ctypes = ctypes.CDLL(None).abs
        by_ctypes.argtypes = (ctypes.c_int,)

        def nothing() -> None:
            return

        calls: dict[str, Callable[[], object]] = {
            "compiled_from_python": partial(self._loops.submit, address, arguments, 0, 1),
            "ctypes": partial(by_ctypes, 0),
            "python": nothing,
        }
        if how not in calls:
            raise MeasurementError(f"there is no way of calling named {how}")
        call = calls[how]
        begin_ns = time.monotonic_ns()
        for _ in range(count):
            call()
        return (time.monotonic_ns() - begin_ns) * 1e-9

    def copy_s(self, threads: int, size_bytes: int) -> float:
        """Runs memcpy between buffers of each thread's own, which were touched before, from a common start."""
        words: IntArray = np.zeros(2 * LINE_BYTES // 8, dtype=np.int64)
        ready, start = int(words.ctypes.data), int(words.ctypes.data) + LINE_BYTES
        memcpy = c_address("memcpy")
        stamps: IntArray = np.zeros((threads, 2), dtype=np.int64)

        def work(index: int) -> None:
            source, destination = self.buffers(index, size_bytes)
            arguments = np.array([destination.ctypes.data, source.ctypes.data, size_bytes, 0], dtype=np.int64)
            self._loops.submit_together(memcpy, arguments, 0, 1, self._clock_gettime, ready, start, stamps[index])

        helpers = self._cores.helpers
        workers = [on_cores(partial(work, index), (helpers[index % len(helpers)],)) for index in range(threads)]
        self._loops.start_when_ready(ready, start, threads, self._clock_gettime)
        for worker in workers:
            worker.result()
        return int(stamps[:, 1].max() - stamps[:, 0].min()) * 1e-9

    def buffers(self, thread: int, size_bytes: int) -> tuple[Bytes, Bytes]:
        """Source and destination of a thread, touched when allocated; buffers of another size are released."""
        pair = self._buffers.get(thread)
        if pair is None or pair[0].size != size_bytes:
            pair = (np.full(size_bytes, thread % 250 + 1, dtype=np.uint8), np.zeros(size_bytes, dtype=np.uint8))
            pair[1].fill(0)  # zeros are not mapped until they are written
            self._buffers[thread] = pair
        return pair

    def wakeup_stamps(self, how: str, count: int) -> IntArray:
        """Hands over to a thread on another physical core and back."""
        hand_offs = {"spin": self._spin, "event": self._by_event, "pipe": self._by_pipe}
        if how not in hand_offs:
            raise MeasurementError(f"there is no hand-off named {how}")
        if not self._cores.watcher_alone:
            raise Skip("needs a second CPU: this process may use one only")
        return hand_offs[how](count)

    def _spin(self, count: int) -> IntArray:
        words: IntArray = np.zeros(2 * LINE_BYTES // 8, dtype=np.int64)
        here, there = int(words.ctypes.data), int(words.ctypes.data) + LINE_BYTES
        out: IntArray = np.zeros(count, dtype=np.int64)
        answer = partial(self._loops.hand_over, there, here, 0, self._clock_gettime, np.zeros_like(out))
        other = on_cores(answer, (self._cores.watcher_core,))
        if not (self._loops.hand_over(here, there, 1, self._clock_gettime, out) and other.result()):
            raise MeasurementError("the other thread did not answer")
        return out

    def _by_event(self, count: int) -> IntArray:
        """threading.Event both ways: Python's lock, woken by the kernel's futex."""
        asked, answered = threading.Event(), threading.Event()

        def answer() -> None:
            for _ in range(count):
                asked.wait()
                asked.clear()
                answered.set()

        def ask() -> None:
            asked.set()
            answered.wait()
            answered.clear()

        return self._ask_and_answer(count, ask, answer)

    def _by_pipe(self, count: int) -> IntArray:
        """A byte through a pipe each way: two system calls and a wake-up."""
        question, reply = os.pipe(), os.pipe()

        def answer() -> None:
            for _ in range(count):
                os.write(reply[1], os.read(question[0], 1))

        def ask() -> None:
            os.write(question[1], b"?")
            os.read(reply[0], 1)

        try:
            return self._ask_and_answer(count, ask, answer)
        finally:
            for descriptor in (*question, *reply):
                os.close(descriptor)

    def _ask_and_answer(self, count: int, ask: Callable[[], None], answer: Callable[[], None]) -> IntArray:
        out: IntArray = np.zeros(count, dtype=np.int64)
        other = on_cores(answer, (self._cores.watcher_core,))
        for index in range(count):
            begin_ns = time.monotonic_ns()
            ask()
            out[index] = time.monotonic_ns() - begin_ns
        other.result()
        return out

    def cores(self) -> int:
        return len(self._cores.helpers)
