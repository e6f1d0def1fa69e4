"""What tests of the page share: pages of invented runs, a figure of their own, and what is inside a page."""

import base64
import gzip
import re
from collections.abc import Sequence
from html.parser import HTMLParser

from make_run import failed, make_run, measurement, outcome, skipped
from msgspec.structs import replace

from microbench.analysis.evidence import evidence_by_device
from microbench.core.model import Run
from microbench.report.document import Bar, Bars, Cell, Column, Table
from microbench.report.figures.figure import Figure, Panel
from microbench.report.page.page import Page, Subject, build
from microbench.report.sheets import view

CODE = (
    "<script>window.broken=1</script>", '"><img src=x onerror=window.broken=1>',
    "</script></textarea></style><svg onload=window.broken=1>", "{{ 7*7 }}{% for x in y %}", "'; window.broken=1; //",
)  # fmt: skip
HOSTILE = (*CODE, "\u202eevil\u200f\u2066\u2028\u2029", "&lt;b&gt; &amp; &#x3c;", "x" * 300_000)
VOID = frozenset({"meta", "input", "br", "link", "img"})


def figure(words: Sequence[str] = ("one", "two")) -> Figure:
    """A small figure that no run has, with a bar for each word."""
    bars = tuple(Bar(word, index + 1.0, None, (Cell(str(index + 1)),)) for index, word in enumerate(words))
    picture = Bars("Small", "about it", (Column("count"),), bars)
    rows = tuple((Cell(bar.label), *bar.cells) for bar in bars)
    table = Table("Small", "", (Column("what", "left"), Column("count")), rows)
    return Figure(
        name="small", title=words[0], conclusions=(f"{words[0]} comes first",), about="about it", sources=(words[-1],),
        panels=(Panel(picture),), legend=(), tables=(table,), pictures=(),
    )  # fmt: skip


def hostile_run(text: str) -> Run:
    """A run that has this text wherever a person, a device or a file can put one."""
    params: dict[str, int | str] = {"what": text}
    one = outcome("launch_cold", [measurement("seconds", 0.1, verified=text)], **params)
    run = make_run(gpu_name=text, extra=[skipped(reason=text), failed(text), one])
    infos = tuple(replace(info, title=text, about=text) for info in run.benchmarks)
    where = replace(run.sessions[0].environment, driver_version=text, packages={text: text}, no_gpu_reason=text)
    settings = replace(run.sessions[0].settings, select=(text,), device=text)
    session = replace(
        run.sessions[0], environment=where, settings=settings, tool_version=text, commit=text, started_at=text
    )
    return replace(run, benchmarks=infos, run_id=text, sessions=(session,))


def page_of(*runs: Run, figures: Sequence[Figure] = (), most_bytes: int = 3_000_000) -> Page:
    subjects = [Subject(run.run_id, run, evidence_by_device(run), view.build(run), view.screen(run)) for run in runs]
    return build(subjects, figures, most_bytes=most_bytes)


class Parsed(HTMLParser):
    """A page taken apart as a browser would: its elements, and what stands in those that hold no elements."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> at {self.getpos()} closes {self.open[-1:]}")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


def carried(html: str, name: str) -> bytes:
    found = re.search(f'<script type="text/plain" id="packed-{name}">([A-Za-z0-9+/=]*)</script>', html)
    return gzip.decompress(base64.b64decode(found[1]))
