"""Lays out tables and running text in characters: lines of pieces, each a text with its tone."""

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len, chop_cells

from microbench.core.units import plain
from microbench.report.document import TRUST_MARKS, Cell, Prose, Table, Tone

Piece = tuple[str, Tone]
Drawn = list[list[Piece]]
PLAIN: Tone = "plain"
QUIET: Tone = "quiet"

LONGEST_CELL = 400
LONGEST_NOTE = 800
# Two blanks between columns, one at each edge of a table.
BETWEEN, EDGES = 2, 2
# Longer lines of running text are hard to read.
WIDEST_PROSE = 96
SEPARATOR, GOES_ON = " · ", " ·"


def shown(text: str) -> str:
    """``text`` on one line without control characters."""
    return plain(text, LONGEST_CELL)


def length_of(pieces: Iterable[Piece]) -> int:
    """How many places the pieces take on a terminal."""
    return sum(cell_len(text) for text, _ in pieces)


def joined(cells: Sequence[Piece]) -> list[Piece]:
    """Neighbouring characters of one tone as one piece."""
    pieces: list[Piece] = []
    for text, tone in cells:
        if pieces and pieces[-1][1] == tone:
            pieces[-1] = (pieces[-1][0] + text, tone)
        else:
            pieces.append((text, tone))
    return pieces


def packed(words: str, width: int) -> list[str]:
    """Lines of at most ``width`` that break only at the separators " · "; a longer part has a line of its own."""
    first, *others = words.split(SEPARATOR)
    lines = [first]
    for left, part in zip(range(len(others) - 1, -1, -1), others, strict=True):
        longer = f"{lines[-1]}{SEPARATOR}{part}"
        if cell_len(longer) + (len(GOES_ON) if left else 0) <= width:
            lines[-1] = longer
        else:
            lines[-1] += GOES_ON
            lines.append(part)
    return lines


def prose(picture: Prose, width: int) -> Drawn:
    """The paragraphs with a blank line between them; a whole phrase that fits on a line is not broken."""
    lines: Drawn = []
    room = min(width, WIDEST_PROSE) - 1
    for paragraph in picture.paragraphs:
        parts = (
            ((shown(part), phrase.tone), index > 0)
            for phrase in paragraph
            for index, part in enumerate(
                [phrase.text] if phrase.whole and len(phrase.text) <= room else phrase.text.split(" ")
            )
        )
        lines += [[], *([(" ", "plain"), *line] for line in _wrapped(_words(parts), room))]
    return lines[1:]


def _words(parts: Iterable[tuple[Piece, bool]]) -> Iterator[list[Piece]]:
    """Pieces joined to words, between which a line may break."""
    word: list[Piece] = []
    for piece, begins in parts:
        if begins and word:
            yield word
            word = []
        if piece[0]:
            word.append(piece)
    if word:
        yield word


def _wrapped(words: Iterable[list[Piece]], width: int) -> Drawn:
    """Words in lines of at most ``width`` places; a longer word is cut."""
    lines: Drawn = [[]]
    used = 0
    for word in words:
        length = length_of(word)
        if used and used + 1 + length > width:
            lines.append([])
            used = 0
        if used:
            lines[-1].append((" ", "plain"))
            used += 1
        if length > width:
            *whole, (rest, tone) = [(part, tone) for text, tone in word for part in chop_cells(text, max(width, 1))]
            lines[-1:] = [*([part] for part in whole), [(rest, tone)]]
            used = cell_len(rest)
        else:
            lines[-1] += word
            used += length
    return lines


