"""Rates of memory: streaming kernels by library, and plateaus of bandwidth and latency over the working set."""

import itertools
import math
import re
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Rule, facts_of, listed, rule, said, whole
from microbench.analysis.stats import Row
from microbench.core.units import percent, quantity, round_percent, size

BANDWIDTH, PER_CLOCK = "bandwidth", "per_clock"
LATENCY, CYCLES, LINES = "latency", "cycles", "line_cycles"
# No SM has a larger L1.
LARGEST_L1_BYTES = 256 << 10
# A set this many times as large as the L2 lies in DRAM; if the L2's size is unknown, a set of SURELY_DRAM_BYTES does.
BEYOND_L2 = 4
SURELY_DRAM_BYTES = 1 << 30
# Figures within this factor of each other belong to one level.
SAME = 1.1
FEWEST = 2
# Two measured sets further apart than this factor say nothing about what lies between them.
WIDEST_GAP = 4
L2_BOUNDS = ("l2", "l2_per_clock")
MOST_STEPS = 3
# Bytes of a working set and its row.
Point = tuple[int, Row]


class Plateau(NamedTuple):
    """One level: its name, the median of its figures, and the working sets that it answers.

    ``together``: SMs asked for the same lines at the same time, so more may have arrived than this level sent.
    """

    name: str
    value: float
    points: tuple[Point, ...]
    together: bool = False

    @property
    def first_bytes(self) -> int:
        return self.points[0][0]

    @property
    def last_bytes(self) -> int:
        return self.points[-1][0]


def footprints(evidence: Evidence, benchmark: str, metric: str) -> list[Point]:
    """Figures over the working set in device memory, ascending."""
    curve = evidence.curve(benchmark, metric, "footprint_bytes", space="global")
    return [(footprint, row) for footprint, row in curve if footprint > 0 and row.value > 0]


def l2_bytes(evidence: Evidence) -> int | None:
    """The size of the L2 as the GPU reports it."""
    return evidence.gpu.l2_bytes if evidence.gpu is not None else None


def shared_row(evidence: Evidence, benchmark: str, metric: str) -> Row | None:
    """The figure of shared memory: the highest rate or the shortest time."""
    rows = [row for row in evidence.rows(benchmark, metric, space="shared") if row.value > 0]
    best = min if any(row.metric.kind == "time" for row in rows) else max
    return best(rows, key=lambda row: row.value, default=None)


def bandwidth_levels(evidence: Evidence, metric: str = BANDWIDTH) -> list[Plateau]:
    """The levels of memory_levels."""
    return plateaus(footprints(evidence, "memory_levels", metric), l2_bytes(evidence))


def plateaus(points: Sequence[Point], l2_bytes: int | None) -> list[Plateau]:
    """L1, L2 and DRAM, as far as they were measured.

    The L1 is the first run of sets up to LARGEST_L1_BYTES that are as fast as the smallest one (an L1 may be far
    smaller than that). DRAM begins at BEYOND_L2 times the L2. There, and for the L2 between them, the level is the
    longest run of points whose figures lie within SAME of each other; a single point is a level only where no other
    was measured. Where rates name the L2 as their bound, the L2's level begins there: in smaller sets the L2 answers
    several SMs at once.
    """
    dram_bytes = BEYOND_L2 * l2_bytes if l2_bytes else SURELY_DRAM_BYTES
    within_l1 = runs([point for point in points if point[0] <= LARGEST_L1_BYTES])
    within_l2 = [point for point in points if LARGEST_L1_BYTES < point[0] <= (l2_bytes or 0)]
    own_from = next((footprint for footprint, row in within_l2 if row.measurement.bound in L2_BOUNDS), None)
    by_name = {
        "L1": within_l1[0] if within_l1 else None,
        "L2": _longest([point for point in within_l2 if point[0] >= (own_from or 0)]),
        "DRAM": _longest([point for point in points if point[0] >= dram_bytes]),
    }
    return [
        Plateau(name, statistics.median(row.value for _, row in run), tuple(run), name == "L2" and own_from is None)
        for name, run in by_name.items()
        if run is not None
    ]


