"""The figures that a topic's text may name: from which rows each is made, and which benchmark gives a missing one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec

from microbench.explain.evidence import Evidence, rests_on
from microbench.stats import Row
from microbench.units import quantity

Kind = Literal["measured", "computed", "parameter", "reported"]
Shown = Callable[[float], str]


class Figure(msgspec.Struct, frozen=True):
    """A number as a text names it.

    ``kind``: the value of one row (then ``row`` is that), computed from rows, a parameter of rows, or what the machine
    reports of itself. ``what`` it is in words, ``origin`` where it comes from: benchmark and metric, or how it was
    computed. ``value`` is in its SI unit. ``rests_on`` lists rows as "case-id metric", and facts by their names.
    """

    slot: str
    text: str
    what: str
    value: float
    kind: Kind
    origin: str
    rests_on: tuple[str, ...]
    row: Row | None = None


Figures = Mapping[str, Figure]


class Gathering:
    """Figures by slot, and for each that a run lacks the benchmark that measures it."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.figures: dict[str, Figure] = {}
        self.lacking: dict[str, str] = {}

    def measured(self, slot: str, what: str, benchmark: str, metric: str, /, **params: int | str) -> None:
        """The row of a benchmark, metric and parameters."""
        self.row(slot, what, self.evidence.row(benchmark, metric, **params), benchmark)

    def row(self, slot: str, what: str, row: Row | None, benchmark: str) -> None:
        """A row that was looked for; ``benchmark`` gives it where there is none."""
        if row is None or not row.value > 0:
            self.lacking[slot] = benchmark
            return
        text = quantity(row.value, row.metric.unit)
        origin = f"{row.benchmark} {row.metric.name}"
        self.figures[slot] = Figure(slot, text, what, row.value, "measured", origin, rests_on(row), row)

    def computed(
        self, slot: str, what: str, how: str, shown: Shown, compute: Callable[..., float | None], *inputs: str
    ) -> None:
        """What ``compute`` makes of other slots' values, left out where it makes nothing of them."""
        unknown = [name for name in inputs if name not in self.figures]
        if unknown:
            self._lacks(slot, unknown)
            return
        used = [self.figures[name] for name in inputs]
        value = compute(*(figure.value for figure in used))
        if value is not None and math.isfinite(value):
            rests = tuple(dict.fromkeys(row for figure in used for row in figure.rests_on))
            self.figures[slot] = Figure(slot, shown(value), what, value, "computed", how, rests)

    def fitted(
        self, slot: str, what: str, how: str, shown: Shown, value: float | None, found: Sequence[Row], benchmark: str
    ) -> None:
        """A number that takes many rows."""
        if value is None or not math.isfinite(value):
            self.lacking[slot] = benchmark
            return
        self.figures[slot] = Figure(slot, shown(value), what, value, "computed", how, rests_on(*found))

    def parameter(self, slot: str, what: str, value: float | None, shown: Shown, benchmark: str, name: str) -> None:
        """A parameter of rows that a benchmark gives; ``value`` is None where there are none."""
        if value is None:
            self.lacking[slot] = benchmark
            return
        origin = f"{benchmark} {name}"
        self.figures[slot] = Figure(slot, shown(value), what, value, "parameter", origin, (origin,))

    def reported(
        self, slot: str, what: str, value: float | None, shown: Shown, *names: str, benchmark: str = ""
    ) -> None:
        """What the machine says of itself, by these facts; ``benchmark`` asks for it where it is unknown."""
        if value is not None:
            self.figures[slot] = Figure(slot, shown(value), what, value, "reported", ", ".join(names), names)
        elif benchmark:
            self.lacking[slot] = benchmark

    def _lacks(self, slot: str, unknown: Sequence[str]) -> None:
        benchmark = next((self.lacking[name] for name in unknown if name in self.lacking), None)
        if benchmark is not None:
            self.lacking[slot] = benchmark


def in_unit(unit: str) -> Shown:
    """A value of that unit as people read it."""
    return partial(quantity, unit=unit)


def count(value: float) -> str:
    """A count."""
    return f"{value:.0f}"


def word(text: str) -> Shown:
    """A value that is a word and no number."""
    return lambda _: text


def counted(one: str, many: str) -> Shown:
    """A count with its noun: "1 replay", "4 replays"."""
    return lambda value: f"{value:.0f} {one if value == 1 else many}"


def difference(value: float, other: float) -> float:
    """value − other."""
    return value - other


def ratio(value: float, other: float) -> float | None:
    """value / other."""
    return value / other if other else None


def product(value: float, other: float) -> float:
    """value × other."""
    return value * other


def total(*values: float) -> float:
    """Their sum."""
    return sum(values)
