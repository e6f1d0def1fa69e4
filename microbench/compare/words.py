"""Explains a comparison: its one line, what moved together, what the host and the SM clock did, what is unclear."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from microbench.analysis.evidence import Finding, Severity, listed, row_name
from microbench.analysis.stats import STABLE_HALF_WIDTH
from microbench.compare.compare import BETTER, COUNTED, LOST, VERDICTS, WORSE, Change, Comparison, HostDrift
from microbench.compare.decision import FALSE_DISCOVERIES, HOST_DRIFT, SMALLEST_CHANGE
from microbench.compare.pairs import MINIMUM_ROUNDS
from microbench.core.units import percent, ratio, round_percent

if TYPE_CHECKING:
    from microbench.analysis.stats import Row
    from microbench.core.model import Run


# What must be known before any figure of a comparison: what cannot be compared, and what is another on its sides.


SUITE = "compare"
MOST_NAMED = 3


def notices(comparison: Comparison) -> list[Finding]:
    """One run twice, simulated against real, another model, method, driver, board, and lost cases: in this order."""
    return [
        *_same_run(comparison),
        *_simulated(comparison),
        *_models(comparison),
        *_methods(comparison),
        *_drivers(comparison),
        *_boards(comparison),
        *_lost(comparison),
    ]


def figures_in_words(found: Sequence[object]) -> str:
    """How many figures: "1 figure", "12 figures"."""
    return f"{len(found)} figure{'' if len(found) == 1 else 's'}"


def _notice(rule: str, title: str, text: str, threshold: str, severity: Severity = "warning") -> Finding:
    return Finding(f"compare.{rule}", severity, title, text, threshold)


def _incomparable(comparison: Comparison, reason: str) -> list[Change]:
    return [one for one in comparison.changes if one.verdict == "incomparable" and one.reason == reason]


def _same_run(comparison: Comparison) -> Iterator[Finding]:
    if comparison.base.run_id == comparison.new.run_id:
        text = "BASE and NEW are copies of one run: a round that both hold is compared with itself, and says nothing."
        yield _notice("same_run", "ONE RUN TWICE", text, "the runs' ids are the same")


def _simulated(comparison: Comparison) -> Iterator[Finding]:
    found = _incomparable(comparison, "simulated")
    if found:
        names = ("BASE", "NEW") if comparison.base.simulated else ("NEW", "BASE")
        text = f"{names[0]} is simulated and {names[1]} is real: {figures_in_words(found)} cannot be compared."
        yield _notice("simulated", "SIMULATED AGAINST REAL", text, "one of the sessions ran on the simulated GPU")


def _models(comparison: Comparison) -> Iterator[Finding]:
    if not comparison.other_models:
        return
    pairs = listed([f"{new.name} against {base.name}" for base, new in comparison.other_models])
    shares, without = [one for one in comparison.changes if one.shares], _incomparable(comparison, "model")
    text = f"{pairs}: of {figures_in_words(shares)} the share of each GPU's own ceiling is compared"
    text += f"; {figures_in_words(without)} without a ceiling cannot be." if without else "."
    yield _notice("model", "ANOTHER GPU MODEL", text, "the name or the number of SMs differs")


def _methods(comparison: Comparison) -> Iterator[Finding]:
    found = _incomparable(comparison, "method")
    if found:
        names = listed(list(dict.fromkeys(one.new.benchmark for one in found)))
        text = f"{names}: {figures_in_words(found)} cannot be compared, because the two runs measured them differently."
        yield _notice("method", "ANOTHER METHOD", text, "the benchmark's version, or a metric's unit, differs")


def methods_in_words(comparison: Comparison, benchmark: str) -> str:
    """By which methods the two runs measured a benchmark: "method 2 in NEW, 1 in BASE"."""
    infos = comparison.base.benchmark(benchmark), comparison.new.benchmark(benchmark)
    before, after = (info.version if info is not None else None for info in infos)
    return f"method {after} in NEW, {before} in BASE" if before != after else "another unit"


def _drivers(comparison: Comparison) -> Iterator[Finding]:
    for one in comparison.differences:
        if one.name == "driver":
            text = f"{one.new.value} in NEW, {one.base.value} in BASE. What changed may be its doing."
            yield _notice("driver", "ANOTHER DRIVER", text, "the driver's version differs", "note")


def _boards(comparison: Comparison) -> Iterator[Finding]:
    others = [pair for pair in comparison.gpus if pair[0].uuid != pair[1].uuid and pair not in comparison.other_models]
    if others:
        names = listed(list(dict.fromkeys(new.name for _, new in others)))
        text = f"Both are {names}, and not the same one: what changed may lie between two boards or their hosts."
        yield _notice("board", "ANOTHER BOARD", text, "the GPU's UUID differs", "note")


def _lost(comparison: Comparison) -> Iterator[Finding]:
    """What BASE measured and NEW tried to: no ratio tells of it."""
    names = comparison.lost
    if names:
        left = len(names) - MOST_NAMED
        named = listed([*names[:MOST_NAMED], *([f"{left} more"] if left > 0 else [])])
        text = f"{len(names)} case{'' if len(names) == 1 else 's'} that BASE measured: {named}."
        yield _notice("lost", "FAILED IN NEW", text, f"NEW has it as {' or '.join(LOST)}")


# The commands that add to a run: what it lacks, or more rounds of the same cases, in fresh processes.


MOST_BENCHMARKS_NAMED = 4


class Side(NamedTuple):
    """What one run of a comparison is called on the command line; ``grows``: rounds can be added to its file."""

    name: str
    grows: bool = True


def more_rounds(comparison: Comparison, changes: Sequence[Change], base: Side, new: Side, rounds: int) -> list[str]:
    """What to run so that both sides of these changes have as many rounds, for each side that can be added to and lacks
    some: one command for all cases that were asked for in one way."""
    found = []
    for run, side, rows in (
        (comparison.base, base, [one.base for one in changes]),
        (comparison.new, new, [one.new for one in changes]),
    ):
        lacking = [row for row in rows if len(row.outcomes) < rounds]
        if side.grows:
            found += _commands(run, lacking, side.name, rounds)
    return found


def _commands(run: Run, rows: Iterable[Row], name: str, rounds: int) -> list[str]:
    sessions: dict[int, list[Row]] = {}
    for row in rows:
        sessions.setdefault(row.session, []).append(row)
    return list(dict.fromkeys(_command(run, session, found, name, rounds) for session, found in sessions.items()))


def _command(run: Run, session: int, rows: Sequence[Row], name: str, rounds: int) -> str:
    settings = run.sessions[session].settings
    benchmarks = list(dict.fromkeys(row.benchmark for row in rows))
    chosen = benchmarks if len(benchmarks) <= MOST_BENCHMARKS_NAMED else list(dict.fromkeys(row.suite for row in rows))
    words = ["microbench", "run", *chosen]
    if settings.preset in ("quick", "full"):
        words.append(f"--{settings.preset}")
    known = {axis.name for name in benchmarks if (info := run.benchmark(name)) for axis in info.axes}
    for axis, values in settings.overrides.items():
        if axis not in known:  # of another benchmark of that session: `run` refuses an axis that nothing has
            continue
        words += ["--set", f"{axis}={','.join(map(str, values))}"]
    if settings.device is not None:
        words += ["--device", settings.device]
    return shlex.join([*words, "--rounds", str(rounds), "--into", name])


# Explains what a comparison leaves open: figures that are unclear and what to run for them, and what could hide.


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
        )


LEAST_TOGETHER = 4
# Of a drift of the whole host its figures speak with one voice, but for a few.
MOST_OF_THE_HOST = 0.9
LARGEST_DRIFT = round_percent(math.expm1(HOST_DRIFT))
BEYOND_DRIFT = f"That is more than hosts were seen to drift by ({LARGEST_DRIFT}): each figure is judged as measured."
WITHIN_DRIFT = (
    "A host drifts by as much from run to run, so this is taken off each figure before it is judged, and --fail-on "
    f"does not see it. To tell a drift from a change, measure the two in turn, {MINIMUM_ROUNDS} times a round of "
    "each: run --into adds them up."
)
RULE = (
    f"the whole 95 % interval of the ratio beyond {SMALLEST}; false discoveries held to {percent(FALSE_DISCOVERIES)} "
    "over all suites (Benjamini-Hochberg in each)"
)


def summary(comparison: Comparison) -> Finding:
    """The comparison in one line: "3 slower, 1 faster, 412 same, 7 unclear, 2 incomparable"."""
    counted = {verdict: len(comparison.of(verdict)) for verdict in VERDICTS}
    words = [f"{count} {verdict}" for verdict, count in counted.items() if count or verdict == "same"]
    changed = any(counted[verdict] for verdict in (*BETTER, *COUNTED))
    severity: Severity = "note" if changed or not counted["same"] else "good"
    return Finding(
        rule="compare.changes",
        severity="problem" if any(counted[verdict] for verdict in WORSE) else severity,
        title=", ".join(words) if comparison.changes else "The two runs have no figure in common",
        text="",
        threshold=RULE,
    )


def findings(comparison: Comparison, base: Side, new: Side) -> list[Finding]:
    """What the verdicts come down to: a host far slower, what moved together, what host and clock did, what is
    unclear with what to run for it, and what could hide. ``base`` and ``new`` say what the runs are called."""
    host = list(_host(comparison.drifts))
    return [
        *(one for one in host if one.severity == "problem"),
        *_together(comparison),
        *(one for one in host if one.severity != "problem"),
        *_clock(comparison),
        *unclear(comparison, base, new),
        *hidden(comparison),
    ]


def _together(comparison: Comparison) -> Iterator[Finding]:
    """Benchmarks of which many figures changed the same way."""
    groups: dict[tuple[str, str, str], list[Change]] = {}
    for one in comparison.of(*WORSE, *BETTER):
        groups.setdefault((one.new.benchmark, one.verdict, one.metric.kind), []).append(one)
    for (benchmark, verdict, kind), found in groups.items():
        if len(found) < LEAST_TOGETHER:
            continue
        everything = sum((one.new.benchmark, one.metric.kind) == (benchmark, kind) for one in comparison.changes)
        middle = float(np.median([one.judged.median for one in found if one.judged is not None]))
        yield Finding(
            rule="compare.together",
            severity="problem" if verdict in WORSE else "good",
            title=f"{len(found)} of {everything} {kind}s of {benchmark} are {verdict}: {ratio(middle)} in the median",
            text="Figures of one benchmark that move together mostly have one cause: look for that first.",
            threshold=f"{LEAST_TOGETHER} or more figures of a benchmark with one verdict",
            rests_on=tuple(row_name(one.new) for one in found),
        )


def _host(drifts: tuple[HostDrift, ...]) -> Iterator[Finding]:
    """What the times and rates did together that the host's clock measured: alike suites in one finding, the farthest
    first."""
    groups: dict[tuple[bool, str, bool], list[HostDrift]] = {}
    for one in sorted(drifts, key=lambda one: -abs(math.log(one.ratio))):
        whole = one.went >= MOST_OF_THE_HOST * one.rows
        groups.setdefault((one.counted, "slower" if one.ratio > 1 else "faster", whole), []).append(one)
    for (counted, way, whole), found in groups.items():
        yield Finding(
            rule="compare.host",
            severity=_host_severity(counted, way, whole),
            title=_throughout(found, way) if whole else _some(found, way),
            text=BEYOND_DRIFT if counted else WITHIN_DRIFT,
            threshold=f"the median cost of what the host's clock timed moved by {SMALLEST} or more",
        )


def _host_severity(counted: bool, way: str, whole: bool) -> Severity:
    if counted and whole:
        return "problem" if way == "slower" else "good"
    return "advice" if counted or not whole else "note"


def _throughout(found: list[HostDrift], way: str) -> str:
    first, *others = found
    suites = [
        f"{first.rows} of its figures of {first.suite} by {_by(first)}",
        *(f"{one.rows} of {one.suite} by {_by(one)}" for one in others),
    ]
    return f"The host was {way} throughout: {', '.join(suites)} in the median"


def _some(found: list[HostDrift], way: str) -> str:
    suites = (f"{one.went} of {one.rows} of {one.suite} (the median of all is {_by(one)} {way})" for one in found)
    return f"Of the host's figures many were {way}: {', '.join(suites)}"


def _by(drift: HostDrift) -> str:
    return percent(abs(drift.ratio - 1))


def _clock(comparison: Comparison) -> Iterator[Finding]:
    """Figures that moved as the SM clock did, and no farther."""
    beyond = math.exp(SMALLEST_CHANGE)
    moved = [
        one
        for one in comparison.of("same")
        if one.by == "clock" and one.ratio is not None and (one.ratio.low > beyond or one.ratio.high < 1 / beyond)
    ]
    if moved:
        sizes = float(np.median([abs(math.log(one.ratio.median)) for one in moved if one.ratio is not None]))
        yield Finding(
            rule="compare.clock",
            severity="note",
            title=f"{figures_in_words(moved)} moved with the SM clock alone, by {percent(math.expm1(sizes))}",
            text="At one SM clock they are the same: the card was warmer or cooler, or spent its power elsewhere.",
            threshold=f"beyond {SMALLEST} as measured, the same at one SM clock",
            rests_on=tuple(row_name(one.new) for one in moved),
        )
