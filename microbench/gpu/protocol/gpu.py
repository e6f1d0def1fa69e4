"""The protocol Gpu: the operations of a GPU for benchmarks and the Meter. Times are raw stamps in ns."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from microbench.core.errors import MeasurementError
from microbench.core.model import Fact, GpuInfo, Telemetry
from microbench.core.ops import GraphLaunch, IntArray, Launch, LayerCall, Op
from microbench.gpu.protocol.compute import Compute
from microbench.gpu.protocol.links import Links
from microbench.gpu.protocol.memory import DeviceMemory
from microbench.gpu.protocol.models import Compiled, JittedStep, ModelName, ModelStep, Output
from microbench.gpu.protocol.own import KernelSpec, OwnCall, OwnKernel, OwnStep
from microbench.gpu.protocol.recorder import Recorder, RecorderKind
from microbench.gpu.protocol.submit import Submit
from microbench.host.interruptions import ThreadState

Result = TypeVar("Result")

WaitMode = Literal["spin", "yield", "blocking", "auto"]
WAIT_MODES: tuple[WaitMode, ...] = ("spin", "yield", "blocking", "auto")
# The variable that gives the wait mode, set by a benchmark's process_environment: the mode must be known before the
# context exists.
WAIT_VARIABLE = "MICROBENCH_WAIT_MODE"
LaunchStreams = Literal["one", "two"]
LAUNCH_STREAMS: tuple[LaunchStreams, ...] = ("one", "two")
# Whether a worker launches kernels into one stream only, or has launched into a second one before its first case. On
# drivers of the 580 series a second stream lengthens every later gap between kernels, in all streams and graphs, for
# the rest of the process (docs/validation.md). A benchmark's process_environment sets it; the default is "two".
STREAMS_VARIABLE = "MICROBENCH_LAUNCH_STREAMS"


def launch_streams() -> LaunchStreams:
    """The value of STREAMS_VARIABLE in this process. Raises MeasurementError for an unknown value."""
    named = os.environ.get(STREAMS_VARIABLE, "two")
    for streams in LAUNCH_STREAMS:
        if streams == named:
            return streams
    raise MeasurementError(f"{STREAMS_VARIABLE}={named}: only {' and '.join(LAUNCH_STREAMS)} are known")


# The most launches queued behind a gate if this GPU's queue depth has not been measured: half of the 1021 that
# launch_queue found on data-centre drivers of the 580 series.
SAFE_QUEUE_SLOTS = 510


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


class LaunchStamps(NamedTuple):
    """Launches of one kernel, each followed by a wait for it, on the host's clock in ns.

    ``stamps`` has the shape (launches, 5): before the call, after it, the kernel's first and last instruction, after
    the wait. The kernel's own times are %globaltimer converted to the host's clock, with an offset from exchanges of
    flags before and after the launches. ``round_trip_ns`` is the quickest exchange before or the quickest one after,
    whichever is slower; the error of the offset is at most half of it.
    """

    stamps: IntArray
    round_trip_ns: int


# The signal between two kernels in ``Gpu.stream_signals``: none, an event (without and with timing) that a second
# stream waits for, a host function, or stream memory operations on words of 32 or 64 bits in pinned host memory.
# wait_ready waits for a value that is there already, wait_32 and wait_64 for one that the host writes later. In
# write_wait the stream writes a word, and the host answers as soon as it sees it.
SignalWay = Literal[
    "same_stream", "event", "event_timed", "host_function", "write_32", "write_64", "wait_ready", "wait_32", "wait_64",
    "write_wait",
]  # fmt: skip
# How long the first of the two kernels runs, so that all calls have been made before it ends; and how long after the
# first call the host answers, so that the stream is already waiting.
SIGNAL_KERNEL_NS, SIGNAL_HELD_NS = 50_000, 100_000


class SignalStamps(NamedTuple):
    """Pairs of kernels with one SignalWay between them, on the host's clock in ns.

    ``stamps`` has the shape (pairs, 5): after the last call, the first kernel's last instruction, the second kernel's
    first one, when the host saw the first kernel's end (its function began, or it read the word), and when it answered
    (before its function returned, or before it wrote); 0 where a way does not reach the host. Pairs whose calls came
    too late are left out. ``round_trip_ns`` is that of LaunchStamps, ``step_ns`` the smallest step of %globaltimer.
    """

    stamps: IntArray
    round_trip_ns: int
    step_ns: int


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

    def model(self, name: ModelName, compiled: Compiled) -> ModelStep:
        """Prepare a step of a small PyTorch model on stream 0; it is usable until the case ends."""

    def jitted(self, kernels: int, output: Output) -> JittedStep:
        """Compile a jitted JAX function of so many kernels of one element; it is usable until the case ends.

        Raises Skip if JAX is missing or does not take or follow XLA's option for command buffers, and MeasurementError
        if XLA's program has another number of kernels.
        """

    def own_step(self, make: Callable[[], OwnCall]) -> OwnStep:
        """Warm up the user's function that ``make`` loads, on a stream; it is usable until the case ends.

        Its threads may use all cores meanwhile. Raises MeasurementError, with the user's line, if the function raises
        an exception.
        """

    def own_kernel(self, spec: KernelSpec) -> OwnKernel:
        """Compile a user's kernel, fill its arrays and launch it once; it is usable until the case ends.

        Raises MeasurementError for code that does not compile, for arguments that do not fit and for a kernel that
        fails.
        """

    def recorder(self, kind: RecorderKind) -> Recorder:
        """Prepare a profiler by an empty recording. From then on this process counts as recorded."""

    def graph(self, ops: Sequence[Op]) -> GraphLaunch:
        """Capture operations of stream 0 as one chain, then instantiate and upload the graph.

        Calls of a Python layer must all be equal; the layer's library captures and replays them. Raises
        MeasurementError, with the driver's reason, for an operation that cannot be captured.
        """

    def carry_out(
        self, real: Callable[..., Result], simulated: Callable[..., Result], *args: Any, **kwargs: Any
    ) -> Result:
        """Carry out an experiment in the current case: ``real`` on a real GPU, ``simulated`` on the simulated one."""

    @property
    def links(self) -> Links:
        """Operations of the links to the host and to other GPUs, for the current case."""

    @property
    def memory(self) -> DeviceMemory:
        """Operations of the GPU's own memory and caches, for the current case."""

    @property
    def compute(self) -> Compute:
        """Operations of the tensor cores and ALUs, for the current case."""

    def gate(self) -> Gate:
        """The gate of the current case."""

    def events(self, stream: int = 0) -> EventPair:
        """A new pair of timing events in this stream."""

    def synchronize(self) -> None:
        """Wait until the GPU is idle."""

    def synchronize_stream(self, stream: int = 0) -> None:
        """Wait for one stream. The process waits by spinning or by blocking, as it was started."""

    def start_stamps(self, count: int) -> IntArray:
        """``count`` times: launch an empty kernel whose first instruction sets a flag, then synchronise the stream.

        Returns the host clock in ns, shape (count, 4): before the call, after the call, when a second thread saw the
        flag, after the synchronise. A stamp of 0 means that the second thread missed the flag. Raises Skip if there is
        no second CPU to watch from.
        """

    def launch_stamps(self, count: int, duration_ns: int = 0, *, blocking_event: bool = False) -> LaunchStamps:
        """``count`` times: launch a kernel of that length that records its begin and end, then wait for it.

        The wait is the stream's synchronise in the mode of the context, or with ``blocking_event`` the synchronise of
        an event that has the flag for blocking waits. Nothing else runs on the host meanwhile.
        """

    def stream_signals(self, way: SignalWay, count: int) -> SignalStamps:
        """Up to ``count`` pairs of kernels, one pair at a time, with this way from the first to the second.

        Checks that no second kernel began too early. Raises Skip for operations that GPU or driver lack, and
        MeasurementError if the host does not see the stream's word in time. The host answers even then, so that no
        stream waits forever.
        """

    def flag_round_trips(self, count: int) -> IntArray:
        """``count`` times: the host sets a flag, the GPU answers with another, the host sees it. Shape (count,), ns."""

    def host_read_ns(self, count: int) -> IntArray:
        """Dependent reads of host memory by one GPU thread: ns per read of each of ``count`` chains, shape (count,)."""

    def record(self, launch: Launch, count: int, *, graph: bool, gated: bool) -> GpuRecording:
        """Run ``count`` kernels of ``launch``'s length and kind that record their own start and end.

        They are submitted as launches, or as one graph. With ``gated`` all are queued before the first may run. Raises
        MeasurementError if they do not fit the launch queue, or if the gate times out again and again.
        """

    def resident(self, streams: int, duration_ns: int) -> int:
        """The largest number of kernels resident at the same time: one-block kernels behind a gate, one a stream."""

    def threads_stamps(self, threads: int, count: int) -> IntArray:
        """``threads`` host threads start together; each launches ``count`` empty kernels into its own stream.

        Returns begin and end of each thread's loop in host ns, shape (threads, 2). Raises Skip for more threads than
        physical cores.
        """

    def round_robin_ns(self, streams: int, count: int) -> int:
        """Launch ``count`` empty kernels into ``streams`` streams in turn and wait for all: host ns in total."""

    def second_process(self) -> Fact:
        """Start a process that launches kernels on every SM until the case ends, and wait for its first kernels.

        It has a core of its own. Returns the fact ``mps``: whether the processes share the GPU through MPS; None, with
        a reason, if unknown. Raises Skip where no second process can run, MeasurementError if it does not start.
        """

    def thread_state(self) -> ThreadState:
        """How often the calling thread has left its core."""

    def core_interrupts(self) -> int:
        """Interrupts of the core that submits, so far. Raises Skip if the kernel does not say."""

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


class ColdStarts(Protocol):
    """First uses of the GPU in a process that has not touched it yet. Each can be timed once per process."""

    def seconds(self, what: str) -> float:
        """Host time of one first use, in s. Raises Skip if this machine cannot do it."""


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
