"""Explains tensor instructions alone: what they sustain, what each path leaves behind, what adding up in fp32 costs."""

from __future__ import annotations

from typing import NamedTuple

from microbench.explain.ceilings import share_of
from microbench.explain.compute_units import (
    MAIN_DTYPE,
    PER_CLOCK,
    TENSORS,
    beside,
    best_product,
    dtype_of,
    figure,
    one_rate,
    rates,
    some,
)
from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.stats import Row
from microbench.units import percent, quantity, round_percent, times

WGMMA, MMA = "wgmma", "mma"
SUSTAINED, BURST = "sustained", "burst"
LEFT_BEHIND, FULL = 0.9, 0.97
# Boards for games add up fp32 at half the rate: a ratio near 2, elsewhere near 1.
HALVED_FROM, WHOLE_UP_TO = 1.7, 1.3


def per_clock(evidence: Evidence, path: str, dtype: str) -> Row | None:
    """Operations a clock cycle and SM by one path, of work that lasts where it was measured."""
    found = (one_rate(evidence, TENSORS, PER_CLOCK, path=path, dtype=dtype, load=load) for load in (SUSTAINED, BURST))
    return next((row for row in found if row is not None), None)


def tensor_dtypes(evidence: Evidence) -> list[str]:
    """The types of tensor instructions that were measured, that which speaks for the suite first."""
    found = dict.fromkeys(dtype_of(row) for row in rates(evidence, TENSORS, PER_CLOCK))
    return sorted(found, key=lambda dtype: dtype != MAIN_DTYPE)


class Paths(NamedTuple):
    """Both paths to the tensor cores for one type."""

    dtype: str
    wgmma: Row
    mma: Row

    @property
    def share(self) -> float:
        """What mma.sync gives of wgmma, clock for clock."""
        return self.mma.value / self.wgmma.value


def both_paths(evidence: Evidence) -> list[Paths]:
    """Every type that was measured by both."""
    found = []
    for dtype in tensor_dtypes(evidence):
        wgmma, mma = per_clock(evidence, WGMMA, dtype), per_clock(evidence, MMA, dtype)
        if wgmma is not None and mma is not None:
            found.append(Paths(dtype, wgmma, mma))
    return found


def paths(evidence: Evidence) -> list[Finding]:
    """The instruction path that leaves the rate behind."""
    found = both_paths(evidence)
    if not found:
        return _one_path(evidence)
    first = found[0]
    behind = first.share < LEFT_BEHIND
    words = [
        f"{one.dtype} {figure(one.mma)} of {figure(one.wgmma)} ({percent(one.share)})" for one in found
    ]  # fmt: skip
    advice = (
        " A kernel written with mma.sync (as those for older GPUs are) cannot be faster than that: "
        "use warpgroups' instructions."
        if behind else ""
    )  # fmt: skip
    return [
        Finding(
            rule="compute.path",
            severity="advice" if behind else "note",
            title=f"mma.sync gives {percent(first.share)} of what wgmma gives ({first.dtype}, clock for clock)",
            text=f"{some(words)}.{advice}",
            threshold=f"advice where mma.sync stays below {round_percent(LEFT_BEHIND)}",
            rests_on=rests_on(*(row for one in found for row in (one.wgmma, one.mma))),
            suite="compute",
        )
    ]


def _one_path(evidence: Evidence) -> list[Finding]:
    """mma.sync alone, where the architecture has instructions that were not measured."""
    found = [(row, share_of(evidence, row)) for dtype in tensor_dtypes(evidence)
             if (row := per_clock(evidence, MMA, dtype)) is not None]  # fmt: skip
    behind = [(row, share) for row, share in found if share is not None and share < LEFT_BEHIND]
    if not behind:
        return []
    row, share = behind[0]
    words = [f"{dtype_of(one)} {figure(one)} ({percent(part)})" for one, part in behind]
    return [
        Finding(
            rule="compute.path",
            severity="advice",
            title=f"mma.sync reaches {percent(share)} of the tensor cores' rate ({dtype_of(row)}, clock for clock)",
            text=(
                f"{some(words)}. Other "
                "instructions of this architecture give the rest: use a library that is built for it."
            ),
            threshold=f"the only path measured below {round_percent(LEFT_BEHIND)} of the architecture's rate",
            rests_on=rests_on(*(one for one, _ in behind)),
            suite="compute",
        )
    ]


