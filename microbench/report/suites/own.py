"""The own suite's tables: what limits each case, what a graph gives, and which kernels a function launches."""

from microbench.analysis.evidence import Evidence
from microbench.core.units import as_time, percent, plain, quantity, times
from microbench.explain import own
from microbench.explain.compute_products import bandwidth_roof, compute_roof
from microbench.report.curves import ticks
from microbench.report.document import Cell, Column, Curve, Line, Table, columns
from microbench.report.suites.roofline import BESIDE, under_roofs
from microbench.report.tables import NOTHING, row_cell, table_of, value_cell

MOST_LAUNCHES = 30
LONGEST_NAME = 60


def roofline(evidence: Evidence) -> Curve | None:
    """Kernels and functions of the first one's precision, whose bytes and operations are known, under the measured
    roofs."""
    every = [*(one.rates for one in own.kernels(evidence)), *(one.rates for one in own.steps(evidence))]
    known = [one for one in every if one.point is not None]
    precision = known[0].precision if known else ""
    where = own.with_roofs(evidence)
    memory, compute = bandwidth_roof(where), compute_roof(where, precision) if known else None
    if memory is None or compute is None or memory.row is None or compute.row is None:
        return None
    chosen = [one for one in known if one.precision == precision]
    points = tuple(sorted(one.point for one in chosen if one.point is not None))
    ridge = compute.value / memory.value
    roofs = {f"{memory.name} {quantity(memory.value, memory.unit)}": memory.value}
    # One whose bytes fit the L2 is compared with the L2's rate, so it may be above the DRAM's roof.
    cached = (ceiling for one in chosen for ceiling in one.ceilings if ceiling.name == own.L2_CEILING)
    roofs |= {f"{ceiling.name} {quantity(ceiling.rate, ceiling.unit)}": ceiling.rate for ceiling in cached}
    title = "Your kernels and functions under this GPU's measured roofs"
    about = f"operations and bytes as given; DRAM's roof and that of {precision} meet at {ridge:.3g} FLOP/B"
    lines, begin = [Line("yours", points, "third", kind="points")], min(points[0][0], ridge) * BESIDE
    rates = ticks(min(rate for _, rate in points), compute.value, True, compute.unit)
    return under_roofs(title, about, lines, roofs, compute, begin, rates)


def share_of(rates: own.Rates) -> Cell:
    """The share that a case reaches of its nearest ceiling, and the rate of that ceiling."""
    near = rates.near
    return NOTHING if near is None else Cell(percent(near.share), f"of {quantity(near.rate, near.unit)}")


def functions(evidence: Evidence) -> Table | None:
    """Each case of a function: what it costs, what limits it, and what a graph gives."""
    found = own.steps(evidence)
    shares = [("of ceiling", lambda one: share_of(one.rates))] if any(one.rates.ceilings for one in found) else []
    prevented = [f"no graph of {one.name}: {own.blocked(one)}" for one in found if one.graph is None]
    compared = [plain(one.fact("compared"), 200) for one in found if one.fact("compared")]
    return table_of(
        "Your functions: what limits them, and what a graph gives",
        "a step is one call and one wait",
        found,
        ("", lambda one: Cell(one.name, tone="strong")),
        ("step", lambda one: row_cell(one.step)),
        ("submit", lambda one: row_cell(one.submit)),
        ("GPU", lambda one: row_cell(one.gpu)),
        (Column("cold L2", drop=2), lambda one: row_cell(one.cold)),
        *shares,
        ("launches", lambda one: value_cell(one.fact("launches"), str)),
        ("graph", lambda one: row_cell(one.graph) if one.graph is not None else Cell("none", tone="warning")),
        ("gain", lambda one: value_cell(one.gain, times, "strong")),
        ("faster after", lambda one: value_cell(one.pays_after, lambda count: f"{count} replays")),
        (Column("limit", "left", 1), lambda one: Cell(one.limit.partition(":")[0])),
        notes=tuple(dict.fromkeys((*prevented, *compared))),
    )


def launches(evidence: Evidence) -> Table | None:
    """The launches of the first case, if it was captured, in the order of their first."""
    one = next(iter(own.steps(evidence)), None)
    found = own.launched(one) if one is not None else []
    if one is None or not found:
        return None
    rows = tuple(
        (Cell(plain(name, LONGEST_NAME), tone="strong"), Cell(grid), Cell(block), Cell(str(count)))
        for name, grid, block, count in found[:MOST_LAUNCHES]
    )
    more = (f"{len(found) - MOST_LAUNCHES} more",) if len(found) > MOST_LAUNCHES else ()
    titles = columns("kernel", "grid", "block", "launches", left=3)
    return Table(f"Launches of {one.name}", "the nodes of its captured graph", titles, rows, more)


def limits(evidence: Evidence) -> Table | None:
    """Each case of a kernel: its duration, what it takes from an SM, and the ceiling that it is near."""
    return table_of(
        "Your kernels under this GPU's measured ceilings",
        "the nearest ceiling of each",
        own.kernels(evidence),
        ("", lambda one: Cell(one.name, tone="strong")),
        ("duration", lambda one: row_cell(one.kernel or one.duration, as_time(one.best_s))),
        (Column("cold L2", drop=2), lambda one: row_cell(one.cold)),
        ("of ceiling", lambda one: share_of(one.rates)),
        ("registers", lambda one: Cell(str(one.whole("registers")))),
        ("occupancy", lambda one: Cell(percent(one.occupancy), plain(own.fact(one.duration, "held_by"), 20))),
        (Column("waves", drop=1), lambda one: Cell(f"{one.waves:.3g}")),
        (Column("limit", "left"), lambda one: Cell(one.limit[0])),
    )
