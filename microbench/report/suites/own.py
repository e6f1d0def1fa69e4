"""The own suite's tables: what limits each case, what a graph gives, and which kernels a function launches."""

from microbench.analysis.evidence import Evidence
from microbench.core.units import as_time, percent, plain, quantity, times
from microbench.explain import own
from microbench.explain.compute_products import bandwidth_roof, compute_roof
from microbench.report.curves import ticks
from microbench.report.document import Cell, Column, Curve, Line, Picture, Table
from microbench.report.suites.roofline import BESIDE, under_roofs
from microbench.report.tables import NOTHING, row_cell, value_cell

MOST_LAUNCHES = 30
LONGEST_NAME = 60


def pictures(evidence: Evidence) -> list[Picture]:
    """Functions first, then their launches, then kernels."""
    found, mine = own.steps(evidence), own.kernels(evidence)
    tables = [functions(found)] if found else []
    tables += [table for one in found[:1] if (table := launches(one)) is not None]
    tables += [limits(mine)] if mine else []
    drawn = roofline(evidence, mine)
    return [*([drawn] if drawn is not None else []), *tables]


def roofline(evidence: Evidence, found: list[own.Kernel]) -> Curve | None:
    """Kernels of the first one's precision, whose bytes and operations are known, under the measured roofs."""
    known = [one for one in found if one.moved_bytes and one.flops]
    precision = known[0].precision if known else ""
    where = own.with_roofs(evidence)
    memory, compute = bandwidth_roof(where), compute_roof(where, precision) if known else None
    if memory is None or compute is None or memory.row is None or compute.row is None:
        return None
    chosen = [one for one in known if one.precision == precision]
    points = tuple(sorted((one.flops / one.moved_bytes, one.flops / one.best_s) for one in chosen))
    ridge = compute.value / memory.value
    roofs = {f"{memory.name} {quantity(memory.value, memory.unit)}": memory.value}
    # A kernel whose bytes fit the L2 is compared with the L2's rate, so it may be above the DRAM's roof.
    cached = (ceiling for one in chosen for ceiling in one.ceilings if ceiling.name == own.L2_CEILING)
    roofs |= {f"{ceiling.name} {quantity(ceiling.rate, ceiling.unit)}": ceiling.rate for ceiling in cached}
    title = "Your kernels under this GPU's measured roofs"
    about = f"operations and bytes as given; DRAM's roof and that of {precision} meet at {ridge:.3g} FLOP/B"
    lines, begin = [Line("your kernels", points, "third", kind="points")], min(points[0][0], ridge) * BESIDE
    rates = ticks(min(rate for _, rate in points), compute.value, True, compute.unit)
    return under_roofs(title, about, lines, roofs, compute, begin, rates)


def functions(found: list[own.Step]) -> Table:
    """Each case of a function: what it costs, what limits it, and what a graph gives."""
    columns = (
        Column("", "left"), Column("step"), Column("submit"), Column("GPU"),
        Column("cold L2", drop=2), Column("launches"), Column("graph"),
        Column("gain"), Column("faster after"), Column("limit", "left", 1),
    )  # fmt: skip
    rows = tuple(
        (
            Cell(own.name_of(one.submit), tone="strong"),
            row_cell(one.step),
            row_cell(one.submit),
            row_cell(one.gpu),
            row_cell(one.cold),
            value_cell(one.fact("launches"), str),
            row_cell(one.graph) if one.graph is not None else Cell("none", tone="warning"),
            value_cell(one.gain, times, "strong"),
            value_cell(one.pays_after, lambda count: f"{count} replays"),
            Cell(one.limit.partition(":")[0]),
        )
        for one in found
    )
    prevented = [f"no graph of {own.name_of(one.submit)}: {own.blocked(one)}" for one in found if one.graph is None]
    compared = [plain(one.fact("compared"), 200) for one in found if one.fact("compared")]
    notes = tuple(dict.fromkeys((*prevented, *compared)))
    return Table("Your functions: what limits them, and what a graph gives", "a step is one call and one wait",
                 columns, rows, notes)  # fmt: skip


def launches(one: own.Step) -> Table | None:
    """The launches of the first case that was captured, in the order of their first."""
    found = own.launched(one)
    if not found:
        return None
    columns = (Column("kernel", "left"), Column("grid", "left"), Column("block", "left"), Column("launches"))
    rows = tuple(
        (Cell(plain(name, LONGEST_NAME), tone="strong"), Cell(grid), Cell(block), Cell(str(count)))
        for name, grid, block, count in found[:MOST_LAUNCHES]
    )
    more = (f"{len(found) - MOST_LAUNCHES} more",) if len(found) > MOST_LAUNCHES else ()
    return Table(f"Launches of {own.name_of(one.submit)}", "the nodes of its captured graph", columns, rows, more)


def limits(found: list[own.Kernel]) -> Table:
    """Each case of a kernel: its duration, what it takes from an SM, and the ceiling that it is near."""
    columns = (
        Column("", "left"), Column("duration"), Column("cold L2", drop=2), Column("of ceiling"), Column("registers"),
        Column("occupancy"), Column("waves", drop=1), Column("limit", "left"),
    )  # fmt: skip
    rows = []
    for one in found:
        near = one.near
        rows.append((
            Cell(own.name_of(one.duration), tone="strong"),
            row_cell(one.kernel or one.duration, as_time(one.best_s)),
            row_cell(one.cold),
            Cell(percent(near.share), f"of {quantity(near.rate, near.unit)}") if near is not None else NOTHING,
            Cell(str(one.whole("registers"))),
            Cell(percent(one.occupancy), plain(own.fact(one.duration, "held_by"), 20)),
            Cell(f"{one.waves:.3g}"),
            Cell(one.limit[0]),
        ))  # fmt: skip
    return Table("Your kernels under this GPU's measured ceilings", "the nearest ceiling of each", columns, tuple(rows))
