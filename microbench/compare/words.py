"""Explains a comparison in findings: what to know first, the one-line result, what moved together, what is unclear."""

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

SUITE = "compare"
MOST_NAMED = 3
MOST_BENCHMARKS_NAMED = 4
MOST_COMMANDS = 2
MORE_ROUNDS = 2 * MINIMUM_ROUNDS
SMALLEST = percent(math.expm1(SMALLEST_CHANGE))
LEAST_TOGETHER = 4
# A drift moves nearly all figures of the host the same way: at least this share of them.
MOST_OF_THE_HOST = 0.9
ALTERNATE = (
    f"To tell a drift from a change, alternate the two runs, {MINIMUM_ROUNDS} times one round of each: run --into adds "
    "a round to a run."
)


class Side(NamedTuple):
    """What one run of a comparison is called on the command line; ``grows``: rounds can be added to its file."""

    name: str
    grows: bool = True


class Why(NamedTuple):
    """Why figures are unclear: the words after their number, the text, and the rounds that would settle it (0: none
    would) or other advice."""

    title: str
    text: str
    rounds: int = 0
    advice: str = ""


WHY: dict[str, Why] = {
    "rounds": Why(
        f"fewer than {MINIMUM_ROUNDS} rounds on a side",
        "Processes differ by some percent, so fewer rounds cannot show a change.",
        MINIMUM_ROUNDS,
    ),
    "levels": Why(
        "rounds jump between two levels from process to process",
        "About one in a hundred such figures has each run on a level of its own by chance.",
        MORE_ROUNDS,
    ),
    "host": Why(
        "moved no farther than the host may have drifted",
        "More rounds of one run and then of the other cannot settle this.",
        advice=ALTERNATE,
    ),
    "noise": Why(
        "rounds scatter too much to tell",
        f"Their intervals reach beyond {round_percent(STABLE_HALF_WIDTH)}, or lie beyond {SMALLEST} as a few of so "
        "many do by chance.",
        MORE_ROUNDS,
    ),
    "grade": Why(
        "unverified, throttled, or too short for their clock",
        "Such a figure cannot support a verdict.",
        advice="See the findings of `microbench show`.",
    ),
    "no ratio": Why("0 or less in some round", "Their ratio has no meaning.", advice="Compare the two values instead."),
}


def figures_in_words(members: Sequence[object]) -> str:
    """How many figures: "1 figure", "12 figures"."""
    return f"{len(members)} figure{'' if len(members) == 1 else 's'}"


def methods_in_words(comparison: Comparison, benchmark: str) -> str:
    """The methods by which the two runs measured a benchmark: "method 2 in NEW, 1 in BASE"."""
    infos = comparison.base.benchmark(benchmark), comparison.new.benchmark(benchmark)
    before, after = (info.version if info is not None else None for info in infos)
    return f"method {after} in NEW, {before} in BASE" if before != after else "another unit"


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
        threshold=(
            f"the whole 95 % interval of the ratio beyond {SMALLEST}; false discoveries limited to "
            f"{percent(FALSE_DISCOVERIES)} over all suites (Benjamini-Hochberg in each)"
        ),
    )


def notices(comparison: Comparison) -> list[Finding]:
    """One run twice, simulated against real, another model, method, driver or board, and lost cases: in this order."""
    return list(_notices(comparison))


def _notices(comparison: Comparison) -> Iterator[Finding]:
    base, new = comparison.base, comparison.new
    if base.run_id == new.run_id:
        text = "BASE and NEW are copies of one run: rounds that both contain are compared with themselves."
        yield _notice("same_run", "ONE RUN TWICE", text, "the runs' ids are the same")
    if simulated := _incomparable(comparison, "simulated"):
        names = ("BASE", "NEW") if base.simulated else ("NEW", "BASE")
        text = f"{names[0]} is simulated and {names[1]} is real: {figures_in_words(simulated)} cannot be compared."
        yield _notice("simulated", "SIMULATED AGAINST REAL", text, "one of the sessions ran on the simulated GPU")
    if comparison.other_models:
        models = listed([f"{after.name} against {before.name}" for before, after in comparison.other_models])
        shares = figures_in_words([change for change in comparison.changes if change.shares])
        text = f"{models}: {shares} are compared as a share of each GPU's own ceiling"
        without = _incomparable(comparison, "model")
        text += f"; {figures_in_words(without)} without a ceiling cannot be compared." if without else "."
        yield _notice("model", "ANOTHER GPU MODEL", text, "the name or the number of SMs differs")
    if methods := _incomparable(comparison, "method"):
        benchmarks = listed(list(dict.fromkeys(change.new.benchmark for change in methods)))
        text = f"{benchmarks}: {figures_in_words(methods)} cannot be compared, because the method changed."
        yield _notice("method", "ANOTHER METHOD", text, "the benchmark's version, or a metric's unit, differs")
    for difference in comparison.differences:
        if difference.name == "driver":
            text = f"{difference.new.value} in NEW, {difference.base.value} in BASE. It may have caused any change."
            yield _notice("driver", "ANOTHER DRIVER", text, "the driver's version differs", "note")
    boards = [
        after.name
        for before, after in comparison.gpus
        if before.uuid != after.uuid and (before, after) not in comparison.other_models
    ]
    if boards:
        text = (
            f"Both are {listed(list(dict.fromkeys(boards)))}, but not the same board: a change may come from the board "
            "or its host."
        )
        yield _notice("board", "ANOTHER BOARD", text, "the GPU's UUID differs", "note")
    if lost := comparison.lost:
        named = listed([*lost[:MOST_NAMED], *([f"{len(lost) - MOST_NAMED} more"] if len(lost) > MOST_NAMED else [])])
        text = f"{len(lost)} case{'' if len(lost) == 1 else 's'} that BASE measured: {named}."
        yield _notice("lost", "FAILED IN NEW", text, f"the case is {' or '.join(LOST)} in NEW")


