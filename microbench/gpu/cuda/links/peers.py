"""Several GPUs: movements from one to another, by engine or SMs, and copies of several GPUs at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray
from microbench.gpu.cuda import driver
from microbench.gpu.cuda.buffers import HostBuffer, Patterns
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import Context, check, device_uuid
from microbench.gpu.cuda.links.chase import WORD_BYTES, CudaChase, chain, order_of_lines
from microbench.gpu.cuda.links.copies import Ends, copy_by_sms, copy_submit
from microbench.gpu.cuda.timing import SpinGate, elapsed_s
from microbench.gpu.machine.pci import numa_node
from microbench.gpu.protocol.links import PeerWay
from microbench.gpu.protocol.transfer import Direction, FloatArray

BUS_ID_BYTES = 32
ALREADY_ENABLED = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
SM_WIDTH_BYTES = 16


def gpus(case: Case) -> Sequence[int]:
    return range(int(check(driver.cuDeviceGetCount())))


class Board:
    """One GPU with a case of its own, or the GPU under test with its case; current inside ``current()`` only.

    ``node`` is the NUMA node that the GPU is on, None if the firmware does not say.
    """

    def __init__(self, case: Case, home: Case) -> None:
        self.case = case
        bus_id = check(driver.cuDeviceGetPCIBusId(BUS_ID_BYTES, case.context.device))
        self.node = numa_node(bus_id.split(b"\0")[0].decode())
        self._home = home
        with self.current():
            self.stream = case.stream(0)
            self.patterns = Patterns(case)
            self.gate = SpinGate(case)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU's context current, and afterwards the context of the GPU under test."""
        self.case.context.make_current()
        try:
            yield
        finally:
            self._home.context.make_current()

    def synchronize(self) -> None:
        with self.current():
            self.case.synchronize()


class Boards:
    """The GPUs of one case by CUDA index. Each is opened when it is first needed, and closed when the case ends."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._boards: dict[int, Board] = {}
        self._peers: set[tuple[int, int]] = set()

    def board(self, index: int) -> Board:
        """The GPU with that index. Raises Skip if there is none."""
        count = len(gpus(self._case))
        if not 0 <= index < count:
            raise Skip(f"needs a GPU {index}: {count} here")
        if index not in self._boards:
            self._boards[index] = self._open(index)
        return self._boards[index]

    def _open(self, index: int) -> Board:
        home = self._case
        device = check(driver.cuDeviceGet(index))
        if int(device) == int(home.context.device):
            return Board(home, home)
        try:
            case = Case(Context(device_uuid(device)))
        except MeasurementError as error:
            raise Skip(f"GPU {index} cannot be opened: {error}") from None
        finally:
            home.context.make_current()

        def close() -> None:
            case.context.make_current()
            try:
                case.end()
                case.context.close()
            finally:
                home.context.make_current()

        home.own(close)
        return Board(case, home)

    def enable_peers(self, first: int, second: int) -> None:
        """Let ``first`` access the memory of ``second`` until the case ends. Raises Skip if it cannot, saying why."""
        if (first, second) in self._peers:
            return
        board, other = self.board(first), self.board(second).case.context
        if not int(check(driver.cuDeviceCanAccessPeer(board.case.context.device, other.device))):
            raise Skip(
                f"GPU {first} has no peer access to GPU {second}: the driver refuses it (no NVLink or common bridge, "
                "ACS, a virtual machine or MIG may be why)"
            )
        with board.current():
            (code,) = driver.cuCtxEnablePeerAccess(other.handle, 0)
            if int(code) not in (0, ALREADY_ENABLED):
                check((code,))
        self._peers.add((first, second))

        def disable() -> None:
            with board.current(), suppress(MeasurementError):
                check(driver.cuCtxDisablePeerAccess(other.handle))

        self._case.own(disable)


class Traveller:
    """One GPU's copies, with buffers, stream, events and gate of its own."""

    def __init__(self, board: Board, direction: Direction, size_bytes: int) -> None:
        self.board = board
        with board.current():
            # Near its own GPU: otherwise several GPUs would share the link between the processors.
            host = HostBuffer(board.case, "pinned", size_bytes, board.node)
            self._ends = Ends(board.case, host, size_bytes, to_device=direction == "h2d")
            self._submit = copy_submit(self._ends, direction, board.stream)
            self._begin, self._end = (board.case.event(timed=True) for _ in range(2))

    def queue(self, count: int) -> None:
        with self.board.current():
            self.board.gate.shut()
            check(driver.cuEventRecord(self._begin, self.board.stream))
            self._submit(count)
            check(driver.cuEventRecord(self._end, self.board.stream))

    def elapsed_s(self) -> float:
        return elapsed_s(self._begin, self._end)

    def fresh(self) -> None:
        with self.board.current():
            self._ends.fresh()

    def check(self) -> str:
        with self.board.current():
            return self._ends.check()


