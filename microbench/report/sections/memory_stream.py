"""Streaming kernels as tables: implementations side by side, types side by side, and the shape that was chosen."""

from __future__ import annotations

from microbench.explain.ceilings import exceeds, share_of
from microbench.explain.evidence import Evidence, row_name
from microbench.explain.memory_shapes import shape_words
from microbench.explain.memory_stream import (
    IMPLEMENTATIONS,
    KERNELS,
    NATIVE,
    largest_bytes,
    main_dtype,
    shape_of,
    streams,
)
from microbench.report.document import Cell, Column, Table
from microbench.report.shapes import NOTHING
from microbench.stats import Row
from microbench.units import gigabytes, percent, size

DTYPES = ("fp64", "fp32", "fp16", "int8")


def by_implementation(evidence: Evidence) -> Table | None:
    """Kernels down, what they are written in across, on the largest arrays; the shape in words at the end."""
    size_bytes, dtype = largest_bytes(evidence), main_dtype(evidence)
    if size_bytes is None or dtype is None:
        return None
    found = {
        (str(row.params.get("kernel")), str(row.params.get("implementation"))): row
        for row in streams(evidence, dtype=dtype, size_bytes=size_bytes)
    }
    written_in = [one for one in IMPLEMENTATIONS if any(way == one for _, way in found)]
    kernels = [one for one in KERNELS if any(kernel == one for kernel, _ in found)]
    columns = [Column("", "left"), *(Column(IMPLEMENTATIONS[one]) for one in written_in)]
    columns.append(Column("shape of CUDA C++", "left", drop=1))
    rows = tuple(
        (
            Cell(kernel, tone="strong"),
            *(_rate(evidence, found.get((kernel, way))) for way in written_in),
            _shape(found.get((kernel, NATIVE))),
        )
        for kernel in kernels
    )
    return Table(
        f"Streaming kernels on arrays of {size(size_bytes)}, {dtype}, in GB/s",
        "bytes read plus written; beside each figure its share of the ceiling",
        tuple(columns),
        rows,
        _limits(evidence, list(found.values())),
    )


def by_dtype(evidence: Evidence) -> Table | None:
    """Kernels down, types of the elements across, in CUDA C++ on the largest arrays; None for one type."""
    size_bytes = largest_bytes(evidence)
    if size_bytes is None:
        return None
    found = {
        (str(row.params.get("kernel")), str(row.params.get("dtype"))): row
        for row in streams(evidence, implementation=NATIVE, size_bytes=size_bytes)
    }
    types = [one for one in DTYPES if any(dtype == one for _, dtype in found)]
    if len(types) < 2:
        return None
    rows = tuple(
        (Cell(kernel, tone="strong"), *(_rate(evidence, found.get((kernel, dtype))) for dtype in types))
        for kernel in KERNELS
        if any(own == kernel for own, _ in found)
    )
    return Table(
        f"Types of elements on arrays of {size(size_bytes)}, CUDA C++, in GB/s",
        "a kernel that only moves bytes does not care; what is added up or multiplied may",
        (Column("", "left"), *(Column(one) for one in types)),
        rows,
    )


def _rate(evidence: Evidence, row: Row | None) -> Cell:
    if row is None:
        return NOTHING
    share, limit = share_of(evidence, row), evidence.ceiling(row)
    over = limit is not None and exceeds(row, limit)
    note = percent(share) if share is not None else ""
    return Cell(gigabytes(row.value), note, "problem" if over else "strong", row.trust, row_name(row))


def _shape(row: Row | None) -> Cell:
    name = shape_of(row) if row is not None else None
    return Cell(shape_words(name), tone="quiet") if name is not None else NOTHING


def _limits(evidence: Evidence, found: list[Row]) -> tuple[str, ...]:
    limits = dict.fromkeys(limit for row in found if (limit := evidence.ceiling(row)) is not None)
    return tuple(f"ceiling: {gigabytes(one.value)} GB/s, {one.source}" for one in limits)