def runs(points: Sequence[Point]) -> list[list[Point]]:
    """Points in groups of neighbours whose figures lie within SAME of each other, from the left."""
    groups: list[list[Point]] = []
    for point in points:
        values = [row.value for _, row in (*groups[-1], point)] if groups else []
        if values and max(values) <= SAME * min(values):
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def _longest(points: Sequence[Point]) -> list[Point] | None:
    if len(points) < FEWEST:
        return list(points) or None
    longest = max((runs(points[begin:])[0] for begin in range(len(points))), key=len)
    return longest if len(longest) >= FEWEST else None


def ends(points: Sequence[Point], levels: Sequence[Plateau]) -> list[Plateau]:
    """Levels whose end is known: the next larger set, which is another level's, lies no further than WIDEST_GAP."""
    result = []
    for before, after in itertools.pairwise(levels):
        beyond_bytes = next(footprint for footprint, _ in points if footprint > before.last_bytes)
        apart = max(before.value, after.value) > SAME * min(before.value, after.value)
        if apart and beyond_bytes <= WIDEST_GAP * before.last_bytes:
            result.append(before)
    return result


def answered_together(points: Sequence[Point], levels: Sequence[Plateau]) -> list[Point]:
    """Sets between L1 and L2 that exceed the L2's own rate: it answers SMs that ask for a line together once."""
    by_name = {level.name: level for level in levels}
    l1, l2 = by_name.get("L1"), by_name.get("L2")
    if l2 is None or l2.together:
        return []
    from_bytes = max(LARGEST_L1_BYTES, l1.last_bytes if l1 is not None else 0)
    return [point for point in points if from_bytes < point[0] < l2.first_bytes and point[1].value > SAME * l2.value]


def up_to(level: Plateau) -> str:
    """ "up to " before the rate of a level that answers several SMs at once, else nothing."""
    return "up to " if level.together else ""


def latency_levels(evidence: Evidence, metric: str = LATENCY) -> list[Plateau]:
    """The levels of memory_latency; DRAM reaches up to the first step within it."""
    points = footprints(evidence, "memory_latency", metric)
    levels = [level for level in plateaus(points, l2_bytes(evidence)) if level.name != "DRAM"]
    beyond = _beyond_l2(evidence, points)
    if not beyond:
        return levels
    first = runs(beyond)[0]
    return [*levels, Plateau("DRAM", statistics.median(row.value for _, row in first), tuple(first))]


def _beyond_l2(evidence: Evidence, points: Sequence[Point]) -> list[Point]:
    reported = l2_bytes(evidence)
    least_bytes = BEYOND_L2 * reported if reported else SURELY_DRAM_BYTES
    return [point for point in points if point[0] >= least_bytes]


def steps(evidence: Evidence, metric: str = CYCLES) -> list[float]:
    """Sets at which the latency rises within DRAM by more than SAME: each is the reach of a translation cache (TLB).

    A single set counts only at either end, where it may be the first or the last of a run.
    """
    beyond = _beyond_l2(evidence, footprints(evidence, "memory_latency", metric))
    groups = runs(beyond)
    groups = [group for place, group in enumerate(groups) if len(group) > 1 or place in (0, len(groups) - 1)]
    result = []
    for below, above in itertools.pairwise(groups):
        before, after = (statistics.median(row.value for _, row in group) for group in (below, above))
        between = [point for point in beyond if below[-1][0] <= point[0] <= above[0][0]]
        reach_bytes = crossing(between, math.sqrt(before * after))
        if after > SAME * before and reach_bytes is not None:
            result.append(reach_bytes)
    return result[:MOST_STEPS]


def crossing(points: Sequence[Point], value: float) -> float | None:
    """Where the figures first pass ``value``, by a straight line in logarithms between two points.

    None where they do not pass it, or where the two points lie further apart than WIDEST_GAP.
    """
    for (low, first), (high, second) in itertools.pairwise(points):
        if (first.value - value) * (second.value - value) <= 0 and first.value != second.value:
            share = math.log(value / first.value) / math.log(second.value / first.value)
            return float(low * (high / low) ** share) if high <= WIDEST_GAP * low else None
    return None


def l2_modes(evidence: Evidence) -> tuple[Row, float, float, float] | None:
    """The near and the far part of the L2 as one SM sees them, in cycles, and the share of near lines, from the row of
    the smallest set that shows both."""
    for row in sorted(evidence.rows("memory_latency", LINES), key=lambda row: whole(row, "footprint_bytes")):
        near, far, share = (_number(row, name) for name in ("l2_near", "l2_far", "l2_near_share"))
        if near and far and share is not None:
            return row, near, far, share
    return None


