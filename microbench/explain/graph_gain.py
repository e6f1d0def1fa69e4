"""Explains graph_gain: up to which kernel duration a graph is faster, by how much, and where it does not help."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.explain.launch_layers import TITLES
from microbench.ops import LOOP_LAYER
from microbench.stats import Row
from microbench.units import as_time, times

USUAL_KERNELS = 100
SPEEDUPS = (1.5, 1.1, 1.05)
LITTLE = 1.05


class Pair(NamedTuple):
    """One kernel duration measured both ways; the rows are times per kernel."""

    duration_s: float
    stream: Row
    graph: Row

    @property
    def speedup(self) -> float:
        """How many times as long the stream takes."""
        return self.stream.value / self.graph.value

    @property
    def saved_s(self) -> float:
        """Time that the graph saves per kernel; 0 where the two intervals overlap."""
        return 0.0 if self.stream.interval.overlaps(self.graph.interval) else self.stream.value - self.graph.value


class Crossing(NamedTuple):
    """From which kernel duration on the speed-up is under ``speedup``: None if not within what was measured, 0 if
    from the shortest on."""

    speedup: float
    duration_s: float | None


def pairs(evidence: Evidence, submitter: str, kernels: int) -> list[Pair]:
    """graph_gain's cases of a submitter and a count of kernels, by ascending duration."""
    chosen: dict[str, int | str] = {"submitter": submitter, "kernels": kernels}
    graphs = dict(evidence.curve("graph_gain", "graph", "duration_ns", **chosen))
    return [
        Pair(duration_ns * 1e-9, row, graphs[duration_ns])
        for duration_ns, row in evidence.curve("graph_gain", "stream", "duration_ns", **chosen)
        if duration_ns in graphs and row.value > 0 and graphs[duration_ns].value > 0
    ]


def kernel_counts(evidence: Evidence, submitter: str = LOOP_LAYER) -> list[int]:
    """Counts of kernels in a step that were measured with that submitter, ascending."""
    return [count for count, _ in evidence.curve("graph_gain", "stream", "kernels", submitter=submitter)]


def usual_kernels(counts: Sequence[int], wanted: int = USUAL_KERNELS) -> int | None:
    """The count nearest to ``wanted``, by ratio; None without counts."""
    positive = [count for count in counts if count > 0]
    return min(positive, key=lambda count: abs(math.log(count / wanted)), default=None)


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


def kernels_in_words(count: int, duration_s: float) -> str:
    """So many kernels of that length: "8 kernels of 3.00 µs", "1 empty kernel"."""
    plural = "" if count == 1 else "s"
    return f"{count} kernel{plural} of {as_time(duration_s)}" if duration_s > 0 else f"{count} empty kernel{plural}"


def kernels_of(pair: Pair) -> str:
    """A pair's kernels in words."""
    return "empty kernels" if pair.duration_s == 0 else f"kernels of {as_time(pair.duration_s)}"


def title_of(submitter: str) -> str:
    """A submitter as its authors write it."""
    return f"the {TITLES[submitter]}" if submitter == LOOP_LAYER else TITLES.get(submitter, submitter)
