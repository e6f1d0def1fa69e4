"""A step before and after a change, or on two machines, as a report: both ways, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from microbench.core.model import Run
from microbench.core.units import as_time, spread
from microbench.predict import whatif
from microbench.predict.forecast import Forecast, Prediction, forecast
from microbench.predict.whatif import Change, Changes, Pair, changed
from microbench.predict.words import described
from microbench.report.document import Cell, Column, Picture, Report, Section, Stacks, Table
from microbench.report.heading import head
from microbench.report.prediction import PATH, TONES, Side, pace, run_words, stack

NOW, THEN = "now", "then"


def changed_sheet(before: Side, changes: Changes) -> Report:
    """The same machine with something about it, or about the step, changed. Raises UsageError for what cannot be."""
    then = changed(before.forecast.workload, before.forecast.fit, before.gpu, changes, before.adding)
    after = forecast(then.workload, then.fit)
    section = _section(before.forecast, after, then.changes, (NOW, THEN), [_changes(then.changes)])
    footer = (f"constants of {run_words(before.run)}",)
    return msgspec.structs.replace(head(before.run, reference=before.reference, footer=footer), sections=(section,))


def against_sheet(first: Side, second: Side) -> Report:
    """The same workload on two recorded machines."""
    names = _names(first.run, second.run)
    section = _section(first.forecast, second.forecast, (), names, [])
    heads = [head(side.run, reference=side.reference) for side in (first, second)]
    return msgspec.structs.replace(
        heads[0],
        mark=heads[0].mark or heads[1].mark,
        banners=tuple(dict.fromkeys((*heads[0].banners, *heads[1].banners))),
        facts=(*heads[0].facts, *((f"against {name}", words) for name, words in heads[1].facts)),
        sections=(section,),
        footer=tuple(f"{name}: {run_words(side.run)}" for name, side in zip(names, (first, second), strict=True)),
    )


def _names(first: Run, second: Run) -> tuple[str, str]:
    """What the two are called: their GPUs' names where those differ."""
    gpus = [[gpu.name for gpu in run.sessions[-1].gpus] for run in (first, second)]
    if gpus[0] and gpus[1] and gpus[0][0] != gpus[1][0]:
        return f"on the {gpus[0][0]}", f"on the {gpus[1][0]}"
    return "in the first run", "in the second"


def _section(
    before: Forecast, after: Forecast, changes: Sequence[Change], names: tuple[str, str], pictures: list[Picture]
) -> Section:
    told = whatif.findings(before, after, changes, names)
    pairs = whatif.pairs(before, after)
    bars = tuple(
        stack(f"{one.way} {_short(name)}", one) for pair in pairs for name, one in zip(names, pair, strict=True)
    )
    return Section(
        suite=whatif.SUITE,
        title=f"what if: {described(before.workload)}",
        pictures=(*pictures, _both(before, after, pairs, names), Stacks("Where the time of a step goes", PATH, bars)),
        studies=(),
        findings=tuple(told[1:]),
        verdict=told[0],
    )


def _short(name: str) -> str:
    return name if name in (NOW, THEN) else name.removeprefix("on the ").removeprefix("in the ").removesuffix(" run")


def _changes(changes: Sequence[Change]) -> Table:
    columns = (Column("", "left"), Column(NOW), Column(THEN))
    rows = tuple(
        (Cell(one.what), Cell(one.before), Cell(one.after, tone="strong" if one.matters else "quiet"))
        for one in changes
    )
    return Table("What is changed", "", columns, rows)


def _both(before: Forecast, after: Forecast, pairs: Sequence[Pair], names: tuple[str, str]) -> Table:
    """A line for each way and time: the step, its pace, what limits it, what the change gives."""
    columns = (
        Column("", "left"),
        Column("", "left"),
        Column("a step takes"),
        Column("that makes", drop=1),
        Column("limited by"),
        Column("", "left"),
    )
    rows = []
    for pair in pairs:
        rows.append(_line(pair.before, before, pair.before.way, names[0], ""))
        rows.append(_line(pair.after, after, "", names[1], whatif.in_words(pair)))
    return Table("In a stream and as a graph", "", columns, tuple(rows))


def _line(one: Prediction, whole: Forecast, way: str, name: str, change: str) -> tuple[Cell, ...]:
    workload = whole.workload
    return (
        Cell(way, tone="strong"),
        Cell(_short(name)),
        Cell(as_time(one.step_s), spread(one.half_width), "strong"),
        Cell(pace(one.step_s, workload.per_step, workload.unit)),
        Cell(one.limit, tone=TONES[one.limit]),
        Cell(change, tone="strong"),
    )
