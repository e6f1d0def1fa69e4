"""Makes a piece of HTML of a report or a screen, for a notebook, from the templates and the style of the page."""

import hashlib
from collections.abc import Sequence
from itertools import count

from microbench.report.document import Report, Screen
from microbench.report.figures.figure import Figure
from microbench.report.page.page import MOST_RESTS
from microbench.report.page.templates import element_context, environment, scoped_style

OWN = "\ue000"  # a private character, which stands for what makes ids unique


def fragment(shown: Report | Screen, figures: Sequence[Figure] = ()) -> str:
    """The report or the screen as one element with its style, without scripts; ``figures`` are folded at its end."""
    numbers = count()
    context = element_context() | {
        "style": scoped_style(), "figures": figures, "most_rests": MOST_RESTS, "mark": shown.mark,
        "banners": shown.banners, "next_id": lambda: f"{OWN}-{next(numbers)}",
    }  # fmt: skip
    if isinstance(shown, Screen):
        context |= {
            "title": shown.run, "facts": (), "blocks": shown.blocks, "sections": (), "tables": shown.tables,
            "findings": (*shown.distorting, *shown.findings), "footer": (shown.left_out,) if shown.left_out else (),
        }  # fmt: skip
    else:
        context |= {
            "title": shown.title, "facts": shown.facts, "blocks": (), "sections": shown.sections, "footer": (),
            "tables": () if shown.problems is None else (shown.problems,), "findings": shown.environment,
        }  # fmt: skip
    text = environment().get_template("fragment.html").render(context)
    # Ids must differ between the outputs of a notebook, and be the same for the same output on every machine.
    return text.replace(OWN, hashlib.sha256(text.encode()).hexdigest()[:8])
