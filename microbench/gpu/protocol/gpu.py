"""The protocol Gpu: everything a benchmark or the Meter may ask of a GPU, real or simulated. Times are raw stamps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

from microbench.core.model import Fact, GpuInfo, Telemetry
from microbench.core.ops import GraphLaunch, IntArray, Launch, LayerCall, Op
from microbench.gpu.protocol.compute import Compute
from microbench.gpu.protocol.graphs import Graphs
from microbench.gpu.protocol.links import Links
from microbench.gpu.protocol.memory import DeviceMemory
from microbench.gpu.protocol.submit import Submit

WaitMode = Literal["spin", "yield", "blocking", "auto"]
WAIT_MODES: tuple[WaitMode, ...] = ("spin", "yield", "blocking", "auto")
# Set by a benchmark's process_environment: the wait mode must be known before the context exists.
WAIT_VARIABLE = "MICROBENCH_WAIT_MODE"

# Without a measurement of this GPU's own, no more launches than this may stand behind a gate at once:
# half of the 1021 found on data-centre drivers of the 580 series (launch_queue measures it).
SAFE_QUEUE_SLOTS = 510


class HostClock(Protocol):
    """The one clock that the Meter reads."""

    def now_ns(self) -> int:
        """Monotonic time in nanoseconds."""
        ...


class Gate(Protocol):
    """A kernel that holds streams until a flag is set; it opens by itself after its time-out."""

    def shut(self, streams: Sequence[int] = (0,), timeout_s: float = 0.5) -> None:
        """Hold the streams. What is submitted to them afterwards waits."""
        ...

    def open(self) -> None:
        """Let go."""
        ...

    def was_late(self) -> bool:
        """True if the gate of the last shut timed out by itself: the sample is void. Call after a synchronise."""
        ...


class EventPair(Protocol):
    """Two timing events in a stream."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def elapsed_s(self) -> float:
        """Time between the two by the device's clock; waits for the second."""
        ...


class Recorded(NamedTuple):
    """What a batch of kernels recorded of itself, in submission order.

    ``start_ns`` and ``end_ns`` are %globaltimer as the kernel's first and last act (min and max over its blocks).
    ``step_ns`` is the probed step of %globaltimer.
    """

    start_ns: IntArray
    end_ns: IntArray
    step_ns: int


class PcieBytes(NamedTuple):
    """PCIe traffic of the GPU since some moment, packet headers included: by the GPU's counters."""

    sent: int
    received: int
    coarse: bool


class Gpu(Protocol):
    """One GPU with its primary context, opened for a worker process."""

    info: GpuInfo
    simulated: bool

    @property
    def clock(self) -> HostClock:
        """The host clock that this GPU's stamps are in."""
        ...

    def case(self) -> AbstractContextManager[None]:
        """Scope of one case: what is allocated inside (streams, graphs, memory, layers) is released at its end."""
        ...

    def bind(self, op: Op) -> Submit:
        """Make an op ready to be submitted. Raises Skip when this GPU, driver or installation cannot."""
        ...

    def layer_kernels(self, op: LayerCall) -> Fact:
        """Kernels that one call of a layer bound before makes, by capture; None with a reason if unknown."""
        ...

    def graph(self, ops: Sequence[Op]) -> GraphLaunch:
        """Capture ops of stream 0 as one chain, instantiate and upload it; calls of one layer by the layer's own means.

        Raises MeasurementError with the driver's reason for an op that cannot be captured.
        """
        ...

    @property
    def graphs(self) -> Graphs:
        """What else can be done with graphs; it belongs to the case."""
        ...

    @property
    def links(self) -> Links:
        """What can be asked of the links to the host and to other GPUs; it belongs to the case."""
        ...

    @property
    def memory(self) -> DeviceMemory:
        """What can be asked of the GPU's own memory and caches; it belongs to the case."""
        ...

    @property
    def compute(self) -> Compute:
        """What can be asked of the GPU's tensor cores and ALUs; it belongs to the case."""
        ...

    def gate(self) -> Gate: ...

    def events(self, stream: int = 0) -> EventPair: ...

    def synchronize(self) -> None:
        """Wait until the GPU is idle."""
        ...

    def synchronize_stream(self, stream: int = 0) -> None:
        """Wait for one stream, by the wait mode the process was started with."""
        ...

    def start_stamps(self, count: int) -> IntArray:
        """``count`` times: launch an empty kernel that writes a flag as its first act, then synchronise the stream.

        Shape (count, 4), host clock in ns: before the call, call returned, flag seen by a second thread, synchronise
        returned. A flag stamp of 0 is one that the watcher missed. Raises Skip without a second CPU to watch from.
        """
        ...

    def flag_round_trips(self, count: int) -> IntArray:
        """Host writes a flag, the GPU answers by another, the host sees it: ``count`` times in ns."""
        ...

    def host_read_ns(self, count: int) -> IntArray:
        """Dependent reads of host memory by one GPU thread: ns a read, one figure for each of ``count`` chains."""
        ...

    def record(self, launch: Launch, count: int, *, graph: bool, gated: bool) -> Recorded:
        """Submit ``count`` self-recording kernels of ``launch``'s length and kind; queue_slots at most if gated."""
        ...

    def resident(self, streams: int, duration_ns: int) -> int:
        """The most kernels seen resident at once, of one-block kernels behind a gate, one in each stream."""
        ...

    def threads_stamps(self, threads: int, count: int) -> IntArray:
        """``threads`` host threads, each launching ``count`` empty kernels into its own stream from a common start.

        Shape (threads, 2): begin and end of each thread's loop in host ns. Raises Skip for more threads than cores.
        """
        ...

    def round_robin_ns(self, streams: int, count: int) -> int:
        """``count`` empty kernels, each to the next of ``streams`` streams, and a wait for all: host ns in total."""
        ...

    def pause(self, seconds: float) -> None:
        """Let time pass with nothing submitted."""
        ...

    def pcie_bytes(self) -> PcieBytes:
        """Totals of the counters: differences of two readings are traffic. Raises Skip if there are none."""
        ...

    def energy_j(self) -> float:
        """The GPU's energy counter in joules: differences are energy. Raises Skip where there is none."""
        ...

    def telemetry(self) -> Telemetry:
        """SM clock by the SMs themselves (as ``sm_clock_begin_hz``), the rest by NVML; never raises."""
        ...

    def close(self) -> None: ...


class ColdStarts(Protocol):
    """A process that has not touched the GPU yet: each figure can be taken once."""

    def seconds(self, what: str) -> float:
        """Time of one first act, by the host clock. Raises Skip when it does not exist here."""
        ...


class Host(Protocol):
    """The host suite's seam: what the CPU side costs, without a GPU."""

    simulated: bool

    @property
    def clock(self) -> HostClock:
        """The clock of the stamps."""
        ...

    def clock_stamps(self, count: int) -> IntArray:
        """``count`` readings of the monotonic clock from a compiled loop with nothing between, in ns."""
        ...

    def call_s(self, how: str, count: int) -> float:
        """Seconds for ``count`` calls that do nothing: how = compiled, compiled_from_python, ctypes, python."""
        ...

    def copy_s(self, threads: int, size_bytes: int) -> float:
        """Seconds for each of ``threads`` threads to copy its own ``size_bytes`` once, from a common start."""
        ...

    def wakeup_stamps(self, how: str, count: int) -> IntArray:
        """``count`` hand-offs to another thread and back, in ns each: how = spin, event, pipe."""
        ...

    def cores(self) -> int:
        """Physical cores this process may run on."""
        ...
