"""Writes a report as GitHub's Markdown for issues and wikis: findings open, tables folded, and text escaped."""

import re
from collections.abc import Iterable, Iterator, Sequence

from microbench.analysis.evidence import Finding
from microbench.core.units import plain
from microbench.report.document import GRADES, SEVERITY_MARKS, SPREAD, SPREAD_WITHIN, TRUST_MARKS, Bars, Report, Table
from microbench.report.tables import bars_table

LONGEST = 2000
# Markup of GitHub's Markdown; an underscore inside a word is not markup.
SPECIAL = re.compile(r"([\\`*\[\]|~#@])|((?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def to_markdown(report: Report) -> str:
    """The report's words and figures as Markdown, without curves and time lines."""
    return "\n".join(_document(report)).rstrip() + "\n"


def _document(report: Report) -> Iterator[str]:
    mark = f" ({report.mark})" if report.mark else ""
    yield from (f"# {safe(report.title)}{mark}", "")
    for banner in report.banners:
        yield f"> **{safe(banner.word)}**: {safe(banner.text)} {safe(banner.next_step)}".rstrip()
        yield ""
    yield from (f"- {safe(name)}: {safe(words)}" for name, words in report.facts)
    yield ""
    yield from _findings("What distorts this run", report.environment)
    for section in report.sections:
        yield from (f"## {safe(section.title)}{mark}", "")
        if section.verdict is not None:
            yield from (f"**{safe(section.verdict.title)}**", "")
        yield from _findings("What this means", section.findings)
        tables = [bars_table(one) if isinstance(one, Bars) else one for one in section.pictures]
        for table in (*tables, *(table for study in section.studies for table in study.tables)):
            if isinstance(table, Table):
                yield from _folded(table, mark)
    if report.problems is not None:
        yield from _folded(report.problems, mark)
    if report.grades:
        grades = "; ".join(f"{TRUST_MARKS[grade][0]} {grade}: {GRADES[grade]}" for grade in report.grades)
        yield from (f"± is {SPREAD}, {safe(SPREAD_WITHIN)}. {grades}.", "")
    yield from (safe(line) for line in report.footer)


def _findings(title: str, findings: Sequence[Finding]) -> Iterator[str]:
    if findings:
        yield from (f"{title}:", "")
        for finding in findings:
            words = f"{safe(finding.text)} {safe(finding.advice)}".strip()
            yield f"- {SEVERITY_MARKS[finding.severity]} **{safe(finding.title)}** {words}"
        yield ""


def _folded(table: Table, mark: str) -> Iterator[str]:
    yield from (f"<details><summary>{_as_html(table.title) or 'more of it'}{mark}</summary>", "")
    if table.question:
        yield from (safe(table.question), "")
    yield line_of(safe(column.title) for column in table.columns)
    yield line_of("---:" if column.align == "right" else ":---" for column in table.columns)
    for row in table.rows:
        signs = (TRUST_MARKS[cell.trust][0] if cell.trust is not None else "" for cell in row)
        texts = ((safe(cell.text), safe(cell.note), sign) for cell, sign in zip(row, signs, strict=True))
        yield line_of(" ".join(filter(None, words)) for words in texts)
    yield ""
    for note in table.notes:
        yield from (safe(note), "")
    yield from ("</details>", "")


def line_of(cells: Iterable[str]) -> str:
    """A row of a table; its cells are safe already."""
    return f"| {' | '.join(cells)} |"


def safe(text: str) -> str:
    """``text`` on one line; nothing in it is markup to Markdown or HTML."""
    return SPECIAL.sub(r"\\\1\2", _as_html(text))


def _as_html(text: str) -> str:
    """``text`` for a line of HTML, in which Markdown reads no markup."""
    return plain(text, LONGEST).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
