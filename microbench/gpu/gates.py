"""Gates and event pairs: what makes a time the device's alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cuda.bindings import driver

from microbench.gpu.context import Context, check
from microbench.gpu.modules import Modules
from microbench.gpu.submit import Parameters, launch
from microbench.ops import Launch


class SpinGate:
    """A kernel that spins on a flag in mapped host memory, with its own time-out; each shut wants a higher value."""

    def __init__(self, context: Context, modules: Modules, stream: Callable[[int], int]) -> None:
        self._stream = stream
        self._function = modules.function("launch", "gate")
        self._words = context.pinned(64)
        self._flag_address = int(self._words[:1].ctypes.data)
        self._late_address = int(self._words[32:33].ctypes.data)
        self._event = context.event(timed=False)
        self._want = 0
        self._late_before = 0

    def shut(self, streams: Sequence[int] = (0,), timeout_s: float = 0.5) -> None:
        """Hold the streams: the kernel sits in the first, the others wait for an event behind it."""
        self._want += 1
        self._late_before = int(self._words[32])
        row = (self._flag_address, self._want, int(timeout_s * 1e9), self._late_address)
        first = self._stream(streams[0])
        launch(self._function, Launch(block_threads=1), first, Parameters([row]))(1)
        if len(streams) > 1:
            check(driver.cuEventRecord(self._event, first))
            for stream in streams[1:]:
                check(driver.cuStreamWaitEvent(self._stream(stream), self._event, 0))

    def open(self) -> None:
        """Let go: effective in the GPU 3 to 4 us later."""
        self._words[0] = self._want

    def was_late(self) -> bool:
        """True if the last gate timed out before it was opened."""
        return int(self._words[32]) != self._late_before


class TimingEvents:
    """Two timing events in one stream; they resolve 32 ns on data-centre GPUs."""

    def __init__(self, context: Context, stream: int) -> None:
        self._stream = stream
        self._first = context.event(timed=True)
        self._second = context.event(timed=True)

    def start(self) -> None:
        """Record the first."""
        check(driver.cuEventRecord(self._first, self._stream))

    def stop(self) -> None:
        """Record the second."""
        check(driver.cuEventRecord(self._second, self._stream))

    def elapsed_s(self) -> float:
        """Wait for the second; time between them."""
        check(driver.cuEventSynchronize(self._second))
        return float(check(driver.cuEventElapsedTime(self._first, self._second))) * 1e-3
