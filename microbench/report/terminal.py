"""Draws a Report on a terminal, in a pipe or as SVG: layout, colour, and nothing else. Text is data, never markup."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO

from rich.box import ASCII, ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table as Grid
from rich.text import Text

from microbench.errors import MicrobenchError
from microbench.explain.finding import Finding, Severity
from microbench.report import canvas, charts
from microbench.report.document import (
    Bars,
    Cell,
    Column,
    Curve,
    Histogram,
    Picture,
    Report,
    Section,
    Study,
    Table,
    Tone,
)
from microbench.report.view import GRADES
from microbench.text import plain, to_ascii

WIDEST = 120
NARROWEST = 40
BESIDE_WIDTH = 100
CURVE_ROWS, SMALL_CURVE_ROWS, SMALL_CURVE_WIDTH = 14, 8, 44
WIDEST_SMALL_CURVE = 64
LONGEST_CELL = 200

STYLES: dict[Tone, str] = {
    "plain": "", "strong": "bold", "quiet": "dim", "good": "green", "note": "cyan", "advice": "yellow",
    "warning": "bold yellow", "problem": "bold red", "first": "cyan", "second": "green", "third": "magenta",
}  # fmt: skip
TRUST_MARKS = {
    "stable": ("●", "green"), "steady": ("◐", "cyan"), "noisy": ("○", "yellow"), "throttled": ("▼", "red"),
    "single": ("◌", "yellow"), "below floor": ("◇", "yellow"), "unverified": ("?", "red"),
}  # fmt: skip
SEVERITY_MARKS: dict[Severity, str] = {"good": "✓", "note": "•", "advice": "→", "warning": "▲", "problem": "✗"}


class QuietConsole(Console):
    """A console that leaves a reader who went away (`| head`) to its caller."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError."""
        raise BrokenPipeError


