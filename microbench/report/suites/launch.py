"""The launch suite's pictures: the submission ladder, a launch's anatomy, the duration sweep, single calls."""

from msgspec.structs import replace

from microbench.analysis.evidence import Evidence
from microbench.analysis.stats import Row
from microbench.core.units import as_time, axis_value, spread, times
from microbench.explain import launch_rules as launches
from microbench.model.constants import gap, half_width
from microbench.model.model import WAYS, Way
from microbench.report.curves import ticks
from microbench.report.document import (
    Bar,
    Bars,
    Cell,
    Column,
    Curve,
    Histogram,
    Lane,
    Line,
    Mark,
    Span,
    Table,
    TimeLine,
)
from microbench.report.suites import timeline
from microbench.report.tables import NOTHING, call_quantiles, figure, matrix, row_cell

# The order of the tables, the general before the particular.
ORDER = (
    "launch_cost", "launch_gap", "launch_layers", "launch_duration", "launch_traffic", "launch_queue", "launch_sync",
    "launch_signals", "launch_kind", "launch_arguments", "launch_streams", "launch_threads", "launch_tail",
    "launch_cold",
)  # fmt: skip
SHORTEST_DRAWN_S = 100e-9


def ladder(evidence: Evidence) -> Bars | None:
    """Submit of the same empty kernel with four arguments from each layer; the bar is solid up to that without any."""
    none, four = (
        {launches.layer(row): row for row in launches.layer_rows(evidence, "same_kernel", arguments)}
        for arguments in (0, launches.FOUR_ARGUMENTS)
    )
    if not none and not four:
        return None
    bars = []
    calls_s = {row.case_id: launches.call_of(evidence, row).value for row in (*none.values(), *four.values())}
    for name, row in sorted((none | four).items(), key=lambda pair: calls_s[pair[1].case_id]):
        label, alike = launches.titled(evidence, row), four
        if name not in four:
            label, alike = f"{label}, 0 args", none
        taken_s = calls_s[row.case_id]
        compared = name != launches.NATIVE and launches.NATIVE in alike
        ratio = Cell(times(taken_s / calls_s[alike[launches.NATIVE].case_id]) if compared else "")
        without_s = calls_s[none[name].case_id] if name in none else taken_s
        cells = (_fitted(evidence, row), ratio, Cell(as_time(without_s), tone="quiet") if name in none else NOTHING)
        bars.append(Bar(label, without_s, taken_s, cells, "second" if name == launches.NATIVE else "first"))
    about = "host time of one launch call of an empty kernel with four arguments; solid: without arguments; fitted"
    columns = (Column("call"), Column("× loop"), Column("0 args", drop=1))
    return Bars("Submission ladder: the same kernel, launched from each layer", about, columns, tuple(bars))


def _fitted(evidence: Evidence, row: Row) -> Cell:
    """The call as it was fitted to this row and to all others that show it, with the row's grade."""
    fitted = launches.call_of(evidence, row)
    note = spread(half_width(fitted) / fitted.value) if fitted.value > 0 else ""
    return replace(figure(row), text=as_time(fitted.value), note=note)


def one_op(evidence: Evidence) -> Bars | None:
    """Submit of one array operation through each array library, which launches a kernel of its own."""
    rows = launches.layer_rows(evidence, "one_op")
    if not rows:
        return None
    trips = {launches.layer(row): row for row in evidence.rows("launch_layers", "round_trip", family="one_op")}
    bars = []
    for row in rows:
        trip = trips.get(launches.layer(row))
        cells = (_fitted(evidence, row), figure(trip) if trip is not None else Cell(""))
        trip_s = trip.value if trip is not None else None
        bars.append(Bar(launches.titled(evidence, row), launches.call_of(evidence, row).value, trip_s, cells, "third"))
    about = "host time of one call, fitted; paler: until its result is there; not the ladder's kernel"
    columns = (Column("call"), Column("round trip", drop=1))
    return Bars("One operation: x + 1 on one element, through each array library", about, columns, tuple(bars))


def anatomy(evidence: Evidence) -> TimeLine | None:
    """A time line of one launch of an empty kernel: the host, the GPU, and the parts of the round trip."""
    submit, start, complete = (evidence.row("launch_cost", name) for name in ("submit", "start", "complete"))
    launch = launches.call(evidence)
    if submit is None or launch is None or start is None or complete is None:
        return None
    end_s = start.value + complete.value
    begun = evidence.row("launch_cost", "to_kernel")
    begun_s = min(begun.value, start.value) if begun else start.value
    submit_s = min(launch.value, end_s)
    host = (
        Span(0.0, submit_s, f"call {as_time(launch.value)}", "first"),
        Span(submit_s, end_s, "synchronise", "first", "pale"),
    )
    gpu = (
        Span(submit_s, begun_s, "on its way", "quiet", "pale") if begun_s > submit_s else Span(begun_s, begun_s, ""),
        Span(begun_s, begun_s, "kernel begins", "second"),
    )
    trip = evidence.row("launch_cost", "round_trip")
    taken = {"start": start.value, "complete": complete.value, "round trip": trip.value if trip else end_s}
    places = {"start": (0.0, start.value), "complete": (start.value, end_s), "round trip": (0.0, end_s)}
    *parts, whole = (
        Span(*places[name], f"{name} {as_time(seconds)}", "plain", "distance") for name, seconds in taken.items()
    )
    lanes = (Lane("host", host), Lane("GPU", gpu), Lane("parts", tuple(parts)), Lane("", (whole,)))
    about = "an empty kernel, to scale; start ends when the host sees the kernel's first act"
    return TimeLine("Anatomy of one launch", about, end_s, timeline.time_ticks(end_s), lanes)


