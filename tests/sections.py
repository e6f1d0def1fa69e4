"""What tests of reports share: the sections of a run, a report as a terminal shows it, and words of tables."""

import io
from functools import cache
from typing import TypeVar

from changed_run import bundled, in_one_round
from msgspec.structs import replace
from rich.cells import cell_len

from microbench.core.model import Run
from microbench.report.document import Report, Section, Study, Table
from microbench.report.sheets import view
from microbench.report.terminal import terminal
from microbench.report.terminal.layout import Drawn

Value = TypeVar("Value")


def some(value: Value | None) -> Value:
    assert value is not None
    return value


def section(shown: Run | Report, suite: str) -> Section:
    report = view.build(shown) if isinstance(shown, Run) else shown
    return next(one for one in report.sections if one.suite == suite)


def study(shown: Run | Report, benchmark: str) -> Study:
    report = view.build(shown) if isinstance(shown, Run) else shown
    return next(one for section in report.sections for one in section.studies if one.benchmark == benchmark)


@cache
def suite_report(suite: str) -> Report:
    """The report of the bundled run's first round with the section of that suite alone."""
    report = view.build(in_one_round(bundled("launch", suite) if suite == "graph" else bundled(suite)))
    return replace(report, sections=(section(report, suite),))


def drawn(shown: Run | Report, width: int = 120, encoding: str = "utf-8", *, brief: bool = False) -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    report = view.build(shown) if isinstance(shown, Run) else shown
    terminal.draw(report, terminal.open_console(stream, width=width), brief=brief)
    return raw.getvalue().decode(encoding)


def widest(text: str) -> int:
    return max(cell_len(line) for line in text.splitlines())


def lines_of(drawing: Drawn) -> list[str]:
    return ["".join(text for text, _ in line) for line in drawing]


def headings(table: Table) -> list[str]:
    return [column.title for column in table.columns]


def cells(table: Table | None, first: str | int = 0) -> list[str]:
    """The words of a row, given by its number or its first cell; a note follows its figure."""
    rows = some(table).rows
    row = rows[first] if isinstance(first, int) else next(row for row in rows if row[0].text == first)
    return [f"{cell.text} {cell.note}".strip() for cell in row]
