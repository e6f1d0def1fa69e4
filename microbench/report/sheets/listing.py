"""Lists as tables: the benchmarks, the axes of one of them (list), and the checks of this machine (doctor)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from microbench.core.bench import PRESETS, Benchmark
from microbench.core.model import Param
from microbench.report.document import SUITE_TITLES, Cell, Column, Table, Tone

if TYPE_CHECKING:
    from microbench.session.doctor import Check

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


def suite_tables(benchmarks: Iterable[Benchmark]) -> list[Table]:
    """A table for each suite with a line for each benchmark: its question, and whether it is in the core."""
    suites: dict[str, list[tuple[Cell, ...]]] = {}
    for benchmark in benchmarks:
        core, question = Cell("●" if benchmark.core else "", tone="good"), Cell(benchmark.about.partition("\n")[0])
        suites.setdefault(benchmark.suite, []).append((Cell(benchmark.name, tone="strong"), core, question))
    columns = (Column("benchmark", "left"), Column("core", "left"), Column("question", "left"))
    return [Table(SUITE_TITLES.get(suite, suite), "", columns, tuple(rows)) for suite, rows in suites.items()]


def axes_table(benchmark: Benchmark) -> Table:
    """The axes of one benchmark with the values of each preset; a value is named where it first appears."""
    rows = []
    for name, axis in benchmark.axes.items():
        rows.append((Cell(name, tone="first"), Cell(axis.about.rstrip("."), tone="quiet")))
        known: set[Param] = set()
        for preset in PRESETS:
            added = [value for value in axis.values(preset) if value not in known]
            known.update(added)
            if added:
                more = "also " if preset != "quick" and len(known) > len(added) else ""
                rows.append((Cell(""), Cell(f"{preset}: {more}{', '.join(map(str, added))}")))
    columns = (Column("axis", "left"), Column("what it is, and its values", "left"))
    cases = ", ".join(f"{preset} {len(benchmark.cases(preset))}" for preset in PRESETS)
    metrics = tuple(f"{metric.name} ({metric.unit}): {metric.about}" for metric in benchmark.metrics)
    notes = (f"cases: {cases}", *metrics)
    return Table(benchmark.name, benchmark.about.partition("\n")[0], columns, tuple(rows), notes)
