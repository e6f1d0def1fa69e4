"""From GPU to GPU: by copy engine or SMs, one way or both, with peer access or through the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import Context, Modules, check, device_uuid
from microbench.gpu.cuda.links.buffers import HostBuffer, Patterns
from microbench.gpu.cuda.links.copies import COPY_THREADS, MILLISECOND_S, Ends, copy_submit
from microbench.gpu.cuda.submit import Parameters, launch
from microbench.gpu.cuda.timing import SpinGate
from microbench.gpu.machine.pci import numa_node
from microbench.gpu.protocol.links import Direction, FloatArray, Order, PeerWay

# Other GPUs beside the one under test: their contexts, streams and kernels, for the length of one case.


BUS_ID_BYTES = 32
ALREADY_ENABLED = int(driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)


class Board:
    """One GPU with a stream, a gate and patterns of its own. Its context is current inside ``current()`` only.

    ``node`` is the NUMA node that it hangs on, None where the firmware does not say.
    """

    def __init__(self, context: Context, modules: Modules, home: Context) -> None:
        self.context = context
        self.modules = modules
        self.node = numa_node(check(driver.cuDeviceGetPCIBusId(BUS_ID_BYTES, context.device)).split(b"\0")[0].decode())
        self._home = home
        with self.current():
            self.stream = context.stream()
            self.patterns = Patterns(context, modules)
            self.gate = SpinGate(context, modules, lambda _: self.stream)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU's context current, and afterwards that of the GPU under test."""
        self.context.make_current()
        try:
            yield
        finally:
            self._home.make_current()

    def synchronize(self) -> None:
        """Wait until this GPU is idle."""
        with self.current():
            self.context.synchronize()


class Boards:
    """The GPUs of one case by CUDA index, opened when first asked for and given back at the case's end."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._boards: dict[int, Board] = {}
        self._peers: set[tuple[int, int]] = set()

    def count(self) -> int:
        """GPUs that this process sees."""
        return int(check(driver.cuDeviceGetCount()))

    def board(self, index: int) -> Board:
        """The GPU of that index. Raises Skip where there is none."""
        if not 0 <= index < self.count():
            raise Skip(f"needs a GPU {index}: {self.count()} here")
        if index not in self._boards:
            self._boards[index] = self._open(index)
        return self._boards[index]

    def _open(self, index: int) -> Board:
        home = self._case.context
        device = check(driver.cuDeviceGet(index))
        if int(device) == int(home.device):
            return Board(home, self._case.modules, home)
        try:
            context = Context(device_uuid(device))
        except MeasurementError as error:
            raise Skip(f"GPU {index} cannot be opened: {error}") from None
        finally:
            home.make_current()

        def close() -> None:
            context.make_current()
            try:
                context.close()
            finally:
                home.make_current()

        home.own(close)
        return Board(context, Modules(context), home)

    def enable_peers(self, first: int, second: int) -> None:
        """Let ``first`` reach the memory of ``second`` until the case ends. Raises Skip with why it cannot."""
        if (first, second) in self._peers:
            return
        one, other = self.board(first), self.board(second)
        if not int(check(driver.cuDeviceCanAccessPeer(one.context.device, other.context.device))):
            raise Skip(
                f"GPU {first} has no peer access to GPU {second}: the driver refuses it (no NVLink or common bridge, "
                "ACS, a virtual machine or MIG may be why)"
            )
        with one.current():
            (code,) = driver.cuCtxEnablePeerAccess(other.context.handle, 0)
            if int(code) not in (0, ALREADY_ENABLED):
                check((code,))
        self._peers.add((first, second))

        def disable() -> None:
            with one.current(), suppress(MeasurementError):
                check(driver.cuCtxDisablePeerAccess(other.context.handle))

        self._case.context.own(disable)


# Dependent reads: lines of host memory, or of another GPU's, that each hold the address of the next one.


WORD_BYTES = 8
SEED = 20240229
Lines = npt.NDArray[np.int64]


def order_of_lines(footprint_bytes: int, stride_bytes: int, order: Order) -> Lines:
    """In which order the whole lines of a footprint are visited: each once before any again. Raises Skip for none."""
    if footprint_bytes < stride_bytes:
        raise Skip(f"{footprint_bytes} B hold no line of {stride_bytes} B to walk through")
    lines = np.arange(footprint_bytes // stride_bytes, dtype=np.int64)
    return lines if order == "sequential" else np.random.default_rng(SEED).permutation(lines)


def chain(words: npt.NDArray[np.uint64], visits: Lines, base: int, stride_bytes: int) -> None:
    """Make the first word of each line the address of the line after it, for a walk of ``words`` at ``base``."""
    words[visits * (stride_bytes // WORD_BYTES)] = (base + np.roll(visits, -1) * stride_bytes).astype(np.uint64)


def words_at(address: int, size_bytes: int) -> npt.NDArray[np.uint64]:
    """The words of memory that is there."""
    return np.frombuffer(memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B"), dtype=np.uint64)


class CudaChase:
    """The walking GPU's context must be current when its methods are called."""

    def __init__(
        self, context: Context, modules: Modules, stream: int, visits: Lines, base: int, stride_bytes: int
    ) -> None:
        self._context = context
        self._visits = visits
        self._base = base
        self._stride_bytes = stride_bytes
        self._at = 0
        self.blocks = context.attribute("MULTIPROCESSOR_COUNT")
        self._place = context.device_memory(WORD_BYTES)
        self._out = context.device_memory(WORD_BYTES * (self.blocks + 1))
        start = np.array([base + int(visits[0]) * stride_bytes], dtype=np.uint64)
        check(driver.cuMemcpyHtoD(self._place, start.ctypes.data, start.nbytes))
        self._launch = partial(launch, stream=stream)
        self._walk = modules.function("link", "walk")
        self._walk_stamped = modules.function("link", "walk_stamped")

    def walks_ns(self, reads: int) -> IntArray:
        self._context.clear(self._out, WORD_BYTES * self.blocks)
        shape = Launch(grid_blocks=self.blocks, block_threads=1)
        rows = Parameters([(self._place, reads, target, self._out) for target in range(self.blocks)])
        self._launch(self._walk, shape, parameters=rows)(self.blocks)
        self._context.synchronize()
        self._arrive(reads * self.blocks)
        return self._context.read(self._out, self.blocks, np.int64)

    def each_ns(self, reads: int) -> IntArray:
        """The SM's cycles become ns by what both count over the whole walk."""
        cycles = self._context.device_memory(4 * reads)
        totals = self._out
        row = (self._place, reads, cycles, totals, totals + WORD_BYTES)
        self._launch(self._walk_stamped, Launch(block_threads=1), parameters=Parameters([row]))(1)
        self._context.synchronize()
        self._arrive(reads)
        total_ns, total_cycles = self._context.read(totals, 2, np.int64)
        each = self._context.read(cycles, reads, np.uint32).astype(np.float64)
        return np.round(each * (int(total_ns) / int(total_cycles))).astype(np.int64)

    def _arrive(self, reads: int) -> None:
        """Raise MeasurementError unless the walk has come as far as its reads lead."""
        self._at = (self._at + reads) % len(self._visits)
        wanted = self._base + int(self._visits[self._at]) * self._stride_bytes
        found = int(self._context.read(self._place, 1, np.uint64)[0])
        if found != wanted:
            raise MeasurementError(f"the walk ended at {found:#x} where {wanted:#x} should be")