class Widths:
    """The widths of a table's columns, with or without the notes of cells."""

    def __init__(self, table: Table, *, notes: bool = True) -> None:
        self._drops = [column.drop for column in table.columns]
        # Notes are padded to the longest of their column, so that figures are aligned.
        self.notes = [
            max((cell_len(shown(row[index].note)) for row in table.rows), default=0) if notes else 0
            for index in range(len(table.columns))
        ]
        self.needed = [
            max(
                cell_len(shown(column.title)),
                *(length_of(cell_pieces(row[index], self.notes[index])) for row in table.rows),
                0,
            )
            for index, column in enumerate(table.columns)
        ]

    def total(self, kept: Sequence[int]) -> int:
        """The width of a table with these columns, nothing wrapped."""
        return sum(self.needed[index] for index in kept) + BETWEEN * max(len(kept) - 1, 0) + EDGES

    def fitting(self, width: int) -> list[int]:
        """The columns to show in ``width`` places: columns are dropped, if they may be, until the rest fits."""
        kept = list(range(len(self.needed)))
        while self.total(kept) > width and any(self._drops[index] for index in kept):
            kept.remove(max(kept, key=lambda index: self._drops[index]))
        return kept


def cell_pieces(cell: Cell, note_width: int) -> list[Piece]:
    """A cell's text, its note padded to ``note_width`` (0: left out), and the mark of its grade."""
    pieces: list[Piece] = [(shown(cell.text), cell.tone)]
    if cell.note and note_width:
        note = shown(cell.note)
        pieces.append((f" {note}{' ' * (note_width - cell_len(note))}", "quiet"))
    if cell.trust is not None:
        sign, tone = TRUST_MARKS[cell.trust]
        pieces.append((f" {shown(sign)}", tone))
    return pieces


def dropped(picture: Table, width: int) -> list[str]:
    """The titles of the columns for which a table of that width has no room."""
    _, columns = _fitted(picture, width)
    return [column.title for index, column in enumerate(picture.columns) if index not in columns]


def _fitted(picture: Table, width: int) -> tuple[Widths, list[int]]:
    """The widths of a table's columns, and which of them fit, with the notes of cells or else without."""
    widths = Widths(picture)
    columns = widths.fitting(width)
    if widths.total(columns) > width:
        widths = Widths(picture, notes=False)
        columns = widths.fitting(width)
    return widths, columns


def table(picture: Table, width: int) -> Drawn:
    """A table in as many columns as fit, else without the notes of cells, else with long cells wrapped."""
    widths, columns = _fitted(picture, width)
    sizes = [widths.needed[index] for index in columns]
    for _ in range(widths.total(columns) - width):  # the widest column gives way
        sizes[sizes.index(max(sizes))] -= 1
    rights = [picture.columns[index].align == "right" for index in columns]
    titles = []
    for index, size, right in zip(columns, sizes, rights, strict=True):
        title = shown(picture.columns[index].title)
        blank = " " * (size - cell_len(title))
        titles.append([(blank + title if right else title + blank, QUIET)])
    lines = _row(titles, sizes, rights, QUIET)
    lines.append([("─" * (sum(sizes) + BETWEEN * (len(sizes) - 1) + EDGES), QUIET)])
    for row in picture.rows:
        lines += _row([cell_pieces(row[index], widths.notes[index]) for index in columns], sizes, rights, PLAIN)
    return lines


def _row(cells: Sequence[list[Piece]], sizes: Sequence[int], rights: Sequence[bool], blank: Tone) -> Drawn:
    """The cells of a row next to each other, on several lines if a cell is longer than its column."""
    blocks = []
    for cell, size in zip(cells, sizes, strict=True):
        parts = (((part, tone), at > 0) for text, tone in cell for at, part in enumerate(text.split(" ")))
        blocks.append([cell] if length_of(cell) <= size else _wrapped(_words(parts), size))
    lines: Drawn = []
    for number in range(max(map(len, blocks), default=0)):
        line: list[Piece] = [(" ", blank)]
        for block, size, right in zip(blocks, sizes, rights, strict=True):
            pieces = block[number] if number < len(block) else []
            padding: Piece = (" " * (size - length_of(pieces)), blank)
            line += [padding, *pieces] if right else [*pieces, padding]
            line += [(" ", blank), (" ", QUIET)]
        lines.append(line[:-1])
    return lines
