"""The GPUs that this process sees, and copies at the same time: of several GPUs, and both ways."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.experiments.link.copies import DIRECTIONS, Ends
from microbench.gpu.cuda.buffers import HostBuffer, Patterns
from microbench.gpu.cuda.context import Context, device_uuid
from microbench.gpu.cuda.submit import DriverSubmit
from microbench.gpu.cuda.timing import SpinGate, elapsed_s
from microbench.gpu.experiment import Case, Machine, check, driver, experiment, require_host_memory
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.machine import FakeGate, Scoped
from microbench.gpu.fake.transfers import Ends as SimulatedEnds
from microbench.gpu.machine.pci import numa_node
from microbench.gpu.protocol.gpu import Direction, FloatArray

BUS_ID_BYTES = 32
ALREADY_ENABLED = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED


def gpus(case: Case) -> Sequence[int]:
    """CUDA indices of all GPUs that this process sees."""
    return range(int(check(driver.cuDeviceGetCount())))


class LinkedGpu:
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


def board(case: Case, index: int) -> LinkedGpu:
    """The GPU with that CUDA index, opened when it is first needed and closed when the case ends. Raises Skip if there
    is none."""
    count = len(gpus(case))
    if not 0 <= index < count:
        raise Skip(f"needs a GPU {index}: {count} here")
    return case.once(_open, index)


def _open(home: Case, index: int) -> LinkedGpu:
    device = check(driver.cuDeviceGet(index))
    if int(device) == int(home.context.device):
        return LinkedGpu(home, home)
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
    return LinkedGpu(case, home)


def enable_peers(case: Case, first: int, second: int) -> None:
    """Let ``first`` access the memory of ``second`` until the case ends. Raises Skip if it cannot, saying why.

    Call it by ``case.once``.
    """
    here, other = board(case, first), board(case, second).case.context
    if not int(check(driver.cuDeviceCanAccessPeer(here.case.context.device, other.device))):
        raise Skip(
            f"GPU {first} has no peer access to GPU {second}: the driver refuses it (no NVLink or common bridge, "
            "ACS, a virtual machine or MIG may be why)"
        )
    with here.current():
        (code,) = driver.cuCtxEnablePeerAccess(other.handle, 0)
        if int(code) not in (0, ALREADY_ENABLED):
            check((code,))

    def disable() -> None:
        with here.current(), suppress(MeasurementError):
            check(driver.cuCtxDisablePeerAccess(other.handle))

    case.own(disable)


def require_gpus(machine: Machine, gpus: Sequence[int]) -> None:
    """Raise Skip for an index that no simulated GPU has."""
    for gpu in gpus:
        if not 0 <= gpu < machine.costs.gpus:
            raise Skip(f"needs a GPU {gpu}: {machine.costs.gpus} here")


def require_pair(machine: Machine, first: int, second: int, *, access: bool = True) -> None:
    """Raise Skip for a pair that does not exist, or lacks the peer access that is asked for."""
    require_gpus(machine, (first, second))
    if access and (first, second) in machine.costs.links.peer_denied:
        raise Skip(f"GPU {first} has no peer access to GPU {second}: the simulated driver refuses it")


visible_gpus = experiment(gpus, lambda machine: range(machine.costs.gpus))


class Concurrent:
    """Pinned copies of several GPUs (CUDA indices), each to or from the NUMA node that the GPU is on.

    They are released one right after the other. The first GPU is measured.
    """

    def __init__(self, case: Case, direction: Direction, gpus: Sequence[int], size_bytes: int) -> None:
        self._boards = [board(case, index) for index in gpus]
        self._ends: list[Ends] = []
        self._submits: list[DriverSubmit] = []
        self._events: list[list[int]] = []  # before and after the copies of each GPU
        for gpu in self._boards:
            with gpu.current():
                # Near its own GPU: otherwise several GPUs would share the link between the processors.
                host = HostBuffer(gpu.case, "pinned", size_bytes, gpu.node)
                self._ends.append(Ends(gpu.case, host, size_bytes, direction))
                self._submits.append(self._ends[-1].by_engine(gpu.stream))
                self._events.append([gpu.case.event(timed=True) for _ in range(2)])

    def take_s(self, count: int) -> FloatArray | None:
        """``count`` copies on the first GPU: seconds by each GPU's own events, shape (gpus,); None if a gate timed out.

        The others make twice as many copies, so that the measured GPU never runs alone. Its gate opens last, a
        microsecond after the others.
        """
        gpus = list(zip(self._boards, self._submits, self._events, strict=True))
        for gpu, submit, (begin, end) in (*gpus[1:], gpus[0]):
            with gpu.current():
                gpu.gate.shut()
                check(driver.cuEventRecord(begin, gpu.stream))
                submit(count if gpu is self._boards[0] else 2 * count)
                check(driver.cuEventRecord(end, gpu.stream))
        for gpu in (*self._boards[1:], self._boards[0]):
            gpu.gate.open()
        for gpu in self._boards:
            gpu.synchronize()
        if any(gpu.gate.was_late() for gpu in self._boards):
            return None
        return np.array([elapsed_s(begin, end) for begin, end in self._events], dtype=np.float64)

    def fresh(self) -> None:
        for gpu, ends in zip(self._boards, self._ends, strict=True):
            with gpu.current():
                ends.fresh()

    def check(self) -> str:
        checked = []
        for gpu, ends in zip(self._boards, self._ends, strict=True):
            with gpu.current():
                checked.append(ends.check())
        return "; ".join(dict.fromkeys(checked))


class Duplex:
    """Copies of ``size_bytes`` of pinned memory both ways at the same time: h2d in stream 0, d2h in stream 1."""

    def __init__(self, case: Case, size_bytes: int) -> None:
        self._case = case
        self._ends: dict[Direction, Ends] = {}
        self._submits: dict[Direction, DriverSubmit] = {}
        for index, direction in enumerate(DIRECTIONS):
            self._ends[direction] = ends = Ends(case, HostBuffer(case, "pinned", size_bytes), size_bytes, direction)
            self._submits[direction] = ends.by_engine(case.stream(index))
        self._begin = case.event(timed=True)
        self._events: dict[Direction, list[int]] = {"h2d": [], "d2h": []}

    def ends_s(self, h2d: int, d2h: int) -> tuple[FloatArray, FloatArray] | None:
        """Start ``h2d`` and ``d2h`` copies together. Returns when each ended, in s since the start.

        Shapes (h2d,) and (d2h,), by the device's clock; None if the gate timed out. There is an event after every copy,
        which costs its stream about a microsecond.
        """
        case, counts = self._case, {"h2d": h2d, "d2h": d2h}
        for direction, events in self._events.items():
            events.extend(case.event(timed=True) for _ in range(counts[direction] - len(events)))
        gate = case.once(SpinGate)
        gate.shut((0,))
        check(driver.cuEventRecord(self._begin, case.stream(0)))
        check(driver.cuStreamWaitEvent(case.stream(1), self._begin, 0))
        for direction, submit in self._submits.items():
            for event in self._events[direction][: counts[direction]]:
                submit(1)
                check(driver.cuEventRecord(event, submit.stream))
        gate.open()
        case.synchronize()
        if gate.was_late():
            return None
        to_gpu, from_gpu = (
            np.array([elapsed_s(self._begin, event) for event in events[: counts[direction]]], dtype=np.float64)
            for direction, events in self._events.items()
        )
        return to_gpu, from_gpu

    def fresh(self) -> None:
        for ends in self._ends.values():
            ends.fresh()

    def check(self) -> str:
        return "; ".join(f"{direction}: {ends.check()}" for direction, ends in self._ends.items())


# Bytes on each wire per byte of payload.
Loads = Mapping[str, float]


def to_gpu(costs: FakeCosts, gpu: int) -> Loads:
    """Reads of host memory: data go to the GPU, read requests to the host."""
    moved = costs.copy_traffic("h2d", 1.0)
    return {f"down{gpu}": moved.received, f"up{gpu}": moved.sent, "downlink": moved.received, "uplink": moved.sent}


def from_gpu(costs: FakeCosts, gpu: int) -> Loads:
    """Writes to host memory."""
    data = costs.copy_traffic("d2h", 1.0).sent
    return {f"up{gpu}": data, "uplink": data}


def between(costs: FakeCosts, source: int, target: int, *, access: bool) -> Loads:
    """From one GPU's memory to another's. Without peer access the data cross the host links of both."""
    if access:
        return {f"peer{source}-{target}": 1.0}
    up, down = from_gpu(costs, source), to_gpu(costs, target)
    return {wire: up.get(wire, 0.0) + down.get(wire, 0.0) for wire in up.keys() | down.keys()}


def capacity(costs: FakeCosts, wire: str) -> float:
    """Bytes a second on a wire: a host link or the uplink, a link between two GPUs, or the SMs of a GPU."""
    if wire in ("downlink", "uplink"):
        return costs.links.uplink_factor * costs.link_bytes_per_s
    if wire.startswith("peer"):
        return costs.links.peer_bytes_per_s
    return costs.links.peer_sm_bytes_per_s if wire.startswith("sm") else costs.link_bytes_per_s


def play(
    costs: FakeCosts, ways: Sequence[Loads], counts: Sequence[int], size_bytes: float, before_ns: float
) -> list[FloatArray]:
    """When each movement of each way ends, in ns since the common start; one array of shape (count,) per way.

    ``before_ns`` passes before each movement's first byte. The ways that still run get equal shares of a wire.
    """
    done, now_ns = np.zeros(len(ways)), 0.0
    knots: list[list[tuple[float, float]]] = [[(0.0, 0.0)] for _ in ways]  # (movements done, time)
    while running := [way for way, count in enumerate(counts) if done[way] < count]:
        load = {wire: sum(ways[other].get(wire, 0.0) for other in running) for way in running for wire in ways[way]}
        each_ns = {
            way: before_ns + size_bytes * max(load[wire] / capacity(costs, wire) for wire in ways[way]) * 1e9
            for way in running
        }
        first = min(running, key=lambda way: (counts[way] - done[way]) * each_ns[way])
        step_ns = (counts[first] - done[first]) * each_ns[first]
        now_ns += step_ns
        for way in running:
            done[way] = counts[way] if way == first else done[way] + step_ns / each_ns[way]
            knots[way].append((done[way], now_ns))
    ends_ns = []
    for count, knots_of_way in zip(counts, knots, strict=True):
        reached, at_ns = np.array(knots_of_way).T
        ends_ns.append(np.interp(np.arange(1, count + 1), reached, at_ns))
    return ends_ns


class Movements(SimulatedEnds, Scoped):
    """Movements of ``size_bytes`` that run at once, each in its own stream and with its own buffers.

    ``before_ns`` passes before each movement's first byte. Without ``gated`` they start as they are submitted.
    """

    def __init__(
        self, machine: Machine, ways: Sequence[Loads], size_bytes: int, before_ns: float, *, gated: bool = True
    ) -> None:
        SimulatedEnds.__init__(self, machine.costs, size_bytes)
        Scoped.__init__(self, machine)
        self._ways = ways
        self._before_ns = before_ns
        self._gated = gated

    def _take_s(self, counts: Sequence[int]) -> list[FloatArray] | None:
        """Start that many movements on each way together. Returns when each ended, in s since the start, shapes
        (count,).

        Returns None if the gate opened by itself.
        """
        machine = self._open()
        gate = FakeGate(machine)
        if self._gated:
            gate.shut()
        began_ns = machine.clock.time_ns + machine.costs.launch_to_start_ns
        machine.spend(machine.costs.copy_h2d_submit_ns * sum(counts))
        if self._gated:
            gate.open()
            began_ns = machine.device.idle_ns(0)
        ends_ns = [
            np.cumsum(np.diff(way_ns, prepend=0.0) * machine.noise.device(1.0, len(way_ns)))
            for way_ns in play(machine.costs, self._ways, counts, self.size_bytes, self._before_ns)
        ]
        for loads, count in zip(self._ways, counts, strict=True):  # the counters are those of GPU 0
            machine.device.received_bytes += count * self.size_bytes * loads.get("down0", 0.0)
            machine.device.sent_bytes += count * self.size_bytes * loads.get("up0", 0.0)
        machine.clock.wait_until(began_ns + max(float(way_ns[-1]) for way_ns in ends_ns))
        machine.synchronize()
        self.move()
        return None if gate.was_late() else [way_ns * 1e-9 for way_ns in ends_ns]


class SimulatedConcurrent(Movements, Concurrent):
    """GPUs that copy the same way share the uplink."""

    def __init__(self, machine: Machine, direction: Direction, gpus: Sequence[int], size_bytes: int) -> None:
        costs = machine.costs
        require_gpus(machine, gpus)
        require_host_memory(costs, "pinned", len(gpus) * size_bytes)
        ways = [to_gpu(costs, gpu) if direction == "h2d" else from_gpu(costs, gpu) for gpu in gpus]
        Movements.__init__(self, machine, ways, size_bytes, costs.gap_stream_ns + costs.copy_fixed_ns)

    def take_s(self, count: int) -> FloatArray | None:
        ends_s = self._take_s([count, *[2 * count] * (len(self._ways) - 1)])
        if ends_s is None:
            return None
        return np.array([way_s[-1] for way_s in ends_s]) + self._machine.costs.gap_event_ns * 1e-9


concurrent_copies = experiment(Concurrent, SimulatedConcurrent)


class SimulatedDuplex(Movements, Duplex):
    """An event is recorded after each copy."""

    def __init__(self, machine: Machine, size_bytes: int) -> None:
        costs = machine.costs
        require_host_memory(costs, "pinned", 2 * size_bytes)
        before_ns = costs.gap_stream_ns + costs.copy_fixed_ns + costs.gap_event_ns
        Movements.__init__(self, machine, [to_gpu(costs, 0), from_gpu(costs, 0)], size_bytes, before_ns)

    def ends_s(self, h2d: int, d2h: int) -> tuple[FloatArray, FloatArray] | None:
        ends_s = self._take_s((h2d, d2h))
        return None if ends_s is None else (ends_s[0], ends_s[1])


duplex_copies = experiment(Duplex, SimulatedDuplex)
