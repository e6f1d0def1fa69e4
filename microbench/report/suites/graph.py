"""The graph suite's pictures: speed-up over duration, its surface, a graph's life, kinds of node, a step to scale."""

import itertools

from microbench.analysis.evidence import Evidence
from microbench.analysis.graph_steps import kernel_counts, layer_titles
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import as_time, percent, times
from microbench.explain import graph_rules
from microbench.model.constants import pairs
from microbench.model.fit import fit, missing
from microbench.model.forecast import forecast
from microbench.model.model import WAYS
from microbench.model.workload import Kernels, Wait, Workload
from microbench.report.curves import ticks
from microbench.report.document import SERIES_TONES, Bar, Bars, Cell, Column, Curve, Line, Mark, Table, TimeLine, Tone
from microbench.report.suites import timeline
from microbench.report.tables import NOTHING, figure, matrix, row_cell

# The order of the tables: what a graph gains, what it costs, how to use it.
ORDER = (
    "graph_gain", "graph_lifecycle", "graph_library", "graph_jax", "graph_update", "graph_shape", "graph_nodes",
    "graph_memory", "step_time",
)  # fmt: skip
PHASES = {
    "capture": "capture",
    "build": "build node by node",
    "instantiate": "instantiate",
    "upload": "upload",
    "first_launch": "first launch, not uploaded",
    "relaunch": "relaunch",
    "node": "GPU, a replay",
    "destroy": "destroy",
}
STRONG, WEAK = graph_rules.SPEEDUPS[0], graph_rules.SPEEDUPS[-1]
# A short step, in which the gaps can be seen.
DRAWN = Workload((Kernels(8, (3e-6,)), Wait()))
SPEEDUP_TICKS = (1, 1.5, 2, 3, 5, 10, 20, 50, 100)
MOST_UNBROKEN = 6


def gain(evidence: Evidence) -> Curve | None:
    """Speed-up over kernel duration for each submitter, with the crossovers of the first marked."""
    by_layer = graph_rules.curves(evidence)
    if not by_layer:
        return None
    (kernels, first), *_ = by_layer.values()
    every = [pair for _, measured in by_layer.values() for pair in measured]
    lengths = [pair.duration_s for pair in every if not pair.empty]
    empty = {Mark(pair.duration_s, "empty") for pair in every if pair.empty}
    titles = layer_titles(evidence.run)
    tones = itertools.cycle((*SERIES_TONES, "plain"))  # a line for each submitter, however many there are
    lines = [
        Line(titles.get(name, name), tuple((pair.duration_s, pair.speedup) for pair in measured), tone)
        for (name, (_, measured)), tone in zip(by_layer.items(), tones, strict=False)
    ]
    ends = [(speedup, graph_rules.crossing(first, speedup)) for speedup in graph_rules.SPEEDUPS]
    ys = [y for line in lines for _, y in line.points]
    title = "Speed-up of a graph over kernel duration"
    about = (
        f"time per kernel in a stream divided by that in a graph, {kernels} kernels a step, by submitter; measured "
        "in a process of two streams"
    )
    x_ticks = (*empty, *ticks(min(lengths), max(lengths), True, "s"))
    y_ticks = tuple(Mark(float(y), f"{y:g}×") for y in SPEEDUP_TICKS if y == 1 or min(ys) <= y <= max(ys) * 1.1)
    marks = tuple(Mark(at_s, f"{ratio:g}× at {as_time(at_s)}") for ratio, at_s in ends if at_s)
    return Curve(title, about, "kernel duration, as profilers report it", tuple(lines), x_ticks, y_ticks, marks=marks)


def surface(evidence: Evidence) -> Table | None:
    """Speed-up from the compiled loop: kernels in a step down, kernel duration across."""
    measured = {kernels: pairs(evidence, LOOP_LAYER, kernels) for kernels in kernel_counts(evidence)}
    durations = sorted({(pair.duration_s, pair.empty) for found in measured.values() for pair in found})
    if len(measured) < 2 or len(durations) < 2:
        return None
    cells = {}
    for kernels, found in measured.items():
        for pair in found:
            tone: Tone = "good" if pair.speedup >= STRONG else "quiet" if pair.speedup < WEAK else "plain"
            cells[kernels, (pair.duration_s, pair.empty)] = Cell(times(pair.speedup), tone=tone)
    names = {one: "empty" if one[1] else as_time(one[0]) for one in durations}
    # A narrow page drops every other column first, then every other of the rest; never the ends, nor the shortest
    # kernels, where a graph gains most.
    drops = [0, 0, *(2 if index % 2 else 1 if index % 4 else 0 for index in range(2, len(durations) - 1)), 0]
    drops = [0] * len(durations) if len(durations) <= MOST_UNBROKEN else drops
    title = "Speed-up by kernels in a step (down) and kernel duration (across)"
    about = f"from the compiled loop; {STRONG:g}× and more stands out, under {WEAK:g}× is pale; – would take too long"
    return matrix(title, about, names, cells, corner=Column("kernels", "left"), drops=drops)


