"""Explains graph_gain: up to which kernel duration a graph is faster, by how much, and where it does not help."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, rests_on
from microbench.analysis.fits import Line, line
from microbench.analysis.graph_steps import (
    LITTLE,
    MAKING,
    Pair,
    kernel_counts,
    kernels_in_words,
    pairs,
    title_of,
    usual_kernels,
)
from microbench.analysis.stats import Row
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import as_time, percent, times
from microbench.explain.launch_cost import crossover_s

SPEEDUPS = (1.5, 1.1, 1.05)


class Crossing(NamedTuple):
    """From which kernel duration on the speed-up is under ``speedup``: None if not within what was measured, 0 if
    from the shortest on."""

    speedup: float
    duration_s: float | None


def submitters(evidence: Evidence) -> list[str]:
    """Who submitted, the compiled loop first."""
    found = dict.fromkeys(str(row.params.get("submitter")) for row in evidence.rows("graph_gain", "stream"))
    return sorted(found, key=lambda name: name != LOOP_LAYER)


def curves(evidence: Evidence) -> dict[str, tuple[int, list[Pair]]]:
    """For each submitter the usual count of kernels and its pairs, at least two of them."""
    found = {}
    for name in submitters(evidence):
        kernels = usual_kernels(kernel_counts(evidence, name))
        measured = pairs(evidence, name, kernels) if kernels is not None else []
        if kernels is not None and len(measured) > 1:
            found[name] = (kernels, measured)
    return found


def crossing(measured: Sequence[Pair], speedup: float) -> Crossing:
    """The shortest duration from which on every speed-up is under ``speedup``, between two measured ones.

    Straight over the logarithm of the duration, as the axis is; over the duration itself from 0 to the next.
    """
    if measured[-1].speedup >= speedup:
        return Crossing(speedup, None)
    for below, above in itertools.pairwise(reversed(measured)):
        if above.speedup >= speedup:
            share = (above.speedup - speedup) / (above.speedup - below.speedup)
            begin_s, end_s = above.duration_s, below.duration_s
            if begin_s <= 0:
                return Crossing(speedup, share * end_s)
            return Crossing(speedup, begin_s * (end_s / begin_s) ** share)
    return Crossing(speedup, 0.0)


def crossovers(evidence: Evidence) -> list[Finding]:
    """Under which kernel durations a graph pays: where the speed-up falls under 1.5, 1.1 and 1.05, for each
    submitter."""
    found = curves(evidence)
    if not found:
        return []
    first = next(iter(found))
    words = [_submitter_words(name, measured) for name, (_, measured) in found.items()]
    kernels, measured = found[first]
    return [
        Finding(
            rule="graph.crossover",
            severity="note",
            title=_crossover_title(kernels, measured, "" if first == LOOP_LAYER else f" from {title_of(first)}"),
            text=f"Stream over graph for {kernels} kernels and one synchronise: {'; '.join(words)}.",
            threshold="stream / graph; between measured durations straight over their logarithm",
            rests_on=rests_on(*(row for _, several in found.values() for pair in several for row in pair[1:])),
            suite="graph",
        )
    ]


def _crossover_title(kernels: int, measured: Sequence[Pair], who: str) -> str:
    strong, _, weak = (crossing(measured, one) for one in SPEEDUPS)
    if weak.duration_s == 0:
        return f"A graph of {kernels} kernels gains less than {LITTLE:g}×{who}, however short they are"
    longest = as_time(measured[-1].duration_s)
    if weak.duration_s is None:
        return f"A graph of {kernels} kernels gains more than {LITTLE:g}×{who} up to kernels of {longest}"
    title = f"A graph of {kernels} kernels gains {LITTLE:g}×{who} up to kernels of {as_time(weak.duration_s)}"
    return title + (f", 1.5× up to {as_time(strong.duration_s)}" if strong.duration_s else "")


def _submitter_words(submitter: str, measured: Sequence[Pair]) -> str:
    """From how much on empty kernels down to under which speed-up from which duration on."""
    shortest, longest = measured[0], measured[-1]
    words = f"from {title_of(submitter)} {times(shortest.speedup)} with {kernels_of(shortest)}"
    found = [crossing(measured, speedup) for speedup in SPEEDUPS]
    always = [one for one in found if one.duration_s == 0]
    if always:
        words += f", always under {always[-1].speedup:g}×"
    between = [f"{one.speedup:g}× from {as_time(one.duration_s)}" for one in found if one.duration_s]
    if between:
        words += f", under {', '.join(between)}"
    never = [one for one in found if one.duration_s is None]
    if never:
        words += f", never under {never[0].speedup:g}× up to {as_time(longest.duration_s)}"
    return words


def kernels_of(pair: Pair) -> str:
    """A pair's kernels in words."""
    return "empty kernels" if pair.duration_s == 0 else f"kernels of {as_time(pair.duration_s)}"


