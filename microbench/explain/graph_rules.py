"""The graph suite: the figures that pictures and topics share, and findings: when a graph gains, how to change it."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Rule, listed, paid_after, rests_on, rule, said, whole
from microbench.analysis.fits import Line, line
from microbench.analysis.graph_steps import kernel_counts, layer_titles, title_of, usual_kernels
from microbench.analysis.stats import Row
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import as_time, counted, percent, size, times
from microbench.model.constants import Pair, making_of, own_s, pairs
from microbench.model.fit import fit
from microbench.model.forecast import GOOD_MEDIAN, GOOD_MOST, check

SPEEDUPS = (1.5, 1.1, 1.05)


def curves(evidence: Evidence) -> dict[str, tuple[int, list[Pair]]]:
    """The usual count of kernels and its pairs, at least two, for each submitter; the compiled loop comes first."""
    names = dict.fromkeys(str(row.params.get("submitter")) for row in evidence.rows("graph_gain", "stream"))
    by_submitter = {}
    for name in sorted(names, key=lambda name: name != LOOP_LAYER):
        kernels = usual_kernels(kernel_counts(evidence, name))
        measured = pairs(evidence, name, kernels) if kernels is not None else []
        if kernels is not None and len(measured) > 1:
            by_submitter[name] = (kernels, measured)
    return by_submitter


def crossing(measured: Sequence[Pair], speedup: float) -> float | None:
    """The shortest kernel duration (s) from which on every speed-up is under ``speedup``, between two measured ones.

    None if the longest kernels gain more, 0 if the shortest gain less. Linear in the logarithm of the duration, as the
    axis is.
    """
    if measured[-1].speedup >= speedup:
        return None
    for below, above in itertools.pairwise(reversed(measured)):
        if above.speedup >= speedup:
            share = (above.speedup - speedup) / (above.speedup - below.speedup)
            return float(above.duration_s * (below.duration_s / above.duration_s) ** share)
    return 0.0


def kernels_of(pair: Pair) -> str:
    """A pair's kernels in words."""
    return "empty kernels" if pair.empty else f"kernels of {as_time(pair.duration_s)}"


def curve_of(evidence: Evidence, metric: str) -> list[tuple[int, Row]]:
    """A metric of graph_lifecycle over the count of nodes, where it is above 0."""
    return [point for point in evidence.curve("graph_lifecycle", metric, "nodes") if point[1].value > 0]


def life_line(evidence: Evidence, metric: str) -> Line | None:
    """The fit of a phase's time over the count of nodes. GPU time is measured per node: its fit is that of a replay."""
    points = curve_of(evidence, metric)
    return line((nodes, row.value * (nodes if row.metric.unit == "s/launch" else 1)) for nodes, row in points)


def break_even(evidence: Evidence, pair: Pair) -> tuple[float, int | None] | None:
    """What it takes to capture, instantiate and upload the graph of a pair, if that was measured, and the replays after
    which the graph has paid: None if a replay saves nothing."""
    kernels = whole(pair.stream, "kernels")
    making = making_of([kernels], fit(evidence).made)
    return (making.value, paid_after(making.value, pair.saved_s * kernels)) if making is not None else None


class Library(NamedTuple):
    """A graph of ``nodes`` kernels by one library's means: rows of graph_library, or of graph_lifecycle for the driver.

    ``rows`` are those that sum up to making it and replaying it once, in ``ready_s`` of the host, ``replay`` is a
    further replay's call. ``pair`` is graph_gain's step of as many kernels, the shortest from the same submitter. After
    ``replays`` it has paid, the first included; None if a replay saves nothing.
    """

    submitter: str
    nodes: int
    rows: list[Row]
    ready_s: float
    replay: Row
    pair: Pair | None
    replays: int | None


