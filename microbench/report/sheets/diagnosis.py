"""Lays out a diagnosis: one screen, tables on request, and JSON."""

import itertools

import msgspec

from microbench.analysis.evidence import Finding, Severity
from microbench.core.units import MISSING, as_time, counted, percent, plain, quantity, times, two_times
from microbench.diagnosis import ranks, stacks, words
from microbench.diagnosis.diagnosis import Diagnosis, each
from microbench.diagnosis.gpu_use import largest
from microbench.diagnosis.idle import CAUSES, busiest, owners, said
from microbench.diagnosis.owners import OPERATOR, OPERATORS
from microbench.diagnosis.steps import REPEATED
from microbench.diagnosis.window import OTHERS
from microbench.report.document import AnswerLine, Block, Cell, Column, Screen, Table, Tone, answer_line, columns
from microbench.report.sheets.recorded_step import TONES
from microbench.report.tables import table_of

# The named parts of idle time that the screen shows, and those of the table.
SHOWN, LISTED, SHOWN_LOOPS = 4, 30, 2
LEAST_SHOWN = 0.01
LEAST_OWNED = 0.01, 0.05, 0.05  # of the owners that are shown, the first to the last
ORDER: tuple[Severity, ...] = ("problem", "advice", "warning", "good", "note")
MOST_TRACES = 64  # shown of several
UNEQUAL, FEW_STEPS = 2, 10  # of so few steps both ends are said, if the longest is so many times the shortest
# The share of calls that must repeat from step to step before steps are called alike.
ALIKE = 0.5
IDENTICAL = 0.9995
LONGEST_NAME, TREE_WIDTH = 48, 50


def screen(diagnosis: Diagnosis, costs: str, command: str, *, everything: bool = False) -> Screen:
    """One screen: the verdict, where the time is, and what to change. ``costs`` says whose constants the predictions
    use, ``command`` what was typed."""
    found = words.findings(diagnosis)
    lines = [*_idle_lines(diagnosis, found), *_step_lines(diagnosis)]
    if found and found[0].rule == "diagnose.bound":
        verdict, *found = found
        lines.insert(0, answer_line("verdict", verdict.title, verdict=verdict.severity))
    if (best := next((one for one in found if one.severity == "advice" and one.advice), None)) is not None:
        found.remove(best)
        behind = next((at for at, line in enumerate(lines) if line.name not in ("verdict", "whose", "")), len(lines))
        lines.insert(behind, answer_line("next", f"{best.title}. {best.advice}", verdict="advice"))
    trace = diagnosis.trace
    gpu = trace.gpus.get(busiest(trace))
    about = [trace.format, *([gpu] if gpu else [])]
    gpus = len(set(trace.work["device"].tolist()))
    if (OTHERS in trace.unread or gpus > 1) and diagnosis.idle is not None:
        about.append(f"GPU {diagnosis.idle.device}, {f'one of {gpus}' if gpus > 1 else 'of several'}")
    return Screen(
        run=costs,
        blocks=(Block(plain(trace.source), tuple(about), tuple(lines)),),
        tables=tuple(tables(diagnosis)) if everything else (),
        findings=tuple(sorted(found, key=lambda one: ORDER.index(one.severity))),
        footer="" if everything else f"more: {command} --all, or --timeline, --json, -o page.html",
    )