def _number(row: Row, name: str) -> float | None:
    """A numeric fact of the row's case, from the newest round that has it."""
    values = [value for value in facts_of(row, name) if isinstance(value, int | float)]
    return float(values[-1]) if values else None


@rule("memory.levels", f"a level is a run of sets within {round_percent(SAME - 1)} of each other")
def levels(evidence: Evidence) -> Finding | None:
    """The bandwidth of each level, and the largest working sets that L1 and L2 hold."""
    by_level = bandwidth_levels(evidence)
    if not by_level:
        return None
    points = footprints(evidence, "memory_levels", BANDWIDTH)
    text = "Rates are totals over all SMs."
    if any(level.together for level in by_level):
        text = "SMs read the same lines at the same time in these sets, which hides what the L2 alone sends."
    elif answered_together(points, by_level):
        text = "Smaller sets in the L2 look faster, as it answers SMs that ask for a line at the same time once."
    streamed, last = best_stream(evidence, "read"), by_level[-1]
    if last.name == "DRAM" and streamed is not None and last.value > streamed.value:
        text += " The rate of DRAM lies above memory_stream's, which has the begin and end of a kernel in it."
    held = [f"{size(end.last_bytes)} ({end.name})" for end in ends(points, by_level)]
    rates = [f"{level.name} {up_to(level)}{quantity(level.value, 'B/s')}" for level in by_level]
    title = f"Bandwidth by level, by stamps on the SMs: {', '.join(rates)}"
    advice = f"Keep a working set within {' or '.join(held)} to run at that level's rate." if held else ""
    return said(title, text, advice, rows=(row for level in by_level for _, row in level.points), severity="note")


BENCHMARK, BANDWIDTH = "memory_stream", "bandwidth"
KERNELS = ("read", "write", "copy", "scale", "add", "triad", "dot")
IMPLEMENTATIONS = {"cuda": "CUDA C++", "cupy": "CuPy", "numba": "Numba"}
NATIVE = "cuda"
IN_DRAM = "dram"
HEAVY_LOSS = 0.1
# Two rates that differ by less count as equal: the search over shapes settles no closer.
EQUAL = 0.03
# A library's slow call and what to use in its place. CuPy's fill stores and its multiply computes one element a thread;
# cupy.dot writes the products to an array of its own and reads them again.
INSTEAD = {
    ("cupy", "write"): "CuPy's fill by a RawKernel of 16-byte stores",
    ("cupy", "scale"): "CuPy's multiply by a RawKernel of 16-byte accesses",
    ("cupy", "dot"): "cupy.dot by `cupy.cublas.dot`",
}


def streams(evidence: Evidence, **params: int | str) -> list[Row]:
    """Rates of streaming kernels with these parameter values."""
    return [row for row in evidence.rows(BENCHMARK, BANDWIDTH, **params) if row.value > 0]


def best_stream(evidence: Evidence, kernel: str) -> Row | None:
    """The fastest run of a kernel whose arrays surely lie in device memory."""
    rows = [row for row in streams(evidence, kernel=kernel) if row.measurement.bound == IN_DRAM]
    return max(rows, key=lambda row: row.value, default=None)


def largest_bytes(evidence: Evidence) -> int | None:
    """The largest size measured on the full set of kernels: the largest arrays may not fit for all of them."""
    kernels: dict[int, set[str]] = {}
    for row in streams(evidence):
        kernels.setdefault(whole(row, "size_bytes"), set()).add(str(row.params.get("kernel")))
    return max(kernels, key=lambda size_bytes: (len(kernels[size_bytes]), size_bytes), default=None)


def main_dtype(evidence: Evidence) -> str | None:
    """The type that is shown first: fp64 where it was measured."""
    dtypes = [str(row.params.get("dtype")) for row in streams(evidence)]
    return "fp64" if "fp64" in dtypes else next(iter(dtypes), None)


class Loss(NamedTuple):
    """The share of CUDA C++'s rate that one kernel loses in a library; negative where the library is faster."""

    kernel: str
    share: float
    row: Row
    native: Row


