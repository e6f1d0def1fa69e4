"""Makes a piece of HTML of a report or a screen, for a notebook, from the templates and the style of the page."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import count
from typing import Any

from microbench.report.document import Report, Screen
from microbench.report.figures.figure import Figure
from microbench.report.page.page import MOST_RESTS
from microbench.report.page.templates import WHOLE_WIDTH, environment, scoped_style

OWN = "\ue000"  # a private character, which stands for what makes ids unique


def fragment(shown: Report | Screen, figures: Sequence[Figure] = ()) -> str:
    """The report or the screen as one element with its style, without scripts; ``figures`` are folded at its end."""
    numbers = count()
    context = {
        "style": scoped_style(),
        "figures": figures,
        "most_rests": MOST_RESTS,
        "whole_width": WHOLE_WIDTH,
        "nowhere": lambda _name: None,
        "next_id": lambda: f"{OWN}-{next(numbers)}",
        **(_of_screen(shown) if isinstance(shown, Screen) else _of_report(shown)),
    }
    text = environment().get_template("fragment.html").render(context)
    # Ids must differ between the outputs of a notebook, and be the same for the same output on every machine.
    return text.replace(OWN, hashlib.sha256(text.encode()).hexdigest()[:8])


def _of_screen(screen: Screen) -> dict[str, Any]:
    return {
        "title": screen.run,
        "mark": screen.mark,
        "banners": screen.banners,
        "facts": (),
        "blocks": screen.blocks,
        "findings": (*screen.distorting, *screen.findings),
        "sections": (),
        "tables": screen.tables,
        "footer": tuple(filter(None, (screen.left_out,))),
    }


def _of_report(report: Report) -> dict[str, Any]:
    problems = () if report.problems is None else (report.problems,)
    return {
        "title": report.title,
        "mark": report.mark,
        "banners": report.banners,
        "facts": report.facts,
        "blocks": (),
        "findings": report.environment,
        "sections": report.sections,
        "tables": problems,
        "footer": (),
    }
