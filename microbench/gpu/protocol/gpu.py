"""The operations of a GPU, and of what works on one, for benchmarks and the Meter. Times are raw stamps in ns."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact, GpuInfo, Telemetry
from microbench.core.ops import GraphLaunch, IntArray, Launch, LayerCall, Op

# What every submission can do.


class Submit(Protocol):
    """A bound operation. Between its calls only the loop that makes them runs.

    ``queue_slots`` is how many calls may be outstanding before the next call blocks, halved for safety; None for an
    operation that takes no slot of the launch queue (a query, for example). Every method raises MeasurementError when a
    call returns an error.
    """

    queue_slots: int | None

    def __call__(self, count: int) -> None:
        """Submit ``count`` times."""

    def burst_ns(self, count: int) -> int:
        """Submit ``count`` times. Returns the host time from before the first call to after the last, in ns."""

    def stamps(self, out_ns: IntArray) -> None:
        """Submit ``len(out_ns) - 1`` times. Stamps the host clock, in ns, before each call and after the last."""

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        """``len(out_ns)`` times: make ``calls`` calls, then synchronise with them. Writes each time in ns."""


Result = TypeVar("Result")
Mode = TypeVar("Mode", bound=str)

WaitMode = Literal["spin", "yield", "blocking", "auto"]
WAIT_MODES: tuple[WaitMode, ...] = ("spin", "yield", "blocking", "auto")
# The variable that gives the wait mode, set by a benchmark's process_environment: the mode must be known before the
# context exists.
WAIT_VARIABLE = "MICROBENCH_WAIT_MODE"
LaunchStreams = Literal["one", "two"]
LAUNCH_STREAMS: tuple[LaunchStreams, ...] = ("one", "two")
# Whether a worker launches kernels into one stream only, or has launched into a second one before its first case. On
# drivers of the 580 series a second stream lengthens every later gap between kernels, in all streams and graphs, for
# the rest of the process (lab/measurements/gaps.csv). A benchmark's process_environment sets it; the default is "two".
STREAMS_VARIABLE = "MICROBENCH_LAUNCH_STREAMS"


def mode_here(variable: str, modes: Sequence[Mode], default: Mode) -> Mode:
    """The mode that a variable gives this process. Raises MeasurementError for an unknown one."""
    named = os.environ.get(variable, default)
    for mode in modes:
        if mode == named:
            return mode
    raise MeasurementError(f"{variable}={named} is no mode: there are {', '.join(modes)}")


# The most launches queued behind a gate if this GPU's queue depth has not been measured: half of the 1021 that
# launch_queue found on data-centre drivers of the 580 series.
SAFE_QUEUE_SLOTS = 510


def require_driver(here: int, version: int, what: str) -> None:
    """Raise Skip for a driver older than ``version`` (as cuDriverGetVersion counts: 12040 is CUDA 12.4)."""
    if here < version:
        needed, has = (f"{number // 1000}.{number % 1000 // 10}" for number in (version, here))
        raise Skip(f"{what} need a driver of CUDA {needed}; this one has {has}")


def require_capability(here: tuple[int, int], major: int, minor: int, what: str) -> None:
    """Raise Skip for a GPU with a lower compute capability."""
    if here < (major, minor):
        raise Skip(f"{what} needs compute capability {major}.{minor}; this GPU has {here[0]}.{here[1]}")


class HostClock(Protocol):
    """The clock that the Meter reads."""

    def now_ns(self) -> int:
        """Monotonic time in ns."""


class Gate(Protocol):
    """A kernel that holds streams until a flag is set. It opens by itself after its time-out."""

    def shut(self, streams: Sequence[int] = (0,), timeout_s: float = 0.5) -> None:
        """Hold these streams. Work that is submitted to them afterwards waits."""

    def open(self) -> None:
        """Release the streams."""

    def was_late(self) -> bool:
        """True if the gate timed out after the last ``shut``: the sample is void. Synchronise before calling this."""


class EventPair(Protocol):
    """Two timing events in one stream."""

    def start(self) -> None:
        """Record the first event."""

    def stop(self) -> None:
        """Record the second event."""

    def elapsed_s(self) -> float:
        """Wait for the second event. Returns the time between the two by the device's clock, in s."""


class GpuRecording(NamedTuple):
    """Start and end that each kernel of a batch recorded, in submission order: ns of %globaltimer.

    ``start_ns`` and ``end_ns`` have the shape (kernels,): the kernel's first and last instruction, the earliest and
    latest of its blocks. ``step_ns`` is the smallest step of %globaltimer, which is probed.
    """

    start_ns: IntArray
    end_ns: IntArray
    step_ns: int


class PcieBytes(NamedTuple):
    """PCIe traffic of the GPU since the counters began, packet headers included.

    ``coarse`` is True if the figures are sums of sampled rates instead of counters.
    """

    sent: int
    received: int
    coarse: bool


