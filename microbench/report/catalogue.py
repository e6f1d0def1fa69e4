"""What can be measured, as tables: suites, benchmarks with their questions, axes with their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from microbench.core.model import BenchmarkInfo
from microbench.report.document import Cell, Column, Table, Tone
from microbench.report.tables import question
from microbench.report.view import SUITE_TITLES

STATE_TONES: dict[str, Tone] = {"ok": "good", "note": "note", "warning": "warning", "problem": "problem"}


class Check(Protocol):
    """One thing the doctor looked at."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def found(self) -> str: ...
    @property
    def next_step(self) -> str | None: ...


def checks_table(checks: Iterable[Check]) -> Table:
    """What the doctor found, with the next step below each check that has one."""
    rows = []
    for check in checks:
        tone = STATE_TONES.get(check.state, "quiet")
        rows.append((Cell(check.state, tone=tone), Cell(check.name, tone="strong"), Cell(check.found)))
        if check.next_step:
            rows.append((Cell(""), Cell(""), Cell(f"→ {check.next_step}", tone="advice")))
    columns = tuple(Column(title, "left") for title in ("state", "what", "found"))
    return Table("What this machine can measure", "", columns, tuple(rows))


def tables(infos: Iterable[BenchmarkInfo]) -> list[Table]:
    """One table for each suite: a line for each benchmark, one below it for each axis with its values."""
    suites: dict[str, list[BenchmarkInfo]] = {}
    for info in infos:
        suites.setdefault(info.suite, []).append(info)
    columns = (
        Column("benchmark", "left"),
        Column("axis", "left"),
        Column("question, or the axis and its values", "left"),
    )
    return [
        Table(SUITE_TITLES.get(suite, suite), "", columns, tuple(row for info in members for row in _rows(info)))
        for suite, members in suites.items()
    ]


def _rows(info: BenchmarkInfo) -> Iterable[tuple[Cell, ...]]:
    yield Cell(info.name, tone="strong"), Cell(""), Cell(question(info))
    for axis in info.axes:
        values = ", ".join(str(value) for value in axis.values)
        yield Cell(""), Cell(axis.name, tone="first"), Cell(f"{axis.about.rstrip('.')}: {values}", tone="quiet")
