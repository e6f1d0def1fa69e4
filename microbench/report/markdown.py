"""A report as Markdown, for issues and wikis: findings in the open, tables folded away. Text is data, never markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from microbench.analysis.evidence import Finding
from microbench.core.units import plain
from microbench.report.document import (
    SEVERITY_MARKS,
    TRUST_MARKS,
    UNKNOWN_MARK,
    Bars,
    Cell,
    Column,
    Picture,
    Report,
    Section,
    Table,
)
from microbench.report.view import GRADES

LONGEST = 2000
# What GitHub's Markdown would read as more than text; underscores inside a word are none of it.
SPECIAL = re.compile(r"([\\`*\[\]|~#@])|((?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def to_markdown(report: Report) -> str:
    """The report's words and figures in GitHub's Markdown; curves and time lines are left to the terminal."""
    return "\n".join(_document(report)).rstrip() + "\n"


def _document(report: Report) -> Iterator[str]:
    mark = f" ({report.mark})" if report.mark else ""
    yield f"# {_safe(report.title)}{mark}"
    yield ""
    for banner in report.banners:
        yield f"> **{_safe(banner.word)}**: {_safe(banner.text)} {_safe(banner.next_step)}".rstrip()
        yield ""
    yield from (f"- {_safe(name)}: {_safe(words)}" for name, words in report.facts)
    yield ""
    yield from _findings("What distorts this run", report.environment)
    for section in report.sections:
        yield from _section(section, mark)
    if report.problems is not None:
        yield from _folded(report.problems, mark)
    if report.grades:
        grades = "; ".join(
            f"{TRUST_MARKS.get(grade, UNKNOWN_MARK)[0]} {grade}: {GRADES[grade]}" for grade in report.grades
        )
        yield f"± is half the 95 % interval of the median. {grades}."
        yield ""
    yield from (_safe(line) for line in report.footer)


def _section(section: Section, mark: str) -> Iterator[str]:
    yield f"## {_safe(section.title)}{mark}"
    yield ""
    if section.verdict is not None:
        yield f"**{_safe(section.verdict.title)}**"
        yield ""
    yield from _findings("What this means", section.findings)
    tables = [table for picture in section.pictures if (table := _as_table(picture)) is not None]
    for table in (*tables, *(table for study in section.studies for table in study.tables)):
        yield from _folded(table, mark)


def _as_table(picture: Picture) -> Table | None:
    """Pictures that are rows of figures; what the others show stands in the tables of their benchmarks."""
    if isinstance(picture, Bars):
        rows = tuple((Cell(bar.label), *bar.cells) for bar in picture.bars)
        return Table(picture.title, picture.about, (Column("", "left"), *picture.columns), rows, picture.notes)
    return picture if isinstance(picture, Table) else None


def _findings(title: str, found: Sequence[Finding]) -> Iterator[str]:
    if found:
        yield f"{title}:"
        yield ""
        for one in found:
            words = f"{_safe(one.text)} {_safe(one.advice)}".strip()
            yield f"- {SEVERITY_MARKS[one.severity]} **{_safe(one.title)}** {words}"
        yield ""


def _folded(table: Table, mark: str) -> Iterator[str]:
    yield f"<details><summary>{_as_html(table.title) or 'more of it'}{mark}</summary>"
    yield ""
    if table.question:
        yield _safe(table.question)
        yield ""
    yield _line(_safe(column.title) for column in table.columns)
    yield _line("---:" if column.align == "right" else ":---" for column in table.columns)
    yield from (_line(_cell(cell) for cell in row) for row in table.rows)
    yield ""
    for note in table.notes:
        yield _safe(note)
        yield ""
    yield "</details>"
    yield ""


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    sign = TRUST_MARKS.get(cell.trust, UNKNOWN_MARK)[0] if cell.trust is not None else ""
    return " ".join(filter(None, (_safe(cell.text), _safe(cell.note), sign)))


def _safe(text: str) -> str:
    """``text`` on one line, nothing in it markup to Markdown or HTML."""
    return SPECIAL.sub(r"\\\1\2", _as_html(text))


def _as_html(text: str) -> str:
    """``text`` for a line of HTML, in which Markdown reads nothing."""
    return plain(text, LONGEST).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