class CudaConcurrent:
    """A Concurrent; the first GPU is measured."""

    def __init__(self, case: Case, direction: Direction, gpus: Sequence[int], size_bytes: int) -> None:
        boards = case.once(Boards)
        self._travellers = [Traveller(boards.board(index), direction, size_bytes) for index in gpus]

    def take_s(self, count: int) -> FloatArray | None:
        """The measured GPU's gate opens last, a microsecond after the others."""
        first, *others = self._travellers
        for traveller in others:
            traveller.queue(2 * count)
        first.queue(count)
        for traveller in (*others, first):
            traveller.board.gate.open()
        for traveller in self._travellers:
            traveller.board.synchronize()
        if any(traveller.board.gate.was_late() for traveller in self._travellers):
            return None
        return np.array([traveller.elapsed_s() for traveller in self._travellers], dtype=np.float64)

    def fresh(self) -> None:
        for traveller in self._travellers:
            traveller.fresh()

    def check(self) -> str:
        return "; ".join(dict.fromkeys(traveller.check() for traveller in self._travellers))


class Flow:
    """Movements of one buffer from one GPU's memory to another's, submitted by ``mover``."""

    def __init__(self, mover: Board, source: Board, target: Board, size_bytes: int) -> None:
        self._mover, self._source, self._target = mover, source, target
        self._size_bytes = size_bytes
        self._seed = 0
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
        """The Submit of one copy by all of the mover's SMs."""
        with self._mover.current():
            submit = copy_by_sms(self._mover.case, self._from, self._to, self._size_bytes, SM_WIDTH_BYTES)
        return lambda: submit(1)

    def fresh(self) -> None:
        self._seed += 1
        with self._source.current():
            self._source.patterns.fill(self._from, self._size_bytes, self._seed)
        with self._target.current():
            self._target.patterns.poison(self._to, self._size_bytes, self._seed)

    def check(self) -> None:
        with self._target.current():
            self._target.patterns.verify(self._to, self._size_bytes, self._seed, "the target GPU's memory")


class CudaPeer:
    """A Peer."""

    def __init__(self, case: Case, first: int, second: int, way: PeerWay, access: bool, size_bytes: int) -> None:
        boards = case.once(Boards)
        self._first, self._second = boards.board(first), boards.board(second)
        self._gated = access
        if access:
            boards.enable_peers(first, second)
            boards.enable_peers(second, first)
        own = _flow(self._first, self._second, way, size_bytes)
        both = way in ("engine_both_read", "engine_both_write")
        self._against = _flow(self._second, self._first, way, size_bytes) if both else None
        self._flows = [flow for flow in (own, self._against) if flow is not None]
        move = own.by_engine if access else own.through_host
        self._move = own.by_sms() if way in ("sm_read", "sm_write") else move
        with self._first.current():
            self._begin, self._end = (self._first.case.event(timed=True) for _ in range(2))

    def take_s(self, count: int) -> float | None:
        """No gate is used without peer access, because the driver's copy through the host might wait for it."""
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


def _flow(mover: Board, other: Board, way: PeerWay, size_bytes: int) -> Flow:
    reads = way in ("engine_read", "sm_read", "engine_both_read")
    source, target = (other, mover) if reads else (mover, other)
    return Flow(mover, source, target, size_bytes)


class PeerChase:
    """A Chase by one GPU through the memory of another."""

    def __init__(self, case: Case, first: int, second: int, footprint_bytes: int, stride_bytes: int) -> None:
        boards = case.once(Boards)
        self._first, other = boards.board(first), boards.board(second)
        boards.enable_peers(first, second)
        visits = order_of_lines(footprint_bytes, stride_bytes, "sequential")
        words = np.zeros(len(visits) * stride_bytes // WORD_BYTES, dtype=np.uint64)
        with other.current():
            base = other.case.device_memory(footprint_bytes)
            chain(words, visits, base, stride_bytes)
            other.case.upload(base, words)
        with self._first.current():
            self._chase = CudaChase(self._first.case, visits, base, stride_bytes)
        self.blocks = self._chase.blocks

    def walks_ns(self, reads: int) -> IntArray:
        with self._first.current():
            return self._chase.walks_ns(reads)

    def each_ns(self, reads: int) -> IntArray:
        with self._first.current():
            return self._chase.each_ns(reads)
