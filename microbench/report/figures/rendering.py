"""Figures as files: PNG, SVG or PDF, by Vega inside vl-convert, with no browser and no network."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import vl_convert

from microbench.report.figures.figure import Figure
from microbench.report.figures.theme import LARGE, PADDING, USUAL, WIDTH, Palette, config

VEGA_LITE = "6.4"
# A figure has its data within it, and asks nobody for more.
NOWHERE: list[str] = []
# Pixels of a PNG for each CSS pixel: sharp on any screen.
SCALE = 2.0
# Widths of an average character as a share of its height.
BOLD, REGULAR = 0.56, 0.5
NUL = b"\0"
TRIES = 3
UNIT = re.compile(r"(?<=\d) (?=[%A-Za-zµ])")


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
    text, most = UNIT.sub("\N{NO-BREAK SPACE}", text), int((WIDTH - 2 * PADDING) / character_pixels)
    count = len(textwrap.wrap(text, most))
    for width in range(len(text) // max(count, 1), most):
        if len(lines := textwrap.wrap(text, width)) == count:
            return lines
    return textwrap.wrap(text, most)


def png(figure: Figure, palette: Palette) -> bytes:
    """The figure as PNG."""
    found = spec(figure, palette)
    return _made(
        lambda: vl_convert.vegalite_to_png(found, vl_version=VEGA_LITE, scale=SCALE, allowed_base_urls=NOWHERE)
    )


def svg(figure: Figure, palette: Palette) -> bytes:
    """The figure as SVG."""
    found = spec(figure, palette)
    return _made(
        lambda: vl_convert.vegalite_to_svg(found, vl_version=VEGA_LITE, allowed_base_urls=NOWHERE).encode(), never=NUL
    )


def pdf(figure: Figure, palette: Palette) -> bytes:
    """The figure as PDF."""
    found = spec(figure, palette)
    return _made(lambda: vl_convert.vegalite_to_pdf(found, vl_version=VEGA_LITE, allowed_base_urls=NOWHERE))


def _made(convert: Callable[[], bytes], never: bytes | None = None) -> bytes:
    """What is converted; again where it went wrong.

    vl-convert 1.9 once put a NUL character into a drawing that the same specification does not have another time (seen
    in one of some thousand renderings): its own PNG then fails, and an SVG would be no XML.
    """
    for _ in range(TRIES - 1):
        with suppress(ValueError):
            found = bytes(convert())
            if never is None or never not in found:
                return found
    return bytes(convert())


# By the ending of a file.
RENDERERS: dict[str, Callable[[Figure, Palette], bytes]] = {".png": png, ".svg": svg, ".pdf": pdf}
