"""Constants of the model that one benchmark shows by itself: calls, ways, gaps, the queue, the life of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from microbench.explain.evidence import Evidence, whole
from microbench.explain.fit_constant import around, combined, middle, of_row, of_rows, stand_in, straight
from microbench.explain.graph_life import MAKING
from microbench.fitted import Constant
from microbench.ops import LOOP_LAYER
from microbench.submission import call_name, replay_name

Found = Iterator[tuple[str, Constant]]

# graph_shape's kernels between the first and the last of a fork.
FORKED_KERNELS = 64
ONE_SIZE = "only one size of graph was measured"
RECORDED = "the gap is that of kernels that record their begin and end"


def own_s(evidence: Evidence, duration_ns: int) -> float:
    """How long a spin kernel asked for ``duration_ns`` runs by its own record, in seconds.

    What it runs over lies on the straight line between those of measured durations, and stays beyond them. Without
    records it runs for as long as asked.
    """
    points = [(duration, row.value) for duration, row in evidence.curve("launch_duration", "duration", "duration_ns")]
    known = dict(points)
    if duration_ns in known:
        return known[duration_ns]
    over = [(duration, seconds - duration * 1e-9) for duration, seconds in points if duration > 0]
    return max(duration_ns * 1e-9 + _between(over, duration_ns), known.get(0, 0.0))


def _between(points: Sequence[tuple[int, float]], at: int) -> float:
    """On the line between the two points around ``at``; that of the nearest beyond them, 0 without points."""
    below = [point for point in points if point[0] <= at]
    above = [point for point in points if point[0] > at]
    if not below or not above:
        return (below[-1] if below else above[0])[1] if points else 0.0
    (x0, y0), (x1, y1) = below[-1], above[0]
    return y0 + (y1 - y0) * (at - x0) / (x1 - x0)


def empty_kernel(evidence: Evidence) -> Constant:
    """What an empty kernel takes by its own record; 0 where it was not recorded."""
    row = evidence.row("launch_duration", "duration", duration_ns=0)
    return of_row(row) if row is not None else Constant(0.0, 0.0, 0.0, (), "an empty kernel takes no time")


def calls(evidence: Evidence) -> Found:
    """A launch call by layer and count of arguments; the compiled loop's empty kernel by all that measured it."""
    found: dict[str, list[Constant]] = {}
    submit = evidence.row("launch_cost", "submit")
    if submit is not None:
        found[call_name(LOOP_LAYER, 0)] = [of_row(submit)]
    for row in evidence.rows("launch_layers", "submit"):
        if row.value > 0:
            name = call_name(str(row.params.get("layer")), whole(row, "arguments"))
            found.setdefault(name, []).append(of_row(row))
    for name, several in found.items():
        yield name, middle(several)


def around_a_kernel(evidence: Evidence) -> Found:
    """The way to the GPU and the completion, which only together are what a synchronise after a launch shows."""
    empty = empty_kernel(evidence)
    submit, trip = evidence.row("launch_cost", "submit"), evidence.row("launch_cost", "round_trip")
    estimate, start = evidence.row("launch_cost", "start_estimate"), evidence.row("launch_cost", "start")
    if submit is None or trip is None:
        return
    yield "empty", empty
    begun, assumed = estimate, ""
    if estimate is None or (start is not None and start.value < estimate.value):
        begun, assumed = start, "a kernel begins when the host sees its first act"
    if begun is not None:
        yield "way", of_rows(((1, begun), (-1, submit)), assumed)
        yield "complete", combined([(1, of_rows(((1, trip), (-1, begun)))), (-1, empty)], assumed)
        return
    half = combined([(0.5, of_rows(((1, trip), (-1, submit)))), (-0.5, empty)])
    assumed = "way and completion share equally what a round trip leaves: nothing watched the kernel begin"
    for name in ("way", "complete"):
        yield name, stand_in(half, assumed)


