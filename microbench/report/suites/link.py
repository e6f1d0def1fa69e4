"""The link suite's pictures: the way to the GPU, rates over size with fit and ceiling, pin or not, pairs of GPUs."""

from collections.abc import Sequence

from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, facts_of, listed, whole
from microbench.analysis.stats import Row
from microbench.core.units import about_size, as_time, gigabytes, percent, quantity, round_percent, size
from microbench.explain import link_facts as links
from microbench.explain.link_paths import SWITCH_ROUND_TRIP_S, DevicePath, device_paths, is_network, modelled
from microbench.explain.link_rules import reasons_named
from microbench.model.constants import BATCHED
from microbench.report.curves import size_ticks, ticks
from microbench.report.document import (
    SERIES_TONES,
    Cell,
    Column,
    Curve,
    Line,
    Mark,
    Station,
    Stretch,
    Table,
    Tone,
    Way,
    columns,
)
from microbench.report.tables import NOTHING, matrix

# Several GPUs: rate and latency of each pair, and the share of its rate that a GPU keeps while others copy.

ITSELF = Cell("·", tone="quiet")


def peers(evidence: Evidence) -> list[Table]:
    """Every GPU with every other: rate by the usual way, and latency; why pairs are missing."""
    way = links.usual_way(evidence)
    if way is None:
        return []
    refused, failed = map(reasons_named, links.lacking(evidence))
    who = f"GPU {evidence.gpu.index}" if evidence.gpu is not None else "this GPU"
    # How far the other devices are, as topology tools name it.
    words = ", ".join(f"{name} {kind}" for name, kind in links.link_facts(evidence).topology().items())
    seen = [f"seen from {who}: {words}"] if words else []
    notes = (*refused, *(f"failed, {reason}" for reason in failed), *seen)
    about = f"{links.PEER_WAYS[way]}; rows: the GPU that moves the data; columns: the GPU whose memory it is"
    found = [_matrix(evidence, way, "GPU to GPU, in GB/s", about, notes)]
    if links.pairs(evidence, links.LATENCY):
        found.append(_matrix(evidence, links.LATENCY, "GPU to GPU, one dependent read", "rows: the GPU that reads", ()))
    return found


def _matrix(evidence: Evidence, way: str, title: str, about: str, notes: tuple[str, ...]) -> Table:
    found = links.pairs(evidence, way)
    gpus = sorted({index for pair in found for index in pair})
    words = as_time if way == links.LATENCY else gigabytes
    names = {index: f"GPU {index}" for index in gpus}
    cells: dict[tuple[int, int], Cell] = {(index, index): ITSELF for index in gpus}
    cells |= {(first, second): Cell(words(row.value)) for (first, second), row in found.items()}
    return matrix(title, about, names, cells, names.__getitem__, notes=notes)


def uplinks(evidence: Evidence) -> list[Table]:
    """The share of its rate that each GPU keeps while others copy: a table for each direction."""
    found = links.contentions(evidence)
    shared = f"under {round_percent(links.SHARED_BELOW)} an uplink is shared"
    about = f"rows: the GPU that is measured; columns: the GPUs that copy at the same time; {shared}"
    tables = []
    for direction, words in links.DIRECTIONS.items():
        members = [one for one in found if one.direction == direction]
        others = sorted({one.others for one in members}, key=lambda name: (name != links.EVERYBODY, len(name), name))
        cells = {(index, str(index)): ITSELF for index in sorted({one.gpu_index for one in members})}
        for one in members:
            tone: Tone = "warning" if one.share < links.SHARED_BELOW else "plain"
            cells[one.gpu_index, one.others] = Cell(percent(one.share), tone=tone)
        names = {name: "all others" if name == links.EVERYBODY else f"GPU {name}" for name in others}
        title = f"Share of the rate {words} that is left while others copy"
        tables += [matrix(title, about, names, cells, lambda index: f"GPU {index}")] if members else []
    return tables


