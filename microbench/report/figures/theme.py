"""What figures look like on light and on dark ground: colours and type, as a Vega-Lite config that no spec repeats."""

from __future__ import annotations

from typing import Any, NamedTuple

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# In CSS pixels: a figure's, of which PADDING are free at each side. A page gives its figures a width of its own.
WIDTH, PADDING = 640, 12
SMALL, USUAL, LARGE = 11, 12, 15
# Ceilings and other computed limits are dashed, what was measured is not.
DASHED, DOTTED, LIMIT_WIDTH = (6, 4), (2, 3), 1.5


class Palette(NamedTuple):
    """Colours by what they are for. ``first`` to ``fourth`` tell series apart, ``quiet`` is for what only helps to read
    them. Any colour that an SVG attribute takes, so ``var(--name)`` as well."""

    ground: str
    ink: str
    muted: str
    quiet: str
    grid: str
    first: str
    second: str
    third: str
    fourth: str

    @property
    def series(self) -> tuple[str, str, str, str]:
        """The colours of series, in order."""
        return self.first, self.second, self.third, self.fourth


# The same four hues on both grounds. Each is text as well, so its contrast is at least 4.5 : 1 (WCAG 2.2, 1.4.3), and
# any two of them differ for every kind of colour blindness (tests/test_figures.py computes both).
LIGHT = Palette(
    ground="#ffffff", ink="#1b1f24", muted="#59636e", quiet="#7d8590", grid="#e4e8ec",
    first="#1456c4", second="#b35a00", third="#00836f", fourth="#7d2a66",
)  # fmt: skip
DARK = Palette(
    ground="#14181f", ink="#e8ebef", muted="#9aa4b0", quiet="#77818d", grid="#2a313b",
    first="#4fa3ff", second="#f0803a", third="#3fe0b8", fourth="#c27ab0",
)  # fmt: skip


def config(palette: Palette) -> dict[str, Any]:
    """The Vega-Lite config of a palette: give it to the renderer, or put it into a spec as ``config``."""
    return {
        "background": palette.ground,
        "font": FONT,
        "padding": PADDING,
        "view": {"stroke": None},
        "title": _title(palette),
        "axis": _axis(palette),
        "legend": {
            "labelColor": palette.ink, "labelFontSize": USUAL, "labelLimit": 0, "title": None, "orient": "top",
            "symbolSize": 120, "symbolStrokeWidth": 0, "padding": 0, "offset": 32, "symbolOpacity": 1,
        },
        "range": {"category": list(palette.series)},
        "text": {"font": FONT, "fontSize": USUAL, "color": palette.ink},
        "rule": {"color": palette.quiet},
        "line": {"strokeWidth": 2, "strokeCap": "round", "strokeJoin": "round"},
        "point": {"filled": True, "size": 36, "opacity": 1},
        "bar": {"cornerRadiusEnd": 2},
        "style": {
            "halo": {"color": palette.ground, "stroke": palette.ground, "strokeWidth": 4, "strokeJoin": "round"},
            "muted": {"color": palette.muted},
            "heading": {"fontWeight": 600},
            "limit": {"color": palette.quiet, "strokeWidth": LIMIT_WIDTH, "strokeDash": list(DASHED)},
            "quiet": {"color": palette.quiet, "strokeWidth": 1.5},
            "quiet-point": {"color": palette.quiet, "size": 16},
            "quiet-bar": {"color": palette.quiet},
            "on-bar": {"color": palette.ground},
            "length": {"color": palette.muted, "strokeWidth": 1},
            "mark": {"color": palette.quiet, "strokeWidth": 1, "strokeDash": list(DOTTED)},
        },
    }  # fmt: skip


def _title(palette: Palette) -> dict[str, Any]:
    return {
        "anchor": "start", "frame": "bounds", "offset": 14, "font": FONT, "subtitleFont": FONT,
        "color": palette.ink, "fontSize": LARGE, "fontWeight": 600, "lineHeight": LARGE + 5,
        "subtitleColor": palette.muted, "subtitleFontSize": USUAL, "subtitleLineHeight": USUAL + 5,
        "subtitlePadding": 6,
    }  # fmt: skip


def _axis(palette: Palette) -> dict[str, Any]:
    return {
        "domain": False, "ticks": False, "gridColor": palette.grid, "gridWidth": 1,
        "labelColor": palette.muted, "labelFontSize": SMALL, "labelFont": FONT, "labelPadding": 6,
        "titleColor": palette.muted, "titleFontSize": SMALL, "titleFontWeight": "normal", "titleFont": FONT,
        "labelOverlap": "greedy",
    }  # fmt: skip