def durations(evidence: Evidence) -> Curve | None:
    """Time per kernel over kernel duration, with the kernel's own duration and the crossover."""
    drawn, behind = (
        [(max(x, SHORTEST_DRAWN_S), row.value) for x, row in launches.sweep(evidence, metric) if row.value > 0]
        for metric in ("period", "gated")
    )
    if len(drawn) < 2:
        return None
    low_y = min(y for _, y in drawn + behind)
    own = tuple((x, x) for x, _ in drawn if x >= low_y / 2)
    lines = [Line("in a stream, as the host submits", tuple(drawn), "first")]
    if behind:
        lines.append(Line("the GPU alone, all queued before", tuple(behind), "second"))
    if len(own) > 1:
        lines.append(Line("the kernel's own duration", own, "quiet", "computed"))
    cross_s = launches.crossover_s(evidence)
    inside = cross_s is not None and drawn[0][0] < cross_s < drawn[-1][0]
    about = "where the first line leaves the others, the GPU waits for the host"
    x_ticks = ticks(drawn[0][0], drawn[-1][0], True, "s")
    y_ticks = ticks(low_y / 2, max(y for _, y in drawn), True, "s")
    marks = (Mark(cross_s, f"call − gap = {as_time(cross_s)}"),) if cross_s is not None and inside else ()
    return Curve(
        "Time per kernel over kernel duration", about, "kernel duration", tuple(lines), x_ticks, y_ticks, marks=marks
    )


def single_calls(evidence: Evidence) -> Histogram | None:
    """How long single launch calls take: most of them, and the few slow ones."""
    row = evidence.row("launch_cost", "submit")
    calls = row.measurement.per_call if row else None
    if calls is None or not calls.counts:
        return None
    about = f"{calls.n} calls of one process, each timed; the axis is logarithmic, so that the few slow ones show"
    marks = tuple(Mark(value, f"{name} {as_time(value)}") for name, value in call_quantiles(calls))
    return Histogram("Single launch calls", about, calls.first_edge, calls.ratio, calls.counts, marks)


GAP_KERNELS = {"empty": "empty", "spin": "spins", "add": "writes"}
GAP_GRIDS = {"one": "1 block", "an_sm": "1 block an SM", "eight_an_sm": "8 blocks an SM"}


def idle_gaps(evidence: Evidence) -> Table | None:
    """How long the GPU is idle between two kernels, in a stream and as a graph, in both states of a process."""
    cells: dict[tuple[str, tuple[Way, str]], Cell] = {}
    across: dict[tuple[Way, str], str] = {}
    for way in WAYS:
        for streams, words in (("two", way), ("one", f"{way}, one stream")):
            across[way, streams] = words
            for kernel, does in GAP_KERNELS.items():
                for blocks, grid in GAP_GRIDS.items():
                    idle = gap(evidence, way, kernel=kernel, blocks=blocks, launch_streams=streams)
                    if idle is not None:
                        words = as_time(idle.value) if idle.value > 0 else "none measurable"
                        cells[f"{does}, {grid}", (way, streams)] = Cell(words)
    if not cells:
        return None
    about = "period less the duration that profilers report; one stream: all kernels of the process went into it"
    return matrix("Idle between two kernels", about, across, cells)


# The ways to wait in the order of their cost, by their names on launch_sync's axis.
WAITS = {"spin": "spin", "yield": "yield", "blocking": "block", "blocking_event": "event that blocks"}


def waiting(evidence: Evidence) -> Table | None:
    """What each way to wait costs after kernels of several lengths; both levels where a row's samples have two."""
    cells = {
        (words, length): row_cell(row, launches.wait_words(row))
        for wait, words in WAITS.items()
        for length, row in evidence.curve("launch_sync", "from_kernel", "duration_ns", wait=wait)
        if row.value > 0
    }
    across = {
        length: axis_value("duration_ns", length) if length else "empty" for length in sorted({n for _, n in cells})
    }
    about = (
        "from the kernel's end until the wait returns, by the length of the kernel; two figures: two groups of waits"
    )
    return matrix("Waiting for a kernel", about, across, cells) if len(across) > 1 else None


SIGNALS = {
    "same_stream": "nothing: the same stream",
    "event": "an event, to another stream",
    "event_timed": "an event with timing, to another stream",
    "host_function": "a host function",
    "write_32": "a write of 32 bits",
    "write_64": "a write of 64 bits",
    "wait_ready": "a wait whose value is there",
    "wait_32": "a wait for 32 bits of the host",
    "wait_64": "a wait for 64 bits of the host",
    "write_wait": "a write and a wait for the answer",
}
INTERVALS = {"between": "kernel to kernel", "to_host": "to the host", "from_host": "from the host"}


def between(evidence: Evidence) -> Table | None:
    """What each signal between two kernels costs, and its way to the host and back."""
    cells = {
        (words, name): row_cell(row, as_time(row.value))
        for way, words in SIGNALS.items()
        for name in INTERVALS
        if (row := evidence.row("launch_signals", name, way=way)) is not None
    }
    about = "from the last instruction of a kernel to the first of the next; the host polls and answers at once"
    return matrix("Between two kernels", about, INTERVALS, cells) if cells else None
