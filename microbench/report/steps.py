"""A step as it is drawn: one way of submitting it, what ran, and the colours of host, GPU and link."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from microbench.costmodel import Act, Played, Span, Work
from microbench.report.document import Tone

HOST: Tone = "first"
GPU: Tone = "second"
LINK: Tone = "third"
OWN: Tone = "plain"


class Step(msgspec.Struct, frozen=True):
    """A step submitted one way ("stream" or "graph"): what the host did, and when what happened."""

    name: str
    acts: tuple[Act, ...]
    played: Played

    @property
    def end_s(self) -> float:
        """When all is done."""
        return self.played.end_s

    @property
    def parts(self) -> int:
        """How many things there are to draw on the longest lane."""
        return max(len(self.acts), len(self.played.work))


class Item(NamedTuple):
    """A kernel or copy: when it ran, as what it was submitted, and when it had come to the GPU."""

    span: Span
    work: Work
    ready_s: float

    @property
    def ran(self) -> tuple[float, float]:
        """From when to when."""
        return self.span.begin_s, self.span.end_s


def items(step: Step) -> list[Item]:
    """Kernels and copies in the order of their submission."""
    called = {span.act: span.end_s for span in step.played.host if span.lane == "host"}
    works = (work for act in step.acts for work in act.work)
    return [
        Item(span, work, called[span.act] + step.acts[span.act].way_s)
        for span, work in zip(step.played.work, works, strict=True)
    ]
