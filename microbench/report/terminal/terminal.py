"""Draws a Report on a terminal, in a pipe or as SVG: layout, colour, and nothing else. Text is data, never markup."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Iterator
from typing import IO

from rich.box import ASCII, ROUNDED, SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.segment import Segment, Segments
from rich.table import Table as Grid
from rich.text import Text

from microbench.analysis.evidence import Finding
from microbench.core.errors import MicrobenchError
from microbench.core.units import BEFORE_UNIT, plain, to_ascii
from microbench.report.document import (
    SEVERITY_MARKS,
    STYLES,
    TRUST_MARKS,
    Bars,
    Cell,
    Curve,
    Histogram,
    Picture,
    Prose,
    Report,
    Section,
    Stacks,
    Study,
    Table,
    Tone,
    Way,
)
from microbench.report.terminal import charts, curves
from microbench.report.terminal.charts import Drawn, Widths, fitted, packed
from microbench.report.view import GRADES

# What the terminal makes of pieces and lines: rich's segments, laid out already. Text is data, never markup.


GLUE = "\ue000"  # takes one place, as the blank that it stands for, and no line is broken at it


class Lines:
    """Lines of pieces as they are, ``width`` characters wide."""

    def __init__(self, lines: Drawn, width: int) -> None:
        self._lines = lines
        self._width = width

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self._width, self._width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        if console.color_system is None:  # no style shows, and a line is one piece
            for line in self._lines:
                yield Segment("".join([text for text, _ in line]))
                yield Segment.line()
            return
        styles = {tone: console.get_style(style) if style else None for tone, style in STYLES.items()}
        for line in self._lines:
            yield from (Segment(text, styles[tone]) for text, tone in line if text)
            yield Segment.line()


def is_simple(lines: Drawn) -> bool:
    """Whether every character takes one place."""
    return all(cell_len(character) == 1 for character in {one for line in lines for text, _ in line for one in text})


def trimmed(line: list[Segment]) -> list[Segment]:
    """A line without the blanks at its end."""
    kept = list(line)
    while kept and not kept[-1].text.rstrip():
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
    return kept


def wrapped(text: Text, width: int, console: Console) -> Iterator[Text]:
    """The text in lines of that width, with nothing at their ends; a number and its unit stay together."""
    glued = text.copy()
    glued.plain = BEFORE_UNIT.sub(GLUE, text.plain)
    for line in glued.wrap(console, width):
        line.plain = line.plain.replace(GLUE, " ")
        line.rstrip()
        yield line


WIDEST = 120
NARROWEST = 40
BESIDE_WIDTH = 100
CURVE_ROWS, SMALL_CURVE_ROWS, SMALL_CURVE_WIDTH = 14, 8, 44
WIDEST_SMALL_CURVE = 64
LONGEST_CELL = 400
# The panel's two edges with a blank each, and what lies between its columns.
AROUND_FACTS = 6


class QuietConsole(Console):
    """A console that leaves a reader who went away (`| head`) to its caller."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError."""
        raise BrokenPipeError


def open_console(stream: IO[str] | None = None, width: int | None = None) -> Console:
    """A console for ``stream`` (standard output): as wide as its terminal; NO_COLOR and pipes have no colour."""
    file = stream or sys.stdout
    if isinstance(file, io.TextIOWrapper):
        file.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows a question mark, never a traceback
    console = QuietConsole(file=file, width=width, highlight=False, markup=False, emoji=False)
    if console.width < 1:  # COLUMNS=0: rich would draw nothing at all
        console.width = NARROWEST
    return console


def draw(report: Report, console: Console, *, brief: bool = False, why: bool = False) -> None:
    """Draw the whole report; ``brief`` leaves out the tables, ``why`` adds the rule of each finding."""
    Painter(console, why=why).report(report, brief)


def draw_tables(tables: Iterable[Table], console: Console) -> None:
    """Tables under their titles."""
    painter = Painter(console)
    for table in tables:
        painter.print(Text(), painter.titled(table.title, table.question, ""), painter.table(table))


