"""THE VERDICT on memory: what reads and triad reach of the DRAM's ceiling, and the caches beside it in one line."""

from __future__ import annotations

from typing import NamedTuple

from microbench.explain.environment_gpu import HBM_BUS_BITS
from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding, Severity
from microbench.explain.memory_causes import causes
from microbench.explain.memory_latency import latency_levels
from microbench.explain.memory_levels import PER_CLOCK, bandwidth_levels, footprints, up_to
from microbench.explain.memory_stream import IMPLEMENTATIONS, NATIVE, best_stream
from microbench.limits import TRANSFERS_PER_MEMORY_CLOCK, Ceiling
from microbench.stats import Row
from microbench.units import percent, quantity, round_percent, three_digits

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
