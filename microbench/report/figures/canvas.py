"""A canvas of lines, rectangles, dots and words, and its SVG in the colours of a palette."""

import html
import re
import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple

from microbench.core.units import plain
from microbench.report.document import Tone

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
SMALL, USUAL, LARGE = 11.0, 12.0, 15.0
# The width of an average character as a share of the type size, for a wide typeface.
CHARACTER, BOLD_CHARACTER = 0.55, 0.64
# From the middle of a text down to its baseline, as a share of the type size; not all viewers know dominant-baseline.
MIDDLE = 0.35
LONGEST_TEXT = 160
# Noncharacters that XML forbids; ``plain`` spells out all other ones.
NO_XML = re.compile("[\ufffe\uffff]")

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]
Symbol = Literal["circle", "square", "diamond", "triangle"]
Colour = Tone | Literal["ground", "ink", "muted", "grid"]


class Palette(dict[str, str]):
    """Colours by purpose, in any form that an SVG attribute accepts.

    ``first`` to ``fourth`` are series, ``fifth`` to ``eighth`` further causes of idle time, ``quiet`` is for secondary
    lines, ``page`` and ``raised`` are backgrounds of the page, and ``good`` to ``problem`` are severities of findings.
    """

    def of(self, tone: Colour) -> str:
        """The colour of a tone; ink for a tone that has no colour."""
        return self.get(tone.removeprefix("on_"), self["ink"])


# The same hues on both grounds. Series colours are also text, so their contrast to the ground is at least 4.5 : 1
# (WCAG 2.2, 1.4.3), and any two differ for every kind of colour blindness (tests/test_figures.py computes both).
LIGHT = Palette(
    ground="#ffffff", ink="#1b1f24", muted="#59636e", quiet="#7d8590", grid="#e4e8ec",
    first="#1456c4", second="#b35a00", third="#00836f", fourth="#7d2a66",
    fifth="#c2188f", sixth="#6d3b1f", seventh="#0b7285", eighth="#557a00",
    page="#f4f6f8", raised="#eaeef2", good="#187a34", note="#1f5fbf", advice="#8a5a00", warning="#b04a00",
    problem="#c11f2b",
)  # fmt: skip
DARK = Palette(
    ground="#14181f", ink="#e8ebef", muted="#9aa4b0", quiet="#77818d", grid="#2a313b",
    first="#4fa3ff", second="#f0803a", third="#3fe0b8", fourth="#c27ab0",
    fifth="#ff7ad9", sixth="#c99a7b", seventh="#66d9ef", eighth="#b5d334",
    page="#0d1015", raised="#1e242d", good="#4cc76f", note="#6aaef8", advice="#e3b341", warning="#f59e42",
    problem="#ff7b72",
)  # fmt: skip
# CSS variables of the page: its drawings change colour with it.
PAGE = Palette({name: f"var(--{name})" for name in LIGHT})


class Stroke(NamedTuple):
    """A line through points; ``dash`` are the lengths of dashes and gaps."""

    points: Sequence[Point]
    colour: Colour
    width: float = 1.0
    dash: tuple[float, ...] = ()


class Rectangle(NamedTuple):
    """A filled rectangle; ``hint`` is shown when a pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    colour: Colour
    opacity: float = 1.0
    radius: float = 0.0
    hint: str = ""


class Dots(NamedTuple):
    """A symbol at each point, with a hint for each or none."""

    points: Sequence[Point]
    colour: Colour
    radius: float = 3.0
    symbol: Symbol = "circle"
    hints: Sequence[str] = ()


class Words(NamedTuple):
    """Text whose vertical middle is at ``y``; a ``halo`` in the colour of the ground keeps it apart from lines."""

    x: float
    y: float
    text: str
    colour: Colour = "ink"
    anchor: Anchor = "start"
    size: float = USUAL
    bold: bool = False
    halo: bool = False


Shape = Stroke | Rectangle | Dots | Words


class Canvas:
    """Shapes in CSS pixels from the upper left corner; what is drawn next begins at ``height``."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.height = 0.0
        self.shapes: list[Shape] = []

    def svg(self, palette: Palette, *, margin: float = 0.0, label: str = "") -> str:
        """The shapes as an SVG element in the page's typeface.

        With a ``label`` it is a file: it has a ground, a typeface, and the label for screen readers.
        """
        width, height = _number(self.width + 2 * margin), _number(self.height + 2 * margin)
        begin, size = _number(-margin), f'width="{width}" height="{height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{begin} {begin} {width} {height}" {size} '
        head += f'font-size="{USUAL:g}" fill="{palette["ink"]}" stroke-linejoin="round" stroke-linecap="round"'
        if label:
            head += f' font-family="{FONT}" role="img" aria-label="{escaped(label)}"'
        ground = f'<rect x="{begin}" y="{begin}" {size} fill="{palette["ground"]}"/>' if label else ""
        return f"{head}>{ground}{''.join(_element(shape, palette) for shape in self.shapes)}</svg>"