def open_console(stream: IO[str] | None = None, width: int | None = None) -> Console:
    """A console for ``stream`` (standard output): as wide as its terminal; NO_COLOR and pipes have no colour."""
    return QuietConsole(file=stream or sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def draw(report: Report, console: Console, *, brief: bool = False) -> None:
    """The whole report; ``brief`` leaves out the tables."""
    Painter(console).report(report, brief)


def draw_tables(tables: Iterable[Table], console: Console) -> None:
    """Tables under their titles."""
    painter = Painter(console)
    for table in tables:
        painter.print(Text(), painter.titled(table.title, table.question, ""), painter.table(table))


def svg(report: Report, *, width: int = WIDEST, brief: bool = False) -> str:
    """The report as an SVG picture of a terminal."""
    console = Console(
        file=io.StringIO(), record=True, width=width, force_terminal=True, color_system="truecolor", highlight=False,
        markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    Painter(console, fine=True).report(report, brief)
    # Rich fetches a font from the web; any monospaced one will do, and a picture in a README should ask nobody.
    drawn = re.sub(r"@font-face \{.*?\n    \}", "", console.export_svg(title="microbench"), flags=re.DOTALL)
    return drawn.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")


def tell_error(error: MicrobenchError, console: Console) -> None:
    """An error's two lines: its cause, and the next step."""
    painter = Painter(console)
    console.print(painter.text("error: ", "problem") + painter.text(error.cause))
    console.print(painter.text("next:  ", "note") + painter.text(error.next_step))


class Painter:
    """Turns the pieces of a report into rich's. ``fine`` says whether the output can show more than ASCII."""

    def __init__(self, console: Console, *, fine: bool | None = None) -> None:
        self.console = console
        self.fine = not console.options.ascii_only if fine is None else fine
        self.width = max(min(console.width, WIDEST), NARROWEST)

    def text(self, value: str, tone: Tone = "plain", longest: int = 2000) -> Text:
        """``value`` made safe to show, in the style of its tone."""
        safe = plain(value, longest)
        return Text(safe if self.fine else to_ascii(safe), style=STYLES[tone])

    def print(self, *things: RenderableType) -> None:
        """Print within the report's width."""
        for thing in things:
            self.console.print(thing, width=self.width)

    # -- the whole ---------------------------------------------------------------------------------------------

    def report(self, report: Report, brief: bool) -> None:
        """Banners and facts, then each section, then what was not measured."""
        for banner in report.banners:
            body = self.text(f"{banner.word}: ", banner.tone) + self.text(banner.text)
            if banner.next_step:
                body = Text("\n").join((body, self.text("next: ", "note") + self.text(banner.next_step)))
            box = ROUNDED if self.fine else ASCII
            self.print(Panel(body, box=box, border_style=STYLES[banner.tone], width=self.width))
        self.print(self._facts(report))
        self._findings("What distorts this run", report.environment, report.mark, notes=False)
        for section in report.sections:
            self._section(section, report.mark, brief)
        if report.problems is not None:
            self.print(Text(), self.titled(report.problems.title, "", report.mark), self.table(report.problems))
        if not brief:
            self._legend(report)
        for line in report.footer:
            self.print(self.text(line, "quiet"))

    def _facts(self, report: Report) -> Panel:
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_column(overflow="fold")
        for name, words in report.facts:
            grid.add_row(self.text(name, "quiet"), self.text(words, longest=LONGEST_CELL))
        title = self.text(f" {report.title} ", "strong", 60)
        if report.mark:
            title = title + self.text(f"{report.mark} ", "warning")
        return Panel(grid, title=title, title_align="left", box=ROUNDED if self.fine else ASCII, width=self.width)

    def _section(self, section: Section, mark: str, brief: bool) -> None:
        title = self.text(section.title, "strong", 90)
        self.print(Text(), Rule(title, align="left", characters="━" if self.fine else "=", style="cyan"))
        for picture in section.pictures:
            heading = self.titled(picture.title, picture.about, mark)
            self.print(Text(), heading, self.picture(picture, self.width, CURVE_ROWS))
        for study in section.studies if not brief else ():
            self._study(study, mark)
        self._findings(f"What this means ({section.suite})", section.findings, mark)

    def _legend(self, report: Report) -> None:
        words = self.text("± is half the 95 % interval of the median. ", "quiet")
        for grade in report.grades:
            sign, style = TRUST_MARKS[grade]
            words += self._symbol(sign, style) + self.text(f" {grade}: {GRADES[grade]}.  ", "quiet")
        self.print(Text(), words)

    def titled(self, title: str, about: str, mark: str) -> RenderableType:
        """A title with the report's mark, and quietly what it is about."""
        line = self.text(title, "strong", LONGEST_CELL)
        if mark:
            line = line + Text("  ") + self.text(mark, "warning")
        return Group(line, self.text(about, "quiet", LONGEST_CELL)) if about else line

    def _symbol(self, sign: str, style: str) -> Text:
        return Text(sign if self.fine else to_ascii(sign), style=style)

    # -- tables ------------------------------------------------------------------------------------------------

    def _study(self, study: Study, mark: str) -> None:
        first = study.tables[0]
        self.print(Text(), self.titled(first.title, first.question, mark))
        drawn_tables = [part for table in study.tables for part in (Text(), self.table(table))][1:]
        tables = Group(*drawn_tables)
        if study.curve is None:
            self.print(tables)
            return
        heading = self.text(study.curve.title, "quiet")
        wanted = Measurement.get(self.console, self.console.options.update(width=self.width), tables).maximum
        beside = min(self.width - wanted - 2, WIDEST_SMALL_CURVE)
        if self.width >= BESIDE_WIDTH and beside >= SMALL_CURVE_WIDTH:
            rows = max(SMALL_CURVE_ROWS, min(sum(len(table.rows) for table in study.tables), CURVE_ROWS))
            pair = Grid.grid(padding=(0, 2))
            pair.add_row(tables, Group(heading, self.picture(study.curve, beside, rows)))
            self.print(pair)
        else:
            drawn = self.picture(study.curve, min(self.width, WIDEST_SMALL_CURVE) - 1, SMALL_CURVE_ROWS)
            self.print(tables, Padding(Group(heading, drawn), (0, 0, 0, 1), expand=False))

    def table(self, table: Table) -> RenderableType:
        """A table in as many of its columns as fit; its notes below."""
        kept = list(range(len(table.columns)))
        grid = self._grid(table, kept)
        while self._width(grid) > self.width and any(table.columns[index].drop for index in kept):
            kept.remove(max(kept, key=lambda index: table.columns[index].drop))
            grid = self._grid(table, kept)
        notes = [self.text(f" {note}", "quiet", 400) for note in table.notes]
        return Group(grid, *notes) if notes else grid

    def _width(self, grid: Grid) -> int:
        return Measurement.get(self.console, self.console.options.update(width=1000), grid).maximum

    def _grid(self, table: Table, kept: Sequence[int]) -> Grid:
        grid = Grid(box=SIMPLE_HEAD if self.fine else ASCII, header_style="dim", border_style="dim", padding=(0, 1),
                    collapse_padding=True, pad_edge=self.fine, show_edge=False)  # fmt: skip
        for index in kept:
            column = table.columns[index]
            grid.add_column(self.text(column.title), justify=column.align, overflow="fold")
        widths = [max((len(row[index].note) for row in table.rows), default=0) for index in kept]
        for row in table.rows:
            grid.add_row(*(self.cell(row[index], width) for index, width in zip(kept, widths, strict=True)))
        return grid

    def cell(self, cell: Cell, note_width: int = 0) -> Text:
        """A cell's text, its note padded to ``note_width`` so that figures stand under each other, its grade's mark."""
        drawn = self.text(cell.text, cell.tone, LONGEST_CELL)
        if cell.note:
            drawn = drawn + Text(" ") + self.text(cell.note.ljust(note_width), "quiet", LONGEST_CELL)
        if cell.trust is not None:
            sign, style = TRUST_MARKS.get(cell.trust, ("?", "red"))
            drawn = drawn + Text(" ") + self._symbol(sign, style)
        return drawn

    # -- pictures ----------------------------------------------------------------------------------------------

    def picture(self, picture: Picture, width: int, rows: int) -> RenderableType:
        """A picture in at most ``width`` characters; ``rows`` is a curve's height."""
        if isinstance(picture, Bars):
            return self._bars(picture, width)
        if isinstance(picture, Curve):
            return self._pieces(canvas.curve(picture, width, rows, fine=self.fine))
        if isinstance(picture, Histogram):
            return self._pieces(charts.histogram(picture, width, fine=self.fine))
        return self._pieces(charts.time_line(picture, width))

    def _pieces(self, drawn: charts.Drawn) -> Text:
        lines = []
        for pieces in drawn:
            line = Text(no_wrap=True, overflow="crop")
            for text, tone in pieces:
                line.append_text(self.text(text, tone))
            lines.append(line)
        return Text("\n").join(lines)

    def _bars(self, bars: Bars, width: int) -> RenderableType:
        columns = (Column("", "left"), Column("", "left"), *bars.columns)
        rows = tuple((Cell(one.label), Cell(""), *one.cells) for one in bars.bars)
        table = Table("", "", columns, rows)
        kept = list(range(len(columns)))
        while self._width(self._grid(table, kept)) > width - 20 and any(columns[index].drop for index in kept):
            kept.remove(max(kept, key=lambda index: columns[index].drop))
        room = max(width - self._width(self._grid(table, kept)) - 1, 8)
        largest = max((max(one.value, one.beyond or 0.0) for one in bars.bars), default=0.0)
        grid = Grid.grid(padding=(0, 1))
        for index in kept:
            grid.add_column(justify=columns[index].align, no_wrap=True, overflow="ellipsis" if self.fine else "crop")
        widths = [max(len(row[index].note) for row in rows) for index in kept]
        if any(columns[index].title for index in kept):
            grid.add_row(*(self.text(columns[index].title, "quiet") for index in kept))
        for one, row in zip(bars.bars, rows, strict=True):
            cells = [self.cell(row[index], wide) for index, wide in zip(kept, widths, strict=True)]
            cells[1] = self._pieces([charts.bar(one, largest, room, fine=self.fine)])
            grid.add_row(*cells)
        return Group(grid, *(self.text(note, "quiet") for note in bars.notes))

    # -- findings ----------------------------------------------------------------------------------------------

    def _findings(self, title: str, found: Iterable[Finding], mark: str, *, notes: bool = True) -> None:
        """Each finding's title, text and rule; without ``notes`` those that only inform keep to their title."""
        shown = list(found)
        if shown:
            self.print(Text(), self.titled(title, "", mark))
        for finding in shown:
            tone: Tone = finding.severity
            head = self._symbol(f" {SEVERITY_MARKS[finding.severity]} ", STYLES[tone])
            self._indented(head + self.text(finding.title, "strong"), 3, first=0)
            if notes or finding.severity not in ("good", "note"):
                rule = self.text(f" [{finding.rule}: {finding.threshold}]", "quiet")
                self._indented(self.text(finding.text) + rule, 3)

    def _indented(self, text: Text, indent: int, first: int | None = None) -> None:
        """Text in lines that begin ``indent`` in (the first one ``first``), with nothing at their ends."""
        for index, line in enumerate(text.wrap(self.console, self.width - indent)):
            line.rstrip()
            blank = indent if index or first is None else first
            self.print(Text(" " * blank) + line)
