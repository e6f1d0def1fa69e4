"""Movements that share wires: who gets how much, from event to event, until all have arrived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from microbench.gpu.fake.clock import FloatArray
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.link_api import Direction

FULL = 1e-9  # a wire with less than this share left carries no more
DONE_BYTES = 1e-6

Loads = Mapping[str, float]


@dataclass(frozen=True)
class Flow:
    """Equal movements one after the other, each of ``size_bytes``.

    ``loads`` are the bytes on each wire for a byte moved, ``before_ns`` what passes before each one's first byte,
    shape (movements,).
    """

    size_bytes: float
    loads: Loads
    before_ns: FloatArray


def to_gpu(costs: FakeCosts, gpu: int) -> Loads:
    """Reads of host memory: completions travel down, their requests up."""
    data, requests = costs.on_the_link_bytes("h2d", 1.0), costs.read_requests_bytes(1.0)
    return {f"down{gpu}": data, f"up{gpu}": requests, "downlink": data, "uplink": requests}


def from_gpu(costs: FakeCosts, gpu: int) -> Loads:
    """Writes to host memory."""
    data = costs.on_the_link_bytes("d2h", 1.0)
    return {f"up{gpu}": data, "uplink": data}


def of_direction(costs: FakeCosts, direction: Direction, gpu: int) -> Loads:
    """Copies of that GPU in that direction."""
    return to_gpu(costs, gpu) if direction == "h2d" else from_gpu(costs, gpu)


def between(source: int, target: int) -> Loads:
    """From one GPU's memory to another's, straight."""
    return {f"peer{source}-{target}": 1.0}


def wires(costs: FakeCosts) -> dict[str, float]:
    """Bytes a second on each wire: both directions of each GPU's link and of the uplink that they share, the direct
    ways of pairs, and what the SMs of a GPU can move."""
    gpus, links = range(costs.gpus), costs.links
    found = {f"{way}{gpu}": costs.link_bytes_per_s for way in ("down", "up") for gpu in gpus}
    found |= dict.fromkeys(("downlink", "uplink"), links.uplink_factor * costs.link_bytes_per_s)
    found |= {f"sm{gpu}": links.peer_sm_bytes_per_s for gpu in gpus}
    pairs = ((one, other) for one in gpus for other in gpus if one != other)
    return found | {f"peer{one}-{other}": links.peer_bytes_per_s for one, other in pairs}


def shares(flows: Iterable[Flow], capacities: Mapping[str, float]) -> dict[int, float]:
    """Bytes a second of each flow, by its ``id``: all grow alike, and those that meet a full wire stop.

    This is max-min fairness (Bertsekas and Gallager, Data Networks, 6.5.2), what arbiters that take turns come to.
    """
    growing = list(flows)
    rates = {id(flow): 0.0 for flow in growing}
    free = dict(capacities)
    while growing:
        loads = {wire: sum(flow.loads.get(wire, 0.0) for flow in growing) for flow in growing for wire in flow.loads}
        step = min(free[wire] / load for wire, load in loads.items())
        for flow in growing:
            rates[id(flow)] += step
        for wire, load in loads.items():
            free[wire] -= step * load
        full = {wire for wire in loads if free[wire] <= FULL * capacities[wire]}
        growing = [flow for flow in growing if not full & set(flow.loads)]
    return rates


class _Lane:
    """How far one flow has come."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.ends_ns: list[float] = []
        self._next()

    def _next(self) -> None:
        self.over = len(self.ends_ns) == len(self.flow.before_ns)
        self._waits_ns = 0.0 if self.over else float(self.flow.before_ns[len(self.ends_ns)])
        self._left_bytes = self.flow.size_bytes

    @property
    def moving(self) -> bool:
        """True while bytes are on their way."""
        return not self.over and self._waits_ns <= 0.0

    def until_event_ns(self, rate: float) -> float:
        """When this movement's first byte leaves, or its last arrives at that rate (bytes a second)."""
        return self._left_bytes / rate * 1e9 if self.moving else self._waits_ns

    def advance(self, now_ns: float, step_ns: float, rate: float) -> None:
        """Let time pass until ``now_ns``."""
        if self.moving:
            self._left_bytes -= rate * step_ns * 1e-9
            if self._left_bytes <= DONE_BYTES:
                self.ends_ns.append(now_ns)
                self._next()
        else:
            self._waits_ns = max(self._waits_ns - step_ns, 0.0)


def play(flows: Sequence[Flow], capacities: Mapping[str, float]) -> list[FloatArray]:
    """When each movement of each flow ends, in ns since all began; shapes (movements of that flow,)."""
    lanes = [_Lane(flow) for flow in flows]
    now_ns = 0.0
    while running := [lane for lane in lanes if not lane.over]:
        rates = shares((lane.flow for lane in running if lane.moving), capacities)
        step_ns = min(lane.until_event_ns(rates.get(id(lane.flow), 0.0)) for lane in running)
        now_ns += step_ns
        for lane in running:
            lane.advance(now_ns, step_ns, rates.get(id(lane.flow), 0.0))
    return [np.array(lane.ends_ns) for lane in lanes]