def width_of(text: str, size: float = USUAL, *, bold: bool = False) -> float:
    """About how wide a text is, in pixels; wide East Asian characters count twice."""
    wide = 0 if text.isascii() else sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return (len(text) + wide) * size * (BOLD_CHARACTER if bold else CHARACTER)


def _corners(symbol: Symbol, radius: float) -> tuple[Point, ...]:
    """The corners of a symbol around its middle, about as large as a circle of that radius."""
    if symbol == "diamond":
        return (0, -1.3 * radius), (1.3 * radius, 0), (0, 1.3 * radius), (-1.3 * radius, 0)
    if symbol == "triangle":
        return (0, -1.2 * radius), (1.2 * radius, radius), (-1.2 * radius, radius)
    side = 0.9 * radius
    return (-side, -side), (side, -side), (side, side), (-side, side)


def escaped(text: str) -> str:
    """``text`` safe to show within SVG: on one line, without invisible characters, cut at LONGEST_TEXT."""
    return html.escape(NO_XML.sub("", plain(text, LONGEST_TEXT)))


def _element(shape: Shape, palette: Palette) -> str:
    colour = palette.of(shape.colour)
    match shape:
        case Stroke(points, _, width, dash):
            path = "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
            dashes = f' stroke-dasharray="{" ".join(map(_number, dash))}"' if dash else ""
            wide = f' stroke-width="{_number(width)}"' if width != 1 else ""
            return f'<path d="M{path}" fill="none" stroke="{colour}"{wide}{dashes}/>'
        case Rectangle(x, y, width, height, _, opacity, radius, hint):
            more = f' opacity="{_number(opacity)}"' if opacity < 1 else ""
            more += f' rx="{_number(radius)}"' if radius else ""
            place = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
            return _hinted(f'rect {place} fill="{colour}"{more}', hint)
        case Dots(points, _, radius, symbol, hints):
            marks = []
            for index, (x, y) in enumerate(points):
                mark = f'circle cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"'
                if symbol != "circle":
                    corners = "L".join(f"{_number(x + dx)} {_number(y + dy)}" for dx, dy in _corners(symbol, radius))
                    mark = f'path d="M{corners}Z"'
                marks.append(_hinted(mark, hints[index] if hints else ""))
            return f'<g fill="{colour}">{"".join(marks)}</g>'
        case Words(x, y, text, _, anchor, size, bold, halo):
            place = f'x="{_number(x)}" y="{_number(y + size * MIDDLE)}"'
            place += f' text-anchor="{anchor}"' if anchor != "start" else ""
            place += f' font-size="{_number(size)}"' if size != USUAL else ""
            place += ' font-weight="600"' if bold else ""
            fill = f' fill="{colour}"' if colour != palette["ink"] else ""
            words = escaped(text)
            behind = f'stroke="{palette["ground"]}" stroke-width="4" aria-hidden="true"'
            under = f"<text {place} {behind}>{words}</text>" if halo else ""
            return f"{under}<text {place}{fill}>{words}</text>"


def _hinted(element: str, hint: str) -> str:
    if not hint:
        return f"<{element}/>"
    return f"<{element}><title>{escaped(hint)}</title></{element.partition(' ')[0]}>"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
