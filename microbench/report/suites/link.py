"""The link suite's pictures: the way to the GPU, rates over size with fit and ceiling, pin or not, pairs of GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.analysis.evidence import Evidence, whole
from microbench.analysis.stats import Row
from microbench.core.units import about_size, as_time, gigabytes, percent, quantity, round_percent, size
from microbench.explain.link_facts import (
    DEVICE,
    DIRECTIONS,
    EVERYBODY,
    HALF,
    HOST,
    LATENCY,
    MEMORIES,
    MOST,
    PEER_WAYS,
    PINNING,
    SHARED_BELOW,
    Choice,
    Contention,
    CopyFit,
    Hop,
    Joint,
    LinkFacts,
    Pair,
    Speed,
    bridges,
    choices,
    contentions,
    copies,
    copy_fit,
    failures,
    joints,
    link_facts,
    pairs,
    refusals,
    shares_memory,
    usual_way,
)
from microbench.explain.link_gpus import reasons_named
from microbench.report.curves import ticks
from microbench.report.document import Cell, Column, Curve, Line, Mark, Picture, Station, Stretch, Table, Tone, Way
from microbench.report.tables import NOTHING

# What several GPUs are to each other: rates and latency of each pair, and what one keeps while others copy.


ITSELF = Cell("·", tone="quiet")


def peers(evidence: Evidence) -> list[Table]:
    """Every GPU with every other: rate by the usual way, and latency; why pairs are missing."""
    way = usual_way(evidence)
    if way is None:
        return []
    reasons = [*reasons_named(refusals(evidence)), *(f"failed, {one}" for one in reasons_named(failures(evidence)))]
    about = f"{PEER_WAYS[way]}; the GPU that moves the data down, the one whose memory it is across"
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
    found = contentions(evidence)
    own = {words: [one for one in found if one.direction == direction] for direction, words in DIRECTIONS.items()}
    return [_uplink(members, words) for words, members in own.items() if members]


def _uplink(found: list[Contention], words: str) -> Table:
    cells = {(one.gpu_index, one.others): _share_cell(one) for one in found}
    others = sorted({one.others for one in found}, key=lambda name: (name != EVERYBODY, len(name), name))
    columns = [Column("all others" if name == EVERYBODY else f"GPU {name}") for name in others]
    rows = tuple(
        (
            Cell(f"GPU {index}", tone="strong"),
            *(ITSELF if name == str(index) else cells.get((index, name), NOTHING) for name in others),
        )
        for index in sorted({one.gpu_index for one in found})
    )
    shared = f"under {round_percent(SHARED_BELOW)} an uplink is shared"
    about = f"the GPU that is measured down, who copies beside it across; {shared}"
    return Table(f"Kept of a rate {words} while others copy", about, (Column("", "left"), *columns), rows)


def _share_cell(one: Contention) -> Cell:
    return Cell(percent(one.share), tone="warning" if one.share < SHARED_BELOW else "plain")


# The way from the processor to the GPU as a line: root port, switches, and the link on each stretch.


USUAL_DOMAIN = "0000:"


def path(evidence: Evidence) -> Way | None:
    """What lies between processor and GPU, as far as it can be seen; None where nothing is known of it."""
    facts = link_facts(evidence)
    hops = facts.hops()
    if not hops or shares_memory(evidence, facts) is not None:
        return None
    groups = bridges(facts)
    index = evidence.gpu.index if evidence.gpu is not None else 0
    stations = [_processor(facts), *(_bridge(group, facts) for group in groups)]
    stations.append(Station(f"GPU {index}", _short(hops[0].bus_id), "second"))
    stretches = [_root(facts), *(_stretch(one, idle=facts.idle) for one in joints(facts, groups))]
    return Way(
        title="The way to the GPU",
        about=_about(facts, hops[0].now or facts.now),
        stations=tuple(stations),
        stretches=tuple(stretches),
    )


def _processor(facts: LinkFacts) -> Station:
    node = facts.number("numa_node")
    return Station("CPU", "NUMA ?" if node is None or node < 0 else f"NUMA {node}", "first")


def _bridge(group: Sequence[Hop], facts: LinkFacts) -> Station:
    narrowest = facts.text("slot_limit_bus_id")
    tone: Tone = "warning" if narrowest and any(hop.bus_id == narrowest for hop in group) else "plain"
    kind = "switch" if len(group) > 1 else group[0].kind or "bridge"
    return Station(kind.replace("_", " "), _short(group[0].bus_id), tone)


def _root(facts: LinkFacts) -> Stretch:
    if facts.flag("virtual_bus"):
        return Stretch("hidden by the virtual machine", "quiet", hidden=True)
    return Stretch("", "quiet")


def _stretch(one: Joint, *, idle: bool) -> Stretch:
    """The link between two neighbours: what it runs at, and what both could do where that is more."""
    now, most = one.now, one.most
    if now is None:
        return Stretch(most.words if most else "?", "quiet")
    if one.slowed and most is not None:
        return Stretch(f"{now.words} of {most.words}", "quiet" if idle else "problem")
    return Stretch(now.words, "good")


def _about(facts: LinkFacts, now: Speed | None) -> str:
    if not facts.flag("virtual_bus"):
        when = "after copies had ended: an idle link slows down" if facts.idle else "while copies ran"
        return f"generation and lanes of each stretch {when}"
    link = f"; the GPU's own link runs at PCIe {now.words}" if now is not None else ""
    return f"bridges and slots show on the virtual machine's host only{link}"


def _short(bus_id: str) -> str:
    return bus_id.removeprefix(USUAL_DOMAIN)


# Tables in the order of the questions: what the link is, what it carries, how to use it, who else is on it.
ORDER = (
    "link_state", "link_copy", "link_bidirectional", "link_zero_copy", "link_latency", "link_pinning", "link_chunks",
    "link_managed", "link_numa", "link_concurrent", "link_peer",
)  # fmt: skip
FEWEST_DRAWN = 3
WAITED_FOR = ("pinned", "pageable")  # other pinned memory is waited for as long as pinned
FEWEST_ACROSS = 2
FIT_STEPS = 64
HEADROOM = 1.1
TICK_SIZES = tuple(1 << power for power in range(0, 41, 6))


def pictures(evidence: Evidence) -> list[Picture]:
    """Every picture that the run has figures for."""
    curves = [rates(evidence, direction) for direction in DIRECTIONS]
    tables = (fits(evidence), pinning(evidence), zero_copy(evidence), *peers(evidence), *uplinks(evidence))
    drawn = (path(evidence), *curves, *tables)
    return [picture for picture in drawn if picture is not None]


def rates(evidence: Evidence, direction: str) -> Curve | None:
    """Rate over size of pinned copies with fit and ceiling, and of pageable ones, in one direction.

    The fit and what is read off it end with the copies it was made from; the ceiling is one for copies of any size.
    """
    pinned, pageable = copies(evidence, DEVICE, direction, "pinned"), copies(evidence, HOST, direction, "pageable")
    if len(pinned) < FEWEST_DRAWN:
        return None
    fit = copy_fit(evidence, DEVICE, direction, "pinned")
    limit = evidence.ceiling(pinned[-1][1])
    lines = [Line("pinned", _points(pinned), "first")]
    if len(pageable) >= FEWEST_DRAWN:
        lines.append(Line("pageable", _points(pageable), "second"))
    sizes = [x for line in lines for x, _ in line.points]
    smallest, largest = min(sizes), max(sizes)
    if fit is not None:
        lines.append(Line("fit", _fitted(fit), "third", "computed"))
    if limit is not None:
        name = f"ceiling {quantity(limit.value, 'B/s')}"
        lines.append(Line(name, ((smallest, limit.value), (largest, limit.value)), "quiet", "limit"))
    most = max(y for line in lines for _, y in line.points)
    shares = ((HALF, "half"), (MOST, round_percent(MOST))) if fit is not None else ()
    at = [(fit.size_for(share), words) for share, words in shares if fit is not None]
    reached = "".join(f"; {words} of b at {about_size(x)}" for x, words in at)
    return Curve(
        title=f"Bandwidth over the size of a copy, {DIRECTIONS[direction]}",
        about="pinned copies by the device, behind a gate; pageable ones by the host, with a wait; "
        f"fit T = a + V / b{reached}",
        x_title="bytes of a copy",
        lines=tuple(lines),
        x_ticks=tuple(Mark(one, size(one)) for one in TICK_SIZES if smallest <= one <= largest),
        y_ticks=ticks(0.0, most * HEADROOM, False, "B/s"),
        y_log=False,
        marks=tuple(Mark(x, words) for x, words in at if pinned[0][0] <= x <= pinned[-1][0]),
    )


def _points(found: Sequence[tuple[int, Row]]) -> tuple[tuple[float, float], ...]:
    return tuple((size_bytes, row.value) for size_bytes, row in found)


def _fitted(fit: CopyFit) -> tuple[tuple[float, float], ...]:
    smallest, largest = fit.points[0][0], fit.points[-1][0]
    sizes = (smallest * (largest / smallest) ** (step / FIT_STEPS) for step in range(FIT_STEPS + 1))
    return tuple((size_bytes, size_bytes / fit.line.at(size_bytes)) for size_bytes in sizes)


def fits(evidence: Evidence) -> Table | None:
    """How big a copy must be: the fit of each direction and kind of memory."""
    found = [
        (direction, memory, metric, fit)
        for direction in DIRECTIONS
        for memory in MEMORIES
        for metric in (DEVICE, HOST)
        if (metric == DEVICE or memory in WAITED_FOR)
        and (fit := copy_fit(evidence, metric, direction, memory)) is not None
    ]
    if not found:
        return None
    columns = (
        Column("copies", "left"), Column("memory", "left"), Column("timed on", "left"), Column("a"),
        Column("b"), Column("half at"), Column(f"{round_percent(MOST)} at"),
        Column("misfit", drop=2), Column("largest", drop=1),
    )  # fmt: skip
    return Table(
        "How big must a copy be: T = a + V / b",
        "on the device behind a gate; on the host with its call and a wait for each",
        columns,
        tuple(_fit_cells(*one) for one in found),
    )


def _fit_cells(direction: str, memory: str, metric: str, fit: CopyFit) -> tuple[Cell, ...]:
    return (
        Cell(DIRECTIONS[direction]),
        Cell(MEMORIES[memory]),
        Cell("device" if metric == DEVICE else "host"),
        Cell(as_time(fit.fixed_s)),
        Cell(quantity(fit.bandwidth, "B/s"), tone="strong"),
        Cell(about_size(fit.size_for(HALF)), tone="strong"),
        Cell(about_size(fit.size_for(MOST))),
        Cell(percent(fit.line.misfit.median), tone="quiet"),
        Cell(percent(fit.line.misfit.largest), tone="quiet"),
    )


def pinning(evidence: Evidence) -> Table | None:
    """Pin or not: the price of pinned memory, and after how many copies it is paid."""
    found = choices(evidence)
    if not found:
        return None
    directions = [one for one in DIRECTIONS if any(one in choice.saved_s for choice in found)]
    columns = [Column("how", "left"), Column("buffer"), Column("costs more")]
    for direction in directions:
        columns += [Column(f"saved {DIRECTIONS[direction]}", drop=1), Column(f"copies {DIRECTIONS[direction]}")]
    rows = tuple(
        (
            Cell(PINNING[one.way]), Cell(size(one.size_bytes)), Cell(as_time(max(one.extra_s, 0.0))),
            *(cell for direction in directions for cell in _paid(one, direction)),
        )
        for one in found
    )  # fmt: skip
    return Table(
        "Pin or not: after how many copies pinned memory has paid",
        "had and given back, less what pageable memory costs where it is new; copies waited for one by one",
        tuple(columns),
        rows,
    )


def _paid(one: Choice, direction: str) -> tuple[Cell, Cell]:
    if direction not in one.saved_s:
        return NOTHING, NOTHING
    if direction in one.never:
        return Cell("nothing", tone="quiet"), Cell("never", tone="quiet")
    return Cell(as_time(one.saved_s[direction]), tone="quiet"), Cell(str(one.paid[direction]), tone="strong")


def zero_copy(evidence: Evidence) -> Table | None:
    """Kernels on host memory: width of an access down, begin of the buffer across."""
    found: dict[tuple[str, int], dict[int, Row]] = {}
    for row in evidence.rows("link_zero_copy", "bandwidth"):
        key = str(row.params.get("access")), whole(row, "width_bytes")
        found.setdefault(key, {})[whole(row, "offset_bytes")] = row
    offsets = sorted({offset for cells in found.values() for offset in cells})
    if len(offsets) < FEWEST_ACROSS:
        return None
    rows = tuple(
        (
            Cell(f"{access} {size(width)}", tone="strong"),
            *(Cell(gigabytes(cells[one].value)) if one in cells else NOTHING for one in offsets),
        )
        for (access, width), cells in found.items()
    )
    return Table(
        "Kernels on host memory, in GB/s",
        "bytes a thread moves at a time down; across, how far behind a page the buffer begins",
        (Column("", "left"), *(Column(size(one)) for one in offsets)),
        rows,
    )
