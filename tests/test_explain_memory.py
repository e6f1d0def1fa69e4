"""What the memory suite's rules rest on: causes of slow memory, losses, fits and figures, on the bundled run."""

import compute_evidence
import pytest
from changed_run import bundled, changed, in_one_round, scaled, with_gpu, without
from msgspec.structs import replace
from read_findings import by_rule, evidence

from microbench.core.model import GpuInfo, Outcome, Run
from microbench.explain.memory_access import engine
from microbench.explain.memory_levels import largest_bytes, latency_levels, shape_words
from microbench.explain.memory_verdict import causes
from microbench.report.suites.memory import ENOUGH, by_dtype, energies, in_flight

GIB, MIB = 1 << 30, 1 << 20
WHOLE = in_one_round(bundled("memory"))
SLOW = scaled(WHOLE, "memory_stream", "bandwidth", 0.8)


def gpu(run: Run, **other: object) -> Run:
    return with_gpu(run, lambda one: replace(one, **other))


def of_size(size_bytes: int, run: Run) -> Run:
    """The run with streams of that size alone, said to lie in device memory."""

    def asked(one: Outcome) -> Outcome | None:
        if one.case.benchmark != "memory_stream":
            return one
        measured = tuple(replace(old, bound="dram") for old in one.measurements)
        case = replace(one.case, params={**one.case.params, "size_bytes": size_bytes})
        return replace(one, case=case, measurements=measured) if one.case.params["size_bytes"] == GIB else None

    return changed(run, asked)


def lowered(one: Outcome) -> Outcome:
    return replace(one, telemetry={name: replace(old, memory_clock_hz=2e9) for name, old in one.telemetry.items()})


def narrow(one: GpuInfo) -> GpuInfo:
    """The same bandwidth on a bus as narrow as GDDR's."""
    clock_hz = (one.memory_clock_max_hz or 0.0) * (one.memory_bus_bits or 0) / 384
    return replace(one, memory_clock_max_hz=clock_hz, memory_bus_bits=384, ecc=True)


@pytest.mark.parametrize(("run", "words"), [
    (gpu(SLOW, other_processes=("python (pid 12)",)), "other processes use this GPU"),
    (gpu(SLOW, mig=True), "a MIG instance"),
    (with_gpu(changed(SLOW, lambda one: replace(one, telemetry={})), narrow), "ECC takes a part of it"),
    (changed(SLOW, lowered), "the memory clock is lowered"),
    (scaled(SLOW, "memory_occupancy", "bandwidth", 0.5, blocks_per_sm=1), "too few bytes are in flight"),
])  # fmt: skip
def test_causes_of_slow_memory_are_named(run: Run, words: str) -> None:
    assert words in [cause.short for cause in causes(evidence(run))]
    assert by_rule(run, "memory")["memory.verdict"].severity in ("warning", "problem")


def test_programs_that_only_draw_and_large_arrays_are_no_cause() -> None:
    slow = without(SLOW, "memory_occupancy")
    assert causes(evidence(gpu(slow, other_processes=("Xorg (graphics, pid 3)",)))) == []
    assert causes(evidence(of_size(GIB, slow))) == []
    assert [cause.short for cause in causes(evidence(of_size(64 * MIB, slow)))] == ["the arrays are small"]


def test_python_is_compared_on_the_largest_arrays_that_most_kernels_fit() -> None:
    sizes = {one.case.params["size_bytes"] for one in WHOLE.outcomes if one.case.benchmark == "memory_stream"}
    largest = max(sizes)
    few = changed(
        WHOLE,
        lambda one: (
            None
            if one.case.params.get("size_bytes") == largest
            and one.case.benchmark == "memory_stream"
            and one.case.params["kernel"] != "read"
            else one
        ),
    )
    assert largest_bytes(evidence(WHOLE)) == largest
    assert largest_bytes(evidence(few)) == max(sizes - {largest}), "few kernels fit the largest size"


@pytest.mark.parametrize(("name", "words"), [
    ("grid_16B_x1_t128", "16-byte accesses, 1 a thread, no loop, blocks of 128"),
    ("steps_16B_x4_b4", "16-byte accesses, 4 a thread, grid-stride loop, 4 blocks an SM"),
    ("bulk_16384B_x4_b2_t256", "bulk copies of 16 KiB, 4 stages, blocks of 256, 2 blocks an SM"),
    ("bulk_4096B_x1", "bulk copies of 4 KiB, 1 stage"), ("cupy", "cupy"), ("wave_16B_x1", "wave_16B_x1"),
    ("grid_16B_x1_q9", "grid_16B_x1_q9"), ("", ""),
])  # fmt: skip
def test_shapes_in_words(name: str, words: str) -> None:
    assert shape_words(name) == words


def test_how_many_bytes_must_be_in_flight() -> None:
    curve = in_flight(evidence(WHOLE))
    little, least = curve.marks
    points = [point for line in curve.lines for point in line.points]
    best = max(rate for _, rate in points)
    assert max(rate for in_flight_bytes, rate in points if in_flight_bytes == least.at) >= ENOUGH * best
    assert all(rate < ENOUGH * best for in_flight_bytes, rate in points if in_flight_bytes < least.at)
    dram = next(level for level in latency_levels(evidence(WHOLE)) if level.name == "DRAM")
    assert little.at == pytest.approx(dram.value * best / 132)


def test_a_fit_of_the_drivers_copies_is_that_of_the_l2() -> None:
    fit = engine(evidence(WHOLE), "copy")
    assert max(row.measurement.work.bytes for _, row in fit.points) <= 0.6 * 50 * MIB * 1.3
    beyond = scaled(WHOLE, "memory_copy", "bandwidth", 0.5, way="copy", size_bytes=GIB)
    assert engine(evidence(beyond), "copy") == fit, "larger copies run at another pace"


def test_energy_of_a_byte_and_what_is_above_idle() -> None:
    idle = compute_evidence.figures("memory_energy", {"power": 120.0}, load="idle", size_bytes=GIB)
    read = compute_evidence.figures("memory_energy", {"power": 480.0, "energy": 1e-10}, load="read", size_bytes=GIB)
    for run, above in ((compute_evidence.made(idle, read), "75.0 pJ/B"), (compute_evidence.made(read), "–")):
        first, *_ = energies(evidence(run)).rows
        assert [cell.text for cell in first] == ["read", "480 W", "100 pJ/B", above]


def test_types_of_elements_stand_side_by_side_where_several_were_measured() -> None:
    chosen = {"kernel": "triad", "implementation": "cuda", "size_bytes": GIB}
    rates = {"int8": 3e12, "fp64": 4e12}
    each = [compute_evidence.figures("memory_stream", {"bandwidth": rate}, dtype=dtype, **chosen)
            for dtype, rate in rates.items()]  # fmt: skip
    table = by_dtype(evidence(compute_evidence.made(*each)))
    assert [column.title for column in table.columns] == ["", "fp64", "int8"]
    assert [[cell.text for cell in row] for row in table.rows] == [["triad", "4000", "3000"]]
    assert by_dtype(evidence(compute_evidence.made(*each[:1]))) is None
