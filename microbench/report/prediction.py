"""A predicted step as a report: stream against graph, where the time goes, what to change first, what it rests on."""

from __future__ import annotations

import msgspec

from microbench.core.model import GpuInfo, Run
from microbench.core.units import MISSING, as_time, percent, quantity, rate_of, spread, times
from microbench.predict import words as prediction_words
from microbench.predict.constants import Constant
from microbench.predict.forecast import Forecast, Prediction
from microbench.predict.model import CONSTANTS, LIMITS, Limit
from microbench.predict.words import benchmarks, described, used
from microbench.report.document import Cell, Column, Portion, Report, Section, Stack, Stacks, Table, Tone
from microbench.report.heading import head

TONES: dict[Limit, Tone] = {
    "host": "first", "front end": "advice", "kernel": "second", "link": "third", "sync": "quiet",
}  # fmt: skip
# What is less of the path than this is not named below its bar.
LEAST_NAMED = 0.001
PATH = "the critical path, each moment by what the step then waited for"


class Side(msgspec.Struct, frozen=True):
    """A forecast with the run and the GPU that its constants are of, whether that run is a bundled one, and the options
    with which `microbench run` goes on ``adding`` to it."""

    forecast: Forecast
    run: Run
    gpu: GpuInfo | None = None
    reference: bool = False
    adding: tuple[str, ...] = ()


def sheet(side: Side) -> Report:
    """The prediction under the heading that says whose constants it rests on."""
    forecast, run = side.forecast, side.run
    told = prediction_words.findings(forecast)
    step = Section(
        suite=prediction_words.SUITE,
        title=f"predict: {described(forecast.workload)}",
        pictures=(
            both_ways(forecast),
            Stacks("Where the time of a step goes", PATH, tuple(stack(one.way, one) for one in ways(forecast))),
            *([_changes(forecast)] if forecast.advice else []),
        ),
        studies=(),
        findings=tuple(told[1:]),
        verdict=told[0],
    )
    words = run_words(run)
    grounds = Section(
        suite="certainty",
        title="certainty: what this rests on, and how sure it is",
        pictures=(_constants(forecast, words),),
        studies=(),
        findings=tuple(
            prediction_words.foundations(forecast, words, reference=side.reference, simulated=run.simulated)
        ),
    )
    footer = ("what if: microbench whatif --help    drawn: microbench timeline --help",)
    return msgspec.structs.replace(head(run, reference=side.reference, footer=footer), sections=(step, grounds))


def ways(forecast: Forecast) -> tuple[Prediction, ...]:
    """The stream and, where there is one, the graph."""
    return (forecast.stream, *([forecast.graph] if forecast.graph is not None else []))


def run_words(run: Run) -> str:
    """Which run, on what, when: "run 20251120T…, NVIDIA H200, 2025-11-20"."""
    session = run.sessions[-1]
    gpus = ", ".join(dict.fromkeys(gpu.name for gpu in session.gpus)) or "no GPU"
    return f"run {run.run_id}, {gpus}, {session.started_at[:10]}"


def both_ways(forecast: Forecast) -> Table:
    """A line for the stream and one for the graph."""
    columns = (
        Column("", "left"),
        Column("a step takes"),
        Column("that makes"),
        Column("speed-up", drop=1),
        Column("GPU without a kernel"),
        Column("limited by"),
    )
    rows = tuple(_way(one, forecast) for one in ways(forecast))
    note = prediction_words.paying(forecast) if forecast.graph is not None else "Nothing of this step can be captured."
    return Table("In a stream and as a graph", "", columns, rows, (note,))


def _way(one: Prediction, forecast: Forecast) -> tuple[Cell, ...]:
    workload = forecast.workload
    ratio = "" if one.way == "stream" else times(forecast.speedup)
    return (
        Cell(one.way, tone="strong"),
        Cell(as_time(one.step_s), spread(one.half_width), "strong"),
        Cell(pace(one.step_s, workload.per_step, workload.unit)),
        Cell(ratio, tone="good" if forecast.speedup > 1 else "plain"),
        Cell(percent(one.idle_share)),
        Cell(one.limit, tone=TONES[one.limit]),
    )


def pace(step_s: float, per_step: float, unit: str) -> str:
    """What such steps make a second: "46.3 tokens/s"."""
    return rate_of(per_step / step_s, f"{unit}s") if step_s > 0 else MISSING


