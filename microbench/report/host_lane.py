"""The host's lane of a drawn step: its calls one by one or in stretches, and where it waits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal, NamedTuple

from microbench import costmodel
from microbench.costmodel import Act
from microbench.report.document import Lane, Span
from microbench.report.steps import HOST, LINK, OWN, Step

# More stretches than this cannot be told apart.
MOST_STRETCHES = 40


def each(step: Step) -> Lane:
    """Every call, launches with their number; pale where the host waits."""
    found: list[Span] = []
    number, before_s = 0, 0.0
    for span in step.played.host:
        act = step.acts[span.act]
        if span.begin_s > before_s:
            found.append(Span(before_s, span.begin_s, "queue full", HOST, "pale"))
        number += act.kind == "launch"
        found.append(_call(step, span, act, number))
        before_s = span.end_s
    return _lane(step, found)


def merged(step: Step) -> Lane:
    """Calls without a wait between them as one stretch; all as one where that makes too many."""
    doing = list(_doing(step))
    groups = [(what, list(several)) for what, several in itertools.groupby(doing, key=lambda one: one.what)]
    if len(groups) > MOST_STRETCHES:
        calls = sum(one.what in ("calls", "held up") for one in doing)
        waits = sum(one.span.lane == "wait" for one in doing)
        words = f"{calls} calls, {waits} synchronises" if waits else f"{calls} calls"
        return _lane(step, [Span(0.0, doing[-1].span.end_s, words, HOST, "shaded")])
    found: list[Span] = []
    before_s = 0.0
    for what, several in groups:
        found.append(_stretch(step, what, before_s, several[-1].span.end_s, len(several)))
        before_s = several[-1].span.end_s
    return _lane(step, found)


def _lane(step: Step, spans: list[Span]) -> Lane:
    return Lane(f"{step.name.ljust(6)} host", tuple(spans))


def _call(step: Step, span: costmodel.Span, act: Act, number: int) -> Span:
    """One thing that the host does."""
    begin_s, end_s = span.begin_s, span.end_s
    if span.lane == "wait":
        return Span(begin_s, end_s, _wait_words(step), HOST, "pale")
    match act.kind:
        case "launch":
            return Span(begin_s, end_s, str(number), HOST)
        case "replay":
            return Span(begin_s, end_s, "replay", HOST)
        case "copy":
            return Span(begin_s, end_s, "copy" if act.work else "pageable copy", HOST if act.work else LINK)
        case "sync":
            return Span(begin_s, end_s, "", HOST, "pale")
        case "host":
            return Span(begin_s, end_s, "own work", OWN)


def _wait_words(step: Step) -> str:
    kinds = [act.kind for act in step.acts]
    return "one replay, then synchronise" if kinds == ["replay", "sync"] else "synchronise"


What = Literal["calls", "held up", "copy", "sync", "host"]


class _Doing(NamedTuple):
    """One thing that the host does, and the kind of stretch it belongs to."""

    span: costmodel.Span
    what: What


def _doing(step: Step) -> Iterator[_Doing]:
    before_s = 0.0
    for span in step.played.host:
        act = step.acts[span.act]
        match act.kind:
            case "sync" | "host":
                yield _Doing(span, act.kind)
            case "copy" if not act.work:
                yield _Doing(span, "copy")
            case _:  # nothing but a full queue parts a call from what the host did before
                yield _Doing(span, "held up" if span.begin_s > before_s else "calls")
        before_s = span.end_s


def _stretch(step: Step, what: What, begin_s: float, end_s: float, count: int) -> Span:
    match what:
        case "calls":
            return Span(begin_s, end_s, f"{count} calls" if count > 1 else "", HOST)
        case "held up":
            return Span(begin_s, end_s, f"{count} calls, each when the full queue has room", HOST, "shaded")
        case "copy":
            return Span(begin_s, end_s, "pageable copy", LINK)
        case "host":
            return Span(begin_s, end_s, "own work", OWN)
        case "sync":
            return Span(begin_s, end_s, _wait_words(step), HOST, "pale")
