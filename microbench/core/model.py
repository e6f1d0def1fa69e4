"""The data model: frozen structs in SI units. A quantity's name ends in its unit; an unknown value is None, never 0."""

from typing import Literal

import msgspec

from microbench.core.errors import RunUnreadableError

Param = int | str
Scalar = str | int | float | bool | None
Clock = Literal["host", "device", "counter"]
Status = Literal["ok", "skipped", "failed", "crashed", "timed_out"]
MetricKind = Literal["time", "rate", "count"]
Stopped = Literal["narrow", "time", "count"]

SAMPLES_KEPT = 512
NUMBERS = msgspec.json.Decoder(tuple[float, ...])


# Structs that a run has by the hundred thousand are made with gc=False: they are frozen and cannot form cycles, and
# garbage collection would double the time to load a large run.


class Metric(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of one measured quantity.

    ``kind`` says how a value follows from a raw sample: a ``time`` or ``count`` is sample / calls_per_sample; a
    ``rate`` is the work of one call divided by its time (for B/clk/SM: bytes of one SM divided by its cycles).
    ``unit`` is one of s, s/launch, B/s, FLOP/s, OP/s, 1/s, B/clk/SM, FLOP/clk/SM, OP/clk/SM, B/launch, B, launch,
    cycle, Hz, W, J/B, J/FLOP, J/OP, 1."""

    name: str
    kind: MetricKind
    unit: str
    about: str


class AxisInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An axis as stored in a run: what it means and the values that were planned.

    ``labels`` are titles for values that reports call by another name than their own.
    """

    name: str
    about: str
    values: tuple[Param, ...]
    labels: dict[str, str] = {}


class BenchmarkInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run file says about a benchmark. With it a file can be read after the benchmark was removed."""

    name: str
    suite: str
    title: str
    about: str
    version: int
    axes: tuple[AxisInfo, ...]
    metrics: tuple[Metric, ...]

    def metric(self, name: str) -> Metric | None:
        return next((metric for metric in self.metrics if metric.name == name), None)


class Case(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One point of a benchmark's grid. ``params`` is sorted by name, so that ``id`` is the same on every machine."""

    benchmark: str
    params: dict[str, Param] = {}

    @property
    def id(self) -> str:
        if not self.params:
            return self.benchmark
        inside = ",".join([f"{name}={self.params[name]}" for name in sorted(self.params)])
        return f"{self.benchmark}[{inside}]"


class Work(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The bytes, operations or launches of one call. Rates are derived from them, never stored."""

    bytes: int = 0
    flops: int = 0
    launches: int = 0
    operations: int = 0


NO_WORK = Work()  # encoding omits a default only if it is this very object


class PerCall(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Distribution of single calls inside bursts, in the metric's unit.

    It serves for percentiles and the histogram only, because calls in a burst are not independent. Bin i of the
    histogram covers ``first_edge * ratio**i`` to ``first_edge * ratio**(i + 1)``; ``counts`` adds up to ``n``."""

    n: int
    p1: float
    p50: float
    p90: float
    p99: float
    min: float
    max: float
    first_edge: float
    ratio: float
    counts: tuple[int, ...]


class Measurement(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Raw samples of one metric.

    ``samples`` are raw readings, each of ``calls_per_sample`` calls, in the metric's base unit (seconds for a rate).
    They are in the order taken and stay undecoded JSON until ``values`` asks; at most SAMPLES_KEPT of the ``n`` taken
    are stored. ``work`` is that of one call. ``bound`` names the physical limit ("pcie_h2d", "dram", …). ``verified``
    says how the result was checked, None if it was not. ``floor_s`` is the cost of reading the clock once in this way:
    a sample under five floors is graded ``below floor``. ``stopped`` says why sampling ended.
    """

    metric: str
    clock: Clock
    samples: msgspec.Raw
    n: int
    calls_per_sample: int = 1
    work: Work = NO_WORK
    bound: str | None = None
    verified: str | None = None
    needs_verification: bool = False
    per_call: PerCall | None = None
    floor_s: float | None = None
    resolution: float | None = None
    stopped: Stopped = "count"

    @property
    def values(self) -> tuple[float, ...]:
        """The raw samples, decoded at each call. Raises RunUnreadableError if a damaged file has no numbers here."""
        try:
            return NUMBERS.decode(self.samples)
        except msgspec.DecodeError as error:
            cause = f"the samples of {self.metric} are not numbers: {error}"
            raise RunUnreadableError(cause, "measure again") from None


class Fact(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A property that was looked up rather than timed. ``reason`` says why an unknown value (None) is unknown."""

    name: str
    value: Scalar
    source: str = ""
    reason: str | None = None
    unit: str = ""


class Series(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A metric over the time since the case began, for long work."""

    metric: str
    t_s: tuple[float, ...]
    values: tuple[float, ...]


class Telemetry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """State of one GPU during a case. The SM clocks at both ends of the timed region come from the SMs themselves,
    because NVML reports idle clocks and overstates them under tensor load; the rest is from NVML."""

    sm_clock_begin_hz: float | None = None
    sm_clock_end_hz: float | None = None
    nvml_sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The result of one case in one round of one session. Telemetry is keyed by GPU UUID."""

    case: Case
    session: int
    round: int
    status: Status
    reason: str | None = None
    measurements: tuple[Measurement, ...] = ()
    facts: tuple[Fact, ...] = ()
    series: tuple[Series, ...] = ()
    telemetry: dict[str, Telemetry] = {}
    wall_s: float = 0.0
    device: str | None = None


# Transfers a second and lane by generation, and the share of the bits that the line code leaves for data.
# Source: PCI Express base specification (generation 6: FLIT mode, 236 of 256 bytes).
TRANSFERS_PER_S = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
CODE_SHARE = {1: 8 / 10, 2: 8 / 10, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 236 / 256}


class LinkInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The links of a GPU as the driver reports them. An idle PCIe link trains down, so ``now`` may be below ``max``.

    ``nvlinks`` counts those that are up, ``nvlink_bytes_per_s`` is the line rate of one of them in one direction,
    ``coherent`` says that NVLink-C2C joins GPU and CPU.
    """

    generation_now: int | None = None
    generation_max: int | None = None
    lanes_now: int | None = None
    lanes_max: int | None = None
    max_payload_bytes: int | None = None
    max_read_request_bytes: int | None = None
    nvlinks: int | None = None
    nvlink_bytes_per_s: float | None = None
    coherent: bool | None = None


def pcie_raw_rate(generation: int, lanes: int) -> float | None:
    """Bytes a second and direction on the wire after the line code, packet headers included; None if unknown."""
    if generation not in TRANSFERS_PER_S:
        return None
    return TRANSFERS_PER_S[generation] * lanes / 8 * CODE_SHARE[generation]


def link_rate(link: LinkInfo) -> float | None:
    """Raw bytes a second and direction of the link at its full speed; None when the link is unknown."""
    if not link.generation_max or not link.lanes_max:
        return None
    return pcie_raw_rate(link.generation_max, link.lanes_max)


class MemoryErrors(msgspec.Struct, frozen=True):
    """ECC errors of one GPU and repairs of its memory when the run began, by NVML; None where the driver does not say.

    ``volatile`` errors were counted since the driver was loaded, ``aggregate`` ones over the GPU's life; both include
    caches and registers. From Ampere on rows of the memory are remapped to spare ones, because of ``corrected`` or
    ``uncorrected`` errors; older GPUs retire pages. What is pending takes effect when the GPU is reset.
    """

    corrected_volatile: int | None = None
    uncorrected_volatile: int | None = None
    corrected_aggregate: int | None = None
    uncorrected_aggregate: int | None = None
    rows_remapped_corrected: int | None = None
    rows_remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pages_retired: int | None = None
    retirement_pending: bool | None = None


class GpuInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU as CUDA, NVML and sysfs report it."""

    name: str
    uuid: str
    simulated: bool = False
    index: int = 0
    pci_bus_id: str | None = None
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    sm_clock_max_hz: float | None = None
    memory_clock_max_hz: float | None = None
    memory_bus_bits: int | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    confidential_computing: bool | None = None
    integrated: bool | None = None
    numa_node: int | None = None
    power_limit_w: float | None = None
    other_processes: tuple[str, ...] | None = None
    link: LinkInfo = LinkInfo()
    memory_errors: MemoryErrors | None = None


class Environment(msgspec.Struct, frozen=True, omit_defaults=True):
    """The machine that a run was measured on. ``facts`` describe the host, under the names of host/facts.py."""

    gpus: tuple[GpuInfo, ...] = ()
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    cuda_toolkit_version: str | None = None
    packages: dict[str, str] = {}
    facts: tuple[Fact, ...] = ()
    no_gpu_reason: str | None = None
    no_gpu_next_step: str | None = None

    def under_test(self, device: str | None) -> tuple[GpuInfo, ...]:
        """The GPUs that a run with this Settings.device measures: the first alone unless real ones were named."""
        named = device is not None and not any(gpu.simulated for gpu in self.gpus)
        return self.gpus if named else self.gpus[:1]

    def fact(self, name: str) -> Scalar:
        return next((fact.value for fact in self.facts if fact.name == name), None)


class Floors(msgspec.Struct, frozen=True, omit_defaults=True):
    """The shortest time that each way of timing can resolve, in seconds; measured once a session."""

    timer_step_s: float | None = None
    timer_call_s: float | None = None
    empty_submit_s: float | None = None
    event_pair_s: float | None = None
    event_step_s: float | None = None
    idle_sync_s: float | None = None


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the user asked for. ``preset`` is quick, default or full; ``select`` names suites and benchmarks."""

    preset: str = "default"
    select: tuple[str, ...] = ()
    overrides: dict[str, tuple[Param, ...]] = {}
    device: str | None = None
    rounds: int = 1
    time_limit_s: float | None = None


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """One invocation of ``run`` and those that resumed it: machine, settings and floors as the first found them.
    ``started_at`` is UTC in ISO 8601.

    The order of compute cases in each round was drawn from ``order_seed``; None if they ran in the order of their axes.
    """

    environment: Environment
    settings: Settings
    tool_version: str
    started_at: str
    floors: Floors = Floors()
    simulated: bool = False
    commit: str | None = None
    order_seed: str | None = None

    @property
    def gpus(self) -> tuple[GpuInfo, ...]:
        """The GPUs that were measured; the environment lists all, because others can be far ends of their links."""
        return self.environment.under_test(self.settings.device)


class Deviation(msgspec.Struct, frozen=True, gc=False):
    """How far fresh processes lie apart: the relative standard deviation (``share``) of the medians of ``rounds``
    processes, for one metric of a benchmark of that ``version``."""

    version: int
    rounds: int
    share: float


# Deviations by the GPU's name, or HOST for rows without a GPU, and by "benchmark.metric".
Deviations = dict[str, dict[str, Deviation]]
HOST = "host"


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of one run file. Summaries and verdicts are derived from it, never stored.

    ``deviations`` are those that the reader of the file knows, ``damaged_lines`` counts the lines of a growing file
    that it had to skip; neither is stored."""

    schema_version: int
    run_id: str
    sessions: tuple[Session, ...]
    benchmarks: tuple[BenchmarkInfo, ...]
    outcomes: tuple[Outcome, ...]
    deviations: Deviations = {}
    damaged_lines: int = 0

    @property
    def simulated(self) -> bool:
        return any(session.simulated for session in self.sessions)

    def benchmark(self, name: str) -> BenchmarkInfo | None:
        return next((info for info in self.benchmarks if info.name == name), None)
