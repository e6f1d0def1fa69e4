"""Lays out the counts of a step, and what changed between two recordings: screens, Markdown and JSON."""

from collections.abc import Iterator, Mapping

import msgspec

from microbench.analysis.evidence import Finding, Severity
from microbench.archive.openmetrics import END, Family, lines_of
from microbench.core.units import as_time, counted, percent, plain, two_times
from microbench.diagnosis.changed import Changed, Difference, Side, change_words, figure_words, verdict
from microbench.diagnosis.counts import FIGURES, Counts, Number
from microbench.diagnosis.kernel_names import family
from microbench.report.document import SEVERITY_MARKS, Block, Cell, Column, Screen, Table, answer_line, columns
from microbench.report.markdown import line_of, safe
from microbench.report.tables import table_of

LONGEST, LISTED, SHOWN_PLACES, SHOWN_SOME = 70, 40, 3, 4
MOST_LINES = 40  # of Markdown for a pull request


def counts_screen(one: Side) -> Screen:
    """The counts of a step: figures with their places, kernels by library and family, copies by kind."""
    counts = one.counts
    tables = _tables(counts)
    steps = counted(counts.steps, "step") if counts.steps else "no steps"
    lines = [answer_line("counts", figure_words(counts))]
    if share := counts.in_graphs:
        lines.append(answer_line("graphs", f"hold {percent(share)} of the kernels"))
    for gpu, seen in counts.seen.items():
        short = f"{counted(round(seen.shorter_than_a_launch), 'kernel')} shorter than a launch"
        extra = [f"{count:,} {plain(name)}" for name, count in seen.extra.items()]
        added = [f"added by libraries on this GPU, and not counted: {', '.join(extra)}"] if extra else []
        parts = [*([short] if seen.shorter_than_a_launch else []), *added]
        if parts:
            lines.append(answer_line("on", plain(gpu) or "this GPU", *parts))
    if counts.some:
        listed = [f"{_short(name)} {count:g}" for name, count in list(counts.some.items())[:SHOWN_SOME]]
        listed += [f"{len(counts.some) - SHOWN_SOME} more"] if len(counts.some) > SHOWN_SOME else []
        lines.append(answer_line("some", "of the steps do more than the usual one, in the mean", *listed))
    return Screen(blocks=(Block(plain(one.name), (steps, counts.of), tuple(lines)),), tables=tuple(tables))


def _short(name: str) -> str:
    whole = plain(name).removeprefix("at::native::")
    return whole if len(whole) <= LONGEST else f"{whole[: LONGEST - 1]}…"


def _places(places: Mapping[str, Number]) -> str:
    most = sorted(places.items(), key=lambda one: -one[1])[:SHOWN_PLACES]
    shown = [f"{count:g} {_short(place)}" for place, count in most]
    return ", ".join(shown) + (f" and {len(places) - SHOWN_PLACES} more places" if len(places) > SHOWN_PLACES else "")


def _tables(counts: Counts) -> list[Table]:
    """Figures with their places, kernels by library and family, copies by kind."""
    figures = [figure for figure in FIGURES if counts.figures.get(figure)]
    kernels = sorted(counts.kernels.items(), key=lambda item: -item[1])[:LISTED]
    libraries = ", ".join(f"{name} {count:,}" for name, count in counts.libraries.items())
    tables = (
        table_of(
            "A step", "what the usual one submits and waits for", figures, ("", lambda one: Cell(FIGURES[one])),
            ("a step", lambda one: Cell(f"{counts.figures[one]:,}")),
            (Column("where", "left"), lambda one: Cell(_places(counts.places.get(one, {})))),
        ),
        table_of(
            "Kernels of a step by family", libraries, kernels, ("", lambda one: Cell(_short(one[0]))),
            ("a step", lambda one: Cell(f"{one[1]:,}")),
            (Column("of", "left"), lambda one: Cell(family(one[0]).library)),
        ),
        table_of(
            "Copies of a step by kind and size", "", list(counts.copies.items())[:LISTED],
            ("", lambda one: Cell(plain(one[0]))), ("a step", lambda one: Cell(f"{one[1]:,}")),
        ),
    )  # fmt: skip
    return [table for table in tables if table is not None]


def counts_openmetrics(one: Side) -> str:
    """The counts as gauges, for a dashboard: ``microbench_step_count`` and ``microbench_step_kernels``."""
    counts, source = one.counts, {"recording": one.name}
    figures = [(source | {"figure": figure}, float(counts.figures.get(figure, 0))) for figure in FIGURES]
    kernels = [
        (source | {"family": name, "library": family(name).library}, float(count))
        for name, count in counts.kernels.items()
    ]
    families = (
        Family("microbench_step_count", "what the usual step submits and waits for", "", figures),
        Family("microbench_step_kernels", "kernels of the usual step by family", "", kernels),
    )
    return "\n".join(line for one in families for line in lines_of(one)) + "\n" + END


