"""THE VERDICT on memory: what reads and triad reach of the DRAM's ceiling, and the caches beside it in one line."""

from __future__ import annotations

from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Severity, rests_on, whole
from microbench.analysis.limits import TRANSFERS_PER_MEMORY_CLOCK, Ceiling
from microbench.analysis.stats import Row
from microbench.core.units import percent, quantity, round_percent, size, three_digits
from microbench.explain.environment import GRAPHICS_MARK, HBM_BUS_BITS
from microbench.explain.memory_levels import PER_CLOCK, bandwidth_levels, footprints, latency_levels, up_to
from microbench.explain.memory_stream import IMPLEMENTATIONS, NATIVE, best_stream, shape_of, shape_words

# Why memory may be slower than it should be: its clock, its ECC, other programs, too little under way.


CLOCK_LOSS = 0.01
# These keep the memory at work while telemetry is read right after them; others may leave it to fall asleep.
LOADED = ("memory_stream", "memory_levels", "memory_copy", "memory_occupancy", "memory_stride", "memory_random")
LARGE_BYTES = 256 << 20


class Cause(NamedTuple):
    """What may hold memory back: for the title, and in a sentence or two with what to do."""

    short: str
    words: str
    rests_on: tuple[str, ...] = ()


def memory_clock(evidence: Evidence) -> float | None:
    """The highest memory clock seen beside the suite's loads, in Hz."""
    seen = [
        telemetry.memory_clock_hz
        for name in LOADED
        for one in evidence.outcomes(name)
        if one.status == "ok"
        for device, telemetry in one.telemetry.items()
        if device == evidence.device and telemetry.memory_clock_hz
    ]
    return max(seen, default=None)


def lowered_clock(evidence: Evidence) -> float | None:
    """The share of its clock that the memory lacks, where it is more than CLOCK_LOSS."""
    gpu, seen_hz = evidence.gpu, memory_clock(evidence)
    if gpu is None or not gpu.memory_clock_max_hz or seen_hz is None:
        return None
    lacking = 1 - seen_hz / gpu.memory_clock_max_hz
    return lacking if lacking > CLOCK_LOSS else None


def clock(evidence: Evidence) -> list[Finding]:
    """The memory's clock stays below its maximum."""
    gpu, seen_hz, lacking = evidence.gpu, memory_clock(evidence), lowered_clock(evidence)
    if gpu is None or seen_hz is None or lacking is None:
        return []
    return [
        Finding(
            rule="memory.clock",
            severity="warning",
            title=(
                f"The memory ran at {quantity(seen_hz, 'Hz')} of {quantity(gpu.memory_clock_max_hz, 'Hz')}: "
                f"{percent(lacking)} below its maximum"
            ),
            text=(
                "Every figure of memory scales with this clock, its ceiling is that of the highest. Somebody lowered "
                "it (`nvidia-smi -q -d CLOCK`; `nvidia-smi -rmc` takes a lock back), or the GPU keeps to a state with "
                "less power."
            ),
            threshold=f"telemetry beside the suite's loads more than {percent(CLOCK_LOSS)} below the highest clock",
            rests_on=("telemetry memory_clock_hz", "gpu memory_clock_max_hz"),
            suite="memory",
        )
    ]


def causes(evidence: Evidence) -> list[Cause]:
    """Everything that this run saw and that slows memory down, the likeliest first."""
    looks = (_lowered, _shared_out, _busy, _corrected, _small, _little_under_way)
    return [cause for look in looks if (cause := look(evidence)) is not None]


def _lowered(evidence: Evidence) -> Cause | None:
    lacking = lowered_clock(evidence)
    if lacking is None:
        return None
    words = f"Its clock is {percent(lacking)} below the maximum that the ceiling takes."
    return Cause("the memory clock is lowered", words, ("telemetry memory_clock_hz",))


def _shared_out(evidence: Evidence) -> Cause | None:
    if evidence.gpu is None or not evidence.gpu.mig:
        return None
    words = "A MIG instance has a share of the board's memory, the ceiling is that of all of it."
    return Cause("a MIG instance", words, ("gpu mig",))


def _busy(evidence: Evidence) -> Cause | None:
    others = evidence.gpu.other_processes if evidence.gpu is not None else None
    if not others or all(GRAPHICS_MARK in name for name in others):
        return None
    words = "Other processes use this GPU, and its memory with it: end them and repeat."
    return Cause("other processes use this GPU", words, ("gpu other_processes",))


