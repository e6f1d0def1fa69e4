"""Makes the reports of predicted steps: a step (predict), before and after a change (whatif), to scale (timeline)."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from microbench.analysis.evidence import Evidence
from microbench.core.model import GpuInfo, Run
from microbench.core.units import MISSING, as_time, percent, quantity, rate_of, spread
from microbench.model import whatif, words
from microbench.model.constants import Constant
from microbench.model.forecast import Forecast, Prediction, forecast, unchanged
from microbench.model.model import LIMITS, Limit, told
from microbench.model.whatif import BeforeAfter, Change, Changes, changed
from microbench.model.workload import Workload
from microbench.report.document import (
    AnswerLine,
    Block,
    Cell,
    Column,
    Picture,
    Portion,
    Report,
    Screen,
    Section,
    Stack,
    Stacks,
    Table,
    Tone,
    columns,
)
from microbench.report.heading import head, run_words
from microbench.report.suites.timeline import in_words, pictures

TONES: dict[Limit, Tone] = {
    "host": "first", "front end": "advice", "kernel": "second", "link": "third", "sync": "quiet",
}  # fmt: skip
# Smaller shares of the critical path are not named below their bar.
LEAST_NAMED = 0.001
SHARES, PATH = (
    "Where the time of a step goes",
    "what the step waited for, moment by moment; front end: the GPU's own gap before a kernel starts",
)
WAYS = "In a stream and as a graph"
NOW, THEN = "now", "then"
LONGEST_TITLE = 70


class Side(msgspec.Struct, frozen=True):
    """A forecast with the rows that its constants come from.

    ``reference`` says that they are of a bundled run; ``adding`` are the options with which `microbench run` adds to
    that run.
    """

    forecast: Forecast
    evidence: Evidence
    reference: bool = False
    adding: tuple[str, ...] = ()

    @property
    def run(self) -> Run:
        return self.evidence.run

    @property
    def gpu(self) -> GpuInfo | None:
        return self.evidence.gpu


def headed(*sides: Side, sections: tuple[Section, ...], footer: tuple[str, ...]) -> Report:
    """The report below one line that says whose costs these are, so that the answer stands on the first screen."""
    heads = [head(side.run, reference=side.reference) for side in sides]
    costs = []  # where and when the costs of each side were measured
    for one, side in zip(heads, sides, strict=True):
        session = side.run.sessions[-1]
        when, driver = session.started_at[:10], session.environment.driver_version
        if len(sides) == 1:
            when = f"{'not this machine, ' if side.reference else ''}{when}{f', driver {driver}' if driver else ''}"
        costs.append(f"{one.title}, {'not a real one' if side.run.simulated else when}")
    mark, facts = next((one.mark for one in heads if one.mark), ""), (("costs of", " · against ".join(costs)),)
    return replace(heads[0], mark=mark, banners=(), facts=facts, sections=sections, footer=footer)


def screen(side: Side) -> Screen:
    """One screen: what a graph of the step gives, what limits the step both ways, and what to change first."""
    forecast = side.forecast
    verdict, *found = words.findings(forecast)
    limits = tuple(
        Cell(f"{where} {' or '.join(one.limits)}, the GPU idles for {words.idle(one)}")
        for where, one in zip(("in the stream", "as a graph"), _predictions(forecast), strict=False)
    )
    lines = [
        AnswerLine("answer", (Cell(verdict.title),), verdict=verdict.severity),
        AnswerLine("limit", limits),
    ]
    if forecast.graph is not None:
        lines.append(AnswerLine("capture", (Cell(words.paying(forecast, parts=False)),)))
    if forecast.advice:
        saved = (Cell(f"{one.what}: {as_time(one.step_s)}, {percent(one.saves)} less") for one in forecast.advice)
        lines.append(AnswerLine("change", tuple(saved)))
    heading = headed(side, sections=(), footer=())
    return Screen(
        mark=heading.mark,
        run=f"costs of {heading.facts[0][1]}",
        blocks=(Block(words.described(forecast.workload, forecast.fit.titles), (), tuple(lines)),),
        findings=tuple(one for one in found if one.severity in ("advice", "warning")),
        footer="more: the same with --all · after a change: microbench whatif · to scale: microbench timeline",
    )


def sheet(side: Side) -> Report:
    """A prediction with its shares, the changes that save most, and the constants behind it."""
    forecast, run = side.forecast, side.run
    verdict, *findings = words.findings(forecast)
    stacks = tuple(_stack(prediction.way, prediction) for prediction in _predictions(forecast))
    changes = [_advice_table(forecast)] if forecast.advice else []
    title = f"predict: {words.described(forecast.workload, forecast.fit.titles)}"
    path = "; ".join((PATH, *words.drawn_as(forecast)))
    drawn: tuple[Picture, ...] = (ways_table(forecast), Stacks(SHARES, path, stacks), *changes)
    step = Section(words.SUITE, title, drawn, (), tuple(findings), verdict)
    origin = run_words(run)
    grounds = tuple(words.foundations(forecast, origin, reference=side.reference, simulated=run.simulated))
    left, constant = Column("what it is", "left"), Column("constant", "left", drop=1)
    titles = (constant, left, Column("value"), Column("from", "left", drop=2))
    rows = tuple(_constant_row(name, forecast.fit.constants[name]) for name in words.used(forecast))
    sure = "certainty: what this rests on, and how sure it is"
    certainty = Section("certainty", sure, (Table("Constants used", origin, titles, rows),), (), grounds)
    footer = ("what if: microbench whatif --help    drawn: microbench timeline --help",)
    return headed(side, sections=(step, certainty), footer=footer)


def _predictions(forecast: Forecast) -> tuple[Prediction, ...]:
    return (forecast.stream, *([forecast.graph] if forecast.graph is not None else []))


def ways_table(forecast: Forecast) -> Table:
    """A row for the stream and one for the graph."""
    gain: Tone = "good" if forecast.speedup > 1 else "plain"
    shown: list[tuple[str, Prediction]] = [(one.way, one) for one in _predictions(forecast)]
    if both := words.cases(forecast):
        shown[:1] = [(f"stream, {name}", one.stream) for name, one in both]
    rows = tuple(
        (
            Cell(name, tone="strong"),
            *_figures(one, forecast.workload),
            Cell("" if one.way == "stream" else words.speedup(forecast), tone=gain),
            Cell(words.idle(one)),
            _limited(one),
        )
        for name, one in shown
    )
    making = words.paying(forecast) if forecast.graph is not None else "Nothing of this step can be captured."
    notes = (making, *words.unknown(forecast), *words.one_stream_words(forecast))
    titles = ("", "a step takes", "that makes", "speed-up", "GPU without a kernel", "limited by")
    return Table(WAYS, "", columns(*titles, drop={"speed-up": 1, "GPU without a kernel": 2}), rows, notes)


def _figures(prediction: Prediction, workload: Workload) -> tuple[Cell, Cell]:
    """The time of a step with its interval, or the times at both ends of what is not known; and the rate of the
    workload's unit: "46.3 tokens/s"; a range has one at either end."""
    taken = Cell(as_time(prediction.step_s), spread(prediction.half_width), "strong")
    taken = Cell(words.between(prediction), tone="strong") if prediction.ends else taken
    ends_s = [end.step_s for end in reversed(prediction.ends)] or [prediction.step_s]
    if min(ends_s) <= 0:
        return taken, Cell(MISSING)
    rates = [rate_of(workload.per_step / seconds, f"{workload.unit}s") for seconds in ends_s]
    if len(rates) == 2 and rates[0].split()[-1] == rates[1].split()[-1]:
        rates[0] = rates[0].rsplit(" ", 1)[0]
    return taken, Cell(" to ".join(rates))