def of_library(evidence: Evidence, submitter: str, nodes: int) -> Library | None:
    """A graph of ``nodes`` kernels by that layer's means (compiled loop: the driver's); None if not measured."""
    benchmark, names = "graph_library", ["make", "first_replay", "replay"]
    chosen: dict[str, int | str] = {"nodes": nodes, "submitter": submitter}
    if submitter == LOOP_LAYER:
        benchmark, names = "graph_lifecycle", ["capture", "instantiate", "first_replay", "relaunch"]
        del chosen["submitter"]
    rows = [row for name in names if (row := evidence.row(benchmark, name, **chosen)) is not None]
    if len(rows) < len(names):
        return None
    *made, replay = rows
    pair, ready_s, replays = next(iter(pairs(evidence, submitter, nodes)), None), sum(row.value for row in made), None
    if pair is not None:
        replays = paid_after(ready_s - pair.graph.value * nodes, pair.saved_s * nodes)
    return Library(submitter, nodes, made, ready_s, replay, pair, replays)


def libraries(evidence: Evidence) -> list[Library]:
    """What graph_library measured of each library for the usual number of kernels, the quickest library first."""
    rows = evidence.rows("graph_library", "make")
    nodes = usual_kernels([int(row.params["nodes"]) for row in rows])
    names = dict.fromkeys(str(row.params["submitter"]) for row in rows)
    every = [of_library(evidence, name, nodes) for name in names] if nodes is not None else []
    return sorted((one for one in every if one is not None), key=lambda one: one.ready_s)


TITLES = {
    "kernel_empty": "empty kernel",
    "kernel": "dependent kernel",
    "pdl": "PDL kernel",
    "pdl_trigger": "PDL kernel + trigger",
    "kernel_prologue": "prologue + kernel",
    "pdl_prologue": "prologue + PDL kernel",
    "pdl_trigger_prologue": "prologue + PDL + trigger",
    "memset": "memset 4 B",
    "copy_h2d": "copy 4 B to the GPU",
    "copy_d2h": "copy 4 B from the GPU",
    "copy_d2d": "copy 4 B on the GPU",
    "host": "host function",
    "event_record": "event record",
    "event_wait": "event wait",
    "child": "child graph",
    "empty": "empty node",
    "if_taken": "IF taken",
    "if_skipped": "IF skipped",
    "host_sync": "host, synchronise and look",
    "host_poll": "host, watching memory",
    "while": "device, WHILE node",
    "tail_launch": "device, tail launch",
}
# The kind of node that a chain times from one end on the host to the next: the GPU has no part in it.
ON_THE_HOST = "host"


def kind_words(row: Row) -> str:
    """A row's kind of node, or of decision, in words."""
    kind = str(row.params.get("kind"))
    return TITLES.get(kind, kind)


# Two times count as equal within this ratio.
EQUAL = 1.05
UPLOAD_RATIO = 2.0
UPDATE_RATIO = 1.5
ONE_BY_ONE = 5.0
MOST_NAMED = 3
OF_FEW_BYTES = frozenset({"memset", "copy_h2d", "copy_d2h", "copy_d2d"})
USUAL_BYTES = 1 << 20
RELEASE_RATIO = 2.0
USUAL_DURATION_NS = 5000
ROOTS_RATIO = 5.0
OFTEN = 10
DONATED_RATIO = 1.2


def crossovers(evidence: Evidence) -> Finding | None:
    """Up to which kernel duration a graph is faster, from the compiled loop if it was measured."""
    weak, (kernels, measured) = SPEEDUPS[-1], next(iter(curves(evidence).values()), (0, []))
    if not measured:
        return None
    end_s = crossing(measured, weak)
    title = f"A graph of {kernels} kernels is {weak:g}× as fast or more up to kernels of "
    title += as_time(measured[-1].duration_s if end_s is None else end_s)
    if end_s == 0:
        title = f"A graph of {kernels} kernels is never {weak:g}× as fast, however short they are"
    names = rests_on(*(row for pair in measured for row in pair[1:]))
    threshold = f"time in a stream over time as a graph at least {weak:g}, linear in the logarithm between durations"
    return said(title, names=names, rule="graph.crossover", threshold=threshold)