def collectives(evidence: Evidence) -> Curve | None:
    """NCCL's rate over size from the compiled loop, a line for each operation, and NVLink's limit where one holds."""
    rings = _rings(evidence, "bus_bandwidth")
    on_bus = any(points for _, points in rings)  # a ring of one GPU uses no link
    rings = rings if on_bus else _rings(evidence, "algorithm_bandwidth")
    drawn = [(words, points) for words, points in rings if len(points) >= FEWEST_DRAWN]
    if not drawn:
        return None
    lines = [Line(words, _points(points), tone) for (words, points), tone in zip(drawn, SERIES_TONES, strict=False)]
    limits = [(words, evidence.ceiling(points[-1][1])) for words, points in drawn]
    held = [(words, limit.value) for words, limit in limits if limit is not None]
    about = "bus bandwidth" if on_bus else "algorithm bandwidth of a ring of one GPU, which uses no link"
    about += "; called from the compiled loop"
    about += f"; NVLink's limit holds for {listed([words for words, _ in held])}" if held else ""
    title, below = "NCCL's bandwidth over size", "bytes as nccl-tests counts them"
    return _over_size(title, about, below, lines, ("NVLink", held[0][1]) if held else None, every=2)


def _over_size(
    title: str, about: str, below: str, lines: list[Line], limit: tuple[str, float] | None, every: int = 1
) -> Curve:
    """Rates over sizes, with a limit (its name, B/s) where there is one, and a tick for every n-th power of two."""
    sizes = [x for line in lines for x, _ in line.points]
    smallest, largest = min(sizes), max(sizes)
    if limit is not None:
        ends = ((smallest, limit[1]), (largest, limit[1]))
        lines.append(Line(f"{limit[0]} {quantity(limit[1], 'B/s')}", ends, "quiet", "limit"))
    most = max(y for line in lines for _, y in line.points)
    x_ticks, y_ticks = size_ticks(smallest, largest, every=every), ticks(0.0, most * HEADROOM, False, "B/s")
    return Curve(title, about, below, tuple(lines), x_ticks, y_ticks, y_log=False)


def _rings(evidence: Evidence, metric: str) -> list[tuple[str, list[links.Point]]]:
    """Each operation from the compiled loop, on the largest ring that was measured: its name, its rates over size."""
    found = []
    for operation in dict.fromkeys(str(row.params["operation"]) for row in evidence.rows("link_nccl", "call")):
        chosen: dict[str, int | str] = {"operation": operation, "binding": "loop"}
        largest = max(evidence.rows("link_nccl", "call", **chosen), key=_ranks, default=None)
        if largest is not None:
            curve = evidence.curve("link_nccl", metric, "size_bytes", **chosen, gpus=largest.params["gpus"])
            words = operation.replace("_", "/" if operation == "send_recv" else "-")
            found.append((words, [point for point in curve if point[1].value > 0]))
    return found


def _ranks(row: Row) -> int:
    return next((value for value in facts_of(row, "nccl_ranks") if isinstance(value, int)), 0)


# Network devices and GPUs without NVLink by their PCIe path: a model, beside it what link_peer measured between GPUs.


def devices(evidence: Evidence) -> Table | None:
    """The path to each network device and GPU: class, switches, narrowest link, and what a model gives it."""
    paths = device_paths(evidence)
    if not paths:
        return None
    facts = links.link_facts(evidence)
    rows = tuple(_device(path, evidence, facts) for path in paths)
    titles = columns(
        "device", "path", "narrowest link", "ceiling", "writes, model", "reads, model", "port", "a read takes",
        "measured", "lowered by", left=3,
        drop={"ceiling": 1, "a read takes": 3, "measured": 2, "lowered by": 4},
    )  # fmt: skip
    about = "GB/s of a MODEL, not measured: a device writes and reads this GPU's memory (GPUDirect)"
    # They must make sense at 80 columns too, where columns are dropped: none names a column that can be.
    notes = (
        "at most the payload that the narrowest link and the network port carry; each switch adds "
        f"{as_time(SWITCH_ROUND_TRIP_S)} to a read, half of it to a write (Alibaba Cloud, Elastic computing technical "
        "guide)",
        "less through a processor, by NCCL's topology model (topo.h); ? where it has no figure",
        "NCCL uses GPUDirect up to PXB and sends through host memory beyond; PIX one switch, PXB several, PHB and NODE "
        "through a processor, SYS between processors",
    )
    return Table("PCIe paths to network devices and GPUs (model)", about, titles, rows, notes)