def waiting(evidence: Evidence) -> Found:
    """A synchronise of an idle stream: measured, or the session's own floor."""
    row = evidence.row("launch_sync", "idle_stream", wait="spin") or evidence.row("launch_sync", "idle_stream")
    if row is not None:
        yield "sync", of_row(row)
        return
    floors = [session.floors.idle_sync_s for session in evidence.run.sessions]
    if floor_s := next(filter(None, reversed(floors)), None):
        yield "sync", stand_in(around(floor_s, 0.0, ()), "a synchronise takes what it took when the run began")


def gaps(evidence: Evidence) -> Found:
    """Between kernels of a stream: a gated one less its own duration. Of a graph: what a node adds, less the same."""
    durations = dict(evidence.curve("launch_duration", "duration", "duration_ns"))
    gated = evidence.curve("launch_duration", "gated", "duration_ns")
    streams = [of_rows(((1, row), (-1, durations[at]))) for at, row in gated if at in durations]
    recorded = evidence.row("launch_cost", "gap_stream")
    if streams:
        yield "gap_stream", middle(streams)
    elif recorded is not None:
        yield "gap_stream", stand_in(of_row(recorded), RECORDED)
    nodes = [(count, of_row(row)) for count, row in evidence.curve("graph_lifecycle", "node", "nodes")]
    recorded = evidence.row("launch_cost", "gap_graph")
    if len(nodes) > 1:
        (few, first), (many, last) = nodes[0], nodes[-1]
        node = [(many / (many - few), last), (-few / (many - few), first)]
        yield "gap_graph", combined([*node, (-1, empty_kernel(evidence))])
    elif recorded is not None:
        yield "gap_graph", stand_in(of_row(recorded), RECORDED)


def queue(evidence: Evidence) -> Found:
    """Launches that wait before the call blocks, of the smallest arguments measured."""
    depths = evidence.curve("launch_queue", "depth", "argument_bytes")
    if depths:
        yield "queue", of_row(depths[0][1])


def lives(evidence: Evidence) -> Found:
    """Making a graph, and the replay call of the compiled loop, each with what a node adds."""
    replays = [(count, of_row(row)) for count, row in evidence.curve("graph_lifecycle", "relaunch", "nodes")]
    replay = straight(replays, "constant", ONE_SIZE)
    if replay is not None:
        yield replay_name(LOOP_LAYER), replay[0]
        yield "replay_node", replay[1]
    phases = [dict(evidence.curve("graph_lifecycle", phase, "nodes")) for phase in MAKING]
    counts = sorted(set.intersection(*(set(phase) for phase in phases)))
    made = [(count, of_rows([(1.0, phase[count]) for phase in phases])) for count in counts]
    making = straight(made, "slope", ONE_SIZE)
    if making is not None:
        yield "make", making[0]
        yield "make_node", making[1]


def front_end(evidence: Evidence, known: Mapping[str, Constant]) -> Found:
    """Between begins of kernels side by side: of a fork of empty kernels into as many branches as were measured.

    Of its time, what begins and ends a replay and the last kernel are taken off. Then there is one begin after the
    other; the first kernel and the last are chained to the others, so that there it may be the gap that holds.
    """
    around_it = (replay_name(LOOP_LAYER), "replay_way", "complete")
    forks = evidence.curve("graph_shape", "graph", "branches", shape="fork_join", duration_ns=0)
    if not forks or any(name not in known for name in (*around_it, "gap_graph")):
        return
    empty = empty_kernel(evidence)
    chained = combined([(1.0, empty), (1.0, known["gap_graph"])])
    begins = combined([(1.0, of_row(forks[-1][1])), *((-1.0, known[name]) for name in around_it), (-1.0, empty)])
    all_alike = combined([(1 / (FORKED_KERNELS + 1), begins)])
    others = combined([(1 / (FORKED_KERNELS - 1), begins), (-2 / (FORKED_KERNELS - 1), chained)])
    found = all_alike if all_alike.value > chained.value else others
    if found.value > 0:
        yield "front_end", found