def _step_lines(diagnosis: Diagnosis) -> list[AnswerLine]:
    step, trace = diagnosis.step, diagnosis.trace
    if step is None:
        replays = sum("GraphLaunch" in trace.names[name] for name in trace.calls["name"].tolist())
        pieces = counted(len(trace.work), "kernel or copy", "kernels and copies")
        counts = f"{pieces}, {counted(len(trace.calls), 'call')}"
        counts += f", of which {counted(replays, 'replays a graph', 'replay graphs')}" if replays else ""
        most = [words.most_often(trace)] * (diagnosis.idle is not None)  # else a line of its own says it
        return [answer_line("trace", counts, "; ".join(["no step repeats", *most]))]
    alike = f"steps differ: {percent(step.likeness)} of a step recurs"
    if step.likeness >= ALIKE:
        alike = f"{percent(step.likeness)} of a step recurs" if step.likeness < IDENTICAL else "all steps are identical"
        if step.every > 1:
            alike = f"{alike.replace('all steps are identical', 'the same')} every {step.every} steps"
    other = round(step.work - step.kernels)
    pieces = counted(round(step.kernels), "kernel")
    pieces += f" and {other} {words.other_work(trace, other)}" if other else ""
    calls_of = plain(diagnosis.steps.calls_of) if diagnosis.steps is not None else ""
    what = f"{step.count} calls of {calls_of}" if calls_of else f"{step.count} steps"
    if step.found == "loop" and step.count != 1:
        asked = f", asked for as {calls_of}" if calls_of and f"{calls_of} " not in step.name else ""
        library = any(loop.place == step.name and not loop.own for loop in trace.loops)
        whose = (
            f"{step.count} steps, each a turn of a library's loop," if library else f"{step.count} turns of the loop"
        )
        what = f"{whose} at {plain(step.name)}{asked}"
    parts = [f"{what}, each of {pieces}, {alike}" if step.count != 1 else f"the only {plain(step.name)}, of {pieces}"]
    begins_ns = diagnosis.steps.begins_ns.tolist() if diagnosis.steps is not None else list[int]()
    lasts_s = sorted((two - one) * 1e-9 for one, two in itertools.pairwise(begins_ns))
    unequal = 1 < len(lasts_s) <= FEW_STEPS and lasts_s[-1] > UNEQUAL * lasts_s[0]
    spread = f" in the mean, {as_time(lasts_s[0])} to {as_time(lasts_s[-1])}" if unequal else ""
    parts.append(f"{as_time(step.watched_s)} as recorded{spread}")
    if step.found == "repetition" and (share := _share_of_work(diagnosis)) < REPEATED:
        parts.append(f"{percent(share)} of the GPU's work in the trace")
    unprofiled, range_ = f"unprofiled step time {as_time(step.unwatched_s)}", two_times(step.low_s, step.high_s)
    if step.given:
        given = as_time(step.unwatched_s * step.mean * step.parts / step.holds)
        how = "as given" if step.holds == step.parts == step.mean == 1 else f"from the {given} that were given"
        parts.append(f"{unprofiled}, {how}")
    elif step.measured:
        parts.insert(0, f"{unprofiled}, from pauses of the recording ({range_})")
    elif step.unwatched_s < step.watched_s and words.assumes(step):
        differ = ", and processes differ" if step.high_s > step.watched_s else ""
        parts.append(f"unprofiled step time {range_}, because the recorder's costs are assumed{differ}")
    elif step.unwatched_s < step.watched_s:
        parts.append(f"unprofiled step time about {as_time(step.unwatched_s)} ({range_})")
    if diagnosis.steps is not None and (others := diagnosis.steps.loops[:SHOWN_LOOPS]):
        also = ", ".join(f"{plain(name)} {as_time(turn_s)}" for name, turn_s in others)
        parts.append(f"also here{', by --step FILE:LINE' * (step.found == 'loop')}: {also}")
    return [answer_line("repeats" if step.found == "repetition" else "steps", *parts)]


def _share_of_work(diagnosis: Diagnosis) -> float:
    """The share of the GPU's work in the trace that begins in the steps."""
    steps, idle, work = diagnosis.steps, diagnosis.idle, diagnosis.trace.work
    if steps is None or idle is None:
        return 1.0
    work = work[work["device"] == idle.device]
    inside = (work["begin_ns"] >= steps.begins_ns[0]) & (work["begin_ns"] < steps.begins_ns[-1])
    lasts = work["end_ns"] - work["begin_ns"]
    return float(lasts[inside].sum() / max(lasts.sum(), 1))


def _idle_lines(diagnosis: Diagnosis, found: list[Finding]) -> list[AnswerLine]:
    idle = diagnosis.idle
    if idle is None:
        known = [answer_line(name, *parts) for name, parts in words.each_longest(diagnosis.trace) if parts]
        return [answer_line("idle", f"not given: {diagnosis.why_no_idle}", verdict="warning"), *known]
    least_s = LEAST_SHOWN * idle.span_s

    def share(seconds: float) -> str:
        return percent(seconds / idle.span_s)

    shown = sorted((cause for cause in CAUSES if idle.causes[cause] > least_s), key=lambda cause: -idle.causes[cause])
    in_all = f"{as_time(each(diagnosis, idle.idle_s))} of {as_time(each(diagnosis, idle.span_s))}"
    causes = [f"{words.cause_words(diagnosis, cause)} ({share(idle.causes[cause])})" for cause in shown]
    of_span = zip(owners(idle), LEAST_OWNED, strict=False)
    whose = [one for one, share_of_it in of_span if one.seconds > share_of_it * idle.span_s]
    said = {one.most for one in whose}
    if any(one.name == OPERATORS for one in whose):  # which has the time of each of them
        said |= {one.name for one in idle.places if OPERATOR.match(one.name)}
    places = [
        f"{plain(place.name, words.LONGEST_NAME)} {as_time(each(diagnosis, place.seconds))}"
        for place in [one for one in idle.places if one.name not in said][:SHOWN]
        if place.seconds > least_s
    ]
    lines = {
        "idle": [f"{in_all} ({share(idle.idle_s)})", *causes],
        "also in": places,
    }
    if idle.communication_s > least_s:
        alone = f"{as_time(each(diagnosis, idle.exposed_s))} of it alone ({share(idle.exposed_s)})"
        lines["exchange"] = [as_time(each(diagnosis, idle.communication_s)), alone]
    each_of = enumerate(words.owner_lines(diagnosis, whose, found))
    return [
        *(answer_line("" if place else "whose", line) for place, line in each_of),
        *(answer_line(name, *parts) for name, parts in lines.items() if parts),
    ]


