"""Streaming kernels: the best rate of each, and what CuPy and Numba lose against CUDA C++."""

import re
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Rule, facts_of, listed, rule, said, whole
from microbench.analysis.stats import Row
from microbench.core.units import percent, round_percent, size

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


RULES: tuple[Rule, ...] = (python,)
