"""PCIe traffic as running totals: from counters that wrap, or from sampled rates where a driver has no counters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from microbench.gpu.api import PcieBytes

# NVML's fields 197 and 198 are 32 bit: at 63 GB/s they wrap every 68 ms.
COUNTER_MODULUS = 1 << 32
FRESH_RATE_S = 1.0


def wrapped_difference(before: int, after: int, modulus: int = COUNTER_MODULUS) -> int:
    """What a counter that starts again at ``modulus`` counted between two readings, if less than ``modulus``."""
    return (after - before) % modulus


class ExactTotals:
    """Totals of two wrapping counters (sent, received) since the first reading."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None
        self._sent = 0
        self._received = 0

    @property
    def started(self) -> bool:
        """True after the first reading."""
        return self._last is not None

    def add(self, sent: int, received: int) -> PcieBytes:
        """The totals after a reading of both counters."""
        if self._last is not None:
            self._sent += wrapped_difference(self._last[0], sent)
            self._received += wrapped_difference(self._last[1], received)
        self._last = (sent, received)
        return PcieBytes(self._sent, self._received, coarse=False)


class SampledTotals:
    """Totals made of rates that a thread samples: right only for traffic that lasts many samples.

    ``rates()`` returns bytes per second (sent, received) and takes some tens of milliseconds, as
    nvmlDeviceGetPcieThroughput does: each is an average over a part of that time and stands for all of it. The thread
    starts with the first reading; a reading waits for a sample that ends after it was asked for.
    """

    def __init__(self, rates: Callable[[], tuple[float, float] | None]) -> None:
        self._rates = rates
        self._changed = threading.Condition()
        self._samples = 0
        self._sent = 0.0
        self._received = 0.0
        self._lost: bool = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> PcieBytes | None:
        """The totals so far; None when the rates can no longer be read."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._sample, name="pcie-rates", daemon=True)
            self._thread.start()
        with self._changed:
            wanted = self._samples + 1
            self._changed.wait_for(lambda: self._samples >= wanted or self._lost, timeout=FRESH_RATE_S)
            return None if self._lost else PcieBytes(round(self._sent), round(self._received), coarse=True)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        before = time.monotonic()
        while not self._stop.is_set():
            rates = self._rates()
            now = time.monotonic()
            with self._changed:
                if rates is None:
                    self._lost = True
                else:
                    self._sent += rates[0] * (now - before)
                    self._received += rates[1] * (now - before)
                    self._samples += 1
                self._changed.notify_all()
            if rates is None:
                return
            before = now