def step(evidence: Evidence) -> TimeLine | None:
    """A short step to scale, in a stream and as a graph."""
    found = fit(evidence)
    if missing(found, DRAWN, WAYS):
        return None
    return timeline.pictures(forecast(DRAWN, found), timeline.in_words(DRAWN))[0]


def life(evidence: Evidence) -> Bars | None:
    """The cost of each phase of a graph's life per node and per graph, by linear fits."""
    lines = {name: one for name in PHASES if (one := graph_rules.life_line(evidence, name)) is not None}
    if not lines:
        return None
    bars = []
    for name, line in lines.items():
        misfits = (Cell(percent(share), tone="quiet") for share in (line.median_off, line.most_off))
        cells = (Cell(as_time(line.slope), tone="strong"), Cell(as_time(line.constant)), *misfits)
        tone: Tone = "second" if name in ("relaunch", "node") else "first"
        bars.append(Bar(PHASES[name], max(line.slope, 0.0), None, cells, tone))
    counts = [nodes for name in lines for nodes, _ in graph_rules.curve_of(evidence, name)]
    title = "A graph's life: what each phase costs for each node"
    about = f"linear fits over chains of {min(counts)} to {max(counts)} empty kernels, by relative residuals"
    columns = (Column("a node"), Column("+ a graph"), Column("misfit median", drop=2), Column("largest", drop=1))
    return Bars(title, about, columns, tuple(bars))


def libraries(evidence: Evidence) -> Bars | None:
    """Making a graph and replaying it once, by the driver's calls and by each library's means."""
    every = graph_rules.libraries(evidence)
    if not every:
        return None
    nodes = every[0].nodes
    driver = graph_rules.of_library(evidence, LOOP_LAYER, nodes)
    titles = layer_titles(evidence.run)
    bars = []
    for one in [driver, *every] if driver is not None else every:
        replays = str(one.replays) if one.replays is not None else "never" if one.pair is not None else ""
        cells = (Cell(as_time(one.ready_s), tone="strong"), row_cell(one.replay), Cell(replays) if replays else NOTHING)
        label = "the driver" if one is driver else titles.get(one.submitter, one.submitter)
        bars.append(Bar(label, one.ready_s, None, cells, "second" if one is driver else "first"))
    title = f"A graph of {nodes} kernels by library: made and replayed once"
    about = "empty kernels, PyTorch's x + 1; pays off: after so many replays, against the same library's launches"
    columns = (Column("ready and run"), Column("further replay"), Column("pays off", drop=1))
    return Bars(title, about, columns, tuple(bars))


def kinds(evidence: Evidence) -> Bars | None:
    """The GPU time of a node of each kind, and of the same call in a stream; host functions take the host's time."""
    nodes = [row for row in evidence.rows("graph_nodes", "node") if row.value > 0 and "kind" in row.params]
    if not nodes:
        return None
    bars = []
    for node in sorted(nodes, key=lambda row: row.value):
        stream = evidence.row("graph_nodes", "stream", kind=node.params["kind"])
        beyond, others = None, (NOTHING, Cell(""))
        if stream is not None:
            beyond = stream.value
            others = (figure(stream), Cell(times(stream.value / node.value), tone="quiet"))
        on_the_host = ", on the host" * (node.params.get("kind") == graph_rules.ON_THE_HOST)
        bars.append(Bar(f"{graph_rules.kind_words(node)}{on_the_host}", node.value, beyond, (figure(node), *others)))
    about = "after another of its kind; paler: in a stream; prologue: 1 µs of work ahead of the dependency"
    columns = (Column("node"), Column("stream", drop=1), Column("stream / node", drop=2))
    return Bars("Kinds of node: GPU time of one", about, columns, tuple(bars))


def deciders(evidence: Evidence) -> Bars | None:
    """The time of an iteration, by who decides whether there is another."""
    iterations = [row for row in evidence.rows("graph_nodes", "iteration") if row.value > 0]
    if len(iterations) < 2:
        return None
    bars = []
    for row in sorted(iterations, key=lambda row: row.value):
        title = graph_rules.kind_words(row)
        bars.append(Bar(title, row.value, None, (figure(row),), "second" if title.startswith("device") else "first"))
    return Bars("An iteration, by who decides on the next one", "one kernel each", (Column("iteration"),), tuple(bars))
