"""From GPU to GPU: by copy engine or SMs, one way or both, with peer access or through the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cuda.bindings import driver

from microbench.gpu.api import IntArray
from microbench.gpu.context import check
from microbench.gpu.link_api import PeerWay
from microbench.gpu.links.boards import Board, Boards
from microbench.gpu.links.chase import WORD_BYTES, CudaChase, chain, order_of_lines
from microbench.gpu.links.copies import COPY_THREADS, MILLISECOND_S
from microbench.gpu.submit import Parameters, launch
from microbench.ops import Launch

SM_WIDTH_BYTES = 16


class Flow:
    """Movements of one buffer from one GPU's memory to another's, submitted by ``mover``."""

    def __init__(self, mover: Board, source: Board, target: Board, size_bytes: int) -> None:
        self.mover = mover
        self._source, self._target = source, target
        self._size_bytes = size_bytes
        self._seed = 0
        with source.current():
            self.source = source.context.device_memory(size_bytes)
        with target.current():
            self.target = target.context.device_memory(size_bytes)

    def by_engine(self) -> None:
        """One copy in the mover's stream; its context is current."""
        check(driver.cuMemcpyAsync(self.target, self.source, self._size_bytes, self.mover.stream))

    def through_host(self) -> None:
        """One copy between contexts without peer access: the driver chooses the way."""
        check(
            driver.cuMemcpyPeerAsync(
                self.target,
                self._target.context.handle,
                self.source,
                self._source.context.handle,
                self._size_bytes,
                self.mover.stream,
            )
        )

    def by_sms(self) -> Callable[[], None]:
        """What launches one copy by all of the mover's SMs."""
        shape = Launch(grid_blocks=self.mover.context.attribute("MULTIPROCESSOR_COUNT"), block_threads=COPY_THREADS)
        with self.mover.current():
            function = self.mover.modules.function("link", f"copy{SM_WIDTH_BYTES}")
        row = (self.source, self.target, self._size_bytes)
        submit = launch(function, shape, self.mover.stream, Parameters([row]))
        return lambda: submit(1)

    def fresh(self) -> None:
        """A new pattern in the source, its complement in the target."""
        self._seed += 1
        with self._source.current():
            self._source.patterns.fill(self.source, self._size_bytes, self._seed)
        with self._target.current():
            self._target.patterns.poison(self.target, self._size_bytes, self._seed)

    def check(self) -> None:
        """Raise MeasurementError unless the target holds the pattern."""
        with self._target.current():
            self._target.patterns.verify(self.target, self._size_bytes, self._seed, "the target GPU's memory")


class CudaPeer:
    """See Peer of link_api.py."""

    def __init__(self, boards: Boards, first: int, second: int, way: PeerWay, access: bool, size_bytes: int) -> None:
        self._first, self._second = boards.board(first), boards.board(second)
        self._gated = access
        if access:
            boards.enable_peers(first, second)
            boards.enable_peers(second, first)
        self._own = self._flow(self._first, self._second, way, size_bytes)
        both = way in ("engine_both_read", "engine_both_write")
        self._against = self._flow(self._second, self._first, way, size_bytes) if both else None
        move = self._own.by_engine if access else self._own.through_host
        self._move = self._own.by_sms() if way in ("sm_read", "sm_write") else move
        with self._first.current():
            self._begin, self._end = (self._first.context.event(timed=True) for _ in range(2))

    @staticmethod
    def _flow(mover: Board, other: Board, way: PeerWay, size_bytes: int) -> Flow:
        reads = way in ("engine_read", "sm_read", "engine_both_read")
        source, target = (other, mover) if reads else (mover, other)
        return Flow(mover, source, target, size_bytes)

    def take_s(self, count: int) -> float | None:
        """See Peer. Without peer access there is no gate: the driver's way through the host might wait for it."""
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
        return float(check(driver.cuEventElapsedTime(self._begin, self._end))) * MILLISECOND_S

    def fresh(self) -> None:
        """See Transfer."""
        for flow in (self._own, self._against):
            if flow is not None:
                flow.fresh()

    def check(self) -> str:
        """See Transfer."""
        for flow in (self._own, self._against):
            if flow is not None:
                flow.check()
        return "every byte compared by the GPU that holds it"


class PeerChase:
    """A walk by one GPU through another's memory. See Chase of link_api.py."""

    def __init__(self, boards: Boards, first: int, second: int, footprint_bytes: int, stride_bytes: int) -> None:
        self._first, other = boards.board(first), boards.board(second)
        boards.enable_peers(first, second)
        visits = order_of_lines(footprint_bytes, stride_bytes, "sequential")
        words = np.zeros(len(visits) * stride_bytes // WORD_BYTES, dtype=np.uint64)
        with other.current():
            base = other.context.device_memory(footprint_bytes)
            chain(words, visits, base, stride_bytes)
            check(driver.cuMemcpyHtoD(base, words.ctypes.data, words.nbytes))
        with self._first.current():
            context, modules = self._first.context, self._first.modules
            self._chase = CudaChase(context, modules, self._first.stream, visits, base, stride_bytes)
        self.blocks = self._chase.blocks

    def walks_ns(self, reads: int) -> IntArray:
        """See Chase."""
        with self._first.current():
            return self._chase.walks_ns(reads)

    def each_ns(self, reads: int) -> IntArray:
        """See Chase."""
        with self._first.current():
            return self._chase.each_ns(reads)