# Explains graph_lifecycle: what making a graph costs, which phase most, and after how many replays it has paid.


EQUAL = 1.10
LONGER_S = 10e-6


class BreakEven(NamedTuple):
    """A chain of kernels as a graph: what making it costs and what a replay saves. The rows are what that rests on."""

    kernels: int
    pair: Pair
    making: tuple[Row, ...]

    @property
    def making_s(self) -> float:
        """Capture, instantiate and upload."""
        return sum(row.value for row in self.making)

    @property
    def replays(self) -> int | None:
        """Replays after which the graph has paid; None if a replay saves nothing measurable."""
        saved_s = self.pair.saved_s * self.kernels
        return max(math.ceil(self.making_s / saved_s), 1) if saved_s > 0 else None

    @property
    def words(self) -> str:
        """After how many replays."""
        return "never" if self.replays is None else f"after {self.replays}"

    @property
    def rows(self) -> tuple[Row, ...]:
        """Everything that this rests on."""
        return (*self.making, self.pair.stream, self.pair.graph)


def curve_of(evidence: Evidence, metric: str) -> list[tuple[int, Row]]:
    """A metric of graph_lifecycle over the count of nodes, where it is above 0."""
    return [point for point in evidence.curve("graph_lifecycle", metric, "nodes") if point[1].value > 0]


def life_line(evidence: Evidence, metric: str) -> Line | None:
    """The fit of a phase's time over the count of nodes. GPU time is measured per node: its fit is that of a replay."""
    points = curve_of(evidence, metric)
    return line((nodes, row.value * (nodes if row.metric.unit == "s/launch" else 1)) for nodes, row in points)


def making(evidence: Evidence, nodes: int) -> tuple[Row, ...] | None:
    """The rows of capture, instantiate and upload of a graph of ``nodes``, if all are there."""
    found = [evidence.row("graph_lifecycle", metric, nodes=nodes) for metric in MAKING]
    rows = tuple(row for row in found if row is not None)
    return rows if len(rows) == len(MAKING) else None


def break_evens(evidence: Evidence, shortest_s: float = 0.0) -> list[BreakEven]:
    """For each count of kernels that both benchmarks measured, with its shortest kernels of at least ``shortest_s``."""
    found = []
    for kernels in kernel_counts(evidence):
        made = making(evidence, kernels)
        pair = next((one for one in pairs(evidence, LOOP_LAYER, kernels) if one.duration_s >= shortest_s), None)
        if made is not None and pair is not None:
            found.append(BreakEven(kernels, pair, made))
    return found


def usual_break_even(found: list[BreakEven]) -> BreakEven | None:
    """The one whose count of kernels is the usual one."""
    kernels = usual_kernels([one.kernels for one in found])
    return next((one for one in found if one.kernels == kernels), None)


