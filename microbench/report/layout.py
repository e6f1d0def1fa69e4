"""What fits a page: columns of a table, pieces of a line. Arithmetic on characters, no drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from microbench.report.document import Table

# Two spaces between columns, one at each edge; a cell's note and its grade's mark stand one space off.
BETWEEN, EDGES = 2, 2


# What stands between things that are told in one line.
SEPARATOR, GOES_ON = " · ", " ·"


def packed(words: str, width: int, length: Callable[[str], int] = len) -> list[str]:
    """Lines of at most ``width`` that break only between the pieces of ``words``: "PCIe 5 x16" stays together. A piece
    that is longer by itself has a line of its own."""
    first, *others = words.split(SEPARATOR)
    lines = [first]
    for left, piece in zip(range(len(others) - 1, -1, -1), others, strict=True):
        joined = f"{lines[-1]}{SEPARATOR}{piece}"
        if length(joined) + (len(GOES_ON) if left else 0) <= width:
            lines[-1] = joined
        else:
            lines[-1] += GOES_ON
            lines.append(piece)
    return lines


class Widths:
    """The widths of one table's columns. ``shown`` says what the page shows of a text; ``notes`` whether cells keep
    theirs."""

    def __init__(self, table: Table, shown: Callable[[str], str], *, notes: bool = True) -> None:
        self._table = table
        self._shown = shown
        self._columns = range(len(table.columns))
        # Notes are padded to the longest of their column, so that figures stand under each other.
        self.notes = [
            max((len(shown(row[index].note)) for row in table.rows), default=0) if notes else 0
            for index in self._columns
        ]
        self.needed = [self._column(index) for index in self._columns]

    def _column(self, index: int) -> int:
        cells = (row[index] for row in self._table.rows)
        return max(
            [
                len(self._shown(self._table.columns[index].title)),
                *(
                    len(self._shown(cell.text))
                    + (1 + self.notes[index] if cell.note and self.notes[index] else 0)
                    + (2 if cell.trust else 0)
                    for cell in cells
                ),
            ]
        )

    def total(self, kept: Sequence[int]) -> int:
        """Characters that the table takes with these columns, nothing wrapped."""
        return sum(self.needed[index] for index in kept) + BETWEEN * max(len(kept) - 1, 0) + EDGES

    def fitting(self, width: int) -> list[int]:
        """Indexes of the columns to show in ``width`` characters: those that may go do, until the rest fits."""
        kept = list(self._columns)
        while self.total(kept) > width and any(self._table.columns[index].drop for index in kept):
            kept.remove(max(kept, key=lambda index: self._table.columns[index].drop))
        return kept


def fitted(table: Table, width: int, shown: Callable[[str], str]) -> tuple[Widths, list[int]]:
    """The widths and columns in which a table fits ``width``: columns that may go do, then the notes beside figures."""
    widths = Widths(table, shown)
    kept = widths.fitting(width)
    if widths.total(kept) > width:
        widths = Widths(table, shown, notes=False)
        kept = widths.fitting(width)
    return widths, kept
