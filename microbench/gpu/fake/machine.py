"""What the parts of one simulated machine share: its costs, host clock, noise, device and wait mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from microbench.errors import MeasurementError
from microbench.gpu.api import IntArray, WaitMode
from microbench.gpu.fake.calls import Call
from microbench.gpu.fake.clock import FloatArray, Noise, VirtualClock
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.device import Device
from microbench.gpu.fake.stream import Batch


class Made(NamedTuple):
    """When each of some calls returned, and the batches that they put into a stream (none by a host call)."""

    returned_ns: FloatArray
    batches: list[Batch]


class Machine:
    """One simulated host thread with its GPU.

    ``scope`` numbers the case that is open, 0 outside of all: what was made in a case is of no use after it.
    ``at_synchronize`` is what the driver does before a synchronise returns.
    """

    def __init__(self, costs: FakeCosts, seed: int, spread: float, wait: WaitMode) -> None:
        self.costs = costs
        self.wait: WaitMode = wait
        self.clock = VirtualClock(costs.timer_call_ns, costs.timer_step_ns)
        self.noise = Noise(seed, spread)
        self.device = Device(costs, self.noise)
        self.scope = 0
        self.at_synchronize: list[Callable[[], None]] = []

    def check(self, scope: int) -> None:
        """Raise MeasurementError for something made in a case that has ended."""
        if scope not in (0, self.scope):
            raise MeasurementError("this belongs to a case that has ended: it was released")

    def make(self, call: Call, count: int, extra_ns: float = 0.0, after: Batch | None = None) -> Made:
        """Make ``count`` calls from now on, each with ``extra_ns`` of other work behind it."""
        costs_ns = self.noise.host(call.host_ns, count) + extra_ns
        if call.item is None:
            made = Made(self.clock.time_ns + np.cumsum(costs_ns), [])
        else:
            made = Made(*self.device.submit(call.stream, call.item, self.clock.time_ns, costs_ns, after))
        self.clock.wait_until(float(made.returned_ns[-1]))
        return made

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for one stream, or for all, in the machine's wait mode."""
        ended_ns = self.device.all_idle_ns() if stream is None else self.device.idle_ns(stream)
        noticed_ns = ended_ns + self.noise.one(self.costs.completion_ns[self.wait])
        self.clock.pass_ns(self.noise.one(self.costs.idle_stream_ns))
        self.clock.wait_until(noticed_ns)
        for act in self.at_synchronize:
            act()

    def end_case(self) -> None:
        """Wait for all streams and drop what the case made."""
        self.synchronize()
        self.device.forget_streams()
        self.at_synchronize.clear()
        self.scope = 0

    def globaltimer_ns(self, times_ns: FloatArray) -> IntArray:
        """What %globaltimer shows at those times: whole steps."""
        step_ns = self.costs.globaltimer_step_ns
        return np.floor(times_ns / step_ns).astype(np.int64) * step_ns
