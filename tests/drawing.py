"""A report as the terminal shows it, for tests of what is on a page."""

from __future__ import annotations

import io

from microbench.core.model import Run
from microbench.report.document import Report, Section
from microbench.report.sheets import view
from microbench.report.terminal import terminal


def drawn(shown: Run | Report, width: int, encoding: str = "utf-8", *, brief: bool = False) -> str:
    """The characters of a report, or of a run's report, on a page of that width."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    report = view.build(shown) if isinstance(shown, Run) else shown
    terminal.draw(report, terminal.open_console(stream, width=width), brief=brief)
    return raw.getvalue().decode(encoding)


def section_of(shown: Run | Report, suite: str) -> Section:
    """The section of a suite."""
    report = view.build(shown) if isinstance(shown, Run) else shown
    return next(section for section in report.sections if section.suite == suite)