def ranks_screen(several: list[Diagnosis], costs: str, *, everything: bool = False) -> Screen:
    """Several traces beside each other, and the odd one named if they are of one program. Without ``everything`` many
    traces are told by those with the most work."""
    most_first = sorted(range(len(several)), key=lambda place: -len(several[place].trace.work))
    shown = set(most_first[: None if everything else MOST_TRACES])
    exchange = any(one.idle is not None and one.idle.collectives for one in several)
    figures = [figure for _, figure in ranks.FIGURES]
    figures += [ranks.communication_s, ranks.exposed_s] if exchange else []
    rows = tuple(
        (
            Cell(plain(name, LONGEST_NAME)),
            *(Cell(quantity(figure(one), "s")) for figure in figures),
            Cell(percent(one.idle.idle_s / one.idle.span_s) if one.idle is not None and one.idle.span_s else MISSING),
            Cell(one.bound or MISSING),
            Cell(words.speedup(one).removeprefix("about ") or MISSING),
        )
        for place, (name, one) in enumerate(zip(ranks.names(several), several, strict=True))
        if place in shown
    )
    # Enough of them can be dropped that names and verdicts need no second line.
    works = "computes" if exchange else "GPU works"
    drop = {"a step": 1, "as a graph": 2, "GPU idle": 3, works: 4, "a launch": 5, "alone": 6, "collectives": 7}
    own = ("a step", works, "a launch", *(["collectives", "alone"] if exchange else []), "GPU idle")
    titles = columns("", *own, "bound", "as a graph", drop=drop)
    about = "each step as it was recorded; a launch: the host's time for one"
    about += "; computes: the GPU works, and not only on communication; alone: only on that" if exchange else ""
    more = len(several) - len(shown)
    notes = (f"{counted(more, 'trace')} more, with no more work than these: microbench diagnose FOLDER --all",)
    table = Table("The traces beside each other", about, titles, rows, notes if more else ())
    return Screen(
        run=costs,
        blocks=(Block(f"{len(several)} traces", (several[0].trace.format,), ()),),
        tables=(table,),
        findings=(ranks.finding(several), *ranks.to_do(several)),
        footer="more: microbench diagnose with one of the files",
    )


def tables(diagnosis: Diagnosis) -> list[Table]:
    """Idle time by cause and by place, remedies, blockers and health."""
    idle, step, recorded = diagnosis.idle, diagnosis.step, diagnosis.recorded
    result: list[Table | None] = []
    if idle is not None:
        each = "of a step" if diagnosis.steps is not None else "of the trace"
        parts: list[tuple[str, float, Tone]] = [
            ("work", idle.busy_s - idle.exposed_s, TONES["work"]),
            ("communication alone", idle.exposed_s, "on_second"),
            *((said(diagnosis.trace, cause), idle.causes[cause], TONES[cause]) for cause in CAUSES),
        ]
        rows = [_row(diagnosis, name, seconds, tone) for name, seconds, tone in parts if seconds > 0]
        about, notes = f"the GPU with most work, {each}", ("The parts add up to the recorded time.",)
        result.append(Table("Where the time goes", about, columns("", "time", "share"), tuple(rows), notes))
        tree = stacks.rows(stacks.tree(diagnosis), LEAST_SHOWN * idle.span_s * 1e9)
        rows = [_tree_row(diagnosis, one) for one in tree]
        notes = ("A row is the sum of the rows one deeper below it, and of itself.",)
        titles = columns("", "time", "share", "itself")
        result.append(Table("What the host did while the GPU was idle", each, titles, tuple(rows), notes))
    if step is not None:
        changes = [(one.what, one.step_s, one.speedup) for one in diagnosis.remedies]
        changes += [(f"without {plain(name)}", one.step_s, one.speedup) for name, one in diagnosis.without.items()]
        about = f"each by itself, against {as_time(step.unwatched_s)}"
        result.append(
            table_of(
                "What to change", about, changes, ("", lambda one: Cell(one[0])),
                ("a step then takes", lambda one: Cell(as_time(one[1]))),
                ("speed-up", lambda one: Cell(times(one[2]))),
            )
        )  # fmt: skip
    result.append(
        table_of(
            "What a graph cannot hold", "", recorded.blockers if recorded is not None else (),
            ("call", lambda one: Cell(one.call)), (Column("why", "left"), lambda one: Cell(one.why)),
            (Column("in", "left"), lambda one: Cell(plain(one.place, LONGEST_NAME))),
            ("a step", lambda one: Cell(f"{one.count:.2f}")),
        )
    )  # fmt: skip
    result.append(
        table_of(
            "What is odd in this trace", "", diagnosis.health, ("", lambda one: Cell(one.name)),
            (Column("count", "left"), lambda one: Cell(str(one.count))),
            (Column("meaning", "left"), lambda one: Cell(one.meaning)),
            (Column("forbids", "left"), lambda one: Cell(", ".join(one.forbids))),
        )
    )  # fmt: skip
    return [table for table in result if table is not None]