def _notice(rule: str, title: str, text: str, threshold: str, severity: Severity = "warning") -> Finding:
    return Finding(f"compare.{rule}", severity, title, text, threshold)


def _incomparable(comparison: Comparison, reason: str) -> list[Change]:
    return [change for change in comparison.of("incomparable") if change.reason == reason]


def findings(comparison: Comparison, base: Side, new: Side) -> list[Finding]:
    """What the verdicts add up to: a much slower host, what moved together, what host and clock did, what is unclear
    and which commands settle it, and how large a change could hide. ``base`` and ``new`` name the runs."""
    host = list(_host(comparison.drifts))
    return [
        *(finding for finding in host if finding.severity == "problem"),
        *_together(comparison),
        *(finding for finding in host if finding.severity != "problem"),
        *_clock(comparison),
        *_unclear(comparison, base, new),
        *_hidden(comparison),
    ]


def _host(drifts: tuple[HostDrift, ...]) -> Iterator[Finding]:
    """How the host-timed figures moved together: one finding for suites that moved alike, the largest drift first."""
    groups: dict[tuple[bool, str, bool], list[HostDrift]] = {}
    for drift in sorted(drifts, key=lambda drift: -abs(math.log(drift.ratio))):
        whole = drift.went >= MOST_OF_THE_HOST * drift.rows
        groups.setdefault((drift.counted, "slower" if drift.ratio > 1 else "faster", whole), []).append(drift)
    for (counted, way, whole), members in groups.items():
        title = f"{'The whole host was' if whole else 'Many host-timed figures were'} {way}: "
        by_suite = [(drift, percent(abs(drift.ratio - 1))) for drift in members]
        if whole:
            title += ", ".join(f"{drift.rows} figures of {drift.suite} by {size}" for drift, size in by_suite)
            title += " (median)"
        else:
            parts = [(f"{drift.went} of {drift.rows} of {drift.suite}", size) for drift, size in by_suite]
            title += ", ".join(f"{part} (median of all: {size} {way})" for part, size in parts)
        severity: Severity = "advice" if counted or not whole else "note"
        if counted and whole:
            severity = "problem" if way == "slower" else "good"
        text = "Hosts drift this much from run to run, so it is subtracted from each figure and --fail-on ignores it."
        if counted:
            largest = round_percent(math.expm1(HOST_DRIFT))
            text = f"Hosts were never seen to drift that far ({largest}), so each figure is judged as measured."
        yield Finding(
            rule="compare.host",
            severity=severity,
            title=title,
            text=text,
            advice="" if counted else ALTERNATE,
            threshold=f"the median cost of host-timed figures moved by {SMALLEST} or more",
        )


def _together(comparison: Comparison) -> Iterator[Finding]:
    """Benchmarks of which many figures changed the same way."""
    groups: dict[tuple[str, str, str], list[Change]] = {}
    for change in comparison.of(*WORSE, *BETTER):
        groups.setdefault((change.new.benchmark, change.verdict, change.metric.kind), []).append(change)
    for (benchmark, verdict, kind), members in groups.items():
        if len(members) < LEAST_TOGETHER:
            continue
        total = sum((each.new.benchmark, each.metric.kind) == (benchmark, kind) for each in comparison.changes)
        middle = float(np.median([change.judged.median for change in members if change.judged is not None]))
        yield Finding(
            rule="compare.together",
            severity="problem" if verdict in WORSE else "good",
            title=f"{len(members)} of {total} {kind}s of {benchmark} are {verdict}: {ratio(middle)} in the median",
            text="Figures of one benchmark that move together usually have one cause.",
            threshold=f"{LEAST_TOGETHER} or more figures of a benchmark with one verdict",
            rests_on=tuple(row_name(change.new) for change in members),
        )


