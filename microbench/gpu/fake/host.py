"""The simulated host of the host suite, and the simulated first acts of a process."""

from __future__ import annotations

import numpy as np

from microbench.errors import MeasurementError, Skip
from microbench.gpu.api import ColdStarts, HostClock, IntArray
from microbench.gpu.fake.clock import Noise, VirtualClock
from microbench.gpu.fake.costs import FakeCosts

DEFAULT_SPREAD = 0.005
COLD_SPREAD = 0.05


class FakeHost:
    """The Host of the simulated machine; ``clock`` is a virtual one of its own."""

    def __init__(self, costs: FakeCosts | None = None, *, seed: int = 0, spread: float = DEFAULT_SPREAD) -> None:
        self._costs = costs or FakeCosts()
        self._noise = Noise(seed, spread)
        self._time = VirtualClock(self._costs.timer_call_ns, self._costs.timer_step_ns)
        self.clock: HostClock = self._time
        self.simulated = True

    def clock_stamps(self, count: int) -> IntArray:
        """See Host."""
        times_ns = self._time.time_ns + np.cumsum(self._noise.host(self._costs.timer_call_ns, count))
        self._time.wait_until(float(times_ns[-1]))
        return self._time.all_shown(times_ns)

    def call_s(self, how: str, count: int) -> float:
        """See Host. Raises MeasurementError for a way of calling that is not simulated."""
        if how not in self._costs.host_call_ns:
            raise MeasurementError(f"the simulated host has no way of calling named {how}")
        return self._spend_s(float(self._noise.host(self._costs.host_call_ns[how], count).sum()))

    def copy_s(self, threads: int, size_bytes: int) -> float:
        """See Host: beyond a core's cache the threads share the memory's bandwidth."""
        costs = self._costs
        if size_bytes <= costs.host_cache_bytes:
            bytes_per_s = costs.host_cache_bytes_per_s
        else:
            bytes_per_s = min(costs.host_core_bytes_per_s, costs.host_memory_bytes_per_s / threads)
        return self._spend_s(self._noise.one(costs.host_copy_fixed_ns + size_bytes / bytes_per_s * 1e9))

    def wakeup_stamps(self, how: str, count: int) -> IntArray:
        """See Host. Raises MeasurementError for a way of waking that is not simulated."""
        if how not in self._costs.host_wakeup_ns:
            raise MeasurementError(f"the simulated host has no hand-off named {how}")
        times_ns = self._noise.host(self._costs.host_wakeup_ns[how], count)
        self._spend_s(float(times_ns.sum()))
        return times_ns.round().astype(np.int64)

    def cores(self) -> int:
        """See Host."""
        return self._costs.host_cores

    def _spend_s(self, duration_ns: float) -> float:
        self._time.pass_ns(duration_ns)
        return duration_ns * 1e-9


class FakeColdStarts:
    """First acts of a simulated process. Each can be the first once only."""

    def __init__(self, costs: FakeCosts, noise: Noise) -> None:
        self._costs = costs
        self._noise = noise
        self._done: set[str] = set()

    def seconds(self, what: str) -> float:
        """See ColdStarts. Raises MeasurementError when it was asked for before: it is cold no more."""
        if what not in self._costs.cold_s:
            raise Skip(f"the simulated GPU has no first {what}")
        if what in self._done:
            raise MeasurementError(f"{what} is not cold any more in this process")
        self._done.add(what)
        return self._noise.one(self._costs.cold_s[what] * 1e9) * 1e-9


def open_fake_cold(costs: FakeCosts | None = None, *, seed: int = 0, spread: float = COLD_SPREAD) -> ColdStarts:
    """A simulated process that has not touched its GPU yet."""
    return FakeColdStarts(costs or FakeCosts(), Noise(seed, spread))
