"""Explains who multiplies: CuPy's and PyTorch's matmul and cuBLASLt's own guesses beside its fastest candidate."""

from __future__ import annotations

import re
from typing import NamedTuple

from microbench.explain.compute_units import (
    LIBRARIES,
    NATIVE,
    PRODUCTS,
    beside,
    best_products,
    counted,
    dtype_of,
    dtypes,
    fact_of,
    figure,
    one_rate,
    rates,
    some,
)
from microbench.explain.evidence import Evidence, listed, rests_on, whole
from microbench.explain.finding import Finding
from microbench.stats import Row
from microbench.units import percent, round_percent

EQUAL, HEAVY_LOSS = 0.02, 0.05
AGAINST = "against"
GUESS = re.compile(r"guess (\d+) of the heuristics")


class Rival(NamedTuple):
    """Another library against cuBLASLt: the same type, the same size; ``against`` of batches in turn on the same
    operands, None in runs that took them one after the other."""

    library: str
    row: Row
    native: Row
    against: Row | None

    @property
    def ratio(self) -> float:
        """Above 1 the other library is faster."""
        return self.against.value if self.against is not None else self.row.value / self.native.value


def rivals(evidence: Evidence) -> list[Rival]:
    """Every pair that was measured, at the largest size of each type."""
    found = []
    for library in LIBRARIES:
        for dtype in dtypes(evidence, PRODUCTS):
            rows = rates(evidence, PRODUCTS, dtype=dtype, library=library)
            row = max(rows, key=lambda one: whole(one, "size"), default=None)
            if row is None:
                continue
            native = one_rate(evidence, PRODUCTS, dtype=dtype, library=NATIVE, size=whole(row, "size"))
            if native is not None:
                found.append(Rival(library, row, native, beside(evidence, row, AGAINST)))
    return found


def libraries(evidence: Evidence) -> list[Finding]:
    """CuPy's and PyTorch's matmul beside cuBLASLt's fastest candidate."""
    found = rivals(evidence)
    if not found:
        return []
    by_library = {name: [one for one in found if one.library == name] for name in LIBRARIES}
    worst = min(found, key=lambda one: one.ratio)
    heavy = worst.ratio < 1 - HEAVY_LOSS
    told = {name: own for name, own in by_library.items() if own}
    in_turn = all(one.against is not None for one in found)
    ahead = [f"{LIBRARIES[one.library]} in {dtype_of(one.row)}" for one in found if one.ratio > 1 + EQUAL]
    claim = "Faster than every candidate that was tried" if in_turn else "Ahead, though not measured in turn"
    faster = f" {claim}: {listed(ahead)}." if ahead else ""
    advice = (
        f" {LIBRARIES[worst.library]} takes another kernel for {dtype_of(worst.row)}: where that product matters, "
        "choose the candidate by measuring."
        if heavy else ""
    )  # fmt: skip
    return [
        Finding(
            rule="compute.libraries",
            severity="advice" if heavy else "note",
            title=f"Beside cuBLASLt: {'; '.join(_range(name, own) for name, own in told.items())}",
            text=f"{'. '.join(_rival_words(name, own) for name, own in told.items())}.{faster}{advice}",
            threshold=(
                f"{'in turn' if in_turn else 'one after the other'}, the same operands at the largest size of a type; "
                f"equal within {round_percent(EQUAL)}, advice where over {round_percent(HEAVY_LOSS)} is lost"
            ),
            rests_on=rests_on(*(row for one in found for row in (one.row, one.native))),
            suite="compute",
        )
    ]


def _range(name: str, own: list[Rival]) -> str:
    low, high = min(one.ratio for one in own), max(one.ratio for one in own)
    span = percent(low) if low == high else f"{percent(low)} to {percent(high)}"
    return f"{LIBRARIES[name]} reaches {span}"


def _rival_words(name: str, own: list[Rival]) -> str:
    return f"{LIBRARIES[name]}: {some([_beside(one) for one in sorted(own, key=lambda one: one.ratio)])}"


def _beside(one: Rival) -> str:
    """Measured in turn, the ratio is of pairs: it is not that of the two rates, which are of other moments."""
    if one.against is not None:
        return f"{dtype_of(one.row)} {percent(one.ratio)} (at {figure(one.row)})"
    return f"{dtype_of(one.row)} {figure(one.row)} of {figure(one.native)} ({percent(one.ratio)})"


def candidates(evidence: Evidence) -> list[Finding]:
    """How often the heuristics' first guess was not the fastest."""
    found = [(row, guess) for row in best_products(evidence) if (guess := _guess(row)) is not None]
    later = [(row, guess) for row, guess in found if guess > 1]
    if not found:
        return []
    told = [f"{dtype_of(row)} {_candidate(row)} (guess {guess})" for row, guess in (later or found)]
    return [
        Finding(
            rule="compute.candidate",
            severity="note",
            title=(
                f"cuBLASLt's first guess was not the fastest for {len(later)} of {counted(len(found), 'type')}"
                if later
                else f"cuBLASLt's first guess was the fastest for {counted(len(found), 'type')}"
            ),
            text=(
                f"{some(told)}. Calls that take what the heuristics propose first get the first guess: products "
                "that matter are worth a search."
                if later else f"{some(told)}. A search gains nothing at these sizes."
            ),
            threshold="the least median of three samples of each candidate, in turn, at each type's best size",
            rests_on=rests_on(*(row for row, _ in found)),
            suite="compute",
        )
    ]  # fmt: skip


def _guess(row: Row) -> int | None:
    """Which of the heuristics' candidates was the fastest, from 1; None where there was one only."""
    fact = fact_of(row, "candidate")
    told = GUESS.search(fact.source or "") if fact is not None else None
    return int(told[1]) if told else None


def _candidate(row: Row) -> str:
    fact = fact_of(row, "candidate")
    return str(fact.value) if fact is not None else ""