def _clock(comparison: Comparison) -> Iterator[Finding]:
    """Figures that moved as the SM clock did, and no farther."""
    beyond = math.exp(SMALLEST_CHANGE)
    moved = [
        (change, abs(math.log(change.ratio.median)))
        for change in comparison.of("same")
        if change.by == "clock"
        and change.ratio is not None
        and (change.ratio.low > beyond or change.ratio.high < 1 / beyond)
    ]
    if moved:
        size = percent(math.expm1(float(np.median([log for _, log in moved]))))
        yield Finding(
            rule="compare.clock",
            severity="note",
            title=f"{figures_in_words(moved)} moved only because the SM clock did, by {size}",
            text="At one SM clock they are the same: the card was warmer or cooler, or used its power elsewhere.",
            threshold=f"beyond {SMALLEST} as measured, the same at one SM clock",
            rests_on=tuple(row_name(change.new) for change, _ in moved),
        )


def _unclear(comparison: Comparison, base: Side, new: Side) -> Iterator[Finding]:
    """One finding for each reason, with the commands that would settle it."""
    for reason, why in WHY.items():
        members = [change for change in comparison.changes if (change.verdict, change.reason) == ("unclear", reason)]
        if not members:
            continue
        advice = why.advice
        commands = _more_rounds(comparison, members, base, new, why.rounds) if why.rounds else []
        if commands:
            if reason == "noise" and len(commands) > MOST_COMMANDS:
                commands = [f"microbench run … --rounds {MORE_ROUNDS} --into RUN"]
            # Rounds measured with another driver or on another board would not be rounds of the same run.
            moved = any(before.uuid != after.uuid for before, after in comparison.gpus) or any(
                difference.name == "driver" for difference in comparison.differences
            )
            where = " on the driver and board of each run" if moved else ""
            advice = f"Add rounds{where}: `{'`, `'.join(commands)}`"
        yield Finding(
            rule=f"compare.unclear_{reason.replace(' ', '_')}",
            severity="advice" if commands else "note",
            title=f"{figures_in_words(members)} unclear: {why.title}",
            text=why.text,
            advice=advice,
            threshold="neither a change nor its absence is shown",
            rests_on=tuple(row_name(change.new) for change in members),
        )


def _hidden(comparison: Comparison) -> Iterator[Finding]:
    """How large a change could hide among the figures that are the same."""
    same = [change.judged for change in comparison.of("same") if change.judged is not None and change.judged.low > 0]
    if same:
        middle, most = np.quantile([max(interval.high, 1 / interval.low) - 1 for interval in same], [0.5, 0.95])
        yield Finding(
            rule="compare.hidden",
            severity="note",
            title=f"Half of the figures that are the same could hide a change of {percent(float(middle))} or more",
            text=f"One in twenty could hide {percent(float(most))} or more.",
            threshold=f"the far end of each 95 % interval; over {round_percent(STABLE_HALF_WIDTH)} a figure is unclear",
        )


def _more_rounds(comparison: Comparison, changes: Sequence[Change], base: Side, new: Side, rounds: int) -> list[str]:
    """The commands after which both sides of these changes have that many rounds: one for all cases of a session, for
    each side that can be added to."""
    commands: list[str] = []
    for run, side, rows in (
        (comparison.base, base, [change.base for change in changes]),
        (comparison.new, new, [change.new for change in changes]),
    ):
        sessions: dict[int, list[Row]] = {}
        for row in rows:
            if side.grows and len(row.outcomes) < rounds:
                sessions.setdefault(row.session, []).append(row)
        commands += dict.fromkeys(
            _command(run, session, lacking, side.name, rounds) for session, lacking in sessions.items()
        )
    return commands


def _command(run: Run, session: int, rows: Iterable[Row], name: str, rounds: int) -> str:
    settings = run.sessions[session].settings
    benchmarks = list(dict.fromkeys(row.benchmark for row in rows))
    chosen = benchmarks if len(benchmarks) <= MOST_BENCHMARKS_NAMED else list(dict.fromkeys(row.suite for row in rows))
    words = ["microbench", "run", *chosen]
    if settings.preset in ("quick", "full"):
        words.append(f"--{settings.preset}")
    # `run` refuses an axis that none of its benchmarks has, so axes of other benchmarks are omitted.
    known = {axis.name for benchmark in benchmarks if (info := run.benchmark(benchmark)) for axis in info.axes}
    for axis, values in settings.overrides.items():
        if axis in known:
            words += ["--set", f"{axis}={','.join(map(str, values))}"]
    if settings.device is not None:
        words += ["--device", settings.device]
    return shlex.join([*words, "--rounds", str(rounds), "--into", name])