def _corrected(evidence: Evidence) -> Cause | None:
    gpu = evidence.gpu
    if gpu is None or not gpu.ecc or not gpu.memory_bus_bits or gpu.memory_bus_bits >= HBM_BUS_BITS:
        return None
    words = (
        "ECC is on, and this memory has no bits of its own for it: check bits take a part of the bandwidth. Turn it "
        "off (`nvidia-smi -e 0`, then a reset) where wrong bits may be risked."
    )
    return Cause("ECC takes a part of it", words, ("gpu ecc", "gpu memory_bus_bits"))


def _small(evidence: Evidence) -> Cause | None:
    found = best_stream(evidence, "read") or best_stream(evidence, "copy")
    if found is None or whole(found, "size_bytes") >= LARGE_BYTES:
        return None
    words = (
        f"Arrays of {size(whole(found, 'size_bytes'))} leave begin and end of a kernel in its figure: measure 1 GiB."
    )
    return Cause("the arrays are small", words)


def _little_under_way(evidence: Evidence) -> Cause | None:
    """Reads by memory_occupancy that were faster than the best shape of memory_stream."""
    read = best_stream(evidence, "read")
    others = [row for row in evidence.rows("memory_occupancy", "bandwidth") if row.measurement.bound == "dram"]
    best = max(others, key=lambda row: row.value, default=None)
    if read is None or best is None or best.interval.low <= read.interval.high:
        return None
    shape = shape_of(read)
    words = (
        f"memory_occupancy reads {quantity(best.value, 'B/s')} with {best.params.get('block_threads')} threads a block "
        f"and {best.params.get('loads')} loads in each{f', against {shape_words(shape)}' if shape else ''}: too little "
        "is under way."
    )
    return Cause("too little is under way", words, (f"{best.case_id} bandwidth",))


# Shares of the ceiling that sound memory gives; an H200's reads reach 94 % and its triad 91 %.
HEALTHY = {"read": 0.88, "triad": 0.85}
BROKEN = 0.6
KERNELS = ("read", "write", "copy", "triad")
JUDGED_IN_TURN = ("read", "triad", "copy", "write")
USUAL_HEALTHY = 0.85
THRESHOLD = (
    f"reads at least {round_percent(HEALTHY['read'])} of memory clock x 2 x bus width, triad "
    f"{round_percent(HEALTHY['triad'])}; under {round_percent(BROKEN)} a problem"
)


class Reached(NamedTuple):
    """What a kernel reaches of the DRAM's ceiling."""

    kernel: str
    row: Row
    limit: Ceiling

    @property
    def share(self) -> float:
        """1 is the ceiling."""
        return self.row.value / self.limit.value

    @property
    def healthy(self) -> bool:
        """Whether it is as much as sound memory gives."""
        return self.share >= HEALTHY.get(self.kernel, USUAL_HEALTHY)


def verdict(evidence: Evidence) -> list[Finding]:
    """Whether memory is as fast as it should be, and if not, why; what caches give."""
    if not evidence.suite("memory"):
        return []
    caches = _caches(evidence)
    reached = _reached(evidence)
    if reached:
        return [_judged(evidence, reached, caches)]
    return _unlimited(evidence, caches)


def _reached(evidence: Evidence) -> list[Reached]:
    rows = {kernel: best_stream(evidence, kernel) for kernel in KERNELS}
    if rows["read"] is None:
        beyond = [row for _, row in footprints(evidence, "memory_levels", "bandwidth")]
        found = [row for row in beyond if row.measurement.bound == "dram"]
        rows["read"] = max(found, key=lambda row: row.value, default=None)
    return [
        Reached(kernel, row, limit)
        for kernel in KERNELS
        if (row := rows[kernel]) is not None and (limit := evidence.ceiling(row)) is not None
    ]