def svg(report: Report, *, width: int = WIDEST, brief: bool = False, why: bool = False) -> str:
    """The report as an SVG picture of a terminal."""
    console = Console(
        file=io.StringIO(), record=True, width=width, force_terminal=True, color_system="truecolor", highlight=False,
        markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    Painter(console, fine=True, why=why).report(report, brief)
    # Rich fetches a font from the web; any monospaced one will do, and a picture in a README should ask nobody.
    drawn = re.sub(r"@font-face \{.*?\n    \}", "", console.export_svg(title="microbench"), flags=re.DOTALL)
    return drawn.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")


def tell(lines: Iterable[str], console: Console) -> None:
    """Quiet lines, however long each on one: paths and commands are there to be copied."""
    painter = Painter(console)
    for line in lines:
        console.print(painter.text(line, "quiet"), soft_wrap=True)


def tell_error(error: MicrobenchError, console: Console) -> None:
    """An error's two lines: its cause, and the next step."""
    painter = Painter(console)
    console.print(painter.text("error: ", "problem") + painter.text(error.cause), soft_wrap=True)
    console.print(painter.text("next:  ", "note") + painter.text(error.next_step), soft_wrap=True)


class Painter:
    """Turns the pieces of a report into rich's. ``fine`` says whether the output can show more than ASCII."""

    def __init__(self, console: Console, *, fine: bool | None = None, why: bool = False) -> None:
        self.console = console
        self.why = why
        self.fine = not console.options.ascii_only if fine is None else fine
        self.width = max(min(console.width, WIDEST), NARROWEST)

    def text(self, value: str, tone: Tone = "plain", longest: int = 2000) -> Text:
        """``value`` made safe to show, in the style of its tone."""
        return Text(self.shown(value, longest), style=STYLES[tone])

    def shown(self, value: str, longest: int = LONGEST_CELL) -> str:
        """What the page shows of a text."""
        safe = plain(value, longest)
        return safe if self.fine else to_ascii(safe)

    def print(self, *things: RenderableType) -> None:
        """Print within the report's width; a line ends with its last character, not with the blanks that pad cells."""
        options = self.console.options.update(width=min(self.width, self.console.width))
        for thing in things:
            lines = self.console.render_lines(thing, options, pad=False)
            self.console.print(Segments([part for line in lines for part in (*trimmed(line), Segment.line())]))

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
        names = max((cell_len(name) for name, _ in report.facts), default=0)
        for name, words in report.facts:
            lines = packed(plain(words, LONGEST_CELL), self.width - names - AROUND_FACTS, cell_len)
            grid.add_row(self.text(name, "quiet"), Text("\n").join(Text(self.shown(line)) for line in lines))
        title = self.text(f" {report.title} ", "strong", 60)
        if report.mark:
            title = title + self.text(f"{report.mark} ", "warning")
        return Panel(grid, title=title, title_align="left", box=ROUNDED if self.fine else ASCII, width=self.width)

    def _section(self, section: Section, mark: str, brief: bool) -> None:
        title = self.text(section.title, "strong", 90)
        self.print(Text(), Rule(title, align="left", characters="━" if self.fine else "=", style="cyan"))
        if section.verdict is not None:
            self._headline(section.verdict, mark)
        for picture in section.pictures:
            about = picture.question if isinstance(picture, Table) else picture.about
            heading = self.titled(picture.title, about, mark)
            self.print(Text(), heading, self.picture(picture, self.width, CURVE_ROWS))
        for study in section.studies if not brief else ():
            self._study(study, mark)
        self._findings(f"What this means ({section.suite})", section.findings, mark)

    def _legend(self, report: Report) -> None:
        words = self.text("± is half the 95 % interval of the median. ", "quiet")
        for grade in report.grades:
            words += self.text(*TRUST_MARKS[grade]) + self.text(f" {grade}: {GRADES[grade]}.  ", "quiet")
        self.print(Text(), words)

    def titled(self, title: str, about: str, mark: str) -> RenderableType:
        """A title with the report's mark, and quietly what it is about."""
        line = self.text(title, "strong", LONGEST_CELL)
        if mark:
            line = line + Text("  ") + self.text(mark, "warning")
        return (
            Group(line, *wrapped(self.text(about, "quiet", LONGEST_CELL), self.width, self.console)) if about else line
        )

    # -- tables ------------------------------------------------------------------------------------------------

    def _study(self, study: Study, mark: str) -> None:
        first = study.tables[0]
        self.print(Text(), self.titled(first.title, first.question, mark))
        drawn = Group(*[part for table in study.tables for part in (Text(), self.table(table))][1:])
        if study.curve is None:
            self.print(drawn)
            return
        heading = self.text(study.curve.title, "quiet")
        widths = [Widths(table, self.shown) for table in study.tables]
        wanted = max(one.total(one.fitting(self.width)) for one in widths)
        beside = min(self.width - wanted - 2, WIDEST_SMALL_CURVE)
        if self.width >= BESIDE_WIDTH and beside >= SMALL_CURVE_WIDTH:
            rows = max(SMALL_CURVE_ROWS, min(sum(len(table.rows) for table in study.tables), CURVE_ROWS))
            pair = Grid.grid(padding=(0, 2))
            pair.add_row(drawn, Group(heading, self.picture(study.curve, beside, rows)))
            self.print(pair)
        else:
            curve = self.picture(study.curve, min(self.width, WIDEST_SMALL_CURVE) - 1, SMALL_CURVE_ROWS)
            self.print(drawn, Padding(Group(heading, curve), (0, 0, 0, 1), expand=False))

    def table(self, table: Table) -> RenderableType:
        """A table in as many of its columns as fit; its notes below."""
        grid = Grid(box=SIMPLE_HEAD if self.fine else ASCII, header_style="dim", border_style="dim", padding=(0, 1),
                    collapse_padding=True, pad_edge=self.fine, show_edge=False)  # fmt: skip
        widths, kept = fitted(table, self.width, self.shown)
        notes = [self.text(f" {note}", "quiet", 400) for note in table.notes]
        if self.fine and widths.total(kept) <= self.width:
            lines = charts.table_lines(table, widths, kept, shown=self.shown)
            if is_simple(lines):
                return Group(Lines(lines, widths.total(kept)), *notes)
        for index in kept:
            grid.add_column(self.text(table.columns[index].title), justify=table.columns[index].align, overflow="fold")
        for row in table.rows:
            grid.add_row(*(self._cell(row[index], widths.notes[index]) for index in kept))
        return Group(grid, *notes) if notes else grid

    def _cell(self, cell: Cell, note_width: int) -> Text:
        pieces = charts.cell_pieces(cell, note_width, self.shown)
        return Text("").join(Text(text, style=STYLES[tone]) for text, tone in pieces)

    # -- pictures ----------------------------------------------------------------------------------------------

    def picture(self, picture: Picture, width: int, rows: int) -> RenderableType:
        """A picture in at most ``width`` characters; ``rows`` is a curve's height."""
        if isinstance(picture, Bars):
            return self._pieces(charts.bars(picture, width, fine=self.fine, shown=self.shown))
        if isinstance(picture, Curve):
            return self._pieces(curves.curve(picture, width, rows, fine=self.fine))
        if isinstance(picture, Histogram):
            return self._pieces(charts.histogram(picture, width, fine=self.fine))
        if isinstance(picture, Stacks):
            return self._pieces(charts.stacks(picture, width, shown=self.shown))
        if isinstance(picture, Table):
            return self.table(picture)
        if isinstance(picture, Prose):
            return self._pieces(charts.prose(picture, width, shown=self.shown))
        if isinstance(picture, Way):
            return self._pieces(charts.way(picture, width, shown=self.shown))
        return self._pieces(
            curves.time_line(picture, width, fine=self.fine, inverse=self.console.color_system is not None)
        )

    def _pieces(self, drawn: charts.Drawn) -> Text:
        return Text("\n").join(self._line(pieces) for pieces in drawn)

    def _line(self, pieces: Iterable[charts.Piece]) -> Text:
        line = Text(no_wrap=True, overflow="crop")
        for text, tone in pieces:
            line.append(self.shown(text), style=STYLES[tone])
        return line

    # -- findings ----------------------------------------------------------------------------------------------

    def _findings(self, title: str, found: Iterable[Finding], mark: str, *, notes: bool = True) -> None:
        """Each finding's title, text and advice; without ``notes``, findings that only inform show their title."""
        shown = list(found)
        if shown:
            self.print(Text(), self.titled(title, "", mark))
        for finding in shown:
            self._headline(finding)
            if notes or finding.severity not in ("good", "note"):
                body = self.text(f"{finding.text} {finding.advice}".strip())
                if self.why:
                    body += self.text(f" [{finding.rule}: {finding.threshold}]", "quiet")
                self._indented(body, 3)

    def _headline(self, finding: Finding, mark: str = "") -> None:
        """A finding's title behind the sign of its severity; its text stands elsewhere."""
        head = self.text(f" {SEVERITY_MARKS[finding.severity]} ", finding.severity)
        line = head + self.text(finding.title, "strong")
        self._indented(line + Text("  ") + self.text(mark, "warning") if mark else line, 3, first=0)

    def _indented(self, text: Text, indent: int, first: int | None = None) -> None:
        """Text in lines that begin ``indent`` in (the first one ``first``), with nothing at their ends."""
        for index, line in enumerate(wrapped(text, self.width - indent, self.console)):
            blank = indent if index or first is None else first
            self.print(Text(" " * blank) + line)