def _limited(prediction: Prediction) -> Cell:
    return Cell(" or ".join(prediction.limits), tone=TONES[prediction.limit])


def _stack(label: str, prediction: Prediction) -> Stack:
    total_s = sum(prediction.shares.values()) or 1.0
    portions = tuple(
        Portion(name, share_s, f"{as_time(share_s)}, {percent(share_s / total_s)}", TONES[name])
        for name in LIMITS
        if (share_s := prediction.shares.get(name, 0.0)) / total_s >= LEAST_NAMED
    )
    return Stack(label, portions, as_time(prediction.step_s))


def _advice_table(forecast: Forecast) -> Table:
    """The changes to the step, ordered by the time that each saves in the stream."""
    about = f"each by itself, against {as_time(forecast.stream.step_s)} in the stream"
    about += " in typical model code" if forecast.host is not None else ""
    rows = [
        (Cell(f"{place}."), Cell(one.what), Cell(as_time(one.step_s)), Cell(percent(one.saves), tone="good"))
        for place, one in enumerate(forecast.advice, start=1)
    ]
    rows[0] = (rows[0][0], replace(rows[0][1], tone="strong"), *rows[0][2:])
    titles = (Column(""), Column("", "left"), Column("a step then takes"), Column("saves"))
    return Table("What to change first", about, titles, tuple(rows))