def changed_screen(changed: Changed, costs: str) -> Screen:
    """What changed, the verdict first."""
    found = verdict(changed)
    lines = [answer_line("verdict", found.title, verdict=found.severity)]
    sides = {"before": changed.before, "after": changed.after}
    lines += [answer_line(name, f"{plain(one.name)}: {_about(one)}") for name, one in sides.items()]
    tables = []
    if rows := [tuple(map(Cell, row)) for row in _rows(changed.differences)]:
        titles = (*columns("a step", "before", "after"), Column("where", "left"))
        tables.append(Table("What a step does more and less", "counts of the usual step", titles, tuple(rows)))
    if rows := [tuple(map(Cell, row)) for row in _time_rows(changed)]:
        about = "as recorded, with the interval of its median"
        tables.append(Table("Where its time goes", about, columns("", "before", "after", "change"), tuple(rows)))
    return Screen(
        run=costs, blocks=(Block("What changed", (), tuple(lines)),), tables=tuple(tables),
        findings=tuple(_notes(changed)),
    )  # fmt: skip


def _about(one: Side) -> str:
    steps = counted(one.counts.steps, "step") if one.counts.steps else "no steps"
    return f"{steps}, {one.counts.of}, {figure_words(one.counts)}"


def _rows(differences: tuple[Difference, ...]) -> Iterator[tuple[str, ...]]:
    for one in differences[:LISTED]:
        words = _short(one.named) if one.named else FIGURES[one.figure]
        moved = [f"{more:+g} {_short(place)}" for place, more in list(one.places.items())[:SHOWN_PLACES]]
        yield words, f"{one.before:,}", f"{one.after:,}", ", ".join(moved)


def _time_rows(changed: Changed) -> Iterator[tuple[str, ...]]:
    for one in changed.times:
        cells = (f"{as_time(each.median)} ({two_times(each.low, each.high)})" for each in (one.before, one.after))
        yield one.what, *cells, one.judged


def _notes(changed: Changed) -> Iterator[Finding]:
    """What is no difference in counts, but worth knowing."""
    notes: list[tuple[Severity, str, str]] = []
    for one in changed.some:
        words = f"{FIGURES[one.figure]} {_short(one.named)}".strip()
        title = f"In some steps only: {words}, {one.before:g} a step before, {one.after:g} after"
        notes.append(("warning" if one.more > 0 else "note", title, ""))
    for words in changed.lacking:
        notes.append(("warning", f"Counts may be too low: {plain(words)}", ""))
    if changed.chosen:
        listed = ", ".join(changed.chosen[:3])
        notes.append(("note", f"As many kernels, but other ones, for: {listed}", "shapes or number types may differ"))
    if changed.every != (1, 1):
        before, after = (counted(count, "repetition") for count in changed.every)
        notes.append(("note", f"Compared are {before} before and {after} after, which are the same work", ""))
    for severity, title, text in notes:
        yield Finding(rule="diagnose.changed", severity=severity, title=title, text=text, threshold="")


def changed_markdown(changed: Changed) -> str:
    """The comparison for a pull request: at most MOST_LINES lines, the verdict first."""
    found = verdict(changed)
    lines = [f"{SEVERITY_MARKS[found.severity]} **{safe(found.title)}**", ""]
    head = [*_table(("a step", "before", "after", "where"), [*_rows(changed.differences)], MOST_LINES - 16)]
    times = [*_table(("time of a step", "before", "after", ""), [*_time_rows(changed)], 8)]
    notes = [f"- {safe(one.title)}" for one in _notes(changed)][:3]
    sides = f"{safe(changed.before.name)} → {safe(changed.after.name)}"
    return "\n".join([*lines, *head, *times, *notes, f"<sub>{sides}</sub>"]) + "\n"


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]], most: int) -> Iterator[str]:
    if not rows:
        return
    yield line_of(titles)
    yield line_of([":---", "---:", "---:", ":---"])
    shown = rows if len(rows) <= most - 3 else rows[: most - 4]
    yield from (line_of(map(safe, row)) for row in shown)
    if len(shown) < len(rows):
        yield line_of([f"and {len(rows) - len(shown)} more", "", "", ""])
    yield ""


def changed_answer(changed: Changed) -> dict[str, object]:
    """The comparison as one object for JSON, times in s."""
    found = verdict(changed)
    return {
        "before": plain(changed.before.name),
        "after": plain(changed.after.name),
        "verdict": found.title,
        "differences": [_as_dict(one) for one in changed.differences],
        "in_some_steps": [_as_dict(one) for one in changed.some],
        "times": [
            {
                "what": one.what, "judged": one.judged,
                "before": {"median": one.before.median, "low": one.before.low, "high": one.before.high},
                "after": {"median": one.after.median, "low": one.after.low, "high": one.after.high},
            }
            for one in changed.times
        ],
        "other_kernels_of": list(changed.chosen),
        "every": list(changed.every),
        "why_not": changed.why_not,
        "counts": {"before": changed.before.counts, "after": changed.after.counts},
    }  # fmt: skip


def _as_dict(one: Difference) -> dict[str, object]:
    return {**msgspec.structs.asdict(one), "words": change_words(one)}
