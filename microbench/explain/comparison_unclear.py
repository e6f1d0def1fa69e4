"""Explains what a comparison leaves open: figures that are unclear and what to run for them, and what could hide."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from microbench.compare import MINIMUM_ROUNDS, Comparison
from microbench.compare_decision import SMALLEST_CHANGE
from microbench.explain.comparison_notices import SUITE, figures_in_words
from microbench.explain.evidence import row_name
from microbench.explain.finding import Finding
from microbench.explain.remeasuring import Side, more_rounds
from microbench.stats import STABLE_HALF_WIDTH
from microbench.units import percent, round_percent

MORE_ROUNDS = 2 * MINIMUM_ROUNDS
SMALLEST = percent(math.expm1(SMALLEST_CHANGE))


class Why(NamedTuple):
    """Why figures are unclear: the title after their number, the text, and the rounds that would tell (0: none)."""

    title: str
    text: str
    rounds: int = 0


WHY: dict[str, Why] = {
    "rounds": Why(
        f"have fewer than {MINIMUM_ROUNDS} rounds on a side",
        "A process settles some percent away from the next, so that fewer rounds tell nothing of a change.",
        MINIMUM_ROUNDS,
    ),
    "levels": Why(
        "moved, but figures like them jump between two levels from process to process",
        "Once in some hundred such figures chance puts the rounds of each run on a level of their own.",
        MORE_ROUNDS,
    ),
    "host": Why(
        "moved only as everything did that the host's clock timed",
        "Whether they changed cannot be told from the host's drift.",
    ),
    "noise": Why(
        "may have changed as well as not: their rounds scatter",
        f"Their interval reaches beyond {round_percent(STABLE_HALF_WIDTH)}, or lies beyond {SMALLEST} where chance "
        "among so many figures is enough for that.",
        MORE_ROUNDS,
    ),
    "grade": Why(
        "are unverified, below the floor of their clock, or throttled",
        "Such a figure is no ground for a verdict: see what `microbench show` says of it.",
    ),
    "no ratio": Why("are 0 or less in some round", "A ratio of them means nothing: see both values."),
}


def unclear(comparison: Comparison, base: Side, new: Side) -> Iterator[Finding]:
    """One finding for each reason, with the commands that would settle it."""
    found = comparison.of("unclear")
    for reason, why in WHY.items():
        members = [one for one in found if one.reason == reason]
        if not members:
            continue
        commands = more_rounds(comparison, members, base, new, why.rounds) if why.rounds else []
        yield Finding(
            rule=f"compare.unclear_{reason.replace(' ', '_')}",
            severity="advice" if commands else "note",
            title=f"{figures_in_words(members)} {why.title}",
            text=" ".join([why.text, *(f"`{command}`" for command in commands)]),
            threshold="unclear: neither a change nor its absence is shown",
            rests_on=tuple(row_name(one.new) for one in members),
            suite=SUITE,
        )


def hidden(comparison: Comparison) -> Iterator[Finding]:
    """How large a change could hide among the figures that are the same."""
    same = [one.judged for one in comparison.of("same") if one.judged is not None and one.judged.low > 0]
    if same:
        middle, most = np.quantile([max(one.high, 1 / one.low) - 1 for one in same], [0.5, 0.95])
        yield Finding(
            rule="compare.hidden",
            severity="note",
            title=f"A change of {percent(float(middle))} could hide in the middle one of those that are the same",
            text=f"In one of twenty a change of {percent(float(most))} or more could.",
            threshold=f"the far end of each 95 % interval; over {round_percent(STABLE_HALF_WIDTH)} a figure is unclear",
            suite=SUITE,
        )
