"""Lists as tables: the benchmarks with their axes (list), and the checks of this machine (doctor)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from microbench.core.model import BenchmarkInfo
from microbench.report.document import SUITE_TITLES, Cell, Column, Table, Tone
from microbench.report.tables import question

if TYPE_CHECKING:
    from microbench.run.doctor import Check

STATE_TONES: dict[str, Tone] = {"ok": "good", "note": "note", "warning": "warning", "problem": "problem"}


def checks_table(checks: Iterable[Check]) -> Table:
    """The results of the doctor's checks, each followed by its next step if it has one."""
    rows = []
    for check in checks:
        tone = STATE_TONES.get(check.state, "quiet")
        rows.append((Cell(check.state, tone=tone), Cell(check.name, tone="strong"), Cell(check.found)))
        if check.next_step:
            rows.append((Cell(""), Cell(""), Cell(f"→ {check.next_step}", tone="advice")))
    columns = tuple(Column(title, "left") for title in ("state", "what", "found"))
    return Table("What this machine can measure", "", columns, tuple(rows))


def suite_tables(infos: Iterable[BenchmarkInfo]) -> list[Table]:
    """A table for each suite: a row for each benchmark, followed by one for each of its axes with the values."""
    suites: dict[str, list[tuple[Cell, ...]]] = {}
    for info in infos:
        rows = suites.setdefault(info.suite, [])
        rows.append((Cell(info.name, tone="strong"), Cell(""), Cell(question(info))))
        for axis in info.axes:
            values = ", ".join(map(str, axis.values))
            about = Cell(f"{axis.about.rstrip('.')}: {values}", tone="quiet")
            rows.append((Cell(""), Cell(axis.name, tone="first"), about))
    columns = tuple(Column(title, "left") for title in ("benchmark", "axis", "question, or the axis and its values"))
    return [Table(SUITE_TITLES.get(suite, suite), "", columns, tuple(rows)) for suite, rows in suites.items()]
