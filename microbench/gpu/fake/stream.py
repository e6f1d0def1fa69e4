"""What stands in the simulated streams: items, gates that hold them, and the launch queue of finite depth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from microbench.gpu.fake.clock import FloatArray
from microbench.gpu.fake.costs import Traffic

Engine = Literal["h2d", "d2h", "sm"]  # sm: a kernel that takes all SMs
ENGINES: tuple[Engine, ...] = ("h2d", "d2h", "sm")


class Load(msgspec.Struct, frozen=True):
    """What keeps the SMs at work: cycles of their clock, and the time that it takes at any clock, in ns.

    ``tensor`` work holds the clock down.
    """

    cycles: float
    least_ns: float = 0.0
    tensor: bool = False


class Item(msgspec.Struct, frozen=True):
    """What one call puts into a stream.

    ``gap_ns`` passes between the end of what is before it in the stream and its start. ``buffer_bytes`` is its share of
    the queue's buffer; an item that is not ``queued`` takes neither a slot nor a share. ``energy_j`` is what it takes
    beyond what an idle GPU draws. An item with a ``load`` takes as long as that does at the clock that it finds, beyond
    its ``duration_ns``.
    """

    gap_ns: float = 0.0
    duration_ns: float = 0.0
    queued: bool = True
    buffer_bytes: float = 0.0
    engine: Engine | None = None
    traffic: Traffic = Traffic(0.0, 0.0)
    energy_j: float = 0.0
    load: Load | None = None


@dataclass
class Hold:
    """A gate kernel: runs until its flag is seen, or until its time-out after its own start.

    ``opened_ns`` is when the flag can be seen: None while the host has not set it, infinite when it is known that the
    host cannot set it in time.
    """

    timeout_ns: float
    started_ns: float | None = None
    opened_ns: float | None = None

    @property
    def end_ns(self) -> float | None:
        """When the gate lets go, None while that is not known."""
        if self.started_ns is None or self.opened_ns is None:
            return None
        return min(max(self.started_ns, self.opened_ns), self.started_ns + self.timeout_ns)

    @property
    def late(self) -> bool:
        """True if the time-out came before the flag."""
        if self.started_ns is None or self.opened_ns is None:
            return False
        return self.opened_ns > self.started_ns + self.timeout_ns


@dataclass
class Batch:
    """A run of equal items of one stream: the events of its items, None until they are known.

    ``first`` is the number of its first item in the stream's queue, ``after`` what a wait waits for.
    """

    item: Item
    stream: Stream
    arrivals_ns: FloatArray
    first: int
    after: Batch | None = None
    hold: Hold | None = None
    starts_ns: FloatArray | None = None
    ends_ns: FloatArray | None = None


class Stream:
    """One stream: when it is free, its last event record, and its launch queue.

    The queue remembers the last ``slots`` items: ``starts_ns``, infinite while unknown (an item leaves its slot when it
    starts), and ``filled_bytes``, the buffer bytes taken by all items up to each.
    """

    def __init__(self, slots: int) -> None:
        self.free_ns = -math.inf
        self.recorded: Batch | None = None
        self.entered = 0
        self.starts_ns = np.full(slots, -math.inf)
        self.filled_bytes = np.zeros(slots)

    def released_ns(self, item: Item, count: int, buffer_bytes: float) -> FloatArray:
        """From when on each of the next ``count`` items finds a slot and its share of ``buffer_bytes`` free."""
        filled = self.filled_bytes[-1] + item.buffer_bytes * np.arange(1, count + 1)
        by_bytes = np.searchsorted(self.filled_bytes, filled - buffer_bytes)
        gone_before = np.maximum(np.arange(count), by_bytes)
        released: FloatArray = self.starts_ns[gone_before]
        return released

    def enter(self, item: Item, count: int) -> int:
        """Put items into the queue, their starts unknown; the number of the first."""
        filled = self.filled_bytes[-1] + item.buffer_bytes * np.arange(1, count + 1)
        self.filled_bytes = np.concatenate((self.filled_bytes[count:], filled))
        self.starts_ns = np.concatenate((self.starts_ns[count:], np.full(count, math.inf)))
        self.entered += count
        return self.entered - count

    def leave(self, first: int, starts_ns: FloatArray) -> None:
        """Items from number ``first`` on start at these times, which frees their slots."""
        at = first - self.entered + len(self.starts_ns)
        self.starts_ns[at : at + len(starts_ns)] = starts_ns


def max_plus(floors: FloatArray, steps: FloatArray) -> FloatArray:
    """x[i] = max(x[i - 1], floors[i]) + steps[i], x[-1] being -infinity; arrays of one shape (n,).

    ``floors[0]`` must be finite. Unrolled: x[i] is the greatest of floors[j] + steps[j] + … + steps[i] over j <= i.
    """
    if len(steps) == 1:
        return floors + steps
    total = np.cumsum(steps)
    result: FloatArray = total + np.maximum.accumulate(floors - (total - steps))
    return result