def _device(path: DevicePath, evidence: Evidence, facts: links.LinkFacts) -> tuple[Cell, ...]:
    model = modelled(path, facts)
    measured = NOTHING
    if is_network(path):
        words = {"active": "", "no": ", no RDMA", "down": ", port down"}
        name = path.name + words.get(path.rdma or "", ", RDMA ?")
    else:
        index = int(path.name.removeprefix("gpu"))
        name, own = f"GPU {index}", evidence.gpu.index if evidence.gpu is not None else 0
        row = links.pairs(evidence, "engine_write").get(links.Pair(index, own))
        measured = Cell(gigabytes(row.value), tone="strong") if row is not None else NOTHING
    unknown = Cell("?", tone="quiet")
    rates = (Cell(gigabytes(rate)) if rate is not None else unknown for rate in (model.write, model.read))
    return (
        Cell(name, tone="strong" if path.rdma in (None, "active") else "quiet"),
        Cell(path.near + ", ACS" * path.redirected),
        Cell(f"{path.narrowest.words} at {_short(path.narrowest_bus_id)}"),
        Cell(gigabytes(model.write_limit)),
        *rates,
        Cell(gigabytes(path.port_bytes_per_s)) if path.port_bytes_per_s else NOTHING,
        Cell(f"+{as_time(path.added_s)}") if path.added_s is not None else NOTHING,
        measured,
        Cell(", ".join(model.reductions), tone="quiet") if model.reductions else NOTHING,
    )


# The path from the processor to the GPU: root port, switches, and the link on each stretch.

USUAL_DOMAIN = "0000:"


def path(evidence: Evidence) -> Way | None:
    """The devices between processor and GPU that the system shows; None if nothing is known about them."""
    facts = links.link_facts(evidence)
    hops = facts.hops()
    if not hops or links.shares_memory(evidence, facts) is not None:
        return None
    groups = links.bridges(facts)
    index = evidence.gpu.index if evidence.gpu is not None else 0
    node = facts.number("numa_node")
    stations = [Station("CPU", "NUMA ?" if node is None or node < 0 else f"NUMA {node}", "first")]
    narrowest = facts.text("slot_limit_bus_id")
    for group in groups:
        tone: Tone = "warning" if narrowest and any(hop.bus_id == narrowest for hop in group) else "plain"
        kind = "switch" if len(group) > 1 else group[0].kind or "bridge"
        stations.append(Station(kind.replace("_", " "), _short(group[0].bus_id), tone))
    stations.append(Station(f"GPU {index}", _short(hops[0].bus_id), "second"))
    hidden = bool(facts.flag("virtual_bus"))
    root = Stretch("hidden by the virtual machine" if hidden else "", "quiet", hidden=hidden)
    stretches = [root, *(_stretch(one, idle=facts.idle) for one in links.joints(facts, groups))]
    now = hops[0].now or facts.now
    if facts.flag("virtual_bus"):
        link = f"; the GPU's own link runs at PCIe {now.words}" if now is not None else ""
        about = f"bridges and slots show on the virtual machine's host only{link}"
    else:
        when = "after copies had ended: an idle link slows down" if facts.idle else "while copies ran"
        about = f"generation and lanes of each stretch {when}"
    return Way("The path to the GPU", about, tuple(stations), tuple(stretches))


