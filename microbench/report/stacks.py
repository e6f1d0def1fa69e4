"""Stacked bars in characters: portions behind one another on one scale, their names and figures below each bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from microbench.report.charts import Drawn, Piece
from microbench.report.document import Portion, Stack, Stacks, Tone

# Told apart without colour as well.
FILLS: dict[Tone, str] = {"first": "█", "second": "▓", "third": "▒", "advice": "░", "quiet": "─"}
OTHER = "█"
BETWEEN = 2
SHORTEST = 10
NOTHING = 1e-300  # no scale bears less


def stacks(one: Stacks, width: int, *, shown: Callable[[str], str]) -> Drawn:
    """Each bar on a line, what it is made of on the lines below. ``shown`` says what the page shows of a text."""
    labels = max((len(shown(stack.label)) for stack in one.stacks), default=0) + BETWEEN
    totals = max((len(shown(stack.total)) for stack in one.stacks), default=0) + BETWEEN
    room = max(width - labels - totals, SHORTEST)
    largest = max((sum(portion.value for portion in stack.portions) for stack in one.stacks), default=0.0)
    scale = room / largest if largest > NOTHING else 0.0
    lines: Drawn = []
    for index, stack in enumerate(one.stacks):
        if index:
            lines.append([("", "plain")])
        bar = _bar(stack, scale)
        length = sum(len(text) for text, _ in bar)
        label = shown(stack.label).ljust(labels)
        # The total follows its bar, so that a short one shows how much shorter it is.
        lines.append([(label, "strong"), *bar, (f"{' ' * (BETWEEN if length else 0)}{shown(stack.total)}", "strong")])
        lines += [[(" " * labels, "plain"), *pieces] for pieces in _named(stack.portions, width - labels, shown)]
    return lines


def _bar(stack: Stack, scale: float) -> list[Piece]:
    """Ends are rounded, not lengths, so that the whole is as long as it should be."""
    pieces: list[Piece] = []
    end, drawn = 0.0, 0
    for portion in stack.portions:
        end += portion.value
        length = round(end * scale) - drawn
        drawn += length
        pieces.append((_fill(portion) * length, portion.tone))
    return pieces


def _named(portions: Sequence[Portion], width: int, shown: Callable[[str], str]) -> Iterable[list[Piece]]:
    """A sample, the name and the figure of each, on as many lines as that takes."""
    line: list[Piece] = []
    used = 0
    for portion in portions:
        name, text = shown(portion.name), f"{shown(portion.text)}  "
        pieces: list[Piece] = [(f"{_fill(portion)} ", portion.tone), (f"{name} ", "plain"), (text, "quiet")]
        length = sum(len(piece) for piece, _ in pieces)
        if used and used + length - BETWEEN > width:
            yield line
            line, used = [], 0
        line += pieces
        used += length
    if line:
        yield line


def _fill(portion: Portion) -> str:
    return FILLS.get(portion.tone, OTHER)
