"""Explains memory_stream: what Python loses, which shape of access wins, and arrays that never leave the L2."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, facts_of, listed, rests_on, share_of, whole
from microbench.analysis.stats import Row
from microbench.core.units import percent, quantity, round_percent, size

# Shapes of streaming kernels in words: how wide an access is, how much is under way, how many blocks.


# grid_16B_x4_t256, steps_16B_x4_t512_b8, bulk_8192B_x4_t128_b4: parts may be missing or in another order.
BEGIN = re.compile(r"(?P<style>[a-z]+)_(?P<width>[0-9]{1,7})B_x(?P<ahead>[0-9]{1,4})(?P<rest>(?:_[tb][0-9]{1,5})*)")
PART = re.compile(r"_([tb])([0-9]+)")
BULK = "bulk"
BLOCKS = {
    "grid": "no loop",
    "past": "no loop, past the L1",
    "steps": "grid-stride loop",
    "persistent": "grid-stride loop",
}


def shape_words(name: str) -> str:
    """The shape of that name in words; the name itself where it is not one of those known."""
    found = BEGIN.fullmatch(name)
    if found is None or found["style"] not in (BULK, *BLOCKS):
        return name
    parts = {kind: int(count) for kind, count in PART.findall(found["rest"])}
    width_bytes, ahead = int(found["width"]), int(found["ahead"])
    if found["style"] == BULK:
        words = [f"bulk copies of {size(width_bytes)}", f"{ahead} stage{'s' if ahead > 1 else ''}"]
    else:
        words = [f"{width_bytes}-byte accesses", f"{ahead} a thread", BLOCKS[found["style"]]]
    if "t" in parts:
        words.append(f"blocks of {parts['t']}")
    if "b" in parts:
        words.append(f"{parts['b']} blocks an SM")
    return ", ".join(words)


BENCHMARK, BANDWIDTH = "memory_stream", "bandwidth"
KERNELS = ("read", "write", "copy", "scale", "add", "triad", "dot")
IMPLEMENTATIONS = {"cuda": "CUDA C++", "cupy": "CuPy", "numba": "Numba"}
NATIVE = "cuda"
HEAVY_LOSS = 0.1
# Nearer to each other than this they are equal: which shape the search chose is worth as much.
EQUAL = 0.03
# What to use instead of a library's call that loses much.
INSTEAD = {
    ("cupy", "write"): (
        "CuPy's fill stores one element a thread: `cupy.cuda.runtime.memset` fills with a byte, a RawKernel of 16-byte "
        "stores with anything."
    ),
    ("cupy", "scale"): (
        "CuPy's multiply does one element a thread: a RawKernel of 16-byte accesses, or more work in one call "
        "(ElementwiseKernel), gets the rest."
    ),
    ("cupy", "dot"): (
        "cupy.dot writes the products to an array of its own and reads them again: `cupy.cublas.dot` or a "
        "ReductionKernel goes through memory once."
    ),
}
IN_L2, IN_DRAM = "l2", "dram"


class Loss(NamedTuple):
    """What one kernel loses in a library against CUDA C++, as a share."""

    kernel: str
    share: float
    row: Row
    native: Row


def streams(evidence: Evidence, **params: int | str) -> list[Row]:
    """Rates of streaming kernels with these parameter values."""
    return [row for row in evidence.rows(BENCHMARK, BANDWIDTH, **params) if row.value > 0]


def largest_bytes(evidence: Evidence) -> int | None:
    """The size of the largest arrays that as many kernels were measured on as on any: not all of them may fit."""
    kernels: dict[int, set[str]] = {}
    for row in streams(evidence):
        kernels.setdefault(whole(row, "size_bytes"), set()).add(str(row.params.get("kernel")))
    return max(kernels, key=lambda size_bytes: (len(kernels[size_bytes]), size_bytes), default=None)


def main_dtype(evidence: Evidence) -> str | None:
    """The type that is shown first: fp64 where it was measured."""
    found = [str(row.params.get("dtype")) for row in streams(evidence)]
    return "fp64" if "fp64" in found else next(iter(found), None)


def best_stream(evidence: Evidence, kernel: str) -> Row | None:
    """The fastest run of that kernel whose arrays surely lie in device memory."""
    found = [row for row in streams(evidence, kernel=kernel) if row.measurement.bound == IN_DRAM]
    return max(found, key=lambda row: row.value, default=None)


def losses(evidence: Evidence, implementation: str) -> list[Loss]:
    """What each kernel loses on the largest arrays, in the type shown first."""
    size_bytes, dtype = largest_bytes(evidence), main_dtype(evidence)
    if size_bytes is None or dtype is None:
        return []
    found = []
    for kernel in KERNELS:
        same: dict[str, int | str] = {"kernel": kernel, "dtype": dtype, "size_bytes": size_bytes}
        row = next(iter(streams(evidence, implementation=implementation, **same)), None)
        native = next(iter(streams(evidence, implementation=NATIVE, **same)), None)
        if row is not None and native is not None:
            found.append(Loss(kernel, 1 - row.value / native.value, row, native))
    return found


def python(evidence: Evidence) -> list[Finding]:
    """What CuPy and Numba leave of the bandwidth, where they are as fast, and what to use instead."""
    found = {name: lost for name in IMPLEMENTATIONS if name != NATIVE and (lost := losses(evidence, name))}
    if not found:
        return []
    heavy = [(name, one) for name, lost in found.items() for one in _by_loss(lost) if one.share > HEAVY_LOSS]
    measured_bytes = whole(next(iter(found.values()))[0].row, "size_bytes")
    closing = " What is memory-bound takes longer by as much."
    if heavy:
        known = [INSTEAD[key] for name, one in heavy if (key := (name, one.kernel)) in INSTEAD]
        closing = "".join(f" {one}" for one in dict.fromkeys(known))
        closing += " A chain of calls also moves every intermediate array twice; one fused kernel does not."
    return [
        Finding(
            rule="memory.python",
            severity="advice" if heavy else "note",
            title=f"Against CUDA C++ {'; '.join(_short(name, lost) for name, lost in found.items())}",
            text=f"Arrays of {size(measured_bytes)}. {' '.join(_words(*one) for one in found.items())}{closing}",
            threshold=(
                f"advice where a kernel loses over {round_percent(HEAVY_LOSS)} on the largest arrays; equal within "
                f"{round_percent(EQUAL)}"
            ),
            rests_on=rests_on(*(row for lost in found.values() for one in lost for row in (one.row, one.native))),
            suite="memory",
        )
    ]


def _by_loss(lost: list[Loss]) -> list[Loss]:
    return sorted(lost, key=lambda one: -one.share)


def _short(name: str, lost: list[Loss]) -> str:
    """A library in a few words: in how many kernels it is as fast or faster, and its worst one."""
    as_fast, worst = sum(one.share <= EQUAL for one in lost), _by_loss(lost)[0]
    if as_fast == len(lost):
        return f"{IMPLEMENTATIONS[name]} is as fast"
    most = f"{IMPLEMENTATIONS[name]} loses up to {percent(worst.share)} ({worst.kernel})"
    return f"{most}, as fast in {as_fast} of {len(lost)}"


def _words(name: str, lost: list[Loss]) -> str:
    """A library's kernels: those that lose, the worst first, those as fast, and those that beat ours."""
    slower = [
        f"{one.kernel} {quantity(one.row.value, 'B/s')} of {quantity(one.native.value, 'B/s')} "
        f"({percent(one.row.value / one.native.value)})"
        for one in _by_loss(lost)
        if one.share > EQUAL
    ]
    faster = [
        f"{one.kernel} by {percent(-one.share)} ({quantity(one.row.value, 'B/s')})"
        for one in lost
        if one.share < -EQUAL
    ]
    equal = [one.kernel for one in lost if abs(one.share) <= EQUAL]
    parts = [", ".join(slower)] if slower else []
    parts += [f"equal in {listed(equal)}"] if equal else []
    parts += [f"FASTER than CUDA C++ in {listed(faster)}"] if faster else []
    return f"{IMPLEMENTATIONS[name]}: {'; '.join(parts)}."


