"""Sets up the page's templates: every word is made safe to show and escaped, pictures are drawn as SVG."""

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import count
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from microbench.core.units import BEFORE_UNIT, BINARY, PREFIXES, SMALLER, plain
from microbench.core.version import __version__
from microbench.report import document
from microbench.report.document import Bars, Cell, Column, Curve, Histogram, Stacks, Tiles, TimeLine
from microbench.report.figures import drawing
from microbench.report.figures.canvas import DARK, LIGHT, PAGE, Canvas
from microbench.report.figures.figure import Figure
from microbench.report.tables import bars_table

Drawing = Curve | TimeLine | Histogram | Tiles
DRAWN: dict[type, Callable[[Canvas, Any], None]] = {
    Curve: drawing.curve, TimeLine: drawing.time_line, Histogram: drawing.histogram, Tiles: drawing.tiles,
}  # fmt: skip
# Each script uses only those before it.
SCRIPTS = ("unpacking.js", "tables.js", "details.js", "step.js", "page.js")
# Longer texts are cut, with their length.
LONGEST_WORDS = 2000
# The columns from this one on have no room for notes of their own.
MOST_NOTED = 9
# Longer cells of a table may break into lines.
LONGEST_UNBROKEN = 32
# The widths of drawings in CSS pixels: in one of two columns, across the page, on a phone or next to a table.
HALF_WIDTH, WHOLE_WIDTH, NARROW_WIDTH = 540.0, 860.0, 340.0


@cache
def environment() -> Environment:
    """The templates and their filters. Only what a template itself says is markup; all other text is escaped."""
    made = Environment(
        loader=PackageLoader(__package__, "templates"), autoescape=True, undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup | int | float) else plain(value, LONGEST_WORDS),
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "as_table": bars_table,
        "classes": _classes,
        "drawn": _drawn,
        "findings_of": lambda report: [
            *report.environment,
            *(one for part in report.sections for one in part.findings),
        ],
        "glued": lambda text: BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text),  # a number and its unit stay on one line
        "heard": _heard,
        "kind": lambda picture: "drawing" if isinstance(picture, Drawing) else type(picture).__name__.lower(),
        "longest": _longest,
        "note_widths": _note_widths,
        "severity_mark": document.SEVERITY_MARKS.get,
        "slug": slug,
        "sort_key": lambda text: "" if (key := sort_key(text)) is None else f"{key:.6g}",
        "trust_mark": document.TRUST_MARKS.get,
    }
    return made


def slug(text: str) -> str:
    """``text`` as the name of a place on the page, or of a file."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:80].strip("-.") or "run"


def script() -> Markup:
    """The page's own script, without any word of a run."""
    return Markup("\n".join(["'use strict';", *(_source(f"scripts/{name}") for name in SCRIPTS)]))


def style() -> Markup:
    """The page's style: colours on a light and on a dark ground, as the system or the reader asks; paper is light."""
    light, dark = _colours()
    grounds = (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )
    return Markup(grounds + _rules())  # no word of a run is in it


def scoped_style() -> Markup:
    """The page's style for an element of class microbench alone, on the ground that the notebook's theme has."""
    light, dark = _colours()
    grounds = (
        f".microbench{{color-scheme:light;{light}}}"
        f"[data-jp-theme-light=false] .microbench,.vscode-dark .microbench{{color-scheme:dark;{dark}}}"
    )
    # Nested rules hold for what is inside of the element; & is the element itself.
    inside = _rules().replace(":root", "&")
    own = (
        "padding:14px 18px;border-radius:var(--radius);overflow-wrap:anywhere;"
        "h3{margin:14px 0 4px}.card{margin-top:10px}.portions>strong{white-space:nowrap}"
    )
    return Markup(f"{grounds}.microbench{{{inside}{own}}}")


def page_context() -> dict[str, Any]:
    """What every page needs: its script and style, and a policy by which only this script runs and nothing is sent."""
    program = script()
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode("ascii")
    return {
        "version": __version__,
        "script": program,
        "style": style(),
        "policy": f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        **element_context(),
    }


def element_context() -> dict[str, Any]:
    """What a page and an element of a notebook need."""
    return {
        "most_rests": 0, "whole_width": WHOLE_WIDTH, "nowhere": lambda _name: None, "next_id": partial(next, count()),
    }  # fmt: skip


