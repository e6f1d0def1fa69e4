"""The page's templates: Jinja with every word made safe to show and escaped, whatever it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from microbench.analysis.evidence import Severity
from microbench.core.units import BINARY, PREFIXES, SMALLER, plain
from microbench.report.document import (
    SEVERITY_MARKS,
    TRUST_MARKS,
    UNKNOWN_MARK,
    Bars,
    Cell,
    Column,
    Picture,
    Stacks,
    Table,
)
from microbench.report.figures.theme import DARK, LIGHT
from microbench.report.page.plots import columns, plot, stretches, time_axis

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


# What a table on the page sorts by: the number that a cell's words stand for, its unit and prefix included.


# No beginning of a date, a time, a version or an address: those are words, which sort by their numbers as well.
FIGURE = re.compile(r"(?P<sign>[+−-]?)±?(?P<digits>\d+(?:\.\d+)?)(?![.:-]?\d)\s?(?P<unit>[^\s\d,;·]*)")
# Units that take a prefix. Longer words, "cycles" or "launches", take none, whatever letter they begin with.
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

    None for words. What is no known unit counts as one: such columns hold nothing else.
    """
    found = FIGURE.match(text)
    if found is None:
        return None
    value = float(found["digits"]) * FACTORS.get(found["unit"], 1.0)
    return -value if found["sign"] in ("-", "−") else value


FOLDER = "templates"
# A page is read, not paged through: longer texts are cut, with their length.
LONGEST_WORDS = 2000
# Figures and names stay on a line, in letters; sentences need not.
LONGEST_UNBROKEN = 32
# What the page has colours for beside those of its figures: its own ground, marked ground, and how things stand.
ON_LIGHT = {
    "page": "#f4f6f8", "raised": "#eaeef2", "good": "#187a34", "note": "#1f5fbf", "advice": "#8a5a00",
    "warning": "#b04a00", "problem": "#c11f2b",
}  # fmt: skip
ON_DARK = {
    "page": "#0d1015", "raised": "#1e242d", "good": "#4cc76f", "note": "#6aaef8", "advice": "#e3b341",
    "warning": "#f59e42", "problem": "#ff7b72",
}  # fmt: skip


def environment() -> Environment:
    """The templates with what they ask: where things lie, what marks stand for, what cells sort by.

    Words of any origin go through ``text.plain`` and are escaped, in elements and in attributes; only what a template
    itself says is markup.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader(__package__, FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"plot": plot, "columns": columns, "stretches": stretches, "time_axis": time_axis, "slug": slug}
    made.filters |= {"as_table": _as_table, "longest": _longest, "classes": _classes, "note_widths": _note_widths}
    made.filters |= {"sort_key": _sort_key, "severity_mark": _severity_mark, "trust_mark": _trust_mark, "kind": _kind}
    return made


def source(name: str) -> str:
    """A file of the page that is no template: its style or one of its scripts."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def slug(text: str) -> str:
    """``text`` as the name of a place on the page, or of a file."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:80].strip("-.") or "run"


def style() -> Markup:
    """The page's style: its colours on light and on dark ground, as the reader's system or the reader asks; then the
    rest. Paper is light."""
    from markupsafe import Markup

    light, dark = (_variables(one._asdict() | more) for one, more in ((LIGHT, ON_LIGHT), (DARK, ON_DARK)))
    grounds = (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )
    return Markup(grounds + source("page.css"))  # no word of a run is in it


def _variables(colours: Mapping[str, str]) -> str:
    """Colours as CSS variables: ``--first:#1f5fbf;…``."""
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


def _shown(value: object) -> object:
    from markupsafe import Markup

    return value if isinstance(value, Markup | int | float) else plain(value, LONGEST_WORDS)


def _sort_key(text: str) -> str:
    """As an attribute's value; nothing for words."""
    key = sort_key(text)
    return "" if key is None else f"{key:.6g}"


def _severity_mark(severity: Severity) -> str:
    return SEVERITY_MARKS[severity]


def _trust_mark(trust: str) -> tuple[str, str]:
    return TRUST_MARKS.get(trust, UNKNOWN_MARK)


def _kind(picture: Picture) -> str:
    """The name of the template that draws it."""
    return type(picture).__name__.lower()


def _classes(column: Column, cell: Cell | None = None) -> Markup:
    """The class attribute of a heading or a cell: how it is set, when it goes, its colour, and whether its lines may
    break."""
    from markupsafe import Markup

    names = ["right"] if column.align == "right" else []
    names += [f"drop-{column.drop}"] if column.drop else []
    names += [f"tone-{cell.tone}"] if cell is not None and cell.tone != "plain" else []
    names += ["long"] if cell is not None and len(cell.text) > LONGEST_UNBROKEN else []
    return Markup(' class="{}"').format(" ".join(names)) if names else Markup("")


def _note_widths(rows: Sequence[Sequence[Cell]], first: int) -> Markup:
    """The style attribute by which figures of a column stand under each other, whatever their notes: how long its
    longest is, in letters. ``first`` is the number of the first column on the page."""
    from markupsafe import Markup

    longest: dict[int, int] = {}
    for row in rows:
        for number, cell in enumerate(row, first):
            longest[number] = max(longest.get(number, 0), len(cell.note))
    widths = ";".join(f"--note-{number}:{length}ch" for number, length in longest.items() if length)
    return Markup(f' style="{widths}"') if widths else Markup("")


def _as_table(bars: Bars) -> Table:
    """What bars show in figures: a line each, the label first."""
    columns = (Column("what", "left"), *bars.columns)
    return Table(bars.title, bars.about, columns, tuple((Cell(bar.label), *bar.cells) for bar in bars.bars), bars.notes)


def _longest(picture: Bars | Stacks) -> float:
    """The length of its longest bar, all of whose parts count."""
    if isinstance(picture, Bars):
        return max((max(bar.value, bar.beyond or 0.0) for bar in picture.bars), default=0.0)
    return max((sum(portion.value for portion in stack.portions) for stack in picture.stacks), default=0.0)