def shape_of(row: Row) -> str | None:
    """The shape that was chosen, by name; that of the newest round where they differ."""
    told = [value for value in facts_of(row, "shape") if isinstance(value, str)]
    return told[-1] if told else None


def shapes(evidence: Evidence) -> list[Finding]:
    """Which width of access, and how many under way, the search chose for each kernel."""
    size_bytes, dtype = largest_bytes(evidence), main_dtype(evidence)
    if size_bytes is None or dtype is None:
        return []
    found = [
        (str(row.params.get("kernel")), shape, row)
        for row in streams(evidence, implementation=NATIVE, dtype=dtype, size_bytes=size_bytes)
        if (shape := shape_of(row)) is not None
    ]
    if not found:
        return []
    counted = Counter(shape for _, shape, _ in found)
    words = [
        f"{listed([kernel for kernel, own, _ in found if own == shape])}: {shape_words(shape)}" for shape in counted
    ]
    return [
        Finding(
            rule="memory.shape",
            severity="note",
            title=f"The fastest shape of access: {shape_words(counted.most_common(1)[0][0])}",
            text=f"The fastest of those tried on arrays of {size(size_bytes)}, {dtype}. {'; '.join(words)}.",
            threshold="the least median of three samples of each shape, measured anew",
            rests_on=rests_on(*(row for _, _, row in found)),
            suite="memory",
        )
    ]


def resident(evidence: Evidence) -> list[Finding]:
    """Rates of arrays that fit the L2: they say nothing of the memory."""
    found = [row for row in streams(evidence, implementation=NATIVE) if row.measurement.bound == IN_L2]
    if not found:
        return []
    best = max(found, key=lambda row: row.value)
    largest = max(whole(row, "size_bytes") for row in found)
    share = share_of(evidence, best)
    against = f", {percent(share)} of what the SMs' ports to the L2 could carry" if share is not None else ""
    beyond = best_stream(evidence, str(best.params.get("kernel")))
    memory = f" Device memory gives this kernel {quantity(beyond.value, 'B/s')}." if beyond is not None else ""
    return [
        Finding(
            rule="memory.resident",
            severity="note",
            title=f"Arrays up to {size(largest)} stay in the L2: their rates are not the memory's",
            text=(
                f"Repeated {best.params.get('kernel')} over arrays of {size(whole(best, 'size_bytes'))} reaches "
                f"{quantity(best.value, 'B/s')}{against}.{memory} Such sizes gain from kernels that follow each other "
                "on the same data; a first touch costs what memory costs."
            ),
            threshold="all arrays of a kernel together at most half of the L2",
            rests_on=rests_on(*found, beyond),
            suite="memory",
        )
    ]
