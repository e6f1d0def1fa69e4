"""Draws a report on a terminal, in a pipe or as an SVG picture of a terminal. Text is data, never markup."""

import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import msgspec
from msgspec.structs import replace
from rich.box import ASCII, ROUNDED
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.segment import Segment, Segments
from rich.table import Table as Grid
from rich.text import Text

from microbench.analysis.evidence import Finding, doubtful
from microbench.core.errors import MicrobenchError
from microbench.core.units import BEFORE_UNIT, plain, to_ascii
from microbench.report import document
from microbench.report.document import SEVERITY_MARKS, TRUST_MARKS, Report, Screen, Table, Tone
from microbench.report.terminal import charts, layout, plots

# Colours of the terminal's own palette read well on light and on dark grounds.
STYLES: dict[Tone, str] = {
    "plain": "", "strong": "bold", "quiet": "dim", "good": "green", "note": "cyan", "advice": "yellow",
    "warning": "bold yellow", "problem": "bold red", "first": "cyan", "second": "green", "third": "magenta",
    "fourth": "red", "fifth": "blue", "sixth": "yellow", "seventh": "bright_cyan", "eighth": "bright_green",
    "on_first": "reverse cyan", "on_second": "reverse green",
    "on_third": "reverse magenta",
}  # fmt: skip
WIDEST, NARROWEST = 120, 40
# From this width on a benchmark's curve can be right of its table.
BESIDE_WIDTH = 100
CURVE_ROWS, SMALL_CURVE_ROWS, SMALL_CURVE_WIDTH, WIDEST_SMALL_CURVE = 14, 8, 44, 64
LONGEST_TEXT = 2000
# Lines around the pictures of a page of one suite: heading, facts, titles.
AROUND_PICTURES = 21
# Lines of one picture: 2200 pixels.
PICTURE_LINES = 85
# The panel's two edges with a blank each, and the blanks between its columns.
AROUND_FACTS = 6
# The options of a console for pictures.
COLOURED: dict[str, Any] = {
    "force_terminal": True, "color_system": "truecolor", "highlight": False, "markup": False, "emoji": False,
    "legacy_windows": False,
}  # fmt: skip
# Replaces a blank at which a line must not break.
GLUE = "\ue000"


def open_console(stream: IO[str] | None = None, width: int | None = None) -> Console:
    """A console for ``stream`` (standard output), as wide as its terminal; pipes and NO_COLOR have no colour.

    A pipe or a file is WIDEST columns wide, unless COLUMNS says otherwise.
    """
    file = stream or sys.stdout
    if isinstance(file, io.TextIOWrapper):
        file.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows a question mark, never a traceback
    if width is None and "COLUMNS" not in os.environ and not file.isatty():
        width = WIDEST
    console = QuietConsole(file=file, width=width, highlight=False, markup=False, emoji=False)
    if console.width < 1:  # COLUMNS=0: rich would draw nothing at all
        console.width = NARROWEST
    return console