def stack(label: str, one: Prediction) -> Stack:
    """A prediction's critical path as a bar."""
    total_s = sum(one.shares.values()) or 1.0
    return Stack(
        label=label,
        portions=tuple(
            Portion(name, one.shares[name], f"{as_time(one.shares[name])}, {percent(one.shares[name] / total_s)}",
                    TONES[name])
            for name in LIMITS
            if one.shares.get(name, 0.0) / total_s >= LEAST_NAMED
        ),
        total=as_time(one.step_s),
    )  # fmt: skip


def _changes(forecast: Forecast) -> Table:
    """What to change first, by what it saves against the stream."""
    rows = tuple(
        (
            Cell(f"{place}."),
            Cell(advice.what, tone="strong" if place == 1 else "plain"),
            Cell(as_time(advice.step_s)),
            Cell(percent(advice.saves), tone="good"),
        )
        for place, advice in enumerate(forecast.advice, start=1)
    )
    columns = (Column(""), Column("", "left"), Column("a step then takes"), Column("saves"))
    about = f"each by itself, against {as_time(forecast.stream.step_s)} in the stream"
    return Table("What to change first", about, columns, rows)


def _constants(forecast: Forecast, words: str) -> Table:
    columns = (
        Column("constant", "left", drop=1),
        Column("what it is", "left"),
        Column("value"),
        Column("from", "left", drop=2),
    )
    rows = tuple(_constant(name, forecast.fit.constants[name]) for name in used(forecast))
    return Table("Constants used", words, columns, rows)


def _constant(name: str, one: Constant) -> tuple[Cell, ...]:
    unit, about = constant_words(name)
    half = (one.high - one.low) / 2 / one.value if one.value > 0 else 0.0
    note = "assumed" if one.assumed else spread(half) if half > 0 else ""
    return (
        Cell(name),
        Cell(about, tone="quiet"),
        Cell(quantity(one.value, unit), note, "advice" if one.assumed else "strong"),
        Cell(_origin(one), tone="quiet"),
    )


def _origin(one: Constant) -> str:
    """The first of the benchmarks that a constant comes from, and how many more there are."""
    found = benchmarks(one.rests_on)
    return found[0] + (f" +{len(found) - 1}" if len(found) > 1 else "") if found else MISSING


def constant_words(name: str) -> tuple[str, str]:
    """A constant's unit and what it is."""
    if name in CONSTANTS:
        return CONSTANTS[name]
    kind, layer, *arguments = name.split(".")
    if kind == "call":
        plural = "" if arguments == ["1"] else "s"
        return "s", f"launch call of {layer}, {arguments[0]} argument{plural}"
    return "s", f"replay call of {layer}"


# A prediction as JSON: times, intervals, shares, advice and constants, in SI base units.


def encoded(side: Side) -> bytes:
    """One object; ``reference`` in it says that the constants are a bundled run's and not this machine's."""
    forecast, run = side.forecast, side.run
    fit = forecast.fit
    whole = {
        "workload": {"title": described(forecast.workload), **_step(forecast)},
        "run": run.run_id,
        "device": fit.device,
        "reference": side.reference,
        "simulated": run.simulated,
        "stream": _way_object(forecast.stream),
        "graph": _way_object(forecast.graph) if forecast.graph is not None else None,
        "speedup": forecast.speedup,
        "making_s": forecast.making_s,
        "break_even_steps": forecast.break_even,
        "advice": msgspec.to_builtins(forecast.advice),
        "constants": {name: msgspec.to_builtins(fit.constants[name]) for name in used(forecast)},
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"


def _step(forecast: Forecast) -> dict[str, object]:
    workload = forecast.workload
    return {
        "kernels": workload.kernels,
        "layers": workload.layers,
        "streams": workload.streams,
        "replays": workload.replays,
        "unit": workload.unit,
        "per_step": workload.per_step,
    }


def _way_object(one: Prediction) -> dict[str, object]:
    return {
        "step_s": one.step_s,
        "low_s": one.low_s,
        "high_s": one.high_s,
        "idle_share": one.idle_share,
        "limit": one.limit,
        "spent_s": dict(one.shares),
        "outside": one.outside,
    }