@rule(
    "graph.library",
    "make + first_replay of graph_library, capture + instantiate + first_replay of graph_lifecycle; pays off "
    "after (make + first_replay - a later replay) / (stream - graph of graph_gain), rounded up; advised above "
    f"{OFTEN} replays",
)
def library(evidence: Evidence) -> Finding | None:
    """What the slowest library takes to make a graph, what the driver does, and after how many replays it pays."""
    every = libraries(evidence)
    if not every:
        return None
    slowest = every[-1]
    driver = of_library(evidence, LOOP_LAYER, slowest.nodes)
    name = title_of(slowest.submitter, layer_titles(evidence.run))
    title = (
        f"{name} makes a graph of {counted(slowest.nodes, 'kernel')} and replays it once in {as_time(slowest.ready_s)}"
    )
    text = f"A further replay keeps the host {as_time(slowest.replay.value)}."
    if driver is not None:
        title += f", the driver in {as_time(driver.ready_s)}"
        ratio = slowest.replay.value / driver.replay.value
        text = f"A further replay keeps the host {times(ratio)} as long as the driver's call."
    replays, pair = slowest.replays, slowest.pair
    if pair is not None:
        pays = "never pays off" if replays is None else f"pays off after {counted(replays, 'replay')}"
        text += f" With {kernels_of(pair)} it {pays}."
    once = replays is not None and replays > OFTEN
    advice = (
        "Make such a graph once and keep it: made anew for a few steps it costs more than it saves." if once else ""
    )
    rows = (
        *(row for one in (*every, driver) if one is not None for row in (*one.rows, one.replay)),
        *(pair[1:] if pair is not None else ()),
    )
    return said(title, text, advice, rows=rows)


@rule(
    "graph.command_buffers",
    f"stream / graph of graph_jax; equal within {EQUAL:.2f} times; donating is advised where it gains "
    f"{DONATED_RATIO:g} times as much, turning them off where both are slower",
)
def command_buffers(evidence: Evidence) -> Finding | None:
    """What XLA's command buffers do to a jitted JAX step with a new result, and with a donated argument."""
    counts = [count for count, _ in evidence.curve("graph_jax", "graph", "kernels")]
    kernels = usual_kernels(counts)
    if kernels is None:
        return None
    ways: dict[str, tuple[Row, Row]] = {}
    for output in ("new", "donated"):
        stream, graph = (evidence.row("graph_jax", way, kernels=kernels, output=output) for way in ("stream", "graph"))
        if stream is not None and graph is not None:
            ways[output] = stream, graph
    gains = {output: stream.value / graph.value for output, (stream, graph) in ways.items()}
    if not gains:
        return None
    first = next(iter(gains))
    gain = gains[first]
    title = f"XLA's command buffers make a jitted step of {counted(kernels, 'kernel')} "
    title += f"{times(max(gain, 1 / gain))} as {'fast' if gain > 1 else 'slow'}"
    if 1 / EQUAL < gain < EQUAL:
        title = f"XLA's command buffers do not change a jitted step of {counted(kernels, 'kernel')}"
    text, advice = "", ""
    if first == "new" and "donated" in gains:
        text = f"With a donated argument, whose memory the result takes, the gain is {times(gains['donated'])}."
        if gains["donated"] > gain * DONATED_RATIO:
            advice = "Donate what a step replaces (donate_argnums), so that XLA need not update its graph."
    if max(gains.values()) < 1 / EQUAL:
        advice = "Turn them off: XLA_FLAGS=--xla_gpu_enable_command_buffer= (an empty list)."
    return said(title, text, advice, rows=(row for pair in ways.values() for row in pair))


@rule("graph.upload", f"advised above {UPLOAD_RATIO:g} times")
def upload(evidence: Evidence) -> Finding | None:
    """What the first launch of a graph costs that was not uploaded before."""
    nodes = usual_kernels([count for count, _ in curve_of(evidence, "first_launch")])
    if nodes is None:
        return None
    names = ("first_launch", "uploaded_launch", "relaunch", "upload")
    first, uploaded, again, before = (evidence.row("graph_lifecycle", name, nodes=nodes) for name in names)
    against = uploaded or again
    if first is None or against is None:
        return None
    worth = first.value > against.value * UPLOAD_RATIO
    after = "after an upload" if uploaded is not None else "a later one"
    title = f"The first launch of a graph takes {as_time(first.value)}, {after} {as_time(against.value)}"
    text = f"The graph has {counted(nodes, 'node')}" + (
        f"; its upload takes {as_time(before.value)}." if before else "."
    )
    advice = "Call cuGraphUpload before the step that has to be quick." if worth else ""
    return said(title, text, advice, rows=(first, uploaded, again, before))


