"""What several GPUs are to each other: rates and latency of each pair, and what one keeps while others copy."""

from __future__ import annotations

from microbench.explain.evidence import Evidence
from microbench.explain.link_copies import DIRECTIONS
from microbench.explain.link_facts import link_facts
from microbench.explain.link_peers import LATENCY, WAYS, Pair, failures, pairs, reasons_named, refusals, usual_way
from microbench.explain.link_places import EVERYBODY, KEEPS, Beside, beside
from microbench.report.document import Cell, Column, Table
from microbench.report.shapes import NOTHING
from microbench.stats import Row
from microbench.units import as_time, gigabytes, percent, round_percent

ITSELF = Cell("·", tone="quiet")


def peers(evidence: Evidence) -> list[Table]:
    """Every GPU with every other: rate by the usual way, and latency; why pairs are missing."""
    way = usual_way(evidence)
    if way is None:
        return []
    reasons = [*reasons_named(refusals(evidence)), *(f"failed, {one}" for one in reasons_named(failures(evidence)))]
    about = f"{WAYS[way]}; the GPU that moves the data down, the one whose memory it is across"
    found = [_matrix(evidence, way, "GPU to GPU, in GB/s", about, (*reasons, *_classes(evidence)))]
    if pairs(evidence, LATENCY):
        found.append(_matrix(evidence, LATENCY, "GPU to GPU, one dependent read", "the reading GPU down", ()))
    return found


def _matrix(evidence: Evidence, way: str, title: str, about: str, notes: tuple[str, ...]) -> Table:
    found = pairs(evidence, way)
    gpus = sorted({index for pair in found for index in pair})
    cells = {pair: _peer_cell(way, row) for pair, row in found.items()}
    rows = tuple(
        (Cell(f"GPU {first}", tone="strong"), *(_of_pair(cells, first, second) for second in gpus)) for first in gpus
    )
    return Table(title, about, (Column("", "left"), *(Column(f"GPU {index}") for index in gpus)), rows, notes)


def _of_pair(cells: dict[Pair, Cell], first: int, second: int) -> Cell:
    if first == second:
        return ITSELF
    return cells.get(Pair(first, second), NOTHING)


def _peer_cell(way: str, row: Row) -> Cell:
    return Cell(as_time(row.value) if way == LATENCY else gigabytes(row.value))


def _classes(evidence: Evidence) -> tuple[str, ...]:
    """How far the other devices are, as topology tools name it."""
    found = link_facts(evidence).topology()
    who = f"GPU {evidence.gpu.index}" if evidence.gpu is not None else "this GPU"
    words = ", ".join(f"{name} {kind}" for name, kind in found.items())
    return (f"seen from {who}: {words}",) if words else ()


def uplinks(evidence: Evidence) -> list[Table]:
    """What each GPU keeps of its rate while another copies, or all others: one table a direction."""
    found = beside(evidence)
    own = {words: [one for one in found if one.direction == direction] for direction, words in DIRECTIONS.items()}
    return [_uplink(members, words) for words, members in own.items() if members]


def _uplink(found: list[Beside], words: str) -> Table:
    cells = {(one.gpu_index, one.beside): _kept_cell(one) for one in found}
    others = sorted({one.beside for one in found}, key=lambda name: (name != EVERYBODY, len(name), name))
    columns = [Column("all others" if name == EVERYBODY else f"GPU {name}") for name in others]
    rows = tuple(
        (
            Cell(f"GPU {index}", tone="strong"),
            *(ITSELF if name == str(index) else cells.get((index, name), NOTHING) for name in others),
        )
        for index in sorted({one.gpu_index for one in found})
    )
    shared = f"under {round_percent(KEEPS)} an uplink is shared"
    about = f"the GPU that is measured down, who copies beside it across; {shared}"
    return Table(f"Kept of a rate {words} while others copy", about, (Column("", "left"), *columns), rows)


def _kept_cell(one: Beside) -> Cell:
    return Cell(percent(one.kept), tone="warning" if one.kept < KEEPS else "plain")
