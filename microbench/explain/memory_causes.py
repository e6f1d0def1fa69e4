"""Why memory may be slower than it should be: its clock, its ECC, other programs, too little under way."""

from __future__ import annotations

from typing import NamedTuple

from microbench.explain.environment_gpu import GRAPHICS_MARK, HBM_BUS_BITS
from microbench.explain.evidence import Evidence, whole
from microbench.explain.finding import Finding
from microbench.explain.memory_shapes import shape_words
from microbench.explain.memory_stream import best_stream, shape_of
from microbench.units import percent, quantity, size

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
