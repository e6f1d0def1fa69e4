"""NCCL operations on several GPUs of one process: the library, its communicators, and calls of it in one thread."""

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from microbench.core.model import Fact
from microbench.core.units import plain
from microbench.experiments.link.concurrent import LinkedGpu, board, gpus, require_gpus
from microbench.gpu.cuda.context import check, check_code, entry_point
from microbench.gpu.cuda.submit import CallRow, as_int64
from microbench.gpu.experiment import Case, IntArray, Machine, MeasurementError, Scoped, Skip, driver, experiment, loops
from microbench.gpu.fake.transfers import Ends
from microbench.gpu.layers.base import load
from microbench.gpu.layers.cupy import load_cupy
from microbench.host.native import c_address

CollectiveName = Literal["all_reduce", "all_gather", "send_recv"]
Binding = Literal["loop", "nccl4py"]
# From nccl.h.
FLOAT32, SUM = 7, 0
ELEMENT_BYTES = 4
# Parts of an all_gather are whole multiples of 16 bytes, as in nccl-tests.
PART_ELEMENTS = 4
# The data of rank r are numbers from 0 to 1008, plus 1024 r: float32 adds those of 16 ranks without rounding.
PATTERN, RANK_STEP = 1009, 1024
NCCL4PY = "pip install nccl4py"
# NCCL's variables whose values are names or addresses of machines.
NAMING = ("NCCL_COMM_ID", "NCCL_HOSTID")
POISON = 0xFF  # four such bytes are a NaN, which equals nothing

Values = npt.NDArray[np.float32]
Pointers = npt.NDArray[np.uint64]