WAY_WORDS = {
    "set_params": "new arguments node by node",
    "set_grid": "a new grid node by node",
    "exec_update": "an update from a new capture",
    "rebuild": "a new capture and instantiation",
}
AROUND = ("record", "dispose")  # ways that need a new capture


class Cost(NamedTuple):
    """What changing so many nodes costs in all, and the rows behind it."""

    changed: int
    seconds: float
    rows: tuple[Row, ...]


def costs(evidence: Evidence, way: str, nodes: int) -> list[Cost]:
    """Record, calls, disposal, and what the next replay takes more than the one after, by the nodes that change."""
    every = []
    for changed, change in evidence.curve("graph_update", "change", "changed_nodes", way=way, nodes=nodes):
        after, later, *around = (
            evidence.row("graph_update", name, **change.params) for name in ("next_replay", "later_replay", *AROUND)
        )
        if change.value > 0 and after is not None and later is not None:
            others = [row for row in around if row is not None]
            seconds = change.value + sum(row.value for row in others) + max(after.value - later.value, 0.0)
            every.append(Cost(changed, seconds, (change, after, later, *others)))
    return every


@rule(
    "graph.update",
    "record + change + dispose + (next_replay - later_replay); advised where a rebuild takes more than "
    f"{UPDATE_RATIO:g} times the cheapest way",
)
def update(evidence: Evidence) -> Finding | None:
    """What changing all nodes of a graph costs, against making it anew, and which way to choose."""
    counts = [count for count, _ in evidence.curve("graph_update", "change", "nodes", way="rebuild")]
    nodes = usual_kernels([count for count in counts if count > 1] or counts)
    every = {way: costs(evidence, way, nodes) for way in WAY_WORDS} if nodes is not None else {}
    whole = {way: several[-1] for way, several in every.items() if several and several[-1].changed == nodes}
    if nodes is None or len(whole) < 2 or "rebuild" not in whole:
        return None
    way, best = min(whole.items(), key=lambda item: item[1].seconds)
    ratio = whole["rebuild"].seconds / best.seconds
    title = f"Changing all of {counted(nodes, 'node')} takes {as_time(best.seconds)}"
    text = "Making the graph anew is the cheapest way."
    if way != "rebuild":
        title += f", replacing the graph by a new one {as_time(whole['rebuild'].seconds)}"
        text = f"The cheapest way, {WAY_WORDS[way]}, is {times(ratio)} as fast."
    advice = ""
    if ratio > UPDATE_RATIO and every["set_params"] and every["exec_update"]:
        count = equal_at(every["set_params"], every["exec_update"][-1].seconds)
        advice = "Keep the nodes' handles and set new arguments node by node, however many change."
        if count is not None:
            advice = f"From about {round(count)} changed nodes on, update the whole graph instead of node by node."
            advice = advice if count > 1 else "Update the whole graph, even for one changed node."
    rows = [row for several in every.values() for change in several for row in change.rows]
    return said(title, text, advice, rows=rows, severity="advice" if ratio > UPDATE_RATIO else "note")


def equal_at(single: Sequence[Cost], whole_s: float) -> float | None:
    """How many nodes have to change until node by node costs as much as the whole graph, linear between measured
    counts; None if it never does."""
    place = next((place for place, each in enumerate(single) if each.seconds >= whole_s), None)
    if not place:
        return None if place is None else float(single[0].changed)
    before, after = single[place - 1 : place + 1]
    share = (whole_s - before.seconds) / (after.seconds - before.seconds)
    return before.changed + share * (after.changed - before.changed)


@rule("graph.one_by_one", f"the launch call above {ONE_BY_ONE:g} times that of empty kernels")
def one_by_one(evidence: Evidence) -> Finding | None:
    """Kinds of node whose replay keeps the host far longer than one of kernels: the driver submits each of them."""
    usual = evidence.row("graph_nodes", "launch", kind="kernel_empty")
    if usual is None:
        return None
    rows = [row for row in evidence.rows("graph_nodes", "launch") if row.value > usual.value * ONE_BY_ONE]
    rows.sort(key=lambda row: row.value, reverse=True)
    if not rows:
        return None
    who = f"{len(rows)} kinds of node"
    if len(rows) <= MOST_NAMED:
        who = f"{listed([kind_words(row) for row in rows])} nodes"
    few_bytes = any(row.params.get("kind") in OF_FEW_BYTES for row in rows)
    title = f"Replays of {who} keep the host, up to {as_time(rows[0].value)}"
    text = (
        "The driver submits these one by one at each replay; a chain of as many empty kernels takes it "
        f"{as_time(usual.value)}."
    )
    advice = (
        "Set or copy a few bytes in a kernel instead."
        if few_bytes
        else "Keep them out of graphs that are replayed often."
    )
    return said(title, text, advice, rows=(usual, *rows))


