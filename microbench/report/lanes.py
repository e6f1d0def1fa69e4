"""Time lines in characters: lanes under one axis of time, to scale, half a character fine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from microbench.report.charts import HEIGHTS, Drawn, Piece, joined
from microbench.report.document import Lane, Mark, Span, TimeLine, Tone

HALVES = 2
FULL, LEFT, RIGHT = "█", "▌", "▐"
ON: dict[Tone, Tone] = {"first": "on_first", "second": "on_second", "third": "on_third"}
# The same nine heights where there is nothing but ASCII.
PLAIN_HEIGHTS = " .:-=+*%#"
FILLS = {"solid": FULL, "shaded": "▒", "pale": "░", "idle": "─"}


def time_line(one: TimeLine, width: int, *, fine: bool, inverse: bool) -> Drawn:
    """Lanes to scale under an axis of time. ``fine`` begins and ends work at half a character; ``inverse`` writes on
    blocks rather than between their halves."""
    name_width = max(len(lane.name) for lane in one.lanes) + 2
    inner = width - name_width
    scale = (inner - 1) / one.end_s if one.end_s > 0 else 0.0
    lines: Drawn = [[(" " * name_width, "plain"), (_axis(one.ticks, scale, inner), "quiet")]]
    for lane in one.lanes:
        lines.append([(lane.name.ljust(name_width), "strong"), *_lane(lane, scale, inner, fine, inverse)])
    return lines


def _axis(ticks: Sequence[Mark], scale: float, width: int) -> str:
    line = ""
    for tick in ticks:
        begin = round(tick.at * scale)
        if begin >= len(line) and begin + len(tick.text) <= width:
            line = line.ljust(begin) + tick.text + " "
    return line.ljust(width)[:width]


def _lane(lane: Lane, scale: float, width: int, fine: bool, inverse: bool) -> list[Piece]:
    cells: list[Piece] = [(" ", "plain")] * width
    work = [span for span in lane.spans if span.kind == "solid" and not _instant(span)]
    for span in lane.spans:
        begin, end = round(span.begin_s * scale), round(span.end_s * scale)
        if _instant(span):
            text = f"▌{span.text}"
            _write(cells, min(begin, max(width - len(text), 0)), text, span.tone)
        elif span.kind not in ("solid", "level") and (span.kind != "distance" or end > begin):
            _write(cells, begin, _stretch(span, max(end - begin, 1)), span.tone)
    _raise(cells, [span for span in lane.spans if span.kind == "level"], scale, HEIGHTS if fine else PLAIN_HEIGHTS)
    for span, begin, end in _apart(work, scale, fine):
        at, block = begin // HALVES, _block(begin, end)
        _write(cells, at, block, span.tone)
        label, within = _label(span.text, block)
        _write(cells, at + within, label, ON.get(span.tone, span.tone) if inverse else span.tone)
    return joined(cells)


def _instant(span: Span) -> bool:
    """Whether it is a moment with words, and no stretch of time."""
    return span.begin_s == span.end_s and bool(span.text)


def _write(cells: list[Piece], begin: int, text: str, tone: Tone) -> None:
    for index, character in enumerate(text[: max(len(cells) - begin, 0)]):
        cells[begin + index] = (character, tone)


def _raise(cells: list[Piece], spans: Sequence[Span], scale: float, heights: str) -> None:
    """Each character as high as the level is on average within it; however low, it can be seen."""
    means: dict[int, float] = {}
    for span in spans:
        begin, end = span.begin_s * scale, span.end_s * scale
        for index in range(int(begin), math.ceil(end)):
            means[index] = means.get(index, 0.0) + span.level * (min(end, index + 1) - max(begin, index))
    for index, mean in means.items():
        _write(cells, index, heights[max(round(mean * (len(heights) - 1)), 1)], spans[0].tone)


def _apart(spans: Sequence[Span], scale: float, fine: bool) -> list[tuple[Span, int, int]]:
    """Work with its begin and end in half characters. One that would touch the next ends sooner, so that each is seen
    by itself; where they are narrower than that, they run together."""
    step = 1 if fine else HALVES
    placed: list[tuple[Span, int, int]] = []
    for span in spans:
        begin = round(span.begin_s * scale * HALVES / step) * step
        end = max(round(span.end_s * scale * HALVES / step) * step, begin + step)
        if placed:
            before, its_begin, its_end = placed[-1]
            if its_end >= begin > its_begin + step:
                placed[-1] = (before, its_begin, begin - step)
        placed.append((span, begin, end))
    return placed


def _block(begin: int, end: int) -> str:
    """A block between two half characters."""
    head, tail = RIGHT if begin % HALVES else "", LEFT if end % HALVES else ""
    return head + FULL * max(end // HALVES - (begin + 1) // HALVES, 0) + tail


def _label(text: str, block: str) -> tuple[str, int]:
    """The text as it fits into the whole characters of a block, and where in the block it begins."""
    whole = block.count(FULL)
    text = f" {text} " if text and whole >= len(text) + 4 else text
    if not text or whole < len(text) + 2:
        return "", 0
    return text, block.index(FULL) + (whole - len(text)) // 2


def _stretch(span: Span, length: int) -> str:
    if span.kind == "distance":
        inner = max(length - 1, 0)
        text = f" {span.text} " if inner >= len(span.text) + 3 else span.text if inner > len(span.text) else ""
        return f"├{text.center(inner, '─')}┤"
    text = f" {span.text} " if span.text and length >= len(span.text) + 5 else ""
    return text.center(length, FILLS[span.kind])