def bus_factor(name: CollectiveName, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, from nccl-tests' doc/PERFORMANCE.md; 0 where one rank uses no link.

    The bus bandwidth is the rate at which each GPU's links carry data one way in a ring, whatever the number of ranks.
    With NVLink SHARP the switches add: all_reduce then moves fewer bytes than a ring does, and its bus bandwidth may
    exceed the links' rate.
    """
    shares: dict[CollectiveName, float] = {"all_reduce": 2 * (ranks - 1) / ranks, "all_gather": (ranks - 1) / ranks}
    return shares.get(name, 1.0 if ranks > 1 else 0.0)


class Library:
    """libnccl.so.2: the one that the process has loaded, the pip package's, or the system's. Raises Skip without it."""

    def __init__(self) -> None:
        from cuda import pathfinder

        try:
            path = pathfinder.load_nvidia_dynamic_lib("nccl").abs_path
        except (RuntimeError, ValueError) as error:  # pathfinder found none, or does not know NCCL
            raise Skip(f"needs NCCL: pip install nvidia-nccl-cu13, or -cu12 ({plain(error, 120)})") from None
        self._library = ctypes.CDLL(path or "libnccl.so.2")
        self._library.ncclGetErrorString.restype = ctypes.c_char_p

    def address(self, name: str) -> int:
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0

    def check(self, code: int, what: str) -> None:
        """Raise MeasurementError, in NCCL's words, for a code that is not 0."""
        if code != 0:
            raise MeasurementError(f"{what}: {self._library.ncclGetErrorString(code).decode()}")

    def version(self) -> str:
        number = ctypes.c_int(0)
        self.check(self._library.ncclGetVersion(ctypes.byref(number)), "ncclGetVersion")
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def communicators(self, case: Case, devices: Sequence[int]) -> Sequence[int]:
        """Make a communicator (ncclComm_t) for each GPU, in this order; the case destroys them."""
        handles: Pointers = np.zeros(len(devices), dtype=np.uint64)
        indices = np.array(devices, dtype=np.int32)
        pointers = (ctypes.c_void_p(int(handles.ctypes.data)), ctypes.c_void_p(int(indices.ctypes.data)))
        try:
            code = self._library.ncclCommInitAll(pointers[0], ctypes.c_int(len(devices)), pointers[1])
        finally:
            case.context.make_current()

        def destroy() -> None:
            for handle in handles:
                self._library.ncclCommDestroy(ctypes.c_void_p(int(handle)))
            case.context.make_current()

        self.check(int(code), "ncclCommInitAll")
        case.own(destroy)
        return [int(handle) for handle in handles]


class Rank:
    """One GPU of a ring with its communicator, its stream and its buffers."""

    def __init__(self, board: LinkedGpu, send_count: int, receive_count: int) -> None:
        self.board, self.communicator = board, 0
        self.send_count, self.receive_count = send_count, receive_count
        with board.current():
            self.send = board.case.device_memory(send_count * ELEMENT_BYTES)
            self.receive = board.case.device_memory(receive_count * ELEMENT_BYTES)

    def fresh(self, values: Values) -> None:
        with self.board.current():
            self.board.case.upload(self.send, values)
            check(driver.cuMemsetD8(self.receive, POISON, self.receive_count * ELEMENT_BYTES))
            self.board.case.synchronize()

    def received(self) -> Values:
        with self.board.current():
            values: Values = self.board.case.read(self.receive, self.receive_count, np.float32)
            return values


def sent_elements(name: CollectiveName, ranks: int, size_bytes: int) -> int:
    """How many numbers each rank sends. Raises Skip for none."""
    count = size_bytes // ELEMENT_BYTES
    if name == "all_gather":
        count = count // ranks // PART_ELEMENTS * PART_ELEMENTS
    if count == 0:
        raise Skip(f"{size_bytes} bytes are too few for {name} on {ranks} GPUs")
    return count


class Collective:
    """An NCCL operation of float32 on the GPU under test and the next ones by CUDA index, all driven by this thread.

    Each GPU is one rank; ``ranks`` of None means all GPUs. ``loop`` calls NCCL's C interface from the compiled loop, as
    a C program does; nccl4py is NVIDIA's Python package. ``size_bytes`` is the size as nccl-tests counts it: what one
    rank sends in all_reduce and in send_recv, where each rank sends to the next one, and what all ranks together send
    in all_gather.
    """

    def __init__(self, case: Case, name: CollectiveName, binding: Binding, ranks: int | None, size_bytes: int) -> None:
        self._case, self._name = case, name
        own = int(case.context.device)
        indices = [own, *(index for index in gpus(case) if index != own)]
        self.ranks = ranks or len(indices)
        if self.ranks > len(indices):
            raise Skip(f"needs {self.ranks} GPUs: {len(indices)} here")
        count = sent_elements(name, self.ranks, size_bytes)
        received = count * self.ranks if name == "all_gather" else count
        self.size_bytes = received * ELEMENT_BYTES
        self._library = Library()
        self._ranks = [Rank(board(case, index), count, received) for index in indices[: self.ranks]]
        handles = self._library.communicators(case, indices[: self.ranks])
        for rank, handle in zip(self._ranks, handles, strict=True):
            rank.communicator = handle
        self._seed = 0
        self._streams = np.array([as_int64(rank.board.stream) for rank in self._ranks], dtype=np.int64)
        # Make that many calls on every rank, then wait until all GPUs are done: host time of all that in ns.
        self.take_ns = self._by_loop() if binding == "loop" else self._by_nccl4py()

    def facts(self) -> Sequence[Fact]:
        """The number of ranks, NCCL's version, and the NCCL variables of the environment.

        NCCL reads further settings from /etc/nccl.conf and ~/.nccl.conf, which are not included. Variables that name a
        machine are left out: their values change nothing here, and runs are shared.
        """
        settings = sorted(
            f"{name}={value}" for name, value in os.environ.items() if name.startswith("NCCL_") and name not in NAMING
        )
        return (
            Fact("nccl_ranks", self.ranks, source="ncclCommInitAll"),
            Fact("nccl_version", self._library.version(), source="ncclGetVersion"),
            Fact("nccl_settings", plain(" ".join(settings), 200) or "none", source="environment"),
        )

    def fresh(self) -> None:
        self._seed += 1
        for index, rank in enumerate(self._ranks):
            rank.fresh(self._sent(index))

    def check(self) -> str:
        alike = None if self._name == "send_recv" else self._alike()
        for index, rank in enumerate(self._ranks):
            expected = self._sent((index - 1) % self.ranks) if alike is None else alike
            wrong = np.flatnonzero(rank.received() != expected)
            if wrong.size:
                raise MeasurementError(
                    f"{self._name}: element {wrong[0]} of {rank.receive_count} on rank {index} of {self.ranks} is wrong"
                )
        return "every element that each GPU received compared with its exact value"

    def _pattern(self, index: int) -> Values:
        return np.roll(np.arange(PATTERN, dtype=np.float32), self._seed) + np.float32(index * RANK_STEP)

    def _sent(self, index: int) -> Values:
        return np.resize(self._pattern(index), self._ranks[index].send_count)

    def _alike(self) -> Values:
        """The data that every rank receives: the sum, or all parts one after another."""
        if self._name == "all_gather":
            return np.concatenate([self._sent(index) for index in range(self.ranks)])
        patterns = np.array([self._pattern(index) for index in range(self.ranks)])
        return np.resize(patterns.sum(axis=0, dtype=np.float32), self._ranks[0].receive_count)

    def _by_loop(self) -> Callable[[int], int]:
        """With several ranks a call is one group of all ranks' calls, as in nccl-tests."""
        library = self._library

        def row(what: str, *arguments: int) -> CallRow:
            return CallRow(what, library.address(what), arguments)

        start, end = row("ncclGroupStart"), row("ncclGroupEnd")
        calls: list[CallRow] = []
        for index, rank in enumerate(self._ranks):
            after, before = (index + 1) % self.ranks, (index - 1) % self.ranks
            last = (rank.communicator, rank.board.stream)
            if self._name == "all_reduce":
                calls.append(row("ncclAllReduce", rank.send, rank.receive, rank.send_count, FLOAT32, SUM, *last))
            elif self._name == "all_gather":
                calls.append(row("ncclAllGather", rank.send, rank.receive, rank.send_count, FLOAT32, *last))
            else:
                send = row("ncclSend", rank.send, rank.send_count, FLOAT32, after, *last)
                receive = row("ncclRecv", rank.receive, rank.receive_count, FLOAT32, before, *last)
                calls += [start, send, receive, end]
        if self.ranks > 1:
            calls = [start, *calls, end]
        addresses = np.array([as_int64(call.address) for call in calls], dtype=np.int64)
        rows: IntArray = np.zeros((len(calls), loops.WIDE_ARGUMENTS), dtype=np.int64)
        for line, call in zip(rows, calls, strict=True):
            line[: len(call.arguments)] = [as_int64(value) for value in call.arguments]
        synchronize, clock = entry_point("cuStreamSynchronize"), c_address("clock_gettime")

        def take_ns(count: int) -> int:
            code, waited, taken_ns = loops.rows_until_done(addresses, rows, count, synchronize, self._streams, clock)
            self._case.context.make_current()
            library.check(int(code), self._name)
            check_code(int(waited), "cuStreamSynchronize")
            return int(taken_ns)

        return take_ns

    def _by_nccl4py(self) -> Callable[[int], int]:
        """The calls that a user of nccl4py writes, on CuPy arrays."""
        nccl, cupy = load("nccl.core", NCCL4PY), load_cupy()
        calls: list[Callable[[], object]] = []
        for index, rank in enumerate(self._ranks):
            device = int(rank.board.case.context.device)
            send, receive = (
                cupy.ndarray((count,), np.float32, cupy.cuda.MemoryPointer(memory, 0))
                for address, count in ((rank.send, rank.send_count), (rank.receive, rank.receive_count))
                for memory in (cupy.cuda.UnownedMemory(address, count * ELEMENT_BYTES, rank, device),)
            )
            peers = ((index + 1) % self.ranks, (index - 1) % self.ranks)
            communicator = nccl.Communicator(rank.communicator)
            calls.append(_python_call(nccl, self._name, communicator, rank.board.stream, (send, receive), peers))
        streams = [driver.CUstream(rank.board.stream) for rank in self._ranks]
        group = nccl.group if self.ranks > 1 else nullcontext

        def take_ns(count: int) -> int:
            begin_ns = time.monotonic_ns()
            for _ in range(count):
                with group():
                    for call in calls:
                        call()
            results = [driver.cuStreamSynchronize(stream) for stream in streams]
            taken_ns = time.monotonic_ns() - begin_ns
            self._case.context.make_current()
            for result in results:
                check(result)
            return taken_ns

        return take_ns


def _python_call(
    nccl: Any, name: CollectiveName, communicator: Any, stream: int, arrays: tuple[Any, Any], peers: tuple[int, int]
) -> Callable[[], object]:
    """One rank's call by nccl4py. The first array is sent, to the first rank."""
    send, receive = arrays
    if name == "all_reduce":
        return lambda: communicator.allreduce(send, receive, nccl.SUM, stream=stream)
    if name == "all_gather":
        return lambda: communicator.allgather(send, receive, stream=stream)

    def exchange() -> None:
        with nccl.group():
            communicator.send(send, peers[0], stream=stream)
            communicator.recv(receive, peers[1], stream=stream)

    return exchange


class SimulatedCollective(Ends, Scoped, Collective):
    """Calls are queued while the GPUs work on earlier ones; all GPUs work alike."""

    def __init__(
        self, machine: Machine, name: CollectiveName, binding: Binding, ranks: int | None, size_bytes: int
    ) -> None:
        costs = machine.costs
        self.take_ns = self._calls_ns
        self.ranks = ranks or costs.gpus
        require_gpus(machine, range(self.ranks))
        part_bytes = sent_elements(name, self.ranks, size_bytes) * ELEMENT_BYTES
        Ends.__init__(self, costs, part_bytes * self.ranks if name == "all_gather" else part_bytes)
        Scoped.__init__(self, machine)
        links = costs.links
        python_ns = links.collective_python_ns if binding == "nccl4py" else 0.0
        self._host_ns = self.ranks * (links.collective_submit_ns + python_ns)
        if self.ranks == 1:
            self._device_ns = links.collective_alone_ns + self.size_bytes / links.collective_copy_bytes_per_s * 1e9
        else:
            on_bus_bytes = bus_factor(name, self.ranks) * self.size_bytes
            self._device_ns = links.collective_fixed_ns + on_bus_bytes / links.peer_sm_bytes_per_s * 1e9

    def _calls_ns(self, count: int) -> int:
        machine = self._open()
        begin_ns = machine.clock.now_ns()
        began_ns = machine.clock.time_ns
        starts_ns = machine.costs.launch_to_start_ns
        works_ns = machine.noise.device(self._device_ns, count)
        machine.spend(self._host_ns * count)
        first_ns = began_ns + self._host_ns + starts_ns + float(works_ns.sum())
        machine.clock.wait_until(max(first_ns, machine.clock.time_ns + starts_ns + float(works_ns[-1])))
        machine.synchronize()
        self.move()
        return machine.clock.now_ns() - begin_ns

    def facts(self) -> Sequence[Fact]:
        return (
            Fact("nccl_ranks", self.ranks, source="SIMULATED"),
            Fact("nccl_version", None, source="SIMULATED", reason="the simulated GPU has no NCCL"),
        )


nccl_collective = experiment(Collective, SimulatedCollective)