def _constant_row(name: str, constant: Constant) -> tuple[Cell, ...]:
    unit, about = told(name)
    half_width = (constant.high - constant.low) / 2 / constant.value if constant.value > 0 else 0.0
    note = "assumed" if constant.assumed else spread(half_width) if half_width > 0 else ""
    sources = words.benchmarks(constant.rests_on)
    more = f" +{len(sources) - 1}" if len(sources) > 1 else ""
    value = quantity(constant.value, unit)
    if constant.value == 0 < constant.high:
        value = f"at most {quantity(constant.high, unit)}"
    return (
        Cell(name),
        Cell(about, tone="quiet"),
        Cell(value, note, "advice" if constant.assumed else "strong"),
        Cell(f"{sources[0]}{more}" if sources else MISSING, tone="quiet"),
    )


def answer(side: Side) -> dict[str, object]:
    """A prediction as one object for JSON: times, intervals, shares, advice and constants, in SI base units."""
    forecast, run = side.forecast, side.run
    workload, fit = forecast.workload, forecast.fit
    step = {name: getattr(workload, name) for name in ("kernels", "layers", "streams", "replays", "unit", "per_step")}
    return {
        "workload": {"title": words.described(workload, fit.titles), **step},
        "run": run.run_id,
        "device": fit.device,
        "reference": side.reference,
        "simulated": run.simulated,
        "stream": _prediction_object(forecast.stream),
        "graph": _prediction_object(forecast.graph) if forecast.graph is not None else None,
        "speedup": forecast.speedup,
        "speedups": forecast.speedups,
        "speedup_between": forecast.speedup_between,
        "host_time": None if forecast.host is None else msgspec.to_builtins(forecast.host),
        "launch_bound_from_s": forecast.launch_bound_s,
        "making_s": forecast.making_s,
        "making": forecast.making._asdict(),
        "break_even_steps": forecast.break_even,
        "advice": msgspec.to_builtins(forecast.advice),
        "constants": {name: msgspec.to_builtins(fit.constants[name]) for name in words.used(forecast)},
    }


def _prediction_object(prediction: Prediction) -> dict[str, object]:
    names = ("step_s", "low_s", "high_s", "idle_share", "limit")
    plain = {name: getattr(prediction, name) for name in names}
    ends = [_prediction_object(end) for end in prediction.ends]
    return {**plain, "spent_s": dict(prediction.shares), "outside": prediction.outside, "ends": ends}


