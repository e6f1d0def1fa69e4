"""What the terminal makes of pieces and lines: rich's segments, laid out already. Text is data, never markup."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from microbench.report.charts import Drawn
from microbench.report.marks import STYLES
from microbench.units import BEFORE_UNIT

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