def _stretch(joint: links.Joint, *, idle: bool) -> Stretch:
    """The link between two neighbours: its speed, and the speed that both support if that is higher."""
    now, most = joint.now, joint.most
    if now is None:
        return Stretch(most.words if most else "?", "quiet")
    if joint.slowed and most is not None:
        return Stretch(f"{now.words} of {most.words}", "quiet" if idle else "problem")
    return Stretch(now.words, "good")


def _short(bus_id: str) -> str:
    return bus_id.removeprefix(USUAL_DOMAIN)


# Tables in the order of the questions: what the link is, what it carries, how to use it, who else is on it.
ORDER = (
    "link_state", "link_copy", "link_bidirectional", "link_zero_copy", "link_latency", "link_pinning", "link_chunks",
    "link_batch", "link_managed", "link_numa", "link_concurrent", "link_peer",
)  # fmt: skip
FEWEST_DRAWN = 3
WAITED_FOR = ("pinned", "pageable")  # other pinned memory is waited for as long as pinned
FIT_STEPS = 64
HEADROOM = 1.1


def rates(evidence: Evidence, direction: str) -> Curve | None:
    """Rate over size in one direction: pinned copies with their fit and ceiling, and pageable copies.

    The fit ends with the copies that it was made from; the ceiling holds for copies of any size.
    """
    pinned = links.copies(evidence, links.DEVICE, direction, "pinned")
    pageable = links.copies(evidence, links.HOST, direction, "pageable")
    if len(pinned) < FEWEST_DRAWN:
        return None
    fit = links.copy_fit(evidence, links.DEVICE, direction, "pinned")
    limit = evidence.ceiling(pinned[-1][1])
    lines = [Line("pinned", _points(pinned), "first")]
    if len(pageable) >= FEWEST_DRAWN:
        lines.append(Line("pageable", _points(pageable), "second"))
    if fit is not None:
        first, last = fit.points[0][0], fit.points[-1][0]
        at_sizes = [first * (last / first) ** (step / FIT_STEPS) for step in range(FIT_STEPS + 1)]
        lines.append(Line("fit", tuple((x, x / fit.line.at(x)) for x in at_sizes), "third", "computed"))
    shares = ((links.HALF, "half"), (links.MOST, round_percent(links.MOST))) if fit is not None else ()
    at = [(fit.size_for(share), words) for share, words in shares if fit is not None]
    reached = "".join(f"; {words} of b at {about_size(x)}" for x, words in at)
    title = f"Bandwidth over the size of a copy, {links.DIRECTIONS[direction]}"
    about = "pinned copies timed on the device behind a gate, pageable ones on the host with a wait; "
    about += f"fit T = a + V / b{reached}"
    ceiling = ("ceiling", limit.value) if limit is not None else None
    marks = tuple(Mark(x, words) for x, words in at if pinned[0][0] <= x <= pinned[-1][0])
    return replace(_over_size(title, about, "bytes of a copy", lines, ceiling, every=6), marks=marks)


def _points(found: Sequence[tuple[int, Row]]) -> tuple[tuple[float, float], ...]:
    return tuple((size_bytes, row.value) for size_bytes, row in found)


def batches(evidence: Evidence) -> Curve | None:
    """The chart of link_batch: bandwidth by the size of a piece, a line for each way, and the link's ceiling.

    The number of pieces is the largest that was measured.
    """
    rows = evidence.rows("link_batch", "bandwidth")
    count = max((whole(row, "pieces_copied") for row in rows), default=0)
    curves = {
        str(way): evidence.curve("link_batch", "bandwidth", "piece_bytes", way=way, pieces_copied=count)
        for way in dict.fromkeys(row.params["way"] for row in rows)
    }
    drawn = {way: points for way, points in curves.items() if len(points) >= FEWEST_DRAWN}
    if not drawn:
        return None
    pairs = zip(drawn.items(), SERIES_TONES, strict=False)
    lines = [
        Line(BATCHED[way][0] if way in BATCHED else "a copy each", _points(points), tone)
        for (way, points), tone in pairs
    ]
    limit = evidence.ceiling(next(iter(drawn.values()))[-1][1])
    ceiling = ("ceiling", limit.value) if limit is not None else None
    title = "Bandwidth of many small copies over the size of a piece"
    return _over_size(title, f"{count} pieces of pinned memory, to the GPU", "bytes of a piece", lines, ceiling)


