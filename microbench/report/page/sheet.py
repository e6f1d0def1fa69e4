"""Makes one HTML page of an answer: its facts, findings, pictures and tables, without the data of any run."""

from collections.abc import Sequence

from microbench.analysis.evidence import Finding
from microbench.report.document import Curve, Table, Tiles
from microbench.report.page.templates import environment, page_context


def build(
    kind: str,
    title: str,
    mark: str,
    facts: Sequence[tuple[str, str]],
    findings: Sequence[Finding],
    pictures: Sequence[Curve | Tiles],
    tables: Sequence[Table],
) -> str:
    """The page. ``kind`` is a line above the title that says what the page is about; ``mark`` is SIMULATED or ""."""
    contents = [("findings", "Findings"), ("pictures", "Pictures"), *([("tables", "Tables")] if tables else [])]
    return (
        environment()
        .get_template("sheet.html")
        .render(
            page_context(), kind=kind, title=title, mark=mark, contents=contents, blocks={}, facts=facts,
            findings=findings, pictures=pictures, tables=tables,
        )
    )  # fmt: skip
