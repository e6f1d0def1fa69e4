"""Movements from one GPU's memory to another's, by engine or SMs, and dependent reads of another GPU's memory."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np

from microbench.experiments.link.chase import LINE_BYTES, WORD_BYTES, Chase, SimulatedChase, chain, order_of_lines
from microbench.experiments.link.concurrent import LinkedGpu, Movements, between, board, enable_peers, require_pair
from microbench.experiments.link.copies import copy_by_sms
from microbench.gpu.cuda.timing import elapsed_s
from microbench.gpu.experiment import Case, IntArray, Machine, check, driver, experiment

PeerWay = Literal["engine_read", "engine_write", "sm_read", "sm_write", "engine_both_read", "engine_both_write"]
READS: tuple[PeerWay, ...] = ("engine_read", "sm_read", "engine_both_read")
BOTH: tuple[PeerWay, ...] = ("engine_both_read", "engine_both_write")
BY_SMS: tuple[PeerWay, ...] = ("sm_read", "sm_write")
SM_WIDTH_BYTES = 16


class Flow:
    """Movements of one buffer from one GPU's memory to another's, submitted by ``mover``."""

    def __init__(self, mover: LinkedGpu, other: LinkedGpu, way: PeerWay, size_bytes: int) -> None:
        self._mover, (source, target) = mover, (other, mover) if way in READS else (mover, other)
        self._source, self._target, self._size_bytes, self._seed = source, target, size_bytes, 0
        with source.current():
            self._from = source.case.device_memory(size_bytes)
        with target.current():
            self._to = target.case.device_memory(size_bytes)

    def by_engine(self) -> None:
        """One copy in the mover's stream; its context is current."""
        check(driver.cuMemcpyAsync(self._to, self._from, self._size_bytes, self._mover.stream))

    def through_host(self) -> None:
        """One copy between contexts without peer access: the driver chooses the path."""
        to, source = self._target.case.context.handle, self._source.case.context.handle
        check(driver.cuMemcpyPeerAsync(self._to, to, self._from, source, self._size_bytes, self._mover.stream))

    def by_sms(self) -> Callable[[], None]:
        with self._mover.current():
            submit = copy_by_sms(self._mover.case, self._from, self._to, self._size_bytes, SM_WIDTH_BYTES)
        return partial(submit, 1)

    def fresh(self) -> None:
        self._seed += 1
        with self._source.current():
            self._source.patterns.fill(self._from, self._size_bytes, self._seed)
        with self._target.current():
            self._target.patterns.poison(self._to, self._size_bytes, self._seed)

    def check(self) -> None:
        with self._target.current():
            self._target.patterns.verify(self._to, self._size_bytes, self._seed, "the target GPU's memory")


class Peer:
    """Movements of ``size_bytes`` between the memories of two GPUs (CUDA indices), with or without peer access.

    The first GPU's engines or SMs move the data, in a stream of that GPU: they read the second GPU's memory, or write
    it. Raises Skip, with the reason, for a pair without peer access.
    """

    def __init__(self, case: Case, first: int, second: int, way: PeerWay, access: bool, size_bytes: int) -> None:
        self._first, self._second = board(case, first), board(case, second)
        self._gated = access
        if access:
            case.once(enable_peers, first, second)
            case.once(enable_peers, second, first)
        own = Flow(self._first, self._second, way, size_bytes)
        self._against = Flow(self._second, self._first, way, size_bytes) if way in BOTH else None
        self._flows = [flow for flow in (own, self._against) if flow is not None]
        move = own.by_engine if access else own.through_host
        self._move = own.by_sms() if way in BY_SMS else move
        with self._first.current():
            self._begin, self._end = (self._first.case.event(timed=True) for _ in range(2))

    def take_s(self, count: int) -> float | None:
        """Queue ``count`` movements behind a gate: seconds for all by device events; None if the gate timed out.

        If both directions run at the same time, this is the time of the first GPU's movements; the second GPU makes
        twice as many. No gate is used without peer access, because the driver's copy through the host might wait for
        it.
        """
        with self._first.current():
            if self._gated:
                self._first.gate.shut()
            check(driver.cuEventRecord(self._begin, self._first.stream))
        if self._against is not None:
            with self._second.current():
                check(driver.cuStreamWaitEvent(self._second.stream, self._begin, 0))
                for _ in range(2 * count):
                    self._against.by_engine()
        with self._first.current():
            for _ in range(count):
                self._move()
            check(driver.cuEventRecord(self._end, self._first.stream))
            if self._gated:
                self._first.gate.open()
        self._first.synchronize()
        self._second.synchronize()
        if self._gated and self._first.gate.was_late():
            return None
        return elapsed_s(self._begin, self._end)

    def fresh(self) -> None:
        for flow in self._flows:
            flow.fresh()

    def check(self) -> str:
        for flow in self._flows:
            flow.check()
        return "every byte compared by the GPU that holds it"


class PeerChase(Chase):
    """Dependent reads of the second GPU's memory by the first, in address order."""

    def __init__(self, case: Case, first: int, second: int, footprint_bytes: int) -> None:
        self._first, other = board(case, first), board(case, second)
        case.once(enable_peers, first, second)
        visits = order_of_lines(footprint_bytes, "sequential")
        words = np.zeros(len(visits) * LINE_BYTES // WORD_BYTES, dtype=np.uint64)
        with other.current():
            base = other.case.device_memory(footprint_bytes)
            chain(words, visits, base)
            other.case.upload(base, words)
        with self._first.current():
            super().__init__(self._first.case, visits, base)

    def walks_ns(self, reads: int) -> IntArray:
        with self._first.current():
            return super().walks_ns(reads)

    def each_ns(self, reads: int) -> IntArray:
        with self._first.current():
            return super().each_ns(reads)


class SimulatedPeer(Movements, Peer):
    """Without peer access the movements are not gated."""

    def __init__(self, machine: Machine, first: int, second: int, way: PeerWay, access: bool, size_bytes: int) -> None:
        require_pair(machine, first, second, access=access)
        costs = machine.costs
        source, target = (second, first) if way in READS else (first, second)
        ways = [between(costs, source, target, access=access)]
        if way in BY_SMS:
            ways = [{**ways[0], f"sm{first}": 1.0}]
        if way in BOTH:
            ways.append(between(costs, target, source, access=access))
        Movements.__init__(
            self, machine, ways, size_bytes, costs.gap_stream_ns + costs.links.peer_fixed_ns, gated=access
        )

    def take_s(self, count: int) -> float | None:
        ends_s = self._take_s([count, 2 * count][: len(self._ways)])
        return None if ends_s is None else float(ends_s[0][-1]) + self._machine.costs.gap_event_ns * 1e-9


def _simulated_peer_chase(machine: Machine, first: int, second: int, footprint_bytes: int) -> Chase:
    require_pair(machine, first, second)
    return SimulatedChase(machine, footprint_bytes, machine.costs.links.peer_read_ns, 0.0)


peer_copies = experiment(Peer, SimulatedPeer)
peer_chase = experiment(PeerChase, _simulated_peer_chase)
