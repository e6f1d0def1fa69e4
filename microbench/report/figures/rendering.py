"""Figures as files: PNG, SVG or PDF, by Vega inside vl-convert, with no browser and no network."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import vl_convert

from microbench.core.units import BEFORE_UNIT
from microbench.report.figures.figure import Figure
from microbench.report.figures.theme import LARGE, PADDING, USUAL, WIDTH, Palette, config

VEGA_LITE = "6.4"
# A figure has its data within it, and asks nobody for more.
NOWHERE: list[str] = []
# Pixels of a PNG for each CSS pixel: sharp on any screen.
SCALE = 2.0
# Widths of an average character as a share of its height.
BOLD, REGULAR = 0.56, 0.5
NUL = "\0"


def spec(figure: Figure, palette: Palette) -> dict[str, Any]:
    """The figure's whole spec: with its conclusion as title and whose figures these are below it."""
    one = len(figure.conclusions) == 1
    below = (*(() if one else figure.conclusions), figure.about, *figure.sources)
    title = {
        "text": _lines(figure.conclusion if one else figure.title, LARGE * BOLD),
        "subtitle": [line for text in below for line in _lines(text, USUAL * REGULAR)],
    }
    return {**figure.spec, "title": title, "config": config(palette)}


def _lines(text: str, character_pixels: float) -> list[str]:
    """Lines of the figure's width, of about the same length; a number and its unit stay together."""
    text, most = BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text), int((WIDTH - 2 * PADDING) / character_pixels)
    count = len(textwrap.wrap(text, most))
    for width in range(len(text) // max(count, 1), most):
        if len(lines := textwrap.wrap(text, width)) == count:
            return lines
    return textwrap.wrap(text, most)


def png(figure: Figure, palette: Palette) -> bytes:
    """The figure as PNG."""
    return bytes(vl_convert.svg_to_png(_drawing(figure, palette), scale=SCALE))


def svg(figure: Figure, palette: Palette) -> bytes:
    """The figure as SVG."""
    return _drawing(figure, palette).encode()


def pdf(figure: Figure, palette: Palette) -> bytes:
    """The figure as PDF."""
    return bytes(vl_convert.svg_to_pdf(_drawing(figure, palette)))


def _drawing(figure: Figure, palette: Palette) -> str:
    """The figure as SVG, without NUL characters: vl-convert 1.9 put one behind an empty label in some processes, where
    its own way to a PNG then ended in "a non-XML character"."""
    made = vl_convert.vegalite_to_svg(spec(figure, palette), vl_version=VEGA_LITE, allowed_base_urls=NOWHERE)
    return str(made).replace(NUL, "")


# By the ending of a file.
RENDERERS: dict[str, Callable[[Figure, Palette], bytes]] = {".png": png, ".svg": svg, ".pdf": pdf}
