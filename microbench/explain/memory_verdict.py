"""THE VERDICT on memory: the share of the DRAM's ceiling that reads and triad reach, and why it may be low."""

from functools import partial

from microbench.analysis.evidence import Evidence, Finding, Rule, Severity, listed, rests_on, whole
from microbench.core.units import percent, quantity, round_percent, size
from microbench.explain.environment import GRAPHICS_MARK, HBM_BUS_BITS
from microbench.explain.memory_levels import IMPLEMENTATIONS, NATIVE, best_stream, footprints
from microbench.explain.verdicts import Cause, Reached, beyond_ceiling

# Shares of the ceiling that sound memory gives; an H200's reads reach 94 % and its triad 91 %.
HEALTHY = {"read": 0.88, "triad": 0.85}
BROKEN = 0.6
USUAL_HEALTHY = 0.85
# The kernel that speaks for the memory is the first of these that was measured.
KERNELS = ("read", "triad", "copy", "write")
CLOCK_LOSS = 0.01
# Telemetry read right after these benchmarks shows the clock of busy memory; after others it may have dropped.
LOADED = ("memory_stream", "memory_levels", "memory_copy", "memory_occupancy", "memory_stride", "memory_random")
LARGE_BYTES = 256 << 20
UNLOCK = "Remove a clock lock with `nvidia-smi -rmc`; `nvidia-smi -q -d CLOCK` shows the clocks."


def reached(evidence: Evidence) -> list[Reached]:
    """Each kernel's best rate on arrays in device memory, in the order of KERNELS.

    Where memory_stream was not measured, memory_levels speaks for reads.
    """
    rows = {kernel: best_stream(evidence, kernel) for kernel in KERNELS}
    if rows["read"] is None:
        beyond = [row for _, row in footprints(evidence, "memory_levels", "bandwidth")]
        in_dram = [row for row in beyond if row.measurement.bound == "dram"]
        rows["read"] = max(in_dram, key=lambda row: row.value, default=None)
    return [
        Reached(kernel, row, limit)
        for kernel, row in rows.items()
        if row is not None and (limit := evidence.ceiling(row)) is not None
    ]


def memory_clock(evidence: Evidence) -> float | None:
    """The highest memory clock seen after the suite's loads, in Hz."""
    clocks = [
        telemetry.memory_clock_hz
        for name in LOADED
        for outcome in evidence.outcomes(name)
        if outcome.status == "ok"
        for device, telemetry in outcome.telemetry.items()
        if device == evidence.device and telemetry.memory_clock_hz
    ]
    return max(clocks, default=None)


def lowered_clock(evidence: Evidence) -> float | None:
    """The share of its clock that the memory lacks, where it is more than CLOCK_LOSS."""
    gpu, seen_hz = evidence.gpu, memory_clock(evidence)
    if gpu is None or not gpu.memory_clock_max_hz or seen_hz is None:
        return None
    lacking = 1 - seen_hz / gpu.memory_clock_max_hz
    return lacking if lacking > CLOCK_LOSS else None


def causes(evidence: Evidence) -> list[Cause]:
    """Everything this run saw that slows memory down, the likeliest first."""
    gpu, result = evidence.gpu, []
    lacking = lowered_clock(evidence)
    if lacking is not None:
        text = f"The clock is {percent(lacking)} below the maximum that the ceiling assumes."
        result.append(Cause("the memory clock is lowered", text, UNLOCK, ("telemetry memory_clock_hz",)))
    if gpu is not None and gpu.mig:
        text = "The ceiling is that of the whole board, of which a MIG instance has a share."
        result.append(Cause("a MIG instance", text, "", ("gpu mig",)))
    if gpu is not None and any(GRAPHICS_MARK not in name for name in gpu.other_processes or ()):
        text, advice = "Their traffic takes a part of the bandwidth.", "End the other processes and repeat."
        result.append(Cause("other processes use this GPU", text, advice, ("gpu other_processes",)))
    if gpu is not None and gpu.ecc and gpu.memory_bus_bits and gpu.memory_bus_bits < HBM_BUS_BITS:
        text = "This memory has no bits of its own for ECC, so check bits take a part of the bandwidth."
        advice = "Where wrong bits may be risked, turn ECC off with `nvidia-smi -e 0` and a reset."
        result.append(Cause("ECC takes a part of it", text, advice, ("gpu ecc", "gpu memory_bus_bits")))
    stream = best_stream(evidence, "read") or best_stream(evidence, "copy")
    if stream is not None and whole(stream, "size_bytes") < LARGE_BYTES:
        text = "A kernel's begin and end weigh in its figure on small arrays."
        result.append(Cause("the arrays are small", text, f"Measure arrays of {size(1 << 30)}.", rests_on(stream)))
    read = best_stream(evidence, "read")
    others = [row for row in evidence.rows("memory_occupancy", "bandwidth") if row.measurement.bound == "dram"]
    occupied = max(others, key=lambda row: row.value, default=None)
    if read is not None and occupied is not None and occupied.interval.low > read.interval.high:
        threads, loads = occupied.params.get("block_threads"), occupied.params.get("loads")
        text = f"With {threads} threads a block and {loads} loads each it reads {quantity(occupied.value, 'B/s')}."
        result.append(Cause("too few bytes are in flight", text, "", rests_on(occupied)))
    return result