def _judged(evidence: Evidence, reached: list[Reached], caches: str) -> Finding:
    by_kernel = {one.kernel: one for one in reached}
    shown = next(by_kernel[kernel] for kernel in JUDGED_IN_TURN if kernel in by_kernel)
    judged = [one for one in reached if one.kernel in HEALTHY] or [shown]
    worst = min(judged, key=lambda one: one.share)
    over = [one for one in reached if one.row.interval.low > one.limit.value]
    severity: Severity = "good"
    ending = ""
    found = causes(evidence)
    if over:
        shown, severity, ending = over[0], "warning", ", more than this ceiling allows"
    elif not all(one.healthy for one in judged):
        severity = "problem" if worst.share < BROKEN else "warning"
        shown = worst
        ending = f": {found[0].short}" if found else ": no cause seen"
    told = found if severity != "good" else []
    words = [f"Of {quantity(shown.limit.value, 'B/s')}: {', '.join(_words(one) for one in reached)}."]
    words += [one.words for one in told]
    if severity == "good":
        words.append("That is what sound memory gives.")
    elif not told and not over:
        words.append("Nothing that this run looked at explains it: compare with another board of the same kind.")
    words += [f"The ceiling assumes: {one}." for one in shown.limit.assumptions]
    return Finding(
        rule="memory.verdict",
        severity=severity,
        title=f"DRAM at {percent(shown.share)} of {_ceiling_words(evidence, shown)}{ending}{caches}",
        text=" ".join(words),
        threshold=THRESHOLD,
        rests_on=(*rests_on(*(one.row for one in reached)), *(name for one in told for name in one.rests_on)),
        suite="memory",
    )


def _ceiling_words(evidence: Evidence, one: Reached) -> str:
    """The ceiling as the device reports it: "4.81 TB/s (HBM, 3201 MHz x 2 x 6016 bit)"."""
    gpu = evidence.gpu
    value = quantity(one.limit.value, "B/s")
    if gpu is None or not gpu.memory_bus_bits or not gpu.memory_clock_max_hz:
        return value
    kind = "HBM, " if gpu.memory_bus_bits >= HBM_BUS_BITS else ""
    clock = f"{gpu.memory_clock_max_hz / 1e6:.0f} MHz x {TRANSFERS_PER_MEMORY_CLOCK}"
    return f"{value} ({kind}{clock} x {gpu.memory_bus_bits} bit)"


def _words(one: Reached) -> str:
    written_in = one.row.params.get("implementation", NATIVE)
    by = f", {IMPLEMENTATIONS.get(str(written_in), written_in)}" if written_in != NATIVE else ""
    return f"{one.kernel} {quantity(one.row.value, 'B/s')} ({percent(one.share)}{by})"


def _caches(evidence: Evidence) -> str:
    """What stands behind the DRAM's share: "; L2 42.0 B/clk/SM, L1 122; read latency L1 16.7, L2 132, DRAM 283 ns"."""
    by_clock = {one.name: one for one in bandwidth_levels(evidence, PER_CLOCK)}
    near = [by_clock[name] for name in ("L2", "L1") if name in by_clock]
    words = ""
    if near:
        first, *others = near
        rates = [f"{first.name} {up_to(first)}{quantity(first.value, 'B/clk/SM')}"]
        rates += [f"{one.name} {three_digits(one.value)}" for one in others]
        words += f"; {', '.join(rates)}"
    if latencies := latency_levels(evidence):
        words += f"; read latency {', '.join(f'{one.name} {three_digits(one.value * 1e9)}' for one in latencies)} ns"
    return words


def _unlimited(evidence: Evidence, caches: str) -> list[Finding]:
    """Memory that cannot be judged: nothing to hold it against, or nothing measured that says."""
    found = [row for kernel in KERNELS if (row := best_stream(evidence, kernel)) is not None]
    if not found and not caches:
        return []
    best = max(found, key=lambda row: row.value, default=None)
    why = "no streaming kernel on arrays beyond the L2" if best is None else "memory clock or bus width are not known"
    advice = "`microbench run memory_stream --into RUN` measures what memory gives."
    if best is not None:
        advice = f"{str(best.params.get('kernel')).capitalize()} reaches {quantity(best.value, 'B/s')}."
    return [
        Finding(
            rule="memory.verdict",
            severity="note",
            title=f"No verdict: {why}{caches}",
            text=f"{advice} Caches: {caches.removeprefix('; ')}." if caches and best is None else advice,
            threshold="a verdict needs arrays of four times the L2 and a known memory clock and bus width",
            rests_on=rests_on(*found),
            suite="memory",
        )
    ]
