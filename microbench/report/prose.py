"""Running text in characters: paragraphs wrapped to the page, with no break inside a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from microbench.report.charts import Drawn, Piece
from microbench.report.document import Phrase, Prose

# Lines longer than this are hard to read, however wide the page.
WIDEST = 96
INDENT: Piece = (" ", "plain")


def prose(one: Prose, width: int, *, shown: Callable[[str], str]) -> Drawn:
    """The paragraphs, a blank line between them. ``shown`` says what the page shows of a text."""
    lines: Drawn = []
    for paragraph in one.paragraphs:
        wrapped = _wrapped(paragraph, min(width, WIDEST) - len(INDENT[0]), shown)
        lines += [[], *([INDENT, *line] for line in wrapped)]
    return lines[1:]


def _wrapped(paragraph: tuple[Phrase, ...], width: int, shown: Callable[[str], str]) -> Drawn:
    lines: Drawn = [[]]
    used = 0
    for word in _words(paragraph, width, shown):
        length = sum(len(text) for text, _ in word)
        if used and used + 1 + length > width:
            lines.append([])
            used = 0
        if used:
            lines[-1].append((" ", "plain"))
            used += 1
        lines[-1] += word
        used += length
    return lines


def _words(paragraph: tuple[Phrase, ...], width: int, shown: Callable[[str], str]) -> Iterator[list[Piece]]:
    """What a line may break between: words, and whole phrases that fit one, with the punctuation that follows them."""
    word: list[Piece] = []
    for phrase in paragraph:
        parts = [phrase.text] if phrase.whole and len(phrase.text) <= width else phrase.text.split(" ")
        for index, part in enumerate(parts):
            if index and word:
                yield word
                word = []
            if part:
                word.append((shown(part), phrase.tone))
    if word:
        yield word