def losses(evidence: Evidence, implementation: str) -> list[Loss]:
    """What each kernel loses on the largest arrays, in the type shown first."""
    size_bytes, dtype = largest_bytes(evidence), main_dtype(evidence)
    if size_bytes is None or dtype is None:
        return []
    result = []
    for kernel in KERNELS:
        row, native = (
            evidence.row(BENCHMARK, BANDWIDTH, implementation=name, kernel=kernel, dtype=dtype, size_bytes=size_bytes)
            for name in (implementation, NATIVE)
        )
        if row is not None and native is not None:
            result.append(Loss(kernel, 1 - row.value / native.value, row, native))
    return result


def shape_of(row: Row) -> str | None:
    """The name of the shape that the search chose, of the newest round."""
    names = [value for value in facts_of(row, "shape") if isinstance(value, str)]
    return names[-1] if names else None


# Names such as grid_16B_x4_t256, steps_16B_x4_t512_b8 and bulk_8192B_x4_t128_b4; the parts behind x may be missing.
SHAPE = re.compile(r"(?P<style>[a-z]+)_(?P<width>[0-9]{1,7})B_x(?P<ahead>[0-9]{1,4})(?P<rest>(?:_[tb][0-9]{1,5})*)")
PART = re.compile(r"_([tb])([0-9]+)")
BULK = "bulk"
LOOPS = {
    "grid": "no loop",
    "past": "no loop, past the L1",
    "steps": "grid-stride loop",
    "persistent": "grid-stride loop",
}


def shape_words(name: str) -> str:
    """A shape's name in words; an unknown name stays as it is."""
    match = SHAPE.fullmatch(name)
    if match is None or match["style"] not in (BULK, *LOOPS):
        return name
    parts = {kind: int(count) for kind, count in PART.findall(match["rest"])}
    width_bytes, ahead = int(match["width"]), int(match["ahead"])
    if match["style"] == BULK:
        words = [f"bulk copies of {size(width_bytes)}", f"{ahead} stage{'s' if ahead > 1 else ''}"]
    else:
        words = [f"{width_bytes}-byte accesses", f"{ahead} a thread", LOOPS[match["style"]]]
    if "t" in parts:
        words.append(f"blocks of {parts['t']}")
    if "b" in parts:
        words.append(f"{parts['b']} blocks an SM")
    return ", ".join(words)


@rule(
    "memory.python",
    f"advice where a kernel loses over {round_percent(HEAVY_LOSS)} on the largest arrays; equal within "
    f"{round_percent(EQUAL)}",
)
def python(evidence: Evidence) -> Finding | None:
    """How much bandwidth CuPy and Numba lose at most, where they are equal or faster, and what to use instead."""
    by_library = {name: lost for name in IMPLEMENTATIONS if name != NATIVE and (lost := losses(evidence, name))}
    if not by_library:
        return None
    worst = {name: max(lost, key=lambda loss: loss.share) for name, lost in by_library.items()}
    lost_words = [
        f"{IMPLEMENTATIONS[name]} " + (f"up to {percent(loss.share)} ({loss.kernel})" if loss.share > EQUAL else "none")
        for name, loss in worst.items()
    ]
    heavy = any(loss.share > HEAVY_LOSS for loss in worst.values())
    slow = [(name, loss.kernel) for name, lost in by_library.items() for loss in lost if loss.share > HEAVY_LOSS]
    better = [INSTEAD[call] for call in slow if call in INSTEAD]
    advice = f"Replace {listed(better)}." if better else "Fuse chains of calls: each one moves its arrays once more."
    title = f"Bandwidth lost against CUDA C++: {', '.join(lost_words)}"
    text = ". ".join(words for name, lost in by_library.items() if (words := _others(name, lost))) + "."
    advice = advice if heavy else ""
    rows = [row for lost in by_library.values() for loss in lost for row in (loss.row, loss.native)]
    return said(title, text, advice, rows=rows)


def _others(name: str, lost: list[Loss]) -> str:
    """The kernels in which a library is not slower than CUDA C++."""
    equal = [loss.kernel for loss in lost if abs(loss.share) <= EQUAL]
    faster = [loss.kernel for loss in lost if loss.share < -EQUAL]
    words = [f"as fast in {listed(equal)}"] if equal else []
    words += [f"faster in {listed(faster)}"] if faster else []
    return f"{IMPLEMENTATIONS[name]} is {' and '.join(words) or 'slower in every kernel'}"


RULES: tuple[Rule, ...] = (python, levels)
