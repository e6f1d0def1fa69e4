"""Makes one HTML page of an answer: its facts, findings, pictures and tables, without the data of any run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import partial
from itertools import count

from microbench.analysis.evidence import Finding
from microbench.core.version import __version__
from microbench.report.document import Curve, Table, Tiles
from microbench.report.page.diagnosis import ONLY_OWN
from microbench.report.page.page import NOWHERE
from microbench.report.page.templates import WHOLE_WIDTH, environment, script, style


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
    program = script()
    # Only this script runs, and nothing is fetched or sent.
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode("ascii")
    return (
        environment()
        .get_template("sheet.html")
        .render(
            version=__version__,
            kind=kind,
            title=title,
            mark=mark,
            policy=f"{ONLY_OWN}; script-src 'sha256-{digest}'; {NOWHERE}",
            script=program,
            style=style(),
            contents=[("findings", "Findings"), ("pictures", "Pictures"), ("tables", "Tables")],
            blocks={},
            facts=facts,
            findings=findings,
            pictures=pictures,
            tables=tables,
            most_rests=0,
            whole_width=WHOLE_WIDTH,
            nowhere=lambda _name: None,
            next_id=partial(next, count()),
        )
    )
