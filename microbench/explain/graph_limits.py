"""Explains when a graph does not help, and why: single kernels, long kernels, too few replays."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.explain.graph_gain import LITTLE, Pair, crossing, curves, kernels_in_words, pairs
from microbench.explain.graph_life import LONGER_S, break_evens, usual_break_even
from microbench.explain.launch_cost import crossover_s
from microbench.ops import LOOP_LAYER
from microbench.stats import Row
from microbench.units import as_time, percent, times

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