def fits(evidence: Evidence) -> Table | None:
    """How big a copy must be: the fit of each direction and kind of memory."""
    rows = tuple(
        (
            Cell(links.DIRECTIONS[direction]),
            Cell(links.MEMORIES[memory]),
            Cell("device" if metric == links.DEVICE else "host"),
            Cell(as_time(fit.fixed_s)),
            Cell(quantity(fit.bandwidth, "B/s"), tone="strong"),
            Cell(about_size(fit.size_for(links.HALF)), tone="strong"),
            Cell(about_size(fit.size_for(links.MOST))),
            Cell(percent(fit.line.median_off), tone="quiet"),
            Cell(percent(fit.line.most_off), tone="quiet"),
        )
        for direction in links.DIRECTIONS
        for memory in links.MEMORIES
        for metric in (links.DEVICE, links.HOST)
        if (metric == links.DEVICE or memory in WAITED_FOR)
        and (fit := links.copy_fit(evidence, metric, direction, memory)) is not None
    )
    if not rows:
        return None
    names, drop = ("copies", "memory", "timed on", "a", "b", "half at"), {"misfit": 2, "largest": 1}
    titles = columns(*names, f"{round_percent(links.MOST)} at", *drop, left=3, drop=drop)
    about = "timed on the device behind a gate, or on the host with the call and a wait for each copy"
    return Table("How big must a copy be: T = a + V / b", about, titles, rows)


def pinning(evidence: Evidence) -> Table | None:
    """Pin or not: the price of pinned memory, and after how many copies it is paid."""
    choices = links.choices(evidence)
    if not choices:
        return None
    directions = [one for one in links.DIRECTIONS if any(one in choice.saved_s for choice in choices)]
    titles = [*columns("how", "buffer", "costs more")]
    for words in map(links.DIRECTIONS.__getitem__, directions):
        titles += [Column(f"saved {words}", drop=1), Column(f"copies {words}")]
    rows = tuple(
        (
            Cell(links.PINNING[one.way]), Cell(size(one.size_bytes)), Cell(as_time(max(one.extra_s, 0.0))),
            *(cell for direction in directions for cell in _paid(one, direction)),
        )
        for one in choices
    )  # fmt: skip
    title = "Pin or not: after how many copies pinned memory pays off"
    about = "cost of allocating and freeing, less that of new pageable memory; each copy is waited for"
    return Table(title, about, tuple(titles), rows)


def _paid(choice: links.Choice, direction: str) -> tuple[Cell, Cell]:
    if direction not in choice.saved_s:
        return NOTHING, NOTHING
    if direction in choice.never:
        return Cell("nothing", tone="quiet"), Cell("never", tone="quiet")
    return Cell(as_time(choice.saved_s[direction]), tone="quiet"), Cell(str(choice.paid[direction]), tone="strong")


def zero_copy(evidence: Evidence) -> Table | None:
    """Kernels on host memory: width of an access down, begin of the buffer across; None for one begin."""
    cells = {
        (f"{row.params.get('access')} {size(whole(row, 'width_bytes'))}", offset): Cell(gigabytes(row.value))
        for row in evidence.rows("link_zero_copy", "bandwidth")
        for offset in [whole(row, "offset_bytes")]
    }
    offsets = {offset: size(offset) for offset in sorted({offset for _, offset in cells})}
    about = "rows: bytes that a thread moves at once; columns: offset of the buffer from the begin of a page"
    return matrix("Kernels on host memory, in GB/s", about, offsets, cells) if len(offsets) > 1 else None
