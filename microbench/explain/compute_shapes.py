"""Explains the products of language models: which roof of this run holds each up, and what a graph would give."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

from microbench.explain.compute_tensor import SUSTAINED
from microbench.explain.compute_units import (
    SHAPES,
    TENSORS,
    beside,
    best_product,
    counted,
    dtype_of,
    figure,
    rates,
    some,
)
from microbench.explain.evidence import Evidence, listed, rests_on, whole
from microbench.explain.finding import Finding
from microbench.explain.memory_stream import best_stream
from microbench.limits import ceiling
from microbench.stats import Row
from microbench.units import as_time, quantity, times

# A product is a launch in disguise where a call from Python takes so many times as long as its work on the device.
LAUNCHES_FROM = 1.2
# A graph is worth its trouble where it makes a call so many times as fast.
GRAPH_WORTH = 1.2

Held = Literal["launch", "bandwidth", "compute"]


class Roof(NamedTuple):
    """What this run holds a shape against: a rate in ``unit``, and who gave it. ``row`` is None for a computed one."""

    value: float
    unit: str
    name: str
    row: Row | None


def bandwidth_roof(evidence: Evidence) -> Roof | None:
    """Reads by memory_stream on arrays beyond the L2, else memory clock x 2 x bus width; None if neither is known."""
    row = best_stream(evidence, "read")
    if row is not None:
        return Roof(row.value, "B/s", "memory_stream read", row)
    limit = ceiling("dram", evidence.gpu)
    return Roof(limit.value, "B/s", limit.source, None) if limit is not None else None


def compute_roof(evidence: Evidence, dtype: str) -> Roof | None:
    """The tensor cores' sustained rate of a type alone or its fastest product, whichever is more, else the ceiling at
    the highest clock. A product is more where the instructions that were measured are not this architecture's best."""
    found = rates(evidence, TENSORS, dtype=dtype.removesuffix("_fast"), load=SUSTAINED)
    row = max(found, key=lambda one: one.value, default=None)
    product = best_product(evidence, dtype)
    if row is not None and (product is None or product.value <= row.value):
        return Roof(row.value, row.metric.unit, f"tensor_ceiling {row.params.get('path')}, sustained", row)
    row = product
    if row is not None:
        return Roof(row.value, row.metric.unit, f"gemm_throughput size {row.params.get('size')}", row)
    limit = ceiling(f"gemm:{dtype}", evidence.gpu)
    return Roof(limit.value, limit.unit, limit.source, None) if limit is not None else None


class Shaped(NamedTuple):
    """A product of a model: what its work takes on the device, a call from Python, a call in a graph, and what holds it
    up by this run's own roofs; ``held`` is None where no roof is known."""

    row: Row
    bandwidth: Row | None
    call: Row | None
    graph: Row | None
    held: Held | None

    @property
    def operations(self) -> int:
        """Of one product, floating or integer."""
        work = self.row.measurement.work
        return work.flops or work.operations or 0

    @property
    def device_s(self) -> float:
        """What the work itself takes."""
        return self.operations / self.row.value

    @property
    def intensity(self) -> float | None:
        """Operations for each byte of operands and result: the roofline's horizontal axis."""
        moved = self.bandwidth.measurement.work.bytes if self.bandwidth is not None else None
        return self.operations / moved if moved else None

    @property
    def graph_factor(self) -> float | None:
        """How many times as fast a call is in a graph."""
        if self.call is None or self.graph is None or self.graph.value <= 0:
            return None
        return self.call.value / self.graph.value


def bound_of(evidence: Evidence, row: Row) -> Held | None:
    """What holds a shape up: "launch" where a call from Python takes longer than the work, else the roof under which
    its bytes or its operations would take longer: "bandwidth" or "compute"."""
    one = _shaped(evidence, row)
    return _held(one, bandwidth_roof(evidence), compute_roof(evidence, dtype_of(row)))


def shaped(evidence: Evidence) -> list[Shaped]:
    """Every product of a model that was measured, in the order of the run."""
    rows, memory = rates(evidence, SHAPES), bandwidth_roof(evidence)
    roofs = {dtype: compute_roof(evidence, dtype) for dtype in dict.fromkeys(dtype_of(row) for row in rows)}
    found = [_shaped(evidence, row) for row in rows]
    return [one._replace(held=_held(one, memory, roofs[dtype_of(one.row)])) for one in found]