def alone(evidence: Evidence) -> list[Finding]:
    """Tensor instructions without traffic, burst and sustained, and what products keep of them."""
    found = [row for row in rates(evidence, TENSORS) if row.params.get("load") == SUSTAINED]
    best = {dtype: max((row for row in found if dtype_of(row) == dtype), key=lambda row: row.value)
            for dtype in dict.fromkeys(dtype_of(row) for row in found)}  # fmt: skip
    ordered = sorted(best.values(), key=lambda row: dtype_of(row) != MAIN_DTYPE)
    if not ordered:
        return []
    first = ordered[0]
    clocked = beside(evidence, first, *PER_CLOCK)
    share = share_of(evidence, clocked) if clocked is not None else None
    clock = beside(evidence, first, "sm_clock")
    at = f" at {quantity(clock.value, 'Hz')}" if clock is not None else ""
    full = share is None or share >= FULL
    of_rate = f", {percent(share)} of their rate a cycle" if share is not None else ""
    return [
        Finding(
            rule="compute.ceiling",
            severity="good" if share is not None and full else "note",
            title=f"Tensor cores alone sustain {figure(first)}{at} ({_instruction(first)}){of_rate}",
            text=(
                f"{some([_alone_words(evidence, row) for row in ordered])}.{_most(evidence, first)}"
            ),
            threshold=f"good from {round_percent(FULL)} of the architecture's rate a cycle and SM on",
            rests_on=rests_on(*ordered, clocked, clock),
            suite="compute",
        )
    ]  # fmt: skip


def _most(evidence: Evidence, row: Row) -> str:
    """What instructions alone say of products: nothing where a product is faster, or the rate is not reached."""
    clocked, product = beside(evidence, row, *PER_CLOCK), _best_of(evidence, row)
    share = share_of(evidence, clocked) if clocked is not None else None
    if product is not None and product.value > row.value:
        return " A product is faster: it is made of other instructions, or of a cooler moment."
    if share is None or share < FULL:
        return ""
    return " No product of random numbers can be faster for long on this board."


def _best_of(evidence: Evidence, row: Row) -> Row | None:
    """The fastest square product of a type of instructions, in the same unit."""
    both = (best_product(evidence, name) for name in (dtype_of(row), f"{dtype_of(row)}_fast"))
    found = [one for one in both if one is not None and one.metric.unit == row.metric.unit]
    return max(found, key=lambda one: one.value, default=None)


def _instruction(row: Row) -> str:
    return f"{dtype_of(row)} {row.params.get('path')}"


def _alone_words(evidence: Evidence, row: Row) -> str:
    dtype, path = dtype_of(row), str(row.params.get("path"))
    burst = one_rate(evidence, TENSORS, path=path, dtype=dtype, load=BURST)
    words = f"{_instruction(row)} {figure(row)}" + (f", burst {figure(burst)}" if burst is not None else "")
    product = _best_of(evidence, row)
    if product is None:
        return words
    return f"{words}, of which a product reaches {percent(product.value / row.value)}"


class Halves(NamedTuple):
    """fp16 that adds up in fp16 against fp16 that adds up in fp32."""

    short: Row
    long: Row

    @property
    def ratio(self) -> float:
        """2 where adding up in fp32 is halved, 1 where it is not."""
        return self.short.value / self.long.value


def halves(evidence: Evidence) -> Halves | None:
    """By instructions where they were measured, else by products of the same size."""
    short, long = (per_clock(evidence, MMA, dtype) for dtype in ("fp16_acc16", "fp16"))
    if short is None or long is None:
        short, long = (best_product(evidence, dtype) for dtype in ("fp16_acc16", "fp16"))
    if short is None or long is None:
        return None
    return Halves(short, long)


def accumulate(evidence: Evidence) -> list[Finding]:
    """Whether this board adds up in fp32 at half the rate, as boards for games do."""
    found = halves(evidence)
    if found is None:
        return []
    ratio = found.ratio
    like = "GeForce-like" if ratio >= HALVED_FROM else "not GeForce-like" if ratio <= WHOLE_UP_TO else "unclear"
    advice = " Where fp16 sums are exact enough they are worth it." if like == "GeForce-like" else ""
    return [
        Finding(
            rule="compute.accumulate",
            severity="note",
            title=f"Adding up in fp16 is {times(ratio)} as fast as in fp32: {like}",
            text=(
                f"fp16 that adds up in fp16 {figure(found.short)}, in fp32 {figure(found.long)}. Boards for games "
                f"halve the latter, and compute capability cannot tell.{advice}"
            ),
            threshold=f"GeForce-like from {times(HALVED_FROM)} on, not up to {times(WHOLE_UP_TO)}",
            rests_on=rests_on(*found),
            suite="compute",
        )
    ]