class Gpu(Protocol):
    """One GPU with its primary context, opened for a worker process.

    Streams are named by index: 0, 1, ... are non-blocking streams of the GPU's own, LEGACY_STREAM is the legacy default
    stream, HIGH_PRIORITY_STREAM a non-blocking one of the highest priority. Every method but ``telemetry`` and
    ``close`` raises MeasurementError for an error of the driver, and Skip, with the reason, if this GPU, driver or
    installation lacks the operation.
    """

    info: GpuInfo
    simulated: bool

    @property
    def clock(self) -> HostClock:
        """The host clock of the stamps."""

    def case(self) -> AbstractContextManager[None]:
        """The scope of one case: streams, graphs, memory and layers made inside are released at its end."""

    def bind(self, op: Op) -> Submit:
        """Prepare an operation to be submitted; it is usable until the case ends."""

    def layer_kernels(self, op: LayerCall) -> Fact:
        """Kernels that one call of a bound layer submits, counted by stream capture; None with a reason if unknown."""

    def graph(self, ops: Sequence[Op]) -> GraphLaunch:
        """Capture operations of stream 0 as one chain, then instantiate and upload the graph.

        Calls of a Python layer must all be equal; the layer's library captures and replays them. Raises
        MeasurementError, with the driver's reason, for an operation that cannot be captured.
        """

    def carry_out(
        self, real: Callable[..., Result], simulated: Callable[..., Result], *args: Any, **kwargs: Any
    ) -> Result:
        """Carry out an experiment in the current case: ``real`` on a real GPU, ``simulated`` on the simulated one."""

    def gate(self) -> Gate:
        """The gate of the current case."""

    def events(self, stream: int = 0) -> EventPair:
        """A new pair of timing events in this stream."""

    def synchronize(self) -> None:
        """Wait until the GPU is idle."""

    def synchronize_stream(self, stream: int = 0) -> None:
        """Wait for one stream. The process waits by spinning or by blocking, as it was started."""

    def record(self, launch: Launch, count: int, *, graph: bool, gated: bool) -> GpuRecording:
        """Run ``count`` kernels of ``launch``'s length and kind that record their own start and end.

        They are submitted as launches, or as one graph. With ``gated`` all are queued before the first may run. Raises
        MeasurementError if they do not fit the launch queue, or if the gate times out again and again.
        """

    def pause(self, seconds: float) -> None:
        """Wait without submitting anything."""

    def pcie_bytes(self) -> PcieBytes:
        """Counter totals; traffic is the difference of two readings. Raises Skip if there are no counters."""

    def energy_j(self) -> float:
        """The energy counter in J; energy is the difference of two readings. Raises Skip if there is no counter."""

    def telemetry(self) -> Telemetry:
        """The SM clock counted by the SMs (``sm_clock_begin_hz``), everything else from NVML. Never raises."""

    def close(self) -> None:
        """Release the context."""


# Host time, in s, of a first use of the GPU in a process that has not touched it yet; each can be timed once a process.
# Raises Skip if this machine cannot do it.
ColdStarts = Callable[[str], float]


class Host(Protocol):
    """The costs of the CPU side, without a GPU: the protocol of the host suite."""

    simulated: bool

    @property
    def clock(self) -> HostClock:
        """The clock of the stamps."""

    def clock_stamps(self, count: int) -> IntArray:
        """``count`` readings of the monotonic clock, back to back from a compiled loop: ns, shape (count,)."""

    def call_s(self, how: str, count: int) -> float:
        """Seconds for ``count`` calls of an empty function. ``how``: compiled, compiled_from_python, ctypes, python."""

    def copy_s(self, threads: int, size_bytes: int) -> float:
        """``threads`` threads start together; each copies its own ``size_bytes`` once. Seconds until all are done."""

    def wakeup_stamps(self, how: str, count: int) -> IntArray:
        """Hand over to another thread and back, ``count`` times: ns, shape (count,). ``how``: spin, event, pipe."""

    def cores(self) -> int:
        """Physical cores that this process may run on."""


FloatArray = npt.NDArray[np.float64]
Direction = Literal["h2d", "d2h"]
HostMemory = Literal["pageable", "pinned", "write_combined", "registered"]


class Checked(Protocol):
    """Moves data that can be refreshed before a measurement and compared after it."""

    def fresh(self) -> None:
        """Write a new pattern to every source and poison to every destination; returns when both are done."""

    def check(self) -> str:
        """Compare each whole destination with the pattern of the last ``fresh``. Returns how it was compared.

        Raises MeasurementError for the first wrong byte.
        """


class Transfer(Checked, Protocol):
    """A movement of ``size_bytes`` by a copy engine or a kernel, which can be repeated.

    ``submit`` goes to stream 0. It can be queued behind a gate unless ``blocks`` is True: a copy of pageable memory
    waits inside the call, or returns before its data have arrived.
    """

    submit: Submit
    size_bytes: int
    blocks: bool


class Operations(Checked, Protocol):
    """Work that is counted in operations (random accesses, atomic additions): ``operations`` per call."""

    submit: Submit
    operations: int


# CUPTI's kernel records alone; torch.profiler with CUDA activities, then also with CPU activities, then also with
# Python stacks; the recorder of `microbench watch`.
RecorderKind = Literal["cupti", "torch_cuda", "torch_cpu", "torch_stack", "watch"]


class Recorded(NamedTuple):
    """How many kernels, calls of CUDA, operators of PyTorch and Python functions were recorded."""

    kernels: int
    calls: int = 0
    operators: int = 0
    functions: int = 0


class Recorder(Protocol):
    """A profiler of this process. Both methods raise Skip, with the reason, if it cannot record."""

    def recording(self) -> AbstractContextManager[object]:
        """Record everything that happens inside."""

    def recorded(self, run: Callable[[], object]) -> Recorded:
        """The records that ``run`` makes. ``run`` must wait for the work that it submits."""