def _colours() -> tuple[str, str]:
    light, dark = ("".join(f"--{name}:{colour};" for name, colour in palette.items()) for palette in (LIGHT, DARK))
    return light, dark


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _rules() -> str:
    """The page's rules: first a tone for each colour of the palette, and room for the longest note of each column."""
    tones = (f".tone-{name}{{color:var(--{name})}}" for name in list(PAGE)[list(PAGE).index("first") :])
    notes = (f"td:nth-child({at}) small{{min-width:calc(var(--note-{at},0ch)*.86)}}" for at in range(1, MOST_NOTED))
    return "".join((*tones, *notes, _source("page.css")))


# A number that begins a date, a time, a version or an address does not match: such cells sort as text.
FIGURE = re.compile(r"(?P<sign>[+−-]?)±?(?P<digits>\d+(?:\.\d+)?)(?![.:-]?\d)\s?(?P<unit>[^\s\d,;·]*)")
# Units that take a prefix; words such as "cycles" or "launches" take none.
UNITS = ("s", "B", "B/s", "W", "Hz", "/s", "FLOP/s", "OP/s", "J", "J/B", "J/FLOP", "J/OP", "cycles/s", "launches/s", "")
PREFIX_FACTORS = {prefix: factor for factor, prefix in PREFIXES if prefix} | {
    prefix: factor for prefixes in SMALLER.values() for factor, prefix in prefixes
}
FACTORS: dict[str, float] = {
    **{f"{prefix}{unit}": factor for unit in UNITS for prefix, factor in PREFIX_FACTORS.items()},
    **{name: float(scale) for scale, name in BINARY},
}


def sort_key(text: str) -> float | None:
    """The number at the beginning of a text in the base unit: "2.36 µs" is 2.36e-06, "64 KiB" 65536, "1.14×" 1.14.

    None for words. An unknown unit counts as the base unit: such columns hold nothing else.
    """
    number = FIGURE.match(text)
    if number is None:
        return None
    value = float(number["digits"]) * FACTORS.get(number["unit"], 1.0)
    return -value if number["sign"] in ("-", "−") else value


def _drawn(picture: Drawing | Figure, width: float) -> Markup:
    """A picture as SVG of that width; a wide one again for phones."""
    # Every text in an SVG is escaped where it is made.
    if width == NARROW_WIDTH:
        return Markup(f'<div class="small">{_svg(picture, width)}</div>')
    wide, narrow = _svg(picture, width), _svg(picture, NARROW_WIDTH)
    return Markup(f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>')


def _svg(picture: Drawing | Figure, width: float) -> str:
    canvas = Canvas(width)
    if isinstance(picture, Figure):
        picture.draw(canvas, hints=width > NARROW_WIDTH)
    else:
        DRAWN[type(picture)](canvas, picture)
    return canvas.svg(PAGE)


def _heard(picture: Drawing) -> str:
    names = [line.name for line in picture.lines if line.name] if isinstance(picture, Curve) else []
    marks = [] if isinstance(picture, TimeLine | Tiles) else [mark.text for mark in picture.marks]
    return ": ".join(filter(None, (picture.title, picture.about, ", ".join(names), ", ".join(marks))))


def _longest(picture: Bars | Stacks) -> float:
    if isinstance(picture, Bars):
        return max((max(bar.value, bar.beyond or 0.0) for bar in picture.bars), default=0.0)
    return max((sum(portion.value for portion in stack.portions) for stack in picture.stacks), default=0.0)


def _classes(column: Column, cell: Cell | None = None) -> Markup:
    """The class attribute of a heading or a cell: alignment, order of dropping, tone, and whether it may break."""
    names = ["right"] if column.align == "right" else []
    names += [f"drop-{column.drop}"] if column.drop else []
    names += [f"tone-{cell.tone}"] if cell is not None and cell.tone != "plain" else []
    names += ["long"] if cell is not None and len(cell.text) > LONGEST_UNBROKEN else []
    return Markup(f' class="{" ".join(names)}"' if names else "")


def _note_widths(rows: Sequence[Sequence[Cell]], first: int) -> Markup:
    """A style attribute that holds, for each column, the length of its longest note. The page aligns figures by it.

    ``first`` is the number of the first column on the page.
    """
    longest: dict[int, int] = {}
    for row in rows:
        for number, cell in enumerate(row, first):
            longest[number] = max(longest.get(number, 0), len(cell.note))
    widths = ";".join(f"--note-{number}:{length}ch" for number, length in longest.items() if length)
    return Markup(f' style="{widths}"' if widths else "")
