"""The simulated GPU's SM clock, power and temperature: work beyond the power limit pulls the clock down, rest lifts it.

Every item with a ``Load`` takes a fixed energy, so its power is the higher the faster it runs. While the power would
be above the limit, the clock falls towards the one at which it is the limit, with a time constant.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from microbench.gpu.fake.compute_costs import ComputeCosts
from microbench.gpu.fake.stream import Item, Load

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
