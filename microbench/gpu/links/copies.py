"""One copy by a copy engine, one by a kernel, and copies both ways at once; what they moved is checked on the GPU."""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver

from microbench.errors import MeasurementError
from microbench.gpu.api import Submit
from microbench.gpu.context import check
from microbench.gpu.graphs.base import Case
from microbench.gpu.link_api import Access, Direction, FloatArray, HostMemory
from microbench.gpu.links.memory import HostBuffer
from microbench.gpu.links.patterns import Patterns
from microbench.gpu.submit import DriverSubmit, Parameters, copy, launch
from microbench.ops import Launch

COPY_THREADS = 512
MILLISECOND_S = 1e-3


class Ends:
    """The two ends of a movement: a host buffer and device memory, which of them is the source, and their pattern."""

    def __init__(
        self, case: Case, host: HostBuffer, size_bytes: int, *, to_device: bool, offset_bytes: int = 0
    ) -> None:
        self._case = case
        self._host = host
        self._offset_bytes = offset_bytes
        self._to_device = to_device
        self._patterns = Patterns(case.context, case.modules)
        self._seed = 0
        self.size_bytes = size_bytes
        self.host = host.address + offset_bytes
        self.device = case.context.device_memory(size_bytes)
        # Pageable memory is out of the GPU's reach: its pattern goes through device memory of its own.
        self._aside = None if host.device_address else case.context.device_memory(size_bytes)

    @property
    def mapped(self) -> int:
        """The host buffer as the GPU addresses it. Raises MeasurementError for pageable memory."""
        if self._host.device_address is None:
            raise MeasurementError("pageable memory has no address on the GPU")
        return self._host.device_address + self._offset_bytes

    def fresh(self) -> None:
        """A new pattern in the source, its complement in the destination."""
        self._seed += 1
        if self._to_device:
            self._write_host(poison=False)
            self._patterns.poison(self.device, self.size_bytes, self._seed)
        else:
            self._patterns.fill(self.device, self.size_bytes, self._seed)
            self._write_host(poison=True)

    def check(self) -> str:
        """Compare the destination: on the device in place, on the host by the way that no copy took."""
        if self._to_device:
            self._patterns.verify(self.device, self.size_bytes, self._seed, "device memory")
            return "every byte compared on the GPU"
        if self._aside is None:
            self._patterns.verify(self.mapped, self.size_bytes, self._seed, "host memory")
            return "every byte compared by a kernel that reads the host's memory"
        check(driver.cuMemcpyHtoD(self._aside, self.host, self.size_bytes))
        self._patterns.verify(self._aside, self.size_bytes, self._seed, "host memory")
        return "every byte copied back and compared on the GPU"

    def _write_host(self, *, poison: bool) -> None:
        address = self.mapped if self._aside is None else self._aside
        write = self._patterns.poison if poison else self._patterns.fill
        write(address, self.size_bytes, self._seed)
        if self._aside is not None:
            check(driver.cuMemcpyDtoH(self.host, self._aside, self.size_bytes))


class CudaCopy:
    """See Transfer of link_api.py."""

    def __init__(
        self, case: Case, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None
    ) -> None:
        self.size_bytes = size_bytes
        self.blocks = memory == "pageable"
        host = HostBuffer(case.context, memory, size_bytes, node)
        self._ends = Ends(case, host, size_bytes, to_device=direction == "h2d")
        self.submit: Submit = copy_submit(self._ends, direction, case.stream(0))
        self.fresh = self._ends.fresh
        self.check = self._ends.check


def copy_submit(ends: Ends, direction: Direction, stream: int) -> DriverSubmit:
    """One asynchronous copy of the whole buffer."""
    return copy(direction, ends.device, ends.host, ends.size_bytes, stream)


class CudaKernelCopy:
    """See Transfer and Links.kernel_copy of link_api.py."""

    blocks = False

    def __init__(self, case: Case, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        host = HostBuffer(case.context, "pinned", size_bytes + offset_bytes)
        reads = access == "read"
        self._ends = ends = Ends(case, host, size_bytes, to_device=reads, offset_bytes=offset_bytes)
        source, destination = (ends.mapped, ends.device) if reads else (ends.device, ends.mapped)
        self.submit: Submit = kernel_copy_submit(case, case.stream(0), source, destination, size_bytes, width_bytes)
        self.fresh = ends.fresh
        self.check = ends.check


def kernel_copy_submit(
    case: Case, stream: int, source: int, destination: int, size_bytes: int, width_bytes: int
) -> DriverSubmit:
    """A copy by all SMs, ``width_bytes`` (4, 8 or 16) a thread at a time."""
    function = case.modules.function("link", f"copy{width_bytes}")
    shape = Launch(grid_blocks=case.context.attribute("MULTIPROCESSOR_COUNT"), block_threads=COPY_THREADS)
    return launch(function, shape, stream, Parameters([(source, destination, size_bytes)]))


class CudaDuplex:
    """See Duplex of link_api.py: host to device in stream 0, device to host in stream 1."""

    def __init__(self, case: Case, size_bytes: int) -> None:
        self._case = case
        self._ends: dict[Direction, Ends] = {}
        self._submits: dict[Direction, DriverSubmit] = {}
        directions: tuple[Direction, ...] = ("h2d", "d2h")
        for index, direction in enumerate(directions):
            ends = Ends(case, HostBuffer(case.context, "pinned", size_bytes), size_bytes, to_device=direction == "h2d")
            self._ends[direction] = ends
            self._submits[direction] = copy_submit(ends, direction, case.stream(index))
        self._begin = case.context.event(timed=True)
        self._events: dict[Direction, list[int]] = {"h2d": [], "d2h": []}

    def ends_s(self, h2d: int, d2h: int) -> tuple[FloatArray, FloatArray] | None:
        """See Duplex. An event behind every copy, which costs its stream about a microsecond."""
        counts: dict[Direction, int] = {"h2d": h2d, "d2h": d2h}
        self._make_events(counts)
        gate = self._case.gate()
        gate.shut((0,))
        check(driver.cuEventRecord(self._begin, self._case.stream(0)))
        check(driver.cuStreamWaitEvent(self._case.stream(1), self._begin, 0))
        for direction, submit in self._submits.items():
            for event in self._events[direction][: counts[direction]]:
                submit(1)
                check(driver.cuEventRecord(event, submit.stream))
        gate.open()
        self._case.context.synchronize()
        if gate.was_late():
            return None
        return self._since_begin("h2d", h2d), self._since_begin("d2h", d2h)

    def _make_events(self, counts: dict[Direction, int]) -> None:
        for direction, count in counts.items():
            events = self._events[direction]
            events.extend(self._case.context.event(timed=True) for _ in range(count - len(events)))

    def _since_begin(self, direction: Direction, count: int) -> FloatArray:
        events = self._events[direction][:count]
        elapsed_ms = [float(check(driver.cuEventElapsedTime(self._begin, event))) for event in events]
        return np.array(elapsed_ms, dtype=np.float64) * MILLISECOND_S

    def fresh(self) -> None:
        """See Transfer."""
        for ends in self._ends.values():
            ends.fresh()

    def check(self) -> str:
        """See Transfer."""
        return "; ".join(f"{direction}: {ends.check()}" for direction, ends in self._ends.items())