def _shaped(evidence: Evidence, row: Row) -> Shaped:
    bandwidth, call, graph = (beside(evidence, row, name) for name in ("bandwidth", "call", "graph"))
    return Shaped(row, bandwidth, call, graph, None)


def _held(one: Shaped, memory: Roof | None, compute: Roof | None) -> Held | None:
    if one.call is not None and one.call.value > LAUNCHES_FROM * one.device_s:
        return "launch"
    if memory is None or compute is None or one.intensity is None or compute.unit != one.row.metric.unit:
        return None
    return "bandwidth" if one.intensity * memory.value < compute.value else "compute"


def bounds(evidence: Evidence) -> list[Finding]:
    """How many shapes are held up by what, and from how many rows on it changes."""
    found = [one for one in shaped(evidence) if one.held is not None]
    if not found:
        return []
    held = Counter(one.held for one in found)
    order: tuple[Held, ...] = ("launch", "bandwidth", "compute")
    title = ", ".join(f"{held[name]} {name}-bound" for name in order if held[name])
    words = [_group_words([one for one in found if one.held == name], name) for name in order if held[name]]
    roofs = [bandwidth_roof(evidence), *(compute_roof(evidence, dtype) for dtype in _types(found))]
    named = [f"{roof.name} {quantity(roof.value, roof.unit)}" for roof in roofs if roof is not None]
    return [
        Finding(
            rule="compute.shapes",
            severity="note",
            title=f"Of {counted(len(found), 'product')} of models: {title}",
            text=f"{' '.join(words)} By this run's own roofs: {listed(named)}.",
            threshold=(
                f"launch: a call from Python over {times(LAUNCHES_FROM)} the work on the device; else the roof under "
                "which it would take longer"
            ),
            rests_on=rests_on(*(one.row for one in found), *(roof.row for roof in roofs if roof is not None)),
            suite="compute",
        )
    ]


def _types(found: list[Shaped]) -> list[str]:
    return list(dict.fromkeys(dtype_of(one.row) for one in found))


def _group_words(found: list[Shaped], name: Held) -> str:
    numbers = [whole(one.row, "rows") for one in found]
    span = counted(min(numbers), "row") if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)} rows"
    if name == "compute":
        best = max(found, key=lambda one: one.row.value)
        return f"Compute-bound at {span}, up to {figure(best.row)}."
    if name == "bandwidth":
        rows = [one.bandwidth for one in found if one.bandwidth is not None]
        best_row = max(rows, key=lambda row: row.value, default=None)
        most = f", up to {figure(best_row)}" if best_row is not None else ""
        return f"Bandwidth-bound at {span}{most}: more rows cost little."
    return f"Launch-bound at {span}: the device waits for Python."


def launches(evidence: Evidence) -> list[Finding]:
    """Small products that are launches in disguise, and what a graph would give."""
    found = [
        (one, factor)
        for one in shaped(evidence)
        if one.held == "launch" and (factor := one.graph_factor) is not None and factor >= GRAPH_WORTH
    ]
    if not found:
        return []
    found.sort(key=lambda pair: -pair[1])
    worst, factor = found[0]
    words = [_launch_words(one, by) for one, by in found]
    return [
        Finding(
            rule="compute.launches",
            severity="advice",
            title=(
                f"{_launches(len(found))} in disguise among the products: a graph makes {_name(worst.row)} "
                f"{times(factor)} as fast"
            ),
            text=f"{some(words)}. Capture a step of the model in a graph, or take more rows at a time.",
            threshold=(
                f"a call from Python over {times(LAUNCHES_FROM)} its work on the device, and a graph at least "
                f"{times(GRAPH_WORTH)} as fast"
            ),
            rests_on=rests_on(*(row for one, _ in found for row in (one.row, one.call, one.graph))),
            suite="compute",
        )
    ]


def _launches(count: int) -> str:
    return "1 launch" if count == 1 else f"{count} launches"


def _name(row: Row) -> str:
    return f"{row.params.get('projection')} of {counted(whole(row, 'rows'), 'row')} ({dtype_of(row)})"


def _launch_words(one: Shaped, factor: float) -> str:
    call, graph = (as_time(row.value) if row is not None else "" for row in (one.call, one.graph))
    return f"{_name(one.row)} {call} a call, {graph} in a graph, {as_time(one.device_s)} of work ({times(factor)})"