@rule("graph.pdl", f"without PDL over the better way with it; faster above {EQUAL:.2f} times")
def dependent_launch(evidence: Evidence) -> Finding | None:
    """What programmatic dependent launch saves, of kernels with a prologue where those were measured."""
    speedups: dict[str, list[tuple[float, str]]] = {}  # by which kernels, with the place
    rows: list[Row] = []
    for ending, whom in (("_prologue", "kernels with a prologue of 1 µs"), ("", "dependent kernels")):
        for place, metric in (("a stream", "stream"), ("a graph", "node")):
            plain, *ways = (
                evidence.row("graph_nodes", metric, kind=kind + ending) for kind in ("kernel", "pdl", "pdl_trigger")
            )
            known = [row for row in ways if row is not None]
            if plain is not None and known:
                speedups.setdefault(whom, []).append((plain.value / min(row.value for row in known), place))
                rows += [plain, *known]
    if not speedups:
        return None
    whom, several = next(iter(speedups.items()))
    helps = any(speedup > EQUAL for speedup, _ in several)
    title = f"Programmatic dependent launch does not speed up {whom}"
    if helps:
        words = " and ".join(f"{times(speedup)} as fast in {place}" for speedup, place in several)
        title = f"Programmatic dependent launch makes {whom} {words}"
    text = (
        "The attribute alone can save the gap; the prologue overlaps the kernel in front only if that one "
        "triggers early."
    )
    advice = "Call cudaTriggerProgrammaticLaunchCompletion early in the kernel in front." if helps else ""
    return said(title, text, advice, rows=rows)


HELPS = 1.05


def branches(evidence: Evidence, shape: str, duration_ns: int) -> list[tuple[int, Row, Row]]:
    """The counts of branches, each with the replay and as many streams; a chain is one branch of a fork."""
    points: dict[int, tuple[int, Row, Row]] = {}
    for name in (shape, "chain"):
        for count, row in evidence.curve("graph_shape", "graph", "branches", shape=name, duration_ns=duration_ns):
            streams = evidence.row("graph_shape", "streams", **row.params)
            if row.value > 0 and streams is not None:
                points.setdefault(count, (count, row, streams))
    return [points[count] for count in sorted(points)]


@rule(
    "graph.shape",
    f"branches are enough when more make a replay less than {HELPS:g} times as fast; first nodes keep "
    f"the host above {ROOTS_RATIO:g} times a chain's call",
)
def shapes(evidence: Evidence) -> Finding | None:
    """How a graph's branches compare with as many streams, and how many branches help."""
    durations = [duration for duration, _ in evidence.curve("graph_shape", "graph", "duration_ns", shape="fork_join")]
    duration_ns = min(durations, key=lambda duration: abs(duration - USUAL_DURATION_NS), default=0)
    measured = branches(evidence, "fork_join", duration_ns)
    if len(measured) < 2:
        return None
    # The fewest branches from which on no larger count makes the replay HELPS times as fast.
    enough = next(
        place
        for place, (_, row, _) in enumerate(measured)
        if all(row.value < later.value * HELPS for _, later, _ in measured[place + 1 :])
    )
    count, graph, streams = measured[enough]
    ratio = streams.value / graph.value
    title = f"{count} branches in a graph take {as_time(graph.value)}, "
    title += f"{times(max(ratio, 1 / ratio))} as {'fast' if ratio > 1 else 'slow'} as on {count} streams"
    if count == 1:
        title = "Branches in a graph do not help here"
    elif 1 / EQUAL < ratio < EQUAL:
        title = f"{count} branches in a graph take as long as on {count} streams: {as_time(graph.value)}"
    kernels = kernels_of(Pair(own_s(evidence, duration_ns), streams, graph))
    more = "; more branches do not help" if graph is not measured[-1][1] else ""
    many, chain = (
        evidence.row("graph_shape", "graph_submit", shape=shape, duration_ns=duration_ns)
        for shape in ("independent", "chain")
    )
    slow_roots = many is not None and chain is not None and many.value >= chain.value * ROOTS_RATIO
    advice = "Put one kernel in front of independent branches: the host submits each first node by itself."
    independent = branches(evidence, "independent", duration_ns)[-1:]
    rows = [row for _, *both in measured + independent for row in both]
    text = f"Measured with {kernels}{more}."
    return said(title, text, advice if slow_roots else "", rows=(*rows, many, chain))


