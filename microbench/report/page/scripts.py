"""What runs on the page: its own scripts, the library that draws its figures, their specs, and the policy they obey."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from microbench.core.units import plain
from microbench.report.figures.figure import Figure
from microbench.report.figures.theme import Palette, config
from microbench.report.page.templates import source

if TYPE_CHECKING:
    from markupsafe import Markup


# In the order in which one needs the other.
SCRIPTS = ("unpacking.js", "tables.js", "details.js", "figures.js", "page.js")
# Colours by the names of the page's CSS variables: figures change with the page, and need not be drawn again.
PAGE_PALETTE = Palette(*(f"var(--{name})" for name in Palette._fields))
# Labels have hundreds of letters at most; expressions that look them up hold all of them.
LONGEST_TEXT = 20_000


def script() -> Markup:
    """The page's own script: no word of a run is in it."""
    from markupsafe import Markup

    return Markup("\n".join(["'use strict';", *(source(f"scripts/{name}") for name in SCRIPTS)]))


def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which sets ``window.vegaEmbed``."""
    import vl_convert

    from microbench.report.figures.rendering import VEGA_LITE

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE))


def specs(figures: Sequence[Figure]) -> bytes:
    """What the figures' script needs, as JSON: each figure's spec, and the config they share."""
    return msgspec.json.encode(
        {"config": config(PAGE_PALETTE), "specs": [_plain(figure.spec) for figure in figures]}, order="sorted"
    )


def _plain(value: Any) -> Any:
    """The same with every text in it made safe to show."""
    if isinstance(value, str):
        return plain(value, LONGEST_TEXT)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def policy(*allowed: str) -> str:
    """A content security policy under which only these scripts run, and nothing is ever fetched or sent."""
    hashes = " ".join(f"'sha256-{_digest(one)}'" for one in allowed)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