def host_chase(
    context: Context, modules: Modules, stream: int, footprint_bytes: int, stride_bytes: int, order: Order
) -> CudaChase:
    """A walk through pinned host memory."""
    visits = order_of_lines(footprint_bytes, stride_bytes, order)
    buffer = HostBuffer(context, "pinned", footprint_bytes)
    base = buffer.device_address or buffer.address
    # In place: another buffer of that size would be memory that nobody has asked room for.
    chain(words_at(buffer.address, len(visits) * stride_bytes), visits, base, stride_bytes)
    return CudaChase(context, modules, stream, visits, base, stride_bytes)


# Copies between the host and several GPUs at once: who shares a link.


class Traveller:
    """One GPU's copies: buffers, stream, events and gate of its own."""

    def __init__(self, board: Board, case: Case, direction: Direction, size_bytes: int) -> None:
        self.board = board
        own = case._replace(context=board.context, modules=board.modules)
        with board.current():
            # Near its own GPU: far from it, several GPUs would share the way between the processors.
            host = HostBuffer(board.context, "pinned", size_bytes, board.node)
            self._ends = Ends(own, host, size_bytes, to_device=direction == "h2d")
            self._submit = copy_submit(self._ends, direction, board.stream)
            self._begin, self._end = (board.context.event(timed=True) for _ in range(2))

    def queue(self, count: int) -> None:
        """That many copies between two events, behind this GPU's gate."""
        with self.board.current():
            self.board.gate.shut()
            check(driver.cuEventRecord(self._begin, self.board.stream))
            self._submit(count)
            check(driver.cuEventRecord(self._end, self.board.stream))

    def elapsed_s(self) -> float:
        """Between the two events."""
        return float(check(driver.cuEventElapsedTime(self._begin, self._end))) * MILLISECOND_S

    def fresh(self) -> None:
        with self.board.current():
            self._ends.fresh()

    def check(self) -> str:
        with self.board.current():
            return self._ends.check()


class CudaConcurrent:
    """The first GPU is measured."""

    def __init__(self, case: Case, boards: Boards, direction: Direction, gpus: Sequence[int], size_bytes: int) -> None:
        self._travellers = [Traveller(boards.board(index), case, direction, size_bytes) for index in gpus]

    def take_s(self, count: int) -> FloatArray | None:
        """The measured GPU's gate opens last, a microsecond behind the others'."""
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
        """Without peer access there is no gate: the driver's way through the host might wait for it."""
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
        for flow in (self._own, self._against):
            if flow is not None:
                flow.fresh()

    def check(self) -> str:
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
        with self._first.current():
            return self._chase.walks_ns(reads)

    def each_ns(self, reads: int) -> IntArray:
        with self._first.current():
            return self._chase.each_ns(reads)