# Each way that allocates in the step, with the one whose memory is allocated before.
OUTSIDE = {"graph_nodes": "graph_outside", "stream_kept": "stream_outside", "stream_released": "stream_outside"}
ADDED_BY = {"graph_nodes": "as graph nodes", "stream_kept": "from a pool that keeps its memory"}


@rule(
    "graph.memory",
    "a step less the same step with memory allocated before; at most the distance of their ends where their "
    f"intervals overlap; advised above {RELEASE_RATIO:g} times the pool that keeps its memory",
)
def memory(evidence: Evidence) -> Finding | None:
    """What an allocation costs as graph nodes, from a pool that keeps memory, and from one that gives it back."""
    sizes = [count for count, _ in evidence.curve("graph_memory", "step", "size_bytes", pairs=1)]
    usual = min(sizes, key=lambda count: abs(count - USUAL_BYTES), default=0)
    added: dict[str, float] = {}
    in_words: dict[str, str] = {}
    rows: list[Row] = []
    for pair in OUTSIDE.items():
        inside, outside = (evidence.row("graph_memory", "step", way=way, size_bytes=usual, pairs=1) for way in pair)
        if inside is not None and outside is not None:
            most_s, added_s = inside.interval.high - outside.interval.low, inside.value - outside.value
            added_s = max(added_s, 0.0) if not inside.interval.overlaps(outside.interval) else 0.0
            said_s = as_time(added_s) if added_s > 0 else f"at most {as_time(most_s)}"
            added[pair[0]], in_words[pair[0]] = added_s, said_s if most_s > 0 else "nothing measurable"
            rows += [inside, outside]
    words = [f"{in_words[way]} {how}" for way, how in ADDED_BY.items() if way in in_words]
    if not words:
        return None
    text = "The same step with memory allocated before it is subtracted."
    if "stream_released" in added:
        text = f"A pool that gives its memory back adds {in_words['stream_released']}."
    pooled_s, released_s = added.get("stream_kept"), added.get("stream_released", 0.0)
    costly = pooled_s is not None and released_s > max(pooled_s, 1e-9) * RELEASE_RATIO
    title = f"Allocating {size(usual)} in a step adds {', '.join(words)}"
    advice = "Raise the pool's release threshold (cuMemPoolSetAttribute) where steps allocate." if costly else ""
    return said(title, text, advice, rows=rows)


@rule("graph.model", f"good: median within {percent(GOOD_MEDIAN)}, 95 % of the steps within {percent(GOOD_MOST)}")
def foresight(evidence: Evidence) -> Finding | None:
    """How far the model's predictions lie from all steps of step_time, which it was not fitted to."""
    checked = check(evidence, fit(evidence)) if evidence.rows("step_time") else None
    if checked is None:
        return None
    good = checked.median <= GOOD_MEDIAN and checked.most <= GOOD_MOST
    steps = len(checked.points)
    within = sum(abs(point.error) <= checked.most for point in checked.points)
    covered = sum(point.covered for point in checked.points)
    title = f"The model predicts {steps} measured steps with a median error of {percent(checked.median)}"
    text = (
        f"For {within} of {steps} steps the error is at most {percent(checked.most)}; {covered} of {steps} lie "
        "within the predicted interval."
    )
    return said(title, text, rows=(point.row for point in checked.points), severity="good" if good else "note")


RULES: tuple[Rule, ...] = (
    crossovers, library, command_buffers, upload, update, one_by_one, dependent_launch, shapes, memory, foresight,
)  # fmt: skip