def break_even(evidence: Evidence) -> list[Finding]:
    """After how many replays a chain has paid for being made a graph."""
    found = break_evens(evidence)
    usual = usual_break_even(found)
    if usual is None:
        return []
    longer = [one for one in break_evens(evidence, LONGER_S) if one.pair.duration_s > usual.pair.duration_s]
    chain = kernels_in_words(usual.kernels, usual.pair.duration_s)
    text = f"Making it takes {as_time(usual.making_s)} (capture, instantiate, upload)"
    if usual.replays is None:
        title = f"A chain of {chain} never pays for its graph"
        text += ", and a replay saves nothing measurable."
    else:
        title = f"A chain of {chain} pays for its graph {usual.words} "
        title += "replay" if usual.replays == 1 else "replays"
        text += f", and a replay saves {as_time(usual.pair.saved_s * usual.kernels)}."
    if len(found) > 1:
        text += f" By the length of the chain: {_list(found)}."
    if longer:
        text += f" With {kernels_of(longer[0].pair)}: {_list(longer)}."
    return [
        Finding(
            rule="graph.break_even",
            severity="note",
            title=title,
            text=text,
            threshold="(capture + instantiate + upload) / (stream - graph), rounded up; never where these two overlap",
            rests_on=tuple(dict.fromkeys(rests_on(*(row for one in found + longer for row in one.rows)))),
            suite="graph",
        )
    ]


def _list(found: list[BreakEven]) -> str:
    several = [f"{one.kernels} kernel{'' if one.kernels == 1 else 's'} {one.words}" for one in found]
    return ", ".join(several[:1] + [f"{one.kernels} {one.words}" for one in found[1:]])


def phases(evidence: Evidence) -> list[Finding]:
    """Which phase of making a graph is the dearest, per node and besides, and building against capturing."""
    nodes = usual_kernels([count for count, _ in curve_of(evidence, "instantiate")])
    if nodes is None or (made := making(evidence, nodes)) is None:
        return []
    whole_s = sum(row.value for row in made)
    parts = dict(zip(MAKING, made, strict=True))
    largest = max(parts, key=lambda name: parts[name].value)
    share = parts[largest].value / whole_s
    shares = [f"{name} {as_time(row.value)} ({percent(row.value / whole_s)})" for name, row in parts.items()]
    lines = {name: one for name in (*MAKING, "destroy") if (one := life_line(evidence, name)) is not None}
    text = f"For {nodes_of(nodes)}: {', '.join(shares)}."
    if lines:
        text += f" {_fits(lines)}"
    build = evidence.row("graph_lifecycle", "build", nodes=nodes)
    points = [row for name in lines for _, row in curve_of(evidence, name)]
    return [
        Finding(
            rule="graph.phases",
            severity="note",
            title=f"Of making a graph of {nodes_of(nodes)}, {largest} takes most: {percent(share)}",
            text=text + _build_words(build, parts["capture"]),
            threshold=f"names the largest; build and capture count as equal within {EQUAL:.2f} times",
            rests_on=tuple(dict.fromkeys(rests_on(*made, build, *points))),
            suite="graph",
        )
    ]


def nodes_of(count: int) -> str:
    """A count of nodes in words."""
    return f"{count} node{'' if count == 1 else 's'}"


def _fits(lines: dict[str, Line]) -> str:
    words = [f"{name} {as_time(one.slope)} and {as_time(one.constant)}" for name, one in lines.items()]
    name, worst = max(lines.items(), key=lambda item: item[1].misfit.largest)
    return (
        f"By straight lines, for each node and besides for each graph: {', '.join(words)} (worst fit: {name}, off by "
        f"{percent(worst.misfit.median)} in the median, at most {percent(worst.misfit.largest)})."
    )


def _build_words(build: Row | None, capture: Row) -> str:
    if build is None:
        return ""
    ratio = capture.value / build.value
    if 1 / EQUAL < ratio < EQUAL:
        return f" Building node by node takes as long as capturing: {as_time(build.value)}."
    faster = "faster" if ratio > 1 else "slower"
    return (
        f" Building node by node takes {as_time(build.value)} instead of capture's {as_time(capture.value)}: "
        f"{times(max(ratio, 1 / ratio))} {faster}."
    )


