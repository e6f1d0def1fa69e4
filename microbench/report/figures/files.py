"""Writes a figure as SVG, PDF or PNG. PDF and PNG take the packages of the extra ``plot``."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from microbench.core.errors import UsageError
from microbench.core.units import to_ascii
from microbench.report.figures.canvas import MIDDLE, Dots, Palette, Rectangle, Shape, Stroke, Words, corners_of, safe
from microbench.report.figures.figure import MARGIN, Figure

EXTRA = "plot"
# Pixels of a PNG for each CSS pixel.
SCALE = 2.0
# A CSS pixel in PDF points.
POINT = 0.75
# Regular and bold; they come with reportlab.
FONTS = ("Vera", "VeraBd")


def svg(figure: Figure, palette: Palette) -> bytes:
    """The figure as SVG; its text stays text."""
    return figure.sheet().svg(palette, margin=MARGIN, label=figure.conclusion).encode()


def png(figure: Figure, palette: Palette) -> bytes:
    """The figure as PNG: its PDF, rendered. Raises UsageError without the extra ``plot``."""
    document = pdf(figure, palette)
    try:
        import pypdfium2
    except ImportError:
        raise _missing() from None
    file = io.BytesIO()
    pypdfium2.PdfDocument(document)[0].render(scale=SCALE / POINT).to_pil().save(file, "png")
    return file.getvalue()


def pdf(figure: Figure, palette: Palette) -> bytes:
    """The figure as PDF with embedded fonts, which have Latin letters only. Raises UsageError without the extra."""
    try:
        from reportlab.pdfbase.pdfmetrics import registerFont
        from reportlab.pdfbase.ttfonts import TTFont
        from reportlab.pdfgen.canvas import Canvas as Page
    except ImportError:
        raise _missing() from None
    fonts = [TTFont(name, f"{name}.ttf") for name in FONTS]
    for font in fonts:
        registerFont(font)
    sheet = figure.sheet()
    width, height = sheet.width + 2 * MARGIN, sheet.height + 2 * MARGIN
    file = io.BytesIO()
    page = Page(file, (width * POINT, height * POINT), invariant=1)
    page.setTitle(safe(figure.conclusion))
    page.scale(POINT, POINT)
    page.setFillColor(palette.ground)
    page.rect(0, 0, width, height, stroke=0, fill=1)
    page.translate(MARGIN, height - MARGIN)
    page.setLineJoin(1)
    page.setLineCap(1)
    for shape in sheet.shapes:
        _draw(page, shape, palette, fonts)
    page.save()
    return file.getvalue()


def _draw(page: Any, shape: Shape, palette: Palette, fonts: Sequence[Any]) -> None:
    """Draw a shape; the page's y axis points up from the upper left corner."""
    page.setFillColor(palette.of(shape.colour))
    page.setStrokeColor(palette.of(shape.colour))
    match shape:
        case Stroke(points, _, width, dash):
            page.setLineWidth(width)
            page.setDash(list(dash))
            _path(page, points, stroke=1)
        case Rectangle(x, y, width, height, _, opacity, radius):
            page.setFillAlpha(opacity)
            page.roundRect(x, -y - height, width, height, min(radius, width / 2, height / 2), stroke=0, fill=1)
            page.setFillAlpha(1)
        case Dots(points, _, radius, symbol):
            for x, y in points:
                if symbol == "circle":
                    page.circle(x, -y, radius, stroke=0, fill=1)
                else:
                    _path(page, [(x + dx, y + dy) for dx, dy in corners_of(symbol, radius)], fill=1)
        case Words(x, y, text, _, anchor, size, bold, halo):
            font = fonts[bold]
            written = "".join(one if ord(one) in font.face.charToGlyph else to_ascii(one) for one in safe(text))
            left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * font.stringWidth(written, size)
            if halo:
                page.saveState()
                page.setStrokeColor(palette.ground)
                page.setLineWidth(4)
                page.setDash([])
                _write(page, left, y + size * MIDDLE, written, (font.fontName, size), outline=1)
                page.restoreState()
            _write(page, left, y + size * MIDDLE, written, (font.fontName, size))


def _write(page: Any, x: float, y: float, text: str, font: tuple[str, float], outline: int = 0) -> None:
    words = page.beginText(x, -y)
    words.setFont(*font)
    if outline:
        words.setTextRenderMode(outline)
    words.textOut(text)
    page.drawText(words)


def _path(page: Any, points: Sequence[tuple[float, float]], *, stroke: int = 0, fill: int = 0) -> None:
    path = page.beginPath()
    path.moveTo(points[0][0], -points[0][1])
    for x, y in points[1:]:
        path.lineTo(x, -y)
    page.drawPath(path, stroke=stroke, fill=fill)


def _missing() -> UsageError:
    return UsageError(
        "PNG and PDF need packages that are not installed",
        f"pip install 'cuda-microbench[{EXTRA}]', or name a file that ends in .svg",
    )


# By the ending of the file's name.
RENDERERS: dict[str, Callable[[Figure, Palette], bytes]] = {".png": png, ".svg": svg, ".pdf": pdf}
