"""Figures of a run, or of several in one: pictures for pages and files, made with Altair, each one file here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from microbench.report.figures.figure import Draw, Figure, Origin


class Kind(NamedTuple):
    """A figure that there is: what it shows, and what measures its rows."""

    title: str
    benchmarks: tuple[str, ...]


# What gives the model its constants for kernels and replays.
STEP = (
    "launch_cost",
    "launch_duration",
    "launch_queue",
    "launch_layers",
    "launch_sync",
    "graph_lifecycle",
    "graph_gain",
)

# As many as there are colours: of more, two would have the same.
MOST_SOURCES = 4

# By the name that a person types, in the order of a page.
KINDS = {
    "ladder": Kind("Submission ladder: the same kernel, launched from each layer", ("launch_layers",)),
    "gain": Kind("Speed-up of a graph over kernel duration", ("graph_gain",)),
    "link": Kind("Bandwidth over the size of a copy", ("link_copy",)),
    "memory": Kind("Bandwidth and latency over the working set", ("memory_levels", "memory_latency")),
    "roofline": Kind("Products of models under this GPU's own roofs", ("gemm_shapes",)),
    "sustained": Kind("Products that last: rate, clock, power and temperature", ("gemm_sustained",)),
    "step": Kind("A short step, predicted: in a stream and as a graph", STEP),
}


def figures(origins: Sequence[Origin]) -> dict[str, Figure]:
    """Every figure that these have rows for, by name, in the order of KINDS; several runs lie over each other."""
    return {name: found for name in KINDS if (found := drawn(name, origins)) is not None}


def drawn(name: str, origins: Sequence[Origin]) -> Figure | None:
    """The figure of that name from KINDS; None where none of these has its rows."""
    from microbench.report.figures.figure import Figure, conclusions, source_words, sources

    draw = _draws()[name]
    drawing = draw(sources(origins))
    if drawing is not None and len(drawing.told) > MOST_SOURCES:
        left_out = len(drawing.told) - MOST_SOURCES
        drawing = draw([source for source, _ in drawing.told[:MOST_SOURCES]])
        drawing = drawing and drawing._replace(about=f"{drawing.about}; {left_out} more not drawn")
    if drawing is None:
        return None
    return Figure(
        name=name,
        title=KINDS[name].title,
        conclusions=conclusions(drawing.told),
        about=drawing.about,
        sources=tuple(source_words(source) for source, _ in drawing.told),
        table=drawing.table,
        chart=drawing.chart,
    )


def _draws() -> dict[str, Draw]:
    """What draws each; imported late, as Altair takes a second."""
    from microbench.report.figures import (
        graph_gain,
        link_size,
        memory_hierarchy,
        predicted_step,
        roofline,
        submission_ladder,
        sustained,
    )

    return {
        "ladder": submission_ladder.draw,
        "gain": graph_gain.draw,
        "link": link_size.draw,
        "memory": memory_hierarchy.draw,
        "roofline": roofline.draw,
        "sustained": sustained.draw,
        "step": predicted_step.draw,
    }