class QuietConsole(Console):
    """A console that discards its output once the reader of a pipe has stopped (`| head`)."""

    def on_broken_pipe(self) -> None:
        """The command goes on, because its exit code still counts."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def draw(
    shown: Report | Screen,
    console: Console,
    *,
    brief: bool = False,
    why: bool = False,
    most_lines: int | None = None,
    whole: str = "",
) -> None:
    """Draw the answer on one screen, or the whole report; ``brief`` leaves out the tables of benchmarks, ``why`` adds
    the rule of each finding. With ``most_lines``, pictures that would make the page longer are left out, and a line
    names the command ``whole`` that shows them."""
    Painter(console, why=why, most_lines=most_lines, whole=whole).show(shown, brief)


def draw_tables(tables: Iterable[Table], console: Console) -> None:
    """Draw tables under their titles."""
    painter = Painter(console)
    for table in tables:
        painter.print(Text(), painter.titled(table.title, table.question, ""), painter.table(table))


def pictures(shown: Report | Screen, *, brief: bool = False, why: bool = False) -> list[str]:
    """The report or the screen as SVG pictures of a terminal, each of at most PICTURE_LINES lines."""
    text = io.StringIO()
    console = Console(file=text, width=WIDEST, **COLOURED)
    Painter(console, fine=True, why=why).show(shown, brief)
    lines, made = text.getvalue().splitlines(), []
    for start in range(0, len(lines), PICTURE_LINES):
        console = Console(file=io.StringIO(), record=True, width=WIDEST, **COLOURED)
        console.print(Text.from_ansi("\n".join(lines[start : start + PICTURE_LINES])), soft_wrap=True)
        # Rich fetches a font from the web; a picture in a README should ask nobody, and any monospaced font will do.
        picture = re.sub(r"@font-face \{.*?\n    \}", "", console.export_svg(title="microbench"), flags=re.DOTALL)
        made.append(picture.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono"))
    return made


def draw_findings(findings: Iterable[Finding], console: Console, *, mark: str = "") -> None:
    """Draw findings by themselves, each with its reading and advice."""
    painter = Painter(console)
    for finding in findings:
        painter.finding(finding, mark)


def tell(lines: Iterable[str], console: Console, *, whole: bool = True) -> None:
    """Print quiet lines; ``whole`` ones stay unwrapped, so that paths and commands can be copied."""
    painter = Painter(console)
    for line in lines:
        console.print(painter.text(line, "quiet"), soft_wrap=whole)


def tell_error(error: MicrobenchError, console: Console) -> None:
    """Print an error's two lines: its cause and the next step."""
    painter = Painter(console)
    console.print(painter.text("error: ", "problem") + painter.text(error.cause), soft_wrap=True)
    console.print(painter.text("next:  ", "note") + painter.text(error.next_step), soft_wrap=True)


