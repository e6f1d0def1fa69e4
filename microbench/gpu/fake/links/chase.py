"""Dependent reads on the simulated GPU: line after line, through a cache of address translations."""

from __future__ import annotations

import numpy as np

from microbench.errors import MeasurementError, Skip
from microbench.gpu.api import IntArray
from microbench.gpu.fake.calls import Call
from microbench.gpu.fake.clock import FloatArray
from microbench.gpu.fake.links.ends import require_host_memory
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.stream import Item
from microbench.gpu.link_api import Order

SEED = 20240229


class Translations:
    """A cache of page translations, each page in one place only (direct mapped)."""

    def __init__(self, entries: int) -> None:
        self._pages: IntArray = np.full(entries, -1, dtype=np.int64)

    def misses(self, pages: IntArray) -> FloatArray:
        """1 for each of these accesses that misses, else 0; a miss displaces what was there."""
        places = pages % len(self._pages)
        order = np.argsort(places, kind="stable")
        places, pages = places[order], pages[order]
        first = np.concatenate(([True], places[1:] != places[:-1]))
        held = np.concatenate(([0], pages[:-1]))
        held[first] = self._pages[places[first]]
        last = np.concatenate((first[1:], [True]))
        self._pages[places[last]] = pages[last]
        found: FloatArray = np.zeros(len(pages))
        found[order] = pages != held
        return found


class FakeChase:
    """See Chase. ``visits`` are the lines' numbers in the order of the walk, shape (lines,)."""

    def __init__(self, machine: Machine, visits: IntArray, stride_bytes: int, read_ns: float, miss_ns: float) -> None:
        links = machine.costs.links
        self.blocks = machine.costs.sm_count
        self._machine = machine
        self._scope = machine.scope
        self._pages = visits * stride_bytes // links.translation_page_bytes
        self._translations = Translations(links.translation_entries)
        self._read_ns = read_ns
        self._miss_ns = miss_ns
        self._at = 0

    def walks_ns(self, reads: int) -> IntArray:
        """See Chase."""
        noise = self._machine.noise.device(1.0, self.blocks)
        return self._walk(self._reads_ns(reads * self.blocks).reshape(self.blocks, reads).sum(axis=1) * noise)

    def each_ns(self, reads: int) -> IntArray:
        """See Chase."""
        return self._walk(self._reads_ns(reads) * self._machine.noise.device(1.0, reads))

    def _reads_ns(self, count: int) -> FloatArray:
        lines = (self._at + np.arange(count)) % len(self._pages)
        self._at = (self._at + count) % len(self._pages)
        return self._read_ns + self._miss_ns * self._translations.misses(self._pages[lines])

    def _walk(self, times_ns: FloatArray) -> IntArray:
        """Let the GPU walk that long, in all. Lines whose addresses never came lead nowhere."""
        machine = self._machine
        machine.check(self._scope)
        machine.make(Call(machine.costs.submit_ns, Item(duration_ns=float(times_ns.sum()))), 1)
        machine.synchronize(0)
        if machine.costs.links.arrives != "right":
            raise MeasurementError(f"SIMULATED: the walk ended at no line where line {self._at} should be")
        return times_ns.round().astype(np.int64)


def host_chase(machine: Machine, footprint_bytes: int, stride_bytes: int, order: Order) -> FakeChase:
    """See Links.chase."""
    require_host_memory(machine.costs, "pinned", footprint_bytes)
    visits = _lines(footprint_bytes, stride_bytes)
    if order == "random":
        visits = np.random.default_rng(SEED).permutation(visits)
    return FakeChase(machine, visits, stride_bytes, machine.costs.host_read_ns, machine.costs.links.translation_miss_ns)


def peer_chase(machine: Machine, footprint_bytes: int, stride_bytes: int) -> FakeChase:
    """See Links.peer_chase; the other GPU's translations are always at hand."""
    return FakeChase(machine, _lines(footprint_bytes, stride_bytes), stride_bytes, machine.costs.links.peer_read_ns, 0)


def _lines(footprint_bytes: int, stride_bytes: int) -> IntArray:
    if footprint_bytes < stride_bytes:
        raise Skip(f"{footprint_bytes} B hold no line of {stride_bytes} B to walk through")
    return np.arange(footprint_bytes // stride_bytes, dtype=np.int64)