def _tree_row(diagnosis: Diagnosis, row: stacks.Row) -> tuple[Cell, ...]:
    """A row of the tree in a column of a constant width; of a chain of calls the last one."""
    depth = min(row.depth, TREE_WIDTH // 2)
    name = said(diagnosis.trace, row.names[-1] if row.names else "others")
    name = plain(f"{'… ' if len(row.names) > 1 else ''}{name}", 4 * TREE_WIDTH)
    room = TREE_WIDTH - depth
    name = name if len(name) <= room else f"…{name[1 - room :]}"
    own = as_time(each(diagnosis, row.itself_ns * 1e-9)) if row.itself_ns else ""
    return (*_row(diagnosis, " " * depth + name, row.ns * 1e-9), Cell(own))


def _row(diagnosis: Diagnosis, name: str, seconds: float, tone: Tone = "plain") -> tuple[Cell, ...]:
    span_s = diagnosis.idle.span_s if diagnosis.idle is not None else 0.0
    share = percent(seconds / span_s if span_s else 0.0)
    return Cell(name, tone=tone), Cell(as_time(each(diagnosis, seconds))), Cell(share)


def answer(diagnosis: Diagnosis) -> dict[str, object]:
    """The diagnosis of a trace as one object for JSON, in SI base units."""
    trace, idle, step, graph = diagnosis.trace, diagnosis.idle, diagnosis.step, diagnosis.graph
    whole: dict[str, object] = {
        "trace": {
            "source": plain(trace.source), "format": trace.format, "gpus": dict(trace.gpus), "rank": trace.rank,
            "versions": dict(trace.versions), "work": len(trace.work), "calls": len(trace.calls),
        },
        "run": diagnosis.run_id,
        "health": msgspec.to_builtins(diagnosis.health),
        "step": None if step is None else msgspec.to_builtins(step),
        "bound": diagnosis.bound,
        "idle": None,
        "why_no_idle": diagnosis.why_no_idle,
        "graph": None if graph is None else msgspec.to_builtins(graph),
        "blockers": msgspec.to_builtins(diagnosis.recorded.blockers) if diagnosis.recorded is not None else [],
        "why_no_graph": diagnosis.why_no_graph,
        "kernels": [
            {"name": plain(one.name), "count": one.number, "seconds": one.seconds, "most": plain(one.most)}
            for one in largest(diagnosis)[:LISTED]
        ],
        "advice": msgspec.to_builtins(diagnosis.remedies),
        "findings": [one.words for one in words.findings(diagnosis)],
    }  # fmt: skip
    if idle is not None:
        whole["idle"] = {cause: each(diagnosis, seconds) for cause, seconds in idle.causes.items()}
        whole["busy_s"], whole["span_s"] = (each(diagnosis, one) for one in (idle.busy_s, idle.span_s))
        whole["communication_s"] = each(diagnosis, idle.communication_s)
        whole["exposed_communication_s"] = each(diagnosis, idle.exposed_s)
        whole["collectives"] = [
            {
                "name": one.name, "count": each(diagnosis, one.pieces),
                "seconds": each(diagnosis, one.seconds), "exposed_s": each(diagnosis, one.exposed_s),
            }
            for one in idle.collectives
        ]  # fmt: skip
        whole["owners"] = [
            {
                "name": plain(one.name), "seconds": each(diagnosis, one.seconds), "most": plain(one.most),
                "most_s": each(diagnosis, one.most_s), "helps": one.helps,
                "without": msgspec.to_builtins(diagnosis.without.get(one.name)),
            }
            for one in owners(idle)
        ]  # fmt: skip
        whole["places"] = [
            {"cause": one.cause, "name": plain(one.name), "seconds": each(diagnosis, one.seconds)}
            for one in idle.places[:LISTED]
        ]
    return whole