class Painter:
    """Draws the parts of a report with rich. ``fine`` says whether the output can show more than ASCII."""

    def __init__(
        self,
        console: Console,
        *,
        fine: bool | None = None,
        why: bool = False,
        most_lines: int | None = None,
        whole: str = "",
    ) -> None:
        self.console = console
        self.why = why
        self.most_lines = most_lines
        self.whole = whole
        self.fine = not console.options.ascii_only if fine is None else fine
        self.width = max(min(console.width, WIDEST), NARROWEST)

    def text(self, value: str, tone: Tone = "plain", longest: int = LONGEST_TEXT) -> Text:
        """``value`` made safe to show, in the style of its tone."""
        safe = plain(value, longest)
        return Text(safe if self.fine else to_ascii(safe), style=STYLES[tone])

    def print(self, *things: RenderableType) -> None:
        """Print within the report's width, without blanks at the ends of lines."""
        options = self.console.options.update(width=min(self.width, self.console.width))
        for thing in things:
            lines = self.console.render_lines(thing, options, pad=False)
            segments: list[Segment] = []
            for line in lines:
                while line and not line[-1].text.rstrip():
                    line = line[:-1]
                last = [Segment(line[-1].text.rstrip(), line[-1].style)] if line else []
                segments += [*line[:-1], *last, Segment.line()]
            self.console.print(Segments(segments))

    def show(self, report: Report | Screen, brief: bool) -> None:
        """Of a report banners and facts, then each section, then the cases that were not measured."""
        if isinstance(report, Screen):
            self._screen(report)
            return
        box = ROUNDED if self.fine else ASCII
        for banner in report.banners:
            body = self.text(f"{banner.word}: ", banner.tone) + self.text(banner.text)
            if banner.next_step:
                body = Text("\n").join((body, self.text("next: ", "note") + self.text(banner.next_step)))
            self.print(Panel(body, box=box, border_style=STYLES[banner.tone], width=self.width))
        title = self.text(f" {report.title} ", "strong", 60)
        if report.mark:
            title = title + self.text(f"{report.mark} ", "warning")
        self.print(Panel(self._facts(report), title=title, title_align="left", box=box, width=self.width))
        self._findings("What distorts this run", report.environment, report.mark, notes=False)
        for section in report.sections:
            self._section(section, report.mark, brief)
        if report.problems is not None:
            self.print(Text(), self.titled(report.problems.title, "", report.mark), self.table(report.problems))
        if not brief:
            words = self.text(f"± is {document.SPREAD}, {document.SPREAD_WITHIN}. ", "quiet")
            for grade in report.grades:
                words += self.text(*TRUST_MARKS[grade]) + self.text(f" {grade}: {document.GRADES[grade]}.  ", "quiet")
            self.print(Text(), words)
        for line in report.footer:
            self.print(self.text(line, "quiet"))

    def _facts(self, report: Report) -> Grid:
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_column(overflow="fold")
        names = max((cell_len(name) for name, _ in report.facts), default=0)
        for name, words in report.facts:
            lines = layout.packed(plain(words, layout.LONGEST_CELL), self.width - names - AROUND_FACTS)
            grid.add_row(self.text(name, "quiet"), Text("\n").join(map(self.text, lines)))
        return grid

    def _section(self, section: document.Section, mark: str, brief: bool) -> None:
        title = self.text(section.title, "strong", 90)
        self.print(Text(), Rule(title, align="left", characters="━" if self.fine else "=", style="cyan"))
        if section.verdict is not None:
            self._headline(section.verdict, mark)
        drawn = []
        for picture in section.pictures:
            about = picture.question if isinstance(picture, Table) else picture.about
            heading = self.titled(picture.title, about, mark)
            drawn.append(Group(Text(), heading, self.picture(picture, self.width, CURVE_ROWS)))
        left = math.inf if self.most_lines is None else self.most_lines - AROUND_PICTURES
        for finding in section.findings:
            for text in (finding.title, f"{finding.text} {finding.advice}".strip()):
                left -= len(list(self._wrapped(Text(text), self.width - 3)))
        omitted = 0
        for each in drawn:
            # How many lines it takes within the report's width.
            options = self.console.options.update(width=self.width)
            lines = len(self.console.render_lines(each, options, pad=False)) if left < math.inf else 0
            if lines <= left:
                self.print(each)
                left -= lines
            else:
                omitted += 1
        if omitted:
            words = f"{omitted} more picture{'s' if omitted > 1 else ''}: {self.whole}"
            self.print(Text(), self.text(words, "quiet"))
        for study in section.studies if not brief else ():
            self._study(study, mark)
        self._findings(f"What this means ({section.suite})", section.findings, mark)

    def titled(self, title: str, about: str, mark: str) -> RenderableType:
        """A title with the report's mark, and ``about`` below it in a quiet tone."""
        line = self.text(title, "strong", layout.LONGEST_CELL)
        if mark:
            line = line + Text("  ") + self.text(mark, "warning")
        words = self.text(about, "quiet", layout.LONGEST_CELL)
        return Group(line, *self._wrapped(words, self.width)) if about else line

    def _study(self, study: document.Study, mark: str) -> None:
        """The tables of a benchmark, and its curve to their right if there is room, else below."""
        first = study.tables[0]
        self.print(Text(), self.titled(first.title, first.question, mark))
        tables = Group(*[part for table in study.tables for part in (Text(), self.table(table))][1:])
        if study.curve is None:
            self.print(tables)
            return
        heading = self.text(study.curve.title, "quiet")
        widths = [layout.Widths(table) for table in study.tables]
        wanted = max(one.total(one.fitting(self.width)) for one in widths)
        room = min(self.width - wanted - 2, WIDEST_SMALL_CURVE)
        if self.width >= BESIDE_WIDTH and room >= SMALL_CURVE_WIDTH:
            rows = max(SMALL_CURVE_ROWS, min(sum(len(table.rows) for table in study.tables), CURVE_ROWS))
            pair = Grid.grid(padding=(0, 2))
            pair.add_row(tables, Group(heading, self.picture(study.curve, room, rows)))
            self.print(pair)
        else:
            curve = self.picture(study.curve, min(self.width, WIDEST_SMALL_CURVE) - 1, SMALL_CURVE_ROWS)
            self.print(tables, Padding(Group(heading, curve), (0, 0, 0, 1), expand=False))

    def table(self, table: Table) -> RenderableType:
        """A table within the page, its notes below."""
        table = table if self.fine else in_ascii(table)
        lines = Lines(layout.table(table, self.width), fine=self.fine)
        notes = [*table.notes]
        if dropped := layout.dropped(table, self.width):
            notes.append(f"columns not shown at this width: {', '.join(dropped)}")
        return Group(lines, *(self.text(f" {note}", "quiet", layout.LONGEST_NOTE) for note in notes))

    def picture(self, picture: document.Picture, width: int, rows: int) -> RenderableType:
        """A picture in at most ``width`` places; a curve is ``rows`` high."""
        picture = picture if self.fine else in_ascii(picture)
        match picture:
            case Table():
                return self.table(picture)
            case document.Curve():
                drawn = plots.curve(picture, width, rows)
            case document.TimeLine():
                drawn = plots.time_line(picture, width, inverse=self.console.color_system is not None)
            case _:
                drawn = DRAWN[type(picture)](picture, width)
        return Lines(drawn, fine=self.fine)

    def _findings(self, title: str, findings: Iterable[Finding], mark: str, *, notes: bool = True) -> None:
        """Each finding with its text and advice; without ``notes``, good findings and notes show only their title."""
        for place, finding in enumerate(findings):
            if place == 0:
                self.print(Text(), self.titled(title, "", mark))
            self._headline(finding)
            if notes or finding.severity not in ("good", "note"):
                body = self.text(f"{finding.text} {finding.advice}".strip())
                if self.why:
                    body += self.text(f" [{finding.rule}: {finding.threshold}]", "quiet")
                self._indented(body, 3)

    def finding(self, finding: Finding, mark: str) -> None:
        """A finding by itself: its title with the mark, its text and its advice."""
        self._headline(finding, mark)
        self._indented(self.text(f"{finding.text} {finding.advice}".strip()), 3)

    def _headline(self, finding: Finding, mark: str = "") -> None:
        head = self.text(f" {SEVERITY_MARKS[finding.severity]} ", finding.severity)
        line = head + self.text(finding.title, "strong")
        self._indented(line + Text("  ") + self.text(mark, "warning") if mark else line, 0)

    def _indented(self, text: Text, first: int) -> None:
        """Text three places in, its first line ``first`` places."""
        for index, line in enumerate(self._wrapped(text, self.width - 3)):
            self.print(Text(" " * (3 if index else first)) + line)

    def _wrapped(self, text: Text, width: int) -> Iterator[Text]:
        """The text in lines of that width; a number and its unit stay on one line."""
        glued = text.copy()
        glued.plain = BEFORE_UNIT.sub(GLUE, text.plain)
        for line in glued.wrap(self.console, width):
            line.plain = line.plain.replace(GLUE, " ")
            line.rstrip()
            yield line

    def _screen(self, screen: Screen) -> None:
        for banner in screen.banners:
            self._indented(joined(self.text(f"{banner.word}: ", banner.tone), self.text(banner.text)), 0)
            if banner.next_step:
                self._indented(joined(self.text("next: ", "note"), self.text(banner.next_step)), 0)
        for block in screen.blocks:
            # A GPU's name with the run on the right, and its lines.
            head = joined(self.text(layout.SEPARATOR.join((block.name, *block.about)), "strong"))
            if screen.mark:
                head = joined(head, Text("  "), self.text(screen.mark, "warning"))
            run = self.text(screen.run, "quiet")
            room = self.width - head.cell_len - run.cell_len
            self.print(*([joined(head, Text(" " * room), run)] if room >= 2 else [head, run]))
            indent = max((cell_len(line.name) for line in block.lines), default=0) + 5
            for answer in block.lines:
                self._answer(answer, indent)
        for table in screen.tables:
            self.print(Text(), self.titled(table.title, table.question, ""), self.table(table))
        if screen.distorting:
            self.print(Text())
            for finding in screen.distorting:
                self._short(finding, "distorts this run: ")
        if screen.findings:
            self.print(Text())
            for finding in screen.findings:
                self._short(finding)
        if screen.left_out or screen.footer:
            self.print(Text())
        for line in filter(None, (screen.left_out, screen.footer)):
            for part in layout.packed(line, self.width):
                self.print(self.text(part, "quiet"))

    def _answer(self, line: document.AnswerLine, indent: int) -> None:
        """The figures behind the line's name, broken between figures; a grade of its own stands behind a figure."""
        mark = SEVERITY_MARKS[line.verdict] if line.verdict else " "
        start, blank = self.text(f" {mark} {line.name}".ljust(indent), line.verdict or "note"), Text(" " * indent)
        pieces = [joined(self.text(cell.text), self._grade(cell.trust)) for cell in line.parts]
        if line.trust:
            sign, tone = TRUST_MARKS[line.trust]
            pieces.append(joined(self.text(f"{sign} {line.trust}", tone)))
        room = self.width - indent
        row = Text()
        for place, piece in enumerate(pieces):
            goes_on = len(layout.GOES_ON) if place < len(pieces) - 1 else 0
            if row and row.cell_len + len(layout.SEPARATOR) + piece.cell_len + goes_on > room:
                self.print(joined(start, row, self.text(layout.GOES_ON, "quiet")))
                start, row = blank, Text()
            *before, rest = self._wrapped(piece, room - len(layout.GOES_ON)) if not row else [piece]
            for part in before:
                self.print(joined(start, part))
                start = blank
            row = joined(row, self.text(layout.SEPARATOR, "quiet") if row else Text(), rest)
        self.print(joined(start, row))

    def _grade(self, trust: str | None) -> Text:
        return self.text(f" {TRUST_MARKS[trust][0]}", TRUST_MARKS[trust][1]) if trust else Text()

    def _short(self, finding: Finding, before: str = "") -> None:
        """A finding's title and advice, without its reading."""
        sign = self.text(f" {SEVERITY_MARKS[finding.severity]} ", finding.severity)
        advice = self.text(f". {finding.advice}" if finding.advice else "")
        title = joined(self.text(finding.title, "strong"), self._grade(finding.trust if doubtful(finding) else None))
        self._indented(joined(sign, self.text(before, "quiet"), title, advice), 0)
        if self.why:
            self._indented(self.text(f"[{finding.rule}: {finding.threshold}]", "quiet"), 3)


DRAWN: dict[type, Callable[..., layout.Drawn]] = {
    document.Bars: charts.bars, document.Histogram: charts.histogram, document.Stacks: charts.stacks,
    document.Way: charts.way, document.Prose: layout.prose,
}  # fmt: skip


def joined(*parts: Text) -> Text:
    """Texts one after the other, each in its own style: ``+`` would give the first one's to all."""
    whole = Text()
    for part in parts:
        whole.append_text(part)
    return whole


def in_ascii(shown: Any) -> Any:
    """A picture or a table whose every text is ASCII, so that its parts get the widths of that."""
    if isinstance(shown, str):
        return to_ascii(shown)
    if isinstance(shown, tuple):
        return tuple(map(in_ascii, shown))
    if isinstance(shown, msgspec.Struct):
        return replace(shown, **{name: in_ascii(getattr(shown, name)) for name in shown.__struct_fields__})
    return shown


class Lines:
    """Finished lines, which rich only prints: that takes a tenth of the time of its own layout."""

    def __init__(self, lines: layout.Drawn, *, fine: bool) -> None:
        self._lines = [[(text if fine else to_ascii(text), tone) for text, tone in line] for line in lines]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = max(map(layout.length_of, self._lines), default=0)
        return Measurement(width, width)

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