# Explains when a graph does not help, and why: single kernels, long kernels, too few replays.


# For each reason: what is not helped, in the words of a title (none where it is helped after all); why, in a sentence;
# what it rests on.
Reason = tuple[str, str, tuple[Row | None, ...]]


def no_help(evidence: Evidence) -> list[Finding]:
    """When a graph does not help, and why, each reason with this machine's own numbers."""
    reasons = [*_long_kernels(evidence), *_single_kernels(evidence), *_few_replays(evidence)]
    named = [what for what, _, _ in reasons if what]
    if not named:
        return []
    return [
        Finding(
            rule="graph.no_help",
            severity="note",
            title=f"A graph does not help {_nor(named)}",
            text=" ".join(why for _, why, _ in reasons),
            threshold=f"a speed-up under {LITTLE:g}×, or fewer replays than pay for the graph",
            rests_on=tuple(dict.fromkeys(rests_on(*(row for _, _, rows in reasons for row in rows)))),
            suite="graph",
        )
    ]


def _nor(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, nor {words[-1]}"


def _long_kernels(evidence: Evidence) -> list[Reason]:
    """Where the host keeps up, only the gap is left to gain."""
    found = curves(evidence).get(LOOP_LAYER)
    if found is None:
        return []
    kernels, measured = found
    weak = crossing(measured, LITTLE)
    if weak.duration_s is None:
        return []
    longest = measured[-1]
    keeps_up = crossover_s(evidence)
    stream, graph = evidence.row("launch_cost", "gap_stream"), evidence.row("launch_cost", "gap_graph")
    why = "where kernels run longer than a launch takes the host, the stream's GPU never waits for it"
    if keeps_up is not None and keeps_up > 0:
        why = f"kernels above {as_time(keeps_up)} never wait for the host (submit less gap)"
    gap = "and a shorter gap is all that is left to gain"
    if stream is not None and graph is not None and stream.value > graph.value:
        gap += f": {as_time(stream.value - graph.value)} a kernel"
    words = f"With {kernels_in_words(kernels, longest.duration_s)} a graph saves {_share_saved(longest)}: {why}, {gap}."
    title = f"kernels above {as_time(weak.duration_s)}" if weak.duration_s > 0 else f"steps of {kernels} kernels"
    return [(title, words, (longest.stream, longest.graph, stream, graph, evidence.row("launch_cost", "submit")))]


def _share_saved(pair: Pair) -> str:
    return percent(pair.saved_s / pair.stream.value) if pair.saved_s > 0 else "nothing measurable"


def _single_kernels(evidence: Evidence) -> list[Reason]:
    """One kernel a replay is one call, one way and one completion all the same."""
    measured = pairs(evidence, LOOP_LAYER, 1)
    if not measured:
        return []
    pair = measured[0]
    if pair.speedup >= LITTLE:
        return [("", f"Even one kernel a replay gains {times(pair.speedup)}: its call is the cheaper one.", pair[1:])]
    why = (
        f"One kernel a replay takes {as_time(pair.graph.value)}, launched {as_time(pair.stream.value)} "
        f"({times(pair.speedup)}): a replay is a call, a way to the GPU and a completion all the same."
    )
    return [("single kernels", why, (pair.stream, pair.graph))]


def _few_replays(evidence: Evidence) -> list[Reason]:
    """A graph is paid before its first replay."""
    both = [usual_break_even(break_evens(evidence, shortest_s)) for shortest_s in (0.0, LONGER_S)]
    one = next((one for one in both if one is not None and one.replays is not None and one.replays > 1), None)
    if one is None:
        return []
    chain = kernels_in_words(one.kernels, one.pair.duration_s)
    few = f"{chain} replayed fewer than {one.replays} times"
    return [(few, f"Making a graph of {chain} takes {as_time(one.making_s)}, more than so few replays save.", one.rows)]
