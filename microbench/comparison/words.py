"""Explains a comparison in findings: what to know first, the one-line result, what moved together, what is unclear."""

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from microbench.analysis.evidence import Finding, Severity, listed, row_name
from microbench.analysis.stats import STABLE_HALF_WIDTH, Row
from microbench.comparison import compare, decision
from microbench.comparison.compare import WORSE, Change, Comparison, Controls, SuiteShift
from microbench.comparison.pairs import MINIMUM_ROUNDS
from microbench.core.model import Run
from microbench.core.units import counted, percent, ratio, round_percent

SUITE = "compare"
MOST_NAMED = 3
MOST_BENCHMARKS_NAMED = 4
MORE_ROUNDS = 2 * MINIMUM_ROUNDS
SMALLEST = percent(math.expm1(decision.SMALLEST_CHANGE))


class Side(NamedTuple):
    """What one run of a comparison is called on the command line; ``grows``: rounds can be added to its file."""

    name: str
    grows: bool = True


class Why(NamedTuple):
    """Why figures are unclear: the words after their number, the text, and the rounds that would settle it (0: none
    would), or ``alternate``: sessions of the two runs in turn would; or other advice."""

    title: str
    text: str
    rounds: int = 0
    alternate: bool = False
    advice: str = ""


WHY: dict[str, Why] = {
    "unconfirmed": Why(
        "moved, but not confirmed by enough others of one metric",
        "A figure can keep one level for a whole session, and one session of each run cannot tell that from a change. "
        f"It counts as changed if {decision.LEAST_CONFIRMING} figures and a third of its metric in its benchmark, or "
        f"its suite, move with it, if it moves by {round_percent(math.expm1(decision.LARGEST_LEVEL))} or more, or if "
        "sessions alternate.",
        alternate=True,
    ),
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
        alternate=True,
    ),
    "gpu": Why(
        "moved no farther than the GPU's figures may differ from run to run",
        "More rounds of one run and then of the other cannot settle this.",
        alternate=True,
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

# Why some figures of a benchmark are unclear although the others changed.
STILL = {"noise": "too scattered to tell", "unconfirmed": "not confirmed", "same": "the same"}


def methods_in_words(comparison: Comparison, benchmark: str) -> str:
    """The methods by which the two runs measured a benchmark: "method 2 in NEW, 1 in BASE"."""
    infos = comparison.base.benchmark(benchmark), comparison.new.benchmark(benchmark)
    before, after = (info.version if info is not None else None for info in infos)
    return f"method {after} in NEW, {before} in BASE" if before != after else "another unit"


def summary(comparison: Comparison) -> Finding:
    """The verdict in one line: "SLOWER: launch +10.0 % (9.4 to 10.6 %), controls unchanged within 1 %. 75 figures …".

    Its text is the line after the word. It names the suites and benchmarks that changed.
    """
    counts = {verdict: len(comparison.of(verdict)) for verdict in compare.VERDICTS}
    words = [f"{count} {verdict}" for verdict, count in counts.items() if count or verdict in ("slower", "same")]
    words[0] = f"{counted(counts['slower'], 'figure')} slower"
    if unconfirmed := len(comparison.unconfirmed):
        words[words.index(f"{counts['unclear']} unclear")] += f" ({unconfirmed} moved, not confirmed)"
    slower, faster = comparison.has_changed(*WORSE), comparison.has_changed(*compare.BETTER)
    suites = [_shift_in_words(suite, comparison.controls) for suite in comparison.suites if suite.changed]
    suites += _benchmarks(comparison)
    severity: Severity = "note"
    if not comparison.changes:
        title = "NOTHING TO COMPARE"
        text = "The two runs have no figure in common: measure the same benchmarks in both."
    else:
        title = "SLOWER AND FASTER" if slower and faster else "SLOWER" if slower else "FASTER" if faster else ""
        if host_moved := not slower and not faster and _host_moved(comparison):
            suites = [f"The host itself was {host_moved}, so its times show no verdict"]
        for host in (True, False) if not slower and not faster else ():
            shifted = [suite for suite in comparison.suites if suite.host == host and not suite.changed]
            if shifted and not (host and host_moved):
                moved = ", ".join(_shift_in_words(suite, None) for suite in shifted)
                suites.append(f"{moved}, {_no_verdict(comparison, host=host)}")
        others = {
            "INCOMPARABLE": comparison.nothing_comparable,
            "COUNTS CHANGED": any(counts[verdict] for verdict in compare.COUNTED),
            "HOST MOVED": bool(host_moved),
            "TO CONFIRM": unconfirmed > 0,
            "NO CHANGE SHOWN": counts["same"] + counts["within 10 %"] > counts["unclear"],
        }
        title = title or next((word for word, applies in others.items() if applies), "UNCLEAR")
        good = faster or (title == "NO CHANGE SHOWN" and not suites)
        severity = "problem" if slower else "good" if good else "note"
        text = " ".join([*(f"{suite}." for suite in suites), f"{', '.join(words)}."])
    threshold = (
        f"the whole 95 % interval of the ratio beyond {SMALLEST}; false discoveries limited to "
        f"{percent(decision.FALSE_DISCOVERIES)} over all suites (Benjamini-Hochberg in each)"
    )
    return Finding("compare.changes", severity, title, text, threshold)


def _benchmarks(comparison: Comparison) -> list[str]:
    """The benchmarks that moved together in suites that did not: "memory_stream 42 of 42, 0.769× in rate"."""
    changed = {suite.suite for suite in comparison.suites if suite.changed}
    groups = [group for group in comparison.benchmarks if group.moved[0].new.suite not in changed]
    left = len(groups) - MOST_NAMED
    words = "; ".join(
        f"{group.benchmark} {len(group.moved)} of {group.total}, {ratio(group.ratio.median)} in {group.kind}"
        + (" as a share of the ceiling" if group.moved[0].shares else "")
        for group in groups[:MOST_NAMED]
    )
    more = f"; and {counted(left, 'more benchmark')}" if left > 0 else ""
    return [words + more] if words else []


def _host_moved(comparison: Comparison) -> str:
    """How the host itself moved, if that leaves suites without a verdict: "slower (controls +8.5 to +11.5 %)"."""
    controls = comparison.controls
    undecided = any(suite.host and not suite.changed for suite in comparison.suites)
    if controls is None or not undecided or controls.unchanged or not controls.moved:
        return ""
    return f"{'slower' if controls.ratio.median > 1 else 'faster'} (controls {_ends(controls)})"


def _no_verdict(comparison: Comparison, *, host: bool) -> str:
    """Why suites that moved together on one clock have no verdict."""
    controls = comparison.controls
    if not host:
        return "no more than runs of one GPU may differ"
    if controls is None:
        return "and no controls say why"
    return (
        "too little for a verdict"
        if controls.unchanged
        else f"and the controls cannot tell whether the host moved ({_ends(controls)})"
    )


def _ends(controls: Controls) -> str:
    low, high = (f"{100 * (end - 1):+.1f}" for end in (controls.ratio.low, controls.ratio.high))
    return f"{low} to {high} %".replace("-", "−")


def _shift_in_words(suite: SuiteShift, controls: Controls | None) -> str:
    """The shift of a suite: "launch +10.0 % (9.4 to 10.6 %), controls unchanged within 0.6 %"."""
    change, low, high = (100 * (end - 1) for end in (suite.ratio.median, suite.ratio.low, suite.ratio.high))
    ends = f"{low:.1f} to {high:.1f} %" if low > 0 else f"{low:+.1f} to {high:+.1f} %"
    words = f"{suite.suite} {change:+.1f} % ({ends})".replace("-", "−")
    if suite.host and controls is not None and controls.unchanged:
        words += f", controls unchanged within {percent(controls.most)}"
    return words if suite.host else f"{words} in GPU time"


def notices(comparison: Comparison) -> Iterator[Finding]:
    """One run twice, simulated against real, another model, method, driver or board, and lost cases: in this order."""
    base, new = comparison.base, comparison.new
    if base.run_id == new.run_id:
        text = "BASE and NEW are copies of one run: rounds that both contain are compared with themselves."
        yield _notice("same_run", "ONE RUN TWICE", text, "the runs' ids are the same")
    if simulated := _incomparable(comparison, "simulated"):
        names = ("BASE", "NEW") if base.simulated else ("NEW", "BASE")
        text = (
            f"{names[0]} is simulated and {names[1]} is real: {counted(len(simulated), 'figure')} cannot be compared."
        )
        yield _notice("simulated", "SIMULATED AGAINST REAL", text, "one of the sessions ran on the simulated GPU")
    # A simulated GPU differs from a real one in model, driver and board anyway.
    one_simulated = base.simulated != new.simulated
    if comparison.other_models and not one_simulated:
        models = listed([f"{after.name} against {before.name}" for before, after in comparison.other_models])
        shares = counted(sum(change.shares for change in comparison.changes), "figure")
        text = f"{models}: {shares} are compared as a share of each GPU's own ceiling"
        without = _incomparable(comparison, "model")
        text += f"; {counted(len(without), 'figure')} without a ceiling cannot be compared." if without else "."
        yield _notice("model", "ANOTHER GPU MODEL", text, "the name or the number of SMs differs")
    if methods := _incomparable(comparison, "method"):
        benchmarks = listed(list(dict.fromkeys(change.new.benchmark for change in methods)))
        text = f"{benchmarks}: {counted(len(methods), 'figure')} cannot be compared, because the method changed."
        yield _notice("method", "ANOTHER METHOD", text, "the benchmark's version, or a metric's unit, differs")
    for difference in comparison.differences:
        if difference.name == "driver" and not one_simulated:
            text = f"{difference.new.value} in NEW, {difference.base.value} in BASE. It may have caused any change."
            yield _notice("driver", "ANOTHER DRIVER", text, "the driver's version differs", "note")
    boards = [
        after.name
        for before, after in comparison.gpus
        if before.uuid != after.uuid and (before, after) not in comparison.other_models
    ]
    if boards and not one_simulated:
        text = (
            f"Both are {listed(list(dict.fromkeys(boards)))}, but not the same board: a change may come from the board "
            "or its host."
        )
        yield _notice("board", "ANOTHER BOARD", text, "the GPU's UUID differs", "note")
    if lost := comparison.lost:
        named = listed([*lost[:MOST_NAMED], *([f"{len(lost) - MOST_NAMED} more"] if len(lost) > MOST_NAMED else [])])
        text = f"{counted(len(lost), 'case')} that BASE measured: {named}."
        yield _notice("lost", "FAILED IN NEW", text, f"the case is {' or '.join(compare.LOST)} in NEW")


def _notice(rule: str, title: str, text: str, threshold: str, severity: Severity = "warning") -> Finding:
    return Finding(f"compare.{rule}", severity, title, text, threshold)


def _incomparable(comparison: Comparison, reason: str) -> list[Change]:
    return [change for change in comparison.of("incomparable") if change.reason == reason]


def findings(comparison: Comparison, base: Side, new: Side) -> list[Finding]:
    """What the verdicts add up to: suites that changed as a whole, benchmarks that moved together, what host, GPU and
    clock did, what is unclear and which commands settle it, and how large a change could hide. ``base`` and ``new``
    name the runs."""
    suites = list(_suites(comparison, base, new))
    return [
        *(finding for finding in suites if finding.rule == "compare.suite"),
        *_together(comparison),
        *(finding for finding in suites if finding.rule != "compare.suite"),
        *_clock(comparison),
        *_unclear(comparison, base, new),
        *_hidden(comparison),
    ]


def _suites(comparison: Comparison, base: Side, new: Side) -> Iterator[Finding]:
    """One finding for each suite that changed as a whole; one for all others that moved together on one clock."""
    controls = comparison.controls
    for suite in comparison.suites:
        if suite.changed:
            way = "slower" if suite.slower else "faster"
            clock = "host" if suite.host else "GPU"
            text = f"{suite.went} of {suite.rows} figures that the {clock} times moved together. "
            if suite.host and controls is not None and controls.unchanged:
                text += (
                    f"The {controls.rows} controls, figures of the host that no driver takes part in, did not: the "
                    "host was as fast as before, and what the suite calls (driver, library, settings) changed."
                )
            elif suite.host and controls is not None:
                text += "The controls moved too, but far less."
            elif suite.host:
                text += f"No host was seen to drift that far ({round_percent(math.expm1(decision.HOST_DRIFT))})."
            else:
                text += "GPUs of one model differ less from run to run."
            title = f"{way.capitalize()}: {_shift_in_words(suite, controls)}"
            threshold = f"the interval of the common shift beyond {SMALLEST}, after what the controls and GPUs allow"
            yield Finding("compare.suite", "problem" if suite.slower else "good", title, text, threshold)
    for host in (True, False):
        members = [suite for suite in comparison.suites if suite.host == host and not suite.changed]
        if members:
            yield _drift(comparison, members, base, new)


def _drift(comparison: Comparison, members: Sequence[SuiteShift], base: Side, new: Side) -> Finding:
    """Suites that moved together, but no farther than a host or a GPU may from run to run."""
    host, controls = members[0].host, comparison.controls
    clock = "Host" if host else "GPU"
    moved = ", ".join(_shift_in_words(suite, None) for suite in members)
    taken_off = "The shift is taken off each figure, and --fail-on ignores it."
    no_verdict = _no_verdict(comparison, host=host)
    title = f"{clock} times moved together, {no_verdict}: {moved}"
    if not host:
        text = taken_off
    elif controls is None:
        both = shlex.join(["microbench", "run", "host", *(suite.suite for suite in members), "--to-compare"])
        text = f"A host may drift as far. {taken_off} With the host suite in both runs, `{both}`, controls would tell."
    elif controls.unchanged:
        text = f"The controls are unchanged within {percent(controls.most)}. {taken_off}"
    else:
        if host_moved := _host_moved(comparison):
            title = f"The host itself was {host_moved}, so there is no verdict on {moved}"
        text = f"Controls are the {controls.rows} figures of the host that no driver takes part in. {taken_off}"
    threshold = (
        f"the median cost moved by {SMALLEST} or more; controls are unchanged if their interval stays within "
        f"{round_percent(math.expm1(decision.CONTROLS_WITHIN))}"
    )
    advice = _alternate(comparison, base, new, [suite.suite for suite in members])
    return Finding(f"compare.{clock.lower()}", "advice", title, text, threshold, advice=advice)


def _alternate(comparison: Comparison, base: Side, new: Side, what: Sequence[str]) -> str:
    """The advice to alternate sessions of the two runs, with the commands for these benchmarks or suites."""
    chosen = list(dict.fromkeys(what))
    commands: list[str] = []
    fresh: list[str] = []
    for run, side, spare in ((comparison.base, base, "my-base.json"), (comparison.new, new, "my-new.json")):
        settings = run.sessions[-1].settings
        words = ["microbench", "run", *chosen, *([f"--{settings.preset}"] if settings.preset != "default" else [])]
        name = side.name if side.grows else spare
        fresh += [f"`--out {spare}`"] if not side.grows else []
        commands.append(shlex.join([*words, "--rounds", "1", "--into", name]))
    first = f" (the first time with {listed(fresh)} instead of `--into`)" if fresh else ""
    return f"Alternate, {MINIMUM_ROUNDS} times each{_where(comparison)}: `{commands[0]}`, `{commands[1]}`{first}"


def _together(comparison: Comparison) -> Iterator[Finding]:
    """Benchmarks of which many figures changed the same way. Only the first finding explains why that may be."""
    for place, group in enumerate(comparison.benchmarks):
        number = f"{len(group.moved)} of {group.total} {group.kind}s of {group.benchmark} are {group.verdict}"
        others = Counter(STILL.get(change.reason or change.verdict, change.verdict) for change in group.others)
        rest = listed([f"{count} {'is' if count == 1 else 'are'} {words}" for words, count in others.items()])
        text = [] if place else ["Figures of one benchmark that move together usually have one cause."]
        text += [f"Of the others, {rest}."] if rest else []
        severity: Severity = "problem" if group.verdict in WORSE else "good"
        title = f"{number}: {ratio(group.ratio.median)} in the median"
        threshold = f"{compare.LEAST_TOGETHER} or more figures of a benchmark with one verdict"
        rests_on = tuple(row_name(change.new) for change in group.moved)
        yield Finding("compare.together", severity, title, " ".join(text), threshold, rests_on)


def _clock(comparison: Comparison) -> Iterator[Finding]:
    """Figures that moved as the SM clock did, and no farther."""
    beyond = math.exp(decision.SMALLEST_CHANGE)
    moved = [
        (change, abs(math.log(change.ratio.median)))
        for change in comparison.of("same")
        if change.by == "clock"
        and change.ratio is not None
        and (change.ratio.low > beyond or change.ratio.high < 1 / beyond)
    ]
    if moved:
        size = percent(math.expm1(float(np.median([log for _, log in moved]))))
        title = f"{counted(len(moved), 'figure')} moved only because the SM clock did, by {size}"
        text = "At one SM clock they are the same: the card was warmer or cooler, or used its power elsewhere."
        threshold = f"beyond {SMALLEST} as measured, the same at one SM clock"
        rests_on = tuple(row_name(change.new) for change, _ in moved)
        yield Finding("compare.clock", "note", title, text, threshold, rests_on)


def _unclear(comparison: Comparison, base: Side, new: Side) -> Iterator[Finding]:
    """One finding for each reason, with the commands that would settle it, unless a finding above has them."""
    alternating = {suite.suite for suite in comparison.suites if not suite.changed}
    for reason, why in WHY.items():
        members = [change for change in comparison.changes if (change.verdict, change.reason) == ("unclear", reason)]
        if not members:
            continue
        advice = why.advice
        commands = _more_rounds(comparison, members, base, new, why.rounds) if why.rounds else []
        if why.alternate:
            names = list(dict.fromkeys(change.new.benchmark for change in members))
            suites = list(dict.fromkeys(change.new.suite for change in members))
            if alternating.issuperset(suites):
                advice = f"The alternating sessions of {listed(suites)} above settle this too."
            else:
                advice = _alternate(comparison, base, new, names if len(names) <= MOST_BENCHMARKS_NAMED else suites)
        if commands:
            if reason == "noise" and len(commands) > 2:
                into = [side.name for side in (base, new) if side.grows]
                commands = [f"microbench run … --rounds {MORE_ROUNDS} --into {shlex.quote(name)}" for name in into]
            advice = f"Add rounds{_where(comparison)}: `{'`, `'.join(commands)}`"
        rule, threshold = f"compare.unclear_{reason.replace(' ', '_')}", "neither a change nor its absence is shown"
        severity: Severity = "advice" if commands or why.alternate else "note"
        title = f"{counted(len(members), 'figure')} unclear: {why.title}"
        rests_on = tuple(row_name(change.new) for change in members)
        yield Finding(rule, severity, title, why.text, threshold, rests_on, advice=advice)


def _where(comparison: Comparison) -> str:
    """Where rounds are to be added: measured with another driver or on another board, they would not be rounds of the
    same run."""
    moved = any(before.uuid != after.uuid for before, after in comparison.gpus) or any(
        difference.name == "driver" for difference in comparison.differences
    )
    return " on the driver and board of each run" if moved else ""


def _hidden(comparison: Comparison) -> Iterator[Finding]:
    """How large a change of a suite would have been found, what the verdict "same" means, and what it could hide."""
    parts = []
    if comparison.smallest:
        suites = [
            f"{suite} {percent(least)}{'' if host else ' in GPU time'}"
            for (suite, host), least in comparison.smallest.items()
        ]
        parts.append(f"{', '.join(suites)} as a whole")
    same = [change.judged for change in comparison.of("same") if change.judged is not None and change.judged.low > 0]
    if same:
        middle = float(np.median([max(interval.high, 1 / interval.low) - 1 for interval in same]))
        parts.append(f"{percent(middle)} in half of the figures that are the same")
    if parts:
        title = f"Smallest detectable change: {'; '.join(parts)}"
        text = (
            f"Same: the 95 % interval of the ratio stays within ±{percent(comparison.same_within)} (--same-within) "
            f"and includes 1. Within {round_percent(STABLE_HALF_WIDTH)}: it stays within that, but is wider than "
            "the same or excludes 1."
        )
        threshold = (
            "a suite: found in 95 of 100 such pairs of runs; a figure: the far end of its 95 % interval; over "
            f"{round_percent(STABLE_HALF_WIDTH)} it is unclear"
        )
        yield Finding("compare.hidden", "note", title, text, threshold)


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
