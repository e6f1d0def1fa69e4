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
MOST_COMMANDS = 2
SMALLEST = percent(math.expm1(SMALLEST_CHANGE))


class Why(NamedTuple):
    """Why figures are unclear: the words after their number, the text, and the rounds that would tell (0: none)."""

    title: str
    text: str
    rounds: int = 0


WHY: dict[str, Why] = {
    "rounds": Why(
        f"fewer than {MINIMUM_ROUNDS} rounds on a side",
        "A process settles some percent away from the next, so that fewer rounds tell nothing of a change.",
        MINIMUM_ROUNDS,
    ),
    "levels": Why(
        "moved as figures do that jump between two levels from process to process",
        "Once in some hundred of these chance puts the rounds of each run on a level of their own.",
        MORE_ROUNDS,
    ),
    "host": Why(
        "no farther off than the host may have drifted",
        "More rounds of one run and then the other leave it open: measure the two in turn, "
        f"{MINIMUM_ROUNDS} times a round of each (run --into adds them up).",
    ),
    "noise": Why(
        "their rounds scatter too much for either answer",
        f"An interval reaches beyond {round_percent(STABLE_HALF_WIDTH)}, or lies beyond {SMALLEST} as a few of so many "
        "do by chance.",
        MORE_ROUNDS,
    ),
    "grade": Why(
        "unverified, below the floor of their clock, or throttled",
        "Such a figure is no ground for a verdict: see what `microbench show` says of it.",
    ),
    "no ratio": Why("0 or less in some round", "A ratio of them means nothing: see both values."),
}


def unclear(comparison: Comparison, base: Side, new: Side) -> Iterator[Finding]:
    """One finding for each reason, with the commands that would settle it."""
    found = [one for one in comparison.changes if one.verdict == "unclear"]
    for reason, why in WHY.items():
        members = [one for one in found if one.reason == reason]
        if not members:
            continue
        commands = more_rounds(comparison, members, base, new, why.rounds) if why.rounds else []
        if reason == "noise" and len(commands) > MOST_COMMANDS:
            commands = [f"microbench run … --rounds {MORE_ROUNDS} --into RUN"]
        where = ", on the driver and board of each" if _moved_house(comparison) else ""
        yield Finding(
            rule=f"compare.unclear_{reason.replace(' ', '_')}",
            severity="advice" if commands else "note",
            title=f"{figures_in_words(members)} unclear: {why.title}",
            text=" ".join([why.text, *([f"More rounds tell{where}: `{'`, `'.join(commands)}`"] if commands else [])]),
            threshold="neither a change nor its absence is shown",
            rests_on=tuple(row_name(one.new) for one in members),
            suite=SUITE,
        )


def _moved_house(comparison: Comparison) -> bool:
    """Whether more rounds measured here and now would not be rounds of both: the newest driver stands for a run."""
    boards = any(one.uuid != other.uuid for one, other in comparison.gpus)
    return boards or any(one.name == "driver" for one in comparison.differences)


def hidden(comparison: Comparison) -> Iterator[Finding]:
    """How large a change could hide among the figures that are the same."""
    same = [one.judged for one in comparison.of("same") if one.judged is not None and one.judged.low > 0]
    if same:
        middle, most = np.quantile([max(one.high, 1 / one.low) - 1 for one in same], [0.5, 0.95])
        yield Finding(
            rule="compare.hidden",
            severity="note",
            title=f"A change of {percent(float(middle))} could hide in the median figure that is the same",
            text=f"In one figure of twenty a change of {percent(float(most))} or more could.",
            threshold=f"the far end of each 95 % interval; over {round_percent(STABLE_HALF_WIDTH)} a figure is unclear",
            suite=SUITE,
        )
