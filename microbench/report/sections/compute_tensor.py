"""Tensor cores alone as a table: both paths clock for clock, and what the better one sustains and gives in a burst."""

from __future__ import annotations

from microbench.explain.ceilings import exceeds, share_of
from microbench.explain.compute_tensor import BURST, MMA, SUSTAINED, WGMMA, per_clock, tensor_dtypes
from microbench.explain.compute_units import TENSORS, beside, figure, rates
from microbench.explain.evidence import Evidence, row_name
from microbench.report.document import Cell, Column, Table
from microbench.report.shapes import NOTHING
from microbench.stats import Row
from microbench.units import percent, quantity, tera

ACCUMULATORS = "adds up: fp16_acc16 in fp16, int8 in int32, fp64 in fp64, all others in fp32 (fp8 by wgmma: 14 bits)"


def alone(evidence: Evidence) -> Table | None:
    """Types down; operations an SM does in a cycle by each path, then the faster path's rates with their clocks."""
    found = tensor_dtypes(evidence)
    if not found:
        return None
    rows = tuple(
        (
            Cell(dtype, tone="strong"),
            *(_in_a_cycle(evidence, per_clock(evidence, path, dtype)) for path in (WGMMA, MMA)),
            *(_rate(evidence, dtype, load) for load in (SUSTAINED, BURST)),
        )
        for dtype in found
    )
    columns = (
        Column("type", "left"), Column("wgmma"), Column("mma"), Column("sustained"),
        Column("burst", drop=1),
    )  # fmt: skip
    return Table(
        "Tensor cores alone, in TFLOP/s (int8: TOP/s), dense",
        "by each path an SM's operations in a cycle and their share of its rate; by the faster one rate and clock",
        columns,
        rows,
        (ACCUMULATORS,),
    )


def _in_a_cycle(evidence: Evidence, row: Row | None) -> Cell:
    if row is None:
        return NOTHING
    share, limit = share_of(evidence, row), evidence.ceiling(row)
    over = limit is not None and exceeds(row, limit)
    number = figure(row).split()[0]
    return Cell(
        number, percent(share) if share is not None else "", "problem" if over else "plain", row.trust, row_name(row)
    )


def _rate(evidence: Evidence, dtype: str, load: str) -> Cell:
    row = max(rates(evidence, TENSORS, dtype=dtype, load=load), key=lambda one: one.value, default=None)
    if row is None:
        return NOTHING
    clock = beside(evidence, row, "sm_clock")
    at = quantity(clock.value, "Hz") if clock is not None else ""
    return Cell(tera(row.value), at, "strong", row.trust, row_name(row))