def changed_sheet(before: Side, changes: Changes) -> Report:
    """The step before and after changes to it or to the machine. Raises UsageError for an impossible change."""
    then = changed(before.forecast.workload, before.forecast.fit, before.gpu, changes, before.adding)
    rows = tuple(
        (Cell(change.what), Cell(change.before), Cell(change.after, tone="strong" if change.matters else "quiet"))
        for change in then.changes
    )
    table = Table("What is changed", "", columns("", NOW, THEN), rows)
    after = forecast(before.forecast.workload, then.fit, then.change)
    section = _comparing_section(before.forecast, after, then.changes, (NOW, THEN), [table])
    return headed(before, sections=(section,), footer=(f"constants of {run_words(before.run)}",))


def against_sheet(first: Side, second: Side) -> Report:
    """The same step on two recorded machines."""
    names = ("in the first run", "in the second")
    gpus = [[gpu.name for gpu in side.run.sessions[-1].gpus] for side in (first, second)]
    if gpus[0] and gpus[1] and gpus[0][0] != gpus[1][0]:
        names = (f"on the {gpus[0][0]}", f"on the {gpus[1][0]}")
    section = _comparing_section(first.forecast, second.forecast, (), names, [])
    footer = tuple(f"{name}: {run_words(side.run)}" for name, side in zip(names, (first, second), strict=True))
    return headed(first, second, sections=(section,), footer=footer)


def _comparing_section(
    before: Forecast, after: Forecast, changes: Sequence[Change], names: tuple[str, str], tables: Sequence[Table]
) -> Section:
    pairs = whatif.pairs(before, after)
    verdict, *findings = whatif.findings(before, after, changes, names, pairs)
    stacks = tuple(
        _stack(f"{prediction.way} {_short(name)}", prediction)
        for pair in pairs
        for name, prediction in zip(names, pair[:2], strict=True)
    )
    title = f"what if: {words.described(before.workload, before.fit.titles)}"
    path = "; ".join(dict.fromkeys((PATH, *words.drawn_as(before), *words.drawn_as(after))))
    drawn: tuple[Picture, ...] = (*tables, _both_table(before, after, pairs, names), Stacks(SHARES, path, stacks))
    return Section(whatif.SUITE, title, drawn, (), tuple(findings), verdict)


def _short(name: str) -> str:
    return name if name in (NOW, THEN) else name.removeprefix("on the ").removeprefix("in the ").removesuffix(" run")


def _both_table(before: Forecast, after: Forecast, pairs: Sequence[BeforeAfter], names: tuple[str, str]) -> Table:
    """Two rows for each way of submitting: the step before and after, its rate, its limit, and the speed-up."""
    left = Column("", "left")
    titles = (left, left, Column("a step takes"), Column("that makes", drop=1), Column("limited by"), left)
    sides = (before, after) if after.change is unchanged else (before,)  # a change makes nothing known
    notes = tuple(dict.fromkeys(note for side in sides for note in words.unknown(side)))
    rows = [
        (
            Cell("" if changed else prediction.way, tone="strong"),
            Cell(_short(names[changed])),
            *_figures(prediction, (before, after)[changed].workload),
            _limited(prediction),
            Cell(whatif.in_words(pair) if changed else "", tone="strong"),
        )
        for pair in pairs
        for changed, prediction in enumerate(pair[:2])
    ]
    return Table(WAYS, "", titles, tuple(rows), notes)


def timeline_sheet(side: Side) -> Report:
    """The step drawn to scale, below what a graph of it gains."""
    step = side.forecast
    grounds = words.foundations(step, run_words(side.run), reference=side.reference, simulated=side.run.simulated)
    title = words.described(step.workload, step.fit.titles)
    if len(title) > LONGEST_TITLE:  # cut behind a comma if possible
        cut = title[:LONGEST_TITLE]
        title = f"{cut[: cut.rfind(', ')] if ', ' in cut else cut}, …"
    verdict, *findings = words.to_scale(side.evidence, step)
    drawn = tuple(pictures(step, in_words(step.workload)))
    section = Section(words.TO_SCALE, f"timeline: {title}", drawn, (), (*findings, *grounds), verdict)
    footer = (f"costs from run {side.run.run_id}", "in figures: microbench predict --help")
    return headed(side, sections=(section,), footer=footer)