def verdict(evidence: Evidence) -> Finding | None:
    """Whether memory is as fast as it should be, and if not, why."""
    every = reached(evidence)
    if not every:
        return _unjudged(evidence)
    judged = [result for result in every if result.what in HEALTHY] or every[:1]
    least = {result.what: HEALTHY.get(result.what, USUAL_HEALTHY) for result in judged}
    worst = min(judged, key=lambda result: (result.share >= least[result.what], result.share))
    nearest = min(judged, key=lambda result: result.share / least[result.what])
    over = next((result for result in every if result.over), None)
    sound = worst.share >= least[worst.what]
    shown = over or (every[0] if sound else worst)
    library = str(shown.row.params.get("implementation", NATIVE))
    kernel = shown.what if library == NATIVE else f"{shown.what} by {IMPLEMENTATIONS.get(library, library)}"
    limit = quantity(shown.limit.value, "B/s")
    seen = [] if sound and over is None else causes(evidence)
    severity: Severity = "good"
    others = [f"{one.what.capitalize()} reaches {percent(one.share)}. " for one in judged if one is not shown]
    ending, text, advice = "", f"{''.join(others)}That is what sound memory gives.", ""
    if over is not None:
        severity, ending = "warning", ", more than this ceiling allows"
        text = "The ceiling is wrong on this machine."
    elif not sound:
        severity = "problem" if worst.share < BROKEN else "warning"
        ending = f": {seen[0].short}" if seen else ": no cause seen"
        text = seen[0].text if seen else "Nothing that this run looked at explains it."
        advice = seen[0].advice if seen else "Compare with another board of the same model."
        if len(seen) > 1:
            text += f" Also seen: {listed([cause.short for cause in seen[1:]])}."
    assumptions = "".join(f"; the ceiling assumes: {words}" for words in shown.limit.assumptions)
    return Finding(
        rule="memory.verdict",
        severity=severity,
        title=f"DRAM at {percent(shown.share)} of its ceiling of {limit} ({kernel}){ending}",
        text=text,
        advice=advice,
        threshold=(
            f"reads at least {round_percent(HEALTHY['read'])} of memory clock x 2 x bus width, triad "
            f"{round_percent(HEALTHY['triad'])}; under {round_percent(BROKEN)} a problem{assumptions}"
        ),
        rests_on=(*rests_on(*(one.row for one in every)), *(name for cause in seen for name in cause.rests_on)),
        reached=(nearest.share, least[nearest.what]),
    )


def _unjudged(evidence: Evidence) -> Finding | None:
    """Why memory cannot be judged: no limit is known, or no kernel was measured beyond the L2."""
    rows = [row for kernel in KERNELS if (row := best_stream(evidence, kernel)) is not None]
    if not rows and not footprints(evidence, "memory_levels", "bandwidth"):
        return None
    best = max(rows, key=lambda row: row.value, default=None)
    why = "no streaming kernel on arrays beyond the L2" if best is None else "memory clock or bus width are not known"
    title = f"No verdict on memory: {why}"
    text = f"{best.params.get('kernel')} reaches {quantity(best.value, 'B/s')}." if best is not None else ""
    threshold = "a verdict needs arrays of four times the L2 and a known memory clock and bus width"
    advice = f"Measure it with `microbench run memory_stream --into {evidence.run.run_id}`." if best is None else ""
    return Finding("memory.verdict", "note", title, text, threshold, rests_on(*rows), advice=advice)


def clock(evidence: Evidence) -> Finding | None:
    """The memory's clock stays below its maximum."""
    gpu, seen_hz, lacking = evidence.gpu, memory_clock(evidence), lowered_clock(evidence)
    if gpu is None or seen_hz is None or lacking is None:
        return None
    title = (
        f"The memory ran at {quantity(seen_hz, 'Hz')} of {quantity(gpu.memory_clock_max_hz, 'Hz')}: "
        f"{percent(lacking)} below its maximum"
    )
    text = "Every figure of memory scales with this clock; the ceilings assume the maximum."
    threshold = f"telemetry after the suite's loads more than {percent(CLOCK_LOSS)} below the highest clock"
    names = ("telemetry memory_clock_hz", "gpu memory_clock_max_hz")
    return Finding("memory.clock", "warning", title, text, threshold, names, advice=UNLOCK)


PERHAPS = "a memory clock or bus width that is misreported, or a nearer cache answers"
OVER_LIMIT = partial(beyond_ceiling, suite="memory", perhaps=PERHAPS)
RULES: tuple[Rule, ...] = (verdict, OVER_LIMIT, clock)
